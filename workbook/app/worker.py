"""What a run's process does: build the trainer, evaluate, train, write, and report how it ended.

The same `execute` serves a run's own process (`python -m workbook.app FOLDER`), the command
line and sweeps. A resumed run ends in the bits of one that was never interrupted only if policy,
prompts, reward and settings are those that it started with: each has its checksum in the manifest,
and what differs is refused in a sentence that names it.
"""

import hashlib
import json
import re
import sys
import time
import warnings
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

import torch
from filelock import Timeout
from tqdm import tqdm
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback
from transformers.utils.logging import disable_progress_bar

from workbook.app.resumable import STATE, Recorder, ResumableTrainer
from workbook.app.run_folder import (
    OURS,
    TOKENS,
    atomic_folder,
    checkpoint_step,
    checkpoints,
    cut_metrics,
    damage,
    remove_leftovers,
)
from workbook.app.runs import (
    END_WINDOW,
    Run,
    check_unedited,
    create_run,
    is_done,
    never_trained,
    set_status,
    training_lock,
)
from workbook.files import (
    broadcast_from_main,
    is_main,
    made_with,
    process_count,
    read_json,
    write_json,
    write_parquet,
)
from workbook.messages import InvalidValue, explain_error, one_line
from workbook.places import file_hash
from workbook.policies.load import load_policy
from workbook.policies.models import used_mib
from workbook.rollouts.sample import sample_rollouts
from workbook.statistics import bootstrap_mean
from workbook.tasks import get_task
from workbook.tasks.task import HELD_OUT_SEED
from workbook.training.config import RunConfig, sampling_settings, trainer_args

# in a checkpoint, besides the weights
NEEDED = (f"{STATE}.json", f"{STATE}.safetensors", "trainer_state.json")


def train_run(
    config: RunConfig | dict | str | Path,
    folder: str | Path | None = None,
    progress: bool = False,
    **overrides,
):
    """Make a run and train it in this process.

    One that fails before its first step leaves no folder.
    """
    created = create_run(config, folder, **overrides) if is_main() else None
    run = Run(broadcast_from_main(created and created.folder))
    try:
        return execute(run.folder, progress)
    except Exception:
        if created and never_trained(run):
            run.remove()
        raise


def execute(folder: str | Path, progress: bool = False, wait: bool = False) -> Run:
    """Train the run in `folder` from its newest intact checkpoint, or the start, and say how it
    ended in status.json.

    A finished run is left as it is. One process at a time trains a run: a second one is refused,
    or, with `wait`, does what the first left undone. Raises ValueError if what it is made from was
    edited, and whatever ended training.
    """
    run = Run(folder)
    lock = training_lock(run)
    if is_main():
        try:
            # who asks for its status looks at the lock for a moment
            lock.acquire(timeout=-1 if wait else 1)
        except Timeout:
            pid = run.status()["pid"]
            raise ValueError(
                f"{run.folder} is being trained by process {pid}; stop it first."
            ) from None
    try:
        done = broadcast_from_main(is_main() and is_done(run))
        if not done:
            _report_end(run, progress)
        broadcast_from_main("written")  # the others wait for the main process's last words
        return run
    finally:
        lock.release()


def _report_end(run: Run, progress: bool) -> None:
    """Train a run whose folder this process holds, and say in status.json what ended it."""
    config = run.config
    check_unedited(run, config)
    if is_main():
        # while it starts it may have been asked to stop already
        if run.status()["state"] != "starting":
            (run.folder / "stop").unlink(missing_ok=True)
        remove_leftovers(run.folder, OURS)
        for name in ("samples", TOKENS):
            remove_leftovers(run.folder / name, r"step-\d+\.parquet")
    # renamed fields that TRL sets
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    disable_progress_bar()  # of loading and saving; training has its own
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        _train(run, config, progress and is_main())
    except KeyboardInterrupt:
        message = "Interrupted from the keyboard; resume goes on from the last checkpoint."
        set_status(run, "stopped", message)
    except Exception as error:
        set_status(run, "failed", f"{type(error).__name__}: {one_line(error, 1000)}")
        raise


def _train(run: Run, config: RunConfig, progress: bool) -> None:
    """Build a run's trainer, evaluate, train from the newest intact checkpoint, write, evaluate."""
    baseline = used_mib("cpu")  # the libraries alone
    trainer, task, policy, held_out = build_trainer(config, run.folder)
    total = trainer.args.max_steps

    # Where to go on. The main process looks, and all do as it says.
    found = newest_intact(run.folder, total) if is_main() else None
    checkpoint, defects = broadcast_from_main(found)
    start = checkpoint_step(checkpoint) if checkpoint else 0
    notes = [f"Skipped a damaged checkpoint: {defect}." for defect in defects]
    written = {"total": total, "notes": notes}  # of every status from here on

    # What the run is made from: recorded when it starts, compared when it goes on.
    if is_main():
        made_from = manifest(config, policy, trainer.train_dataset, baseline)
        if (run.folder / "manifest.json").exists():
            notes += _compare(run.manifest(), made_from)
        else:
            write_json(run.folder / "manifest.json", made_from)
        for note in notes:
            print(note, file=sys.stderr)
        cut_metrics(run.folder / "metrics.jsonl", start)
        if config.eval_prompts and not checkpoint and not run.stopping:
            set_status(run, "running", "Sampling held-out prompts before it trains.", **written)
            began = time.monotonic()
            _evaluate(run, config, trainer, policy, task, held_out, "before")
            written["evaluation_seconds"] = round(time.monotonic() - began, 3)
    if broadcast_from_main(run.stopping) and start < total:
        message = f"Stopped at step {start} of {total}; resume goes on."
        set_status(run, "stopped", message, **written)
        return

    # Train.
    set_status(run, "running", f"Training {config.policy} on {config.task}.", **written)
    bar = tqdm(total=total, initial=start, unit="step", desc=config.name) if progress else None
    recorder = Recorder(run, trainer, bar)
    trainer.add_callback(recorder)
    if start >= total:  # it was killed between the last checkpoint and final/
        trainer._load_from_checkpoint(str(checkpoint))
    else:
        with bar or nullcontext():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if recorder.stopped:
        message = f"Stopped at step {trainer.state.global_step} of {total}; resume goes on."
        set_status(run, "stopped", message, **written)
        return
    if not is_main():
        return

    # Write what came of it.
    with atomic_folder(run.folder / "final") as final:
        trainer._save(str(final))
    write_parquet(run.folder / "metrics.parquet", run.metrics())
    if config.eval_prompts:
        message = "Sampling held-out prompts, now that it has trained."
        set_status(run, "running", message, **written)
        _evaluate(run, config, trainer, policy, task, held_out, "after")
    set_status(run, "finished", f"{config.name}: {_outcome(run, total)}.", **written)


def _outcome(run: Run, total: int) -> str:
    """The rewards of a finished run, before and after, in words."""
    parts = []
    evaluation = run.evaluation()
    if len(evaluation):
        means = {}
        for row in evaluation.itertuples():
            means[row.label] = f"{row.mean:.3f} [{row.low:.3f}, {row.high:.3f}]"
        parts.append(f"held-out reward {' -> '.join(means.values())}")
    rewards = run.metrics()["reward"].dropna()  # one value per generation batch
    if len(rewards):
        first = rewards.iloc[0]
        last = rewards.iloc[-END_WINDOW:].mean()
        steps = "one step" if total == 1 else f"{total} steps"
        parts.append(
            f"sampled reward {first:.3f} -> {last:.3f} (first batch, last {END_WINDOW}) in {steps}"
        )
    return "; ".join(parts) or f"trained for {total} steps"


def _evaluate(run: Run, config: RunConfig, trainer, policy, task, held_out, label: str) -> None:
    """Sample held-out rollouts as training does, and add their mean reward to evaluation.json.

    label: "before" or "after"; their token table is named after it.
    """
    settings = sampling_settings(trainer.args)
    settings["seed"] = config.seed + HELD_OUT_SEED
    # no more at a time than training samples, which is what is forecast
    if policy.model.device.type == "cuda":
        args = trainer.args
        settings["batch_size"] = args.per_device_train_batch_size * args.steps_per_generation
    rollouts = sample_rollouts(policy, task, held_out, config.eval_group_size, **settings)
    write_parquet(run.folder / f"evaluation-{label}.parquet", rollouts.token_table())

    groups = rollouts.group_ids.cpu().numpy()
    interval = bootstrap_mean(rollouts.rewards.cpu().numpy(), clusters=groups)
    rows = [row for row in run.evaluation().to_dict("records") if row["label"] != label]
    rows.append({"label": label, **interval._asdict()})
    write_json(run.folder / "evaluation.json", rows)


# -- the trainer of a config -----------------------------------------------------------------------


def build_trainer(config: RunConfig, output_dir: str | Path):
    """The trainer, task, policy and held-out prompts of a config.

    Nothing is trained or written yet. Raises InvalidValue for a policy that can't be loaded, or has
    no end token.
    """
    kind = {"quantization": config.quantization, "lora": config.lora, "dtype": config.dtype}
    try:
        policy = load_policy(config.policy, **kind, seed=config.seed)
    except (KeyError, TypeError, AttributeError, AssertionError) as error:
        # a library's, of files that it can't read
        sentence = f"policy={config.policy!r} can't be loaded: {explain_error(error)}"
        raise InvalidValue("policy", config.policy, "one that can be loaded", sentence) from error
    if policy.tokenizer.eos_token_id is None:
        valid = "one with an end token: set its tokenizer's eos_token"
        raise InvalidValue("policy", config.policy, valid)
    task = get_task(config.task, **config.task_options)
    args = trainer_args(config, torch.device(policy.provenance["device"]), output_dir)
    set_seed(config.seed)
    rows, held_out = task.split(config.num_prompts, config.eval_prompts, config.seed)
    set_seed(config.seed)  # again, in case a task drew from the global generators
    trainer = ResumableTrainer(
        policy.model, task.reward, args=args, train_dataset=rows, processing_class=policy.tokenizer
    )
    trainer.remove_callback(PrinterCallback)
    return trainer, task, policy, held_out


# -- what a run is made from, and where a resume goes on -------------------------------------------

# of a model's config: where and in which precision it was loaded
_NOT_SETTINGS = (
    "transformers_version",
    "_name_or_path",
    "dtype",
    "torch_dtype",
    "quantization_config",
)


def manifest(config: RunConfig, policy, dataset, baseline_mib: float) -> dict:
    """All that is needed to make the run again.

    baseline_mib: what the process held before it loaded the policy. The manifest's inputs are
    checksums by name: of files of the reader's own, and of the policy's weights, settings,
    tokenizer and prompts.
    """
    model = policy.model
    settings = []
    for described in (model.config.to_dict(), model.generation_config.to_dict()):
        settings.append({k: v for k, v in described.items() if k not in _NOT_SETTINGS})
    tokenizer = policy.tokenizer
    words = [
        sorted(tokenizer.get_vocab().items()),
        tokenizer.chat_template,
        tokenizer.special_tokens_map,
    ]
    inputs = {path.name: file_hash(path) for path in _own_files(config)}
    inputs |= {
        f"the weights of the policy {config.policy!r}": policy.provenance.get("sha256"),
        f"the config of the policy {config.policy!r}": _sha256(settings),
        f"the tokenizer of the policy {config.policy!r}": _sha256(words),
        f"the training prompts of the task {config.task!r}": _sha256(list(dataset)),
    }
    return {
        **made_with(policy),
        "memory_before_policy_mib": round(baseline_mib, 1),
        "seed": config.seed,
        "processes": process_count(),
        "inputs": inputs,
        "config": asdict(config),
    }


def _own_files(config: RunConfig) -> list[Path]:
    """Files of the reader's own that a config names: of a task, rewards and a credit rule."""
    reward = config.task_options.get("reward")
    rewards = list(reward) if isinstance(reward, dict) else [reward]
    paths = []
    for text in [config.task, *rewards, config.trainer.get("advantage_estimator")]:
        if not isinstance(text, str):
            continue
        # own:FILE, or own:FILE.py:FUNCTION
        name = re.sub(r"\.py:\w+$", ".py", text.removeprefix("own:"))
        path = Path(name).expanduser()
        if path.is_file():
            paths.append(path)
    return paths


def _sha256(tree) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True, default=str).encode()).hexdigest()


def _compare(started: dict, now: dict) -> list[str]:
    """A note on versions or a device that differ between a run's manifest and that of one that
    starts now.

    Raises a ValueError that names the inputs that differ.
    """
    recorded = started.get("inputs", {})
    changed = [name for name, sha in now["inputs"].items() if sha != recorded.get(name, sha)]
    # another library may read the same files in another way
    if started.get("versions") != now["versions"]:
        changed = [name for name in changed if not name.startswith(("the config", "the tokenizer"))]
    if changed:
        raise ValueError(
            f"Changed since the run started: {', '.join(changed)}; a resume would end in other"
            " weights, so restore what was there, or start a new run."
        )

    before = {"device": started.get("device")} | started.get("versions", {})
    after = {"device": now.get("device")} | now.get("versions", {})
    others = []
    for name, value in before.items():
        if value != after.get(name):
            others.append(f"{name} {value} -> {after.get(name)}")
    return [f"Resumed under other surroundings: {', '.join(others)}."] if others else []


def newest_intact(folder: Path, max_steps: int) -> tuple[Path | None, list[str]]:
    """The newest checkpoint of a run of `max_steps` whose checksums hold, and what is wrong with
    each newer one.
    """
    defects = []
    for checkpoint in checkpoints(folder):
        defect = damage(checkpoint, NEEDED) or _of_another_run(checkpoint, max_steps)
        if defect is None:
            return checkpoint, defects
        defects.append(defect)
    return None, defects


def _of_another_run(checkpoint: Path, max_steps: int) -> str | None:
    """What says that an intact checkpoint is another run's; None if nothing does."""
    state = read_json(checkpoint / "trainer_state.json", dict)
    expected = {"global_step": checkpoint_step(checkpoint), "max_steps": max_steps}
    for key, own in expected.items():
        if state.get(key) != own:
            other = f"{key} {state.get(key)!r} instead of {own}"
            return f"{checkpoint.name} is of another run: {other}"
    return None
