"""Charts of a QLoRA run: where its memory goes, model by model, and which of its adapters moved."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.views.figures import cells, rule
from workbook.views.style import finish, require, titled

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


def memory_bars(table: pd.DataFrame, measured: float | None = None, limit: float | None = None) -> alt.LayerChart:
    """Forecast peaks stacked by part, one bar per case: columns case, part, mib (the rows of `at_peak`).

    measured: a peak in MiB, drawn as a black line.  limit: a card's memory in MiB, drawn dashed.
    """
    require(table, ("case", "part", "mib"), "memory_bars")
    parts = [part for part in COLOURS if part in set(table["part"])]
    largest = max(table.groupby("case")["mib"].sum().max(), measured or 0, limit or 0)
    unit, per = ("GiB", 1024) if largest > 8192 else ("MiB", 1)
    rows = table[["case", "part", "mib"]].assign(value=table["mib"] / per, rank=table["part"].map(parts.index))
    x = alt.X("sum(value):Q", title=f"forecast peak memory ({unit})")
    layers = [
        alt.Chart(rows)
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            x=x,
            y=alt.Y("case:N", sort=None, title=None).axis(labelLimit=260),
            color=alt.Color("part:N", title=None, sort=parts).scale(domain=parts, range=[COLOURS[p] for p in parts]),
            order="rank:Q",
            tooltip=["case:N", "part:N", alt.Tooltip("value:Q", format=",.1f", title=unit)],
        )
    ]
    notes = []
    for value, dash, name in ((measured, [1, 0], "black line: measured"), (limit, [5, 4], "dashed: the limit")):
        if value is not None:
            layers.append(rule(value / per, "x", color="black", size=2.5, strokeDash=dash))
            notes.append(f"{name}, {value / per:,.0f} {unit}")
    totals = rows.groupby("case", sort=False)["value"].sum()
    return finish(
        alt.layer(*layers, data=rows),
        "Where the memory goes at its peak",
        "; ".join(notes) or "forecast, not measured",
        "; ".join(f"{case}: {value:,.1f} {unit}" for case, value in totals.items()),
        width=430,
        height=alt.Step(34),
    )


PHASES = {"generation": "sampling", "training": "training"}
GROUPS = {  # of a forecast's parts, as a bar that follows a slider shows them
    "weights": ("weights", "reference model"),
    "adapters": ("adapters",),
    "gradients": ("gradients",),
    "optimizer": ("Adam's moments", "optimizer's states"),
    "activations": ("kept for backward", "prompt's activations", "dequantized layer", "copies to measure by"),
    "KV cache": ("key-value cache",),
    "logits": ("logits", "next-token logits"),
}
GROUP_COLOURS = ["#4b34a0", "#8f7bd8", "#ddd7f6", "#b9adeb", "#935147", "#3b8f5a", "#c08d84"]
TOO_MUCH = "#b3261e"


def memory_rows(forecasts: dict[str, tuple[pd.DataFrame, float]]) -> dict[str, pd.DataFrame]:
    """Tables of `memory_fit_chart`: parts (row, part, gib, rank) and limits (row, gib, total, fits, text).

    forecasts: {place: (table of `memory_forecast`, MiB that are free there)}.  A row is a place in one of its PHASES:
    what is always there, and what that phase adds.
    """
    group_of = {part: group for group, parts in GROUPS.items() for part in parts}
    parts, limits = [], []
    for place, (table, free) in forecasts.items():
        for phase, words in PHASES.items():
            row = f"{place}, {words}"
            sums = dict.fromkeys(GROUPS, 0.0)
            for part, mib, when in table[["part", "mib", "phase"]].itertuples(index=False):
                sums[group_of[part]] += mib / 1024 * (when in ("always", phase))
            parts += [(row, part, gib, rank) for rank, (part, gib) in enumerate(sums.items())]
            total, limit = sum(sums.values()), free / 1024
            limits.append((row, limit, total, total <= limit, f"{total:.3g} of {limit:.3g} GiB"))
    return {
        "parts": pd.DataFrame(parts, columns=["row", "part", "gib", "rank"]),
        "limits": pd.DataFrame(limits, columns=["row", "gib", "total", "fits", "text"]),
    }


def memory_fit_chart(parts: pd.DataFrame, limits: pd.DataFrame) -> alt.LayerChart:
    """Forecast memory by part, a bar per place and phase, and a mark at what is free there; red where it is too much.

    parts, limits: of `memory_rows`.
    """
    require(parts, ("row", "part", "gib", "rank"), "memory_fit_chart")
    names = list(GROUPS)
    y = alt.Y("row:N", sort=None, title=None).axis(labelLimit=260)
    bars = (
        alt.Chart(parts)
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            x=alt.X("sum(gib):Q", title="forecast memory (GiB)"),
            y=y,
            color=alt.Color("part:N", title=None, sort=names)
            .scale(domain=names, range=GROUP_COLOURS)
            .legend(orient="bottom", columns=4),  # beside the bars, the longest one's number would run into it
            order="rank:Q",
            tooltip=["row:N", "part:N", alt.Tooltip("gib:Q", format=".3f", title="GiB")],
        )
    )
    base = alt.Chart(limits).encode(y=y)
    ink = alt.when("datum.fits").then(alt.value("#3b3b3b")).otherwise(alt.value(TOO_MUCH))
    shown = ["row:N", alt.Tooltip("total:Q", format=".3f"), alt.Tooltip("gib:Q", format=".3f", title="free")]
    free = base.mark_tick(thickness=3, size=30).encode(x="gib:Q", color=ink, tooltip=shown)
    words = base.mark_text(align="left", dx=5, fontSize=11).encode(x=alt.X("total:Q"), text="text:N", color=ink)
    return finish(
        alt.layer(bars, free, words),
        "What it needs, and what is free",
        "thick line: what is free; a bar beyond it, and its number in red, does not fit",
        "; ".join(f"{row.row}: {row.text}" for row in limits.itertuples()),
        width=430,
        height=alt.Step(32),
    )


def adapter_movement(table: pd.DataFrame) -> alt.LayerChart:
    """Size of each adapter's change to its weights: columns layer, module, moved (a Frobenius norm)."""
    require(table, ("layer", "module", "moved"), "adapter_movement")
    color = alt.Color("moved:Q", title="|ΔW|").scale(scheme="purples", domainMin=0)
    layers, shown = alt.X("layer:O", title="layer").axis(labelAngle=0), ("layer", "module", "moved")
    return titled(
        cells(table, layers, "module", color, stroke=None, form=".4f", shown=shown, height=alt.Step(22)),
        "How far training moved each layer's weights",
        "Frobenius norm of scale × B A, the adapter's change to the 4-bit weights below it",
        f"{len(table)} adapters, from {table['moved'].min():.4f} to {table['moved'].max():.4f}.",
    )
