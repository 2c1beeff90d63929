"""Outcomes of a sweep's runs, small enough to commit, and the records of plain runs.

    python -m workbook keep runs/batching                           # writes data/results/batching/bundled/
    python -m workbook.studies.keep runs/chain_seeds data/results/chain_live

The first writes runs.parquet, a row per run (its settings and OUTCOMES), curves.parquet, one per run and optimizer
step, and manifest.json, with what, from which commit and by which commands they were made. The second keeps of each
finished run its config, manifest, held-out evaluation and metrics, without weights, samples or logs.
"""

from __future__ import annotations

import shutil
import sys
from functools import lru_cache
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import torch
import yaml

from workbook.places import clone, data_path
from workbook.studies.record import RESULTS, UNNAMED
from workbook.studies.scales import SCALES, Scale
from workbook.studies.sweeps import OUTCOMES, TARGET_SCORE, WINDOW, passes, study_commands, study_config
from workbook.theory.drift import jitter
from workbook.training.files import atomic_folder, write_json, write_parquet
from workbook.training.messages import show_value
from workbook.training.runs import Run, load_run
from workbook.training.sweeps import compare_runs

COLLAPSED_SHARE = (
    0.5  # collapsed: the last WINDOW sampled rewards average below this share of the run's own best WINDOW
)
KEPT = ("config.yaml", "manifest.json", "evaluation.json", "metrics.parquet")
METERED = ["in_step", "sign_cosine", "across_steps"]
METERED += ["shared_residual", "weight_residual", "batch_residual", "grad_clipped"]


def keep_sweep(folder: str | Path, scale: str | None = None, results: str | Path | None = None) -> Path:
    """Write the outcomes of the runs in a sweep's folder; returns where.

    scale: of SCALES; by default that of a policy and task of the runs.  results: instead of data/results.

    Raises ValueError if there are no runs, or one has neither finished nor failed: the sweep goes on if called again.
    """
    if scale not in (None, *SCALES, "larger"):
        raise ValueError(f"scale={show_value(scale)} is unknown: choose one of {', '.join(SCALES)} or larger.")
    if results is None:
        clone(UNNAMED)
    elif Path(results).exists() and not Path(results).is_dir():
        raise ValueError(f"folder={str(results)!r} is no folder; give the path of one.")
    folder = Path(folder).resolve()  # whose name is the study's
    paths = sorted(path.parent for path in folder.glob("*/config.yaml"))
    if not paths:
        raise ValueError(f"{folder} holds no run folders.")
    runs = [load_run(path) for path in paths]
    if unfinished := [run.folder.name for run in runs if run.status()["state"] not in ("finished", "failed")]:
        raise ValueError(
            f"{len(unfinished)} of {len(runs)} runs in {folder} have not ended, the first is {unfinished[0]}."
        )
    for run in runs:
        _check_whole(run)
    policies = {run.config.policy for run in runs}
    own = next((scale.name for scale in SCALES.values() if scale.name != "tiny" and _trained_at(scale, runs)), None)
    if own and scale not in (None, own):
        raise ValueError(
            f"scale={scale!r} is not that of these runs: they train {', '.join(sorted(policies))}, "
            f"whose scale is {own!r}."
        )
    scale = scale or own or "larger"
    measured = joblib.Parallel(n_jobs=2)(joblib.delayed(_outcomes)(str(path)) for path in paths)
    table = compare_runs(runs).drop(columns=["message", "reward", "grad_norm", "seconds"])
    table = table.rename(columns=lambda name: name.rpartition(".")[2])
    table = table.assign(seed=[run.config.seed for run in runs])
    git = [(run.manifest()["git"] or {}) if (run.folder / "manifest.json").exists() else {} for run in runs]
    table = table.assign(**{name: [state.get(name) for state in git] for name in ("commit", "modified")})
    table = pd.concat([table, pd.DataFrame([outcomes for outcomes, _ in measured])], axis=1)
    curves = pd.concat([curve.assign(run=name) for name, (_, curve) in zip(table["run"], measured, strict=True)])
    place = Path(results or RESULTS) / folder.name / scale
    with atomic_folder(place) as new:
        write_parquet(new / "runs.parquet", table)
        write_parquet(new / "curves.parquet", curves)
        write_json(new / "manifest.json", _manifest(runs, folder.name, scale))
    return place


def _trained_at(scale: Scale, runs: list[Run]) -> bool:
    """Whether a run trains the scale's policy on its task."""
    configs = [run.config for run in runs if run.config.policy == scale.policy and run.config.task == scale.task]
    return any(scale.task_options.items() <= config.task_options.items() for config in configs)


def _check_whole(run: Run) -> None:
    """Raise a ValueError if a run's manifest is damaged, or a finished run has no metrics."""
    if run.status()["state"] != "finished":
        return
    missing = {"created", "versions", "platform", "device", "policy", "git"} - set(run.manifest())
    if missing:
        raise ValueError(f"{run.folder / 'manifest.json'} is damaged: it has no {min(missing)}.")
    if run.metrics()["reward"].dropna().empty:
        raise ValueError(f"{run.folder} has finished, but its metrics.jsonl has no rewards; train it anew.")


def _outcomes(folder: str) -> tuple[dict, pd.DataFrame]:
    """A run's OUTCOMES, and its curve."""
    torch.set_num_threads(1)
    run = load_run(folder)
    curve = run.metrics().rename(columns=lambda name: name.removeprefix("cancellation/"))
    outcomes = _from_curve(curve, run.config)
    kept = ["step", "reward", "entropy", "grad_norm", *METERED]
    curve = curve.reindex(columns=kept).astype({"step": "int16"} | dict.fromkeys(kept[1:], "float32"))
    if run.status()["state"] != "finished":
        return outcomes | {"collapsed": 1.0}, curve
    heldout = run.evaluation().set_index("label")["mean"]
    missed = run.config.task_options.get("false_negative_rate", 0.0)
    outcomes["final"] = heldout.get("after", np.nan) / (1 - missed)
    return outcomes | _drift(run), curve


def _from_curve(curve: pd.DataFrame, config) -> dict:
    rewards = curve["reward"].dropna()
    smooth = rewards.rolling(WINDOW).mean()
    reached = np.flatnonzero(smooth >= TARGET_SCORE)
    batches = float(reached[0] + 1) if len(reached) else np.nan
    means = {name: curve[name].mean() if name in curve else np.nan for name in (*METERED, "grad_norm")}
    return means | {
        "area": rewards.mean(),
        "collapsed": float(smooth.iloc[-1] < COLLAPSED_SHARE * smooth.max()) if len(rewards) else 1.0,
        "jitter": float(jitter(torch.tensor(rewards.to_numpy()))),
        "batches_to_score": batches,
        "compute_to_score": batches * passes(config.trainer.get("num_iterations", 1)),
    }


def _drift(run: Run) -> dict:
    """Drift of style words and of the odds among right solutions, where the task knows them."""
    from workbook.probes.drift import learning_tax, odds_drift

    config = run.config
    if config.task != "chain":
        return {}
    report = _start(config.policy, tuple(sorted(config.task_options.items()))).report(run.policy())
    style, odds = learning_tax(report).mean(), odds_drift(report).mean()
    lost = odds["entropy_before"] - odds["entropy"]
    moved = {"tax": style["tax"], "style_entropy": style["style_entropy"], "odds": odds["odds"]}
    return moved | {"solution_entropy": odds["entropy"], "solution_entropy_lost": lost}


@lru_cache(maxsize=4)
def _start(policy: str, task_options: tuple):
    """The start that runs of this policy and task drift from, scored once for all of them."""
    from workbook.policies.load import load_policy
    from workbook.probes.drift import DriftFrom
    from workbook.tasks import get_task

    return DriftFrom(load_policy(policy), get_task("chain", **dict(task_options)))


def _manifest(runs: list[Run], study: str, scale: str) -> dict:
    """One manifest for all runs: the first one's, how often runs differed from it, and how many trees were modified."""
    manifests = [run.manifest() for run in runs if (run.folder / "manifest.json").exists()]
    states = [manifest["git"] for manifest in manifests if manifest["git"]]
    commits = sorted({state["commit"] for state in states})
    shared = {name: manifests[0][name] for name in ("created", "versions", "platform", "device", "policy")}
    source = data_path(*study_config(study, scale).parts[1:])
    return {
        "command": " && ".join(study_commands(study, scale)),
        "runs": len(runs),
        "failed": sum(run.status()["state"] == "failed" for run in runs),
        **shared,
        "commits": commits,
        "modified": sum(bool(state["modified"]) for state in states),
        "versions_differ": sum(manifest["versions"] != manifests[0]["versions"] for manifest in manifests),
        "outcomes": OUTCOMES,
        "sweep": yaml.safe_load(source.read_text(encoding="utf-8")) if source.exists() else None,
    }


def keep_records(sweep: str | Path, folder: str | Path) -> list[Path]:
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


if __name__ == "__main__":
    for kept in keep_records(*sys.argv[1:3]):
        print(kept)
