"""The claims of chapters 05 to 07 at one scale: what was measured, against what threshold, and the verdict.

Each row comes from a function of the study that measured it, so that a chapter and this table cannot disagree. A claim
of several measurements replicates if all of them do: `by_claim` takes the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd

from workbook.statistics import Interval, sample_sizes, verdict
from workbook.studies.bench import SCALES
from workbook.topics.coupling import study as coupling
from workbook.topics.credit import study as credit
from workbook.topics.flips import study as flips

NOT_MEASURED = "not measured"
LARGER = "larger"  # than what a CPU can be asked to measure; no study has it yet
NO_GAP = "no prompt has both boosted and suppressed tokens of this kind"
SHARED = "movement of shared tokens / of those in positive rollouts alone"
COLUMNS = ("claim", "study", "measured", "stated", *Interval._fields, "verdict", "seeds", "n", "reason")
WORST_FIRST = ("does not replicate", "met", "inconclusive", NOT_MEASURED, "not met", "replicates")  # met: a falsifier
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
    """Every measurement of `CLAIMS` at a scale, with `COLUMNS`.

    stated: the threshold, as it was written down before the measurement.  seeds, n: what the interval rests on, n
    counting the prompts of all seeds.  reason: why it is "not measured", or worse than its interval; a measurement of
    which the study holds no table, or too few rows, is "not measured".  Raises ValueError for an unknown scale.
    """
    known_scale(scale)
    rows = [*_flips(scale), *_coupling(scale), *_credit(scale)]
    order = {claim: place for place, claim in enumerate(CLAIMS)}
    return pd.DataFrame(rows, columns=COLUMNS).sort_values("claim", key=lambda c: c.map(order), kind="stable")


def known_scale(scale: str) -> None:
    """Raise a ValueError unless something could be measured at this scale."""
    if scale not in (*SCALES, LARGER):
        raise ValueError(f"scale={scale!r} is unknown: choose one of {', '.join((*SCALES, LARGER))}.")


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
        distance = partial(flips.flip_distance_of, scale, **settings)
        yield judged_row(claim, "flips", told, distance, below=alike)
    yield judged_row("H5", "flips", SHARED, lambda: flips.shared_ratio(scale), below=half)
    told = "AUROC for dlogp: coupled index less own advantage"
    yield judged_row("H5", "flips", told, lambda: flips.index_advantage(scale), above=0)
    if scale not in ("smollm2", LARGER):  # true credit is known of the chain task alone
        told = "AUROC for true credit: coupled index less own advantage"
        yield judged_row("H5", "flips", told, lambda: flips.index_advantage(scale, "credit"), above=0)
    told = "nats per unit of advantage dealt to the token elsewhere"
    yield judged_row("R3", "flips", told, lambda: flips.composition_effect(scale), above=0)


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
    told = "nats by which the same token elsewhere follows"
    yield judged_row("H3", "coupling", told, lambda: coupling.follow_times(scale)[0], above=0)
    told = "fall of SGD's movement / fall of AdamW's, when a sure token pushes instead of an unsure one"
    yield judged_row("H10", "coupling", told, lambda: coupling.hidden_by_adam(scale), above=times)


def _credit(scale: str) -> Iterator[tuple]:
    try:
        found = credit.credit_verdicts(scale)
    except ValueError as missing:
        for claim in ("H6", "H7", "H8", "H9", "R1", "R4"):
            yield unmeasured(claim, "credit", CLAIMS[claim], "", missing)
        return
    found = found[~found["where"].str.contains("adamw")]
    for claim, where in _gaps_asked():
        if not ((found["claim"] == claim) & (found["where"] == where)).any():
            yield unmeasured(claim, "credit", where, "> 0", NO_GAP)
    for row in found.itertuples():
        below = row.claim == "H6" and row.where.startswith("formatting")
        interval = Interval(row.mean, row.low, row.high)
        stated, threshold = ("< 0", {"below": 0}) if below else ("> 0", {"above": 0})
        reason = "" if np.isfinite(row.mean) else NO_GAP
        if reason == "" and row.verdict != verdict(interval, **threshold):
            reason = f"fewer than {credit.LEAST} prompts"
        numbers = (*interval, row.verdict, row.seeds, row.prompts, reason)
        yield (row.claim, "credit", row.where, stated, *numbers)


def _gaps_asked() -> Iterator[tuple[str, str]]:
    """Claim and measurement of every gap in value that is asked for, whether some prompt has it or not."""
    for pool, claim in {"training": "H7", "held-out": "R4"}.items():
        for sign in ("positive", "negative"):
            where = f"{sign} rollouts, {pool} prompts, sgd"
            yield claim, where
            yield "R1", f"{where}, frequencies matched"
        for sign in ("all", "positive", "negative"):
            yield "H9", f"per step, {sign} rollouts, {pool} prompts"


def judged_row(
    claim: str, study: str, measured: str, measure: Callable[[], Interval], judge: Callable = verdict, **threshold
) -> tuple:
    """A row of `COLUMNS`: what `measure` gives, and what `judge` says of it beside one threshold, above or below."""
    stated = " ".join(f"{'>' if name == 'above' else '<'} {value:g}" for name, value in threshold.items())
    try:
        with sample_sizes() as sizes:
            found = measure()
    except ValueError as missing:  # the study holds no such table, or no prompt in which the kinds occur
        return unmeasured(claim, study, measured, stated, missing)
    return (claim, study, measured, stated, *found, judge(found, **threshold), *sizes[0], "")


def unmeasured(claim: str, study: str, measured: str, stated: str, reason) -> tuple:
    """A row of `COLUMNS` without numbers."""
    return (claim, study, measured, stated, *[np.nan] * 3, NOT_MEASURED, np.nan, np.nan, str(reason))


def _worst_row(claim: str, measured: str, measure: Callable[[], pd.DataFrame], above: float) -> tuple:
    """A claim about several kinds at once, judged as chapter 06 does; the numbers are those of its weakest kind."""
    try:
        with sample_sizes() as sizes:
            rows = measure()
        if rows.empty:
            raise ValueError("no prompt has pairs of both kinds.")
    except ValueError as missing:
        return unmeasured(claim, "coupling", measured, f"> {above:g}", missing)
    place = rows["low"].to_numpy().argmin()  # the kind that a claim about all of them fails by first
    worst, said = Interval(*rows.iloc[place][list(Interval._fields)]), coupling.judged(rows, above)
    reason = "" if said == verdict(worst, above=above) else f"a kind with fewer than {coupling.LEAST} prompts"
    return (claim, "coupling", measured, f"> {above:g}", *worst, said, *sizes[-len(rows) :][place], reason)
