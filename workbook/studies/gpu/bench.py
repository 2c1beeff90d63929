"""What rows of `python -m workbook gpu` work with: a device, a deadline, and cases that are kept once they are done."""

from __future__ import annotations

import gc
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import torch
from transformers.trainer_callback import PrinterCallback

from workbook.policies.devices import choose_device
from workbook.policies.load import PACKAGED, Policy, load_policy, packaged_model
from workbook.tasks import get_task
from workbook.training.files import atomic_folder, damage, write_parquet
from workbook.training.messages import explain_error

Tables = dict[str, pd.DataFrame]
GIB = 2**30
SIMPLE_SUMS = {"chat": True, "max_terms": 2, "max_digits": 1}  # of gym:chain_sum, as SmolLM2 can do some of


class Skipped(Exception):
    """A row can't be measured here, for the reason given."""


class OutOfTime(Exception):
    """The deadline has passed."""


@dataclass
class GpuBench:
    """The bench of one row.

    Attributes:
        row, folder: its name, and where its cases are kept until the row is done.
        deadline: seconds since the epoch.
        dry: tiny sizes on a CPU.
        results: sentences for the summary.  failures: of cases that failed.  gaps: of those that were not measured.
    """

    row: str
    folder: Path
    deadline: float
    dry: bool
    results: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    longest: float = 0.0  # seconds of a case so far: another one is not begun where less are left

    @property
    def device(self) -> torch.device:
        return torch.device("cpu") if self.dry else choose_device()

    def policy(self, name: str, **options) -> Policy:
        """A policy on the bench's device. Raises Skipped if its weights are not here."""
        if name in PACKAGED:
            model = packaged_model(name)
            try:
                model.folder()
            except (RuntimeError, ConnectionError) as error:
                raise Skipped(f"{model.title} is not here: {explain_error(error)}") from None
        return load_policy(name, device=self.device, **options)

    def task(self, policy_name: str):
        """The task that a policy can do some of."""
        return get_task("chain") if policy_name == "bundled" else get_task("gym:chain_sum", **SIMPLE_SUMS)

    def check_time(self, needed: float = 0.0) -> None:
        """Raise OutOfTime if the deadline will have passed in so many seconds."""
        if time.time() + needed > self.deadline:
            raise OutOfTime

    def cases(self, measures: dict[str, Callable[[], Tables]]) -> Tables:
        """The tables of all cases, those of one name under one another.

        A case that an earlier call kept is read. One that fails is a sentence in `failures`, one that can't be measured
        here or for which time is up in `gaps`; the others go on. Raises what the first of them met if none is done.
        """
        done, met = [], None
        for name, measure in measures.items():
            try:
                done.append(self._kept(name, measure))
            except OutOfTime as reason:
                met = met or reason
                self.gaps.append("time was up; the next call goes on from here")
                break
            except Skipped as reason:
                met = met or reason
                self.gaps.append(f"{name}: {reason}")
            except Exception as error:
                met = met or error
                traceback.clear_frames(error.__traceback__)  # which hold its model and what that left on the device
                self.failures.append(f"{name}: {type(error).__name__}: {explain_error(error)}")
                self.tidy()
        if not done and met is not None:
            raise met
        names = dict.fromkeys(name for tables in done for name in tables)
        return {name: pd.concat([part[name] for part in done if name in part], ignore_index=True) for name in names}

    def _kept(self, name: str, measure: Callable[[], Tables]) -> Tables:
        """The tables of one case, measured and kept unless they are."""
        place = self.folder / name
        if damage(place) is not None:
            self.check_time(self.longest)
            print(f"  {name}", flush=True)
            began = time.time()
            try:
                tables = measure()
            finally:
                self.tidy()
                self.longest = max(self.longest, time.time() - began)
            with atomic_folder(place) as new:
                for key, table in tables.items():
                    write_parquet(new / f"{key}.parquet", table)
        return {path.stem: pd.read_parquet(path) for path in sorted(place.glob("*.parquet"))}

    def output_dir(self) -> str:
        """An empty folder for a trainer."""
        shutil.rmtree(self.folder / "trainer", ignore_errors=True)
        return str(self.folder / "trainer")

    def check_bf16(self) -> None:
        """Raise Skipped for a card without bfloat16 in hardware."""
        if self.device.type == "cuda" and torch.cuda.get_device_capability() < (8, 0):
            raise Skipped("this card has no bfloat16")

    def train(self, trainer) -> None:
        """Train without a line for every step."""
        trainer.remove_callback(PrinterCallback)
        trainer.train()

    def tidy(self) -> None:
        """Give back what a case held on the device."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
