"""The arena's table as one picture: score, what a rule's advantages know, and what one batch's update is worth."""

from __future__ import annotations

from pathlib import Path

import altair as alt
import pandas as pd

from workbook.topics.arena.contests import YOURS
from workbook.topics.arena.rules import LOWER, PLAIN, UPPER
from workbook.topics.arena.text import row_name
from workbook.training.files import replacement
from workbook.views.figures import forest, panels
from workbook.views.style import ACCENT, SERIES, describe_rows, require

PANELS = {  # measure: title of its axis
    "score": "0: permuted advantages, 1: true credit",
    "correlation": "advantages and true credit",
    "one": "one update and the exact gradient",
}
TITLES = {"score": "score at equal sampled tokens", "correlation": "correlation", "one": "cosine"}
ROW = 19  # pixels


def arena_chart(table: pd.DataFrame):
    """Every rule's score beside its correlation with true credit and its update's cosine with the ideal one.

    table: of `arena_table`, or `place`. Rows are in its order; bounds and plain group credit stand out, and so does a
    row of one's own. Raises ValueError for columns that it lacks.
    """
    require(table, ["rule", "units", *PANELS], "arena_chart")
    records = table.to_dict("records")
    named = table.assign(name=[row_name(row) for row in records], kind=[_kind(row) for row in records])
    charts = [_panel(named, measure, labels=k == 0) for k, measure in enumerate(PANELS)]
    return panels(
        charts,
        "Credit rules under one budget of sampled tokens",
        "dots: means over units (policy x seed); lines: 95 % t intervals; rules in order of their score",
        describe_rows(_of(named, "score"), "name", interval=True),
        spacing=10,
    )


def save_chart(table: pd.DataFrame, path: str | Path) -> None:
    """Write `arena_chart` as .png, .svg or .html, whole; a page needs no net."""
    path = Path(path)
    chart = arena_chart(table)
    with replacement(path) as temporary:
        settings = {"inline": True} if path.suffix.lower() == ".html" else {"scale_factor": 2}
        chart.save(str(temporary), format=path.suffix.lower()[1:], **settings)


def _of(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    """A measure as the kit's columns mean, low and high; rows that have none are left out."""
    ends = {"mean": table[measure], "low": table[f"{measure}_low"], "high": table[f"{measure}_high"]}
    rows = table.assign(**ends).dropna(subset=["mean"])
    return rows.assign(low=rows["low"].fillna(rows["mean"]), high=rows["high"].fillna(rows["mean"]))


def _panel(table: pd.DataFrame, measure: str, labels: bool) -> alt.LayerChart:
    rows = _of(table, measure)[["name", "kind", "units", "mean", "low", "high"]]
    order = alt.Y("name:N", sort=table["name"].tolist(), title=None)
    order = order.scale(domain=table["name"].tolist()).axis(labelLimit=240)
    color = (
        alt.when("datum.kind == 'yours'")
        .then(alt.value(SERIES[1]))
        .when("datum.kind == 'bound'")
        .then(alt.value("black"))
        .otherwise(alt.value(ACCENT))
    )
    look = {"zero": True, "color": color, "shown": ["units"], "labels": labels, "title": TITLES[measure]}
    value = alt.X("mean:Q", title=PANELS[measure]).scale(zero=True)
    width, height = (250 if labels else 150), ROW * len(table)
    threshold = 1 if measure == "score" else None
    return forest(rows, order, value, threshold=threshold, width=width, height=height, **look)


def _kind(row: dict) -> str:
    """How a row is coloured."""
    if row.get("source") == YOURS:
        return "yours"
    return "bound" if row["rule"] in (LOWER, PLAIN, UPPER) else "rule"
