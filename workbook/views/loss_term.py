"""A token's push by the loss's own formula, with the numbers of its row put in: what the gradient was, and why.

Every loss of TRL is a sum over tokens, and a token's push is -d loss / d logp. With the ratio r of its row (of its
whole rollout at sequence level), its advantage A, the importance ratio rho of vLLM's correction and the normalizers,

    push = w rho A / (N T_i)        T_i, the rollout's own tokens, for grpo and sapo alone

where w is the slope of the loss's term: r where min(r A, clip(r) A) is not clipped and 0 where it is, min(r, e) for
cispo, 4 sigma (1 - sigma) r for sapo, phi for vespo; after a group transform, w and rho are replaced by w~.

Nothing here reads the recorded push or weight, so that comparing the two says something (`training.meter` has the
exact weights, read from the loss's graph).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pandas as pd

from workbook.views.loss_slopes import (
    UNCOUNTED,
    correction,
    has_numbers,
    is_finite_number,
    loss_type,
    normalizer,
    ratio_level,
    slope,
    spreads,
    stopped_by,
)

OWN_LENGTH = ("grpo", "sapo")  # divide by each rollout's own tokens, too
MASKS = {
    "truncated": "its completion was cut off, and truncated completions are masked",
    "tool": "a tool wrote it, not the policy",
    "off-policy": "its rollout has drifted too far from the policy that sampled it, and is masked",
    "entropy": "its entropy is below the quantile that is trained on",
}
NEEDED = ("rollout", "position", "ratio", "advantage")


@dataclass(frozen=True)
class LossTerm:
    """push = the product of `factors` / the product of `divisors`; keys are their symbols.

    term: the loss's term in symbols.  reason: what stopped the gradient, or why nothing did.
    """

    term: str
    reason: str
    factors: dict[str, float]
    divisors: dict[str, float] = field(default_factory=dict)

    @property
    def push(self) -> float:
        """-d loss / d logp, per nat."""
        return math.prod(self.factors.values()) / math.prod(self.divisors.values())

    @property
    def meaning(self) -> str:
        """What the divisors are."""
        own = " and T its rollout's tokens" if "T" in self.divisors else ""
        return f"N the normalizer of its micro-batch{own}"

    def __str__(self) -> str:
        fraction = "{} / ({})" if len(self.divisors) > 1 else "{} / {}"
        symbols = fraction.format(" · ".join(self.factors), " · ".join(self.divisors))
        numbers = fraction.format(*(_product(part.values()) for part in (self.factors, self.divisors)))
        return f"push = {symbols} = {numbers} = {_signed(self.push)}"


def loss_term(rows: pd.DataFrame, index: int, objective: dict) -> LossTerm:
    """The loss's formula for token number `index` of `rows`.

    rows: the token table of its whole group, columns rollout, position, ratio, advantage, and where they matter
    importance, stopped, logp and old_logp.  objective: loss_type, level, normalizer N and what else the loss reads, as
    a run records it in its tables' `attrs`.

    Raises ValueError for an objective or a row without the numbers that the formula needs.

    >>> group = pd.DataFrame({"rollout": [0, 1], "position": 0, "ratio": [1.5, 1.0], "advantage": [-0.5, 0.5]})
    >>> run = {"loss_type": "dr_grpo", "epsilon_low": 0.2, "epsilon_high": 0.2, "normalizer": 96}
    >>> print(loss_term(group, 0, run))
    push = r · A / N = 1.5 · (-0.5) / 96 = -0.007812
    """
    rows = rows.reset_index(drop=True)
    if missing := [name for name in NEEDED if name not in rows]:
        raise ValueError(f"it needs the column(s) {', '.join(missing)}.")
    kind, row, mask = loss_type(objective), rows.iloc[index], stopped_by(rows).iloc[index]
    rollout = rows[rows["rollout"] == row["rollout"]]
    counted = rollout[~stopped_by(rollout).isin(UNCOUNTED)]
    advantage, divisors = {"A": float(row["advantage"])}, {"N": normalizer(objective, row["rollout"])}
    if kind in OWN_LENGTH:
        divisors["T"] = max(len(counted), 1)
    if mask in UNCOUNTED:  # not scored: it may have no ratio
        return LossTerm("no term", f"nothing pushes it: {MASKS[mask]} ({mask})", {"mask": 0.0} | advantage, divisors)
    if not has_numbers(row, "ratio", "advantage") or row["ratio"] < 0:
        raise ValueError(
            f"it needs a ratio of at least 0 and an advantage; this token has {row['ratio']} and {row['advantage']}."
        )
    term, reason, factors = slope(rows, index, counted, objective)
    if mask in MASKS:
        return LossTerm(term, f"nothing pushes it: {MASKS[mask]} ({mask})", {"mask": 0.0} | advantage, divisors)
    if "w~" not in factors and kind != "vespo":
        factors = factors | (importance := correction(row, counted, spreads(objective, rollout)))
        if 0 in importance.values():
            reason = f"{reason}; but the correction for another sampler takes it out (ρ = 0)"
    return LossTerm(term, reason, factors | advantage, divisors)


def describe_push(rows: pd.DataFrame, index: int, objective: dict) -> list[str]:
    """Sentences: the formula with its numbers, the recorded push beside, and how far the step moved the token."""
    try:
        formula = loss_term(rows, index, objective)
    except ValueError as error:
        return [f"No formula: {error}"]
    row = rows.iloc[index]
    level = "a ratio per rollout" if ratio_level(objective) == "sequence" else "a ratio per token"
    here = f", here with r = {row['ratio']:.7g} and A = {row['advantage']:.7g}" if has_numbers(row, "ratio") else ""
    lines = [
        f"The loss is {loss_type(objective)} with {level}: {formula.term}{here}: {formula.reason}.",
        f"{formula}, with {formula.meaning}.{'' if objective.get('computed') else _beside(formula.push, row)}",
    ]
    if has_numbers(row, "logp", "logp_after"):
        rate = objective.get("learning_rate")
        rate = f" (learning rate {rate:.3g})" if is_finite_number(rate) else ""
        moved = row["logp_after"] - row["logp"]
        lines.append(
            f"With all pushes together, the step{rate} moved its log-probability by {moved:+.4g}, from "
            f"{row['logp']:.4g} to {row['logp_after']:.4g} nats."
        )
    return lines


def _beside(push: float, row: pd.Series) -> str:
    """The recorded push beside the formula's, a sentence if they differ; "" without one."""
    if not has_numbers(row, "push"):
        return ""
    if math.isclose(push, row["push"], rel_tol=1e-3, abs_tol=1e-12):
        return f" Recorded in training: {_signed(row['push'])}."
    return f" Recorded in training: {_signed(row['push'])}; something that this formula does not have acts on it, too."


def _product(numbers) -> str:
    """Numbers as they stand in a formula, with the digits that a float32 has."""
    return " · ".join(f"({x:.7g})" if x < 0 else f"{x:.7g}" for x in numbers)


def _signed(x: float) -> str:
    return f"{x:+.4g}" if x else "0"
