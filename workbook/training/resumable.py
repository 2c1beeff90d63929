"""ResumableTrainer: CancellationTrainer whose checkpoints are atomic, checked, free of pickle and resume bit for bit.

What differs from transformers' checkpoints: the folder appears whole or not at all; optimizer, scheduler, scaler and
random states are safetensors
and JSON; and a run resumed in a later epoch draws that epoch's prompt order, where TRL's sampler would repeat the
first one's.
"""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import numpy as np
import torch
from accelerate import DistributedType

from workbook.training.files import atomic_folder, damage, load_state, save_state
from workbook.training.processes import from_all, is_main, process_index
from workbook.training.trainer import CancellationTrainer

STATE = "training_state"  # stem of the state files in a checkpoint
KEEP = 2  # checkpoints kept, so that a damaged newest one leaves another


class ResumableTrainer(CancellationTrainer):
    """CancellationTrainer for runs; `train(resume_from_checkpoint=...)` takes a `checkpoint-N` of its `output_dir`."""

    _sampler_epochs = 0  # prompt orders that a resumed run's earlier epochs have used up

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        kind = self.accelerator.distributed_type
        if kind in (DistributedType.FSDP, DistributedType.DEEPSPEED):
            raise ValueError(
                f"A run's checkpoints hold whole weights, which {kind.value} shards; launch it with "
                "data/configs/accelerate/multi_gpu.yaml, or use CancellationTrainer in a script of your own."
            )

    def _save_checkpoint(self, model, trial):
        others = from_all(random_state())[1:]
        if not is_main():
            return
        with atomic_folder(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}") as folder:
            self._save(str(folder))
            save_state(folder, STATE, self._training_state() | {"random_of_others": others})
            self.state.save_to_json(str(folder / "trainer_state.json"))
        for old in checkpoints(Path(self.args.output_dir))[KEEP:]:
            shutil.rmtree(old, ignore_errors=True)

    def _save(self, output_dir=None, state_dict=None):
        folder = output_dir or self.args.output_dir
        self.accelerator.unwrap_model(self.model).save_pretrained(folder, state_dict=state_dict)
        self.processing_class.save_pretrained(folder)

    def _training_state(self) -> dict:
        scaler = self.accelerator.scaler
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": {k: v for k, v in self.lr_scheduler.state_dict().items() if _plain(v)},
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": random_state(),
        }

    def train(self, resume_from_checkpoint=None, **kwargs):
        if resume_from_checkpoint is not None:
            state = json.loads((Path(resume_from_checkpoint) / "trainer_state.json").read_text(encoding="utf-8"))
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
        self.lr_scheduler.load_state_dict(state["scheduler"])
        if state["scaler"] is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def _load_scaler(self, checkpoint):
        """Restored with the optimizer."""

    def _load_rng_state(self, checkpoint):
        if checkpoint is not None:
            state = load_state(Path(checkpoint), STATE)
            others = state.get("random_of_others", [])  # absent in checkpoints of version 0.1.0
            set_random_state([state["random"], *others][process_index()])


def checkpoints(folder: Path) -> list[Path]:
    """The `checkpoint-N` folders in `folder`, newest first; half-written ones never have that name."""
    found = [p for p in Path(folder).glob("checkpoint-*") if p.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("checkpoint-")), reverse=True)


def newest_intact(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest checkpoint whose checksums hold, and what is wrong with each newer one."""
    complaints = []
    for checkpoint in checkpoints(folder):
        if (complaint := damage(checkpoint)) is None:
            return checkpoint, complaints
        complaints.append(complaint)
    return None, complaints


def random_state() -> dict:
    """States of Python's, NumPy's and torch's global generators as a tree of scalars and tensors."""
    algorithm, keys, *rest = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": (algorithm, keys.tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: dict) -> None:
    """Restore what `random_state` returned."""
    algorithm, keys, *rest = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((algorithm, np.array(keys, dtype=np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


def _plain(value) -> bool:
    """Whether a scheduler field is data; its lambdas are rebuilt from the config."""
    if isinstance(value, list | tuple):
        return all(_plain(v) for v in value)
    return value is None or isinstance(value, bool | int | float | str)
