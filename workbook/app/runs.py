"""Runs: a folder each, started in a process of its own, watched, stopped, resumed, listed and
compared from anywhere.

A run folder holds
    config.yaml            what was asked for; a resume refuses to go on if it was edited
    manifest.json          versions, device, seed, git state, checksums of what it is made from, and the config again
    status.json            state, process, message; training.lock is locked by that process
    metrics.jsonl          a line per optimizer step while it trains; metrics.parquet once it ends
    checkpoint-N/          atomic, checked, safetensors and JSON only
    samples.json           some of the newest generation batch's rollouts
    tokens/                what each recorded step did to each token, as Parquet (see `rollouts.token_files`)
    samples/               prompts, completions, rewards, advantages at each checkpoint, as Parquet
    evaluation-*.parquet   token tables of held-out rollouts before and after
    final/                 the trained model or adapter
Every file but metrics.jsonl and log.txt is written atomically.
"""

from __future__ import annotations

import json
import os
import re
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

from workbook import files
from workbook.messages import show_value
from workbook.places import runs_folder
from workbook.rollouts.token_files import FOLDER as TOKENS
from workbook.rollouts.token_files import read_step, step_files
from workbook.training.config import RunConfig, dump_settings, flatten

FINAL_STATES = ("stopped", "finished", "failed", "interrupted")
# generation batches averaged at the end of a curve: fixed, so that nobody picks the step after the
# fact
END_WINDOW = 5
SAMPLED = ["step", "prompt", "completion", "reward", "advantage"]
EVALUATED = ["label", "mean", "low", "high"]
# of every status.json
STATUS = {"state": "interrupted", "message": "", "pid": 0, "born": 0.0, "total": 0, "notes": []}
# What a run writes in its folder, besides checkpoints; config.yaml is removed last, since it makes
# a folder a run's.
FILES = (
    *("stop", "metrics.jsonl", "metrics.parquet", "samples.json"),
    *("evaluation.json", "evaluation-before.parquet", "evaluation-after.parquet"),
    *("manifest.json", "status.json", "training.lock", "log.txt", "config.yaml"),
)
FOLDERS = ("final", "samples", TOKENS)
OURS = "|".join(["checkpoint-[1-9][0-9]*", *FOLDERS, *map(re.escape, FILES)])


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
        return files.read_json(self.folder / "manifest.json", dict)

    def metrics(self) -> pd.DataFrame:
        """One row per optimizer step so far: step, reward (where new rollouts were sampled),
        grad_norm, entropy, ...
        """
        table = pd.DataFrame(files.read_metrics(self.folder / "metrics.jsonl"))
        for column, kind in {"step": int, "reward": float}.items():
            if column not in table:
                table[column] = pd.Series(dtype=kind)
        return table

    def samples(self) -> pd.DataFrame:
        """A few of the newest generation batch's rollouts, a row each."""
        return files.read_records(self.folder / "samples.json", SAMPLED)

    def evaluation(self) -> pd.DataFrame:
        """Held-out reward before and after: columns label, mean, low, high (95 % bootstrap over
        prompts).
        """
        return files.read_records(self.folder / "evaluation.json", EVALUATED)

    def token_steps(self) -> list[int]:
        """Optimizer steps that have a token table (`record_tokens`)."""
        return list(step_files(self.folder / TOKENS))

    def tokens(self, step: int) -> pd.DataFrame:
        """What a step did to each token that it trained on (see `rollouts.token_files`), for one of
        `token_steps`.
        """
        return read_step(self.folder / TOKENS, step)

    def status(self) -> dict:
        """state (starting, running, stopped, finished, failed, interrupted), step, total, message,
        notes.
        """
        try:
            stored = files.read_json(self.folder / "status.json", dict)
            status = STATUS | {
                k: v for k, v in stored.items() if k not in STATUS or type(v) is type(STATUS[k])
            }
        except ValueError as error:  # a damaged one counts as an interrupted run's
            status = STATUS | {"notes": [str(error)]}
        rows = files.read_metrics(self.folder / "metrics.jsonl", last_only=True)
        status["step"] = rows[-1]["step"] if rows else 0
        alive = is_alive(status) or is_locked(self.folder / "training.lock")
        if status["state"] not in FINAL_STATES and not alive:
            status["state"], status["message"] = "interrupted", ""
        ended = (
            f"The process ended at step {status['step']}; resume() goes on from the last"
            " checkpoint."
        )
        status["message"] = status["message"] or ended
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
        files.write_text(self.folder / "stop", "stop\n")

    def wait(self, timeout: float | None = None):
        """Block until it ends; returns itself. TimeoutError after `timeout` seconds, RuntimeError
        if it failed.
        """
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while self.running:
            if time.monotonic() > end:
                raise TimeoutError(
                    f"{self.folder} is still running after {timeout:.0f} s:"
                    f" {self.status()['message']}"
                )
            time.sleep(0.1)
        if self.status()["state"] == "failed":
            raise RuntimeError(self.status()["message"])
        return self

    def _check_idle(self) -> None:
        if self.running:
            raise ValueError(
                f"{self.folder} is running (process {self.status()['pid']}); stop() it first."
            )

    def resume(self, wait: bool = False) -> Run:
        """Go on from the newest intact checkpoint, in a new process; ValueError if it is running,
        or was edited.
        """
        self._check_idle()
        _ = self.config  # a plain trainer's folder has none
        check_unedited(self)
        if not is_done(self):
            _launch(self)
        return self.wait() if wait else self

    def remove(self) -> None:
        """Delete what the run wrote, and its folder if nothing else is in it; ValueError if it is
        running.
        """
        self._check_idle()
        files.remove_leftovers(self.folder, OURS)
        for path in [*files.checkpoints(self.folder), *(self.folder / name for name in FOLDERS)]:
            shutil.rmtree(path, ignore_errors=True)
        for name in FILES:
            (self.folder / name).unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def policy(self, base=None):
        """Load the trained policy; an adapter on its `base`, where given. ValueError if it is
        missing or damaged.
        """
        from workbook.policies.load import Policy, load_policy

        final = self.folder / "final"
        if defect := files.damage(final):
            state = (
                f"damaged ({defect})"
                if final.exists()
                else f"not there while it is {self.status()['state']}"
            )
            raise ValueError(f"The model of {self.folder} is {state}; resume() writes it.")
        if not (final / "adapter_config.json").exists():
            return load_policy(str(final))
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


# --- making, starting and finding runs


def create_run(
    config: RunConfig | dict | str | Path, folder: str | Path | None = None, **overrides
) -> Run:
    """Make the folder of a run without starting it; see `start_run`."""
    from workbook.training.checks import check_run

    config = RunConfig.load(config).override(overrides)
    check_run(config)
    if folder is None:  # one that is not there yet, named after the time
        root, stem = runs_folder(), f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        folder = next(
            p for i in range(1000) if not (p := root / (f"{stem}-{i}" if i else stem)).exists()
        )
    run = Run(files.as_folder(folder))
    if (run.folder / "config.yaml").is_file():
        if not never_trained(run):
            raise ValueError(
                f"{run.folder} already holds a run; resume() it, or choose another folder."
            )
        run.remove()
    files.check_vacant(run.folder)
    files.write_text(run.folder / "config.yaml", dump_settings(asdict(config)))
    set_status(run, "starting", "Waiting for its process.")
    return run


def start_run(
    config: RunConfig | dict | str | Path,
    folder: str | Path | None = None,
    wait: bool = False,
    **overrides,
) -> Run:
    """Start training in a process of its own, which goes on if this one ends.

    config: a YAML file's path, a dict or a `RunConfig`.  overrides: fields of the run or its
    trainer, e.g. `seed=1`.
    folder: empty or new; by default a new one in $WORKBOOK_RUNS or ./runs.  wait: block until it
    ends; of a run that fails before its first step no folder is left then.

    Raises ValueError if a field is unknown or invalid, or the folder holds a run that has trained,
    or other files.
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
    """The run that lies in `folder`, whatever its state, or the newest of yours; ValueError if
    there is none.

    A folder in which a `TokenRecord` wrote for a plain GRPOTrainer is read, too; such a run can't
    be resumed from here.
    """
    if folder is None:
        return latest_run()
    names = {path.name for path in files.as_folder(folder).glob("*")}
    if not {"config.yaml", TOKENS} & names or not names & {"status.json", "manifest.json"}:
        raise ValueError(
            f"{folder} holds no run: a run's folder has a config.yaml and a status.json."
        )
    return Run(folder)


def latest_run(name: str = "", folder: str | Path | None = None) -> Run:
    """The run made last, of those whose folder's name begins with `name`; ValueError if there is
    none.
    """
    folder = runs_folder() if folder is None else files.as_folder(folder)
    configs = [path for path in folder.glob("*/config.yaml") if path.parent.name.startswith(name)]
    if not configs:
        raise ValueError(
            f"{folder} holds no run{f' whose name begins with {name!r}' if name else ''}."
        )
    return Run(max(configs, key=lambda path: path.stat().st_mtime_ns).parent)


# --- a run's state and its process


def is_done(run: Run) -> bool:
    """Whether a run has finished, and its model is as it was written."""
    return run.status()["state"] == "finished" and files.damage(run.folder / "final") is None


def never_trained(run: Run) -> bool:
    """Whether a run failed before its first optimizer step, so that its folder holds nothing worth
    keeping.
    """
    status = run.status()
    trained = status["step"] or (run.folder / "final").exists() or files.checkpoints(run.folder)
    return (
        status["state"] == "failed" and not trained and not is_locked(run.folder / "training.lock")
    )


def check_unedited(run: Run) -> None:
    """Raise a ValueError that names what differs from what a run started with: config.yaml, number
    of processes.
    """
    if not (run.folder / "manifest.json").exists():
        return
    started = run.manifest()
    processes = started.get("processes", 1)
    if processes != files.process_count():  # a batch is the sum of theirs
        cpu = "ACCELERATE_USE_CPU=true " if str(started.get("device")).startswith("cpu") else ""
        many = (
            f"{cpu}accelerate launch --multi_gpu --num_processes {processes}"
            if processes > 1
            else "python"
        )
        differ = (
            f"{run.folder} was started by {processes} process{'es' * (processes != 1)} and this"
            " launch has"
        )
        again = f"{many} -m workbook resume {shlex.quote(str(run.folder))}"
        raise ValueError(f"{differ} {files.process_count()}; go on with {again}")
    before, now = (
        flatten(started.get("config", {})),
        flatten(json.loads(json.dumps(asdict(run.config), default=str))),
    )
    changed = [key for key in {**now, **before} if before.get(key) != now.get(key)]
    if changed:
        shown = [
            f"{key} ({show_value(before.get(key))} -> {show_value(now.get(key))})"
            for key in changed[:3]
        ]
        edited = (
            f"{run.folder / 'config.yaml'} was edited since the run started: {', '.join(shown)}"
        )
        raise ValueError(f"{edited}; restore it to resume, or start a new run.")


_children: dict[int, subprocess.Popen] = {}


def _launch(run: Run) -> None:
    """Start the run's own process, which outlives this one and writes its output to log.txt."""
    (run.folder / "stop").unlink(missing_ok=True)
    command = [sys.executable, "-m", "workbook.app", str(run.folder)]
    # what iterates over a set does so in the same order again
    same = os.environ | {"PYTHONHASHSEED": "0"}
    with open(run.folder / "log.txt", "ab") as log:
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command, start_new_session=True, env=same, **streams)
    _children[process.pid] = process  # kept, so that poll() can reap it
    set_status(run, "starting", "Loading the policy.", **identity(process.pid))


def identity(pid: int) -> dict:
    """A process's number, and when it began."""
    return {"pid": pid, "born": psutil.Process(pid).create_time()}


def is_alive(process: dict) -> bool:
    """Whether a process of this machine is still at work; process: its `identity`."""
    if (child := _children.get(process["pid"])) is not None and child.poll() is not None:
        return False
    try:
        there = psutil.Process(process["pid"])
        return (
            there.status() != psutil.STATUS_ZOMBIE
            and abs(there.create_time() - process["born"]) < 1
        )
    except (psutil.Error, ValueError, OverflowError):  # the latter: of numbers that no process has
        return False


def is_locked(path: Path) -> bool:
    """Whether some process, on whatever machine, holds the lock at `path`; False where that can't
    be asked.
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


def set_status(run: Run, state: str, message: str, **more) -> None:
    """Write status.json, on the main process of a launch; the process is this one unless `more`
    names it.
    """
    if files.is_main():
        status = {"state": state, "message": message, "total": 0, "notes": []} | identity(
            os.getpid()
        )
        files.write_json(run.folder / "status.json", status | more)


def training_lock(run: Run) -> FileLock:
    """Held by the process that trains the run, on whatever machine, until that ends, however it
    ends.
    """
    return FileLock(run.folder / "training.lock")
