"""Pictures and text of the arena's table: rules against worlds, each beside plain group credit."""

import math
from pathlib import Path

import altair as alt
import numpy as np
import pandas as pd

from workbook.app.arena import MIX, YOURS, arena_headline, short_name
from workbook.app.half_way import KNOWN_CREDIT, LOWER, PLAIN
from workbook.files import replacement
from workbook.messages import InvalidValue, markdown_table
from workbook.theory.credit_controls import REWARD_FREE
from workbook.views.figures import forest, panels
from workbook.views.style import ACCENT, NEUTRAL, SERIES, describe_rows, require_columns

# measure: title of its axis
PANELS = {"value": "end value minus plain's", "tax": "tax over plain's"}
KINDS = {
    "yours": SERIES[1],
    "known credit, plain, permuted": "black",
    "plain with an entropy penalty": SERIES[2],
    "sees no reward": NEUTRAL,
    "other rules": ACCENT,
}
ROW = 17  # pixels
# heading of the text, of each world: (column, its form, whether its interval is shown)
MEASURES = {
    "value": ("value", ".3f", True),
    "tax": ("tax", ".2g", False),
    "pass@8": ("pass_at_8", ".3f", False),
    "octaves ahead": ("tokens", ".2f", True),
    "rate": ("lr", ".2g", False),
}
PAGE_LACKS = ("rate",)
NOT_REACHED = "not reached"
LEGEND = (
    "Rules stand in the order of their value in the last world. value, pass@8: minus plain's at"
    " equal sampled tokens, exact and on held-out prompts; tax: how far style words, which have no"
    " credit, moved, over plain's; octaves ahead rank nothing: log2 of plain's sampled tokens to"
    " half-way over the rule's, a unit that is never half-way counted with its budget; intervals:"
    " 95 % t over policies. Plain with an entropy penalty runs at plain's rate, every other rule at"
    " its own."
)


def arena_chart(table: pd.DataFrame):
    """Rules against worlds: what each ends at beside plain in value, and its tax over plain's.

    table: worlds/arena below data/figures, or of `add_to_table`; rows are in its order.

    Raises ValueError for columns that it lacks.
    """
    require_columns(table, ["world", "rule", "units", "censored", *PANELS], "arena_chart")
    records = table.to_dict("records")
    named = table.assign(name=list(map(row_name, records)), kind=list(map(row_kind, records)))
    names, kinds = (
        named["name"].drop_duplicates().tolist(),
        [kind for kind in KINDS if kind in set(named["kind"])],
    )
    y = alt.Y("name:N", sort=names, title=None).scale(domain=names).axis(labelLimit=240)
    color = alt.Color(
        "kind:N",
        sort=kinds,
        legend=alt.Legend(title=None, orient="bottom", columns=2, symbolOpacity=1),
    )
    color, charts = color.scale(domain=kinds, range=[KINDS[kind] for kind in kinds]), []
    for measure, axis in PANELS.items():
        ends = {"mean": named[measure]} | {
            end: named[f"{measure}_{end}"] for end in ("low", "high")
        }
        rows, ratio = named.assign(**ends), measure == "tax"
        ends = {"domain": _domain(rows["mean"], ratio), "clamp": True, "nice": False}
        x = alt.X("mean:Q", title=axis).scale(type="log" if ratio else "linear", **ends)
        x = x.axis(values=[0.1, 0.3, 1, 3, 10, 30]) if ratio else x
        for world, part in rows.groupby("world", sort=False):
            look = {
                "labels": not charts,
                "zero": not ratio,
                "threshold": 1 if ratio else None,
                "color": color,
            }
            look |= {
                "shown": ["units", "censored"],
                "width": 112 if ratio else 142,
                "height": ROW * len(names),
            }
            charts.append(forest(part.dropna(subset="mean"), y, x, title=f"world {world}", **look))
    return panels(
        charts,
        "Credit rules in two worlds, beside plain group advantages",
        "ranked by value in the last world; tax: how far style words moved; means over policies, 95"
        " % t intervals",
        "End value minus plain's."
        f" {describe_rows(named, 'world', 'name', value='value', form='+.3f')}",
        spacing=10,
    )


def _domain(means: pd.Series, ratio: bool) -> list[float]:
    """An axis that holds the dots of all worlds; longer intervals end at its edge."""
    values = np.log(means) if ratio else means
    low, high = min(0.0, values.min()), max(0.0, values.max())  # 0 where nothing is known
    edge = 0.15 * (high - low) or 0.1
    return [float(np.exp(end) if ratio else end) for end in (low - edge, high + edge)]


def row_name(row: dict) -> str:
    """What a row of the table is called: the rule, marked where it was measured by oneself."""
    name = "known credit" if row["rule"] == KNOWN_CREDIT else short_name(row["rule"])
    return f"{name} ({YOURS})" if row.get("source") == YOURS else name


def row_kind(row: dict) -> str:
    """Which of KINDS a row is of."""
    yours, known, mix, free, other = KINDS
    if row.get("source") == YOURS:
        return yours
    if row["rule"] == MIX:
        return mix
    return (
        known
        if row["rule"] in (KNOWN_CREDIT, PLAIN, LOWER)
        else free
        if row["rule"] in REWARD_FREE
        else other
    )


def chart_kind(path: str | Path) -> str:
    """The kind of file that a path names; ValueError for any but .png, .svg and .html."""
    if (kind := Path(path).suffix.lower()[1:]) not in ("png", "svg", "html"):
        raise InvalidValue("path", str(path), "that of a .png, .svg or .html file")
    return kind


def save_chart(table: pd.DataFrame, path: str | Path) -> None:
    """Write `arena_chart` as .png, .svg or .html, whole; a page needs no net."""
    settings = {"inline": True} if chart_kind(path) == "html" else {"scale_factor": 2}
    with replacement(Path(path)) as temporary:
        arena_chart(table).save(str(temporary), format=chart_kind(path), **settings)


def table_rows(table: pd.DataFrame, lacks: tuple[str, ...] = ()) -> list[list[str]]:
    """Heading and rows as texts: a rule a row, the measures side by side and each of them world by
    world.
    """
    measures = {name: measure for name, measure in MEASURES.items() if name not in lacks}
    worlds = table["world"].drop_duplicates().tolist()
    rows = [["rule", "units", *(f"{name}, {world}" for name in measures for world in worlds)]]
    named = table.assign(name=list(map(row_name, table.to_dict("records"))))
    for name, own in named.groupby("name", sort=False):
        known = own.set_index("world").to_dict("index")
        cells = [
            known.get(world) and _cell(known[world], *how)
            for how in measures.values()
            for world in worlds
        ]
        rows.append([name, f"{own['units'].max()}", *(cell or "" for cell in cells)])
    return rows


def _cell(row: dict, column: str, form: str, interval: bool) -> str:
    """A measure of a row as text; of tokens to half-way also in how many units the rule was never
    there.
    """
    never = round(row["censored"] * row["units"]) if column == "tokens" else 0
    if never == row["units"]:
        return NOT_REACHED
    ends = [column, *(f"{column}_{end}" for end in ("low", "high") if interval)]
    numbers = [f"{row[end]:{form}}" for end in ends if not math.isnan(row[end])]
    number = (
        numbers[0] + f" [{', '.join(numbers[1:])}]" * (len(set(numbers)) > 1) if numbers else ""
    )
    return number + f", {NOT_REACHED} in {never} of {row['units']}" * (never > 0)


def table_text(table: pd.DataFrame) -> str:
    """A table a world in Markdown, with the headline and what the columns are."""
    parts = []
    for world, own in table.groupby("world", sort=False):
        heading, *rows = table_rows(own)
        names = [name.removesuffix(f", {world}") for name in heading]
        parts += [f"**World {world}**", markdown_table(names, rows), ""]
    return "\n".join([*parts, arena_headline(table), LEGEND])


def table_markdown(table: pd.DataFrame) -> str:
    """The table for the arena's page: the headline above it, and fewer columns."""
    heading, *rows = (f"| {' | '.join(row)} |" for row in table_rows(table, PAGE_LACKS))
    return "\n".join(
        [arena_headline(table), "", heading, "|" + "---|" * (heading.count("|") - 1), *rows]
    )
