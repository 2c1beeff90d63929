"""Tokens to half-way, and what else a run in a world ends with; by these its rates are chosen.

    half-way = (start + best attainable) / 2, both exact values

Best attainable in a world is the highest value, a mean over its tuning policies, that any rule
showed at any rate there within the budget: known before a unit is trained, and reached by at least
one rule. The value of always answering right would be known, too, but where no rule gets half-way
to it every ratio is 1, and one reward would seem enough in just those worlds where it is not.
Tokens are censored at the budget, the most that any run of the unit sampled; their mean is the
restricted one.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

# rules by the names that committed tables have for them: true credit, group advantages, no credit
KNOWN_CREDIT = "oracle"
PLAIN = "dr_grpo"
LOWER = "permuted"
# reward: where the best rule gains less, nothing was learned in the world, and half-way is noise
LEAST = 0.05
COLLAPSED = 0.5  # share of the start's value below which a policy has collapsed
ENDS = ["value", "tax", "pass_at_8", "style_entropy", "logp_right"]  # read at the end of a run


class Reached(NamedTuple):
    """Where a run's readings, joined by straight lines, reach a level, or, `censored`, where they
    end without.
    """

    at: float
    censored: bool


def tokens_to(curve: pd.DataFrame, level: float, budget: float | None = None) -> Reached:
    """Sampled tokens until the value first reaches a level, censored at the budget (None: the last
    reading's tokens).

    Raises ValueError for a curve without readings, or with a value that is not known.

    >>> curve = pd.DataFrame({"value": [0.25, 0.5, 0.375], "sampled_tokens": [0, 1000, 2000]})
    >>> tokens_to(curve, 0.375)
    Reached(at=500.0, censored=False)
    >>> tokens_to(curve, 0.375, budget=400)
    Reached(at=400.0, censored=True)
    >>> tokens_to(curve, 0.75)
    Reached(at=2000.0, censored=True)
    """
    return _first(curve, "sampled_tokens", curve["value"] - level, budget)


def batches_to_collapse(curve: pd.DataFrame, share: float = COLLAPSED) -> Reached:
    """Generation batches until the value first falls to a share of the start's, censored at the
    last reading.

    Raises ValueError as `tokens_to` does.

    >>> curve = pd.DataFrame({"batch": [0, 4, 8], "value": [0.5, 0.375, 0.125]})
    >>> batches_to_collapse(curve), batches_to_collapse(curve, 0.1)
    (Reached(at=6.0, censored=False), Reached(at=8.0, censored=True))
    """
    return _first(curve, "batch", share * curve["value"].iloc[:1].sum() - curve["value"], None)


def _first(curve: pd.DataFrame, column: str, above: pd.Series, end: float | None) -> Reached:
    """Where `above` first is 0 or more, in the column's unit."""
    if above.isna().any() or not len(above):
        raise ValueError(
            "curve has no readings, or a value that is not known: it must have a number in each"
            " row."
        )
    places, heights = curve[column].to_numpy(dtype=float), above.to_numpy(dtype=float)
    end = float(places[-1] if end is None else end)
    k = int((heights >= 0).argmax())
    if heights[k] < 0:
        return Reached(end, True)
    rise = -heights[k - 1] / (heights[k] - heights[k - 1]) if k else 0.0
    at = float(places[k - 1] + rise * (places[k] - places[k - 1])) if k else float(places[0])
    return Reached(at, False) if at <= end else Reached(end, True)


def best_attainable(rates: pd.DataFrame) -> float:
    """The value that half-way is reckoned to, of the table runs of `worlds_rates`.

    Raises ValueError where the best arm gains less than LEAST.
    """
    means = rates.groupby(["arm", "lr", "batch"])["value"].mean()
    best, start = float(means.max()), float(means.xs(0, level="batch").mean())
    if best - start < LEAST:
        raise ValueError(
            f"from {start:.3f} no arm gets further than {best:.3f}: there is no way to be half of."
        )
    return best


def run_ends(
    runs: pd.DataFrame, best: float, unit: str = "seed", by: Sequence[str] = ("arm",)
) -> pd.DataFrame:
    """A row per unit and run: start, level (half-way), tokens until there, whether they are
    `censored`, `budget`, the batches until `collapse` (the value is half of the start's) and
    whether the run `collapsed`, and ENDS.

    runs: readings of whole runs.  best: of `best_attainable`.  by: the columns that tell a unit's
    runs apart.
    """
    rows, budgets, keys = [], runs.groupby(unit)["sampled_tokens"].max(), [unit, *by]
    for names, run in runs.sort_values("batch", kind="stable").groupby(keys, sort=False):
        start, budget = run["value"].iloc[0], float(budgets[names[0]])
        level = start + (best - start) / 2
        reached, fallen = tokens_to(run, level, budget), batches_to_collapse(run)
        row = dict(zip(keys, names, strict=True)) | {
            "start": start,
            "level": level,
            "budget": budget,
        }
        row |= {"tokens": reached.at, "censored": reached.censored}
        row |= {"collapse": fallen.at, "collapsed": not fallen.censored}
        rows.append(row | run[ENDS].iloc[-1].to_dict())
    return pd.DataFrame(rows)


def own_rates(rates: pd.DataFrame, best: float | None = None) -> pd.DataFrame:
    """A row per arm (the index): its own rate lr, the one with the fewest tokens to half-way, means
    over the tuning policies; bears, the highest rate at which it collapses on none of them (NaN:
    none).

    Rates of equal tokens, as where half-way is never reached, go by the value at the end, the
    higher one first.
    best: the attainable value, if it is not that of these rates.
    """
    best = best_attainable(rates) if best is None else best
    ends = run_ends(rates, best, "policy", ("arm", "lr")).groupby(["arm", "lr"], sort=False)
    table = ends.agg({"tokens": "mean", "value": "mean", "collapsed": "max"}).reset_index()
    table = table.sort_values(["tokens", "value"], ascending=[True, False], kind="stable")
    bears = table[~table["collapsed"]].groupby("arm")["lr"].max()
    return table.drop_duplicates("arm").set_index("arm").assign(bears=bears)


def within(runs: pd.DataFrame, budgets: pd.Series, unit: str = "seed") -> pd.DataFrame:
    """Runs up to their units' budgets of sampled tokens, the last reading of a longer one on a
    straight line there.
    """
    parts = []
    for (name, *_), run in runs.groupby([unit, "arm", "lr"], sort=False):
        if run["sampled_tokens"].iloc[-1] > (budget := budgets[name]):
            tokens = run["sampled_tokens"]
            end = {
                column: np.interp(budget, tokens, run[column])
                for column in ("batch", "sampled_tokens", *ENDS)
            }
            run = pd.concat([run[tokens < budget], run.tail(1).assign(**end)])
        parts.append(run)
    return pd.concat(parts, ignore_index=True)


def most_tokens(runs: pd.DataFrame, unit: str = "seed") -> pd.Series:
    """The budget of each unit: the most tokens that any of its runs sampled."""
    return runs.groupby(unit)["sampled_tokens"].max()
