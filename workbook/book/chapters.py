"""Execute the chapters top to bottom, each in a new kernel, without traces of the machine.

What is kept has no paths, no timings and no widget models: a widget's last picture stands in its
place, with its controls (`book.forms`).
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
CELL_TIMEOUT_S = 3600
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
# {what a chapter was called: what holds it now}
FORMER_NAMES = {
    "05_token_flipping": "05_who_moves_a_token",
    "06_token_coupling": "05_who_moves_a_token",
    "07_hidden_credit": "06_what_a_token_is_worth",
}


class ChapterFailed(RuntimeError):
    """A chapter that stopped with an error; the message names chapter, cell and error."""


def run_chapters(profile: str = "smoke", names=None, in_place: bool = False) -> dict:
    """Run chapters in a profile, print the seconds, and return {name: notebook with its outputs}.

    names: as in "04" or "04_policy"; all by default.  in_place: write the outputs into notebooks/.

    Raises ValueError for a name that no chapter has, ChapterFailed at the first chapter that fails.
    """
    import nbformat

    chapters = {}
    for path in find_notebooks(names):
        start = time.perf_counter()
        chapters[path.stem] = execute_notebook(path, profile)
        seconds = time.perf_counter() - start
        print(f"{path.stem}: {seconds:.1f} s in the {profile} profile", flush=True)
        if in_place:
            new = path.with_suffix(".new")
            nbformat.write(chapters[path.stem], new)
            new.replace(path)
    return chapters


def read_chapters(names=None) -> dict:
    """Read chapters as they were executed and written last; errors as of `run_chapters`."""
    import nbformat

    return {path.stem: nbformat.read(path, as_version=4) for path in find_notebooks(names)}


def find_chapters(names=None) -> list[Path]:
    """The chapters in order, or the notebooks whose file name starts with one of `names`.

    A former name leads to the chapter that holds its text now.
    """
    notebooks = find_notebooks(names)
    return notebooks if names else [path for path in notebooks if path.name[0].isdigit()]


def find_notebooks(names=None) -> list[Path]:
    """As `find_chapters`; without names also, after the chapters, the notebooks that hold a form.

    Raises ValueError for a name with which no notebook begins.
    """
    notebooks = sorted(NOTEBOOKS.glob("*.ipynb"))
    if not notebooks:
        clone("The command chapters")
    names = [FORMER_NAMES.get(name.removesuffix(".ipynb"), name) for name in names or ()]
    for name in names:
        if not any(path.name.startswith(name) for path in notebooks):
            known = ", ".join(path.stem for path in notebooks)
            raise InvalidValue("chapter", name, f"the beginning of one of {known}")
    return [path for path in notebooks if path.name.startswith(tuple(names or [""]))]


def execute_notebook(path: Path, profile: str):
    """The notebook at `path`, run in a new kernel in its own folder, without traces of the machine.

    Raises ChapterFailed for a cell that fails or takes too long.
    """
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    # the last entry is the cell that runs
    started = [0]
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        # for `stable`, which drops it again
        store_widget_state=True,
        record_timing=False,
        # a kernel that holds torch takes seconds to tidy up, and nothing of it is needed
        shutdown_kernel="immediate",
        on_cell_start=lambda cell, cell_index: started.append(cell_index),
    )
    # a reader's predictions stay out of it: nothing ever lies there
    no_predictions = Path(tempfile.gettempdir(), f"no-predictions-{os.getpid()}.json")
    environment = {
        **os.environ,
        "WORKBOOK_PROFILE": profile,
        "WORKBOOK_PREDICTIONS": str(no_predictions),
        "JPY_SESSION_NAME": str(path),
    }
    try:
        client.execute(env=environment)
    except (CellExecutionError, CellTimeoutError, DeadKernelError) as error:
        what = str(error)
        if isinstance(error, CellExecutionError):
            what = f"{error.ename}: {error.evalue}"
        source = notebook.cells[started[-1]].source
        raise ChapterFailed(f"{path.name} failed in cell {started[-1]}: {what}\n{source}") from None
    return stable(notebook, client.widget_state, client.widget_buffers)


def stable(notebook, states: dict[str, dict] | None = None, buffers: dict[str, dict] | None = None):
    """The notebook without what differs between machines and runs.

    states: of all widgets at the end, by id.  buffers: their binary parts, by id and path.
    """
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    notebook.metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for count, cell in enumerate(code_cells, 1):
        cell.execution_count = count
        outputs = [_portable(output, states or {}, buffers or {}) for output in cell.outputs]
        cell.outputs = [output for output in outputs if output is not None]
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = count
    return notebook


def _portable(output, states: dict[str, dict], buffers: dict[str, dict]):
    """An output without machine paths; a widget becomes its last picture or its text.

    A widget that has neither becomes None.
    """
    if "text" in output:
        output.text = _scrub(output.text)
    data = output.get("data", {})
    view = data.pop(WIDGET_VIEW, None)
    if view is not None:
        if "image/png" in data:
            _renew_picture(output, view["model_id"], states, buffers)
        elif "text/markdown" not in data and "text/html" not in data:
            return None
    for kind in data:
        if kind.startswith("text/"):
            data[kind] = _scrub(data[kind])
    return output


def _renew_picture(output, widget: str, states: dict, buffers: dict) -> None:
    """Give a widget's output the picture of its last state, and the values of its controls."""
    from workbook.book.forms import CONTROLS_TYPE, TOKENS_TYPE, last_form, last_tokens
    from workbook.views.style import picture

    tokens = last_tokens(states.get(widget, {}), buffers.get(widget, {}))
    if tokens is not None:
        output.data[TOKENS_TYPE] = tokens
    spec, pairs = last_form(states, widget)
    if spec:
        drawn, metadata = picture(spec)
        if "image/png" in drawn:
            output.data.update(drawn)
            output.metadata.update(metadata)
    if pairs:
        output.data[CONTROLS_TYPE] = [[label, _scrub(value)] for label, value in pairs]


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
    """Title and question of a chapter, from the heading and a line of its first markdown cell."""
    text = next((cell.source for cell in notebook.cells if cell.cell_type == "markdown"), "")
    heading = re.search(r"^#\s+(.+)$", text, re.MULTILINE)
    line = re.search(r"question\W+\s*(.+)", text, re.IGNORECASE)
    title = heading[1].strip() if heading else name
    question = re.sub(r"[*_`]", "", line[1]).strip() if line else ""
    return title, question


def without_outputs(notebook: dict) -> dict:
    """The notebook as nobody has run it yet."""
    blank = {"outputs": [], "execution_count": None}
    cells = [
        {**cell, **blank} if cell["cell_type"] == "code" else cell for cell in notebook["cells"]
    ]
    return {**notebook, "cells": cells}
