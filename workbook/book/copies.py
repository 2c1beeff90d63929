"""Working copies of the chapters, in my_chapters/: without outputs, which would give predictions away."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

from workbook.book.chapters import ROOT, find_chapters

COPIES = ROOT / "my_chapters"  # beside notebooks/, so that a chapter's ../data is the same


def update_copies(folder: Path | None = None) -> list[str]:
    """Make the copies that are missing, renew those that nobody touched; returns what a reader should know of others.

    A copy's metadata hold a digest of the chapter's text that it was made from; one that its reader has run or edited
    is never written over.
    """
    (folder := folder or COPIES).mkdir(exist_ok=True)
    sentences = []
    for chapter in find_chapters():
        copy = folder / chapter.name
        notebook = _read(copy)
        if not copy.exists() or _is_untouched(notebook):
            _write(chapter, copy)
        elif _origin(notebook) != _digest(_read(chapter)):
            sentences.append(
                f"Chapter {chapter.name[:2]} has changed since your copy {copy.name} was made. A fresh one, yours kept "
                f"beside it: python -m workbook lab --fresh {chapter.name[:2]}"
            )
    return sentences


def fresh_copy(chapter: Path, folder: Path | None = None) -> str:
    """Make a fresh copy of a chapter, and say where the old one is kept if its reader had touched it."""
    (folder := folder or COPIES).mkdir(exist_ok=True)
    copy, kept = folder / chapter.name, ""
    if copy.exists() and not _is_untouched(_read(copy)):
        copy.rename(old := copy.with_name(f"{copy.stem}.{time.strftime('%Y-%m-%d-%H%M%S')}.ipynb"))
        kept = f" The one that you had is {old.name}."
    _write(chapter, copy)
    return f"{copy.name} is a fresh copy of chapter {chapter.name[:2]}.{kept}"


def _read(path: Path) -> dict:
    """A notebook's JSON; without cells where there is none or it can't be read, so that it counts as touched."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"cells": [], "metadata": {}}


def _write(chapter: Path, copy: Path) -> None:
    notebook = _read(chapter)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    notebook["metadata"] |= {"workbook": {"chapter": _digest(notebook)}}
    copy.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _is_untouched(notebook: dict) -> bool:
    """Whether no cell was edited and none run since the copy was made."""
    ran = any(cell.get("outputs") or cell.get("execution_count") for cell in notebook["cells"])
    return not ran and _origin(notebook) == _digest(notebook)


def _origin(notebook: dict) -> str | None:
    return notebook["metadata"].get("workbook", {}).get("chapter")


def _digest(notebook: dict) -> str:
    """The digest of the text of a notebook's cells."""
    text = [[cell["cell_type"], "".join(cell["source"])] for cell in notebook["cells"]]
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()
