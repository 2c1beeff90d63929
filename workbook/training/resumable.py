"""ResumableTrainer: CancellationTrainer whose checkpoints are atomic, checked, free of pickle and resume bit for bit.

What differs from transformers' checkpoints: the folder appears whole or not at all; optimizer, scheduler, scaler and
random states, the adaptive entropy coefficient and a reference model that moves are safetensors and JSON; and a run
resumed in a later epoch draws that epoch's prompt order, where TRL's sampler would repeat the first one's.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from accelerate import DistributedType

from workbook.training.files import atomic_folder, load_state, read_json, remove_folder, save_state
from workbook.training.folders import STATE, checkpoints, newest_intact
from workbook.training.processes import from_all, is_main, process_index
from workbook.training.trainer import CancellationTrainer

__all__ = ["ResumableTrainer", "checkpoints", "newest_intact", "random_state", "set_random_state"]

LAMBDAS = "lr_lambdas"  # the one part of a scheduler's state that is code
ENTROPY = ("entropy_coef", "_last_world_entropy")  # of TRL's adaptive controller, between optimizer steps
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
            remove_folder(old)

    def _save(self, output_dir=None, state_dict=None):
        folder = output_dir or self.args.output_dir
        self.accelerator.unwrap_model(self.model).save_pretrained(folder, state_dict=state_dict)
        self.processing_class.save_pretrained(folder)

    def _training_state(self) -> dict:
        scaler = self.accelerator.scaler
        return {
            "optimizer": self.optimizer.state_dict(),
            "scheduler": {k: v for k, v in self.lr_scheduler.state_dict().items() if k != LAMBDAS},
            "scaler": None if scaler is None else scaler.state_dict(),
            "random": random_state(),
            "entropy": {name: getattr(self, name) for name in ENTROPY} if self.args.use_adaptive_entropy else {},
            "reference": dict(self._moving_reference().state_dict()) if self.args.sync_ref_model else {},
        }

    def _moving_reference(self):
        return self.accelerator.unwrap_model(self.ref_model)

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
        own = {k: v for k, v in self.lr_scheduler.state_dict().items() if k == LAMBDAS}  # made anew from the config
        self.lr_scheduler.load_state_dict(own | state["scheduler"])
        for name, value in state.get("entropy", {}).items():
            setattr(self, name, value)
        if reference := state.get("reference"):
            self._moving_reference().load_state_dict(reference)
        if state["scaler"] is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(state["scaler"])

    def _load_scaler(self, checkpoint):
        """Restored with the optimizer."""

    def _load_rng_state(self, checkpoint):
        if checkpoint is not None:
            state = load_state(Path(checkpoint), STATE)
            others = state.get("random_of_others", [])  # absent in checkpoints of version 0.1.0
            set_random_state([state["random"], *others][process_index()])


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
