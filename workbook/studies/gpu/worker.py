"""The process that measures rows of `python -m workbook gpu`, one after the other.

python -m workbook.studies.gpu.worker FOLDER CALL DEADLINE ROW... [--dry]
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
import traceback
import warnings
from importlib import import_module
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from workbook.lazy import import_to_stay
from workbook.studies.gpu.bench import GpuBench, OutOfTime, Skipped
from workbook.studies.gpu.campaign import PARENT, ROWS, write_outcome
from workbook.training.messages import explain_error, one_line

POISONED = 3  # exit status after an error on a GPU, which may have left nothing usable


def main(arguments: list[str]) -> int:
    """Measure the rows; those that time does not allow are skipped with that reason."""
    dry = "--dry" in arguments
    folder, call, deadline, *rows = (text for text in arguments if text != "--dry")
    warnings.simplefilter("ignore")
    disable_progress_bar()
    set_verbosity_error()
    import_to_stay("workbook.training.worker")
    if dry:
        torch.set_num_threads(1)
    for row in rows:
        if not _measure(Path(folder), row, call, float(deadline), dry) and not dry:
            return POISONED
    return 0


def _measure(folder: Path, row: str, call: str, deadline: float, dry: bool) -> bool:
    """Measure one row and write it; returns whether the process can go on with another."""
    began, minutes = time.time(), (deadline - time.time()) / 60
    if not dry and minutes < ROWS[row].minutes:
        why = f"{minutes:.0f} minutes were left, it needs {ROWS[row].minutes:g} or more"
        write_outcome(folder / row, call, dry, "skipped", why)
        return True
    print(f"{row}: {ROWS[row].words}", flush=True)
    where = "dry" if dry else re.sub(r"\W+", "-", torch.cuda.get_device_name())  # cases of one card are not another's
    bench = GpuBench(row, folder / "work" / where / row, deadline, dry)
    try:
        measured = import_module(f"workbook.studies.gpu.{row}").measure(bench)
        state = "failed" if bench.failures else "partial" if bench.gaps else "done"
        why, tables = "; ".join(bench.failures + bench.gaps), measured
    except Skipped as reason:
        state, why, tables = "skipped", str(reason), None
    except OutOfTime:
        state, why, tables = "skipped", "time was up; what it has kept is taken up by the next call", None
    except Exception as error:
        traceback.print_exc()
        state, why, tables = "failed", f"{type(error).__name__}: {explain_error(error)}", None
    facts = {"seconds": round(time.time() - began, 1), "result": one_line("; ".join(bench.results), 600)}
    write_outcome(folder / row, call, dry, state, why, tables, **facts)
    return state != "failed"


def end_with(parent: int) -> None:
    """End this process and what it started once its parent has died, lest the card be held beside the next call."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    if parent := os.environ.get(PARENT):
        threading.Thread(target=end_with, args=[int(parent)], daemon=True).start()
    sys.exit(main(sys.argv[1:]))
