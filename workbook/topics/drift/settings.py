"""The studies of drift fixing under other settings, from their tables: what chapter 09's charts and sliders compute."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.statistics import Interval, bootstrap_mean
from workbook.studies.claim import BUNDLED
from workbook.studies.paired import attribution, effect, having, labelled_runs
from workbook.studies.sweeps import WINDOW, passes
from workbook.theory.choices import TRANSFORMS_BY_LABEL as TRANSFORMS
from workbook.topics.drift.loss_arms import UNCLIPPED

FACTORS = {
    "group_transform": ["none", "min_replace"],
    "optim": ["adamw_torch", "sgd"],
    "sparsity": ["none", "less able policy", "false negatives"],
}
RANGES = {"token": 0.2, "sequence": 0.03}  # the study's clip ranges
OUTCOME_LABELS = {
    "tax": "tax: movement of style words (nats)",
    "odds": "change of log-odds of equal solutions (nats)",
    "solution_entropy_lost": "entropy lost over equal solutions (nats)",
    "shared_residual": "residual on shared tokens (0 cancels, 1 adds up)",
    "final": "held-out reward after training",
    "area": "mean sampled reward over the run",
    "jitter": "jitter of the reward (mean second difference)",
    "compute": "compute to a score (passes per rollout)",
}
MINIBATCHES, RESAMPLES = 2, 999


def objectives() -> pd.DataFrame:
    """The runs of drift_fixing, settings in words.

    Columns level, clipping, transform, reuse, seed, collapsed and those of OUTCOME_LABELS. A transform sees ratios held
    inside the clip range by either clipping, so its runs stand under both.  compute: `compute_to_score`, or that of the
    whole run where the score was never reached.
    """
    runs = BUNDLED["drift_fixing/runs"]
    whole = runs["steps"] / (MINIBATCHES * runs["num_iterations"]) * passes(runs["num_iterations"])
    symmetric = runs["clipping"].eq("symmetric") if "clipping" in runs else np.zeros(len(runs), bool)
    named = runs.assign(
        level=runs["importance_sampling_level"],
        reuse=runs["num_iterations"].astype(int),
        transform=_named(runs["group_transform"]),
        clipping=np.select([runs["epsilon"] >= UNCLIPPED, symmetric], ["none", "symmetric"], "asymmetric"),
        compute=runs["compute_to_score"].fillna(whole),
    )
    both = named[(named["clipping"] == "asymmetric") & (named["transform"] != "none")].assign(clipping="symmetric")
    columns = ["level", "clipping", "transform", "reuse", "seed", "collapsed", *OUTCOME_LABELS]
    return pd.concat([named, both], ignore_index=True)[columns]


def compute_objectives(
    outcome: str = "tax", level: str = "sequence", clipping: str = "none", doublings: int = 1
) -> dict[str, pd.DataFrame]:
    """An outcome against reuse, a line per transform; and what each transform changes at 2**doublings times.

    outcome: one of OUTCOME_LABELS.  Returns lines: transform, reuse, mean, low, high, chosen, outcome;  changes:
    transform, mean, low, high of the difference to no transform, paired by seed.  95 % bootstrap intervals over seeds.

    Raises ValueError for what was not measured.
    """
    if outcome not in OUTCOME_LABELS:
        raise ValueError(f"outcome={outcome!r} is unknown; valid are {', '.join(OUTCOME_LABELS)}.")
    runs = objectives()
    runs = runs[(runs["level"] == level) & (runs["clipping"] == clipping)].dropna(subset=outcome)
    if not (runs["reuse"] == 2**doublings).any():
        raise ValueError(f"level={level!r}, clipping={clipping!r}, reuse {2**doublings}: no run was made with these.")
    lines = _rows(runs, outcome, ["transform", "reuse"])
    lines = lines.assign(chosen=lines["reuse"] == 2**doublings, outcome=OUTCOME_LABELS[outcome])
    here = runs[runs["reuse"] == 2**doublings].pivot(index="seed", columns="transform", values=outcome)
    changes = intervals(here.drop(columns="none").sub(here["none"], axis=0)[list(TRANSFORMS)[1:]])
    return {"lines": lines, "changes": changes}


def tax_against_learning() -> pd.DataFrame:
    """Where each objective ends: mean over seeds of reward gained and tax paid, a row per objective and reuse.

    Columns level, clipping, transform, reuse, area (mean sampled reward), tax (nats).
    """
    runs = objectives()
    runs = runs[(runs["clipping"] != "symmetric") | (runs["transform"] == "none")]  # else the same runs twice
    return runs.groupby(["level", "clipping", "transform", "reuse"])[["area", "tax"]].mean().reset_index()


def compute_readings(outcomes: tuple[str, ...] = ("final", "tax", "jitter", "collapsed")) -> pd.DataFrame:
    """What a transform changes in GSPO by what it works on: columns transform, outcome, mean, low, high.

    transform: its name and "clamped ratios" (study drift_fixing) or "clipped weights" (drift_fixing_clipped). Rollouts
    are used at least twice; differences to no transform are paired by seed and reuse, 95 % over seeds.
    """
    clamped, rows = BUNDLED["drift_fixing/runs"], []
    gspo = {"importance_sampling_level": "sequence", "epsilon": RANGES["sequence"], "clipping": None}
    clamped = clamped[having(clamped, gspo) & (clamped["num_iterations"] > 1)]
    readings = {"clamped ratios": clamped, "clipped weights": BUNDLED["drift_fixing_clipped/runs"]}
    for name, transform in list(TRANSFORMS.items())[1:]:
        for reading, runs in readings.items():
            kinds = ({"group_transform": transform}, {"group_transform": None})
            rows += [(f"{name}, {reading}", y, *effect(runs, y, *kinds, ["num_iterations"])) for y in outcomes]
    return pd.DataFrame(rows, columns=["transform", "outcome", *Interval._fields])


def compute_causes(outcomes: tuple[str, ...] = ("tax", "odds", "solution_entropy_lost", "area")) -> pd.DataFrame:
    """What each factor of the study what_causes_what adds to each outcome, in words.

    Columns cause, outcome, mean, low, high, share (of the outcome's variance that the factor accounts for): rows of
    `effects.attribution`, main effects only.
    """
    runs = labelled_runs("what_causes_what", BUNDLED)
    words = {"group_transform": "exchangeable", "optim": "optimizer", "sparsity": "sparse reward"}
    rows = []
    for outcome in outcomes:
        for row in attribution(runs, outcome, FACTORS).query("not term.str.contains(' x ')").itertuples():
            factor, _, level = row.term.partition("=")
            cause = f"{words[factor]}: {level.replace('_', '-')} against {FACTORS[factor][0].replace('_torch', '')}"
            rows.append((cause, outcome, row.mean, row.low, row.high, row.share))
    return pd.DataFrame(rows, columns=["cause", "outcome", *Interval._fields, "share"])


def estimator_curves() -> pd.DataFrame:
    """Sampled reward along the runs of the study advantages, averaged over 3 batches: columns step, reward, run, seed.

    run: the estimator.
    """
    runs, curves = BUNDLED["advantages/runs"], BUNDLED["advantages/curves"]
    named = curves.merge(runs[["run", "seed", "advantage_estimator"]], on="run").sort_values(["run", "step"])
    smooth = named.groupby("run")["reward"].transform(lambda rewards: rewards.rolling(WINDOW).mean())
    table = named.assign(reward=smooth, run=named["advantage_estimator"]).dropna(subset="reward")
    return table[["step", "reward", "run", "seed"]].reset_index(drop=True)


def compute_group_size(outcome: str = "final") -> pd.DataFrame:
    """What min-replace changes against rollouts per prompt G, at 64 rollouts a batch.

    Columns level (those that were run with it), group_size, mean, low, high: the difference to no transform, paired by
    seed, 95 % over seeds.
    """
    runs, rows = BUNDLED["group_size/runs"], []
    for level in runs.loc[runs["group_transform"].notna(), "importance_sampling_level"].unique():
        for size in sorted(runs["num_generations"].unique()):
            here = {"importance_sampling_level": level, "num_generations": size, "per_device_train_batch_size": 32}
            kinds = (here | {"group_transform": transform} for transform in ("min_replace", None))
            rows.append((level, int(size), *effect(runs, outcome, *kinds)))
    return pd.DataFrame(rows, columns=["level", "group_size", *Interval._fields])


def compute_sampling_budget(outcome: str = "final") -> pd.DataFrame:
    """An outcome against rollouts per prompt, at equally many rollouts and at equally many prompts, token ratios.

    Columns series, group_size, rollouts (of a generation batch), mean, low, high.
    """
    runs = BUNDLED["group_size/runs"]
    runs = runs[runs["group_transform"].isna() & (runs["importance_sampling_level"] == "token")]
    runs = runs.assign(
        group_size=runs["num_generations"].astype(int),
        rollouts=(runs["per_device_train_batch_size"] * MINIBATCHES).astype(int),
    )
    kinds = {
        "64 rollouts, fewer prompts": runs[runs["rollouts"] == 64],
        "8 prompts, more rollouts": runs[runs["rollouts"] == 8 * runs["group_size"]],
    }
    return pd.concat(
        [_rows(part, outcome, ["group_size", "rollouts"]).assign(series=name) for name, part in kinds.items()],
        ignore_index=True,
    )


def compute_remedies(outcomes: tuple[str, ...] = ("area", "final", "tax", "jitter")) -> pd.DataFrame:
    """Every remedy of the study combined, minus TRL's shuffle without a transform: remedy, outcome, mean, low, high."""
    runs, rows = BUNDLED["combined/runs"], []
    baseline = {"batching": "shuffled", "group_transform": None}
    for batching, transform in runs[["batching", "group_transform"]].drop_duplicates().itertuples(index=False):
        chosen = {"batching": batching, "group_transform": None if pd.isna(transform) else transform}
        if chosen != baseline:
            label = batching.replace("_", " ") + ("" if pd.isna(transform) else f" + {transform.replace('_', '-')}")
            rows += [(label, outcome, *effect(runs, outcome, chosen, baseline)) for outcome in outcomes]
    return pd.DataFrame(rows, columns=["remedy", "outcome", *Interval._fields])


def _named(column: pd.Series) -> pd.Series:
    return column.map({value: name for name, value in TRANSFORMS.items() if value}).fillna("none")


def _rows(runs: pd.DataFrame, outcome: str, by: list[str]) -> pd.DataFrame:
    """Mean of an outcome in each combination of `by`, with its interval over seeds."""
    return intervals(runs.groupby(["seed", *by])[outcome].mean().unstack(by))


def intervals(wide: pd.DataFrame) -> pd.DataFrame:
    """Mean and 95 % bootstrap interval of every column over its rows without a gap.

    Returns the names of the columns' levels as columns, and mean, low, high.
    """
    rows = [bootstrap_mean(wide[column].dropna(), resamples=RESAMPLES) for column in wide]
    return pd.concat([wide.columns.to_frame(index=False), pd.DataFrame(rows)], axis=1)
