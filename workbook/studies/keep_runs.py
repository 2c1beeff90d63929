"""What a study measured, small enough to commit: the records of its runs, without weights, samples or logs.

    python -m workbook.studies.keep_runs runs/chain_seeds data/results/chain_live

keeps of each finished run its config, manifest, held-out evaluation and metrics.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pandas as pd

KEPT = ("config.yaml", "manifest.json", "evaluation.json", "metrics.parquet")
WINDOW = 5  # generation batches that a sampled reward is averaged over


def keep(sweep: str | Path, folder: str | Path) -> list[Path]:
    """Copy the records of every run below `sweep` to folders of the same names below `folder`; returns those.

    Raises ValueError if there is no run, or one has not finished.
    """
    runs = sorted(path.parent for path in Path(sweep).glob("*/config.yaml"))
    if not runs:
        raise ValueError(f"{sweep} holds no run folders.")
    for run in runs:
        if not (run / "metrics.parquet").exists():
            raise ValueError(f"{run} has not finished: it has no metrics.parquet.")
        (target := Path(folder) / run.name).mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            if (run / name).exists():
                shutil.copyfile(run / name, target / name)
    return [Path(folder) / run.name for run in runs]


def load_results(folder: str | Path) -> pd.DataFrame:
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


def seconds_to(metrics: pd.DataFrame, target: float, window: int = WINDOW) -> float:
    """Seconds from the start of the first step until the mean of the last `window` sampled rewards is at least target.

    metrics: of one run, with the columns time and step_time (seconds) and reward.  NaN if it never is.

    >>> seconds_to(pd.DataFrame({"time": [10, 12, 14], "step_time": [2] * 3, "reward": [0.2, 0.8, 1.0]}), 0.9, window=2)
    6.0
    """
    reached = metrics[metrics["reward"].rolling(window).mean() >= target]
    if reached.empty:
        return float("nan")
    return float(reached["time"].iloc[0] - metrics["time"].iloc[0] + metrics["step_time"].iloc[0])


if __name__ == "__main__":
    for kept in keep(*sys.argv[1:3]):
        print(kept)
