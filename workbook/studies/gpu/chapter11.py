"""Chapter 11 in full: SmolLM2 in 4 bits learns one-digit sums; its curve, and its held-out gain with an interval.

The run lies beside the rows, and goes on from its last checkpoint where an earlier call was broken off.
"""

from __future__ import annotations

import threading
import time

import pandas as pd

from workbook.environment import PROFILES
from workbook.places import data_path
from workbook.statistics import paired_difference
from workbook.studies.gpu.bench import GpuBench, OutOfTime
from workbook.training.memory import forecast_run, peak_mib
from workbook.training.messages import one_line
from workbook.training.run_config import RunConfig
from workbook.training.runs import Run, create_run, load_run
from workbook.training.worker import execute

RESERVE = 45.0  # seconds before the deadline at which the run is asked to stop, after the step in hand
CURVE = ["step", "reward", "frac_reward_zero_std", "grad_norm", "entropy", "completions/mean_length", "step_time"]
CURVE += ["peak_memory_mib"]
TINY = {"policy": "bundled", "task": "chain", "task_options": {}, "quantization": None, "lora": 4, "num_prompts": 16}
TINY |= {"max_steps": 2, "eval_prompts": 4, "max_completion_length": 48, "threads": 1}


def measure(bench: GpuBench) -> dict[str, pd.DataFrame]:
    """Tables curve (a row per step), held_out (mean reward of a prompt before and after) and gain (one row)."""
    config = full_config().override(TINY) if bench.dry else full_config()
    if not bench.dry:
        bench.policy(config.policy)  # or it is skipped
    run = _trained(bench, config)
    tables, metrics = _read(run)
    means = {
        label: table.drop_duplicates("rollout").groupby("group")["reward"].mean() for label, table in tables.items()
    }
    held_out = pd.DataFrame(means).reset_index()
    gain = paired_difference(held_out["after"], held_out["before"])
    forecast, measured = peak_mib(forecast_run(config)), float(metrics["peak_memory_mib"].max())
    bench.results.append(
        f"held-out reward {held_out['before'].mean():.3f} -> {held_out['after'].mean():.3f}, gain {gain} over "
        f"{len(held_out)} prompts after {len(metrics)} steps"
    )
    row = {**gain._asdict(), "prompts": len(held_out), "steps": len(metrics), "seconds": metrics["step_time"].sum()}
    row |= {"forecast_mib": forecast, "measured_mib": None if bench.dry else measured}  # a CPU's holds the libraries
    return {"curve": metrics.reindex(columns=CURVE), "held_out": held_out, "gain": pd.DataFrame([row])}


def _read(run: Run) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """A finished run's held-out rollouts before and after, and its metrics. Raises ValueError if they are damaged."""
    try:
        tables = {label: pd.read_parquet(run.folder / f"evaluation-{label}.parquet") for label in ("before", "after")}
        metrics, total = run.metrics(), run.config.trainer["max_steps"]
        if metrics["step"].tolist() != list(range(1, total + 1)):
            raise ValueError(f"metrics.jsonl has {len(metrics)} of {total} steps")
        return tables, metrics
    except (OSError, ValueError, KeyError) as error:
        why = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"{run.folder} is damaged ({why}); remove it, and the next call trains it anew.") from None


def full_config() -> RunConfig:
    """The config of chapter 11 at the sizes of the full profile."""
    profile = PROFILES["full"]
    return RunConfig.load(data_path("configs", "smollm2_chain_sum.yaml")).override(
        {
            "max_steps": profile.llm_steps,
            "num_generations": profile.llm_group_size,
            "per_device_train_batch_size": profile.llm_prompts * profile.llm_group_size,
            "max_completion_length": profile.llm_max_new_tokens,
            "eval_prompts": profile.llm_eval_prompts,
        }
    )


def _trained(bench: GpuBench, config: RunConfig):
    """The finished run. Raises OutOfTime if it was stopped at the deadline; it goes on from there next time."""
    folder = bench.folder / "run"
    bench.check_time()
    run = load_run(folder) if (folder / "config.yaml").exists() else create_run(config, folder)
    timer = threading.Timer(max(1.0, bench.deadline - RESERVE - time.time()), (run.folder / "stop").touch)
    timer.daemon = True
    timer.start()
    try:
        execute(run.folder)
    finally:
        timer.cancel()
    if run.status()["state"] != "finished":
        raise OutOfTime
    return run
