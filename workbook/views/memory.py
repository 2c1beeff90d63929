"""Charts of where a QLoRA run's memory goes, model by model."""

import altair as alt
import pandas as pd

from workbook.views.figures import rule
from workbook.views.style import finish, require_columns

# what is always there in violets, training in browns, generation in greens
COLOURS = {
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
# a legend that has room there, whatever the bars and their numbers take
BELOW = {"orient": "bottom", "columns": 4}
PHASES = {"generation": "sampling", "training": "training"}
# of a forecast's parts, as a bar that follows a slider shows them, in the first one's colour
GROUPS = {
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


def _bars(
    table: pd.DataFrame, row: str, colours: dict[str, str], title: str, **legend
) -> alt.Chart:
    """Stacked bars of columns row, part, value and rank; further arguments are the legend's."""
    names, shown = list(colours), [f"{row}:N", "part:N", alt.Tooltip("value:Q", format=",.3~g")]
    color = alt.Color("part:N", title=None, sort=names).scale(
        domain=names, range=list(colours.values())
    )
    color = color.legend(**legend) if legend else color
    x, y = (
        alt.X("sum(value):Q", title=title),
        alt.Y(f"{row}:N", sort=None, title=None).axis(labelLimit=260),
    )
    bars = alt.Chart(table).mark_bar(stroke="white", strokeWidth=0.5)
    return bars.encode(x=x, y=y, color=color, order="rank:Q", tooltip=shown)


def memory_bars(
    table: pd.DataFrame, measured: float | None = None, limit: float | None = None
) -> alt.LayerChart:
    """Forecast peaks stacked by part, one bar per case: columns case, part, mib (the rows of
    `at_peak`).

    measured: a peak in MiB, drawn as a black line.  limit: a card's memory in MiB, drawn dashed.
    """
    require_columns(table, ("case", "part", "mib"), "memory_bars")
    colours = {part: colour for part, colour in COLOURS.items() if part in set(table["part"])}
    largest = max(table.groupby("case")["mib"].sum().max(), measured or 0, limit or 0)
    unit, per = ("GiB", 1024) if largest > 8192 else ("MiB", 1)
    rows = table[["case", "part"]].assign(
        value=table["mib"] / per, rank=table["part"].map(list(colours).index)
    )
    layers, notes = [_bars(rows, "case", colours, f"forecast peak memory ({unit})", **BELOW)], []
    for value, dash, name in (
        (measured, [1, 0], "black line: measured"),
        (limit, [5, 4], "dashed: the limit"),
    ):
        if value is not None:
            layers.append(rule(value / per, "x", color="black", size=2.5, strokeDash=dash))
            notes.append(f"{name}, {value / per:,.0f} {unit}")
    totals = rows.groupby("case", sort=False)["value"].sum()
    return finish(
        alt.layer(*layers, data=rows),
        "Where the memory goes at its peak",
        "; ".join(notes) or "forecast, not measured",
        "; ".join(f"{case}: {value:,.1f} {unit}" for case, value in totals.items()),
        height=alt.Step(34),
    )


def memory_rows(forecasts: dict[str, tuple[pd.DataFrame, float]]) -> dict[str, pd.DataFrame]:
    """Tables of `memory_fit_chart`, a row per place and phase: what is always there, and what that
    phase adds.

    forecasts: {place: (table of `memory_forecast`, MiB that are free there)}.
    """
    group_of = {part: group for group, parts in GROUPS.items() for part in parts}
    parts, limits = [], []
    for place, (table, free) in forecasts.items():
        for phase, words in PHASES.items():
            now = table[table["phase"].isin(["always", phase])]
            sums = (now.groupby(now["part"].map(group_of))["mib"].sum() / 1024).reindex(
                list(GROUPS), fill_value=0.0
            )
            parts += [
                (f"{place}, {words}", part, gib, rank)
                for rank, (part, gib) in enumerate(sums.items())
            ]
            total, limit = float(sums.sum()), free / 1024
            limits.append(
                (
                    f"{place}, {words}",
                    limit,
                    total,
                    total <= limit,
                    f"{total:.3g} of {limit:.3g} GiB",
                )
            )
    return {
        "parts": pd.DataFrame(parts, columns=["row", "part", "value", "rank"]),
        "limits": pd.DataFrame(limits, columns=["row", "gib", "total", "fits", "text"]),
    }


def memory_fit_chart(parts: pd.DataFrame, limits: pd.DataFrame) -> alt.LayerChart:
    """Forecast memory by part, and a mark at what is free, red where it is too much; tables of
    `memory_rows`.
    """
    colours = {group: COLOURS[own[0]] for group, own in GROUPS.items()}
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
        alt.layer(_bars(parts, "row", colours, "forecast memory (GiB)", **BELOW), free, words),
        "What it needs, and what is free",
        "thick line: what is free; a bar beyond it, and its number in red, does not fit",
        # rows change, a description stays
        "bars by part, for each place while sampling and while training",
        height=alt.Step(32),
    )
