"""What runs in worlds come to: tokens to half-way, rates, the price of one reward, and the line
through the prices. Half-way is that of `workbook.app.half_way`.

    price     = log2(sampled tokens until half-way, plain / the same, known credit)
                octaves, of one policy
    signal    = squared length of the expected update / mean squared length of one batch's update,
                at the start: the population share of signal; the choice of prompts is noise of it
    the law   : mean price of a world = a + b log2(1 / signal), one line through all worlds
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd

from workbook.app.half_way import KNOWN_CREDIT, PLAIN, best_attainable, own_rates, run_ends
from workbook.statistics import Interval, t_interval
from workbook.studies.record import NotMeasured, Tables, Void
from workbook.studies.registration import WORLD_SCALES, WORLDS, read_note

# of exact values from sampled ones: a price is a matter of tenths
MOST_OFF = {"bias": 0.01, "rms": 0.03}


def world_name(scale: str) -> str:
    """A world's name, without what its scale's begins with; any other scale's own."""
    return scale.removeprefix("world:")


HELD_OUT = tuple(name for name in WORLD_SCALES if WORLDS[world_name(name)].get("held_out"))
# scales that the line is drawn through
OPEN = tuple(name for name in WORLD_SCALES if name not in HELD_OUT)


def common_rate(worlds: Sequence[pd.DataFrame]) -> float:
    """One rate for all arms in all worlds: the median of plain's own rates, the lower of two in the
    middle.
    """
    rates = sorted(own_rates(rates).loc[PLAIN, "lr"] for rates in worlds)
    return float(rates[(len(rates) - 1) // 2])


@lru_cache(maxsize=64)
def world_tables(scale: str, folder) -> Tables:
    """The tables of one world."""
    return Tables(scale, folder)


@lru_cache(maxsize=64)
def unit_outcomes(tables: Tables, study: str = "worlds") -> pd.DataFrame:
    """`run_ends` of a world's units; in the study `worlds` each arm runs at its own rate."""
    return run_ends(tables[f"{study}/runs"], best_attainable(tables["worlds_rates/runs"]))


def read_outcome(tables: Tables, column: str, arm: str, study: str = "worlds") -> pd.Series:
    """A column of `unit_outcomes` of one arm, one number per unit; Void where the world does not
    count.
    """
    _check_values(tables)
    ends = unit_outcomes(tables, study)
    return ends[ends["arm"] == arm].set_index("seed")[column].rename_axis("unit")


def lead(tables: Tables, arm: str, base: str = PLAIN, study: str = "worlds") -> pd.Series:
    """Octaves of tokens to half-way that an arm needs less than another; the price: known credit's
    lead over plain.
    """
    return np.log2(
        read_outcome(tables, "tokens", base, study) / read_outcome(tables, "tokens", arm, study)
    )


def signal_share(tables: Tables, rule: str = PLAIN) -> float:
    """Population share of signal of one batch at the start, a ratio of means over units; ValueError
    if none is left.
    """
    means = tables["worlds_start/updates"].query("rule == @rule")[["mean2", "total2"]].mean()
    if not means["mean2"] > 0:
        raise ValueError(
            f"{tables.scale}: no signal of {rule} is left above the noise of the batches drawn."
        )
    return float(means["mean2"] / means["total2"])


def value_errors(tables: Tables) -> dict[str, float]:
    """bias and rms of a world's exact values at the start against sampling, over all units and
    prompts, in reward.
    """
    means = tables["worlds_values/errors"][["bias", "square"]].mean()
    return {"bias": float(means["bias"]), "rms": max(0.0, float(means["square"])) ** 0.5}


def _check_values(tables: Tables) -> None:
    """Void where a world's exact values are off by more than MOST_OFF: its units do not count."""
    with suppress(NotMeasured):
        for name, off in value_errors(tables).items():
            if abs(off) > MOST_OFF[name]:
                known = (
                    f"exact values are off by {off:.4f} at the start ({name}), and {MOST_OFF[name]}"
                    " was allowed"
                )
                raise Void(f"void: {known}, so the world does not count")


def over_worlds(measure: Callable[[Tables], pd.Series], tables: Tables) -> pd.Series:
    """The mean over its units of a measure in each world that has been measured; index: the number
    of the world.

    Raises NotMeasured where there is none.
    """
    means = {}
    for scale in OPEN:
        with suppress(NotMeasured, ValueError):  # the latter: nothing was learned there
            means[[*WORLD_SCALES].index(scale)] = float(
                measure(world_tables(scale, tables.folder)).mean()
            )
    if not means:
        raise NotMeasured("no world has been measured.")
    return pd.Series(means).rename_axis("unit")


class PriceLine(NamedTuple):
    """A line through worlds by least squares: price = intercept + slope x, and what its
    predictions' width is made of.

    sd: of the worlds about the line.  x, spread: mean of x and sum of squares about it.  worlds:
    how many.
    """

    intercept: float
    slope: float
    sd: float
    x: float
    spread: float
    worlds: int

    def predict(self, x: float, level: float = 0.95) -> Interval:
        """The mean price of another world at x: the interval in which it lies with this chance.

        The line's value +- t_(n-2) sd sqrt(1 + 1/n + (x - mean x)^2 / spread).
        """
        from scipy.special import stdtrit

        mean = self.intercept + self.slope * x
        width = float(np.sqrt(1 + 1 / self.worlds + (x - self.x) ** 2 / self.spread))
        half = float(stdtrit(self.worlds - 2, (1 + level) / 2)) * self.sd * width
        return Interval(mean, mean - half, mean + half)


def fit_price_line(points: pd.DataFrame) -> PriceLine:
    """The line through worlds that have a price; ValueError for fewer than three of them, and for
    one x alone.
    """
    x, price = points.dropna(subset="price")[["x", "price"]].to_numpy(float).T
    if len(x) < 3 or np.ptp(x) == 0:
        raise ValueError(f"a line needs three worlds or more at different places; got {len(x)}.")
    spread = float(((x - x.mean()) ** 2).sum())
    slope, intercept = map(float, np.polyfit(x, price, 1))
    sd = float(np.sqrt(((price - intercept - slope * x) ** 2).sum() / (len(x) - 2)))
    return PriceLine(intercept, slope, sd, float(x.mean()), spread, len(x))


def price_points(tables: Tables, scales: Sequence[str] = OPEN) -> pd.DataFrame:
    """A row per world (index: its number): world; x, log2(1 / population share of signal) of
    plain's update; price, its t interval over units low to high, NaN where nothing was trained yet.
    Worlds without x are left out."""
    rows, columns = {}, ["world", "x", "price", "low", "high"]
    for scale in scales:
        one, number = world_tables(scale, tables.folder), [*WORLD_SCALES].index(scale)
        with suppress(NotMeasured, ValueError):  # the latter: no signal, or nothing learned there
            rows[number] = [world_name(scale), -np.log2(signal_share(one)), *[np.nan] * 3]
            rows[number][2:] = t_interval(lead(one, KNOWN_CREDIT))
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns)


def predicted_prices(tables: Tables) -> pd.DataFrame:
    """What the line through other worlds says of those held out, of whose training nothing is read.

    A row per world held out: world, x, mean, low and high of its mean price. The line is that of
    the prediction that was committed before anything was trained there: through the worlds that it
    names, or through all.
    """
    made = read_note("worlds", "predicted", tables.folder)
    places, everywhere = price_points(tables, HELD_OUT)[["world", "x"]], price_points(tables)
    of = [
        everywhere[
            everywhere["world"].isin(made.get(world, {}).get("line_of", everywhere["world"]))
        ]
        for world in places["world"]
    ]
    prices = [fit_price_line(part).predict(x) for part, x in zip(of, places["x"], strict=True)]
    return places.join(pd.DataFrame(prices, places.index, Interval._fields))
