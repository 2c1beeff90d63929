"""The arena's table and claims: a row per rule, each number with a 95 % t interval over units (policy x seed).

    score = (rule - permuted) / (oracle - permuted)        of held-out exact value at equal sampled tokens

is 0 for advantages that know nothing of the reward and 1 for the true credit of every token. Ratios are taken of means
over units, with jackknife pseudo-values for their intervals; other columns are means of units.

Claims. A1: ours.  P1: prefix credit (arXiv 2509.21154, our reading).  P2: IBPO (arXiv 2605.16302) as our reading has
it, its continuations counted.  P3: its edit mask alone. Each is compared with the group advantage that it starts from.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from workbook.statistics import pseudo_values, t_interval
from workbook.studies.record import Tables

UPPER, PLAIN, LOWER = "oracle", "dr_grpo", "permuted"  # bounds of what a rule can get, and plain group credit
KEYS = ["seed", "rule", "match"]
READ = ("batch", "value", "sampled_tokens", "seconds", "moved", "tax", "budget")  # columns of runs
START = "start"  # the value before training
MEANS = ("correlation", "auroc", "where")  # columns of marks whose mean over units is shown


def outcomes(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per unit (seed), rule and match: value and area at the budget, start (the value before), step_s (seconds of
    a batch with its step), batches, moved (rms change of a batch's log-probabilities by its own step, nats), tax (mean
    KL of style words from the start, at the budget, nats a word).

    runs: rows of `unit_tables` with the columns seed and budget. value is on a straight line between two readings, area
    its mean on the way; a run that ended before the budget counts with what it had at its end.
    """
    rows = []
    for keys, run in runs.sort_values("batch", kind="stable").groupby(KEYS, sort=False):
        batch, value, tokens, seconds, moved, tax, (budget, *_) = (run[name].to_numpy(float) for name in READ)
        places = np.append(tokens[tokens < budget], budget)
        curve = np.interp(places, tokens, value)
        known = {"value": curve[-1], "area": np.trapezoid(curve, places) / budget, START: value[0]}
        known |= {"step_s": seconds[-1] / batch[-1], "batches": batch[-1], "moved": np.nanmean(moved)}
        known |= {"tax": np.interp(budget, tokens, tax)}
        rows.append(dict(zip(KEYS, keys, strict=True)) | known)
    return pd.DataFrame(rows)


def wide(ends: pd.DataFrame, column: str = "value", match: str = "grad_norm") -> pd.DataFrame:
    """A column of `outcomes`, a row per unit and a column per rule."""
    return ends[ends["match"] == match].pivot(index="seed", columns="rule", values=column)


def score_units(
    ends: pd.DataFrame, rule: str, column: str = "value", match: str = "grad_norm", floor: str = LOWER
) -> pd.Series:
    """Pseudo-values of a rule's score, one per unit that trained the rule and both bounds.

    floor: what counts as 0, permuted advantages or START, no training at all.  Raises ValueError for fewer than two
    units.
    """
    values = wide(ends, column, match).assign(**{START: wide(ends, "start", match)[UPPER]})
    values = values[list(dict.fromkeys((floor, rule, UPPER)))].dropna().reset_index()

    def score(units: pd.DataFrame) -> float:
        return float((units[rule] - units[floor]).mean() / (units[UPPER] - units[floor]).mean())

    return pseudo_values(values, score)


def ratio_units(marks: pd.DataFrame, rule: str, name: str) -> pd.Series:
    """Pseudo-values of one of RATIOS of a rule, one per unit.

    Raises ValueError for fewer than two units, and where the ratio hangs on noise: it is not there without one of them.
    """
    own = marks.loc[marks["rule"] == rule, ["seed", "along", "mean2", "total2"]]
    values = pseudo_values(own, lambda units: float(RATIOS[name](units.mean())))
    if values.isna().any():
        raise ValueError(f"{rule}: no mean update is left above the noise, so its {name} is not known.")
    return values


RATIOS: dict[str, Callable[[pd.Series], float]] = {  # of means over units; NaN where no update is left above the noise
    "cosine": lambda means: means["along"] / np.sqrt(max(means["mean2"], 0.0) or np.nan),
    "one": lambda means: means["along"] / np.sqrt(means["total2"] or np.nan),
    "noise": lambda means: (means["total2"] - means["mean2"]) / (means["mean2"] if means["mean2"] > 0 else np.nan),
}


def arena_table(marks: pd.DataFrame, runs: pd.DataFrame, match: str = "grad_norm") -> pd.DataFrame:
    """A row per rule, best score first: units, and for each measure its mean, low and high (NaN below two units).

    Measures: score; gain, the share of the oracle's gain over the start; over_plain, exact held-out reward at the
    budget minus that of plain group credit in the same units; tax, how far style words moved over how far plain group
    credit moved them, a geometric mean; value, that reward itself; cosine, of the mean update with the ideal one; one,
    of one batch's update with it; noise, squared, per squared signal; correlation, auroc and where, of advantages and
    true credit; step_s, seconds of a batch and its step; batches, that the budget paid for.
    """
    ends = outcomes(runs)
    values, taxes, rows = wide(ends, "value", match), wide(ends, "tax", match), []
    for rule in dict.fromkeys([*ends["rule"], *marks["rule"]]):
        own, of_rule = ends[(ends["rule"] == rule) & (ends["match"] == match)], marks[marks["rule"] == rule]
        measures = {
            "score": partial(score_units, ends, rule, "value", match),
            "gain": partial(score_units, ends, rule, "value", match, START),
            "over_plain": lambda rule=rule: values[rule] - values[PLAIN],
            "tax": lambda rule=rule: np.log(taxes[rule] / taxes[PLAIN]),
            **{name: own[name].copy for name in ("value", "step_s", "batches")},
            **{name: partial(ratio_units, marks, rule, name) for name in RATIOS},
            **{name: of_rule[name].copy for name in MEANS},
        }
        row = {"rule": rule, "units": len(own)}
        for name, units in measures.items():
            row |= _spread(name, units)
        rows.append(row)
    return pd.DataFrame(rows).sort_values("score", ascending=False, kind="stable", ignore_index=True)


def _spread(name: str, units: Callable[[], pd.Series]) -> dict[str, float]:
    """Columns name, name_low and name_high: mean and t interval of units' values; NaN for what is not there."""
    try:
        values = units().astype(float).dropna()
    except (KeyError, ValueError):  # a rule that was not trained, or in fewer than two units
        values = pd.Series(dtype=float)
    spread = t_interval(values.to_numpy()) if len(values) > 1 else (float(values.mean()), np.nan, np.nan)
    spread = np.exp(spread) if name == "tax" else spread
    return dict(zip((name, f"{name}_low", f"{name}_high"), spread, strict=True))


def headline(table: pd.DataFrame) -> str:
    """The arena's answer: how much of the oracle's gain plain group credit gets, and which rule pays the most tax."""
    row, most = table.set_index("rule").loc[PLAIN], table.loc[table["tax"].idxmax()]
    share = f"{100 * row['gain']:.0f} % [{100 * row['gain_low']:.0f}, {100 * row['gain_high']:.0f}]"
    times = f"{most['tax']:.1f} [{most['tax_low']:.1f}, {most['tax_high']:.1f}]"
    return (
        f"Plain group advantages ({PLAIN}) gain {share} of what the true credit of every token gains. "
        f"No rule pays more tax than {most['rule']}: style words, which carry no credit, move {times} times as far."
    )


# -- what is stated -------------------------------------------------------------------------------------------------


def scored(tables: Tables, rule: str, **settings) -> pd.Series:
    """Pseudo-values of a rule's score; settings: of `score_units`."""
    return score_units(outcomes(tables["arena/runs"]), rule, **settings)


def gap(tables: Tables, rule: str, base: str, column: str = "value") -> pd.Series:
    """A column per unit, rule minus base: of the marks, or of `outcomes` at equal sampled tokens."""
    marked = column == "correlation"
    ends = tables["arena/marks"].assign(match="grad_norm") if marked else outcomes(tables["arena/runs"])
    values = wide(ends, column)
    return values[rule] - values[base]


NEIGHBOURS = {"P1": ("prefix_credit", PLAIN), "P2": ("ibpo", "grpo"), "P3": ("edit_mask", "grpo")}  # rule and its base
OUTCOMES = {"": "value", " mechanism": "correlation", " area": "area"}  # held-out value first, then what a rule knows
MEASURES = {
    "arena": {
        "A1": partial(scored, rule=PLAIN),
        "A1 gain": partial(scored, rule=PLAIN, floor=START),
        "A1 mechanism": lambda tables: ratio_units(tables["arena/marks"], PLAIN, "cosine"),
        "A1 distance": partial(gap, rule=PLAIN, base=UPPER),
        "A1 oracle": partial(gap, rule=UPPER, base=PLAIN),
        "A1 control": partial(gap, rule="coin_reward", base=LOWER),
        "A1 unmatched": partial(scored, rule=PLAIN, match="none"),
        **{
            f"{claim}{name}": partial(gap, rule=rule, base=base, column=column)
            for claim, (rule, base) in NEIGHBOURS.items()
            for name, column in OUTCOMES.items()
        },
    }
}
