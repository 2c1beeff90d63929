"""Runs: a folder each, started in a process of its own, watched, stopped, resumed and compared from anywhere.

A run folder holds
    config.yaml            what was asked for; a resume refuses to go on if it was edited
    manifest.json          versions, device, seed, git state, data and policy checksums, and the config again
    status.json            state, process, message; training.lock is locked by that process
    metrics.jsonl          a line per optimizer step while it trains; metrics.parquet once it ends
    checkpoint-N/          atomic, checked, safetensors and JSON only
    samples.json           some of the newest generation batch's rollouts
    samples/               prompts, completions, rewards, advantages at each checkpoint, as Parquet
    evaluation-*.parquet   token tables of held-out rollouts before and after
    final/                 the trained model or adapter
Nothing in it is pickled, and every file but metrics.jsonl and log.txt is written atomically.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import psutil
import yaml
from filelock import FileLock

from workbook.training.files import write_json, write_text
from workbook.training.processes import is_main, process_count
from workbook.training.run_config import RunConfig

FINAL_STATES = ("stopped", "finished", "failed", "interrupted")
SAMPLED = ["step", "prompt", "completion", "reward", "advantage"]


class Run:
    """A run folder: read its state at any time, from any process.

    Attributes:
        folder: where it lies.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.status()['message']!r})"

    @property
    def config(self) -> RunConfig:
        return RunConfig.load(self.folder / "config.yaml")

    def manifest(self) -> dict:
        """Versions, device, seed, git state and checksums of what the run used."""
        return json.loads((self.folder / "manifest.json").read_text(encoding="utf-8"))

    def metrics(self) -> pd.DataFrame:
        """One row per optimizer step so far: step, reward (where new rollouts were sampled), grad_norm, entropy, ..."""
        rows = [row for row in read_json_lines(self.folder / "metrics.jsonl") if "step" in row]
        return (
            pd.DataFrame(rows)
            if rows
            else pd.DataFrame({"step": pd.Series(dtype=int), "reward": pd.Series(dtype=float)})
        )

    def samples(self) -> pd.DataFrame:
        """A few of the newest generation batch's rollouts: columns step, prompt, completion, reward, advantage."""
        path = self.folder / "samples.json"
        return pd.DataFrame(json.loads(path.read_text(encoding="utf-8")) if path.exists() else [], columns=SAMPLED)

    def status(self) -> dict:
        """state (starting, running, stopped, finished, failed, interrupted), step, total, message, notes."""
        status = json.loads((self.folder / "status.json").read_text(encoding="utf-8"))
        rows = read_json_lines(self.folder / "metrics.jsonl", last_only=True)
        status["step"] = rows[-1]["step"] if rows else 0
        if status["state"] in ("starting", "running") and not is_alive(status):
            status |= {
                "state": "interrupted",
                "message": f"The process ended at step {status['step']}; resume() goes on from the last checkpoint.",
            }
        return status

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop since it last started."""
        return (self.folder / "stop").exists()

    @property
    def running(self) -> bool:
        return self.status()["state"] not in FINAL_STATES

    def evaluation(self) -> pd.DataFrame:
        """Held-out reward before and after: columns label, mean, low, high (95 % bootstrap over prompts)."""
        path = self.folder / "evaluation.json"
        return pd.DataFrame(
            json.loads(path.read_text(encoding="utf-8")) if path.exists() else [],
            columns=["label", "mean", "low", "high"],
        )

    def stop(self) -> None:
        """Ask it to stop after the optimizer step in hand; what was trained stays resumable."""
        write_text(self.folder / "stop", "stop\n")

    def wait(self, timeout: float | None = None) -> Run:
        """Block until it ends.

        Raises:
            TimeoutError: after `timeout` seconds.
            RuntimeError: if it failed, with its message.
        """
        start = time.monotonic()
        while self.running:
            if timeout is not None and time.monotonic() - start > timeout:
                raise TimeoutError(f"{self.folder} is still running after {timeout:.0f} s: {self.status()['message']}")
            time.sleep(0.1)
        if self.status()["state"] == "failed":
            raise RuntimeError(self.status()["message"])
        return self

    def resume(self, wait: bool = False) -> Run:
        """Go on from the newest intact checkpoint, in a new process; a finished run is left as it is.

        Raises:
            ValueError: if it is running, or its config was edited since it started.
        """
        if self.running:
            raise ValueError(f"{self.folder} is running (process {self.status()['pid']}); stop() it first.")
        check_unedited(self)
        if self.status()["state"] != "finished":
            _launch(self)
        return self.wait() if wait else self

    def policy(self, base=None):
        """The trained policy, loaded from final/; a trained adapter on the base it was trained on.

        base: that base, if it is loaded already (without adapters of its own); the adapter is put into it.

        Raises:
            ValueError: if the run has not finished.
        """
        from workbook.policies import Policy, load_policy

        final = self.folder / "final"
        if not final.exists():
            raise ValueError(
                f"{self.folder} has no final/ yet: it is {self.status()['state']}; wait() for it, or resume() it."
            )
        if not (final / "adapter_config.json").exists():
            return load_policy(str(final))
        from peft import PeftModel

        base = base or load_policy(self.config.policy, quantization=self.config.quantization)
        model = PeftModel.from_pretrained(base.model, str(final)).eval()
        return Policy(model, base.tokenizer, base.provenance | {"adapter": str(final)})


def create_run(config: RunConfig | dict | str | Path, folder: str | Path | None = None, **overrides) -> Run:
    """Make the folder of a run without starting it; see `start_run`."""
    config = RunConfig.load(config).override(overrides)
    if folder is None:
        root = _runs_folder()
        stem = f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder = next(p for i in range(1000) if not (p := root / (f"{stem}-{i}" if i else stem)).exists())
    run = Run(folder)
    if (run.folder / "config.yaml").exists():
        raise ValueError(
            f"{run.folder} already holds a run; resume it with load_run({str(run.folder)!r}).resume(), "
            "or choose another folder."
        )
    write_text(run.folder / "config.yaml", yaml.safe_dump(asdict(config), sort_keys=False))
    set_status(run, "starting", "Waiting for its process.")
    return run


def start_run(
    config: RunConfig | dict | str | Path, folder: str | Path | None = None, wait: bool = False, **overrides
) -> Run:
    """Start training in a process of its own, which goes on if this one ends.

    Args:
        config: a YAML file's path, a dict or a `RunConfig`.
        folder: where to keep it; by default a new folder in $WORKBOOK_RUNS or ./runs.
        wait: block until it ends.
        overrides: fields of the run or its trainer, e.g. `seed=1, learning_rate=5e-4`.

    Raises:
        ValueError: if a field is unknown or invalid, or the folder already holds a run.
    """
    run = create_run(config, folder, **overrides)
    _launch(run)
    return run.wait() if wait else run


def load_run(folder: str | Path) -> Run:
    """The run that lies in `folder`, whatever its state.

    Raises:
        ValueError: if there is none.
    """
    if not (Path(folder) / "config.yaml").exists():
        raise ValueError(f"{folder} holds no run: it has no config.yaml.")
    return Run(folder)


def latest_run(name: str = "", folder: str | Path | None = None) -> Run:
    """The run made last, of those whose folder's name begins with `name`; whatever its state, and whoever started it.

    folder: where runs lie, by default $WORKBOOK_RUNS or ./runs.

    Raises:
        ValueError: if there is none.
    """
    folder = _runs_folder() if folder is None else Path(folder)
    configs = [path for path in folder.glob("*/config.yaml") if path.parent.name.startswith(name)]
    if not configs:
        raise ValueError(f"{folder} holds no run{f' whose name begins with {name!r}' if name else ''}.")
    return Run(max(configs, key=lambda path: path.stat().st_mtime_ns).parent)


def _runs_folder() -> Path:
    return Path(os.environ.get("WORKBOOK_RUNS", "runs"))


def check_unedited(run: Run) -> None:
    """Raise a ValueError that names what differs from what the run started with: config.yaml, number of processes."""
    if not (run.folder / "manifest.json").exists():
        return
    manifest = run.manifest()
    if (processes := manifest.get("processes", 1)) != process_count():  # a batch is the sum of theirs
        raise ValueError(
            f"{run.folder} was started by {processes} processes and this launch has {process_count()}; go on with "
            f"accelerate launch --num_processes {processes} -m workbook resume {run.folder}"
        )
    started, now = manifest["config"], json.loads(json.dumps(asdict(run.config)))
    changed = [f"{key} ({started.get(key)!r} -> {now[key]!r})" for key in now if now[key] != started.get(key)]
    if changed:
        raise ValueError(
            f"{run.folder / 'config.yaml'} was edited since the run started: {', '.join(changed)}; "
            "restore it to resume, or start a new run."
        )


def training_lock(run: Run) -> FileLock:
    """Held by the process that trains the run, which may be on another machine that shares the folder; the system
    releases it when that process ends, however it ends."""
    return FileLock(run.folder / "training.lock")


def set_status(run: Run, state: str, message: str, **more) -> None:
    """Write status.json, on the main process of a launch; the process is this one unless `more` names it."""
    if not is_main():
        return
    me = psutil.Process()
    write_json(
        run.folder / "status.json",
        {"state": state, "message": message, "pid": me.pid, "born": me.create_time(), "total": 0, "notes": []} | more,
    )


def read_json_lines(path: Path, last_only: bool = False) -> list[dict]:
    """The whole lines of a JSON-lines file; a torn last line, as a killed writer leaves it, is skipped."""
    if not path.exists():
        return []
    with open(path, "rb") as file:
        if last_only:
            file.seek(max(0, path.stat().st_size - 16_384))
        lines = file.read().split(b"\n")[:-1]
    rows = []
    for line in lines[-2:] if last_only else lines:
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return [row for row in rows if isinstance(row, dict)]


def _launch(run: Run) -> None:
    (run.folder / "stop").unlink(missing_ok=True)
    process = launch(run.folder, "workbook.training.worker", str(run.folder))
    set_status(run, "starting", "Loading the policy.", **process)


def launch(folder: Path, module: str, *arguments: str) -> dict:
    """Start `python -m module arguments` with folder/log.txt for its output; returns its pid, and when it was born."""
    with open(folder / "log.txt", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    _children[process.pid] = process  # kept, so that poll() can reap it
    return {"pid": process.pid, "born": psutil.Process(process.pid).create_time()}


_children: dict[int, subprocess.Popen] = {}


def is_alive(process: dict) -> bool:
    """Whether a process that `launch` started is still at work; process: its pid and born."""
    if (child := _children.get(process["pid"])) is not None and child.poll() is not None:
        return False
    try:
        found = psutil.Process(process["pid"])
        return found.status() != psutil.STATUS_ZOMBIE and abs(found.create_time() - process["born"]) < 1
    except psutil.Error:
        return False
