"""The claims ledger: every claim of the two papers, what would refute it, what was measured, and the verdict.

    ledger("bundled")            a row per measurement, from the tables below data/results/ alone
    summary(ledger("bundled"))   a row per claim: the worst verdict of its measurements

A verdict follows from an effect and its 95 % interval: "replicates" if all of the interval lies on the claim's side of
a threshold that was written down before the measurement, "does not replicate" if none of it does, else "inconclusive".
A falsifier is "met", "not met" or "inconclusive". What no table holds is "not measured", with the reason. A verdict is
fragile if leaving out some single seed would change it.
"""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import joblib
import numpy as np
import pandas as pd

from workbook.statistics import resamples_at_most
from workbook.studies import run_verdicts as of_runs
from workbook.studies import verdicts as of_probes
from workbook.studies.record import STUDIES, check_results, load_measured, reading
from workbook.studies.sweeps import declared, load_runs, study_commands
from workbook.studies.verdicts import LARGER, NOT_MEASURED, WORST_FIRST
from workbook.topics.coupling.study import AGREE, TIMES
from workbook.topics.flips.study import ALIKE, HALF
from workbook.training.messages import one_line, show_value

SCALES = ("bundled", "smollm2", LARGER)
ROUGH = 1_999  # bootstrap resamples of a verdict without a seed
AGAIN = "build/results"  # where the printed commands write, so that what is committed stays as it is
NEEDS_GPU = "this scale needs a GPU, and none was at hand"
BEFORE = {  # what a study's runs start from, if it must be made first
    "what_causes_what": "python data/bundled/make_policy.py --error-rate 0.4 --out build/policies/hard"
}
FALSIFIERS = {
    "H1": f"the shares of the two signs lie {ALIKE:g} or more apart (total variation)",
    "H2": f"some other kind of pair couples at least 1/{TIMES:g} as strongly",
    "H3": f"the same token elsewhere does not follow, or another kind moves at least 1/{TIMES:g} as far",
    "H4": f"at some moment of training at most {AGREE:g} of the tokens agree in sign",
    "H5": f"shared tokens move at least {HALF:g} times as far as specific ones, or the index foretells no better",
    "H6": "reasoning tokens gain no share of the movement, or formatting tokens lose none",
    "H7": "boosted tokens are worth no more than suppressed ones, in rollouts of one sign",
    "H8": "the gap in value does not grow with the batch, or not with the rollouts per prompt",
    "H9": "the gap in value does not grow per step",
    "H10": f"SGD's movement falls at most {TIMES:g} times as far as AdamW's when a sure token pushes",
    "H11": "as much cancels inside a step as with shuffled mini-batches, or as much is learned",
    "H12": "it learns no more than shuffled mini-batches, or with no less jitter, or collapses no less often",
    "H13": "it learns no more than shuffled mini-batches, or with no less jitter, or collapses no less often",
    "R1": "with frequencies matched the shares lie apart, or the gap in value is gone",
    "R2": f"some other kind of pair has products at least 1/{TIMES:g} as large",
    "R3": "the token does not move towards signs dealt to its other occurrences",
    "R4": "on held-out prompts boosted tokens are worth no more than suppressed ones",
    "R5": f"under SGD the shares of the two signs lie {ALIKE:g} or more apart",
    "D1": "with exchangeable weights style words move at least half as far as without",
    "D2": "the sequence-level ratio leaves no more on shared tokens than the token-level one",
    "D3": "asymmetric clipping leaves no more on shared tokens than symmetric clipping",
    "D4": "runs without the fix pay no more tax, or it does not grow with reuse",
    "D5": "runs without the fix lose no more entropy over equivalent solutions",
    "D6": "more than a hundredth of the update is left on shared tokens, or the tax does not fall",
    "D7": "more than a hundredth of the update is left on shared tokens, or the tax does not fall",
    "D8": "the held-out reward is not higher, or jitter or compute to a score not lower",
    "D9": "the gain in held-out reward does not grow with the group",
    "IBPO": "its advantages come no nearer to true credit, or no more is learned",
    "H-falsifier": "shared tokens move at least as far as specific ones, or boosted ones are worth no more than others",
    "D-falsifier": "runs with exchangeable weights pay a tax, or runs without them pay none",
}


class Claim(NamedTuple):
    """A claim: the paper (H or D; R: asked for by a referee of H), what it states, and what would refute it."""

    paper: str
    statement: str
    falsifier: str


STATEMENTS = of_probes.CLAIMS | of_runs.CLAIMS
CLAIMS = {
    name: Claim("D" if name == "IBPO" else name[0], STATEMENTS[name], falsifier)
    for name, falsifier in FALSIFIERS.items()
}
KEY = ["claim", "study", "measured"]


def ledger(
    scale: str | None = None, fragile: bool = True, folder: str | Path | None = None, n_jobs: int = 2
) -> pd.DataFrame:
    """Every measurement of `CLAIMS` at a scale, or at all of `SCALES`: a row per claim, measurement and scale.

    Columns: claim, paper, scale, statement, falsifier, measured, stated (the threshold), mean, low, high (95 %), seeds,
    n (prompts of all seeds, or runs), verdict, fragile, reason (why not measured, or worse than the interval), study,
    command (recomputes the row from nothing), threshold, toward (+1 if the paper's claim lies above it, -1 below, NaN
    for rows that decide nothing), without ({seed: the verdict without it}; empty unless fragile).

    fragile: whether to recompute every verdict without each seed, which takes as long again for each; False where not
    asked.  folder: of the tables, instead of data/results.  n_jobs: processes for that.

    Raises ValueError for an unknown scale, and for a folder that holds no tables or one that can't be read.
    """
    if scale is not None and scale not in SCALES:
        raise ValueError(f"scale={show_value(scale)} is unknown: choose one of {', '.join(SCALES)}.")
    scales = SCALES if scale is None else (scale,)
    if folder is not None:
        check_results(folder)
    try:
        whole = {each: _rows(each, folder) for each in scales}
        left_out = _left_out(whole, folder, n_jobs) if fragile else {}
    except (LookupError, TypeError, NameError, AttributeError) as error:
        if folder is None:
            raise
        raise ValueError(f"A table in {folder} is not as its study makes it: {one_line(error)}.") from error
    tables = [_told(rows, each, left_out.get(each, {})) for each, rows in whole.items()]
    order = {claim: place for place, claim in enumerate(CLAIMS)}
    table = pd.concat(tables, ignore_index=True)
    return table.sort_values("claim", key=lambda c: c.map(order), kind="stable", ignore_index=True)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row per claim and scale of a `ledger`: claim, paper, scale, statement, verdict (the worst), fragile."""
    rows = []
    for (claim, scale), part in table[table["verdict"] != of_runs.DESCRIBED].groupby(["claim", "scale"], sort=False):
        said = worst(part["verdict"])
        seeds = {seed for each in part["without"] for seed in each}
        changed = [
            worst([each.get(seed, own) for own, each in zip(part["verdict"], part["without"], strict=True)]) != said
            for seed in seeds
        ]
        rows.append((claim, part["paper"].iloc[0], scale, part["statement"].iloc[0], said, any(changed)))
    return pd.DataFrame(rows, columns=["claim", "paper", "scale", "statement", "verdict", "fragile"])


def worst(said) -> str:
    """The worst of some verdicts: a claim of several measurements is as good as that."""
    return min(said, key=WORST_FIRST.index)


def tell(table: pd.DataFrame, commands: bool = False) -> str:
    """A `ledger` as text, claim by claim and scale by scale; commands: with those that recompute each measurement."""
    claims = summary(table).set_index(["claim", "scale"])
    lines = []
    for claim, part in table.groupby("claim", sort=False):
        row = part.iloc[0]
        lines += [
            "",
            f"{claim}  {row['statement']}",
            f"    {'met' if claim.endswith('falsifier') else 'refuted'} if {row['falsifier']}",
        ]
        for scale, rows in part.groupby("scale", sort=False):
            lines.append(f"    {scale:<10}{_marked(*claims.loc[(claim, scale), ['verdict', 'fragile']])}")
            measured = rows[rows["mean"].notna()]
            lines += [line for row in measured.itertuples() for line in _lines(row)]
            missing = rows[rows["mean"].isna()]
            lines += [
                f"        {reason} ({count} of {len(rows)})"
                for reason, count in missing["reason"].value_counts().items()
            ]
            if commands:
                lines += [f"        $ {each}" for each in dict.fromkeys(rows["command"]) if each]
    return "\n".join(lines[1:])


def _lines(row) -> list[str]:
    """A measurement on two lines: what, and how it came out."""
    effect = f"{row.mean:.3g} [{row.low:.3g}, {row.high:.3g}]"
    reason = f" ({row.reason})" if row.reason else ""
    said = (
        f"{row.stated or 'no threshold'}; {row.seeds:.0f} seeds, n = {row.n:.0f}: {_marked(row.verdict, row.fragile)}"
    )
    return [f"        {row.measured}", f"            {effect}; {said}{reason}"]


def _marked(said: str, fragile: bool) -> str:
    return f"{said}, fragile" if fragile else said


def command(study: str, claim: str, scale: str) -> str:
    """The commands that make a study's tables anew, in `AGAIN`, and then the claim's rows from them.

    Empty where nothing is declared that would measure it at this scale.
    """
    if scale == LARGER or (study not in STUDIES and not declared(study, scale)):
        return ""
    if study in STUDIES:
        steps = [f"python -m workbook measure {study} --scale {scale} --folder {AGAIN}"]
    else:
        steps = [BEFORE[study]] if study in BEFORE else []
        make, keep = study_commands(study, scale)
        steps += [make, f"{keep} --scale {scale} --folder {AGAIN}"]
    last = f"python -m workbook claims --scale {scale} --claim {shlex.quote(claim)} --folder {AGAIN}"
    return " && ".join([*steps, last])


def _rows(scale: str, folder, without: int | None = None, probes: pd.DataFrame | None = None) -> pd.DataFrame:
    """All rows at a scale, maybe without a seed; probes: their rows, if that seed is in none of them."""
    rough = nullcontext() if without is None else resamples_at_most(ROUGH)
    with reading(folder, without), rough:
        probes = of_probes.verdicts(scale) if probes is None else probes
        return pd.concat([probes, of_runs.run_verdicts(scale, probes, described=without is None)], ignore_index=True)


def _left_out(whole: dict[str, pd.DataFrame], folder, n_jobs: int) -> dict[str, dict[int, pd.DataFrame]]:
    """{scale: {seed: all rows without it}}, for seeds of studies that a row was measured from."""
    tasks = []
    for scale, rows in whole.items():
        seeds = {study: _seeds(study, scale, folder) for study in rows.loc[rows["mean"].notna(), "study"].unique()}
        probed = set().union(*(found for study, found in seeds.items() if study in PROBED))
        probes = rows[rows["claim"].isin(of_probes.CLAIMS)]
        for seed in sorted(set().union(*seeds.values())):
            tasks.append((scale, seed, None if seed in probed else probes))
    found = joblib.Parallel(n_jobs=n_jobs)(
        joblib.delayed(_rows)(scale, folder, seed, probes) for scale, seed, probes in tasks
    )
    tables = {scale: {} for scale in whole}
    for (scale, seed, _), rows in zip(tasks, found, strict=True):
        tables[scale][seed] = rows
    return tables


PROBED = ("flips", "coupling", "credit")  # the studies of `workbook.studies.verdicts`
TABLES = {"flips": "rates", "coupling": "cells", "credit": "rates", "minibatches": "steps", "counterfactual": "prompts"}


def _seeds(study: str, scale: str, folder) -> set[int]:
    """The seeds that a study was measured with."""
    with reading(folder):
        rows = load_measured(study, scale, TABLES[study]) if study in TABLES else load_runs(study, scale)
    return set(rows["seed"].tolist())


def _told(rows: pd.DataFrame, scale: str, left_out: dict[int, pd.DataFrame]) -> pd.DataFrame:
    """Rows with everything that a `ledger` says of them."""
    table = rows.assign(scale=scale)
    if scale == LARGER:
        table.loc[table["verdict"] == NOT_MEASURED, "reason"] = NEEDS_GPU
    for name in ("paper", "statement", "falsifier"):
        table[name] = [getattr(CLAIMS[claim], name) for claim in table["claim"]]
    table["command"] = [command(row.study, row.claim, scale) for row in table.itertuples()]
    aims = [_aim(stated) for stated in table["stated"]]
    table["threshold"], table["toward"] = [list(each) for each in zip(*aims, strict=True)]
    without = {seed: found.set_index(KEY)["verdict"].to_dict() for seed, found in left_out.items()}
    table["without"] = [
        {seed: said.get(key, NOT_MEASURED) for seed, said in without.items()} if decides else {}
        for key, decides in zip(
            table[KEY].itertuples(index=False, name=None),
            ~table["verdict"].isin([NOT_MEASURED, of_runs.DESCRIBED]),
            strict=True,
        )
    ]
    table["fragile"] = [
        any(other != said for other in each.values())
        for said, each in zip(table["verdict"], table["without"], strict=True)
    ]
    return table[COLUMNS]


COLUMNS = [
    *("claim", "paper", "scale", "statement", "falsifier", "measured", "stated", "mean", "low", "high", "seeds", "n"),
    *("verdict", "fragile", "reason", "study", "command", "threshold", "toward", "without"),
]


def _aim(stated: str) -> tuple[float, float]:
    """Threshold and the paper's side of it, from what was stated: a falsifier's is the side on which it is not met.

    >>> _aim("> 3"), _aim("met if >= 1"), _aim("met if <= 0")
    ((3.0, 1.0), (1.0, -1.0), (0.0, 1.0))
    """
    if not stated:
        return np.nan, np.nan
    *_, sign, number = stated.split()
    return float(number), 1.0 if sign in (">", "<=") else -1.0
