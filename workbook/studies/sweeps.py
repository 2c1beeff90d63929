"""Studies that are sweeps of whole runs: what each run came to, kept small enough to commit.

    python -m workbook sweep data/configs/studies/batching.yaml     # trains the runs
    python -m workbook keep runs/batching                           # writes data/results/batching/bundled/

runs.parquet has a row per run (its settings and OUTCOMES), curves.parquet one per run and optimizer step, and
manifest.json says with what, from which commit and by which commands they were made. `load_runs` reads them.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import torch
import yaml

from workbook.studies.bench import SCALES
from workbook.studies.record import RESULTS, kept_seeds, results_folder
from workbook.theory.drift import jitter
from workbook.training.compare import compare_runs
from workbook.training.files import atomic_folder, write_json, write_parquet
from workbook.training.messages import show_value
from workbook.training.runs import Run, load_run

CONFIGS = Path("data/configs/studies")  # from the repository's root
WINDOW = 3  # generation batches that a curve's end, and a collapse, are judged by
HALF = 0.5  # collapsed: the last WINDOW sampled rewards average below this share of the run's own best WINDOW
SCORE = 0.6  # sampled reward, averaged over WINDOW batches, that "to a score" means; the policy starts near 0.39
METERED = (
    "in_step",
    "sign_cosine",
    "across_steps",
    "shared_residual",
    "weight_residual",
    "batch_residual",
    "grad_clipped",
)
OUTCOMES = {
    "area": "mean sampled reward over the run: the area under its curve",
    "final": "held-out reward after training, of what a verifier without false negatives would give",
    "collapsed": f"1 if the last {WINDOW} sampled rewards average below half of the run's own best {WINDOW}",
    "jitter": "mean size of the second difference of the sampled rewards",
    "batches_to_score": f"generation batches until {WINDOW} of them average a reward of {SCORE}; NaN if never",
    "compute_to_score": "the same in passes per rollout: 1 to sample, 3 for each time an optimizer step uses it",
    "in_step": "share of the gradient that cancels between signs inside an optimizer step (training.meter)",
    "sign_cosine": "cosine of the gradients by rollouts of either sign inside an optimizer step",
    "across_steps": "share of the displacement that cancels across the steps of a generation batch",
    "shared_residual": "what is left of a group's update on a token that all of it shares: 0 cancels, 1 adds up",
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


def keep_sweep(folder: str | Path, scale: str | None = None, results: str | Path | None = None) -> Path:
    """Write what the runs of a sweep's folder came to; returns where.

    scale: of SCALES; by default that of a policy of the runs.  results: instead of data/results.

    Raises ValueError if there are no runs, or one has neither finished nor failed: the sweep goes on if called again.
    """
    if scale not in (None, *SCALES, "larger"):
        raise ValueError(f"scale={show_value(scale)} is unknown: choose one of {', '.join(SCALES)} or larger.")
    if results is not None and Path(results).exists() and not Path(results).is_dir():
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
    own = next((s.name for s in SCALES.values() if s.policy in policies and s.name != "tiny"), None)
    if own and scale not in (None, own):
        raise ValueError(
            f"scale={scale!r} is not that of these runs: they train {', '.join(sorted(policies))}, "
            f"whose scale is {own!r}."
        )
    scale = scale or own or "larger"
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(_outcomes)(str(path)) for path in paths)
    table = compare_runs(runs).drop(columns=["message", "reward", "grad_norm", "seconds"])
    table = table.rename(columns=lambda name: name.rpartition(".")[2])
    table = table.assign(seed=[run.config.seed for run in runs])
    table = pd.concat([table, pd.DataFrame([each for each, _ in found])], axis=1)
    curves = pd.concat([curve.assign(run=name) for name, (_, curve) in zip(table["run"], found, strict=True)])
    place = Path(results or RESULTS) / folder.name / scale
    with atomic_folder(place) as new:
        write_parquet(new / "runs.parquet", table)
        write_parquet(new / "curves.parquet", curves)
        write_json(new / "manifest.json", _manifest(runs, folder.name, scale))
    return place


def _check_whole(run: Run) -> None:
    """Raise a ValueError if a run's manifest is damaged, or a finished run has no metrics."""
    if run.status()["state"] != "finished":
        return
    missing = {"created", "versions", "platform", "device", "policy", "git"} - set(run.manifest())
    if missing:
        raise ValueError(f"{run.folder / 'manifest.json'} is damaged: it has no {min(missing)}.")
    if run.metrics()["reward"].dropna().empty:
        raise ValueError(f"{run.folder} has finished, but its metrics.jsonl has no rewards; train it anew.")


def load_runs(
    study: str, scale: str = "bundled", table: str = "runs", folder: str | Path | None = None
) -> pd.DataFrame:
    """A sweep study's table: "runs", a row per run, or "curves", a row per run and optimizer step.

    Raises ValueError, naming the commands that make it, if it was not measured.
    """
    path = results_folder(folder) / study / scale / f"{table}.parquet"
    if not path.exists():
        missing = f"{study} holds no table {table!r} at scale {scale!r}"
        if not declared(study, scale):
            raise ValueError(f"{missing}, and no grid of runs is declared for it.")
        make, keep = study_commands(study, scale)
        raise ValueError(f"{missing}; {make}, then {keep}, make it.")
    rows = pd.read_parquet(path)
    return kept_seeds(rows, study) if "seed" in rows else rows


def study_config(study: str, scale: str) -> Path:
    """Where a study's grid is declared, from the repository's root: other scales have theirs below their names."""
    return CONFIGS / ("" if scale == "bundled" else scale) / f"{study}.yaml"


def declared(study: str, scale: str) -> bool:
    """Whether a study has a grid of runs at a scale."""
    return (RESULTS.parents[1] / study_config(study, scale)).exists()


def study_commands(study: str, scale: str) -> tuple[str, str]:
    """The commands that train a study's runs and keep what they came to."""
    config = study_config(study, scale)
    runs = Path("runs") / config.relative_to(CONFIGS).with_suffix("")
    folder = "" if scale == "bundled" else f" --folder {runs}"
    return f"python -m workbook sweep {config}{folder}", f"python -m workbook keep {runs}"


def _outcomes(folder: str) -> tuple[dict, pd.DataFrame]:
    """A run's OUTCOMES, and its curve."""
    torch.set_num_threads(1)
    run = load_run(folder)
    curve = run.metrics().rename(columns=lambda name: name.removeprefix("cancellation/"))
    found = _from_curve(curve, run.config)
    kept = ["step", "reward", "entropy", "grad_norm", *METERED]
    curve = curve.reindex(columns=kept).astype({"step": "int16"} | dict.fromkeys(kept[1:], "float32"))
    if run.status()["state"] != "finished":
        return found | {"collapsed": 1.0}, curve
    heldout = run.evaluation().set_index("label")["mean"]
    missed = run.config.task_options.get("false_negative_rate", 0.0)
    found["final"] = heldout.get("after", np.nan) / (1 - missed)
    return found | _drift(run), curve


def _from_curve(curve: pd.DataFrame, config) -> dict:
    rewards = curve["reward"].dropna()
    smooth = rewards.rolling(WINDOW).mean()
    reached = np.flatnonzero(smooth >= SCORE)
    batches = float(reached[0] + 1) if len(reached) else np.nan
    means = {name: curve[name].mean() if name in curve else np.nan for name in (*METERED, "grad_norm")}
    return means | {
        "area": rewards.mean(),
        "collapsed": float(smooth.iloc[-1] < HALF * smooth.max()) if len(rewards) else 1.0,
        "jitter": float(jitter(torch.tensor(rewards.to_numpy()))),
        "batches_to_score": batches,
        "compute_to_score": batches * passes(config.trainer.get("num_iterations", 1)),
    }


def passes(num_iterations):
    """Compute of a generation batch in passes per rollout: 1 to sample, 3 for each time an optimizer step uses it."""
    return 1 + 3 * num_iterations


def _drift(run: Run) -> dict:
    """What became of style words and of the odds among right solutions, where the task knows them."""
    from workbook.probes.drift import learning_tax, odds_drift

    config = run.config
    if config.task != "chain":
        return {}
    report = _start(config.policy, tuple(sorted(config.task_options.items()))).report(run.policy())
    style, odds = learning_tax(report).mean(), odds_drift(report).mean()
    lost = odds["entropy_before"] - odds["entropy"]
    found = {"tax": style["tax"], "style_entropy": style["style_entropy"], "odds": odds["odds"]}
    return found | {"solution_entropy": odds["entropy"], "solution_entropy_lost": lost}


@lru_cache(maxsize=4)
def _start(policy: str, task_options: tuple):
    """What runs of this policy and task drift from; scored once for all of them."""
    from workbook.policies.load import load_policy
    from workbook.probes.drift import DriftFrom
    from workbook.tasks import get_task

    return DriftFrom(load_policy(policy), get_task("chain", **dict(task_options)))


def _manifest(runs: list[Run], study: str, scale: str) -> dict:
    """One manifest for all runs: the first one's, and how often runs differed from it in version or commit."""
    each = [run.manifest() for run in runs if (run.folder / "manifest.json").exists()]
    commits = sorted({manifest["git"]["commit"] for manifest in each if manifest["git"]})
    shared = {name: each[0][name] for name in ("created", "versions", "platform", "device", "policy")}
    source = RESULTS.parents[1] / study_config(study, scale)
    return {
        "command": " && ".join(study_commands(study, scale)),
        "runs": len(runs),
        "failed": sum(run.status()["state"] == "failed" for run in runs),
        **shared,
        "commits": commits,
        "versions_differ": sum(manifest["versions"] != each[0]["versions"] for manifest in each),
        "outcomes": OUTCOMES,
        "sweep": yaml.safe_load(source.read_text(encoding="utf-8")) if source.exists() else None,
    }
