"""Working copies of the chapters, in which readers run and edit: theirs are never written over."""

import hashlib
import json
import time
from pathlib import Path

from workbook.book.chapters import (
    FORMER_NAMES,
    ROOT,
    describe,
    find_notebooks,
    read_chapters,
    without_outputs,
)
from workbook.book.decoration import decorate
from workbook.colab import repository

# beside notebooks/, so that a chapter's ../data is the same
COPIES = ROOT / "my_chapters"


def update_copies(folder: Path | None = None) -> list[str]:
    """Make missing copies, renew those that nobody ran or edited; return sentences about others.

    A copy is decorated and has no outputs, which would give predictions away.
    """
    folder = folder or COPIES
    folder.mkdir(exist_ok=True)
    sentences = []
    for chapter in find_notebooks():
        copy = folder / chapter.name
        notebook = _read(copy)
        if not copy.exists() or _is_untouched(notebook):
            _write(chapter, copy)
        elif _mark(notebook, "chapter") != _digest(_read(chapter)):
            sentences.append(
                f"{chapter.stem} has changed since your copy was made. A fresh one, yours kept"
                f" beside it: python -m workbook lab --fresh {chapter.stem}"
            )
    return sentences + _lead_on(folder)


def _lead_on(folder: Path) -> list[str]:
    """Let copies under a former name lead to the chapter that holds their text now.

    A copy that its reader ran or edited stays; the sentences returned say which chapter it is now.
    """
    present = [path.stem for path in find_notebooks()]
    sentences = []
    for former, name in FORMER_NAMES.items():
        copy = folder / f"{former}.ipynb"
        if not copy.exists() or name not in present:
            continue
        notebook = _read(copy)
        title, _ = describe(read_chapters([name])[name], name)
        if not _is_untouched(notebook):
            sentences.append(f"{copy.name} is yours and stays. Its chapter is now {name}.")
        else:
            _write_signpost(copy, f"# Moved\n\nThis chapter is now [{title}]({name}.ipynb).")
    return sentences


def fresh_copy(chapter: Path, folder: Path | None = None) -> str:
    """Make a fresh copy of a chapter; a copy that was touched is kept, under another name."""
    folder = folder or COPIES
    folder.mkdir(exist_ok=True)
    copy = folder / chapter.name
    sentence = f"{copy.name} is a fresh copy."
    if copy.exists() and not _is_untouched(_read(copy)):
        now = time.strftime("%Y-%m-%d-%H%M%S")
        old = copy.with_name(f"{copy.stem}.{now}.ipynb")
        copy.rename(old)
        sentence += f" The one that you had is {old.name}."
    _write(chapter, copy)
    return sentence


def _read(path: Path) -> dict:
    """A notebook's JSON; one that can't be read is without cells, so that it counts as touched."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"cells": [], "metadata": {}}


def _write(chapter: Path, copy: Path) -> None:
    """Write a copy that remembers its chapter's text and its own.

    They differ in decoration: a chapter has changed if its source has, whatever the glossary says
    since; a reader has touched a copy if the copy isn't as it was written.
    """
    source = _read(chapter)
    notebook = decorate(without_outputs(source), chapter.stem, repository())
    marks = {"chapter": _digest(source), "copy": _digest(notebook)}
    notebook["metadata"] = {**notebook["metadata"], "workbook": marks}
    copy.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _write_signpost(copy: Path, text: str) -> None:
    """Write a notebook of one sentence, marked as untouched."""
    cell = {"cell_type": "markdown", "id": "moved", "metadata": {}, "source": [text]}
    notebook = {"cells": [cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    notebook["metadata"] = {"workbook": {"copy": _digest(notebook)}}
    copy.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _is_untouched(notebook: dict) -> bool:
    """Whether no cell was edited and none run since the copy was made."""
    ran = any(cell.get("outputs") or cell.get("execution_count") for cell in notebook["cells"])
    return not ran and _mark(notebook, "copy") == _digest(notebook)


def _mark(notebook: dict, name: str) -> str | None:
    return notebook["metadata"].get("workbook", {}).get(name)


def _digest(notebook: dict) -> str:
    """The digest of a notebook's cells, their outputs aside."""
    text = [[cell["cell_type"], "".join(cell["source"])] for cell in notebook["cells"]]
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()
