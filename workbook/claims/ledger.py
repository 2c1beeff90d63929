"""The ledger: all measurements of all claims, the commands that recompute them, and which verdicts hang on one seed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from workbook.claims.judge import CLAIMS, NOT_MEASURED, measurements, worst
from workbook.studies.claim import DESCRIBED, LARGER, Tables
from workbook.studies.record import STUDIES, check_results
from workbook.studies.sweeps import declared, study_commands
from workbook.training.messages import one_line, show_value

SCALES = ("bundled", "smollm2_chat", "smollm2_plain", LARGER)
DRAFT_RESAMPLES = 1_999  # of the bootstrap, for a verdict without a seed
REMADE = "build/results"  # where the printed commands write, so that what is committed stays as it is
NEEDS_GPU = "this scale needs a GPU, and none was at hand"
FIRST = {  # what a study's runs start from, if it must be made first
    "what_causes_what": "python data/bundled/make_policy.py --error-rate 0.4 --out build/policies/hard"
}
KEY = ["claim", "study", "measured"]
COLUMNS = [
    *("claim", "paper", "scale", "statement", "falsifier", "measured", "stated", "mean", "low", "high", "seeds", "n"),
    *("verdict", "fragile", "reason", "study", "command", "threshold", "toward", "without"),
]


def ledger(
    scale: str | None = None,
    fragile: bool = True,
    folder: str | Path | None = None,
    n_jobs: int = 2,
    claims: Sequence[str] = tuple(CLAIMS),
) -> pd.DataFrame:
    """Every measurement of `CLAIMS` at a scale, or at all of `SCALES`: a row per claim, measurement and scale.

    Columns: claim, paper, scale, statement, falsifier, measured, stated (the threshold), mean, low, high (95 %), seeds,
    n (prompts of all seeds, or runs), verdict, fragile, reason (why not measured, or worse than the interval), study,
    command (recomputes the row from nothing), threshold, toward (+1 if the paper's claim lies above it, -1 below, NaN
    for rows that decide nothing), without ({seed: the verdict without it}; empty unless fragile).

    fragile: whether to recompute every verdict without each seed, which takes as long again for each; False where not
    asked.  folder: of the tables, instead of data/results.  n_jobs: processes for that.  claims: those wanted.

    Raises ValueError for an unknown scale, and for a folder that holds no tables or one that can't be read.
    """
    if scale is not None and scale not in SCALES:
        raise ValueError(f"scale={show_value(scale)} is unknown: choose one of {', '.join(SCALES)}.")
    if folder is not None:
        check_results(folder)
    try:
        parts = [_at_scale(Tables(name, folder), claims, fragile, n_jobs) for name in ([scale] if scale else SCALES)]
    except (LookupError, TypeError, NameError, AttributeError) as error:
        if folder is None:
            raise
        raise ValueError(f"A table in {folder} is not as its study makes it: {one_line(error)}.") from error
    order = {claim: place for place, claim in enumerate(CLAIMS)}
    table = pd.concat(parts, ignore_index=True)
    return table.sort_values("claim", key=lambda c: c.map(order), kind="stable", ignore_index=True)


def _at_scale(tables: Tables, claims: Sequence[str], fragile: bool, n_jobs: int) -> pd.DataFrame:
    """All columns of a ledger at one scale."""
    scale, table = tables.scale, measurements(claims, tables)
    if scale == LARGER:
        table.loc[table["verdict"] == NOT_MEASURED, "reason"] = NEEDS_GPU
    records = [CLAIMS[name] for name in table["claim"]]
    table = table.assign(
        scale=scale,
        paper=[claim.paper for claim in records],
        statement=[claim.statement for claim in records],
        falsifier=[claim.refuted_if for claim in records],
        command=[command(row.study, row.claim, scale) for row in table.itertuples()],
        without=_without(table, tables, n_jobs) if fragile else [{} for _ in records],
    )
    changed = [
        any(other != verdict for other in without.values())
        for verdict, without in zip(table["verdict"], table["without"], strict=True)
    ]
    return table.assign(fragile=changed)[COLUMNS]


def _without(table: pd.DataFrame, tables: Tables, n_jobs: int) -> list[dict[int, str]]:
    """For each row that decides and was measured, {seed: the verdict without it}, for the seeds of any such study."""
    import joblib

    decides = ~table["verdict"].isin([NOT_MEASURED, DESCRIBED])
    seeds = {study: tables.seeds(study) for study in table.loc[table["mean"].notna(), "study"].unique()}
    every = sorted(set().union(*seeds.values()))
    tasks = [(tables.without(seed, DRAFT_RESAMPLES), {s for s in seeds if seed in seeds[s]}) for seed in every]
    claims = list(table["claim"].unique())
    changed = joblib.Parallel(n_jobs=n_jobs)(joblib.delayed(_verdicts)(claims, *task) for task in tasks)
    return [
        {
            seed: row.verdict if row.study not in studies else verdicts.get(row[:3], NOT_MEASURED)
            for seed, (_, studies), verdicts in zip(every, tasks, changed, strict=True)
        }
        if chosen
        else {}
        for row, chosen in zip(table[[*KEY, "verdict"]].itertuples(index=False), decides, strict=True)
    ]


def _verdicts(claims: Sequence[str], tables: Tables, studies: set[str]) -> dict[tuple, str]:
    """{(claim, study, measured): verdict} of the rows of some studies that decide."""
    rows = measurements(claims, tables, described=False, studies=studies)
    return dict(zip(rows[KEY].itertuples(index=False, name=None), rows["verdict"], strict=True))


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row per claim and scale of a `ledger`: claim, paper, scale, statement, verdict (the worst), fragile."""
    rows = []
    for (claim, scale), part in table[table["verdict"] != DESCRIBED].groupby(["claim", "scale"], sort=False):
        verdict = worst(part["verdict"])
        seeds = {seed for without in part["without"] for seed in without}
        changed = [
            worst([w.get(seed, own) for own, w in zip(part["verdict"], part["without"], strict=True)]) != verdict
            for seed in seeds
        ]
        rows.append((claim, part["paper"].iloc[0], scale, part["statement"].iloc[0], verdict, any(changed)))
    return pd.DataFrame(rows, columns=["claim", "paper", "scale", "statement", "verdict", "fragile"])


def command(study: str, claim: str, scale: str) -> str:
    """The commands that remake a study's tables, in `REMADE`, and then the claim's rows from them.

    Empty where nothing is declared that would measure it at this scale.
    """
    if scale == LARGER or (study not in STUDIES and not declared(study, scale)):
        return ""
    if study in STUDIES:
        steps = [f"python -m workbook measure {study} --scale {scale} --folder {REMADE}"]
    else:
        steps = [FIRST[study]] if study in FIRST else []
        make, keep = study_commands(study, scale)
        steps += [make, f"{keep} --scale {scale} --folder {REMADE}"]
    last = f"python -m workbook claims --scale {scale} --claim {shlex.quote(claim)} --folder {REMADE}"
    return " && ".join([*steps, last])
