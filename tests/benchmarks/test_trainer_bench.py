"""A trainer step against plain GRPOTrainer's at the same settings and on the same rollouts, as a ratio from one run.

Sampling is left out: it is the same code in both. The two take turns, in CPU seconds of one thread; each figure is
its least
over the rounds, since other work on the machine can only add to it.
"""

import random
import time

import pytest
import torch
from small_run import SMALL
from trl import GRPOConfig, GRPOTrainer

from workbook.policies import load_policy
from workbook.tasks import get_task
from workbook.training import CancellationConfig, CancellationTrainer

ROUNDS = 30  # at most
SETTLED = 8  # rounds in which neither least figure fell by half a percent
SETTINGS = SMALL | {"per_device_train_batch_size": 16, "steps_per_generation": 8, "max_completion_length": 96}


def fixed_rollouts(prompts, trainer):
    """Completions with a tail of lengths, as real ones have: median 16 tokens, lognormal of sigma 0.6, at most 96."""
    tokenizer, chance = trainer.processing_class, random.Random(0)
    lengths = [min(96, max(2, round(16 * chance.lognormvariate(0, 0.6)))) for _ in prompts]
    return {
        "prompt_ids": [tokenizer(prompt, add_special_tokens=False).input_ids for prompt in prompts],
        "completion_ids": [[5 + (i + t) % 20 for t in range(n)] for i, n in enumerate(lengths)],
        "logprobs": [[0.0] * n for n in lengths],
    }


def build(trainer_class, config_class, tmp_path, **settings):
    policy = load_policy("bundled")
    args = config_class(output_dir=str(tmp_path), **SETTINGS | settings)
    trainer = trainer_class(
        policy.model,
        lambda completions, **_: [float(len(text) % 5) for text in completions],
        args=args,
        train_dataset=get_task("chain").dataset(32, seed=0),
        processing_class=policy.tokenizer,
        rollout_func=fixed_rollouts,
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    return trainer, next(iter(trainer.get_train_dataloader()))


def window(trainer, batch) -> float:
    """CPU seconds of one generation batch's micro-steps: prepare, forward, backward."""
    start = time.process_time()
    for _ in range(trainer.args.steps_per_generation):
        trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch)).backward()
        trainer._step += 1
    return time.process_time() - start


def take_turns(ours, theirs) -> tuple[float, float]:
    """The least CPU seconds of either's window, over rounds until both have settled."""
    least, quiet = {id(ours): float("inf"), id(theirs): float("inf")}, 0
    for i in range(ROUNDS):
        before = dict(least)
        for pair in (ours, theirs) if i % 2 else (theirs, ours):  # neither always runs on the other's warm caches
            least[id(pair)] = min(least[id(pair)], window(*pair))
        quiet = quiet + 1 if all(least[key] > 0.995 * before[key] for key in least) else 0
        if quiet == SETTLED:
            break
    return least[id(ours)], least[id(theirs)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "settings", "bound"),
    [
        ("defaults", {}, 1.02),
        ("trim_padding", {"trim_padding": True}, 1.00),
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
        mine, other = take_turns(ours, theirs)
    finally:
        torch.set_num_threads(threads)
    with capsys.disabled():
        print(f"\ntrainer step, {name}: {mine:.3f} s / {other:.3f} s of GRPOTrainer = {mine / other:.3f} (<= {bound})")
    assert mine <= bound * other
