"""What probes need beside a loaded Llama of two layers and 49,152 words: `make bench ARGS=memory`.

python tests/bench_memory.py [CASE]    each case in a process of its own

prints CPU seconds, and peak resident memory above the model's.
"""

import subprocess
import sys
import time
from itertools import accumulate
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from workbook.policies.load import Policy
from workbook.policies.models import peak_used_mib, used_mib
from workbook.probes import TokenExplainer, cancellation_index, coupling_by_confidence, token_flips
from workbook.rollouts import Rollouts
from workbook.theory import group_advantages

# SmolLM2
SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}


def explain_token(policy, rollouts, **settings):
    return TokenExplainer(policy, rollouts, 1e-3, **settings)(0, 3).tokens


CASES = {  # probe, rollouts, tokens of each, rows of a pass
    "token_flips 64 x 64": (token_flips, 64, 64, None),
    "cancellation_index 256 x 64": (cancellation_index, 256, 64, None),
    "coupling 16 x 512": (coupling_by_confidence, 16, 512, None),
    "explain_token 16 x 64": (explain_token, 16, 64, None),
    "explain_token 16 x 256, a row at a time": (explain_token, 16, 256, 1),
}


def made_up(layers: int, words: int, rollouts: int, length: int) -> tuple[Policy, Rollouts]:
    """A random policy, and groups of 8 rollouts of random words, half of them with a reward."""
    torch.manual_seed(0)
    config = LlamaConfig(
        **SHAPE, num_hidden_layers=layers, vocab_size=words, tie_word_embeddings=True
    )
    rows, ones = torch.arange(rollouts), torch.ones(rollouts, length, dtype=torch.long)
    given = {
        "prompt_ids": torch.randint(words, (rollouts, 16))[rows // 8],
        "prompt_mask": ones[:, :1].repeat(1, 16),
    }
    given |= {
        "completion_ids": torch.randint(words, ones.shape),
        "completion_mask": ones,
        "old_logps": ones * 0.0,
    }
    given |= {
        "group_ids": rows // 8,
        "rewards": rows % 2 * 1.0,
        "advantages": group_advantages(rows % 2 * 1.0, rows // 8),
    }
    return Policy(LlamaForCausalLM(config).eval(), None, {}), Rollouts.from_batch(given)


def peak_of(call) -> float:
    """The most bytes that torch held during a call beside what was there before."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        call()
    events = [
        event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"
    ]
    return max(
        accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    )


def main(case: str) -> None:
    probe, rollouts, length, rows = CASES[case]
    torch.set_num_threads(1)
    given = made_up(2, 49_152, rollouts, length)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    loaded, start = used_mib("cpu"), time.process_time()
    probe(*given, **({"batch_size": rows} if rows else {}))
    print(
        f"{case}: {time.process_time() - start:.1f} s, {peak_used_mib('cpu') - loaded:,.0f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    for name in sys.argv[1:] or CASES:
        (
            main(name)
            if len(sys.argv) > 1
            else subprocess.run([sys.executable, __file__, name], check=True)
        )
