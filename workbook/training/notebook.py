"""What a reader left in the notebook that this process serves: a run that a chapter can show again."""

from __future__ import annotations

import os
from pathlib import Path

from workbook.places import notebook_name, runs_folder
from workbook.training.files import read_json


def run_left() -> str | None:
    """Of the newest run that this notebook started: how it stands, and the code that shows it; None without one."""
    name = notebook_name()
    run = None if name is None else next((folder for folder in _newest_first() if _is_of(folder, name)), None)
    if run is None:
        return None
    state = _read(run / "status.json").get("state")
    return (
        f"{run.name} of this chapter is {state if state in ('finished', 'stopped', 'failed') else 'not finished'}; to "
        "show it:\nfrom workbook import RunMonitor; from workbook.training import load_run; "
        f"RunMonitor(load_run({os.path.relpath(run)!r}))"
    )


def _newest_first() -> list[Path]:
    """The folders of all runs; their configs are written once."""
    configs = [path for path in runs_folder().glob("*/config.yaml") if path.is_file()]
    return [path.parent for path in sorted(configs, key=lambda path: path.stat().st_mtime_ns, reverse=True)]


def _is_of(folder: Path, name: str) -> bool:
    return _read(folder / "manifest.json").get("notebook") == name


def _read(path: Path) -> dict:
    try:
        return read_json(path, dict)
    except ValueError:  # it is not there yet, or it is damaged
        return {}
