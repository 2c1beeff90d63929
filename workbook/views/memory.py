"""Charts of where a QLoRA run's memory goes, model by model."""

import altair as alt
import pandas as pd

from workbook.views.figures import rule
from workbook.views.style import finish, require_columns

# what is always there in violets, training in browns, generation in greens
_PART_COLORS = {
    "weights": "#4b34a0",
    "adapters": "#8f7bd8",
    "Adam's moments": "#b9adeb",
    "optimizer's states": "#b9adeb",
    "gradients": "#ddd7f6",
    "reference model": "#4a4a4a",
    "copies to measure by": "#9a9a9a",
    "kept for backward": "#935147",
    "logits": "#c08d84",
    "dequantized layer": "#e3cbc6",
    "key-value cache": "#3b8f5a",
    "prompt's activations": "#86c29a",
    "next-token logits": "#c3e3cd",
}
# below the plot a legend has room, whatever the bars and their numbers take
_LEGEND = {"orient": "bottom", "columns": 4}
# share of the longest bar from which a part can be seen, and is in the legend
_VISIBLE = 0.005
_PHASES = {"generation": "sampling", "training": "training"}
# {what a bar that follows a slider shows: the parts in it}, in the colour of the first one
_GROUPS = {
    "weights": ("weights", "reference model"),
    "adapters": ("adapters",),
    "gradients": ("gradients",),
    "optimizer": ("Adam's moments", "optimizer's states"),
    "activations": (
        "kept for backward",
        "prompt's activations",
        "dequantized layer",
        "copies to measure by",
    ),
    "KV cache": ("key-value cache",),
    "logits": ("logits", "next-token logits"),
}


def _bars(table: pd.DataFrame, row: str, colors: dict[str, str], title: str, **legend) -> alt.Chart:
    """Stacked bars of columns row, part, value and rank; further arguments are the legend's."""
    names = list(colors)
    color = alt.Color("part:N", title=None, sort=names)
    color = color.scale(domain=names, range=list(colors.values())).legend(**legend)
    x = alt.X("sum(value):Q", title=title)
    y = alt.Y(f"{row}:N", sort=None, title=None).axis(labelLimit=260)
    hints = [f"{row}:N", "part:N", alt.Tooltip("value:Q", format=",.3~g")]
    bars = alt.Chart(table).mark_bar(stroke="white", strokeWidth=0.5)
    return bars.encode(x=x, y=y, color=color, order="rank:Q", tooltip=hints)


def memory_bars(
    table: pd.DataFrame, measured: float | None = None, limit: float | None = None
) -> alt.LayerChart:
    """Forecast peaks stacked by part, one bar per case: columns case, part, mib (the rows of
    `at_peak`).

    measured: a peak in MiB, drawn as a black line.  limit: a card's memory in MiB, drawn dashed.
    """
    require_columns(table, ("case", "part", "mib"), "memory_bars")
    colors = {part: color for part, color in _PART_COLORS.items() if part in set(table["part"])}
    largest = max(table.groupby("case")["mib"].sum().max(), measured or 0, limit or 0)
    unit, per = ("GiB", 1024) if largest > 8192 else ("MiB", 1)
    rows = table[["case", "part"]].assign(
        value=table["mib"] / per, rank=table["part"].map(list(colors).index)
    )
    largest_parts = table.groupby("part")["mib"].max()
    named = [part for part in colors if largest_parts[part] >= _VISIBLE * largest]
    look = {**_LEGEND, "values": named}
    layers = [_bars(rows, "case", colors, f"forecast peak memory ({unit})", **look)]
    notes = []
    lines = [
        (measured, [1, 0], "black line: measured"),
        (limit, [5, 4], "dashed: the limit"),
    ]
    for value, dash, name in lines:
        if value is not None:
            layers.append(rule(value / per, "x", color="black", size=2.5, strokeDash=dash))
            notes.append(f"{name}, {value / per:,.0f} {unit}")
    totals = rows.groupby("case", sort=False)["value"].sum()
    title = "Where the memory goes at its peak"
    if measured is not None and len(totals) == 1:
        title = f"The forecast is {totals.iloc[0] * per / measured:.0%} of the measured peak"
    return finish(
        alt.layer(*layers, data=rows),
        title,
        "; ".join(notes) or "forecast, not measured",
        "; ".join(f"{case}: {value:,.1f} {unit}" for case, value in totals.items()),
        height=alt.Step(34),
    )


def memory_rows(forecasts: dict[str, tuple[pd.DataFrame, float]]) -> dict[str, pd.DataFrame]:
    """Tables of `memory_fit_chart`, with a bar per place and phase.

    A bar is what is always there and what its phase adds.
    forecasts: {place: (table of `memory_forecast`, MiB that are free there)}.
    """
    group_of = {part: group for group, parts in _GROUPS.items() for part in parts}
    part_rows = []
    limit_rows = []
    for place, (table, free) in forecasts.items():
        for phase, words in _PHASES.items():
            bar = f"{place}, {words}"
            present = table[table["phase"].isin(["always", phase])]
            sums = present.groupby(present["part"].map(group_of))["mib"].sum() / 1024
            sums = sums.reindex(list(_GROUPS), fill_value=0.0)
            for rank, (part, gib) in enumerate(sums.items()):
                part_rows.append((bar, part, gib, rank))
            total = float(sums.sum())
            limit = free / 1024
            text = f"{total:.3g} of {limit:.3g} GiB"
            limit_rows.append((bar, limit, total, total <= limit, text))
    return {
        "parts": pd.DataFrame(part_rows, columns=["row", "part", "value", "rank"]),
        "limits": pd.DataFrame(limit_rows, columns=["row", "gib", "total", "fits", "text"]),
    }


def memory_fit_chart(parts: pd.DataFrame, limits: pd.DataFrame) -> alt.LayerChart:
    """Forecast memory by part, with a mark at what is free; tables of `memory_rows`.

    Mark and number are red where the bar does not fit.
    """
    colors = {group: _PART_COLORS[own[0]] for group, own in _GROUPS.items()}
    base = alt.Chart(limits).encode(y=alt.Y("row:N", sort=None, title=None).axis(labelLimit=260))
    ink = alt.when("datum.fits").then(alt.value("#3b3b3b")).otherwise(alt.value("#b3261e"))
    shown = [
        "row:N",
        alt.Tooltip("total:Q", format=".3f"),
        alt.Tooltip("gib:Q", format=".3f", title="free"),
    ]
    free = base.mark_tick(thickness=3, size=30).encode(x="gib:Q", color=ink, tooltip=shown)
    words = base.mark_text(align="left", dx=5).encode(x=alt.X("total:Q"), text="text:N", color=ink)
    return finish(
        alt.layer(_bars(parts, "row", colors, "forecast memory (GiB)", **_LEGEND), free, words),
        "A run fits where its bar ends before the thick line",
        "thick line: what is free; the number of a bar that does not fit is red",
        # rows change, a description stays
        "bars by part, for each place while sampling and while training",
        height=alt.Step(32),
    )
