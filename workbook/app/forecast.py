"""What a run will take, before it is started: memory, disk, time by a trial of a few batches, and
what is doubtful.

A trial is the run itself, of TRIED batches, in a process and a folder of its own, of which nothing
stays.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import psutil

from workbook.app.memory import CARDS, forecast_shape, peak_mib, run_device, steps_per_generation
from workbook.app.run_folder import MAX_CHECKPOINTS
from workbook.app.runs import start_run
from workbook.messages import duration
from workbook.places import runs_folder
from workbook.policies.models import free_mib
from workbook.training.config import RunConfig

HERE, GIB = "this machine", 1024.0
MAX_OVER = 2.0  # times the free memory: beyond, swapping is no way out
# learning rate of AdamW: ten times what collapses the bundled policy within a few steps
MAX_RATE = 0.05
TRIED = 3  # batches


def size(mib: float) -> str:
    """Mebibytes in the unit that suits them.

    >>> size(700), size(2_280_616)
    ('700 MiB', '2.17 TiB')
    """
    units = ((1, "MiB"), (GIB, "GiB"), (GIB**2, "TiB"))
    per, unit = next((pair for pair in reversed(units) if mib >= pair[0]), units[0])
    return f"{mib / per:.3g} {unit}"


class Forecast(NamedTuple):
    """Memory of a run at a place: the table of `memory_forecast`, and MiB that are free there."""

    place: str
    table: pd.DataFrame
    free: float

    @property
    def over(self) -> float:
        """The peak, in times of what is free."""
        return peak_mib(self.table) / self.free

    @property
    def fits(self) -> bool:
        return self.over <= 1

    @property
    def sentence(self) -> str:
        cure = (
            "it does not fit; take more micro-batches a step, gradient checkpointing, LoRA with"
            " NF4, or fewer tokens"
        )
        needs = f"{self.place}: {size(peak_mib(self.table))} of {size(self.free)}"
        return f"{needs}, {'it fits' if self.fits else cure}."


def forecast_at(place: str, config: RunConfig, shape, prompt_length: int) -> Forecast:
    """What a run needs on this machine or on one of CARDS, beside what is free there."""
    device = run_device(config).type if place == HERE else "cuda"
    free = free_mib(device) if place == HERE else CARDS[place] * GIB
    return Forecast(
        place,
        forecast_shape(config, shape, prompt_length, frozen_dtype(config, place), device),
        free,
    )


def frozen_dtype(config: RunConfig, place: str):
    """The dtype of weights at a place: on a T4-class card half precision, as the loader chooses
    there.
    """
    import torch

    from workbook.policies.models import as_dtype

    frozen = bool(config.quantization or config.lora)
    if place == HERE:
        return as_dtype(config.dtype, run_device(config), frozen=frozen)[0]
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    return (
        (torch.float16 if place.startswith("T4") else torch.bfloat16) if frozen else torch.float32
    )


def disk_sentence(config: RunConfig, table: pd.DataFrame) -> str:
    """What a run's checkpoints take on disk: what it trains and the optimizer's states; table: of
    `memory_forecast`.
    """
    trained = ["adapters" if config.lora else "weights", "Adam's moments", "optimizer's states"]
    each = float(table.loc[table["part"].isin(trained), "mib"].sum())
    folder = runs_folder().absolute()
    free = (
        shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free
        / 2**20
    )
    short = (
        "" if MAX_CHECKPOINTS * each < free else " It does not fit: train with LoRA, or free some."
    )
    return (
        f"disk: checkpoints, {MAX_CHECKPOINTS} at a time, {size(each)} each; {size(free)} are"
        f" free.{short}"
    )


def doubts(config: RunConfig, shape, prompt_length: int) -> list[str]:
    """What can be trained, but hardly should: a sentence each; shape: the model's transformers
    config.
    """
    trainer, found = config.trainer, []
    longest, rate = trainer.get("max_completion_length", 256), trainer.get("learning_rate", 0.0)
    positions = getattr(shape.get_text_config(), "max_position_embeddings", None) or math.inf
    if prompt_length + longest > positions:
        found.append(
            f"The longest prompt has {prompt_length:,} tokens, and up to {longest:,} follow: more"
            f" than the {positions:,} positions that {config.policy} knows. Shorten prompts, or"
            " take another model."
        )
    if rate > MAX_RATE and "adam" in trainer.get("optim", "adamw"):
        found.append(
            f"A learning rate of {rate:g} is high for AdamW: above {MAX_RATE} policies tend to"
            " collapse."
        )
    return found


class Trial:
    """The first TRIED batches of a run, to tell its time; ValueError for a run that can't be."""

    def __init__(self, config: RunConfig):
        settings = config.trainer
        parts = steps_per_generation(settings) * settings.get("num_iterations", 1)
        # optimizer steps
        self._a_batch = max(1, parts // settings.get("gradient_accumulation_steps", 1))
        self._total, self._began = (
            math.ceil(settings["max_steps"] / self._a_batch),
            time.monotonic(),
        )
        self._folder, self._tried = (
            Path(tempfile.mkdtemp(prefix="workbook-trial-")),
            min(TRIED, self._total),
        )
        short = {"max_steps": self._tried * self._a_batch, "warmup_steps": 0, "eval_prompts": 0}
        try:
            self._run = start_run(config, self._folder / "trial", save_strategy="no", **short)
        except ValueError:
            shutil.rmtree(self._folder)
            raise

    def ended(self) -> bool:
        return not self._run.running

    def progress(self) -> str:
        """What it does, and a first estimate as soon as there is one."""
        batches, line = self._batches(), self._estimate()
        going = (
            f"batch {batches + 1} of {self._tried}, {time.monotonic() - self._began:.0f} s so far"
        )
        if not batches and self._run.status()["state"] == "starting":
            going = going.replace(f"batch 1 of {self._tried}", "loading")
        return f"{line} Trying {going}." if line else f"Time: trying {going}."

    def answer(self) -> tuple[str, str, bool]:
        """The estimate, or why there is none; nothing below it; whether it failed."""
        status = self._run.status()
        failed = status["state"] != "finished"
        return status["message"] if failed else self._estimate(), "", failed

    def close(self) -> None:
        """End it, if it goes on, and remove what it wrote."""
        if self._run.running:
            try:
                process = psutil.Process(self._run.status()["pid"])
                process.kill()
                process.wait(10)
            except psutil.Error:
                pass
        shutil.rmtree(self._folder, ignore_errors=True)

    def _batches(self) -> int:
        return len(self._run.metrics()) // self._a_batch

    def _estimate(self) -> str:
        """Time of the whole run by the batches so far, of which the first also warms up; "" before
        the first.
        """
        metrics, batches = self._run.metrics(), self._batches()
        if not batches or "step_time" not in metrics:
            return ""
        seconds = (
            metrics["step_time"].to_numpy()[: batches * self._a_batch].reshape(batches, -1).sum(1)
        )
        each = float(seconds[1:].mean()) if batches > 1 else float(seconds[0])
        return (
            f"Time: about {duration(each * self._total)} for {self._total} batches,"
            f" {duration(each)} each."
        )
