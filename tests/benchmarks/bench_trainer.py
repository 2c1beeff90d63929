"""A trainer step against plain GRPOTrainer's at the same settings and on the same rollouts, as a ratio from one run.

Sampling is left out: it is the same code in both. The two take turns micro-step by micro-step, in CPU seconds of one
thread; the figure is the median, over generation batches, of the ratio of their times. What makes the machine faster
at one time than at another so meets both alike. What memory either was given does not: the same trainer, built twice,
differs from itself by up to 5 %. So several pairs are built, and each is shown.
"""

import random
import statistics
import time

import pytest
import torch
from small_run import SMALL
from trl import GRPOConfig, GRPOTrainer

from workbook.policies.load import load_policy
from workbook.tasks import get_task
from workbook.training import CancellationConfig, CancellationTrainer

ROUNDS, BUILDS = 12, 3  # generation batches of each pair of trainers, pairs
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


def micro_step(trainer, batch) -> float:
    """CPU seconds of one micro-step: prepare (which generates, scores and cuts before the first), forward, backward."""
    start = time.process_time()
    trainer.compute_loss(trainer.model, trainer._prepare_inputs(batch)).backward()
    trainer._step += 1
    return time.process_time() - start


def take_turns(ours, theirs, rounds: int) -> list[tuple[float, float]]:
    """CPU seconds that either takes for each of some generation batches."""
    pairs = []
    for i in range(rounds):
        taken = {id(ours): 0.0, id(theirs): 0.0}
        for k in range(SETTINGS["steps_per_generation"]):
            for built in (ours, theirs) if (i + k) % 2 else (theirs, ours):  # neither always has warm caches
                taken[id(built)] += micro_step(*built)
        pairs.append((taken[id(ours)], taken[id(theirs)]))
    return pairs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", [{}, {"trim_padding": True}, {"measure_cancellation": 1}], ids=str)
def test_step_time_against_trl(tmp_path, capsys, settings):
    threads, ratios = torch.get_num_threads(), []
    torch.set_num_threads(1)
    try:
        for _ in range(BUILDS):
            theirs = build(GRPOTrainer, GRPOConfig, tmp_path)
            ours = build(CancellationTrainer, CancellationConfig, tmp_path, **settings)
            take_turns(ours, theirs, 1)  # what the first has to load
            pairs = take_turns(ours, theirs, ROUNDS)
            ratios.append(statistics.median(mine / other for mine, other in pairs))
    finally:
        torch.set_num_threads(threads)
    with capsys.disabled():
        print(f"\ntrainer step, {settings or 'defaults'}: times GRPOTrainer's", *(f"{ratio:.3f}" for ratio in ratios))
