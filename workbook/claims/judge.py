"""Outcomes of the records of all topics: each measurement's units against what its study registered."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pandas as pd

from workbook import topics
from workbook.claims.inference import (
    CONTRADICTED,
    EQUIVALENT,
    INCONCLUSIVE,
    LEVEL,
    NOT_COMPARABLE,
    NOT_MEASURED,
    NOT_TESTABLE,
    SUPPORTED,
    Judged,
    judge_units,
)
from workbook.statistics import Estimate
from workbook.studies.claim import Claim, Measurement, NotMeasured, Tables
from workbook.studies.registration import MIN_UNITS, Outcome, looked_after

DESCRIBED = "described"  # role and outcome of a row that decides nothing
MET = {SUPPORTED: "not met", CONTRADICTED: "met", EQUIVALENT: "met", INCONCLUSIVE: "neither met nor excluded"}
WORST_FIRST = (
    *(CONTRADICTED, EQUIVALENT, INCONCLUSIVE, NOT_MEASURED, NOT_COMPARABLE, NOT_TESTABLE, SUPPORTED, DESCRIBED),
)
COLUMNS = (
    *("claim", "role", "study", "key", "scale", "measured", "unit", "threshold", "toward", "smallest_effect"),
    *("mean", "low", "high", "units", "registered_units", "dropped", "added", "looked", "outcome", "here", "reason"),
    *("p", "q", "p_equivalent", "p_flips", "detectable", "without_low", "without_high", "decided_by"),
    *("policies", "p_units", "policy_of"),
    *("sd", "values", "log"),
    *("paper_effect", "place", "comparable", "testable", "source", "seen_before", "registration", "clean", "commits"),
)


def _place(claim: Claim) -> tuple:
    """Order of the ledger: H, R, D, P, S, others, each by number, then the falsifiers."""
    number = int(claim.id[1:]) if claim.id[1:].isdigit() else 99
    letters = "HRDPSA"
    return claim.is_falsifier, letters.find(claim.id[0]) % (len(letters) + 1), number, claim.id


def _collect() -> Iterator[Claim]:
    """The records of every topic that has a claims.py."""
    for topic in pkgutil.iter_modules(topics.__path__, f"{topics.__name__}."):
        if topic.ispkg and find_spec(f"{topic.name}.claims"):
            yield from import_module(f"{topic.name}.claims").CLAIMS


def _by_id(records: Iterable[Claim]) -> dict[str, Claim]:
    """{id: claim}; a claim that several topics measure has the rows of all, the words of the first that has any."""
    claims: dict[str, Claim] = {}
    for record in records:
        known = claims.get(record.id)
        claims[record.id] = known.joined(record) if known else record
    return {claim.id: claim for claim in sorted(claims.values(), key=_place)}


CLAIMS = _by_id(_collect())


def measurements(
    claims: str | Iterable[str | Claim], tables: Tables, roles: Sequence[str] | None = None
) -> pd.DataFrame:
    """Every measurement of some claims at one scale, by their ids or records: a row each, with `COLUMNS`.

    A row that is described and was not measured is left out. Outcomes of primary rows do not yet know of one another:
    `claims.ledger` corrects them for their number.  roles: those wanted, by default all.

    claim, role, study, key, scale, measured (the sentence), unit, threshold, toward (+1 if the claim lies above it, -1
    below, NaN where nothing is decided), smallest_effect; mean, low, high (95 %), units, registered_units, dropped
    (units without a number), added (units beyond the registered count, which decide nothing), looked (units that were
    measured after the outcome of the earlier ones was seen); outcome, here (what it would be if the setting were
    comparable), reason; p, q, p_equivalent, p_flips, detectable, without_low,
    without_high, decided_by, policies, p_units, sd: see `inference.Judged`; values: {unit: number}; policy_of:
    {unit: policy}; log: whether those are logarithms;
    paper_effect ... seen_before: as registered; registration ("matches", "changed since", "none"), clean (whether all
    tables came from an unmodified tree, None: not known), commits.
    """
    rows = []
    for claim in [claims] if isinstance(claims, str) else claims:
        record = claim if isinstance(claim, Claim) else CLAIMS[claim]
        for measurement in record.rows:
            if measurement.scales is None or tables.scale in measurement.scales:
                rows += _measured(record, measurement, tables, roles)
    return pd.DataFrame(rows, columns=COLUMNS).drop_duplicates(["claim", "study", "key"], ignore_index=True)


def _measured(claim: Claim, measurement: Measurement, tables: Tables, roles) -> list[dict]:
    """The rows of one measurement."""
    outcome = measurement.outcome(claim.id, tables.folder)
    registration = measurement.registration(tables.folder)
    role = outcome.role if outcome else DESCRIBED
    if roles is not None and role not in roles:
        return []
    if outcome and tables.scale not in registration.units:
        return []
    row = {"claim": claim.id, "role": role, "study": measurement.study, "key": measurement.key, "scale": tables.scale}
    count = registration.units[tables.scale] if outcome else None
    try:
        measured = measurement.measure(tables.registered(measurement.study, count) if outcome else tables)
    except (NotMeasured, ValueError) as missing:  # the latter: the tables hold too little
        nothing = missing_row(str(missing)) | {"registered_units": count or 0}
        return [row | nothing | _registered(outcome)] if outcome else []
    units = tables.provenance(measurement.study)
    row |= _provenance(units if count is None else units[units["unit"] < count], registration)
    if not isinstance(measured, pd.Series):
        return [row | described for described in _described(measured, measurement)]
    if outcome is None:
        outcome = Outcome(claim.id, DESCRIBED, measurement.key, source="ours")
    late = tuple(units.loc[units["unit"] >= count, "unit"].tolist()) if count is not None else ()
    seen = looked_after(measurement.study, tables.folder) if count is not None else None
    later = () if seen is None else tuple(unit for unit in units["unit"].unique().tolist() if seen <= unit < count)
    whole = {"registered_units": count or 0, "added": late, "looked": later}
    policies = units.drop_duplicates("unit").set_index("unit")["policy"]
    return [row | _registered(outcome) | _judged(measured, outcome, len(units) - len(late), policies) | whole]


def _registered(outcome: Outcome) -> dict:
    """What a row has of its registration."""
    texts = {name: getattr(outcome, name) for name in ("unit", "place", "comparable", "testable", "source")}
    numbers = {name: getattr(outcome, name) for name in ("threshold", "toward", "smallest_effect")}
    return {"measured": outcome.sentence, "paper_effect": outcome.paper, "seen_before": outcome.seen_before} | (
        texts | numbers
    )


def missing_row(reason: str) -> dict:
    """What a row has that was not measured."""
    nothing = dict.fromkeys((*Judged._fields, "q"), np.nan)
    unknown = {"registration": "", "clean": None, "commits": ()}
    counts = dict.fromkeys(("units", "registered_units", "dropped"), 0) | dict.fromkeys(("added", "looked"), ())
    counts |= {"values": {}, "policy_of": {}, "log": False}
    return nothing | unknown | counts | {"outcome": NOT_MEASURED, "here": NOT_MEASURED, "reason": reason}


def _judged(values: pd.Series, outcome: Outcome, measured: int, policies: pd.Series) -> dict:
    """What units say; measured: how many there are, with a number or without."""
    kept = values[np.isfinite(values.to_numpy(dtype=float))].sort_index()
    if kept.index.has_duplicates:
        raise ValueError(f"{outcome.claim}: {outcome.sentence}: its measure gives a unit more than one number.")
    kept.attrs = dict(values.attrs)
    numbers = {int(unit): float(value) for unit, value in kept.items()}
    known = policies.reindex(kept.index).dropna()
    facts = {"units": len(kept), "dropped": max(measured - len(kept), 0), "values": numbers}
    facts["policy_of"] = {int(unit): str(policy) for unit, policy in known.items()}
    if kept.empty:
        return missing_row("no unit has a number") | facts
    judged = judge_units(kept, outcome, policies)._asdict()
    judged["here"] = judged["outcome"] = DESCRIBED if outcome.role == DESCRIBED else judged["outcome"]
    return judged | facts | {"q": np.nan, "reason": "", "log": bool(values.attrs.get("log"))}


def _described(measured, measurement: Measurement) -> list[dict]:
    """Rows of one policy's estimates, which decide nothing; of several kinds the one nearest to failing."""
    estimates = measured if isinstance(measured, dict) else {measurement.key: measured}
    toward = np.nan if not measurement.decided else 1.0 if measurement.below is None else -1.0
    limit = {"threshold": measurement.threshold, "toward": toward, "smallest_effect": np.nan}
    rows = []
    for label, estimate in estimates.items():
        if not isinstance(estimate, Estimate):
            estimate = min(estimate, key=lambda e: e.low if measurement.below is None else -e.high)
        text = dict.fromkeys(("unit", "paper_effect", "place", "comparable", "testable", "source", "seen_before"), "")
        interval = dict(zip(("mean", "low", "high"), estimate[:3], strict=True))
        facts = {"units": int(estimate.seeds), "outcome": DESCRIBED, "here": DESCRIBED}
        reason = "one policy" + (f"; {estimate.doubt}" if estimate.doubt else "")
        rows.append(missing_row(reason) | text | limit | interval | facts | {"key": label, "measured": label})
        del rows[-1]["registration"], rows[-1]["clean"], rows[-1]["commits"]
    return rows


def _provenance(units: pd.DataFrame, registration) -> dict:
    """Whether units came from an unmodified tree (None: not known), and under the registration that stands now."""
    modified = set(units["modified"])
    clean = False if True in modified else True if modified == {False} else None
    state = "none"
    if registration is not None:
        state = "matches" if set(units["registration"]) == {registration.hash} else "changed since"
    return {"registration": state, "clean": clean, "commits": tuple(sorted(set(units["commit"].dropna())))}


def conclude(row: dict | pd.Series, primaries: int) -> tuple[str, str, str]:
    """A judged row's outcome, what its interval would say here, and the reason of both.

    primaries: rows that q was corrected over.
    """
    here, units, policies = row["here"], row["units"], row["policies"]
    if row["role"] == DESCRIBED or not row["values"]:
        return row["outcome"], here, row["reason"]
    if row["testable"].lower().startswith("no"):
        return NOT_TESTABLE, here, row["testable"].partition(":")[2].strip()
    if policies < MIN_UNITS:
        number = f"{units} units on {policies:.0f} policies" if policies < units else f"{units} units"
        return NOT_MEASURED, here, f"{number}; an outcome needs {MIN_UNITS}"
    if here == NOT_TESTABLE:
        reason = f"every unit lies at the threshold, {row['threshold']:g}: a floor, a ceiling or no contrast"
        return NOT_TESTABLE, here, reason
    here, reason = _by_intervals(row, primaries)
    if row["comparable"].lower().startswith("no"):
        return NOT_COMPARABLE, here, f"{row['comparable'].partition(':')[2].strip()}; at our place {here}: {reason}"
    if row["claim"].endswith("falsifier") and row["role"] == "primary":  # judged from the paper's side
        reason += f"; the falsifier is {MET[here]}"
    return here, here, reason


def _by_intervals(row: dict | pd.Series, primaries: int) -> tuple[str, str]:
    """Outcome and reason by a row's intervals and q."""
    here, c, unit = row["here"], f"{row['threshold']:g}", row["unit"]
    clear = row["low"] > row["threshold"] or row["high"] < row["threshold"]
    if here == EQUIVALENT:
        reason = f"its 90 % interval lies within {c} ± {row['smallest_effect']:g} {unit}".rstrip()
        reason = reason if row["threshold"] == 0 else f"equivalent to its threshold: {reason}"
        return here, reason + ("; clear of the threshold, but smaller than what is of interest" if clear else "")
    if here == INCONCLUSIVE:
        detectable = f"80 % power for {row['detectable']:.2g} {unit}".rstrip()
        return here, f"its interval reaches both sides of {c}; {detectable} or more"
    reason = f"its whole interval lies {'above' if row['low'] > row['threshold'] else 'below'} {c}"
    if np.isfinite(row["q"]) and row["q"] > LEVEL:
        here, reason = INCONCLUSIVE, f"{reason}, but q = {row['q']:.2g} over {primaries} primary rows"
    if row["p_flips"] > LEVEL:
        reason += f"; sign flips disagree, p = {row['p_flips']:.2g}"
    return here, reason


def worst(outcomes: Iterable[str]) -> str:
    """The worst of some outcomes."""
    return min(outcomes, key=WORST_FIRST.index)
