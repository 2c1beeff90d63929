"""The slope of a loss's term at one token, read from a token table and the objective that stands in it.

Both may come from anybody's file: what is missing or no number is a ValueError, one sentence of `loss_term`'s.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch

from workbook.theory.choices import TRANSFORMS
from workbook.theory.objective import ratio_weights, transform_weights

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")  # the term is min(r A, clip(r) A)
DETACHED = ("cispo", "vespo")  # the term is a constant times A log pi
UNCOUNTED = ("truncated", "tool")  # tokens that are outside the loss's mask
SAPO = {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}  # TRL's defaults, as the next line's
VESPO = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}


def slope(rows, index, counted, objective) -> tuple[str, str, dict[str, float]]:
    """The term in symbols, why the token's slope is what it is, and the slope as factors."""
    kind, row = loss_type(objective), rows.iloc[index]
    r, a = float(row["ratio"]), float(row["advantage"])
    if transform := objective.get("group_transform"):
        return _transformed(rows, index, objective, transform)
    if kind == "cispo":
        most = number_of(objective, "epsilon_high")
        reason = f"r is above {most:g} and held there, a constant" if r > most else f"r is below its bound {most:g}"
        return f"min(r, {most:g}) A log π", reason, {"min(r, ε)": min(r, most)}
    if kind == "sapo":
        t = number_of(objective, "sapo_temperature_pos" if a > 0 else "sapo_temperature_neg", SAPO)
        soft = 1 / (1 + _exp(-t * (r - 1)))
        reason = f"a soft gate stands in for the clip: σ = {soft:.7g}"
        return f"4/τ σ(τ (r − 1)) A with τ = {t:g}", reason, {"4 σ (1 − σ)": 4 * soft * (1 - soft), "r": r}
    if kind == "vespo":
        phi, w = phi_weight(counted, a, objective)
        return "φ(w) A log π", f"its rollout's w = {w:.7g} sets φ, a constant", {"φ": phi}
    stopped, reason = _clip(r, a, objective)
    low, high = bounds(objective)
    symmetric = objective.get("clipping") == "symmetric"
    term = f"clip(r, {low:g}, {high:g}) A" if symmetric else f"min(r A, clip(r, {low:g}, {high:g}) A)"
    if objective.get("delta") is not None:
        term = term.replace("r A,", f"min(r, {number_of(objective, 'delta'):g}) A,")
    return term, reason, {"w": 0.0} if stopped else {"r": r}


def _clip(r: float, a: float, objective: dict) -> tuple[bool, str]:
    """Whether the clip stops a token's gradient, and why."""
    low, high = bounds(objective)
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
    if above and delta is not None and r > number_of(objective, "delta"):
        return (
            True,
            f"r is above delta = {number_of(objective, 'delta'):g}, so both sides are constant: clipped ({name})",
        )
    sign = f"A {'>' if a > 0 else '<'} 0"
    if above == (a > 0):
        return True, f"{place} and {sign}, so clip(r) A is the smaller, a constant: clipped ({name})"
    return False, f"{place}, but {sign}, so r A is the smaller: not clipped"


def phi_weight(counted: pd.DataFrame, a: float, objective: dict) -> tuple[float, float]:
    """VESPO's gamma weight e^(lambda + k log w - lambda w) of a rollout, and w, the product of its ratios."""
    if missing := [name for name in ("logp", "old_logp") if name not in counted]:
        raise ValueError(f"it needs the column(s) {', '.join(missing)}.")
    ratios = (counted["logp"].astype(float) - counted["old_logp"].astype(float)).clip(-20, 20).sum()
    correction = np.log(_importance(counted).clip(lower=1e-8)).clip(upper=20).sum()
    log_w = min(max(ratios + correction, math.log(1e-8)), 20.0)
    sign = "pos" if a >= 0 else "neg"
    k, scale = (number_of(objective, f"vespo_{name}_{sign}", VESPO) for name in ("k", "lambda"))
    scale = max(scale, 1e-4)
    phi = _exp(scale + k * log_w - scale * math.exp(log_w))
    return phi if math.isfinite(phi) else 0.0, math.exp(log_w)


def _transformed(rows, index, objective, transform) -> tuple[str, str, dict[str, float]]:
    """The weight w~ that a group transform gave a token, worked out from its group's ratios."""
    weights, changed, whole = transformed_weights(rows, objective, transform)
    before, after = weights[index], changed[index]
    clip = number_of(objective, "epsilon_low"), number_of(objective, "epsilon_high")
    clamp = objective.get("transform_on", "clamped_ratios") == "clamped_ratios"
    held = f"r inside {1 - clip[0]:g} to {1 + clip[1]:g}" if clamp else "r, 0 where clipped"
    where = "its group" if whole else "its group at its position"
    reason = f"its w = {before:.7g} became w~ = {after:.7g} by {transform} over {where}"
    return f"w~ A, w = {held}", reason, {"w~": after}


def transformed_weights(rows: pd.DataFrame, objective: dict, transform) -> tuple[np.ndarray, np.ndarray, bool]:
    """w and w~ of each token of one group, and whether a rollout's tokens were transformed as one."""
    if transform not in TRANSFORMS:
        raise ValueError(f"group_transform={str(transform)[:40]!r} is none of {', '.join(TRANSFORMS)}.")
    clip = number_of(objective, "epsilon_low"), number_of(objective, "epsilon_high")
    clamp, level = objective.get("transform_on", "clamped_ratios") == "clamped_ratios", ratio_level(objective)
    on = (~stopped_by(rows).isin(UNCOUNTED)).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_ratio = np.log(rows["ratio"].astype(float))
    columns = (log_ratio, rows["advantage"], _importance(rows), on)
    log_ratio, a, rho, on = (_grid(rows, column) for column in columns)  # (G, T)
    weights = rho * ratio_weights(
        log_ratio, torch.zeros_like(a), on, a, level, clip, objective.get("clipping", "asymmetric"), clamp
    )
    whole = level == "sequence" and _is_constant(rows, "advantage") and _is_constant(rows, "importance")
    own = a.gather(1, on.argmax(1, keepdim=True))[:, 0] if whole else a
    changed = transform_weights(weights, transform, own, torch.zeros(len(a)), on, whole)
    places = pd.factorize(rows["rollout"])[0], rows["position"].rank(method="dense").astype(int).to_numpy() - 1
    return weights.numpy()[places], changed.numpy()[places], whole


def _grid(rows: pd.DataFrame, column: pd.Series) -> torch.Tensor:
    """A column as (rollouts, positions), 0 where a rollout has no token."""
    cells = column.astype(float).set_axis([pd.factorize(rows["rollout"])[0], rows["position"]]).unstack()
    return torch.from_numpy(cells.fillna(0.0).to_numpy(copy=True))


# -- masks and corrections ----------------------------------------------------------------------------------------


def spreads(objective: dict, rollout: pd.DataFrame) -> bool:
    """Whether a rollout's one ratio takes its gradient from all of the rollout's terms, and spreads it evenly."""
    averaged = loss_type(objective) not in DETACHED and objective.get("clipping") != "symmetric"
    if ratio_level(objective) != "sequence" or not averaged or rollout["advantage"].nunique() > 1:
        return False
    if (quantile := objective.get("top_entropy_quantile", 1)) != 1:
        raise ValueError(
            f"under one ratio per rollout, top_entropy_quantile={str(quantile)[:40]} scales each token's push by the "
            "share of its rollout's tokens that are trained on, which no table holds."
        )
    return True


def correction(row: pd.Series, counted: pd.DataFrame, spreads: bool) -> dict[str, float]:
    """The importance ratio as a factor; its mean over the rollout's terms where these share a gradient."""
    if spreads:
        mean = float(_importance(counted).mean())
        return {} if mean == 1 else {"mean ρ": mean}
    rho = float(row.get("importance", 1.0))
    return {} if rho == 1 or not math.isfinite(rho) else {"ρ": rho}


def stopped_by(rows: pd.DataFrame) -> pd.Series:
    """What took each row's gradient away, as text; "" where no table says."""
    return rows["stopped"].astype(str) if "stopped" in rows else pd.Series("", index=rows.index)


def _importance(rows: pd.DataFrame) -> pd.Series:
    return rows["importance"].astype(float).fillna(1.0) if "importance" in rows else pd.Series(1.0, index=rows.index)


def _is_constant(rows: pd.DataFrame, name: str) -> bool:
    """Whether a column has one value in each rollout."""
    return name not in rows or bool((rows.groupby("rollout", sort=False)[name].nunique(dropna=False) == 1).all())


# -- the objective, which may come from anybody's file ------------------------------------------------------------


def loss_type(objective: dict) -> str:
    """TRL's name of the loss."""
    kind = objective.get("loss_type")
    if kind not in (*CLIPPED, *DETACHED, "sapo"):
        raise ValueError(f"loss_type={str(kind)[:40]!r} is none of {', '.join((*CLIPPED, *DETACHED, 'sapo'))}.")
    return kind


def ratio_level(objective: dict) -> str:
    """Whether the ratio is a "token"'s own, or the geometric mean of its "sequence"."""
    return objective.get("level", "token")


def bounds(objective: dict) -> tuple[float, float]:
    return 1 - number_of(objective, "epsilon_low"), 1 + number_of(objective, "epsilon_high")


def normalizer(objective: dict, rollout) -> float:
    """N of the token's micro-batch: one number, or a mapping of rollouts to theirs."""
    n = objective.get("normalizer")
    n = n.get(str(rollout), n.get(rollout)) if isinstance(n, dict) else n
    if not is_finite_number(n) or n <= 0:
        raise ValueError(f"normalizer={str(n)[:40]!r} must be a number above 0.")
    return float(n)


def number_of(objective: dict, name: str, defaults: dict | None = None) -> float:
    value = objective.get(name, (defaults or {}).get(name))
    if not is_finite_number(value):
        raise ValueError(f"{name}={str(value)[:40]!r} must be a number.")
    return float(value)


def _exp(x: float) -> float:
    return math.exp(x) if x < 700 else math.inf


def is_finite_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e300 < value < 1e300


def has_numbers(row: pd.Series, *names: str) -> bool:
    """Whether a row has finite numbers in all these columns."""
    return all(name in row and pd.api.types.is_number(row[name]) and math.isfinite(row[name]) for name in names)
