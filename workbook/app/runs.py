"""Runs: each a folder, started in a process of its own; watched, stopped, resumed and found from
anywhere.

A process that trains says what it does in its folder alone (`app.run_folder`), and a `Run` reads
it there. So a run can be looked at from a notebook, a terminal or another machine, and outlives
whoever started it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import psutil
from filelock import FileLock

from workbook.app.run_folder import (
    FILES,
    FOLDERS,
    OURS,
    TOKENS,
    as_folder,
    check_vacant,
    checkpoints,
    damage,
    read_metrics,
    read_records,
    remove_leftovers,
)
from workbook.files import is_main, process_count, read_json, write_json, write_text
from workbook.messages import show_value
from workbook.places import runs_folder
from workbook.rollouts.token_files import read_step, step_files
from workbook.training.config import RunConfig, dump_settings, flatten

FINAL_STATES = ("stopped", "finished", "failed", "interrupted")
# generation batches averaged at the end of a curve: fixed, so that nobody picks the step after the
# fact
END_WINDOW = 5
SAMPLED = ["step", "prompt", "completion", "reward", "advantage"]
_EVALUATED = ["label", "mean", "low", "high"]
# of every status.json
_STATUS = {"state": "interrupted", "message": "", "pid": 0, "born": 0.0, "total": 0, "notes": []}


class Run:
    """A run folder: read its state at any time, from any process."""

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r}, {self.status()['message']!r})"

    @property
    def config(self) -> RunConfig:
        return RunConfig.load(self.folder / "config.yaml")

    def manifest(self) -> dict:
        """Versions, device, seed, git state and checksums of what the run used."""
        return read_json(self.folder / "manifest.json", dict)

    def metrics(self) -> pd.DataFrame:
        """One row per optimizer step so far: step, reward, grad_norm, entropy, ...

        reward: where new rollouts were sampled, else NaN.
        """
        table = pd.DataFrame(read_metrics(self.folder / "metrics.jsonl"))
        for column, kind in {"step": int, "reward": float}.items():
            if column not in table:
                table[column] = pd.Series(dtype=kind)
        return table

    def samples(self) -> pd.DataFrame:
        """A few of the newest generation batch's rollouts, a row each."""
        return read_records(self.folder / "samples.json", SAMPLED)

    def evaluation(self) -> pd.DataFrame:
        """Held-out reward before and after: columns label, mean, low, high.

        low and high: a 95 % bootstrap interval over prompts.
        """
        return read_records(self.folder / "evaluation.json", _EVALUATED)

    def token_steps(self) -> list[int]:
        """Optimizer steps that have a token table (`record_tokens`)."""
        return list(step_files(self.folder / TOKENS))

    def tokens(self, step: int) -> pd.DataFrame:
        """What a step, one of `token_steps`, did to each token that it trained on.

        Columns: see `rollouts.token_files`.
        """
        return read_step(self.folder / TOKENS, step)

    def status(self) -> dict:
        """Its state, step, total (of steps), message, notes and process.

        state: starting, running, stopped, finished, failed or interrupted.
        """
        status = dict(_STATUS)
        try:
            stored = read_json(self.folder / "status.json", dict)
            for name, value in stored.items():
                if name not in _STATUS or type(value) is type(_STATUS[name]):
                    status[name] = value
        except ValueError as error:  # a damaged one counts as an interrupted run's
            status["notes"] = [str(error)]

        rows = read_metrics(self.folder / "metrics.jsonl", last_only=True)
        status["step"] = rows[-1]["step"] if rows else 0
        at_work = is_alive(status) or is_locked(self.folder / "training.lock")
        if status["state"] not in FINAL_STATES and not at_work:
            status["state"] = "interrupted"
            status["message"] = ""
        if not status["message"]:
            ended = f"The process ended at step {status['step']}"
            status["message"] = f"{ended}; resume() goes on from the last checkpoint."
        return status

    @property
    def running(self) -> bool:
        return self.status()["state"] not in FINAL_STATES

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop since it last started."""
        return (self.folder / "stop").exists()

    def stop(self) -> None:
        """Ask it to stop after the optimizer step in hand; it can be resumed."""
        write_text(self.folder / "stop", "stop\n")

    def wait(self, timeout: float | None = None):
        """Block until it ends; returns itself.

        Raises TimeoutError after `timeout` seconds, RuntimeError if the run failed.
        """
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while self.running:
            if time.monotonic() > deadline:
                message = self.status()["message"]
                raise TimeoutError(
                    f"{self.folder} is still running after {timeout:.0f} s: {message}"
                )
            time.sleep(0.1)
        status = self.status()
        if status["state"] == "failed":
            raise RuntimeError(status["message"])
        return self

    def _check_idle(self) -> None:
        if self.running:
            raise ValueError(
                f"{self.folder} is running (process {self.status()['pid']}); stop() it first."
            )

    def resume(self, wait: bool = False) -> Run:
        """Go on from the newest intact checkpoint, in a new process.

        Raises ValueError if the run is running, or was edited.
        """
        self._check_idle()
        check_unedited(self, self.config)
        if not is_done(self):
            _launch(self)
        return self.wait() if wait else self

    def remove(self) -> None:
        """Delete what the run wrote, and its folder if nothing else is in it.

        Raises ValueError if the run is running.
        """
        self._check_idle()
        remove_leftovers(self.folder, OURS)
        folders = checkpoints(self.folder) + [self.folder / name for name in FOLDERS]
        for path in folders:
            shutil.rmtree(path, ignore_errors=True)
        for name in FILES:
            (self.folder / name).unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def policy(self, base=None):
        """Load the trained policy; an adapter on its `base`, where given.

        Raises ValueError if it is missing or damaged.
        """
        from workbook.policies.load import Policy, load_policy

        final = self.folder / "final"
        defect = damage(final)
        if defect:
            state = f"not there while it is {self.status()['state']}"
            if final.exists():
                state = f"damaged ({defect})"
            raise ValueError(f"The model of {self.folder} is {state}; resume() writes it.")
        if not (final / "adapter_config.json").exists():
            return load_policy(str(final))

        # an adapter: on the weights that it was trained on, or weights like them
        from peft import PeftModel

        config = self.config
        base = base or load_policy(
            config.policy, quantization=config.quantization, dtype=config.dtype
        )
        trained_on = (self.manifest().get("policy") or {}).get("sha256")
        if trained_on and base.provenance.get("sha256") not in (None, trained_on):
            name = base.provenance["name"]
            raise ValueError(
                f"The weights of {name} are not those that the adapter in {final} was trained on."
            )
        model = PeftModel.from_pretrained(base.model, str(final)).eval()
        return Policy(model, base.tokenizer, base.provenance | {"adapter": str(final)})


# -- making, starting and finding runs -------------------------------------------------------------


def create_run(
    config: RunConfig | dict | str | Path, folder: str | Path | None = None, **overrides
) -> Run:
    """Make the folder of a run without starting it; see `start_run`."""
    from workbook.training.checks import check_run

    config = RunConfig.load(config).override(overrides)
    check_run(config)
    run = Run(_new_folder(config.name) if folder is None else as_folder(folder))
    if (run.folder / "config.yaml").is_file():
        if not never_trained(run):
            raise ValueError(
                f"{run.folder} already holds a run; resume() it, or choose another folder."
            )
        run.remove()
    check_vacant(run.folder)
    write_text(run.folder / "config.yaml", dump_settings(asdict(config)))
    set_status(run, "starting", "Waiting for its process.")
    return run


def _new_folder(name: str) -> Path:
    """A folder that is not there yet, named after the run and the time."""
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    folder = runs_folder() / stem
    number = 0
    while folder.exists():
        number += 1
        folder = runs_folder() / f"{stem}-{number}"
    return folder


def start_run(
    config: RunConfig | dict | str | Path,
    folder: str | Path | None = None,
    wait: bool = False,
    **overrides,
) -> Run:
    """Start training in a process of its own, which goes on if this one ends.

    config: a YAML file's path, a dict or a `RunConfig`.
    folder: empty or new; by default a new one in $WORKBOOK_RUNS or ./runs.
    wait: block until it ends; of a run that fails before its first step no folder is left then.
    overrides: fields of the run or its trainer, e.g. `seed=1`.

    Raises ValueError if a field is unknown or invalid, or the folder holds a run that has trained,
    or other
    """
    run = create_run(config, folder, **overrides)
    _launch(run)
    try:
        return run.wait() if wait else run
    except RuntimeError:
        if never_trained(run):
            run.remove()
        raise


def load_run(folder: str | Path | None = None) -> Run:
    """The run that lies in `folder`, whatever its state, or the newest of yours.

    A folder in which a `TokenRecord` wrote for a plain GRPOTrainer is read, too; such a run can't
    be resumed from here. Raises ValueError if there is none.
    """
    if folder is None:
        return latest_run()
    names = {path.name for path in as_folder(folder).glob("*")}
    if not {"config.yaml", TOKENS} & names or not names & {"status.json", "manifest.json"}:
        raise ValueError(
            f"{folder} holds no run: a run's folder has a config.yaml and a status.json."
        )
    return Run(folder)


def latest_run(name: str = "", folder: str | Path | None = None) -> Run:
    """The run made last, of those whose folder's name begins with `name`.

    folder: of the runs; by default $WORKBOOK_RUNS or ./runs.  Raises ValueError if there is none.
    """
    folder = runs_folder() if folder is None else as_folder(folder)
    configs = [path for path in folder.glob("*/config.yaml") if path.parent.name.startswith(name)]
    if not configs:
        which = f" whose name begins with {name!r}" if name else ""
        raise ValueError(f"{folder} holds no run{which}.")
    newest = max(configs, key=lambda path: path.stat().st_mtime_ns)
    return Run(newest.parent)


# -- a run's state ---------------------------------------------------------------------------------


def is_done(run: Run) -> bool:
    """Whether a run has finished, and its model is as it was written."""
    return run.status()["state"] == "finished" and damage(run.folder / "final") is None


def never_trained(run: Run) -> bool:
    """Whether a run failed before its first optimizer step.

    Its folder then holds nothing worth keeping.
    """
    status = run.status()
    if status["state"] != "failed" or status["step"] or checkpoints(run.folder):
        return False
    return not (run.folder / "final").exists() and not is_locked(run.folder / "training.lock")


def check_unedited(run: Run, config: RunConfig) -> None:
    """Raise a ValueError that names what differs from what a run started with: its config, or the
    number of processes.
    """
    if not (run.folder / "manifest.json").exists():
        return
    started = run.manifest()
    processes = started.get("processes", 1)
    if processes != process_count():  # a batch is the sum of theirs
        launcher = "python"
        if processes > 1:
            launcher = f"accelerate launch --multi_gpu --num_processes {processes}"
            if str(started.get("device")).startswith("cpu"):
                launcher = f"ACCELERATE_USE_CPU=true {launcher}"
        unit = "process" if processes == 1 else "processes"
        command = f"{launcher} -m workbook resume {shlex.quote(str(run.folder))}"
        raise ValueError(
            f"{run.folder} was started by {processes} {unit} and this launch has"
            f" {process_count()}; go on with {command}"
        )

    before = flatten(started.get("config", {}))
    # as JSON would give it back
    now = flatten(json.loads(json.dumps(asdict(config), default=str)))
    changed = []
    for key in {**now, **before}:
        if before.get(key) != now.get(key):
            changed.append(f"{key} ({show_value(before.get(key))} -> {show_value(now.get(key))})")
    if changed:
        raise ValueError(
            f"{run.folder / 'config.yaml'} was edited since the run started:"
            f" {', '.join(changed[:3])}; restore it to resume, or start a new run."
        )


def set_status(run: Run, state: str, message: str, **more) -> None:
    """Write status.json, on the main process of a launch.

    more: total (of steps), notes; pid and born, where the process is not this one.
    """
    if is_main():
        status = {"state": state, "message": message, "total": 0, "notes": []}
        status |= identity(os.getpid())
        write_json(run.folder / "status.json", status | more)


# -- a run's process -------------------------------------------------------------------------------

# processes that this one started: kept, so that poll() can reap them
_children: dict[int, subprocess.Popen] = {}


def _launch(run: Run) -> None:
    """Start the run's own process, which outlives this one and writes its output to log.txt."""
    (run.folder / "stop").unlink(missing_ok=True)
    # what iterates over a set does so in the same order again
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    with open(run.folder / "log.txt", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "workbook.app", str(run.folder)],
            start_new_session=True,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    _children[process.pid] = process
    set_status(run, "starting", "Loading the policy.", **identity(process.pid))


def identity(pid: int) -> dict:
    """A process's number, and when it began."""
    return {"pid": pid, "born": psutil.Process(pid).create_time()}


def is_alive(process: dict) -> bool:
    """Whether a process of this machine is still at work; process: its `identity`."""
    child = _children.get(process["pid"])
    if child is not None and child.poll() is not None:
        return False
    try:
        found = psutil.Process(process["pid"])
        # a number is given again to another process
        same = abs(found.create_time() - process["born"]) < 1
        return same and found.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):  # the latter: of numbers that no process has
        return False


def is_locked(path: Path) -> bool:
    """Whether some process, on whatever machine, holds the lock at `path`.

    False where that can't be asked.
    """
    try:
        import fcntl

        with open(path, "rb") as file:  # closing it ends the shared lock
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        return False


def training_lock(run: Run) -> FileLock:
    """The lock that a process holds while it trains the run, on whatever machine, until it ends,
    however it ends.
    """
    return FileLock(run.folder / "training.lock")
