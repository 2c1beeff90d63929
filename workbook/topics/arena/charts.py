"""The arena's table as a picture and as text: scores, what advantages know, what an update is worth."""

from __future__ import annotations

import math
from pathlib import Path

import altair as alt
import pandas as pd

from workbook.topics.arena.claims import LOWER, PLAIN, UPPER, headline
from workbook.topics.arena.explore import YOURS, short_name
from workbook.training.files import replacement
from workbook.views.figures import forest, panels
from workbook.views.style import ACCENT, SERIES, describe_rows, require

PANELS = {  # measure: title of its panel, and of its axis
    "score": ("score at equal sampled tokens", "0: permuted advantages, 1: true credit"),
    "correlation": ("correlation", "advantages and true credit"),
    "one": ("cosine", "one update and the exact gradient"),
}
ROW = 19  # pixels
COLUMNS = {  # heading of the text: (measure, decimals, whether its interval is shown)
    "score": ("score", 2, True),
    "of the oracle's gain": ("gain", 2, True),
    "minus dr_grpo": ("over_plain", 3, True),
    "held-out value": ("value", 3, False),
    "cosine": ("cosine", 2, False),
    "one batch": ("one", 2, False),
    "noise / signal": ("noise", 2, False),
    "correlation": ("correlation", 2, False),
    "AUROC": ("auroc", 2, False),
    "s / batch": ("step_s", 2, False),
}
README_LACKS = ("held-out value", "cosine", "AUROC", "s / batch")
LEGEND = (
    "score: held-out exact value at equal sampled tokens, 0 as for permuted advantages, 1 as for true credit; minus "
    "dr_grpo: difference of that value in the same units; intervals: 95 % t over units (policy x seed). cosine: of the "
    "mean update with the exact policy gradient; one batch: of a single update; noise / signal: squared, of a single "
    "update. correlation, AUROC: of advantages with true credit."
)


def arena_chart(table: pd.DataFrame):
    """Every rule's score beside its correlation with true credit and its update's cosine with the ideal one.

    table: of `arena_table`, or `place`. Rows are in its order; bounds and plain group credit stand out, and so does a
    row of one's own. Raises ValueError for columns that it lacks.
    """
    require(table, ["rule", "units", *PANELS], "arena_chart")
    records = table.to_dict("records")
    bounds = (LOWER, PLAIN, UPPER)
    kinds = ["yours" if r.get("source") == YOURS else "bound" if r["rule"] in bounds else "rule" for r in records]
    named = table.assign(name=list(map(row_name, records)), kind=kinds)
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
    kind = Path(path).suffix.lower()[1:]
    if kind not in ("png", "svg", "html"):
        raise ValueError(f"{path} must end in .png, .svg or .html.")
    with replacement(Path(path)) as temporary:
        settings = {"inline": True} if kind == "html" else {"scale_factor": 2}
        arena_chart(table).save(str(temporary), format=kind, **settings)


def _of(table: pd.DataFrame, measure: str) -> pd.DataFrame:
    """A measure as the columns mean, low and high; rows that have none are left out."""
    ends = {"mean": table[measure], "low": table[f"{measure}_low"], "high": table[f"{measure}_high"]}
    rows = table.assign(**ends).dropna(subset=["mean"])
    return rows.assign(low=rows["low"].fillna(rows["mean"]), high=rows["high"].fillna(rows["mean"]))


def _panel(table: pd.DataFrame, measure: str, labels: bool) -> alt.LayerChart:
    title, axis = PANELS[measure]
    order = alt.Y("name:N", sort=table["name"].tolist(), title=None)
    order = order.scale(domain=table["name"].tolist()).axis(labelLimit=240)
    color = alt.when("datum.kind == 'yours'").then(alt.value(SERIES[1]))
    color = color.when("datum.kind == 'bound'").then(alt.value("black")).otherwise(alt.value(ACCENT))
    look = {"zero": True, "color": color, "shown": ["units"], "labels": labels, "title": title}
    look |= {"width": 250 if labels else 150, "height": ROW * len(table)}
    rows = _of(table, measure)[["name", "kind", "units", "mean", "low", "high"]]
    value = alt.X("mean:Q", title=axis).scale(zero=True)
    return forest(rows, order, value, threshold=1 if measure == "score" else None, **look)


def row_name(row: dict) -> str:
    """What a row of the table is called: the rule, marked where it was measured by oneself."""
    return short_name(row["rule"]) + f" ({YOURS})" * (row.get("source") == YOURS)


def table_rows(table: pd.DataFrame) -> list[list[str]]:
    """Heading and rows of the table as texts."""
    records = table.to_dict("records")
    cells = [[_cell(row, *column) for column in COLUMNS.values()] for row in records]
    units = [f"{row['units']}" if row["units"] else "" for row in records]
    names = map(row_name, records)
    return [["rule", "units", *COLUMNS], *([name, n, *own] for name, n, own in zip(names, units, cells, strict=True))]


def _cell(row: dict, name: str, decimals: int, interval: bool) -> str:
    """A number with its interval, in brackets; empty for what is not there."""
    value, low, high = row[name], row[f"{name}_low"], row[f"{name}_high"]
    if math.isnan(value):
        return ""
    shown = interval and not math.isnan(low) and high > low
    return f"{value:.{decimals}f}" + (f" [{low:.{decimals}f}, {high:.{decimals}f}]" if shown else "")


def table_text(table: pd.DataFrame) -> str:
    """The table for a terminal, with its headline and what the columns are."""
    rows = table_rows(table)
    widths = [max(map(len, column)) + 2 for column in zip(*rows, strict=True)]
    lines = ["".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    measured = table[table["source"] != YOURS] if "source" in table else table
    return "\n".join([*lines, "", headline(measured), LEGEND])


def table_markdown(table: pd.DataFrame) -> str:
    """The table for README: the headline above it, and fewer columns."""
    heading, *rows = table_rows(table)
    kept = [place for place, name in enumerate(heading) if name not in README_LACKS]
    lines = [f"| {' | '.join(row[place] for place in kept)} |" for row in (heading, *rows)]
    return "\n".join([headline(table), "", lines[0], "|" + "---|" * len(kept), *lines[1:]])
