"""The claims of chapters 05 to 07 at one scale: what was measured, against what threshold, and the verdict.

Each row comes from a function of the study that measured it, so that a chapter and this table cannot disagree. A claim
of several measurements replicates if all of them do: `by_claim` takes the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from workbook.statistics import Interval, verdict
from workbook.studies import coupling, credit, flips
from workbook.studies.bench import SCALES

NOT_MEASURED = "not measured"
WORST_FIRST = ("does not replicate", "inconclusive", NOT_MEASURED, "replicates")
CLAIMS = {
    "H1": "shares of boosted, suppressed and stable tokens are alike in positive and negative rollouts",
    "H2": "only the same token, unsure both times, couples strongly",
    "H3": "a masked update moves the same unsure token elsewhere, and others hardly",
    "H4": "full step and output layer alone agree in sign, steadily over training",
    "H5": "opposing pushes cancel on tokens that both signs share",
    "H6": "updates shift from formatting to reasoning tokens, against positive-only training",
    "H7": "boosted tokens have higher value than suppressed ones, in rollouts of either sign",
    "H8": "that gap grows with the batch and with rollouts per prompt",
    "H9": "that gap grows with repeated updates on one batch",
    "H10": "Adam's first step hides the size of coupled gradients",
    "R1": "H1 and H7 hold with token frequencies matched",
    "R2": "identical unsure tokens of opposite rollouts have large gradient products",
    "R3": "with frequencies fixed, signs dealt to other occurrences move a token",
    "R4": "H7 holds on held-out prompts",
    "R5": "H1 holds under SGD as under Adam",
}


def verdicts(scale: str) -> pd.DataFrame:
    """Every measurement of `CLAIMS` at a scale: columns claim, measured, stated, mean, low, high, verdict.

    stated: the threshold, as it was written down before the measurement.  A measurement of which the study holds no
    table, or too few rows, is "not measured".  Raises ValueError for a scale that is not known.
    """
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r} is unknown: choose one of {', '.join(SCALES)}.")
    rows = [*_flips(scale), *_coupling(scale), *_credit(scale)]
    columns = ["claim", "measured", "stated", *Interval._fields, "verdict"]
    order = {claim: place for place, claim in enumerate(CLAIMS)}
    return pd.DataFrame(rows, columns=columns).sort_values("claim", key=lambda c: c.map(order), kind="stable")


def by_claim(table: pd.DataFrame) -> pd.Series:
    """{claim: the worst verdict of its measurements}, in the order of `CLAIMS`."""
    found = table.groupby("claim")["verdict"].agg(lambda each: min(each, key=WORST_FIRST.index))
    return found.reindex([claim for claim in CLAIMS if claim in found.index])


def _flips(scale: str) -> Iterator[tuple]:
    alike, half = flips.ALIKE, flips.HALF
    conditions = {
        "H1": {"optimizer": "adamw"},
        "R1": {"optimizer": "adamw", "tokens": "matched"},
        "R5": {"optimizer": "sgd"},
    }
    for claim, settings in conditions.items():
        told = "distance of the two signs' shares, " + ", ".join(settings.values())
        yield _row(claim, told, lambda settings=settings: flips.flip_distance_of(scale, **settings), below=alike)
    told = "movement of shared tokens / of those in positive rollouts alone"
    yield _row("H5", told, lambda: flips.shared_ratio(scale), below=half)
    told = "AUROC for dlogp: coupled index less own advantage"
    yield _row("H5", told, lambda: flips.index_advantage(scale), above=0)
    if scale != "smollm2":  # true credit is known of the chain task alone
        told = "AUROC for true credit: coupled index less own advantage"
        yield _row("H5", told, lambda: flips.index_advantage(scale, "credit"), above=0)
    told = "nats per unit of advantage dealt to the token elsewhere"
    yield _row("R3", told, lambda: flips.composition_effect(scale), above=0)


def _coupling(scale: str) -> Iterator[tuple]:
    times, other = coupling.TIMES, "times as large as the nearest other kind of pair, "
    tables = (
        ("H2", other + "output layer", lambda: coupling.coupling_times(scale), times),
        ("H2", other + "all weights", lambda: coupling.product_times(scale), times),
        ("R2", other + "opposite signs", lambda: coupling.product_times(scale, opposite=True), times),
        ("H3", "times as far as the nearest other kind of token", lambda: coupling.follow_times(scale)[1], times),
        (
            "H4",
            "share of tokens that agree, at the worst moment",
            lambda: coupling.agreement_along(scale),
            coupling.AGREE,
        ),
    )
    for claim, told, measure, above in tables:
        yield _worst_row(claim, told, measure, above)
    yield _row("H3", "nats by which the same token elsewhere follows", lambda: coupling.follow_times(scale)[0], above=0)
    told = "times as far as AdamW's movement does SGD's fall"
    yield _row("H10", told, lambda: coupling.hidden_by_adam(scale), above=times)


def _credit(scale: str) -> Iterator[tuple]:
    try:
        found = credit.credit_verdicts(scale)
    except ValueError:
        for claim in ("H6", "H7", "H8", "H9", "R1", "R4"):
            yield (claim, CLAIMS[claim], "", np.nan, np.nan, np.nan, NOT_MEASURED)
        return
    for row in found[~found["where"].str.contains("adamw")].itertuples():
        stated = "< 0" if row.claim == "H6" and row.where.startswith("formatting") else "> 0"
        yield (row.claim, row.where, stated, row.mean, row.low, row.high, row.verdict)


def _row(claim: str, measured: str, measure: Callable[[], Interval], **threshold: float) -> tuple:
    stated = " ".join(f"{'>' if name == 'above' else '<'} {value:g}" for name, value in threshold.items())
    try:
        found = measure()
    except ValueError:  # the study holds no such table, or no prompt in which the kinds occur
        return (claim, measured, stated, np.nan, np.nan, np.nan, NOT_MEASURED)
    return (claim, measured, stated, *found, verdict(found, **threshold))


def _worst_row(claim: str, measured: str, measure: Callable[[], pd.DataFrame], above: float) -> tuple:
    """A claim about several kinds at once, judged as chapter 06 does; the numbers are those of its weakest kind."""
    try:
        rows = measure()
        return (claim, measured, f"> {above:g}", *_least(rows), coupling.judged(rows, above))
    except ValueError:
        return (claim, measured, f"> {above:g}", np.nan, np.nan, np.nan, NOT_MEASURED)


def _least(rows: pd.DataFrame) -> Interval:
    """The row that a claim about all of them fails by first: the one whose interval reaches lowest."""
    if rows.empty:
        raise ValueError("rows is empty: no other kind was measured.")
    worst = rows.loc[rows["low"].idxmin()]
    return Interval(worst["mean"], worst["low"], worst["high"])
