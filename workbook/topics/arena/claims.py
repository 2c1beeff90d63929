"""The arena's table and claims: a row per rule, each number with a 95 % t interval over units (policy x seed).

    score = (rule - permuted) / (oracle - permuted)        of held-out exact value at equal sampled tokens

is 0 for advantages that know nothing of the reward and 1 for the true credit of every token. Ratios are taken of means
over units, with jackknife pseudo-values for their intervals; other columns are means of units.

Claims. A1: ours.  P1: prefix credit (arXiv 2509.21154, our reading).  P2: IBPO (arXiv 2605.16302) as our reading has
it, its continuations counted.  P3: its edit mask alone. Each is compared with the group advantage that it starts from.
What each row measures, and against which number, stands in data/results/arena/registration.yaml.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from workbook.statistics import pseudo_values, t_interval
from workbook.studies.claim import Claim, Measurement, Tables

STUDY = "arena"
UPPER, PLAIN, LOWER = "oracle", "dr_grpo", "permuted"  # bounds of what a rule can get, and plain group credit
KEYS = ["seed", "rule", "match"]
READ = ("batch", "value", "sampled_tokens", "seconds", "moved", "budget")  # columns of runs
START = "start"  # the value before training
MEANS = ("correlation", "auroc", "where")  # columns of marks whose mean over units is shown


def outcomes(runs: pd.DataFrame) -> pd.DataFrame:
    """A row per unit (seed), rule and match: value and area at the budget, start (the value before), step_s (seconds of
    a batch with its step), batches, moved (rms change of a batch's log-probabilities by its own step, nats).

    runs: rows of `unit_tables` with the columns seed and budget. A run that ended before the budget counts with what it
    had at its end.
    """
    rows = []
    for keys, run in runs.sort_values("batch", kind="stable").groupby(KEYS, sort=False):
        batch, value, tokens, seconds, moved, budget = (run[name].to_numpy(float) for name in READ)
        end, area = at_budget(tokens, value, budget[0])
        known = {"value": end, "area": area, START: value[0], "step_s": seconds[-1] / batch[-1]}
        rows.append(dict(zip(KEYS, keys, strict=True)) | known | {"batches": batch[-1], "moved": np.nanmean(moved)})
    return pd.DataFrame(rows)


def at_budget(tokens: np.ndarray, values: np.ndarray, budget: float) -> tuple[float, float]:
    """Value of a run when its budget was spent, on a straight line between two readings, and the mean on the way.

    tokens, values: of the run's readings, in order; one that ended before its budget counts with its last value.

    >>> value, area = at_budget(np.array([0, 100, 200]), np.array([0.4, 0.5, 0.7]), 150)
    >>> round(value, 3), round(area, 3)
    (0.6, 0.483)
    """
    places = np.append(tokens[tokens < budget], budget)
    curve = np.interp(places, tokens, values)
    return float(curve[-1]), float(np.trapezoid(curve, places) / budget)


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
    values = pseudo_values(marks[marks["rule"] == rule], RATIOS[name])
    if values.isna().any():
        raise ValueError(f"{rule}: no mean update is left above the noise, so its {name} is not known.")
    return values


def _noise(marks: pd.DataFrame) -> float:
    """Squared norm of an update's noise over that of its mean, NaN where no mean update is left above the noise."""
    signal = marks["mean2"].mean()
    return float((marks["total2"].mean() - signal) / (signal if signal > 0 else np.nan))


RATIOS: dict[str, Callable[[pd.DataFrame], float]] = {  # cosine: NaN where no mean update is left above the noise
    "cosine": lambda marks: float(marks["along"].mean() / np.sqrt(max(marks["mean2"].mean(), 0.0) or np.nan)),
    "one": lambda marks: float(marks["along"].mean() / np.sqrt(marks["total2"].mean() or np.nan)),
    "noise": _noise,
}


def arena_table(marks: pd.DataFrame, runs: pd.DataFrame, match: str = "grad_norm") -> pd.DataFrame:
    """A row per rule, best score first: units, and for each measure its mean, low and high (NaN below two units).

    Measures: score; gain, the share of the oracle's gain over the start; over_plain, exact held-out reward at the
    budget minus that of plain group credit in the same units; value, that reward itself; cosine, of the mean update
    with the ideal one; one, of one batch's update with it; noise, squared, per squared signal; correlation, auroc and
    where, of advantages and true credit; step_s, seconds of a batch and its step; batches, that the budget paid for.
    """
    ends = outcomes(runs)
    values, rows = wide(ends, "value", match), []
    for rule in dict.fromkeys([*ends["rule"], *marks["rule"]]):
        own, of_rule = ends[(ends["rule"] == rule) & (ends["match"] == match)], marks[marks["rule"] == rule]
        measures = {
            "score": _or_none(score_units, ends, rule, "value", match),
            "gain": _or_none(score_units, ends, rule, "value", match, START),
            "over_plain": values[rule] - values[PLAIN] if {rule, PLAIN} <= set(values) else None,
            **{name: own[name] for name in ("value", "step_s", "batches")},
            **{name: _or_none(ratio_units, marks, rule, name) for name in RATIOS},
            **{name: of_rule[name] for name in MEANS},
        }
        row = {"rule": rule, "units": len(own)}
        for name, units in measures.items():
            row |= spread(name, units)
        rows.append(row)
    return pd.DataFrame(rows).sort_values("score", ascending=False, kind="stable", ignore_index=True)


def spread(name: str, values: pd.Series | None) -> dict[str, float]:
    """Columns name, name_low and name_high: mean and t interval of units' values; NaN for what is not there."""
    values = pd.Series(dtype=float) if values is None else pd.Series(values).astype(float).dropna()
    if len(values) < 2:
        return {name: float(values.mean()), f"{name}_low": np.nan, f"{name}_high": np.nan}
    return dict(zip((name, f"{name}_low", f"{name}_high"), t_interval(values.to_numpy()), strict=True))


def _or_none(function: Callable, *args) -> pd.Series | None:
    """What a function of units gives, None where there are fewer than two units."""
    try:
        return function(*args)
    except (KeyError, ValueError):
        return None


def headline(table: pd.DataFrame) -> str:
    """The arena's answer in one sentence: how much of the oracle's gain plain group credit gets.

    >>> row = {"rule": "dr_grpo", "units": 30, "gain": 0.7, "gain_low": 0.6, "gain_high": 0.8}
    >>> headline(pd.DataFrame([row]))
    'Plain group advantages (dr_grpo) gain 70 % [60, 80] of what the true credit of every token gains.'
    """
    row = table.set_index("rule").loc[PLAIN]
    interval = f"[{100 * row['gain_low']:.0f}, {100 * row['gain_high']:.0f}]"
    share = f"{100 * row['gain']:.0f} % {interval}"
    return f"Plain group advantages ({PLAIN}) gain {share} of what the true credit of every token gains."


# -- what is stated -------------------------------------------------------------------------------------------------


def scored(tables: Tables, rule: str, **settings) -> pd.Series:
    """Pseudo-values of a rule's score; settings: of `score_units`."""
    return score_units(outcomes(tables[f"{STUDY}/runs"]), rule, **settings)


def value_gap(tables: Tables, rule: str, base: str, column: str = "value") -> pd.Series:
    """Exact held-out value at equal sampled tokens, rule minus base, per unit."""
    values = wide(outcomes(tables[f"{STUDY}/runs"]), column)
    return values[rule] - values[base]


def marks_gap(tables: Tables, rule: str, base: str, column: str = "correlation") -> pd.Series:
    """A column of the marks, rule minus base, per unit."""
    values = tables[f"{STUDY}/marks"].pivot(index="seed", columns="rule", values=column)
    return values[rule] - values[base]


def cosine_units(tables: Tables, rule: str) -> pd.Series:
    """Pseudo-values of the cosine of a rule's mean update with the ideal one."""
    return ratio_units(tables[f"{STUDY}/marks"], rule, "cosine")


def _row(key: str, measure, **settings) -> Measurement:
    return Measurement(STUDY, key, partial(measure, **settings), scales=["family"])


def against(key: str, rule: str, base: str) -> list[Measurement]:
    """A neighbour's rows: held-out value first, then what its advantages know."""
    return [
        _row(key, value_gap, rule=rule, base=base),
        _row(f"{key} mechanism", marks_gap, rule=rule, base=base),
        _row(f"{key} area", value_gap, rule=rule, base=base, column="area"),
    ]


CLAIMS = [
    Claim(
        "A1",
        "one reward per rollout already teaches most of what the true credit of every token would",
        "the question of both titles",
        "plain group advantages get less than half of the way from permuted advantages to true credit",
        [
            _row("A1", scored, rule=PLAIN),
            _row("A1 gain", scored, rule=PLAIN, floor=START),
            _row("A1 mechanism", cosine_units, rule=PLAIN),
            _row("A1 distance", value_gap, rule=PLAIN, base=UPPER),
            _row("A1 control", value_gap, rule="coin_reward", base=LOWER),
            _row("A1 unmatched", scored, rule=PLAIN, match="none"),
        ],
    ),
    Claim(
        "P1",
        "comparing rollouts where they part gives step credit that teaches faster [reading]",
        "arXiv 2509.21154, the hidden process reward",
        "no more is learned from as many sampled tokens",
        against("P1", "prefix_credit", PLAIN),
    ),
    Claim(
        "P2",
        "crediting a failing rollout's edits, and rewarding those that one edit saves, teaches faster (IBPO) [reading]",
        "arXiv 2605.16302",
        "no more is learned from as many sampled tokens, its continuations counted",
        against("P2", "ibpo", "grpo"),
    ),
    Claim(
        "P3",
        "crediting only the tokens in which a failing rollout differs from its nearest correct sibling teaches faster "
        "[reading]",
        "arXiv 2605.16302, its edit mask alone",
        "no more is learned from as many sampled tokens",
        against("P3", "edit_mask", "grpo"),
    ),
]
