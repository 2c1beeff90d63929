"""A trainer step against plain GRPOTrainer's at the same settings and on the same rollouts, as a ratio from one run.

Sampling is left out: it is the same code in both. The two take turns, in CPU seconds of one thread; each figure is
its least
over the rounds, since other work on the machine can only add to it.
"""

import time

import pytest
import torch
from conftest import SMALL
from trl import GRPOConfig, GRPOTrainer

from workbook.policies import load_policy
from workbook.tasks import get_task
from workbook.training import CancellationConfig, CancellationTrainer

ROUNDS = 21
LENGTHS = (4, 9, 17, 48)  # tokens of the completions of a group: ragged, as real rollouts are


def fixed_rollouts(prompts, trainer):
    """Completions of ragged lengths, the longest only in every fourth group, so that most micro-batches are shorter."""
    tokenizer = trainer.processing_class
    lengths = [LENGTHS[i % 4] if i // 4 % 4 == 0 else LENGTHS[i % 3] for i in range(len(prompts))]
    return {
        "prompt_ids": [tokenizer(prompt, add_special_tokens=False).input_ids for prompt in prompts],
        "completion_ids": [[5 + (i + t) % 20 for t in range(n)] for i, n in enumerate(lengths)],
        "logprobs": [[0.0] * n for n in lengths],
    }


def build(trainer_class, config_class, tmp_path, **settings):
    policy = load_policy("bundled")
    args = config_class(
        output_dir=str(tmp_path), **SMALL | {"per_device_train_batch_size": 16, "num_generations": 4} | settings
    )
    trainer = trainer_class(
        policy.model,
        lambda completions, **_: [float(len(text) % 5) for text in completions],
        args=args,
        train_dataset=get_task("chain").dataset(16, seed=0),
        processing_class=policy.tokenizer,
        rollout_func=fixed_rollouts,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer, next(iter(trainer.get_train_dataloader()))


def window(trainer, batch) -> float:
    """CPU seconds of one generation batch's four micro-steps: prepare, forward, backward."""
    start = time.process_time()
    for _ in range(trainer.args.steps_per_generation):
        trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch)).backward()
        trainer._step += 1
    return time.process_time() - start


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "settings", "bound"),
    [
        ("defaults", {}, 1.02),
        ("trim_padding", {"trim_padding": True}, 1.00),
        ("query_preserved", {"batching": "query_preserved"}, 1.02),
    ],
)
def test_step_time_against_trl(tmp_path, capsys, name, settings, bound):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        theirs = build(GRPOTrainer, GRPOConfig, tmp_path)
        ours = build(CancellationTrainer, CancellationConfig, tmp_path, **settings)
        for pair in (theirs, ours):
            window(*pair)
        seconds = {id(theirs): [], id(ours): []}
        for i in range(ROUNDS):  # the order alternates, so that neither always runs on the other's warm caches
            for pair in (ours, theirs) if i % 2 else (theirs, ours):
                seconds[id(pair)].append(window(*pair))
    finally:
        torch.set_num_threads(threads)
    mine, other = min(seconds[id(ours)]), min(seconds[id(theirs)])
    with capsys.disabled():
        print(f"\ntrainer step, {name}: {mine:.3f} s / {other:.3f} s of GRPOTrainer = {mine / other:.3f} (<= {bound})")
    assert mine <= bound * other
