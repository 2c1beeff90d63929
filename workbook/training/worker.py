"""What a run's process does: build the trainer, evaluate, train, write, and report how it ended.

The same `execute` serves a run's own process (`python -m workbook.training FOLDER`), the command line (with a progress
bar) and sweeps (in joblib's workers). Under `accelerate launch` it runs in several processes, of which the main one
writes.
"""

from __future__ import annotations

import functools
import json
import math
import sys
import time
import warnings
from pathlib import Path

import torch
from filelock import Timeout
from tqdm import tqdm
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils.logging import disable_progress_bar

from workbook.policies.load import load_policy
from workbook.rollouts.sample import sample_rollouts
from workbook.statistics import bootstrap_mean
from workbook.tasks import get_task
from workbook.tasks.task import HELD_OUT_SEED
from workbook.training.config import sampling_settings, trainer_args
from workbook.training.device_memory import used_mib
from workbook.training.files import atomic_folder, write_json, write_parquet, write_text
from workbook.training.folders import (
    check_links,
    checkpoint_step,
    discard,
    newest_intact,
    read_metrics,
    remove_leftovers,
)
from workbook.training.inputs import check_inputs, check_unedited, manifest, other_surroundings, read_manifest
from workbook.training.messages import explain_error, one_line, show_value
from workbook.training.processes import broadcast_from_main, is_main
from workbook.training.resumable import Recorder, ResumableTrainer
from workbook.training.run_config import RunConfig
from workbook.training.runs import END_WINDOW, Run, create_run, is_done, never_trained, set_status, training_lock

LONGEST = 1000  # characters of an error in status.json


def train(config: RunConfig | dict | str | Path, folder: str | Path | None = None, progress: bool = False, **overrides):
    """Make a run and train it in this process; one that fails before its first step leaves no folder. Returns the Run.

    Raises ValueError as `start_run`, and whatever ended training.
    """
    created = create_run(config, folder, **overrides) if is_main() else None
    run = Run(broadcast_from_main(created and created.folder))
    try:
        return execute(run.folder, progress)
    except Exception:
        if created and never_trained(run):
            discard(run.folder, created.made)
        raise


def execute(folder: str | Path, progress: bool = False, wait: bool = False) -> Run:
    """Train the run in `folder` from its newest intact checkpoint, or the start, and say how it ended in status.json.

    A finished run is left as it is. One process at a time trains a run: of a second one, `wait` decides whether it is
    refused, or waits until the first has ended and does what that left undone.

    Raises ValueError if what it is made from was edited since it started, or another process is training it, and
    whatever ended training; status.json then says failed, and why.
    """
    run = Run(folder)
    lock = training_lock(run)
    if is_main():
        try:
            lock.acquire(timeout=-1 if wait else 1)  # who asks for its status looks at the lock for a moment
        except Timeout:
            pid = run.status()["pid"]
            raise ValueError(f"{run.folder} is being trained by process {pid}; stop it first.") from None
    try:
        if not broadcast_from_main(is_main() and is_done(run)):
            _guarded(run, progress)
        broadcast_from_main("written")  # the others wait for the main process's last words
        return run
    finally:
        lock.release()


def _guarded(run: Run, progress: bool) -> None:
    """`_execute`, with what ended it in status.json."""
    config = run.config
    if is_main():
        check_links(run.folder)
    check_unedited(run.folder, config)
    if is_main():
        if run.status()["state"] != "starting":  # while it starts it may have been asked to stop already
            (run.folder / "stop").unlink(missing_ok=True)
        remove_leftovers(run.folder)
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # renamed fields that TRL sets
    disable_progress_bar()  # of loading and saving; training has its own
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        _execute(run, config, progress and is_main())
    except KeyboardInterrupt:
        set_status(run, "stopped", "Interrupted from the keyboard; resume goes on from the last checkpoint.")
    except Exception as error:
        set_status(run, "failed", f"{type(error).__name__}: {one_line(error, LONGEST)}")
        raise


def _execute(run: Run, config: RunConfig, progress: bool) -> None:
    baseline = used_mib("cpu")  # the libraries alone
    trainer, task, policy, held_out = _build(config, run.folder)
    total = trainer.args.max_steps
    checkpoint, defects = broadcast_from_main(newest_intact(run.folder, total) if is_main() else None)
    notes = [f"Skipped a damaged checkpoint: {defect}." for defect in defects]
    start = checkpoint_step(checkpoint) if checkpoint else 0
    written = {"total": total, "notes": notes}
    if is_main():
        rule = trainer.credit_rule.files if trainer.credit_rule else {}
        now = manifest(config, policy, trainer.train_dataset, baseline, task.sources, rule)
        if (started := read_manifest(run.folder)) is None:
            write_json(run.folder / "manifest.json", now)
        else:
            check_inputs(started, now)
            notes += other_surroundings(started, now)
        for note in notes:
            print(note, file=sys.stderr)
        rows = [row for row in read_metrics(run.folder / "metrics.jsonl") if row["step"] <= start]
        write_text(run.folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        if config.eval_prompts and not checkpoint and not run.stopping:
            set_status(run, "running", "Sampling held-out prompts before it trains.", **written)
            began = time.monotonic()
            _evaluate(run, config, trainer, policy, task, held_out, "before")
            written["evaluation_seconds"] = round(time.monotonic() - began, 3)
    if broadcast_from_main(run.stopping) and start < total:
        set_status(run, "stopped", f"Stopped at step {start} of {total}; resume goes on.", **written)
        return
    set_status(run, "running", f"Training {config.policy} on {config.task}.", **written)

    bar = tqdm(total=total, initial=start, unit="step", desc=config.name) if progress else None
    recorder = Recorder(run, trainer, bar)
    trainer.add_callback(recorder)
    if start >= total:  # it was killed between the last checkpoint and final/
        trainer._load_from_checkpoint(str(checkpoint))
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if recorder.stopped:
        step = trainer.state.global_step
        set_status(run, "stopped", f"Stopped at step {step} of {total}; resume goes on.", **written)
    elif is_main():
        _write_model(run, trainer)
        if config.eval_prompts:
            set_status(run, "running", "Sampling held-out prompts, now that it has trained.", **written)
            _evaluate(run, config, trainer, policy, task, held_out, "after")
        set_status(run, "finished", f"{config.name}: {_outcome(run, total)}.", **written)


def _write_model(run: Run, trainer: ResumableTrainer) -> None:
    with atomic_folder(run.folder / "final") as folder:
        trainer._save(str(folder))
    write_parquet(run.folder / "metrics.parquet", run.metrics())


def _outcome(run: Run, total: int) -> str:
    """Held-out reward where it was evaluated, and sampled reward, from the first batch to the last ones."""
    sampled = run.metrics()["reward"].dropna()  # one value per generation batch
    means = {row.label: f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]" for row in run.evaluation().itertuples()}
    parts = []
    if {"before", "after"} <= set(means):
        parts.append(f"held-out reward {means['before']} -> {means['after']}")
    elif "after" in means:  # evaluation.json was damaged on the way
        parts.append(f"held-out reward {means['after']} after training")
    if len(sampled):
        ends = sampled.iloc[0], sampled.iloc[-END_WINDOW:].mean()
        steps = "one step" if total == 1 else f"{total} steps"
        parts.append(f"sampled reward {ends[0]:.3f} -> {ends[1]:.3f} (first batch, last {END_WINDOW}) in {steps}")
    return "; ".join(parts) or f"trained for {total} steps"


def build_trainer(config: RunConfig, output_dir: str | Path):
    """The trainer, task and policy of a config; nothing is trained or written yet.

    Raises ValueError from `load_policy`, `get_task` or the trainer's checks, one sentence each.
    """
    return _build(config, output_dir)[:3]


def _build(config: RunConfig, output_dir: str | Path):
    """The trainer, task, policy and held-out prompts of a config."""
    policy = _policy(config)
    task = get_task(config.task, **config.task_options)
    args = trainer_args(config, torch.device(policy.provenance["device"]), output_dir)
    set_seed(config.seed)
    rows, held_out = task.split(config.num_prompts, config.eval_prompts, config.seed)
    set_seed(config.seed)  # again, in case a task drew from the global generators
    data = {"train_dataset": rows, "processing_class": policy.tokenizer}
    trainer = ResumableTrainer(policy.model, _finite(task.reward), args=args, **data)
    trainer.remove_callback(PrinterCallback)
    return trainer, task, policy, held_out


def _policy(config: RunConfig):
    """A run's policy; a ValueError for whatever else a library finds wrong with its files, and without an end token."""
    named = f"policy={show_value(config.policy)}"
    try:
        kind = {"quantization": config.quantization, "lora": config.lora, "dtype": config.dtype}
        policy = load_policy(config.policy, **kind, seed=config.seed)
    except (ValueError, OSError, RuntimeError, ImportError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"{named} can't be loaded: {explain_error(error)}") from error
    if policy.tokenizer.eos_token_id is None:
        raise ValueError(f"{named} has a tokenizer without an end token; set its eos_token.")
    ends = policy.model.generation_config.eos_token_id
    if not all(type(end) is int for end in (ends if isinstance(ends, list) else [ends]) if end is not None):
        at = f"eos_token_id={show_value(ends)} in generation_config.json"
        raise ValueError(f"{named} has {at}; it must be a token's id, or a list of them.")
    return policy


def _finite(reward):
    """A task's reward function that raises a ValueError on a reward that is infinite or NaN as a float32."""

    @functools.wraps(reward)
    def checked(**columns):
        rewards = reward(**columns)
        for value, completion in zip(rewards, columns["completions"], strict=True):
            if value is not None and not abs(value) <= torch.finfo(torch.float32).max:
                rewarded = f"The reward {value!r} of {str(completion)[:80]!r}"
                raise ValueError(f"{rewarded} must be a finite number in float32.")
        return rewards

    return checked


def _evaluate(run: Run, config: RunConfig, trainer, policy, task, held_out, label: str) -> None:
    """Sample held-out rollouts as training does; write their token table, add their mean reward to evaluation.json."""
    asked = sampling_settings(trainer.args) | {"seed": config.seed + HELD_OUT_SEED}
    if policy.model.device.type == "cuda":  # no more at a time than training samples, which is what is forecast
        asked["batch_size"] = trainer.args.per_device_train_batch_size * trainer.args.steps_per_generation
    rollouts = sample_rollouts(policy, task, held_out, config.eval_group_size, **asked)
    write_parquet(run.folder / f"evaluation-{label}.parquet", rollouts.token_table())
    interval = bootstrap_mean(rollouts.rewards.cpu().numpy(), clusters=rollouts.group_ids.cpu().numpy())
    if not all(map(math.isfinite, interval)):
        mean = f"The mean held-out reward {label} training is {interval.mean}"
        raise ValueError(f"{mean}, and every reward must be a finite number.")
    rows = [row for row in run.evaluation().to_dict("records") if row["label"] != label]
    write_json(run.folder / "evaluation.json", [*rows, {"label": label, **interval._asdict()}])
