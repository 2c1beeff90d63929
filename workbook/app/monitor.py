"""RunMonitor: watch a run that trains in another process, stop it, resume it, or start one.

A thread reads the run's folder and sets traits of widgets already on the page; it never prints and
never displays, which from a thread would land in the wrong cell. The thread ends with the run, and
the run needs neither this kernel nor this page, so a new monitor finds it again.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import altair as alt
import ipywidgets
import pandas as pd

from workbook.app.diagnosis import diagnose
from workbook.messages import InvalidValue, pace
from workbook.views.charts import references
from workbook.views.live import LiveChart, close, display_widget
from workbook.views.style import SERIES, escape, notice, printable_table, require_columns, visible

ENDED = {"finished": "success", "stopped": "warning", "failed": "danger", "interrupted": "warning"}
NOTHING = pd.DataFrame({"step": pd.Series(dtype=int), "reward": pd.Series(dtype=float)})
UNSTARTED = {"state": "not started", "step": 0, "total": 0, "message": "Press Start."}
TEXT = "font-family: monospace; overflow-wrap: anywhere; unicode-bidi: isolate; vertical-align: top"


class RunMonitor:
    """A run's curves, state, progress, diagnosis and newest completions, live, with Stop, Resume
    and, where it may, Start. A click on a point of the curve shows that step's rollouts, if the run
    records its tokens.

    run: what to watch, a `workbook.training.Run`, also one that another kernel began:
    RunMonitor(latest_run("chain")).
    start: a callable that begins a run, for the Start button; the new run is drawn beside the one
    before.
    target: a reward to draw a line at.  beside: metrics of other runs with a column run, their
    names.
    interval: seconds between two readings of the run's folder.

    `await monitor` waits for the run's end while the buttons answer.  ValueError where there is
    neither run nor start.
    """

    def __init__(
        self,
        run=None,
        start: Callable | None = None,
        target: float | None = None,
        beside: pd.DataFrame | None = None,
        interval: float = 0.5,
    ):
        if run is None and start is None:
            raise InvalidValue("run", None, "a run to watch, or start= a function that begins one")
        self.run, self._start, self.beside = run, start, beside
        self.label, self.started, self.interval = (
            "your run 1" if run is None else "this run",
            0,
            interval,
        )
        self._metrics, self._total, self._seen = NOTHING, 0, None
        self._handle = self._thread = self._heatmap = None
        look = {"legend": beside is not None or start is not None, "target": target}
        self.chart = LiveChart(
            lambda rows, frame: monitor_chart(rows, frame, **look), **self._tables(0)
        )
        self.chart.on_click(self._clicked)
        self.progress = ipywidgets.IntProgress(min=0, max=1, layout={"width": "320px"})
        self.line, self.diagnosis = (
            ipywidgets.HTML(layout={"max_width": "860px"}) for _ in range(2)
        )
        self.rollouts = ipywidgets.VBox(layout={"max_width": "860px"})
        scrolls = {
            "max_height": "220px",
            "overflow": "auto",
            "border": "1px solid #999",
            "padding": "4px",
        }
        self.completions = ipywidgets.HTML(layout={"max_width": "860px"} | scrolls)
        self.completions.tabbable = True  # what scrolls is reached by keys
        self.start_button = self._button("Start", "play", self.start, button_style="primary")
        self.stop_button = self._button(
            "Stop", "stop", self.stop, tooltip="Stop after the step in hand"
        )
        self.resume_button = self._button(
            "Resume", "play", self.resume, tooltip="Go on from its checkpoint"
        )
        buttons = [self.stop_button, self.resume_button, self.progress]
        controls = ipywidgets.HBox([self.start_button, *buttons] if start else buttons)
        self.box = ipywidgets.VBox(
            [controls, self.line, self.chart, self.diagnosis, self.rollouts, self.completions]
        )
        self.box.add_class("workbook-monitor")
        self._answer(self._look)

    def display(self, **_) -> None:
        """Put it on the page, and watch the run from now on."""
        self._handle = display_widget(self.box, self.chart)
        self._follow()

    _ipython_display_ = display

    def close(self) -> None:
        """Take it off the page and free it; the run goes on."""
        # the box may be without Start
        for widget in (*self.rollouts.children, self.box, self.start_button):
            close(widget)
        self._heatmap = None

    def start(self) -> None:
        """Begin a new run and watch it; the one before becomes a curve beside it. Nothing while one
        is going on.
        """
        if self.run is not None and self.run.status()["state"] not in ENDED:
            return
        run = self._start()
        if len(self._metrics):
            self.beside = pd.concat(
                [self.beside, self._metrics.assign(run=self.label)], ignore_index=True
            )
        self.run, self.started = run, self.started + 1
        self.label = f"your run {self.started}"
        self._metrics, self._total, self._seen = NOTHING, 0, None
        self._follow()

    def stop(self) -> None:
        """Ask the run to stop after the step in hand; nothing once it has ended."""
        if self.run.status()["state"] not in ENDED:
            self.run.stop()
            self._look()

    def resume(self) -> None:
        """Let a stopped run go on from its newest checkpoint, and watch it; one that already does
        is only watched.
        """
        if self.run.status()["state"] in ENDED:
            self.run.resume()
        self._follow()

    def show_step(self, step: int) -> None:
        """Show the rollouts of a step, or of the nearest that was recorded; ValueError if the run
        records no tokens.
        """
        if self._heatmap is None or self._heatmap.run is not self.run:
            # it brings what explains a token, which a curve needs not
            from workbook.views.heatmap import TokenHeatmap

            before, self._heatmap = self.rollouts.children, TokenHeatmap(self.run)
            self.rollouts.children = (self._heatmap,)
            for old in before:
                close(old)
        self._heatmap.show_step(step)

    def _clicked(self, row: dict) -> None:
        if (
            row.get("mine")
            and isinstance(row.get("step"), int | float)
            and hasattr(self.run, "token_steps")
        ):
            self._answer(lambda: self.show_step(int(row["step"])))

    async def until(self, step: float = float("inf")) -> dict:
        """Wait until the run has reached a step, or ended, and return its status; buttons answer
        meanwhile.

        Interrupting the kernel stops the run, too.  Raises RuntimeError if the run failed.
        """
        if self._handle is None:
            self.display()
        while self._watching and self.run.status()["step"] < step:
            try:
                await asyncio.sleep(0.1)  # the kernel notices clicks and interrupts in between
            except asyncio.CancelledError:  # how an interrupt arrives here
                self.stop()
                step = float("inf")
        status = self.run.status()
        if not self._watching:  # the last look, and the picture that stays where no kernel runs
            self._look()
            display_widget(self.box, self.chart, self._handle)
        if status["state"] == "failed":
            raise RuntimeError(status["message"])
        return status

    def __await__(self):
        return self.until().__await__()

    @property
    def _watching(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _follow(self) -> None:
        if self.run is not None and not self._watching:
            self._thread = threading.Thread(target=self._watch, daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        try:
            while self.box.comm is not None and not self._look():  # a closed widget has no comm
                time.sleep(self.interval)
        except Exception as error:  # until() meets it again, and raises it where it can be seen
            self._show_line(f"The run can't be read: {error}", error=True)

    def _look(self) -> bool:
        """Bring everything on the page up to date; True once the run has ended, or if there is none
        yet.
        """
        status = self.run.status() if self.run is not None else dict(UNSTARTED)
        # a run that starts again knows it only later
        self._total = status["total"] = status["total"] or self._total
        state, ended = status["state"], status["state"] in ENDED
        empty = self.run is None and self.beside is None
        for part in (self.chart, self.completions, self.progress):  # nothing ran so far
            part.layout.display = "none" if empty else ""
        if (seen := (id(self.run), status["step"], status["total"])) != self._seen:
            if self.run is not None:
                self._metrics = self.run.metrics()
                self.completions.value = completions_html(self.run.samples())
                self.diagnosis.value = notice(*diagnose(self._metrics), error=True)
            self.chart.push(**self._tables(status["total"]))
            self._seen = seen
        self.progress.max, self.progress.value = max(status["total"], 1), status["step"]
        self.progress.bar_style = ENDED.get(state, "")
        running = self.run is not None and not ended
        stopping = running and self.run.stopping
        self.start_button.disabled = running
        self.stop_button.disabled = stopping or not running
        self.resume_button.disabled = not ended or state == "finished"
        self._show_line(sentence(status, self._metrics, stopping), error=state == "failed")
        return not running

    def _tables(self, steps: int) -> dict[str, pd.DataFrame]:
        rows = monitor_rows(self._metrics, self.label, self.beside)
        return {"rows": rows, "frame": monitor_frame(rows[rows["mine"]], steps, self.label)}

    def _button(self, label: str, icon: str, act: Callable, **look) -> ipywidgets.Button:
        button = ipywidgets.Button(description=label, icon=icon, **look)
        button.on_click(lambda _: self._answer(act))
        return button

    def _answer(self, act: Callable) -> None:
        """Do what a button says and show what an error says, since nobody reads a kernel's log."""
        try:
            act()
        except Exception as error:
            self._show_line(str(error), error=True)

    def _show_line(self, text: str, error: bool = False) -> None:
        self.line.value = notice(text, error=error, announced=False)


def sentence(status: dict, metrics: pd.DataFrame, stopping: bool = False) -> str:
    """A run's state in words: what it does, how far it is, how long it will still take."""
    state, message = status["state"], status["message"]
    if stopping:
        return "stopping after the step in hand ..."
    if state == "starting":
        return f"starting: {message.rstrip('.')} ... The first step will tell how long all take."
    if state != "running":
        return f"{state}: {message}"
    seconds = metrics["step_time"] if "step_time" in metrics else pd.Series(dtype=float)
    done = status["step"] if len(seconds) else 0
    return (
        "running: step"
        f" {pace(done, status['total'], done * seconds.mean(), seconds.tail(20).mean())}. {message}"
    )


def completions_html(samples: pd.DataFrame) -> str:
    """`Run.samples` as an HTML table; a model's text stays text: no markup, nothing invisible."""
    if not len(samples):
        return "<i>No completions yet.</i>"
    rows = []
    for row in samples.itertuples():
        texts = (escape(visible(text, 500, space=" ")) for text in (row.prompt, row.completion))
        cells = "".join(f'<td dir="ltr" style="{TEXT}">{text}</td>' for text in texts)
        rows.append(f"<tr><td>{row.reward:.3g}</td><td>{row.advantage:+.2f}</td>{cells}</tr>")
    names = ("reward", "advantage", "prompt", "completion")
    head = "".join(f'<th style="text-align: left">{name}</th>' for name in names)
    caption = f"Some completions sampled for step {escape(samples['step'].iloc[0])}"
    return (
        '<table style="border-spacing: 8px 2px; font-size: 12px; line-height: 1.35">'
        f'<caption style="text-align: left">{caption}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


MAX_POINTS = 300  # of one curve
RESIDUALS = ("cancellation/weight_residual", "cancellation/batch_residual")
# widths: of a small panel, between two, and of an axis with its labels
SMALL, GAP, AXIS = 171, 14, 44


class Panel(NamedTuple):
    title: str  # with units
    columns: tuple[str, ...]  # logged, to take it from: the first that is there
    form: str  # of its newest value
    top: float  # what its axis reaches at least


PANELS = {
    "reward": Panel("mean reward of the step's rollouts", ("reward",), ".3f", 1),
    "gradient norm": Panel("gradient norm", ("grad_norm",), ".3g", 0.01),
    "entropy": Panel("entropy (nats)", ("entropy",), ".3f", 0.1),
    "residual": Panel("cancellation residual", RESIDUALS, ".2f", 1),
    "clipped": Panel(
        "clipped share of tokens", ("cancellation/clipped", "clip_ratio/region_mean"), ".1%", 0.1
    ),
    "speed": Panel("tokens per second", ("tokens_per_second",), ",.0f", 10),
    "memory": Panel("peak memory (MiB)", ("peak_memory_mib",), ",.0f", 10),
}


def monitor_table(metrics: pd.DataFrame, max_points: int = MAX_POINTS) -> pd.DataFrame:
    """What a run has logged as rows (step, panel, value); of a longer run than max_points every
    k-th row.

    Speed: tokens of a generation batch, prompts included, over the seconds of its optimizer steps
    so far.
    """
    require_columns(metrics, ("step", "reward"), "monitor_table")
    logged, tables = metrics.assign(tokens_per_second=float("nan")), []
    if {"num_tokens", "step_time"} <= set(metrics):
        # a running total, logged where a batch was sampled
        sampled = metrics["num_tokens"].dropna()
        seconds = metrics.groupby(metrics["num_tokens"].notna().cumsum())["step_time"].transform(
            "sum"
        )
        logged["tokens_per_second"] = sampled.diff().fillna(sampled) / seconds.loc[sampled.index]
    for name, panel in PANELS.items():
        column = next((column for column in panel.columns if column in logged), None)
        if column is not None:
            table = logged[["step", column]].set_axis(["step", "value"], axis=1).dropna()
            every = -(-len(table) // max_points) or 1
            tables.append(table.iloc[::-1].iloc[::every].iloc[::-1].assign(panel=name))
    return pd.concat(tables, ignore_index=True)[["step", "panel", "value"]].astype(
        {"step": float, "value": float}
    )


def monitor_frame(table: pd.DataFrame, total: int = 0, label: str = "") -> pd.DataFrame:
    """What surrounds the curves of a `monitor_table`: panel, run, step, reach, newest; two rows
    each.

    Axes reach from the first row's (step, reach) to the second's at least; newest is text.
    """
    last = int(table["step"].max()) if len(table) else 0
    newest = table.groupby("panel")["value"].last()
    rows = []
    for name, panel in PANELS.items():
        text = format(newest[name], panel.form) if name in newest else ""
        rows.append({"panel": name, "step": 0, "reach": 0.0, "newest": text})
        rows.append(
            {"panel": name, "step": max(total, last) or 10, "reach": float(panel.top), "newest": ""}
        )
    return pd.DataFrame(rows).assign(run=label)


def monitor_rows(
    metrics: pd.DataFrame, label: str, beside: pd.DataFrame | None = None
) -> pd.DataFrame:
    """`monitor_table` of this run, called `label`, and of those beside it: columns run and mine as
    well.
    """
    others = [] if beside is None else printable_table(beside).groupby("run", sort=False)
    tables = [
        monitor_table(table.drop(columns="run")).assign(run=name, mine=False)
        for name, table in others
    ]
    tables.append(monitor_table(metrics).assign(run=label, mine=True))
    return pd.concat([table for table in tables if len(table)] or tables, ignore_index=True)


def monitor_chart(
    rows: pd.DataFrame, frame: pd.DataFrame, legend: bool = False, target: float | None = None
) -> alt.VConcatChart:
    """Reward large, the other panels small below it: `rows` of `monitor_rows` within the `frame` of
    `monitor_frame`.

    legend: name the runs.  target: a reward to draw a line at.  The spec depends on these alone: a
    run is rows.
    """
    first, *others = PANELS
    wide = 3 * SMALL + 2 * (GAP + AXIS + 6)
    small = [
        _panel(rows, frame, name, SMALL, 80, legend, axis=i > 2) for i, name in enumerate(others)
    ]
    below = alt.concat(*small, columns=3, spacing={"column": GAP, "row": 14})
    aim = [] if target is None else references([(target, f"aim {target:g}")], 0)
    chart = alt.vconcat(_panel(rows, frame, first, wide, 170, legend, over=aim), below)
    curves = ", ".join(panel.title for panel in PANELS.values())
    title = alt.TitleParams("What the run has logged", anchor="start", offset=8)
    return chart.properties(
        title=title, description=f"What the run has logged, by optimizer step: {curves}."
    )


def _panel(
    rows, frame, name: str, width: int, height: int, legend: bool, axis: bool = True, over=()
) -> alt.LayerChart:
    """A panel with its newest value at the upper right, within axes that the frame's invisible
    points keep open.
    """
    here, form = alt.datum.panel == name, PANELS[name].form
    whole = "datum.value % 1 ? '' : format(datum.value, ',d')"  # there are no half steps
    step = alt.X("step:Q", title="optimizer step" if axis else None).scale(nice=False)
    step = step.axis(labelExpr=whole, tickMinStep=1, grid=False)
    ticks = {",.0f": ",.0f", ".1%": "~%"}.get(form, "~g")
    value = alt.Y("value:Q", title=None).axis(
        tickCount=height / 30, format=ticks, minExtent=AXIS, maxExtent=AXIS
    )
    names = (
        alt.Legend(title=None, orient="bottom", symbolOpacity=1, columns=2, labelLimit=340)
        if legend
        else None
    )
    color = alt.Color("run:N", legend=names).scale(range=SERIES)
    points = lines = alt.Chart(rows).transform_filter(here).encode(x=step, y=value, color=color)
    if name != "reward":  # the newest point alone
        points = lines.transform_joinaggregate(last="max(step)", groupby=["run"])
        points = points.transform_filter("datum.step == datum.last")
    thick = alt.StrokeWidth(condition={"test": "datum.mine", "value": 2.4}, value=1.2)
    shown = [
        alt.Tooltip("run:N"),
        alt.Tooltip("step:Q"),
        alt.Tooltip("value:Q", format=form, title=name),
    ]
    around = alt.Chart(frame).transform_filter(here)
    newest = around.mark_text(align="right", fontWeight="bold", aria=False)
    open_axes = around.mark_point(opacity=0, aria=False).encode(
        x=step, y=alt.Y("reach:Q"), color=color
    )
    layers = [
        open_axes,
        lines.mark_line(strokeJoin="round").encode(strokeWidth=thick, detail=["run:N", "mine:N"]),
        points.mark_circle(size=30, cursor="pointer").encode(tooltip=shown),
        newest.encode(x=alt.XValue("width"), y=alt.YValue(-15), text=alt.Text("newest:N")),
        *over,
    ]
    look = {
        "anchor": "start",
        "frame": "group",
        "fontSize": 12,
        "fontWeight": "normal",
        "offset": -9,
    }
    return alt.layer(*layers).properties(
        width=width, height=height, title=alt.TitleParams(PANELS[name].title, **look)
    )
