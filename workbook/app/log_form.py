"""LogForm: a log of completions, uploaded or in a folder, and below it what training did to its
tokens.

LogForm()                    # in a notebook, as a cell's last line
LogForm("outputs/my-run")    # reads it at once
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import ipywidgets
import pandas as pd

from workbook.app.compare import finished_runs
from workbook.app.report import Report, report_findings, report_text
from workbook.app.runs import load_run
from workbook.messages import InvalidValue
from workbook.rollouts.logs import read_logged_metrics, read_rollouts
from workbook.views.explorer import menu
from workbook.views.heatmap import TokenHeatmap
from workbook.views.live import close, display_widget
from workbook.views.style import escape, notice

LOGS = ".parquet,.jsonl,.json,.csv"
COLUMNS = ("push", "advantage", "reward")  # that colour the tokens: the first that the log has
WIDE = {"max_width": "860px"}


class LogForm:
    """An upload and a path, the report on what they hold, and its tokens, step by step, rollout by
    rollout.

    path: of a run's folder, TRL's output folder, or a file of completions, as `read_rollouts` takes
    it.
    """

    def __init__(self, path: str | Path | None = None):
        self._folder = tempfile.TemporaryDirectory(prefix="workbook-log-")
        self.upload = ipywidgets.FileUpload(accept=LOGS, multiple=True, description="Upload a log")
        self.upload.tooltip = (
            "Completions that a run has logged: Parquet of TRL's log_completions, JSON lines, CSV"
        )
        look = {
            "layout": {"width": "420px", "max_width": "100%"},
            "style": {"description_width": "110px"},
        }
        runs = [str(folder) for _, folder in finished_runs()]
        self.path = ipywidgets.Combobox(
            options=runs, description="or its folder", continuous_update=False, **look
        )
        self.path.tooltip = "TRL's output folder, a run of this book, or a file of completions"
        self.weights = ipywidgets.Text(
            description="weights", placeholder="a=1 b=0.5", continuous_update=False, **look
        )
        self.weights.tooltip = "Of several reward functions, where the log does not tell them"
        self.line, self.report = ipywidgets.HTML(layout=WIDE), ipywidgets.HTML(layout=WIDE)
        self._read: str | Path = ""
        self.steps, self.tokens, self.heatmap = ipywidgets.VBox(), ipywidgets.VBox(), None
        row = ipywidgets.Box(
            [self.upload, self.path, self.weights], layout={"flex_flow": "row wrap"}
        )
        self.box = ipywidgets.VBox(
            [row, self.line, self.report, self.steps, self.tokens]
        ).add_class("workbook-form")
        self.upload.observe(self._uploaded, "value")
        self.path.observe(lambda change: self.read(change["new"].strip()), "value")
        self.weights.observe(lambda _: self.read(self._read), "value")
        if path is not None:
            self.path.value = str(path)

    def read(self, path: str | Path) -> None:
        """Show what a log says, or in a sentence why it can't be read."""
        if not str(path):
            return
        self._read = path
        try:
            table = read_rollouts(path, weights=parse_weights(self.weights.value))
            report = report_findings(table, read_logged_metrics(path))
        except (ValueError, OSError) as error:
            self._show("", None)
            self.line.value = notice(str(error).replace("--weights", "“weights”"), error=True)
            return
        self.line.value = notice(
            f"{Path(path).name}: {table.attrs['source']['files']} file(s) read."
        )
        self._show(report_html(report), self._run(path) or table)

    def _run(self, path: str | Path):
        """The run that lies there, if it has recorded its tokens."""
        try:
            run = load_run(path)
            return run if run.token_steps() else None
        except (ValueError, OSError):
            return None

    def _show(self, text: str, source) -> None:
        for old in (*self.steps.children, *self.tokens.children):
            close(old)
        self.report.value, self.steps.children, self.tokens.children, self.heatmap = (
            text,
            (),
            (),
            None,
        )
        if source is None:
            return
        if not isinstance(source, pd.DataFrame):
            self._show_tokens(source)  # a run chooses among its steps itself
            return
        steps = sorted(source["step"].unique().tolist())
        if len(steps) > 1:
            chosen = menu(steps[-1], steps, "step")
            chosen.observe(
                lambda change: self._show_tokens(source[source["step"] == change["new"]]), "value"
            )
            self.steps.children = (chosen,)
        self._show_tokens(source[source["step"] == steps[-1]])

    def _show_tokens(self, source) -> None:
        """Show a run, or the rows of a step: of a group that was pushed, if there is one."""
        look = {}
        if isinstance(source, pd.DataFrame):
            column = next(name for name in COLUMNS if name in source and source[name].notna().any())
            size = source.groupby("group")[column].agg(lambda values: values.max() - values.min())
            look = {"column": column, "group": int(size.idxmax())}
        old, self.heatmap = self.tokens.children, TokenHeatmap(source, **look)
        self.tokens.children = (self.heatmap,)
        for one in old:
            close(one)

    def _uploaded(self, change) -> None:
        """Keep the files, and read them: one by itself, several as a folder."""
        # as the status line calls them
        folder = Path(tempfile.mkdtemp(dir=self._folder.name), "uploads")
        folder.mkdir()
        for file in change["new"]:
            (folder / Path(file["name"]).name).write_bytes(bytes(file["content"]))
        self.read(next(folder.iterdir()) if len(change["new"]) == 1 else folder)

    def _ipython_display_(self, **_) -> None:
        from IPython.display import display

        if self.heatmap is None:
            display(self.box)
        else:
            display_widget(self.box, self.heatmap)  # the picture that stays

    def close(self) -> None:
        """Take it off the page and free it, with what was uploaded."""
        close(self.box)
        self._folder.cleanup()


def parse_weights(text: str) -> dict[str, float] | None:
    """Weights of reward functions as they are typed; None for none.

    >>> parse_weights("accuracy=1 format=0.5")
    {'accuracy': 1.0, 'format': 0.5}
    """
    try:
        return {
            name: float(number) for name, number in (part.split("=") for part in text.split())
        } or None
    except ValueError:
        raise InvalidValue(
            "weights", text, "name=number with spaces between them, e.g. a=1 b=0.5"
        ) from None


def report_html(report: Report) -> str:
    """A report as HTML, in which a log's text is text: what to do first, in bold, then what was
    found.
    """
    first, counts, *lines = report_text(report).split("\n")
    items = "".join(f"<li>{escape(line[2:])}</li>" for line in lines if line.startswith("- "))
    then = "".join(
        f"<li>{escape(line.split('. ', 1)[1])}</li>" for line in lines if line[:1].isdigit()
    )
    after = f"<p>Then:</p><ol>{then}</ol>" if then else ""
    head = f"<p><b>{escape(first)}</b></p><p>{escape(counts)}</p>"
    return f'<div style="line-height: 1.4">{head}<ul>{items}</ul>{after}</div>'


class Tabs:
    """Forms side by side, {title: form}, one of them in front."""

    def __init__(self, forms: dict[str, object]):
        self.forms, self.box = forms, ipywidgets.Tab([form.box for form in forms.values()])
        for place, title in enumerate(forms):
            self.box.set_title(place, title)

    def _ipython_display_(self, **_) -> None:
        display_widget(self.box, next(iter(self.forms.values())).bar)
