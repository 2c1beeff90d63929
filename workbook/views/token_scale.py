"""Colours of token cells: a diverging or a sequential scale per column, and on each colour the ink that can be read.

A signed column (an advantage, a push) is blue above its center and orange below, with a sign on each cell. A one-sided
column (an entropy, a log-probability) runs from light at 0 to dark, without signs. Black or white stands on every
colour, whichever contrasts more: at least 4.58 to 1, since the two contrasts multiply to 21.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import altair as alt
import numpy as np
import pandas as pd

from workbook.views.style import SERIES, limit

BLUEORANGE = (
    *("#994a07", "#c5690d", "#e8932f", "#fbbf74", "#fce0ba", "#f2f0eb"),
    *("#d2e5ef", "#9dcae1", "#5da2cb", "#2f78b3", "#134b85"),
)  # Vega's scheme of this name, blue above
TEALS = ("#f2f0eb", "#d3e8e1", "#a9d6ca", "#78bfb0", "#4ba494", "#27877a", "#11695e", "#064b44")
CATEGORIES = tuple(SERIES)
SHADES = 65  # of a ramp; odd, so that one is the middle
MOVES = "moves pinned"  # the column of what each token does to the pinned one
SIGNED = {"advantage", "coupling", "credit", "dlogp", "push", "signal", "noise", "bias", "movement"}
CENTERS = {"ratio": 1.0, "importance": 1.0}  # the value that changes nothing; else 0
PLUS, MINUS = "⁺", "⁻"  # superscripts, so that no sign looks like an arithmetic token


def ramp(colors: tuple[str, ...], shades: int = SHADES) -> list[str]:
    """Evenly spaced colours through those given, mixed in sRGB.

    >>> ramp(("#000000", "#ffffff"), 3)
    ['#000000', '#808080', '#ffffff']
    """
    known = np.array([[int(color[i : i + 2], 16) for i in (1, 3, 5)] for color in colors], dtype=float)
    places = np.linspace(0, len(colors) - 1, shades)
    channels = np.stack([np.interp(places, range(len(colors)), known[:, k]) for k in range(3)], axis=1)
    return ["#" + "".join(f"{int(x + 0.5):02x}" for x in row) for row in channels]


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, 1 to 21 (WCAG 2: relative luminances, 0.05 added to both).

    >>> contrast("#000000", "#ffffff")
    21.0
    """
    low, high = sorted((_luminance(one), _luminance(other)))
    return round((high + 0.05) / (low + 0.05), 4)


def _luminance(color: str) -> float:
    shares = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def ink(fill: str) -> str:
    """Black or white, whichever can be read on a colour.

    >>> ink("#f2f0eb"), ink("#134b85")
    ('#000000', '#ffffff')
    """
    return max(("#000000", "#ffffff"), key=lambda color: contrast(color, fill))


UNKNOWN = ("", "#000000")  # colour and ink of what has no value
RAMPS = {"diverging": ramp(BLUEORANGE), "sequential": ramp(TEALS), "categories": list(CATEGORIES)}
PALETTE = {name: {"fills": fills, "inks": [ink(fill) for fill in fills]} for name, fills in RAMPS.items()}


@dataclass(frozen=True)
class Scale:
    """Colours of a column of numbers.

    side 0: diverging, from center - limit to center + limit.  side +1 or -1: sequential, from 0 to side times limit.
    """

    limit: float
    center: float = 0.0
    side: int = 0

    @property
    def name(self) -> str:
        return "sequential" if self.side else "diverging"

    @property
    def ends(self) -> tuple[float, float]:
        """The values at which colours saturate, low and high."""
        if self.side:
            return min(0.0, self.side * self.limit), max(0.0, self.side * self.limit)
        return self.center - self.limit, self.center + self.limit

    def shades(self, values) -> np.ndarray:
        """The number of each value's shade in its ramp, -1 where it is unknown."""
        off = (np.asarray(values, dtype=float) - self.center) / self.limit
        place = off * self.side if self.side else (off + 1) / 2
        known = np.nan_to_num(np.clip(place, 0, 1) * (SHADES - 1) + 0.5)
        return np.where(np.isnan(place), -1, known.astype(int))

    def signs(self, values) -> np.ndarray:
        """PLUS above the center and MINUS below; "" at it, where unknown, and on a one-sided scale."""
        values = np.asarray(values, dtype=float)
        if self.side:
            return np.full(values.shape, "")
        return np.select([values > self.center, values < self.center], [PLUS, MINUS], "")

    def over(self, name: str, *columns: pd.Series) -> Scale:
        """The same limit, one-sided only if all these columns are."""
        return replace(self, side=side(name, *columns))

    def looks(self, values) -> list[tuple[str, str]]:
        """The colour of each value and the ink on it, ("", "#000000") where it is unknown."""
        colors = list(zip(PALETTE[self.name]["fills"], PALETTE[self.name]["inks"], strict=True))
        return [colors[shade] if shade >= 0 else UNKNOWN for shade in self.shades(values)]

    def vega(self) -> alt.Scale:
        """The same colours as a scale of a chart."""
        fills = PALETTE[self.name]["fills"]
        colors = fills[::-1] if self.side < 0 else fills
        return alt.Scale(domain=np.linspace(*self.ends, SHADES).tolist(), range=colors, clamp=True, interpolate="rgb")

    def format(self, value: float) -> str:
        """A value as text: with its sign on a diverging scale around 0, "unknown" for what is no number."""
        return number(value, signed=not self.side and not self.center)


def number(value, signed: bool = False, form: str = ".4g") -> str:
    """A number as text, with a true minus; "unknown" for what is none.

    >>> number(-0.5), number(2, signed=True), number(float("nan"), signed=True), number(0.0, signed=True)
    ('−0.5', '+2', 'unknown', '0')
    """
    if value is None or pd.isna(value):
        return "unknown"
    text = f"{abs(value):{form}}"
    return f"−{text}" if value < 0 else f"+{text}" if signed and value > 0 else text


def is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def side(name: str, *columns: pd.Series) -> int:
    """+1 or -1 where no value is of the other sign and the column's name does not say that it is signed, else 0.

    >>> entropy = pd.Series([0.0, 0.5])
    >>> side("entropy", entropy), side("logp", -entropy), side("true credit", entropy), side("ratio", entropy)
    (1, -1, 0, 0)
    """
    if name in CENTERS or SIGNED & set(re.split(r"[^a-z]+", name.lower())):
        return 0
    lows, highs = zip(*((column.min(), column.max()) for column in columns), strict=True)
    low, high = np.nanmin([*lows, 0.0]), np.nanmax([*highs, 0.0])
    return 0 if low < 0 < high or low == high else 1 if high > 0 else -1


def scale_of(name: str, *columns: pd.Series) -> Scale:
    """One scale for a column of several tables."""
    center = CENTERS.get(name, 0.0)
    most = max(limit(column.to_numpy(dtype=float) - center) for column in columns)
    return Scale(most, center, side(name, *columns))


def common(one: Scale | None, other: Scale | None) -> Scale | None:
    """The scale that two columns share: the wider of two of one kind; None where their kinds differ."""
    if one is None or other is None or (one.center, one.side) != (other.center, other.side):
        return None
    return max(one, other, key=lambda scale: scale.limit)
