"""Curves over a moderator: a measured effect against what it depends on, with the paper's place on the axis marked.

    curve = unit_curve(table, "prompts", "follows")          # t intervals over policies x seeds
    curve_chart(curve, "prompts", x_title="prompts per step", y_title="share", title="...",
                paper=(256, 1024, "the paper"), reference=[(0.5, "own sign says nothing")])

One look for all of them, so that a reader who has read one can read the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from workbook.views.figures import rule
from workbook.views.figures import series as lines_over
from workbook.views.style import NEUTRAL, WIDTH, describe_rows, require, titled

PAPER_COLOR = "#f2e3b3"
MAX_TICKS = 14  # values of x that are all named on the axis


def curve_chart(
    curve: pd.DataFrame,
    x: str,
    y: str = "mean",
    series: str | None = None,
    x_title: str = "",
    y_title: str = "",
    title: str = "",
    log2: bool = True,
    paper: tuple[float, float, str] | None = None,
    xs: Sequence[float] = (),
    reference: Sequence[float | tuple[float, str]] | None = None,
    subtitle: str | None = None,
    width: int = WIDTH,
    height: int = 240,
    **look,
) -> alt.LayerChart:
    """Lines over x with points and interval bands; a shaded place on the axis, and dashed lines to compare with.

    curve: a row per point, as `workbook.statistics.unit_curve` gives it: x, the column `series` (one line each), y, low
    and high, units.  log2: a logarithmic axis with a tick at every x.  paper: where on the axis the paper stands, from
    low to high, and the words for it; the axis reaches there.  xs: further x that the axis reaches and
    names, of curves that the table may come to hold.  reference: values of y, each with or without a text.
    subtitle: by default says what the bands are.  look: scale, settings of y's axis, and more of
    `workbook.views.figures.series`, such as names.

    Raises ValueError for columns that the table lacks, an empty table, and x or paper at 0 and below on a log2 axis.
    """
    require(curve, [x, y, "low", "high", *([series] if series else [])], "curve_chart")
    if curve.empty:
        raise ValueError("curve_chart needs a row or more; the table is empty.")
    ends = [float(curve[x].min()), float(curve[x].max()), *(paper[:2] if paper else ()), *xs]
    if log2 and min(ends) <= 0:
        raise ValueError(f"{x} reaches {min(ends):g}, which has no place on a log2 axis: use log2=False.")
    place = alt.X(f"{x}:Q", title=x_title or x).scale(**_scale(min(ends), max(ends), log2))
    ticks = sorted({*curve[x].tolist(), *xs})
    if len(ticks) <= MAX_TICKS:
        place = place.axis(values=sorted({*ticks, *(paper[:2] if paper else ())}), grid=False, labelOverlap=True)
    value = alt.Y(f"{y}:Q", title=y_title or y).scale(**{"zero": False, **look.pop("scale", {})})
    under = [*_paper(paper, ends, log2), *_references(reference or (), min(ends))]
    look = {"form": ".3g", "shown": ["units"] if "units" in curve else [], "under": under, **look}
    if series:
        look = {"dash": series, **look}
    names = [series] if series else []
    return titled(
        lines_over(curve, place, value, series, width=width, height=height, **look),
        title,
        _units(curve) if subtitle is None else subtitle,
        describe_rows(curve, *names, x, value=y, interval=True),
    )


def _scale(low: float, high: float, log2: bool) -> dict:
    kind = {"type": "log", "base": 2} if log2 else {"zero": False}
    return {**kind, "domain": [low, high], "nice": False, "padding": 12}


def _paper(paper, ends: list[float], log2: bool) -> list[alt.Chart]:
    """The shaded place and its words, on the side where there is room for them."""
    if paper is None:
        return []
    low, high, text = paper
    middle = np.sqrt(min(ends) * max(ends)) if log2 else (min(ends) + max(ends)) / 2
    right = (low * high) ** 0.5 > middle if log2 else (low + high) / 2 > middle
    base = _inline(low=low, high=high, text=text)
    area = base.mark_rect(color=PAPER_COLOR, opacity=0.7).encode(x="low:Q", x2="high:Q")
    place = {"align": "right", "dx": -4} if right else {"align": "left", "dx": 4}
    words = base.mark_text(fontSize=11, fontStyle="italic", color="#6b5600", baseline="top", **place)
    return [area, words.encode(x="high:Q" if right else "low:Q", y=alt.value(4), text="text:N")]


def _inline(**row) -> alt.Chart:
    """A chart of one row that stands in the spec, so that the curve's own table can follow a slider."""
    return alt.Chart(alt.InlineData(values=[row]))


def _references(values, start: float) -> list[alt.Chart]:
    layers = []
    for entry in values:
        number, text = entry if isinstance(entry, tuple) else (entry, "")
        layers.append(rule(number, "y", dashed=True, color=NEUTRAL))
        if text:
            base = _inline(x=start, y=number, text=text)
            words = base.mark_text(align="left", baseline="bottom", dy=-2, fontSize=11, color=NEUTRAL)
            layers.append(words.encode(x="x:Q", y="y:Q", text="text:N"))
    return layers


def _units(curve: pd.DataFrame) -> str:
    """What the bands are, and over how many units."""
    if "units" not in curve:
        return "line: mean; band: interval"
    low, high = int(curve["units"].min()), int(curve["units"].max())
    if high < 2:
        return "one unit (policy and seed): no interval"
    count = f"{low}" if low == high else f"{low} to {high}"
    return f"line: mean; band: 95 % t interval over {count} units (policy and seed)"
