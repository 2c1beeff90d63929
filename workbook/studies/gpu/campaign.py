"""The command behind `python -m workbook gpu`: rows in a process of their own, each kept as soon as it is done.

A row that was done is not measured again; one that is partial goes on from what it has. One that fails, or whose
process dies, is written down with the reason, and the rest go on in a new process. When time is up the row in hand is
broken off.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from workbook.places import PACKAGE, clone, data_path

if TYPE_CHECKING:
    import pandas as pd

PARENT = "WORKBOOK_GPU_PARENT"  # environment variable: the process with which a worker ends
GRACE = 20.0  # seconds for a worker that is asked to end
NEEDED = {  # what is imported: the package that brings it
    **{name: name for name in ("torch", "transformers", "trl", "peft", "bitsandbytes", "accelerate", "datasets")},
    **{name: name for name in ("pandas", "pyarrow", "pydantic", "jaxtyping", "filelock", "platformdirs", "psutil")},
    **{"reasoning_gym": "reasoning-gym", "math_verify": "math-verify", "yaml": "pyyaml", "tqdm": "tqdm"},
}
FINAL = ("done",)  # states of a row that are not measured again


@dataclass(frozen=True)
class Row:
    """A row: what it measures, and the minutes below which it is not begun."""

    words: str
    minutes: float


ROWS = {  # the module of that name in this package measures it
    "equality": Row("CancellationTrainer equals TRL's GRPOTrainer bit for bit in bfloat16 and float16", 2),
    "speed": Row("time of a training step against GRPOTrainer's", 2),
    "peaks": Row("measured against forecast peak memory for 1.5B and 7B shapes, also within 15 GiB in float16", 3),
    "chapter11": Row("chapter 11 in full on SmolLM2: its curve, and its held-out gain with an interval", 4),
    "mechanism": Row("H1, H2 by mass, H5 and H6 by block coupling on 512 two-digit sums in plain text, SmolLM2", 4),
}


def run_rows(
    rows: Sequence[str] | None = None, folder: str | Path | None = None, minutes: float = 40, dry: bool = False
) -> int:
    """Measure the rows that are not done yet, print what was done, skipped and why; returns 1 if a row failed, else 0.

    rows: of ROWS, all by default.  folder: default data/results/gpu, or a new temporary one if dry.
    Raises ValueError where a package or, unless dry, a CUDA device is missing, or another call is at the folder, and
    OSError for a folder that can't be written to.
    """
    check_packages()
    if note := other_versions():
        print(note)
    if not dry:
        _check_cuda()
    if folder is None:
        folder = tempfile.mkdtemp(prefix="workbook-gpu-") if dry else _results()
    folder, rows, call = Path(folder), list(rows or ROWS), uuid.uuid4().hex
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--folder {folder} is no folder; give the path of one.")
    with _alone(folder):
        return _run_rows(rows, folder, call, minutes, dry)


def _run_rows(rows: list[str], folder: Path, call: str, minutes: float, dry: bool) -> int:
    began = time.time()
    deadline = began + 60 * minutes
    pending = [row for row in rows if not _is_done(folder / row, dry)]
    while pending and time.time() < deadline:
        _work(folder, pending, call, deadline, dry)
        ended = [row for row in pending if _manifest(folder / row).get("call") == call]
        if not ended:  # the process died on the first of them, or was ended there
            write_outcome(folder / pending[0], call, dry, *_death(deadline))
            ended = pending[:1]
        pending = [row for row in pending if row not in ended]
    for row in pending:
        write_outcome(folder / row, call, dry, "skipped", f"no time was left of {minutes:g} minutes")
    return _summarize(folder, rows, call, time.time() - began)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second call off the same rows. Raises StorageError, before anything is measured, where nothing can lie."""
    from filelock import FileLock, Timeout

    from workbook.training.files import readable_errors

    lock = folder / "work" / "gpu.lock"
    with readable_errors(folder):
        lock.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(lock)
        try:
            held.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"Another call measures into {folder}; wait for it, or give another --folder.") from None
    try:
        yield
    finally:
        held.release()


def check_packages() -> None:
    """Raise a ValueError that names what this machine lacks: packages, or the version of TRL that is overridden."""
    if missing := [package for name, package in NEEDED.items() if find_spec(name) is None]:
        what = ", ".join(missing)
        raise ValueError(f"This machine lacks {what}: pip install -c constraints.txt -e . brings what is missing.")
    if not (trl := version("trl")).startswith("1.16."):
        raise ValueError(
            f"This machine has trl {trl}, of which other parts would be overridden: pip install 'trl==1.16.*'"
        )


def other_versions() -> str | None:
    """A sentence that names the packages whose versions are not those of constraints.txt; None where all are."""
    pins = PACKAGE.parent / "constraints.txt"
    lines = pins.read_text(encoding="utf-8").splitlines() if pins.exists() else []
    pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    here = {package: version(package).partition("+")[0] for package in NEEDED.values() if package in pinned}
    others = [f"{name} {own} (pinned {pinned[name]})" for name, own in here.items() if own != pinned[name]]
    return f"Not the pinned versions: {', '.join(others)}." if others else None


def _check_cuda() -> None:
    import torch

    if not torch.cuda.is_available():
        raise ValueError("No CUDA device is here; --dry runs every row at a tiny size on a CPU.")


def _results() -> Path:
    clone("Writing to data/results/gpu, since no folder is named,")
    return data_path("results", "gpu")


def _work(folder: Path, rows: list[str], call: str, deadline: float, dry: bool) -> None:
    """Measure the rows in a process of its own, and end that once time is up or this process is interrupted."""
    command = [sys.executable, "-m", "workbook.studies.gpu.worker", str(folder), call, str(deadline), *rows]
    paths = [str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    environment |= {
        PARENT: str(os.getpid()),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }
    process = subprocess.Popen([*command, "--dry"] if dry else command, env=environment, start_new_session=True)
    try:
        process.wait(max(1.0, deadline - time.time()) + GRACE)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _end(process)


def _end(process: subprocess.Popen) -> None:
    """End a process and whatever it started, if it has not ended: asked first, then not."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)


def _death(deadline: float) -> tuple[str, str]:
    if time.time() >= deadline:
        return "skipped", "time was up; the next call goes on from here"
    return "failed", "its process died without a word: not enough memory, most likely"


def write_outcome(place: Path, call: str, dry: bool, state: str, why: str = "", tables=None, **facts) -> None:
    """Write a row's folder: manifest.json with its state and what it was made with, and its tables as Parquet."""
    from workbook.policies.devices import choose_device
    from workbook.training.files import atomic_folder, made_on, write_json, write_parquet

    command = f"python -m workbook gpu --rows {place.name}" + (" --dry" if dry else "")
    device = "cpu" if dry else str(choose_device())
    manifest = {"row": place.name, "state": state, "why": why, "command": command, "dry": dry, "call": call}
    with atomic_folder(place) as new:
        for name, table in (tables or {}).items():
            write_parquet(new / f"{name}.parquet", table)
        write_json(new / "manifest.json", manifest | facts | made_on(device))


def _manifest(place: Path) -> dict:
    from workbook.training.files import read_json

    try:
        return read_json(place / "manifest.json", dict)
    except ValueError:  # not there, or damaged: measured anew
        return {}


def _is_done(place: Path, dry: bool) -> bool:
    from workbook.training.files import damage

    manifest = _manifest(place)
    return manifest.get("state") in FINAL and manifest.get("dry") == dry and damage(place) is None


def gpu_table(folder: str | Path | None = None) -> pd.DataFrame:
    """What is known of each row: columns row, what, state (not measured until it is), result, device.

    folder: instead of data/results/gpu.  Rows of a dry call count for nothing.
    """
    import pandas as pd

    rows = []
    for name, row in ROWS.items():
        manifest = _manifest(Path(folder or data_path("results", "gpu")) / name)
        measured = manifest.get("state") in ("done", "partial") and not manifest.get("dry")
        known = {"state": "not measured"} if not measured else manifest
        rows.append(
            {"row": name, "what": row.words, **{key: known.get(key, "") for key in ("state", "result", "device")}}
        )
    return pd.DataFrame(rows)


def _summarize(folder: Path, rows: list[str], call: str, seconds: float) -> int:
    outcomes = {row: _manifest(folder / row) for row in rows}
    for row, manifest in outcomes.items():
        state = manifest["state"] if manifest.get("call") == call else f"{manifest['state']} before"
        took = f" in {manifest['seconds']:.0f} s" if "seconds" in manifest and "before" not in state else ""
        print(f"{row:10} {state}{took}: {manifest.get('why') or manifest.get('result') or ROWS[row].words}")
    states = [manifest["state"] for manifest in outcomes.values()]
    print(f"{states.count('done')} of {len(rows)} rows done, {seconds:.0f} s this time. They lie in {folder}")
    return 1 if "failed" in states else 0
