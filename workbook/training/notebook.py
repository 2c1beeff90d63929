"""What a reader left in the notebook that this process serves: a run that a chapter can show again."""

from __future__ import annotations

import os

from workbook.places import notebook_name
from workbook.training.background import FINAL_STATES
from workbook.training.files import read_json
from workbook.training.runs import Run, runs_folder


def run_left() -> str | None:
    """Of the newest run that this notebook started: how it stands, and the code that shows it; None without one."""
    name = notebook_name()
    run = None if name is None else next(filter(lambda run: _is_of(run, name), _newest_first()), None)
    if run is None:
        return None
    status = run.status()
    state = status["state"] if status["state"] in FINAL_STATES else "under way"
    return (
        f"{run.folder.name} of this chapter is {state} at step {status['step']} of {status['total']}; to show it:\n"
        "from workbook import RunMonitor; from workbook.training import load_run; "
        f"RunMonitor(load_run({os.path.relpath(run.folder)!r}))"
    )


def _newest_first() -> list[Run]:
    configs = [path for path in runs_folder().glob("*/config.yaml") if path.is_file()]
    return [Run(path.parent) for path in sorted(configs, key=lambda path: path.stat().st_mtime_ns, reverse=True)]


def _is_of(run: Run, name: str) -> bool:
    try:
        return read_json(run.folder / "manifest.json", dict).get("notebook") == name
    except ValueError:  # it has none yet, or it is damaged
        return False
