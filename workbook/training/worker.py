"""What a run does in its own process: build the trainer, evaluate, train, write, and say how it ended.

    python -m workbook.training.worker FOLDER

The same `execute` serves the command line (with a progress bar) and sweeps (in joblib's workers). Under
`accelerate launch` it runs in several processes, of which the main one writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import warnings
from dataclasses import asdict
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pandas as pd
import torch
from filelock import Timeout
from tqdm import tqdm
from transformers import TrainerCallback, set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils.logging import disable_progress_bar

from workbook.policies import load_policy
from workbook.rollouts import sample_rollouts
from workbook.statistics import bootstrap_mean
from workbook.tasks import get_task
from workbook.training.compare import WINDOW
from workbook.training.config import CancellationConfig
from workbook.training.files import atomic_folder, remove_leftovers, write_json, write_parquet, write_text
from workbook.training.memory import peak_used_mib, used_mib
from workbook.training.processes import agree, is_main, process_count
from workbook.training.provenance import made_with
from workbook.training.resumable import ResumableTrainer, newest_intact
from workbook.training.run_config import RunConfig
from workbook.training.runs import SAMPLED, Run, check_unedited, read_json_lines, set_status, training_lock

SHOWN, LONGEST = 8, 400  # rollouts, and characters of each text, in samples.json
EVAL_SEED = 1_000_003  # added to the run's seed: held-out prompts are drawn from another stream than training prompts


def execute(folder: str | Path, progress: bool = False, wait: bool = False) -> Run:
    """Train the run in `folder` from its newest intact checkpoint, or the start, and say how it ended in status.json.

    A finished run is left as it is. One process at a time trains a run: of a second one, `wait` decides whether it is
    refused, or waits until the first has ended and does what that left undone.

    Raises:
        ValueError: if its config was edited since it started, or another process is training it.
        Exception: whatever ended training; status.json then says failed, and why.
    """
    run = Run(folder)
    lock = training_lock(run)
    if is_main():
        try:
            lock.acquire(timeout=-1 if wait else 0)
        except Timeout:
            raise ValueError(
                f"{run.folder} is being trained by process {run.status()['pid']}; stop it first."
            ) from None
    try:
        if agree(run.status())["state"] != "finished":
            _guarded(run, progress)
        agree("written")  # the others wait for the main process's last words
        return run
    finally:
        lock.release()


def _guarded(run: Run, progress: bool) -> None:
    """`_execute`, with what ended it in status.json."""
    config = run.config
    check_unedited(run)
    if is_main():
        if run.status()["state"] != "starting":  # while it starts it may have been asked to stop already
            (run.folder / "stop").unlink(missing_ok=True)
        remove_leftovers(run.folder)
    warnings.filterwarnings(
        "ignore", category=FutureWarning, module="transformers"
    )  # renamed fields that TRL still sets
    disable_progress_bar()  # of loading and saving; training has its own
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        _execute(run, config, progress and is_main())
    except KeyboardInterrupt:
        set_status(run, "stopped", "Interrupted from the keyboard; resume goes on from the last checkpoint.")
    except Exception as error:
        set_status(run, "failed", f"{type(error).__name__}: {error}")
        raise


def _execute(run: Run, config: RunConfig, progress: bool) -> None:
    checkpoint, complaints = agree(newest_intact(run.folder) if is_main() else None)
    notes = [f"Skipped a damaged checkpoint: {complaint}." for complaint in complaints]
    for note in notes if is_main() else ():
        print(note, file=sys.stderr)
    baseline = used_mib("cpu")  # the libraries alone
    trainer, task, policy = build_trainer(config, run.folder)
    total = trainer.args.max_steps
    told = {"total": total, "notes": notes}
    start = int(checkpoint.name.removeprefix("checkpoint-")) if checkpoint else 0
    if is_main():
        if not (run.folder / "manifest.json").exists():
            write_json(run.folder / "manifest.json", manifest(config, policy, trainer.train_dataset, baseline))
        rows = [row for row in read_json_lines(run.folder / "metrics.jsonl") if row.get("step", 0) <= start]
        write_text(run.folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        if config.eval_prompts and not checkpoint and not run.stopping:
            set_status(run, "running", "Sampling held-out prompts before it trains.", **told)
            _evaluate(run, config, policy, task, "before")
    if agree(run.stopping) and start < total:
        set_status(run, "stopped", f"Stopped at step {start} of {total}; resume goes on.", **told)
        return
    set_status(run, "running", f"Training {config.policy} on {config.task}.", **told)

    bar = tqdm(total=total, initial=start, unit="step", desc=config.name) if progress else None
    recorder = Recorder(run, trainer, bar)
    trainer.add_callback(recorder)
    if start >= total:  # it was killed between the last checkpoint and final/
        trainer._load_from_checkpoint(str(checkpoint))
    else:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if recorder.stopped:
        set_status(run, "stopped", f"Stopped at step {trainer.state.global_step} of {total}; resume goes on.", **told)
    elif is_main():
        _finish(run, config, trainer, task, policy, told)


def _finish(run: Run, config: RunConfig, trainer: ResumableTrainer, task, policy, told: dict) -> None:
    with atomic_folder(run.folder / "final") as folder:
        trainer._save(str(folder))
    metrics = run.metrics()
    write_parquet(run.folder / "metrics.parquet", metrics)
    sampled = metrics["reward"].dropna()  # one value per generation batch
    ends = sampled.iloc[0], sampled.iloc[-WINDOW:].mean()
    steps = "one step" if told["total"] == 1 else f"{told['total']} steps"
    learned = f"sampled reward {ends[0]:.3f} -> {ends[1]:.3f} (first batch, last {WINDOW}) in {steps}"
    if config.eval_prompts:
        set_status(run, "running", "Sampling held-out prompts, now that it has trained.", **told)
        _evaluate(run, config, policy, task, "after")
        before, after = (
            f"{r['mean']:.3f} [{r['low']:.3f}, {r['high']:.3f}]" for r in run.evaluation().to_dict("records")
        )
        learned = f"held-out reward {before} -> {after}; {learned}"
    set_status(run, "finished", f"{config.name}: {learned}.", **told)


def build_trainer(config: RunConfig, output_dir: str | Path):
    """The trainer, task and policy of a config; nothing is trained or written yet.

    Raises:
        ValueError: from `load_policy`, `get_task` or the trainer's checks, one sentence each.
    """
    _check_tracking(config.trainer.get("report_to") or "none")
    policy = load_policy(config.policy, quantization=config.quantization, lora=config.lora, seed=config.seed)
    task = get_task(config.task, **config.task_options)
    args = trainer_args(config, torch.device(policy.provenance["device"]), output_dir)
    set_seed(config.seed)
    trainer = ResumableTrainer(
        policy.model,
        task.reward,
        args=args,
        train_dataset=task.dataset(config.num_prompts, config.seed),
        processing_class=policy.tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer, task, policy


def trainer_args(config: RunConfig, device: torch.device, output_dir: str | Path) -> CancellationConfig:
    """The trainer's settings of a run on a device, with the defaults that runs have.

    Raises:
        ValueError: TRL's, for sizes that do not divide, or ours for max_steps.
    """
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    settings = {
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "beta": 0.0,
        "fp32_adapters": config.lora is not None,
    } | config.trainer
    args = CancellationConfig(
        output_dir=str(output_dir),
        seed=config.seed,
        use_cpu=device.type == "cpu",
        bf16=capable,
        fp16=device.type == "cuda" and not capable,
        **settings,
    )
    if args.max_steps <= 0:
        raise ValueError(f"trainer.max_steps={args.max_steps} must be a positive number of optimizer steps.")
    if "save_steps" not in settings:
        boundary = max(1, args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps)
        args.save_steps = boundary * max(1, round(args.max_steps / 5 / boundary))
    return args


def _check_tracking(report_to: str | list[str]) -> None:
    for name in [report_to] if isinstance(report_to, str) else report_to:
        if name in ("tensorboard", "trackio") and find_spec(name) is None:
            raise ValueError(f"report_to={name!r} needs the package {name}, which is not installed: pip install {name}")


class Recorder(TrainerCallback):
    """Appends a JSON line per step, saves samples at checkpoints, and stops the trainer when asked to."""

    def __init__(self, run: Run, trainer: ResumableTrainer, bar: tqdm | None):
        self.run, self.trainer, self.bar, self.stopped = run, trainer, bar, False

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not is_main() or not logs or "train_runtime" in logs:  # the closing summary
            return
        memory = {"peak_memory_mib": peak_used_mib(self.trainer.accelerator.device)}
        row = (
            {"step": state.global_step, "time": time.time()}
            | memory
            | {k: v for k, v in logs.items() if isinstance(v, int | float)}
        )
        with open(self.run.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if "reward" in row:  # this step sampled a generation batch
            self._show_samples(state.global_step)
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)
            self.bar.set_postfix({k: f"{row[k]:.3f}" for k in ("reward",) if k in row})
            if state.global_step >= state.max_steps:
                self.bar.close()

    def on_step_end(self, args, state, control, **kwargs):
        if agree(self.run.stopping):
            window = args.steps_per_generation * args.num_iterations
            # Inside a generation batch a checkpoint would miss its rollouts; an earlier one replays the same steps.
            control.should_save = state.global_step * args.gradient_accumulation_steps % window == 0
            control.should_training_stop = self.stopped = True
        return control

    def on_save(self, args, state, control, **kwargs):
        if is_main():
            write_parquet(self.run.folder / "samples" / f"step-{state.global_step:06d}.parquet", self._samples())

    def _samples(self, most: int | None = None) -> pd.DataFrame:
        """The first rollouts of the latest generation batch, of which TRL keeps a record."""
        logs = self.trainer._logs
        columns = {name: logs[name] for name in ("prompt", "completion", "advantages")} | logs["rewards"]
        samples = pd.DataFrame({name: list(islice(values, most)) for name, values in columns.items()})
        for column in ("prompt", "completion"):  # a conversation becomes its JSON
            samples[column] = [text if isinstance(text, str) else json.dumps(text) for text in samples[column]]
        return samples

    def _show_samples(self, step: int) -> None:
        samples = self._samples(SHOWN)
        reward = samples[list(self.trainer._logs["rewards"])].sum(axis=1)
        samples = samples.assign(step=step, reward=reward, advantage=samples["advantages"])[SAMPLED]
        for column in ("prompt", "completion"):
            samples[column] = [text if len(text) <= LONGEST else text[:LONGEST] + " ..." for text in samples[column]]
        write_json(self.run.folder / "samples.json", samples.to_dict("records"))


def _evaluate(run: Run, config: RunConfig, policy, task, label: str) -> None:
    """Sample held-out rollouts; write their token table and add their mean reward to evaluation.json."""
    rollouts = sample_rollouts(
        policy,
        task,
        task.dataset(config.eval_prompts, config.seed + EVAL_SEED),
        config.eval_group_size,
        seed=config.seed + EVAL_SEED,
        max_new_tokens=config.trainer.get("max_completion_length", 256),
    )
    write_parquet(run.folder / f"evaluation-{label}.parquet", rollouts.token_table())
    interval = bootstrap_mean(rollouts.rewards.cpu().numpy(), clusters=rollouts.group_ids.cpu().numpy())
    path = run.folder / "evaluation.json"
    rows = [r for r in (json.loads(path.read_text()) if path.exists() else []) if r["label"] != label]
    write_json(path, [*rows, {"label": label, **interval._asdict()}])


def manifest(config: RunConfig, policy, dataset, baseline_mib: float) -> dict:
    """What a reader needs to make the run again: versions, device, seed, git state, checksums, config.

    baseline_mib is the memory the process held before the policy was loaded, to be taken off a CPU run's peak.
    """
    rows = hashlib.sha256()
    for row in dataset:
        rows.update(json.dumps(row, sort_keys=True, default=str).encode())
    return {
        **made_with(policy),
        "memory_before_policy_mib": round(baseline_mib, 1),
        "seed": config.seed,
        "processes": process_count(),
        "data_sha256": rows.hexdigest(),
        "config": asdict(config),
    }


def main(folder: str) -> int:
    """Entry point of a run's own process; its output is the run's log.txt."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    print(execute(folder).status()["message"])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
