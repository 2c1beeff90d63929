"""MyRuns: a page of all runs of a workspace, to filter, open, compare, resume and tidy up.

What takes long (listing many runs, reading sizes, deleting) is done by a thread, which only sets traits. Deleting takes
two clicks: the first says what would go, path by path, and the second does just that.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import altair as alt
import ipywidgets
import pandas as pd

from workbook.training.messages import explain_error, one_line
from workbook.training.my_runs import (
    PARTS,
    STATES,
    describe_bytes,
    describe_disk,
    describe_reward,
    list_runs,
    open_run,
    pair_settings,
    select_runs,
    workspace,
)
from workbook.training.tidy import KINDS, TidyPlan, plan_tidy, tidy_up
from workbook.views.explorer import menu
from workbook.views.heatmap import TokenHeatmap
from workbook.views.live import LiveChart, close, show
from workbook.views.monitor import RESUMABLE, RunMonitor
from workbook.views.monitor_chart import monitor_chart, monitor_frame, monitor_rows
from workbook.views.monitor_text import TABLE
from workbook.views.style import SERIES, escape, finish, notice

WIDTHS = {
    "run": 41,
    "state": 11,
    "steps": 9,
    "reward": 15,
    "size": 9,
    "modified": 16,
}  # characters of the list's columns
MAX_BARS = 12  # runs whose disk is drawn, the largest
MONOSPACE = (
    "<style>.workbook-my-runs select, .workbook-runs-head { font-family: monospace; font-size: 12px; }"
    ".workbook-runs-head { padding-left: 9px; white-space: pre; overflow-x: auto; font-weight: 600 }</style>"
)
WIDE = {"width": "100%", "max_width": "900px"}
TIDY_LABELS = [
    ("checkpoints no longer needed", "checkpoints"),
    ("token tables", "tokens"),
    ("models of finished runs", "models"),
    ("whole runs", "runs"),
]


def list_line(row) -> str:
    """A run as a line of the list, its columns aligned in a monospaced font."""
    cells = {
        "run": row.run if len(row.run) <= WIDTHS["run"] else f"…{row.run[1 - WIDTHS['run'] :]}",  # the end tells more
        "state": row.state,
        "steps": f"{row.steps}/{row.planned}",
        "reward": describe_reward(row.reward_first, row.reward_last),
        "size": describe_bytes(row.bytes),
        "modified": f"{row.modified:%Y-%m-%d %H:%M}",
    }
    return _aligned(cells)


def _aligned(cells: dict[str, str]) -> str:
    """Cells padded to the columns' widths by spaces that no browser collapses."""
    right = ("steps", "size")
    padded = [f"{text:>{WIDTHS[name]}}" if name in right else f"{text:<{WIDTHS[name]}}" for name, text in cells.items()]
    return "  ".join(padded).replace(" ", "\u00a0")


def disk_rows(table: pd.DataFrame) -> pd.DataFrame:
    """What the largest runs of a table take on disk: run, part, mb; a row for each part of a run."""
    largest = table.nlargest(MAX_BARS, "bytes").rename(columns={"bytes": "all"})
    rows = largest.melt("run", [*PARTS, "others"], "part", "mb").assign(mb=lambda rows: rows["mb"].astype(float) / 1e6)
    return rows[["run", "part", "mb"]]


def disk_chart(rows: pd.DataFrame) -> alt.Chart:
    """Megabytes of each run, by what they are: `disk_rows`."""
    part = alt.Color("part:N", title=None).scale(domain=[*PARTS, "others"], range=SERIES[:4]).legend(orient="bottom")
    chart = (
        alt.Chart(rows)
        .mark_bar()
        .encode(
            x=alt.X("mb:Q", title="megabytes on disk"),
            y=alt.Y("run:N", title=None, sort="-x").axis(labelLimit=300),
            color=part,
            tooltip=["run:N", "part:N", alt.Tooltip("mb:Q", format=",.1f", title="MB")],
        )
    )
    title = "What your runs take on disk"
    return finish(chart, title, f"the largest {MAX_BARS}", "A bar a run.", width=440, height=alt.Step(18))


def settings_html(pair: pd.DataFrame) -> str:
    """`pair_settings` as an HTML table in which every text is text."""
    head = "".join(f'<th style="text-align: left">{escape(name)}</th>' for name in ("", *pair.columns))
    rows = "".join(
        f'<tr><th scope="row" style="text-align: left">{escape(name)}</th>'
        + "".join(f"<td>{escape(_shown(value))}</td>" for value in values)
        + "</tr>"
        for name, values in zip(pair.index, pair.to_numpy(), strict=True)
    )
    caption = '<caption style="text-align: left">Settings and results in which they differ</caption>'
    hint = "<p>A click on a name in the legend shows its curves alone; a click on another adds those.</p>"
    return f'{hint}<table style="{TABLE}">{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _shown(value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else one_line(value, 120)


class MyRuns:
    """All runs of a workspace: choose one to open or resume, two to compare, any to tidy up.

    folder: where they lie, by default $WORKBOOK_RUNS or ./runs.  text: a filter to begin with.

    Attributes: `table`, as of `list_runs`; `shown`, the rows that the filter leaves; `opened`, the monitor on the page;
    `plan`, what the next click would delete.
    """

    def __init__(self, folder: str | Path | None = None, text: str = ""):
        self.folder = workspace(folder)
        self.table, self.plan = list_runs(self.folder), None
        self.opened: RunMonitor | None = None
        self._thread: threading.Thread | None = None
        self.filter = ipywidgets.Text(value=text, description="filter", placeholder="words in name, task or model")
        self.filter.tooltip = "Only runs with these words in their name, task, model or state"
        self.state = menu(None, [("all", None), *((state, state) for state in STATES)], "state")
        self.state.tooltip = "Only runs in this state"
        self.list = ipywidgets.SelectMultiple(description="runs", rows=8, layout=dict(WIDE, width="98%"))
        self.list.tooltip = "One to open or resume, two to compare; Ctrl or Shift chooses several"
        self.list.style.description_width = "0px"
        head = f'<div class="workbook-runs-head">{escape(_aligned({name: name for name in WIDTHS}))}</div>'
        self.disk, self.line, self.listing = (ipywidgets.HTML(layout=dict(WIDE)) for _ in range(3))
        self.listing.layout.max_height, self.listing.layout.overflow = "240px", "auto"
        self.listing.tabbable = True  # what scrolls is reached by keys
        self._make_buttons()
        self.kind = menu("checkpoints", TIDY_LABELS, "delete")
        self.kind.tooltip = "; ".join(f"{kind}: {text}" for kind, text in KINDS.items())
        self.area = ipywidgets.VBox([])
        self.chart = LiveChart.over(disk_chart, rows=disk_rows(self.table))
        ask = ipywidgets.HBox([self.kind, self.ask_button])
        tidy = ipywidgets.VBox([self.chart, ask, self.listing, self.delete_button])
        self.tidy = ipywidgets.Accordion([tidy], selected_index=None)
        self.tidy.set_title(0, "Tidy up: the runs chosen above, or else all in the list")
        choose = ipywidgets.HBox([self.filter, self.state, self.refresh_button])
        act = ipywidgets.HBox([self.open_button, self.compare_button, self.resume_button])
        parts = [ipywidgets.HTML(MONOSPACE), choose, self.disk, ipywidgets.HTML(head), self.list, act, self.line]
        self.box = ipywidgets.VBox([*parts, self.tidy, self.area])
        self.box.add_class("workbook-my-runs")
        for control in (self.filter, self.state):
            control.observe(lambda _: self._filter(), names="value")
        self.list.observe(lambda _: self._chosen(), names="value")
        self.kind.observe(lambda _: self._forget(), names="value")
        self._filter()

    def _make_buttons(self) -> None:
        self.refresh_button = self._button("Refresh", "refresh", self.refresh, "Read the folder again")
        self.open_button = self._button("Open", "folder-open", self.open, "Its curves and, if recorded, its tokens")
        self.compare_button = self._button(
            "Compare", "bar-chart", self.compare, "Curves and settings of the two chosen"
        )
        self.resume_button = self._button("Resume", "play", self.resume, "Go on from its newest intact checkpoint")
        self.ask_button = self._button("List what would go", "list", self.ask, "Nothing is deleted by this button")
        self.delete_button = self._button("Delete", "trash", self.delete, "Deletes what is listed above, and only that")
        self.delete_button.button_style = "danger"
        for button in (self.ask_button, self.delete_button):
            button.layout.width = "max-content"

    @property
    def chosen(self) -> pd.DataFrame:
        """The rows of the runs that are chosen in the list."""
        return self.shown[self.shown["folder"].isin(self.list.value)]

    def refresh(self) -> None:
        """Read the folder again, in a thread."""
        self._in_thread("Reading the runs ...", self._read)

    def _read(self) -> str:
        self.table = list_runs(self.folder)
        self._filter()
        return ""

    def _filter(self) -> None:
        """Show the runs that the filter leaves; what was chosen stays chosen."""
        self.shown = select_runs(self.table, self.filter.value, self.state.value)
        kept = [folder for folder in self.list.value if folder in set(self.shown["folder"])]
        self.list.options = [(list_line(row), row.folder) for row in self.shown.itertuples()]
        self.list.value = kept
        disk = describe_disk(self.shown) if len(self.shown) else f"No runs here; they would lie in {self.folder}."
        self.disk.value = notice(disk)
        self.chart.push(rows=disk_rows(self.shown))
        self._chosen()

    def _chosen(self) -> None:
        """Turn on the buttons that fit what is chosen, and say what is wrong with it."""
        states = list(self.chosen["state"])
        self.open_button.disabled = len(states) != 1 or states[0] == "damaged"
        self.resume_button.disabled = len(states) != 1 or states[0] not in RESUMABLE
        self.compare_button.disabled = len(states) != 2 or "damaged" in states
        self.line.value = notice(
            *(f"{row.run}: {row.note}" for row in self.chosen.itertuples() if row.note), error=True
        )
        self._forget()

    def open(self) -> None:
        """Show the chosen run's monitor, and the tokens of its recorded steps, which follow clicks on its curve."""
        self._show_run(open_run(self.list.value[0]))

    def resume(self) -> None:
        """Let the chosen run go on, and watch it."""
        self._show_run(open_run(self.list.value[0]).resume())

    def _show_run(self, run) -> None:
        monitor, parts = RunMonitor(run), []
        if run.token_steps():
            heatmap = TokenHeatmap(run)
            monitor.on_step(heatmap.show_step)
            parts = [heatmap]
        self._replace([monitor.box, *parts])
        self.opened = monitor
        monitor.watch()

    def compare(self) -> None:
        """Show two runs' curves in one chart, and the settings and results in which they differ."""
        folders = list(self.list.value)
        pair = pair_settings(*folders)
        one, other = (open_run(folder).metrics() for folder in folders)
        rows = monitor_rows(other, pair.columns[1], one.assign(run=pair.columns[0], now=True))
        steps = int(max(one["step"].max(), other["step"].max(), 1)) if len(one) or len(other) else 0
        frame = monitor_frame(rows[rows["mine"]], steps, label=pair.columns[1])
        self._replace([LiveChart(monitor_chart(rows, frame, legend=True)), ipywidgets.HTML(settings_html(pair))])

    def _replace(self, widgets: list) -> None:
        """Show widgets below instead of those before, which are freed; their runs go on."""
        before, self.area.children, self.opened = self.area.children, widgets, None
        for widget in before:
            close(widget)

    def ask(self) -> None:
        """List what would be deleted, in a thread; nothing is."""
        runs = self.chosen if len(self.list.value) else self.shown
        self._forget()
        self._in_thread("Reading what is there ...", lambda: self._list(plan_tidy(runs, self.kind.value)))

    def _list(self, plan: TidyPlan) -> str:
        lines = [f"{describe_bytes(row.bytes):>10}  {row.run}/{row.path}" for row in plan.rows.itertuples()]
        self.listing.value = f'<pre style="font-size: 12px">{escape(chr(10).join([*lines, *plan.kept]))}</pre>'
        self.plan = plan
        self.delete_button.description = f"Delete {plan.rows['files'].sum():,} files, {describe_bytes(plan.bytes)}"
        self.delete_button.layout.display = "none" if plan.rows.empty else ""
        return plan.summary

    def delete(self) -> None:
        """Delete what is listed, in a thread, and list the runs anew; nothing if nothing is listed."""
        plan = self.plan
        self._forget()
        if plan is not None:
            self._in_thread("Deleting ...", lambda: (tidy_up(plan), self._read())[0])

    def _forget(self) -> None:
        """Take back what was listed: it was of another choice."""
        self.plan, self.listing.value, self.delete_button.layout.display = None, "", "none"

    def _in_thread(self, doing: str, act: Callable[[], str]) -> None:
        """Do something slow beside the kernel's main thread, and show what it says; one at a time."""
        if self._thread is not None and self._thread.is_alive():
            return
        self.line.value = notice(doing)

        def work() -> None:
            try:
                self.line.value = notice(act())
            except Exception as error:  # whatever it is, the page should say it
                self.line.value = notice(explain_error(error), error=True)

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def _button(self, label: str, icon: str, act: Callable, tooltip: str) -> ipywidgets.Button:
        def answer(_) -> None:
            try:
                act()
            except Exception as error:  # nobody reads a kernel's log
                self.line.value = notice(explain_error(error), error=True)

        button = ipywidgets.Button(description=label, icon=icon, tooltip=tooltip)
        button.on_click(answer)
        return button

    def display(self) -> None:
        """Put it on the page, with the chart of disk as its picture."""
        show(self.box, self.chart)

    def _ipython_display_(self, **_) -> None:
        self.display()

    def close(self) -> None:
        """Take it off the page and free it; runs go on."""
        close(self.box)
