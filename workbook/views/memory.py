"""Charts of a QLoRA run: where its memory goes, model by model, and which of its adapters moved."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.views.figures import cells, rule
from workbook.views.style import finish, require, titled

# what is always there in blues, training in oranges, generation in greens
COLOURS = {
    "weights": "#1f5f96",
    "adapters": "#6aa5d6",
    "Adam's moments": "#9dc3e6",
    "optimizer's states": "#9dc3e6",
    "gradients": "#c9def2",
    "reference model": "#4a4a4a",
    "copies to measure by": "#9a9a9a",
    "kept for backward": "#c5690d",
    "logits": "#e9a35c",
    "dequantized layer": "#f5d0a9",
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


def adapter_movement(table: pd.DataFrame) -> alt.LayerChart:
    """Size of each adapter's change to its weights: columns layer, module, moved (a Frobenius norm)."""
    require(table, ("layer", "module", "moved"), "adapter_movement")
    color = alt.Color("moved:Q", title="|ΔW|").scale(scheme="blues", domainMin=0)
    layers, shown = alt.X("layer:O", title="layer").axis(labelAngle=0), ("layer", "module", "moved")
    return titled(
        cells(table, layers, "module", color, stroke=None, form=".4f", shown=shown, height=alt.Step(22)),
        "How far training moved each layer's weights",
        "Frobenius norm of scale × B A, the adapter's change to the 4-bit weights below it",
        f"{len(table)} adapters, from {table['moved'].min():.4f} to {table['moved'].max():.4f}.",
    )
