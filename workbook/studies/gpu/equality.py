"""CancellationTrainer with every field at its default against TRL's GRPOTrainer, bit for bit, in mixed precision.

TRL is trained twice, since where two equal runs of TRL differ (kernels whose sums have no fixed order), equality can't
be told.
"""

from __future__ import annotations

import math
from functools import partial

import pandas as pd
import torch
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

from workbook.studies.gpu.bench import GpuBench
from workbook.training.config import CancellationConfig
from workbook.training.trainer import CancellationTrainer

PAIRS = {"ours v. TRL": ("ours", "TRL"), "TRL v. TRL": ("TRL", "TRL again")}
TRAINERS = {
    "TRL": (GRPOTrainer, GRPOConfig),
    "TRL again": (GRPOTrainer, GRPOConfig),
    "ours": (CancellationTrainer, CancellationConfig),
}
STEPS = 8
SETTINGS = {  # two generation batches of four optimizer steps: ratios differ from 1
    "report_to": "none",
    "logging_steps": 1,
    "disable_tqdm": True,
    "save_strategy": "no",
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "steps_per_generation": 4,
    "gradient_accumulation_steps": 1,
    "lr_scheduler_type": "constant",
    "loss_type": "dr_grpo",
    "max_grad_norm": 1.0,
    "gradient_checkpointing": False,
}


def measure(bench: GpuBench) -> dict[str, pd.DataFrame]:
    """Table equality: a row per policy, precision and pair of runs."""
    policies = ("bundled",) if bench.dry else ("bundled", "smollm2-135m")
    pairs = [(name, precision) for name in policies for precision in ("bf16", "fp16")]
    tables = bench.cases({"-".join(pair): partial(_compare, bench, *pair) for pair in pairs})
    ours = tables["equality"].query("pair == 'ours v. TRL' and outcome == 'measured'")
    equal = int((ours["losses_equal"] & ours["weights_equal"]).sum())
    bench.results.append(f"bit for bit equal to TRL in {equal} of {len(ours)} cases measured")
    return tables


def _compare(bench: GpuBench, policy: str, precision: str) -> dict[str, pd.DataFrame]:
    about = {"policy": policy, "precision": precision}
    if precision == "fp16" and bench.device.type == "cpu":
        return {"equality": pd.DataFrame([about | {"outcome": "not measured: float16 is trained on CUDA alone"}])}
    if precision == "bf16":
        bench.check_bf16()
    runs = {name: _train(bench, policy, precision, *classes) for name, classes in TRAINERS.items()}
    rows = []
    for pair, (one, other) in PAIRS.items():
        (losses, weights, start), (losses_too, weights_too, _) = runs[one], runs[other]
        apart = max(float((weights[name] - weights_too[name]).abs().max()) for name in weights)
        rows.append(
            about
            | {
                "pair": pair,
                "steps": len(losses),
                "losses_equal": same_logs(losses, losses_too),
                "weights_equal": all(torch.equal(weights[name], weights_too[name]) for name in weights),
                "largest_weight_difference": apart,
                "moved": max(float((weights[name] - start[name]).abs().max()) for name in weights),
                "outcome": "measured",
            }
        )
    return {"equality": pd.DataFrame(rows)}


def _train(bench: GpuBench, policy: str, precision: str, trainer_class, config_class):
    """Losses of each step, trained weights, and those at the start, on the CPU."""
    loaded, task = bench.policy(policy, dtype="float32"), bench.task(policy)
    settings = SETTINGS | {"learning_rate": 1e-3 if policy == "bundled" else 1e-5, precision: True}
    settings |= {"max_completion_length": 48 if policy == "bundled" else 16, "max_steps": 4 if bench.dry else STEPS}
    settings |= {"bf16": precision == "bf16", "use_cpu": bench.device.type == "cpu"}
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        set_seed(0)
        start = _weights(loaded.model)
        trainer = trainer_class(
            loaded.model,
            task.reward,
            args=config_class(output_dir=bench.output_dir(), **settings),
            train_dataset=task.dataset(32, seed=0),
            processing_class=loaded.tokenizer,
        )
        bench.train(trainer)
    finally:
        torch.use_deterministic_algorithms(False)
    rows = [row for row in trainer.state.log_history if "loss" in row]
    return [(row["loss"], row["grad_norm"], row.get("reward")) for row in rows], _weights(trainer.model), start


def same_logs(one: list[tuple], other: list[tuple]) -> bool:
    """Whether two runs logged the same; NaN, the gradient's norm where float16 overflowed, is the same as NaN.

    >>> nan = float("nan")
    >>> same_logs([(0.5, nan, None)], [(0.5, float("nan"), None)]), same_logs([(0.5, nan)], [(0.5, 1.0)])
    (True, False)
    """
    plain = [[["nan" if v is not None and math.isnan(v) else v for v in row] for row in rows] for rows in (one, other)]
    return plain[0] == plain[1]


def _weights(model) -> dict[str, torch.Tensor]:
    return {name: p.detach().float().cpu().clone() for name, p in model.named_parameters()}
