"""The ledger: all measurements of all claims, corrected for their number, and the commands that recompute them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from workbook.claims.inference import CONTRADICTED, LEVEL, SUPPORTED, Rule, adjusted, independent, rule_of
from workbook.claims.judge import CLAIMS, DESCRIBED, conclude, measurements, missing_row
from workbook.claims.judge import COLUMNS as JUDGED
from workbook.studies.claim import LARGER, Tables
from workbook.studies.record import STUDIES, check_results
from workbook.studies.registration import ROLES, Outcome, read_registration
from workbook.studies.scales import SCALES as STUDIED
from workbook.studies.sweeps import declared, study_commands
from workbook.training.messages import one_line, show_value

SCALES = (*sorted((name for name in STUDIED if name != "tiny"), key=lambda name: name != "family"), LARGER)
REMADE = "build/results"  # where the printed commands write, so that what is committed stays as it is
NO_PRIMARY = "no study registered a primary outcome of this claim"
COLUMNS = ["claim", "paper", "statement", "falsifier", *JUDGED[1:], "command"]


def ledger(
    scale: str | None = None,
    folder: str | Path | None = None,
    claims: Sequence[str] | None = None,
    described: bool = True,
) -> pd.DataFrame:
    """Every measurement of `CLAIMS` at a scale, or at all of `SCALES`: a row each, primary ones of a claim first.

    Columns: claim, paper, statement, falsifier (what would refute it), those of `judge.measurements`, and command,
    which recomputes the row from nothing.

    The Benjamini-Hochberg correction is over all primary rows of all claims that have a p-value and can be judged,
    whichever are asked for.  folder: of the tables, instead of data/results; primary rows that it does not hold are
    corrected for as they are in data/results.  claims: those wanted, by default all.  described: also the rows that
    decide nothing, which take most of the time.

    Raises ValueError for an unknown scale, and for a folder that holds no tables or one that can't be read.
    """
    if scale is not None and scale not in SCALES:
        raise ValueError(f"scale={show_value(scale)} is unknown: choose one of {', '.join(SCALES)}.")
    claims = list(CLAIMS if claims is None else claims)
    if folder is not None:
        check_results(folder)
    try:
        table, q = _judged(claims, [scale] if scale else SCALES, folder, described)
    except (LookupError, TypeError, NameError, AttributeError) as error:
        if folder is None:
            raise
        raise ValueError(f"A table in {folder} is not as its study makes it: {one_line(error)}.") from error
    missing = [name for name in claims if name not in set(table.loc[table["role"] == "primary", "claim"])]
    table = _concluded(table, q)
    return _complete(pd.DataFrame([*table.to_dict("records"), *_without_primary(missing, scale)], columns=JUDGED))


def _judged(claims, scales, folder, described: bool) -> tuple[pd.DataFrame, dict]:
    """The rows of some claims at some scales, and q of all primary rows."""
    tables = {name: Tables(name, folder) for name in SCALES}
    primary = _rows(CLAIMS, tables.values(), ["primary"])
    every = primary
    if folder is not None:  # what this folder does not hold is corrected for as it is in data/results
        committed = _rows(CLAIMS, map(Tables, SCALES), ["primary"])
        every = pd.concat([primary[primary["p"].notna()], committed]).drop_duplicates(["claim", "scale", "study"])
    others = [role for role in ROLES if role != "primary" and (described or role != DESCRIBED)]
    wanted = primary[primary["claim"].isin(claims) & primary["scale"].isin(scales)].to_dict("records")
    rest = _rows(claims, [tables[name] for name in scales], others).to_dict("records")
    return pd.DataFrame([*wanted, *rest], columns=JUDGED), correction(every)


def _rows(claims: Iterable[str], tables: Iterable[Tables], roles: Sequence[str]) -> pd.DataFrame:
    """The rows of some claims at some scales, of some roles."""
    parts = [measurements(claims, part, roles).to_dict("records") for part in tables]
    return pd.DataFrame([row for part in parts for row in part], columns=JUDGED)


def _concluded(table: pd.DataFrame, q: dict[tuple, float]) -> pd.DataFrame:
    """The rows with q of the primary ones, and the outcome and reason that follow."""
    rows = []
    for row in table.to_dict("records"):
        if row["role"] == "primary":
            row["q"] = q.get((row["claim"], row["scale"], row["study"]), np.nan)
        rows.append(row | dict(zip(("outcome", "here", "reason"), conclude(row, len(q)), strict=True)))
    return pd.DataFrame(rows, columns=JUDGED)


def correction(primaries: pd.DataFrame) -> dict[tuple, float]:
    """{(claim, scale, study): q} of the primary rows that have a p-value and are testable and comparable."""
    judged = primaries[primaries["p"].notna() & ~primaries["testable"].str.lower().str.startswith("no")]
    judged = judged[~judged["comparable"].str.lower().str.startswith("no")]
    keys = judged[["claim", "scale", "study"]].itertuples(index=False, name=None)
    return dict(zip(keys, adjusted(judged["p"].to_numpy(dtype=float)), strict=True))


def _without_primary(claims: Sequence[str], scale: str | None) -> list[dict]:
    """A row for each claim that has no primary one."""
    reason = f"no primary outcome is registered at scale {scale!r}" if scale else NO_PRIMARY
    row = missing_row(reason) | {"role": "primary", "scale": scale or SCALES[0], "study": "", "key": ""}
    return [row | {"claim": claim} for claim in claims]


def _complete(table: pd.DataFrame) -> pd.DataFrame:
    """All columns, in the order of claims, scales and roles."""
    records = [CLAIMS[name] for name in table["claim"]]
    texts = ["study", "key", "measured", "unit", "paper_effect", "place", "comparable", "testable", "source"]
    texts += ["seen_before", "reason", "registration"]
    table = table.assign(
        paper=[claim.paper for claim in records],
        statement=[claim.statement for claim in records],
        falsifier=[claim.refuted_if for claim in records],
        command=[command(*row) for row in table[["study", "claim", "scale"]].itertuples(index=False)],
        policies=table["policies"].astype(float),  # as the other counts: NaN where nothing was measured
        **{name: table[name].fillna("") for name in texts},
    )
    orders = {"claim": list(CLAIMS), "scale": SCALES, "role": ROLES}
    places = {name: table[name].map({value: i for i, value in enumerate(order)}) for name, order in orders.items()}
    order = pd.DataFrame(places).sort_values(["claim", "scale", "role"], kind="stable").index
    return table.loc[order, COLUMNS].reset_index(drop=True)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """The primary rows of a `ledger`, one a claim and scale: claim, paper, scale, statement, outcome, its numbers."""
    columns = ["claim", "paper", "scale", "statement", "outcome", "mean", "low", "high", "unit", "units", "reason"]
    return table.loc[table["role"] == "primary", columns].reset_index(drop=True)


def command(study: str, claim: str, scale: str) -> str:
    """The commands that remake a study's tables, in `REMADE`, and then the claim's rows from them.

    Empty where nothing is declared that would measure it at this scale.
    """
    if scale == LARGER or (study not in STUDIES and not declared(study, scale)):
        return ""
    if study in STUDIES:
        registration = read_registration(study)
        count = registration.units.get(scale) if registration else None
        seeds = " --seeds " + " ".join(map(str, range(count))) if count and count != STUDIED[scale].seeds else ""
        steps = [f"python -m workbook measure {study} --scale {scale}{seeds} --folder {REMADE}"]
    else:
        make, keep = study_commands(study, scale)
        steps = [make, f"{keep} --scale {scale} --folder {REMADE}"]
    last = f"python -m workbook claims --scale {scale} --claim {shlex.quote(claim)} --folder {REMADE}"
    return " && ".join([*steps, last])


def permuted_outcomes(table: pd.DataFrame, draws: int = 1_000, seed: int = 0) -> pd.DataFrame:
    """How many primary rows chance alone would call supported: units' distances from the threshold, signs at random.

        x_u -> c + s (x_u - c),  s = +1 or -1, one for each policy, the same in all rows

    table: a `ledger`. Rows are those that can be judged; each draw goes through the same t intervals, equivalence and
    Benjamini-Hochberg correction.  Columns: draw, rows, supported (rows of this draw that are), contradicted,
    uncorrected (supported by the interval alone).
    """
    rows = table[(table["role"] == "primary") & table["q"].notna()].to_dict("records")
    rules, rng, drawn = [_rule(row) for row in rows], np.random.default_rng(seed), []
    policies = sorted({_policy(row, unit) for row in rows for unit in row["values"]})
    for draw in range(draws):
        signs = dict(zip(policies, rng.choice([-1.0, 1.0], len(policies)), strict=True))
        flipped = [_flipped(row, rule, signs) for row, rule in zip(rows, rules, strict=True)]
        outcomes = np.array([rule.outcome(x) for rule, x in zip(rules, flipped, strict=True)])
        q = adjusted(np.array([rule.p(x) for rule, x in zip(rules, flipped, strict=True)]))
        counts = [int(((outcomes == name) & (q <= LEVEL)).sum()) for name in (SUPPORTED, CONTRADICTED)]
        drawn.append((draw, len(rows), *counts, int((outcomes == SUPPORTED).sum())))
    return pd.DataFrame(drawn, columns=["draw", "rows", "supported", "contradicted", "uncorrected"])


def _rule(row: dict) -> Rule:
    """The rule of a row."""
    side = "above" if row["toward"] > 0 else "below"
    zone = {"threshold": row["threshold"], "smallest_effect": row["smallest_effect"]}
    return rule_of(Outcome(row["claim"], "primary", "", side=side, **zone), row["log"])


def _policy(row: dict, unit: int) -> str:
    """The policy of a row's unit; the unit itself where it is not known."""
    return row["policy_of"].get(unit, f"unit {unit}")


def _flipped(row: dict, rule: Rule, signs: dict) -> np.ndarray:
    """A row's independent numbers with signs at random about the threshold."""
    signed = {unit: signs[_policy(row, unit)] * (value - rule.threshold) for unit, value in row["values"].items()}
    return rule.threshold + independent(pd.Series(signed), pd.Series(row["policy_of"], dtype=object))


def ledger_json(table: pd.DataFrame) -> str:
    """A `ledger` as JSON, with what decided every row: units' numbers, thresholds, commits; NaN as null."""
    rows = []
    for row in table.to_dict("records"):
        missing = [name for name, value in row.items() if isinstance(value, float) and not np.isfinite(value)]
        plain = row | dict.fromkeys(missing)
        plain |= {name: {str(unit): value for unit, value in row[name].items()} for name in ("values", "policy_of")}
        rows.append(plain)
    return json.dumps({"rows": rows}, indent=1, ensure_ascii=False, default=_plain) + "\n"


def _plain(value):
    """A numpy number, or a tuple, as JSON has it."""
    return value.item() if isinstance(value, np.generic) else list(value)
