"""Working copies of the chapters: without outputs, so that no prediction is given away, and without a trace in git.

A copy holds in its metadata which text of the chapter it was made from. So a chapter that has changed since replaces
the copies that nobody has touched; one that its reader has run or edited is never written over.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

from workbook.book.chapters import ROOT, find_chapters
from workbook.training.files import read_json, write_text
from workbook.training.messages import one_line

COPIES = ROOT / "my_chapters"  # beside notebooks/, so that a chapter's ../data is the same


def update_copies(folder: Path | None = None) -> list[str]:
    """Make the copies that are missing, renew those that nobody touched; returns what a reader should know of others.

    folder: of the copies, by default COPIES.
    Raises ValueError where no chapters are, and OSError for a folder that can't be written.
    """
    (folder := folder or COPIES).mkdir(exist_ok=True)
    return [sentence for chapter in find_chapters() if (sentence := _update(chapter, folder / chapter.name))]


def fresh_copy(chapter: Path, folder: Path | None = None) -> str:
    """Make a fresh copy of a chapter, and say where the old one is kept if its reader had touched it."""
    (folder := folder or COPIES).mkdir(exist_ok=True)
    copy = folder / chapter.name
    kept = ""
    if copy.exists() and not _is_untouched(copy):
        copy.rename(old := _dated(copy))
        kept = f" The one that you had is {_shown(old)}."
    _write(chapter, copy)
    return f"{_shown(copy)} is a fresh copy of chapter {chapter.name[:2]}.{kept}"


def _update(chapter: Path, copy: Path) -> str | None:
    if not copy.exists():
        return _write(chapter, copy)
    try:
        origin = _origin(read_json(copy, dict))
    except ValueError as error:
        return f"{one_line(str(error), 200)} {_remedy(chapter)}"
    if origin == _digest(read_json(chapter, dict)):
        return None
    if _is_untouched(copy):
        return _write(chapter, copy)
    return f"Chapter {chapter.name[:2]} has changed since your copy {_shown(copy)} was made. {_remedy(chapter)}"


def _remedy(chapter: Path) -> str:
    return f"A fresh one, yours kept beside it: python -m workbook lab --fresh {chapter.name[:2]}"


def _write(chapter: Path, copy: Path) -> None:
    """Write the chapter without its outputs and with the digest of its text."""
    notebook = read_json(chapter, dict)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    notebook["metadata"] |= {"workbook": {"chapter": _digest(notebook)}}
    write_text(copy, json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def _is_untouched(copy: Path) -> bool:
    """Whether a copy is as it was made: no cell edited, none run. False for a file that is no notebook."""
    try:
        notebook = read_json(copy, dict)
    except ValueError:
        return False
    ran = any(cell.get("outputs") or cell.get("execution_count") for cell in _cells(notebook))
    return not ran and _origin(notebook) == _digest(notebook)


def _origin(notebook: dict) -> str | None:
    """The digest of the chapter that a copy was made from; None for a notebook that is no copy."""
    about = notebook.get("metadata")
    about = about.get("workbook") if isinstance(about, dict) else None
    return about.get("chapter") if isinstance(about, dict) else None


def _digest(notebook: dict) -> str:
    """Of the text of a notebook's cells; outputs and all else have no part in it."""
    text = [[cell.get("cell_type"), "".join(cell.get("source", ""))] for cell in _cells(notebook)]
    return hashlib.sha256(json.dumps(text).encode()).hexdigest()


def _cells(notebook: dict) -> list[dict]:
    cells = notebook.get("cells")
    return [cell for cell in cells if isinstance(cell, dict)] if isinstance(cells, list) else []


def _dated(copy: Path) -> Path:
    """A name for a copy that gives way, e.g. 05_token_flipping.2026-03-01.ipynb, not yet taken."""
    day = time.strftime("%Y-%m-%d")
    names = (f"{copy.stem}.{day}{f'-{k}' if k else ''}.ipynb" for k in range(1000))
    return next(path for name in names if not (path := copy.with_name(name)).exists())


def _shown(path: Path) -> str:
    """A path as a reader in the clone's folder types it."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)
