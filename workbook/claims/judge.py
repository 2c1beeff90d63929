"""Verdicts on the records of all topics: each measurement against its threshold."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pandas as pd

from workbook import topics
from workbook.statistics import Estimate
from workbook.studies.claim import Claim, Measurement, NotMeasured, Tables

NOT_MEASURED = "not measured"
WORST_FIRST = ("does not replicate", "met", "inconclusive", NOT_MEASURED, "not met", "replicates")  # met: a falsifier
COLUMNS = (
    *("claim", "study", "measured", "stated", "mean", "low", "high", "verdict", "seeds", "n", "reason"),
    *("threshold", "toward"),
)


def _place(claim: Claim) -> tuple:
    """Order of the ledger: H, R, D, others, each by number, then the falsifiers."""
    number = int(claim.id[1:]) if claim.id[1:].isdigit() else 99
    return claim.is_falsifier, f"HRD{claim.id[0]}".index(claim.id[0]), number


def _collect() -> Iterator[Claim]:
    """The records of every topic that has a claims.py."""
    for topic in pkgutil.iter_modules(topics.__path__, f"{topics.__name__}."):
        if topic.ispkg and find_spec(f"{topic.name}.claims"):
            yield from import_module(f"{topic.name}.claims").CLAIMS


CLAIMS = {claim.id: claim for claim in sorted(_collect(), key=_place)}


def measurements(
    claims: str | Iterable[str | Claim], tables: Tables, described: bool = True, studies: Iterable[str] | None = None
) -> pd.DataFrame:
    """Every measurement of some claims, by their ids or records: a row each, with `COLUMNS`.

    stated: the threshold in words.  seeds, n: what the interval rests on, n counting the prompts (or runs) of all
    seeds.  reason: why it is "not measured", or worse than its interval.  threshold, toward: as numbers, toward +1 if
    the paper's claim lies above it and -1 below; NaN for rows that decide nothing.

    described: also the rows that decide nothing.  studies: those whose rows are wanted, by default all.
    """
    rows = []
    for claim in [claims] if isinstance(claims, str) else claims:
        rows += _rows(claim if isinstance(claim, Claim) else CLAIMS[claim], tables, described, studies)
    return pd.DataFrame(rows, columns=COLUMNS)


def _rows(claim: Claim, tables: Tables, described: bool, studies) -> list[tuple]:
    """A claim's rows; of each study those that could not be measured first."""
    rows = {}
    for measurement in claim.rows:
        asked = measurement.scales is None or tables.scale in measurement.scales
        if asked and (described or measurement.decides) and (studies is None or measurement.study in studies):
            rows |= {row[1:3]: row for row in _measured(claim, measurement, tables)}
    places = {study: place for place, study in enumerate(dict.fromkeys(study for study, _ in rows))}
    return sorted(rows.values(), key=lambda row: (places[row[1]], row[COLUMNS.index("verdict")] != NOT_MEASURED))


def _measured(claim: Claim, measurement: Measurement, tables: Tables) -> list[tuple]:
    """The rows of one measurement."""
    threshold = measurement.above if measurement.below is None else measurement.below
    toward = np.nan if threshold is None else 1.0 if measurement.below is None else -1.0
    limit = (np.nan if threshold is None else float(threshold), toward)

    def row(label: str, estimate: Estimate, outcome: str, reason: str, limit=limit) -> tuple:
        interval, size = estimate[:3], estimate[3:5]
        stated = _stated(*limit, claim.is_falsifier)
        return (claim.id, measurement.study, label, stated, *interval, outcome, *size, reason, *limit)

    try:
        measured = measurement.measure(tables)
        estimates = measured if isinstance(measured, dict) else {measurement.label: measured}
        rows = []
        for label, estimate in estimates.items():
            outcome, weakest = verdict_of(estimate, measurement, claim.is_falsifier)
            if measurement.unless:
                outcome = _unless(measurement.unless(tables), outcome)
            plain = verdict_of(weakest._replace(doubt=""), measurement, claim.is_falsifier)[0]
            rows.append(row(label, weakest, outcome, weakest.doubt if outcome != plain else ""))
        return rows
    except NotMeasured as missing:
        whole = measurement.whole and not claim.is_falsifier
        limit = (np.nan, np.nan) if whole else limit
        return [row(measurement.whole or measurement.label, NOTHING, NOT_MEASURED, str(missing), limit)]
    except ValueError as missing:  # the tables hold too little, e.g. no prompt in which the kinds occur
        return [row(measurement.label, NOTHING, NOT_MEASURED, str(missing))]


NOTHING = Estimate(*[np.nan] * 5)


def _stated(threshold: float, toward: float, falsifier: bool) -> str:
    """A threshold in words; a falsifier's is the side on which it is met.

    >>> _stated(3.0, 1.0, False), _stated(1.0, -1.0, True), _stated(0.0, 1.0, True)
    ('> 3', 'met if >= 1', 'met if <= 0')
    """
    if np.isnan(threshold):
        return ""
    sign = {(1, False): ">", (-1, False): "<", (1, True): "met if <=", (-1, True): "met if >="}[int(toward), falsifier]
    return f"{sign} {threshold:g}"


def verdict_of(
    estimates: Estimate | Sequence[Estimate], measurement: Measurement, falsifier: bool = False
) -> tuple[str, Estimate]:
    """The verdict on an estimate, or on several kinds, all of which must hold; and the weakest of them.

    Raises ValueError if there is none.
    """
    if isinstance(estimates, Estimate):
        estimates = [estimates]
    if not estimates:
        raise ValueError(f"{measurement.label}: nothing was measured.")

    def strength(estimate: Estimate) -> tuple[int, float]:
        rank = WORST_FIRST.index(measurement.judge(estimate, falsifier))
        return rank, estimate.low if measurement.below is None else -estimate.high

    weakest = min(estimates, key=strength) if len(estimates) > 1 else estimates[0]
    return measurement.judge(weakest, falsifier), weakest


def _unless(other: Estimate, outcome: str) -> str:
    """A falsifier's verdict beside an outcome that takes "met" away: it does if it is there, and may if it may be."""
    if other.high <= 0:
        return outcome
    return "not met" if other.low > 0 or outcome == "not met" else "inconclusive"


def worst(verdicts: Iterable[str]) -> str:
    """The worst of some verdicts: a claim of several measurements is as good as that."""
    return min(verdicts, key=WORST_FIRST.index)
