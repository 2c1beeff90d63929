"""Studies that are sweeps of whole runs: their tables, and the commands that make them.

    python -m workbook sweep data/configs/studies/batching.yaml     # trains the runs
    python -m workbook keep runs/batching                           # writes data/results/batching/bundled/

`workbook.studies.keep` writes the tables, `load_runs` reads them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd

from workbook.places import data_path
from workbook.studies import record
from workbook.studies.record import NotMeasured

CONFIGS = Path("data/configs/studies")  # from the repository's root
WINDOW = 3  # generation batches that a curve's end, and a collapse, are judged by
TARGET_SCORE = 0.6  # sampled reward, averaged over WINDOW batches, that "to a score" means; the policy starts near 0.39
RECORD_WINDOW = 5  # generation batches that the sampled reward of a kept record is averaged over
OUTCOMES = {
    "area": "mean sampled reward over the run: the area under its curve",
    "final": "held-out reward after training, of what a verifier without false negatives would give",
    "collapsed": f"1 if the last {WINDOW} sampled rewards average below half of the run's own best {WINDOW}",
    "jitter": "mean size of the second difference of the sampled rewards",
    "batches_to_score": f"generation batches until {WINDOW} of them average a reward of {TARGET_SCORE}; NaN if never",
    "compute_to_score": "the same in passes per rollout: 1 to sample, 3 for each time an optimizer step uses it",
    "in_step": "share of the gradient that cancels between signs inside an optimizer step (training.meter)",
    "sign_cosine": "cosine of the gradients by rollouts of either sign inside an optimizer step",
    "across_steps": "share of the displacement that cancels across the steps of a generation batch",
    "shared_residual": "residual of a group's update on a token that all of it shares: 0 cancels, 1 adds up",
    "weight_residual": "the same over all positions, shared or not",
    "batch_residual": "the same by the composition of optimizer mini-batches alone",
    "grad_norm": "mean gradient norm",
    "grad_clipped": "share of optimizer steps whose gradient was clipped",
    "tax": "movement of style words, mean KL from the start, nats",
    "style_entropy": "entropy of style words at the end, nats",
    "odds": "mean change of the log-odds of two equivalent solutions, nats",
    "solution_entropy": "entropy over 8 equivalent solutions at the end, nats",
    "solution_entropy_lost": "what of it was lost since the start, nats",
}


def load_runs(
    study: str, scale: str = "bundled", table: str = "runs", folder: str | Path | None = None
) -> pd.DataFrame:
    """A sweep study's table: "runs", a row per run, or "curves", a row per run and optimizer step.

    Raises NotMeasured, naming the commands that make it, if there is no such table.
    """
    path = Path(folder or record.RESULTS) / study / scale / f"{table}.parquet"
    if path.exists():
        return pd.read_parquet(path)
    missing = f"{study} holds no table {table!r} at scale {scale!r}"
    if not declared(study, scale):
        raise NotMeasured(f"{missing}, and no grid of runs is declared for it.")
    raise NotMeasured("{}; {}, then {}, make it.".format(missing, *study_commands(study, scale)))


def study_config(study: str, scale: str) -> Path:
    """Where a study's grid is declared, from the repository's root: other scales have theirs below their names."""
    return CONFIGS / ("" if scale == "bundled" else scale) / f"{study}.yaml"


def declared(study: str, scale: str) -> bool:
    """Whether a study has a grid of runs at a scale."""
    return data_path(*study_config(study, scale).parts[1:]).exists()


def study_commands(study: str, scale: str) -> tuple[str, str]:
    """The commands that train a study's runs and keep their outcomes."""
    config = study_config(study, scale)
    runs = Path("runs") / config.relative_to(CONFIGS).with_suffix("")
    folder = "" if scale == "bundled" else f" --folder {runs}"
    return f"python -m workbook sweep {config}{folder}", f"python -m workbook keep {runs}"


def passes(num_iterations):
    """Compute of a generation batch in passes per rollout: 1 to sample, 3 for each time an optimizer step uses it."""
    return 1 + 3 * num_iterations


def load_records(folder: str | Path) -> pd.DataFrame:
    """The metrics of every kept run below `folder`, one row per run and optimizer step, with the columns run and seed.

    Raises ValueError if there is none.
    """
    tables = []
    for path in sorted(Path(folder).glob("*/metrics.parquet")):
        manifest = json.loads((path.parent / "manifest.json").read_text(encoding="utf-8"))
        tables.append(pd.read_parquet(path).assign(run=path.parent.name, seed=manifest["seed"]))
    if not tables:
        raise ValueError(f"{folder} holds no results: no folder in it has a metrics.parquet.")
    return pd.concat(tables, ignore_index=True)


def seconds_to(metrics: pd.DataFrame, target: float, window: int = RECORD_WINDOW) -> float:
    """Seconds from the start of the first step until the mean of the last `window` sampled rewards is at least target.

    metrics: of one run, with the columns time and step_time (seconds) and reward.  NaN if it never is.

    >>> seconds_to(pd.DataFrame({"time": [10, 12, 14], "step_time": [2] * 3, "reward": [0.2, 0.8, 1.0]}), 0.9, window=2)
    6.0
    """
    reached = metrics[metrics["reward"].rolling(window).mean() >= target]
    if reached.empty:
        return float("nan")
    return float(reached["time"].iloc[0] - metrics["time"].iloc[0] + metrics["step_time"].iloc[0])
