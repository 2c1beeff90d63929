"""Execute the chapters top to bottom, each in a cold kernel, and keep nothing of the machine that
they ran on.

No paths, no timings, no widget models: a widget's last picture stands in its place, with its
controls (`book.forms`).
"""

import os
import re
import sys
import tempfile
import time
from pathlib import Path

from workbook.messages import InvalidValue
from workbook.places import PACKAGE, clone

ROOT = PACKAGE.parent
NOTEBOOKS = ROOT / "notebooks"
CELL_TIMEOUT = 3600  # seconds
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class ChapterFailed(RuntimeError):
    """A chapter that stopped with an error; the message names chapter, cell and error."""


def run_chapters(profile: str = "smoke", names=None, in_place: bool = False) -> dict:
    """Run chapters in a profile and return each notebook with its outputs, printing the seconds as
    it goes.

    names: as in "04" or "04_policy"; all by default.  in_place: write the outputs into notebooks/.

    Raises ValueError for a name that no chapter has, ChapterFailed at the first chapter that fails.
    """
    import nbformat

    chapters = {}
    for path in find_notebooks(names):
        start = time.perf_counter()
        chapters[path.stem] = execute(path, profile)
        print(
            f"{path.stem}: {time.perf_counter() - start:.1f} s in the {profile} profile", flush=True
        )
        if in_place:
            nbformat.write(chapters[path.stem], new := path.with_suffix(".new"))
            new.replace(path)
    return chapters


def read_chapters(names=None) -> dict:
    """Read chapters as they were executed and written last; errors as of `run_chapters`."""
    import nbformat

    return {path.stem: nbformat.read(path, as_version=4) for path in find_notebooks(names)}


def find_chapters(names=None) -> list[Path]:
    """The chapters in order, or the notebooks whose file name starts with one of `names`; errors in
    a sentence.
    """
    found = find_notebooks(names)
    return found if names else [path for path in found if path.name[0].isdigit()]


def find_notebooks(names=None) -> list[Path]:
    """As `find_chapters`, and without names also the forms that have a notebook of their own, after
    the chapters.
    """
    notebooks = sorted(NOTEBOOKS.glob("*.ipynb"))
    if not notebooks:
        clone("The command chapters")
    for name in names or ():
        if not any(path.name.startswith(name) for path in notebooks):
            raise InvalidValue(
                "chapter",
                name,
                f"the beginning of one of {', '.join(path.stem for path in notebooks)}",
            )
    return [path for path in notebooks if path.name.startswith(tuple(names or [""]))]


def execute(path: Path, profile: str):
    """The notebook at `path`, run top to bottom in a new kernel in its own folder, free of traces
    of this machine.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    started = [0]
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=True,  # for `stable`, which drops it again
        record_timing=False,
        # a kernel that holds torch takes seconds to tidy up, and nothing of it is needed
        shutdown_kernel="immediate",
        on_cell_start=lambda cell, cell_index: started.append(cell_index),
    )
    try:
        # nothing ever lies there
        nobodys = str(Path(tempfile.gettempdir()) / f"no-predictions-{os.getpid()}.json")
        own = {
            "WORKBOOK_PROFILE": profile,
            "WORKBOOK_PREDICTIONS": nobodys,
            "JPY_SESSION_NAME": str(path),
        }
        client.execute(env=os.environ | own)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        what = (
            f"{error.ename}: {error.evalue}"
            if isinstance(error, CellExecutionError)
            else str(error)
        )
        source = notebook.cells[started[-1]].source
        raise ChapterFailed(f"{path.name} failed in cell {started[-1]}: {what}\n{source}") from None
    return stable(notebook, client.widget_state, client.widget_buffers)


def stable(notebook, states: dict[str, dict] | None = None, buffers: dict[str, dict] | None = None):
    """The notebook without what differs between machines and runs; states: of all widgets, by id,
    at the end, and
    buffers: their binary parts, by id and path."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    for count, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        cell.execution_count = count
        outputs = [_portable(output, states or {}, buffers or {}) for output in cell.outputs]
        cell.outputs = [output for output in outputs if output is not None]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
    return notebook


def _portable(output, states: dict[str, dict], buffers: dict[str, dict]):
    """An output without machine paths; a widget becomes its last picture or its text, or nothing if
    it has neither.
    """
    from workbook.book.forms import FORM, TOKENS, last_form, last_tokens
    from workbook.views.style import picture

    if "text" in output:
        output.text = _scrub(output.text)
    data = output.get("data", {})
    if (view := data.pop(WIDGET_VIEW, None)) is not None:
        if "image/png" in data:
            widget = view["model_id"]
            spec, pairs = last_form(states, widget)
            if (tokens := last_tokens(states.get(widget, {}), buffers.get(widget, {}))) is not None:
                data[TOKENS] = tokens
            drawn, about = picture(spec) if spec else ({}, {})
            if "image/png" in drawn:
                data.update(drawn)
                output.metadata.update(about)
            if pairs:
                data[FORM] = [[label, _scrub(value)] for label, value in pairs]
        elif "text/markdown" not in data and "text/html" not in data:
            return None
    for kind in data:
        if kind.startswith("text/"):
            data[kind] = _scrub(data[kind])
    return output


def _scrub(text: str) -> str:
    """Text with this machine's folders replaced by what they are.

    >>> _scrub(f"{NOTEBOOKS}/runs")
    './notebooks/runs'
    """
    folders = {
        ROOT: ".",
        sys.prefix: "<environment>",
        tempfile.gettempdir(): "<temporary>",
        Path.home(): "~",
    }
    for folder, name in folders.items():
        text = re.sub(rf"{re.escape(str(folder))}(?=$|[/\s'\"),:;.])", name, text)
    return text


def describe(notebook, name: str) -> tuple[str, str]:
    """Title and question of a chapter from its first markdown cell: a `#` heading and a line on its
    question.
    """
    text = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
    title = re.search(r"^#\s+(.+)$", text, re.MULTILINE)
    question = re.search(r"question\W+\s*(.+)", text, re.IGNORECASE)
    return (title[1].strip() if title else name), (
        re.sub(r"[*_`]", "", question[1]).strip() if question else ""
    )


def without_outputs(notebook: dict) -> dict:
    """The notebook as nobody has run it yet."""
    blank = {"outputs": [], "execution_count": None}
    return notebook | {
        "cells": [c | blank if c["cell_type"] == "code" else c for c in notebook["cells"]]
    }
