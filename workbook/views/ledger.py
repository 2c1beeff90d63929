"""The claims ledger as a picture: how far each measurement lies from its threshold, and on which side."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, require

MAX_DISTANCE = 100.0  # distances beyond are drawn here; the tooltip has the numbers
VERDICT_MARKS = {  # verdict: colour, shape; a falsifier that is met speaks against the paper, like a claim that fails
    "replicates": (POSITIVE, "triangle-right"),
    "not met": (POSITIVE, "square"),
    "inconclusive": (NEUTRAL, "circle"),
    "does not replicate": (NEGATIVE, "triangle-left"),
    "met": (NEGATIVE, "diamond"),
}
TICKS = [-100, -30, -10, -3, -1, 0, 1, 3, 10, 30, 100]
SCALE_NAMES = {
    "bundled": "bundled policy",
    "smollm2_chat": "SmolLM2-135M, chat",
    "smollm2_plain": "SmolLM2-135M, plain",
    "larger": "larger models",
}
COLUMNS = ("claim", "scale", "measured", "stated", "seeds", "n", "verdict", "fragile", "z", "z_low", "z_high")
REQUIRED = (*COLUMNS[:8], "mean", "low", "high", "threshold", "toward")
TITLE = "How far each measurement lies from its threshold: right, towards the paper's claim; left, away from it"


def standardized(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a ledger that decide something and were measured, with z, z_low and z_high beside them.

        z = s (estimate - threshold) / half

    half: from the estimate to that end of its interval which lies on the threshold's side.  s: +1 where the paper's
    claim lies above the threshold, else -1.  So all of the interval lies on the paper's side exactly if z > 1, and on
    the other exactly if z < -1.  Distances are cut off at `MAX_DISTANCE`, which also stands for an estimate without any
    spread; at the threshold itself z is 0.

    >>> row = {"mean": 3.0, "low": 2.0, "high": 7.0, "threshold": 1.0, "toward": 1.0}
    >>> standardized(pd.DataFrame([row]))[["z", "z_low", "z_high"]].iloc[0].tolist()
    [2.0, 1.0, 6.0]
    """
    rows = table[table["mean"].notna() & table["toward"].notna()]
    distance = rows["mean"] - rows["threshold"]
    half = np.where(distance > 0, rows["mean"] - rows["low"], rows["high"] - rows["mean"])
    standard = {}
    for name, end in {"z": "mean", "z_low": "low", "z_high": "high"}.items():
        away = (rows[end] - rows["threshold"]).to_numpy(float)
        with np.errstate(divide="ignore", invalid="ignore"):
            z = np.where(away == 0, 0.0, away / half) * rows["toward"].to_numpy(float)
        standard[name] = np.clip(z, -MAX_DISTANCE, MAX_DISTANCE)
    return rows.assign(**standard)


def ledger_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """A line per measurement, a panel per scale: dot and interval at their `standardized` distance from the threshold.

    table: of `workbook.claims.ledger`. Rows that decide nothing are left out, and so are measurements and scales of
    which nothing was measured; the text above the chart names the latter.

    Raises ValueError if a column is missing, or nothing at all was measured.
    """
    require(table, REQUIRED, "ledger_chart")
    rows = standardized(table)
    if rows.empty:
        raise ValueError("ledger_chart needs a measured row; nothing in this table was measured.")
    labels = rows["claim"] + "   " + rows["measured"]
    rows = rows.assign(
        label=labels, effect=[f"{row.mean:.4g} [{row.low:.4g}, {row.high:.4g}]" for row in rows.itertuples()]
    )
    rows = rows[[*COLUMNS, "label", "effect"]]
    every, labels = list(dict.fromkeys(table["scale"])), list(dict.fromkeys(rows["label"]))
    scales = [scale for scale in every if scale in set(rows["scale"])]
    panels = [_panel(rows[rows["scale"] == scale], labels, scale, first=scale == scales[0]) for scale in scales]
    none = [SCALE_NAMES.get(scale, scale) for scale in every if scale not in scales]
    unmeasured = [claim for claim in dict.fromkeys(table["claim"]) if claim not in set(rows["claim"])]
    gaps = "; not measured: " + ", ".join([*unmeasured, *none]) if unmeasured or none else ""
    subtitle = [
        "Dashed: the threshold. Unit: half of the 95 % interval. A bar that is clear of the threshold has its mark in"
        " the shaded part. Symmetric logarithm.",
        (
            "Hollow: fragile, the verdict changes if one seed is left out"
            if rows["fragile"].any()
            else "None drawn as fragile"
        )
        + f"{gaps}.",
    ]
    title = alt.TitleParams(TITLE, subtitle=subtitle, anchor="start", subtitleColor=NEUTRAL)
    return alt.hconcat(*panels, spacing=10).properties(title=title, description=f"{TITLE}. {_counted(rows)}")


def _panel(rows: pd.DataFrame, labels: list[str], scale: str, first: bool) -> alt.LayerChart:
    """One scale's dots and intervals over shaded halves; where a measurement is missing, the line says so."""
    missing = pd.DataFrame({"label": [label for label in labels if label not in set(rows["label"])], "z": 0.0})
    halves = pd.DataFrame({"z": [1.0, -MAX_DISTANCE], "to": [MAX_DISTANCE, -1.0], "color": ["#e9f1f8", "#fbefe2"]})
    span = alt.Scale(type="symlog", constant=1, domain=[-MAX_DISTANCE, MAX_DISTANCE], nice=False)
    ticks = alt.Axis(values=TICKS, grid=False, title=SCALE_NAMES.get(scale, scale), orient="top", labelFontSize=9)
    x, low = (alt.X(f"{name}:Q", scale=span, axis=ticks) for name in ("z", "z_low"))
    lines = {
        "labelLimit": 430,
        "gridColor": "#e4e4e4",
        "grid": True,
        "ticks": False,
        "domain": False,
        "labelPadding": 8,
    }
    y = alt.Y("label:N", sort=None, title=None, axis=alt.Axis(**lines, labels=first))
    y = y.scale(domain=labels)
    legend = alt.Legend(title=None, orient="bottom", columns=len(VERDICT_MARKS), symbolSize=90) if first else None
    colors, shapes = zip(*VERDICT_MARKS.values(), strict=True)
    look = {
        "stroke": alt.Stroke("verdict:N", legend=legend).scale(domain=list(VERDICT_MARKS), range=colors),
        "shape": alt.Shape("verdict:N", legend=legend).scale(domain=list(VERDICT_MARKS), range=shapes),
    }
    fill = alt.Fill("verdict:N", legend=legend).scale(domain=list(VERDICT_MARKS), range=colors)
    tooltip = ["claim:N", "measured:N", "effect:N", "stated:N", "seeds:Q", "n:Q", "verdict:N", "fragile:N"]
    base = alt.Chart(rows).encode(y=y, tooltip=tooltip)
    points = base.mark_point(size=62, strokeWidth=1.6, opacity=1).encode(x=x, **look)
    layers = [
        alt.Chart(halves).mark_rect().encode(x=x, x2="to:Q", color=alt.Color("color:N", scale=None)),
        alt.Chart(pd.DataFrame({"z": [0.0]})).mark_rule(color=NEUTRAL, strokeDash=[4, 4]).encode(x=x),
        base.mark_rule(size=2.5, opacity=0.55).encode(x=low, x2="z_high:Q", stroke=look["stroke"]),
        points.transform_filter("!datum.fragile").encode(fill=fill),
        points.transform_filter("datum.fragile").encode(fill=alt.value("white")),
        alt.Chart(missing)
        .mark_text(text="not measured", fontSize=9, color=NEUTRAL, align="left", dx=6)
        .encode(x=x, y=y),
    ]
    return alt.layer(*layers).properties(width=262, height=alt.Step(17))


def _counted(rows: pd.DataFrame) -> str:
    """How many measurements came out how, scale by scale."""
    counts = rows.groupby(["scale", "verdict"], sort=False).size()
    return "; ".join(
        f"{SCALE_NAMES.get(scale, scale)}: " + ", ".join(f"{count} {verdict}" for (_, verdict), count in part.items())
        for scale, part in counts.groupby(level=0, sort=False)
    )
