"""Measured quantities with their intervals under one another, beside the threshold that was stated for them."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, color_and_shape, finish, require


def intervals_chart(
    table: pd.DataFrame, title: str, subtitle: str, unit: str, threshold: float | None = None, zero: bool = True
) -> alt.LayerChart:
    """A line per row: dot, interval and number; columns label, mean, low, high, and scale (colour, shape) if there.

    threshold: what was stated beforehand, as a dashed line.  zero: whether the axis must reach 0.
    """
    require(table, ("label", "mean", "low", "high"), "intervals_chart")
    y = alt.Y("label:N", sort=None, title=None).axis(labelLimit=340)
    x = alt.X("mean:Q", title=unit).scale(zero=zero, padding=30)
    ends = [*table["low"], *table["high"], *([] if threshold is None else [threshold])]
    if zero and 0 <= min(ends) < max(ends):  # what can't be negative has no axis there
        x = alt.X("mean:Q", title=unit).scale(domain=[0, 1.08 * max(ends)])
    shown = ["label:N", *[alt.Tooltip(f"{name}:Q", format=".4g") for name in ("mean", "low", "high")]]
    base = alt.Chart(table).encode(y=y, tooltip=shown)
    height = 26
    if "scale" in table:
        names = list(dict.fromkeys(table["scale"]))
        look = color_and_shape("scale", names, [POSITIVE, NEGATIVE], orient="bottom")
        base = base.encode(color=look["color"], yOffset=alt.YOffset("scale:N", sort=names))
        dot, height = base.encode(shape=look["shape"]), 18
    else:
        dot = base = base.encode(color=alt.value(POSITIVE))
    layers = [
        base.mark_rule(size=3, opacity=0.5).encode(x=alt.X("low:Q", title=unit), x2="high:Q"),
        dot.mark_point(filled=True, size=70, opacity=1).encode(x=x),
        base.mark_text(dy=-9, fontSize=10).encode(x=x, text=alt.Text("mean:Q", format=".3~g")),
    ]
    if threshold is not None:
        line = alt.Chart(pd.DataFrame({"threshold": [threshold]})).mark_rule(strokeDash=[5, 4], color=NEUTRAL, size=1.5)
        layers.insert(0, line.encode(x="threshold:Q"))
    told = "; ".join(f"{row.label}: {row.mean:.3g} ({row.low:.3g} to {row.high:.3g})" for row in table.itertuples())
    return finish(alt.layer(*layers), title, subtitle, told, height=alt.Step(height))
