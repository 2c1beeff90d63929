"""The arena's table as a picture and as text: scores, what advantages know, what an update is worth."""

from __future__ import annotations

import math
from pathlib import Path

import altair as alt
import pandas as pd

from workbook.topics.arena.claims import LOWER, PLAIN, UPPER, headline
from workbook.topics.arena.study import YOURS, short_name
from workbook.training.files import replacement
from workbook.views.figures import forest, panels
from workbook.views.style import ACCENT, SERIES, describe_rows, require

PANELS = {  # measure: title of its panel, and of its axis
    "score": ("score at equal sampled tokens", "0: permuted advantages, 1: true credit"),
    "tax": ("tax of style words", "times that of dr_grpo"),
    "correlation": ("correlation", "advantages and true credit"),
    "one": ("cosine", "one update and the exact gradient"),
}
ROW = 19  # pixels
COLUMNS = {  # heading of the text: (measure, decimals, whether its interval is shown)
    "score": ("score", 2, True),
    "of the oracle's gain": ("gain", 2, True),
    "minus dr_grpo": ("over_plain", 3, True),
    "tax": ("tax", 1, True),
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
    "dr_grpo: difference of that value in the same units; tax: how far style words moved, over dr_grpo's; intervals: "
    "95 % t over units (policy x seed). cosine: of the "
    "mean update with the exact policy gradient; one batch: of a single update; noise / signal: squared, of a single "
    "update. correlation, AUROC: of advantages with true credit."
)


def arena_chart(table: pd.DataFrame):
    """Every rule's score beside its correlation with true credit and its update's cosine with the ideal one.

    table: of `arena_table`, or `place`. Rows are in its order; bounds and plain group credit stand out, and so does a
    row of one's own. Raises ValueError for columns that it lacks.
    """
    require(table, ["rule", "units", *PANELS], "arena_chart")
    records, bounds = table.to_dict("records"), (LOWER, PLAIN, UPPER)
    kinds = ["yours" if r.get("source") == YOURS else "bound" if r["rule"] in bounds else "rule" for r in records]
    named = table.assign(name=list(map(row_name, records)), kind=kinds)
    names = named["name"].tolist()
    order = alt.Y("name:N", sort=names, title=None).scale(domain=names).axis(labelLimit=240)
    color = alt.when("datum.kind == 'yours'").then(alt.value(SERIES[1]))
    color = color.when("datum.kind == 'bound'").then(alt.value("black")).otherwise(alt.value(ACCENT))
    charts, rows = [], {}
    for measure, (title, axis) in PANELS.items():
        first = measure == "score"
        ends = {"mean": named[measure], "low": named[f"{measure}_low"], "high": named[f"{measure}_high"]}
        ends |= {end: ends[end].fillna(ends["mean"]) for end in ("low", "high")}
        rows[measure] = named.assign(**ends).dropna(subset=["mean"])[["name", "kind", "units", "mean", "low", "high"]]
        ratio = measure == "tax"
        look = {"zero": not ratio, "color": color, "shown": ["units"], "labels": first, "title": title}
        look |= {"width": 250 if first else 150, "height": ROW * len(table), "threshold": 1 if first or ratio else None}
        x = alt.X("mean:Q", title=axis)
        x = x.scale(type="log", nice=False).axis(values=[0.1, 0.3, 1, 3, 10]) if ratio else x.scale(zero=True)
        charts.append(forest(rows[measure], order, x, **look))
    return panels(
        charts,
        "Credit rules under one budget of sampled tokens",
        "dots: means over units (policy x seed); lines: 95 % t intervals; rules in order of their score",
        describe_rows(rows["score"], "name", interval=True),
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


def row_name(row: dict) -> str:
    """What a row of the table is called: the rule, marked where it was measured by oneself."""
    return short_name(row["rule"]) + f" ({YOURS})" * (row.get("source") == YOURS)


def table_rows(table: pd.DataFrame) -> list[list[str]]:
    """Heading and rows of the table as texts."""
    rows = [["rule", "units", *COLUMNS]]
    for row in table.to_dict("records"):
        cells = [row_name(row), f"{row['units'] or ''}"]
        for name, decimals, interval in COLUMNS.values():
            value, low, high = (row[name + end] for end in ("", "_low", "_high"))
            shown = f" [{low:.{decimals}f}, {high:.{decimals}f}]" * (interval and high > low)
            cells.append("" if math.isnan(value) else f"{value:.{decimals}f}{shown}")
        rows.append(cells)
    return rows


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
