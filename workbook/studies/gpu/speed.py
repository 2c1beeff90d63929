"""Seconds of a training step beside TRL's GRPOTrainer at equal settings, on the same given rollouts.

Sampling is left out, since it is the same code in both: completions are given, with a tail of lengths as real ones
have. The weights are random, of SmolLM2's shape, so that nothing need be fetched. The arms are trained in turns,
several builds of each, since a build differs from itself by a few percent.
"""

from __future__ import annotations

import random
import time
from functools import partial

import pandas as pd
import torch
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from workbook.rollouts.scoring import tokenize_prompts
from workbook.studies.gpu.bench import GpuBench
from workbook.studies.gpu.equality import SETTINGS
from workbook.studies.gpu.peaks import TINY, random_policy
from workbook.tasks import get_task
from workbook.training.config import CancellationConfig
from workbook.training.shapes import SMOLLM2_135M
from workbook.training.trainer import CancellationTrainer

ARMS = {
    "TRL": None,
    "defaults": {},
    "trim_padding": {"trim_padding": True},
    "record_tokens=10": {"record_tokens": 10},
    "measure_cancellation=4": {"measure_cancellation": 4},
}
BUILDS, STEPS, WARM = 3, 44, 4  # of each arm; optimizer steps, the first ones not counted
LONGEST = 128  # tokens of a completion


def measure(bench: GpuBench) -> dict[str, pd.DataFrame]:
    """Tables steps (a row per arm, build and step) and ratios (a row per arm and build, of mean seconds to TRL's)."""
    builds = 1 if bench.dry else BUILDS
    table = bench.cases({f"build-{k}": partial(_turns, bench, k) for k in range(builds)})["steps"]
    means = table[table["step"] > (1 if bench.dry else WARM)].groupby(["build", "arm"])["seconds"].mean().unstack()
    ratios = means.div(means["TRL"], axis=0).drop(columns="TRL").stack().rename("ratio").reset_index()
    middle = ratios.groupby("arm", sort=False)["ratio"].median()
    bench.results.append("times TRL's step: " + ", ".join(f"{arm} {ratio:.3f}" for arm, ratio in middle.items()))
    return {"steps": table, "ratios": ratios}


def _turns(bench: GpuBench, build: int) -> dict[str, pd.DataFrame]:
    arms = list(ARMS)
    rows = []
    for arm in arms[build % len(arms) :] + arms[: build % len(arms)]:  # none is always the first
        bench.check_time()
        seconds = _train(bench, ARMS[arm])
        rows += [{"build": build, "arm": arm, "step": k + 1, "seconds": s} for k, s in enumerate(seconds)]
    return {"steps": pd.DataFrame(rows)}


def _train(bench: GpuBench, switches: dict | None) -> list[float]:
    """Seconds of every optimizer step; switches: of CancellationConfig, None for TRL."""
    shape = TINY if bench.dry else SMOLLM2_135M
    policy = random_policy(shape, None, None, torch.float32, bench.device)
    theirs, ours = (GRPOTrainer, GRPOConfig), (CancellationTrainer, CancellationConfig)
    trainer_class, config_class = theirs if switches is None else ours
    cuda = bench.device.type == "cuda"
    settings = SETTINGS | {"max_steps": 3 if bench.dry else STEPS, "learning_rate": 1e-6, "use_cpu": not cuda}
    settings |= {"bf16": cuda and torch.cuda.get_device_capability() >= (8, 0), "seed": 0}
    settings |= {"max_completion_length": 16 if bench.dry else LONGEST}
    clock = _Clock()
    trainer = trainer_class(
        policy.model,
        lambda completion_ids, **_: [float(len(ids) % 5) for ids in completion_ids],
        args=config_class(output_dir=bench.output_dir(), **settings | (switches or {})),
        train_dataset=get_task("chain").dataset(64, seed=0),
        processing_class=policy.tokenizer,
        rollout_func=given_rollouts,
        callbacks=[clock],
    )
    bench.train(trainer)
    return clock.seconds


def given_rollouts(prompts, trainer) -> dict:
    """TRL's rollout_func: completions of lognormal lengths, a third of the longest at the median, always the same."""
    chance, most = random.Random(0), trainer.args.max_completion_length
    lengths = [min(most, max(2, round(most / 3 * chance.lognormvariate(0, 0.6)))) for _ in prompts]
    completions = [[5 + (i + t) % 20 for t in range(n)] for i, n in enumerate(lengths)]
    ids = tokenize_prompts(trainer.processing_class, prompts)
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": [[0.0] * n for n in lengths]}


class _Clock(TrainerCallback):
    """Seconds between the ends of optimizer steps, with whatever the device still had to do."""

    def __init__(self):
        self.seconds, self.last = [], None

    def on_train_begin(self, *_, **__):
        self.last = time.perf_counter()

    def on_step_end(self, *_, **__):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.seconds.append(now - self.last)
        self.last = now
