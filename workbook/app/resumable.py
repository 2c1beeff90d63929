"""ResumableTrainer: CancellationTrainer whose checkpoints are atomic, checked, free of pickle and
resume bit for bit.

A resumed run ends in the bits of one that was never interrupted only if everything that a step
depends on comes back: weights, optimizer, scheduler, random states of every process, and the order
of the prompts. What differs from transformers' checkpoints: the folder appears whole or not at all;
optimizer, scheduler, scaler and random states, the adaptive entropy coefficient and a reference
model that moves are safetensors and JSON; and a run resumed in a later epoch draws that epoch's
prompt order, where TRL's sampler would repeat the first one's.
"""

import json
import random
import shutil
import time
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from accelerate import DistributedType
from tqdm import tqdm
from transformers import TrainerCallback

from workbook.app.run_folder import (
    MAX_CHECKPOINTS,
    atomic_folder,
    checkpoint_step,
    checkpoints,
    load_state,
    save_state,
)
from workbook.app.runs import SAMPLED, Run
from workbook.files import (
    all_gather,
    broadcast_from_main,
    is_main,
    process_index,
    read_json,
    write_json,
    write_parquet,
)
from workbook.policies.models import peak_used_mib
from workbook.training.trainer import CancellationTrainer

STATE = "training_state"  # stem of the state files in a checkpoint
# the one part of a scheduler's state that is code
_LAMBDAS = "lr_lambdas"
# of TRL's adaptive controller, between optimizer steps
_ENTROPY = ("entropy_coef", "_last_world_entropy")
_SHOWN_ROLLOUTS = 8  # in samples.json
_SHOWN_CHARACTERS = 400  # of each text there


class ResumableTrainer(CancellationTrainer):
    """CancellationTrainer for runs.

    `train(resume_from_checkpoint=...)` takes a `checkpoint-N` of its `output_dir`.
    """

    _sampler_epochs = 0  # prompt orders that a resumed run's earlier epochs have used up

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        kind = self.accelerator.distributed_type
        if kind in (DistributedType.FSDP, DistributedType.DEEPSPEED):
            raise ValueError(
                f"A run's checkpoints hold whole weights, which {kind.value} shards; launch it with"
                " data/configs/accelerate/multi_gpu.yaml."
            )

    # -- writing a checkpoint ------------------------------------------------------------------

    def _save_checkpoint(self, model, trial):
        others = all_gather(_random_state())[1:]
        if not is_main():
            return
        step = self.state.global_step
        output = Path(self.args.output_dir)
        with atomic_folder(output / f"checkpoint-{step}") as folder:
            self._save(str(folder))
            save_state(folder, STATE, self._training_state() | {"random_of_others": others})
            self.state.save_to_json(str(folder / "trainer_state.json"))
        # those of later steps are damaged, or of another run: a resume passed over them
        ours = [path for path in checkpoints(output) if checkpoint_step(path) <= step]
        for old in ours[MAX_CHECKPOINTS:]:
            shutil.rmtree(old)

    def _save(self, output_dir=None, state_dict=None):
        folder = output_dir or self.args.output_dir
        self.accelerator.unwrap_model(self.model).save_pretrained(folder, state_dict=state_dict)
        self.processing_class.save_pretrained(folder)

    def _training_state(self) -> dict:
        """All but the weights that the next step depends on, as a tree of scalars and tensors."""
        scheduler = self.lr_scheduler.state_dict()
        scheduler.pop(_LAMBDAS, None)
        scaler = self.accelerator.scaler
        entropy = {}
        if self.args.use_adaptive_entropy:
            entropy = {name: getattr(self, name) for name in _ENTROPY}
        reference = {}
        if self.args.sync_ref_model:
            reference = dict(self._moving_reference().state_dict())
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": scheduler,
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": _random_state(),
            "entropy": entropy,
            "reference": reference,
        }

    def _moving_reference(self):
        return self.accelerator.unwrap_model(self.ref_model)

    # -- going on from one ---------------------------------------------------------------------

    def train(self, resume_from_checkpoint=None, **kwargs):
        if resume_from_checkpoint is not None:
            state = read_json(Path(resume_from_checkpoint) / "trainer_state.json", dict)
            self._sampler_epochs = int(state["epoch"] or 0)
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _get_train_sampler(self, dataset=None):
        sampler = super()._get_train_sampler(dataset)
        if sampler.shuffle:
            for _ in range(self._sampler_epochs):
                torch.randperm(sampler.num_samples, generator=sampler.generator)
        return sampler

    def _load_optimizer_and_scheduler(self, checkpoint):
        if checkpoint is None:
            return
        state = load_state(Path(checkpoint), STATE)
        self.optimizer.load_state_dict(state["optimizer"])
        # made anew from the config
        own = self.lr_scheduler.state_dict()
        lambdas = {_LAMBDAS: own[_LAMBDAS]} if _LAMBDAS in own else {}
        self.lr_scheduler.load_state_dict(lambdas | state["scheduler"])
        for name, value in state["entropy"].items():
            setattr(self, name, value)
        if state["reference"]:
            self._moving_reference().load_state_dict(state["reference"])
        if state["scaler"] is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def _load_scaler(self, checkpoint):
        """Restored with the optimizer."""

    def _load_rng_state(self, checkpoint):
        if checkpoint is None:
            return
        state = load_state(Path(checkpoint), STATE)
        of_processes = [state["random"], *state["random_of_others"]]
        _set_random_state(of_processes[process_index()])


def _random_state() -> dict:
    """States of Python's, NumPy's and torch's global generators, as scalars and tensors."""
    algorithm, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (algorithm, keys.tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_random_state(state: dict) -> None:
    algorithm, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((algorithm, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


# -- what a reader sees while it trains ------------------------------------------------------------


class Recorder(TrainerCallback):
    """Appends a JSON line per step, saves samples at checkpoints, stops the trainer when asked."""

    def __init__(self, run: Run, trainer: ResumableTrainer, bar: tqdm | None):
        self.run = run
        self.trainer = trainer
        self.bar = bar
        self.stopped = False

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not is_main() or not logs or "train_runtime" in logs:  # the closing summary
            return
        row = {
            "step": state.global_step,
            "time": time.time(),
            "peak_memory_mib": peak_used_mib(self.trainer.accelerator.device),
        }
        row |= {name: value for name, value in logs.items() if isinstance(value, int | float)}
        with open(self.run.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        if "reward" in row:  # this step sampled a generation batch
            self._show_samples(state.global_step)
        if self.bar is not None:
            self.bar.update(state.global_step - self.bar.n)

    def on_step_end(self, args, state, control, **kwargs):
        if broadcast_from_main(self.run.stopping):
            # Inside a generation batch a checkpoint would miss its rollouts; an earlier one replays
            # the same steps.
            micro_batches = state.global_step * args.gradient_accumulation_steps
            of_a_batch = args.steps_per_generation * args.num_iterations
            control.should_save = micro_batches % of_a_batch == 0
            control.should_training_stop = True
            self.stopped = True
        return control

    def on_save(self, args, state, control, **kwargs):
        if is_main():
            name = f"step-{state.global_step:06d}.parquet"
            write_parquet(self.run.folder / "samples" / name, self._samples())

    def _samples(self, most: int | None = None) -> pd.DataFrame:
        """The first rollouts of the latest generation batch, of which TRL keeps a record."""
        logs = self.trainer._logs
        columns = {name: logs[name] for name in ("prompt", "completion", "advantages")}
        columns |= logs["rewards"]
        samples = pd.DataFrame(
            {name: list(islice(values, most)) for name, values in columns.items()}
        )
        for column in ("prompt", "completion"):
            samples[column] = samples[column].map(_text)
        return samples

    def _show_samples(self, step: int) -> None:
        """Write a few rollouts to samples.json, their texts cut off."""
        samples = self._samples(_SHOWN_ROLLOUTS)
        # a reward function may have the name of a column
        reward = samples[list(self.trainer._logs["rewards"])].sum(axis=1)
        advantage = samples["advantages"]
        samples = samples.assign(step=step, reward=reward, advantage=advantage)[SAMPLED]
        for column in ("prompt", "completion"):
            samples[column] = samples[column].map(_shortened)
        write_json(self.run.folder / "samples.json", samples.to_dict("records"))


def _text(messages: str | list[dict]) -> str:
    """A text or conversation as a reader sees it: a lone message's text, of several each with its
    role.
    """
    if isinstance(messages, str):
        return messages
    if len(messages) == 1:
        return str(messages[0].get("content"))
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in messages)


def _shortened(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return text[:_SHOWN_CHARACTERS] + " ..."
