"""Runs side by side: what differs in their settings, and what came out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from workbook.training.messages import show_value
from workbook.training.runs import Run, load_run

WINDOW = 5  # generation batches averaged at the end of a curve: fixed, so that nobody picks the step after the fact


def compare_runs(runs: Iterable[Run | str | Path]) -> pd.DataFrame:
    """One row per run: its folder's name, the settings in which the runs differ, and results.

    Result columns: state, message, steps, seconds (of training), reward (mean sampled reward of the last 5 steps),
    grad_norm (their mean),
    heldout_before and heldout_after (mean reward on held-out prompts, where evaluated).
    """
    if isinstance(runs, str | Path | Run) or not isinstance(runs, Iterable):
        raise ValueError(f"runs={show_value(runs)} must be a list of runs or of their folders.")
    runs = [run if isinstance(run, Run) else load_run(run) for run in runs]
    settings = pd.DataFrame([_flat(asdict(run.config)) for run in runs])
    varying = [
        c for c in settings if settings[c].map(lambda v: json.dumps(v, default=str)).nunique() > 1 and c != "name"
    ]
    return pd.concat(
        [pd.DataFrame({"run": [r.folder.name for r in runs]}), settings[varying], pd.DataFrame(map(_results, runs))],
        axis=1,
    )


def _results(run: Run) -> dict:
    metrics, status = run.metrics(), run.status()
    nan = float("nan")
    heldout = run.evaluation().set_index("label")["mean"]
    tail = metrics.dropna(subset="reward").tail(WINDOW)  # steps that sampled a new generation batch
    return {
        "state": status["state"],
        "steps": len(metrics),
        "seconds": metrics["time"].max() - metrics["time"].min() if "time" in metrics and len(metrics) > 1 else nan,
        "reward": tail["reward"].mean(),
        "grad_norm": tail["grad_norm"].mean() if "grad_norm" in tail else nan,
        "heldout_before": heldout.get("before", nan),
        "heldout_after": heldout.get("after", nan),
        "message": status["message"],
    }


def _flat(values: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
