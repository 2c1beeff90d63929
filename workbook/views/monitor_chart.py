"""What a run has logged, drawn: reward large, six small panels below it; pure functions over `Run.metrics`."""

from __future__ import annotations

from typing import NamedTuple

import altair as alt
import pandas as pd

from workbook.views.style import NEUTRAL, SERIES, printable_table, require

MAX_POINTS = 300  # of one curve
SHOWN, HIDDEN_OPACITY = "shown", 0.06  # the selection of runs by clicks on the legend; opacity of the others
SMALL, GAP, AXIS = 204, 14, 44  # widths: of a small panel, between two, and of an axis with its labels


class Panel(NamedTuple):
    """A quantity: its title with units, the logged columns to take it from (the first that is there), the format of
    its newest value, and what its axis reaches at least."""

    title: str
    columns: tuple[str, ...]
    form: str
    top: float


PANELS = {
    "reward": Panel("mean reward of the step's rollouts", ("reward",), ".3f", 1),
    "gradient norm": Panel("gradient norm", ("grad_norm",), ".3g", 0.01),
    "entropy": Panel("entropy (nats)", ("entropy",), ".3f", 0.1),
    "residual": Panel(
        "cancellation residual (0 to 1)", ("cancellation/weight_residual", "cancellation/batch_residual"), ".2f", 1
    ),
    "clipped": Panel("clipped share of tokens", ("cancellation/clipped", "clip_ratio/region_mean"), ".1%", 0.1),
    "speed": Panel("tokens per second", ("tokens_per_second",), ",.0f", 10),
    "memory": Panel("peak memory (MiB)", ("peak_memory_mib",), ",.0f", 10),
}


def tokens_per_second(metrics: pd.DataFrame) -> pd.Series:
    """Tokens of a generation batch, prompts included, over the seconds of its optimizer steps so far.

    metrics: columns num_tokens (a running total, logged where a batch was sampled) and step_time; else all is NaN.
    """
    if not {"num_tokens", "step_time"} <= set(metrics):
        return pd.Series(float("nan"), index=metrics.index)
    sampled = metrics["num_tokens"].dropna()
    seconds = metrics.groupby(metrics["num_tokens"].notna().cumsum())["step_time"].transform("sum")
    return sampled.diff().fillna(sampled).div(seconds.loc[sampled.index]).reindex(metrics.index)


def monitor_table(metrics: pd.DataFrame, max_points: int = MAX_POINTS) -> pd.DataFrame:
    """What a run has logged as rows (step, panel, value), one for each step and entry of PANELS that has a value.

    metrics: as of `Run.metrics`.  max_points: of a longer run, every k-th row of a panel and its newest.
    """
    require(metrics, ("step", "reward"), "monitor_table")
    logged, tables = metrics.assign(tokens_per_second=tokens_per_second(metrics)), []
    for name, panel in PANELS.items():
        column = next((column for column in panel.columns if column in logged), None)
        if column is not None:
            table = logged[["step", column]].set_axis(["step", "value"], axis=1).dropna()
            every = -(-len(table) // max_points) or 1
            tables.append(table.iloc[::-1].iloc[::every].iloc[::-1].assign(panel=name))
    return pd.concat(tables, ignore_index=True)[["step", "panel", "value"]].astype({"step": float, "value": float})


def monitor_frame(
    table: pd.DataFrame, total: int = 0, target: float | None = None, label: str = "this run"
) -> pd.DataFrame:
    """What surrounds the curves of a `monitor_table`: panel, run, step, reach, newest, note, target; two rows each.

    Axes reach from the first row's (step, reach) to the second's at least; newest and note are text.
    """
    last = int(table["step"].max()) if len(table) else 0
    newest = table.groupby("panel")["value"].last()
    rows = []
    for name, panel in PANELS.items():
        text = format(newest[name], panel.form) if name in newest else ""
        note = "not logged" if len(table) and name not in newest else ""
        line = target if name == "reward" else None
        rows.append({"panel": name, "step": 0, "reach": 0.0, "newest": text, "note": note, "target": line})
        end = {"step": max(total, last) or 10, "reach": float(panel.top)}
        rows.append({"panel": name, **end, "newest": "", "note": "", "target": None})
    return pd.DataFrame(rows).astype({"target": float}).assign(run=label)


def monitor_rows(metrics: pd.DataFrame, label: str, beside: pd.DataFrame | None = None) -> pd.DataFrame:
    """`monitor_table` of this run, called `label`, and of those beside it: columns run and mine as well.

    beside: metrics of other runs with a column run, their names.
    """
    others = [] if beside is None else printable_table(beside).groupby("run", sort=False)
    tables = [monitor_table(table.drop(columns="run")).assign(run=name, mine=False) for name, table in others]
    tables.append(monitor_table(metrics).assign(run=label, mine=True))
    return pd.concat([table for table in tables if len(table)] or tables, ignore_index=True)


def monitor_chart(rows: pd.DataFrame, frame: pd.DataFrame, legend: bool = False) -> alt.VConcatChart:
    """Reward large, the other panels small below it: `rows` of `monitor_rows` within the `frame` of `monitor_frame`.

    legend: name the runs, of which a click shows one alone, and further clicks others, too.  The spec depends on
    nothing else, so that a run can be followed by rows alone.
    """
    first, *others = PANELS
    wide = 3 * SMALL + 2 * (GAP + AXIS + 6)
    small = [_panel(rows, frame, name, SMALL, 80, legend, axis=i > 2) for i, name in enumerate(others)]
    chart = alt.vconcat(
        _panel(rows, frame, first, wide, 170, legend), alt.concat(*small, columns=3, spacing={"column": GAP, "row": 14})
    )
    curves = ", ".join(panel.title for panel in PANELS.values())
    title = alt.TitleParams("What the run has logged", anchor="start", offset=8)
    return chart.properties(title=title, description=f"What the run has logged, by optimizer step: {curves}.")


def _panel(rows, frame, name: str, width: int, height: int, legend: bool, axis: bool = True) -> alt.LayerChart:
    """A panel with its newest value at the upper right, within axes that the frame's invisible points keep open."""
    here, form, reward = alt.datum.panel == name, PANELS[name].form, name == "reward"
    step = alt.X("step:Q", title="optimizer step" if axis else None).scale(nice=False)
    whole = "datum.value % 1 ? '' : format(datum.value, ',d')"  # there are no half steps
    step = step.axis(labelExpr=whole, tickMinStep=1, grid=False)
    ticks = {",.0f": ",.0f", ".1%": "~%"}.get(form, "~g")
    value = alt.Y("value:Q", title=None).axis(tickCount=height / 30, format=ticks, minExtent=AXIS, maxExtent=AXIS)
    names = alt.Legend(title=None, orient="bottom", symbolOpacity=1, columns=2, labelLimit=340) if legend else None
    color = alt.Color("run:N", legend=names).scale(range=SERIES)
    opacity = (
        alt.when(alt.param(SHOWN)).then(alt.value(1)).otherwise(alt.value(HIDDEN_OPACITY)) if legend else alt.value(1)
    )
    lines = alt.Chart(rows).transform_filter(here).encode(x=step, y=value, color=color, opacity=opacity)
    points = lines
    if not reward:  # the newest point alone
        points = lines.transform_joinaggregate(last="max(step)", groupby=["run"])
        points = points.transform_filter("datum.step == datum.last")
    thick = alt.StrokeWidth(condition={"test": "datum.mine", "value": 2.4}, value=1.2)
    shown = [alt.Tooltip("run:N"), alt.Tooltip("step:Q"), alt.Tooltip("value:Q", format=form, title=name)]
    around = alt.Chart(frame).transform_filter(here)
    newest = around.mark_text(align="right", fontSize=12, fontWeight="bold", aria=False)
    note = around.mark_text(color=NEUTRAL, aria=False)
    open_axes = around.mark_point(opacity=0, aria=False).encode(x=step, y=alt.Y("reach:Q"), color=color)
    if reward and legend:
        open_axes = open_axes.add_params(alt.selection_point(SHOWN, fields=["run"], bind="legend", toggle="true"))
    layers = [
        open_axes,
        lines.mark_line(strokeJoin="round").encode(strokeWidth=thick, detail=["run:N", "mine:N"]),
        points.mark_circle(size=30, cursor="pointer").encode(tooltip=shown),
        newest.encode(x=alt.XValue(width), y=alt.YValue(-15), text=alt.Text("newest:N")),
        note.encode(x=alt.XValue(width / 2), y=alt.YValue(height / 2), text=alt.Text("note:N")),
    ]
    if reward:
        aim = around.transform_filter("isValid(datum.target)").transform_calculate(aim="'aim ' + datum.target")
        named = aim.mark_text(align="right", dy=9, color=NEUTRAL, aria=False)
        layers += [
            aim.mark_rule(strokeDash=[4, 4], color=NEUTRAL, aria=False).encode(y=alt.Y("target:Q")),
            named.encode(x=alt.XValue(width - 4), y=alt.Y("target:Q"), text=alt.Text("aim:N")),
        ]
    look = {"anchor": "start", "frame": "group", "fontSize": 12, "fontWeight": "normal", "offset": -9}
    return alt.layer(*layers).properties(width=width, height=height, title=alt.TitleParams(PANELS[name].title, **look))
