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

import numpy as np
import pandas as pd
import torch

from workbook.theory.choices import TRANSFORMS
from workbook.theory.objective import ratio_weights, transform_weights

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")  # the term is min(r A, clip(r) A)
DETACHED = ("cispo", "vespo")  # the term is a constant times A log pi
OWN_LENGTH = ("grpo", "sapo")  # divide by each rollout's own tokens, too
UNCOUNTED = ("truncated", "tool")  # tokens that are outside the loss's mask
MASKS = {
    "truncated": "its completion was cut off, and truncated completions are masked",
    "tool": "a tool wrote it, not the policy",
    "off-policy": "its rollout has drifted too far from the policy that sampled it, and is masked",
    "entropy": "its entropy is below the quantile that is trained on",
}
NEEDED = ("rollout", "position", "ratio", "advantage")
SAPO = {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}  # TRL's defaults, as the next line's
VESPO = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}


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
    kind, row, mask = _loss_type(objective), rows.iloc[index], _stopped(rows).iloc[index]
    rollout = rows[rows["rollout"] == row["rollout"]]
    counted = rollout[~_stopped(rollout).isin(UNCOUNTED)]
    advantage, divisors = {"A": float(row["advantage"])}, {"N": _normalizer(objective, row["rollout"])}
    if kind in OWN_LENGTH:
        divisors["T"] = max(len(counted), 1)
    if mask in UNCOUNTED:  # not scored: it may have no ratio
        return LossTerm("no term", f"nothing pushes it: {MASKS[mask]} ({mask})", {"mask": 0.0} | advantage, divisors)
    if not _finite(row, "ratio", "advantage") or row["ratio"] < 0:
        raise ValueError(
            f"it needs a ratio of at least 0 and an advantage; this token has {row['ratio']} and {row['advantage']}."
        )
    term, reason, factors = _slope(rows, index, counted, objective)
    if mask in MASKS:
        return LossTerm(term, f"nothing pushes it: {MASKS[mask]} ({mask})", {"mask": 0.0} | advantage, divisors)
    if "w~" not in factors and kind != "vespo":
        factors = factors | (correction := _correction(row, counted, _spreads(objective, rollout)))
        if 0 in correction.values():
            reason = f"{reason}; but the correction for another sampler takes it out (ρ = 0)"
    return LossTerm(term, reason, factors | advantage, divisors)


def describe_push(rows: pd.DataFrame, index: int, objective: dict) -> list[str]:
    """Sentences: the formula with its numbers, the recorded push beside, and how far the step moved the token."""
    try:
        formula = loss_term(rows, index, objective)
    except ValueError as error:
        return [f"No formula: {error}"]
    row = rows.iloc[index]
    level = "a ratio per rollout" if _level(objective) == "sequence" else "a ratio per token"
    lines = [
        f"The loss is {_loss_type(objective)} with {level}: {formula.term}, here with r = {row['ratio']:.7g} and "
        f"A = {row['advantage']:.7g}: {formula.reason}.",
        f"{formula}, with {formula.meaning}.{_beside(formula.push, row)}",
    ]
    if _finite(row, "logp", "logp_after"):
        rate = objective.get("learning_rate")
        rate = f" (learning rate {rate:.3g})" if _is_number(rate) else ""
        moved = row["logp_after"] - row["logp"]
        lines.append(
            f"With all pushes together, the step{rate} moved its log-probability by {moved:+.4g}, from "
            f"{row['logp']:.4g} to {row['logp_after']:.4g} nats."
        )
    return lines


def _beside(push: float, row: pd.Series) -> str:
    """The recorded push beside the formula's, a sentence if they differ; "" without one."""
    if not _finite(row, "push"):
        return ""
    if math.isclose(push, row["push"], rel_tol=1e-3, abs_tol=1e-12):
        return f" Recorded in training: {_signed(row['push'])}."
    return f" Recorded in training: {_signed(row['push'])}; something that this formula does not have acts on it, too."


# -- the slope of the loss's term -------------------------------------------------------------------------------


def _slope(rows, index, counted, objective) -> tuple[str, str, dict[str, float]]:
    """The term in symbols, why the token's slope is what it is, and the slope as factors."""
    kind, row = _loss_type(objective), rows.iloc[index]
    r, a = float(row["ratio"]), float(row["advantage"])
    if transform := objective.get("group_transform"):
        return _transformed(rows, index, objective, transform)
    if kind == "cispo":
        most = _number(objective, "epsilon_high")
        reason = f"r is above {most:g} and held there, a constant" if r > most else f"r is below its bound {most:g}"
        return f"min(r, {most:g}) A log π", reason, {"min(r, ε)": min(r, most)}
    if kind == "sapo":
        t = _number(objective, "sapo_temperature_pos" if a > 0 else "sapo_temperature_neg", SAPO)
        soft = 1 / (1 + _exp(-t * (r - 1)))
        reason = f"a soft gate stands in for the clip: σ = {soft:.7g}"
        return f"4/τ σ(τ (r − 1)) A with τ = {t:g}", reason, {"4 σ (1 − σ)": 4 * soft * (1 - soft), "r": r}
    if kind == "vespo":
        phi, w = _phi(counted, a, objective)
        return "φ(w) A log π", f"its rollout's w = {w:.7g} sets φ, a constant", {"φ": phi}
    stopped, reason = _clip(r, a, objective)
    low, high = _bounds(objective)
    symmetric = objective.get("clipping") == "symmetric"
    term = f"clip(r, {low:g}, {high:g}) A" if symmetric else f"min(r A, clip(r, {low:g}, {high:g}) A)"
    if objective.get("delta") is not None:
        term = term.replace("r A,", f"min(r, {_number(objective, 'delta'):g}) A,")
    return term, reason, {"w": 0.0} if stopped else {"r": r}


def _clip(r: float, a: float, objective: dict) -> tuple[bool, str]:
    """Whether the clip stops a token's gradient, and why."""
    low, high = _bounds(objective)
    below, above = r < low, r > high
    delta = objective.get("delta")
    if a == 0:
        return False, "its advantage is 0 (no advantage)"
    if not below and not above:
        return False, f"r is inside {low:g} to {high:g}, so nothing is clipped"
    place = f"r is {'above' if above else 'below'} {high if above else low:g}"
    name = "clip high" if above else "clip low"
    if objective.get("clipping") == "symmetric":
        return True, f"{place}, where clip(r) is constant: clipped ({name})"
    if above and delta is not None and r > _number(objective, "delta"):
        return True, f"r is above delta = {_number(objective, 'delta'):g}, so both sides are constant: clipped ({name})"
    if above == (a > 0):
        return (
            True,
            f"{place} and A {'>' if a > 0 else '<'} 0, so clip(r) A is the smaller, a constant: clipped ({name})",
        )
    return False, f"{place}, but A {'>' if a > 0 else '<'} 0, so r A is the smaller: not clipped"


def _phi(counted: pd.DataFrame, a: float, objective: dict) -> tuple[float, float]:
    """VESPO's gamma weight e^(lambda + k log w - lambda w) of a rollout, and w, the product of its ratios."""
    if missing := [name for name in ("logp", "old_logp") if name not in counted]:
        raise ValueError(f"it needs the column(s) {', '.join(missing)}.")
    ratios = (counted["logp"].astype(float) - counted["old_logp"].astype(float)).clip(-20, 20).sum()
    correction = np.log(_importance(counted).clip(lower=1e-8)).clip(upper=20).sum()
    log_w = min(max(ratios + correction, math.log(1e-8)), 20.0)
    sign = "pos" if a >= 0 else "neg"
    k, scale = (_number(objective, f"vespo_{name}_{sign}", VESPO) for name in ("k", "lambda"))
    scale = max(scale, 1e-4)
    phi = _exp(scale + k * log_w - scale * math.exp(log_w))
    return phi if math.isfinite(phi) else 0.0, math.exp(log_w)


def _transformed(rows, index, objective, transform) -> tuple[str, str, dict[str, float]]:
    """The weight w~ that a group transform gave a token, worked out from its group's ratios."""
    if transform not in TRANSFORMS:
        raise ValueError(f"group_transform={str(transform)[:40]!r} is none of {', '.join(TRANSFORMS)}.")
    clip, level = (_number(objective, "epsilon_low"), _number(objective, "epsilon_high")), _level(objective)
    clamp = objective.get("transform_on", "clamped_ratios") == "clamped_ratios"
    on = (~_stopped(rows).isin(UNCOUNTED)).astype(float)
    columns = {"ratio": np.log(rows["ratio"].astype(float)), "A": rows["advantage"], "rho": _importance(rows), "on": on}
    log_ratio, a, rho, on = (_grid(rows, column) for column in columns.values())  # (G, T)
    weights = rho * ratio_weights(
        log_ratio, torch.zeros_like(a), on, a, level, clip, objective.get("clipping", "asymmetric"), clamp
    )
    whole = level == "sequence" and _is_constant(rows, "advantage") and _is_constant(rows, "importance")
    own = a.gather(1, on.argmax(1, keepdim=True))[:, 0] if whole else a
    changed = transform_weights(weights, transform, own, torch.zeros(len(a)), on, whole)
    row, position = pd.factorize(rows["rollout"])[0][index], int(rows["position"].rank(method="dense").iloc[index]) - 1
    before, after = float(weights[row, position]), float(changed[row, position])
    held = f"r inside {1 - clip[0]:g} to {1 + clip[1]:g}" if clamp else "r, 0 where clipped"
    where = "its group" if whole else "its group at its position"
    return (
        f"w~ A, w = {held}",
        f"its w = {before:.7g} became w~ = {after:.7g} by {transform} over {where}",
        {"w~": after},
    )


def _grid(rows: pd.DataFrame, column: pd.Series) -> torch.Tensor:
    """A column as (rollouts, positions), 0 where a rollout has no token."""
    cells = column.astype(float).set_axis([pd.factorize(rows["rollout"])[0], rows["position"]]).unstack()
    return torch.from_numpy(cells.fillna(0.0).to_numpy(copy=True))


# -- masks and corrections ----------------------------------------------------------------------------------------


def _spreads(objective: dict, rollout: pd.DataFrame) -> bool:
    """Whether a rollout's one ratio takes its gradient from all of the rollout's terms, and spreads it evenly."""
    averaged = _loss_type(objective) not in DETACHED and objective.get("clipping") != "symmetric"
    if _level(objective) != "sequence" or not averaged or rollout["advantage"].nunique() > 1:
        return False
    if (quantile := objective.get("top_entropy_quantile", 1)) != 1:
        raise ValueError(
            f"under one ratio per rollout, top_entropy_quantile={str(quantile)[:40]} scales each token's push by the "
            "share of its rollout's tokens that are trained on, which no table holds."
        )
    return True


def _correction(row: pd.Series, counted: pd.DataFrame, spreads: bool) -> dict[str, float]:
    """The importance ratio as a factor; its mean over the rollout's terms where these share a gradient."""
    if spreads:
        mean = float(_importance(counted).mean())
        return {} if mean == 1 else {"mean ρ": mean}
    rho = float(row.get("importance", 1.0))
    return {} if rho == 1 or not math.isfinite(rho) else {"ρ": rho}


def _stopped(rows: pd.DataFrame) -> pd.Series:
    return rows["stopped"].astype(str) if "stopped" in rows else pd.Series("", index=rows.index)


def _importance(rows: pd.DataFrame) -> pd.Series:
    return rows["importance"].astype(float).fillna(1.0) if "importance" in rows else pd.Series(1.0, index=rows.index)


def _is_constant(rows: pd.DataFrame, name: str) -> bool:
    """Whether a column has one value in each rollout."""
    return name not in rows or bool((rows.groupby("rollout", sort=False)[name].nunique(dropna=False) == 1).all())


# -- the objective, which may come from anybody's file ------------------------------------------------------------


def _loss_type(objective: dict) -> str:
    kind = objective.get("loss_type")
    if kind not in (*CLIPPED, *DETACHED, "sapo"):
        raise ValueError(f"loss_type={str(kind)[:40]!r} is none of {', '.join((*CLIPPED, *DETACHED, 'sapo'))}.")
    return kind


def _level(objective: dict) -> str:
    return objective.get("level", "token")


def _bounds(objective: dict) -> tuple[float, float]:
    return 1 - _number(objective, "epsilon_low"), 1 + _number(objective, "epsilon_high")


def _normalizer(objective: dict, rollout) -> float:
    """N of the token's micro-batch: one number, or a mapping of rollouts to theirs."""
    n = objective.get("normalizer")
    n = n.get(str(rollout), n.get(rollout)) if isinstance(n, dict) else n
    if not _is_number(n) or n <= 0:
        raise ValueError(f"normalizer={str(n)[:40]!r} must be a number above 0.")
    return float(n)


def _number(objective: dict, name: str, defaults: dict | None = None) -> float:
    value = objective.get(name, (defaults or {}).get(name))
    if not _is_number(value):
        raise ValueError(f"{name}={str(value)[:40]!r} must be a number.")
    return float(value)


def _product(numbers) -> str:
    """Numbers as they stand in a formula, with the digits that a float32 has."""
    return " · ".join(f"({x:.7g})" if x < 0 else f"{x:.7g}" for x in numbers)


def _signed(x: float) -> str:
    return f"{x:+.4g}" if x else "0"


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def _finite(row: pd.Series, *names: str) -> bool:
    return all(name in row and pd.api.types.is_number(row[name]) and math.isfinite(row[name]) for name in names)
