"""Claims as records: what is stated, what would refute it, and the measurements that decide, each against a number.

    Claim("H1", statement, "Fig 1", refuted_if, rows=[Measurement("flips", label, measure, below=0.1)])

A measurement is a function `Tables` -> `Estimate`, so that a chapter and the ledger cannot disagree; `workbook.claims`
collects the records of all topics and judges them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from workbook.statistics import Estimate, verdict
from workbook.studies.record import STUDIES, NotMeasured, load_measured, measured_seeds
from workbook.studies.scales import SCALES
from workbook.studies.sweeps import load_runs

DESCRIBED = "described"  # of a measurement that decides nothing
FALSIFIED = {"replicates": "not met", "does not replicate": "met", "inconclusive": "inconclusive"}
LARGER = "larger"  # than what a CPU can be asked to measure; no study has it yet


class Tables:
    """Tables of all studies at one scale, each read once.

    `tables["flips/shares"]` is a study's, all seeds under one another; `tables["batching/runs"]` a sweep's.

    folder: instead of data/results.  without_seed: left out of every table that has it.  resamples: of each bootstrap
    interval, where not the usual number.

    Raises ValueError for an unknown scale; a table that was not measured, or by no other seed, raises NotMeasured.
    """

    def __init__(
        self,
        scale: str = "bundled",
        folder: str | Path | None = None,
        without_seed: int | None = None,
        resamples: int | None = None,
    ):
        if scale not in (*SCALES, LARGER):
            raise ValueError(f"scale={scale!r} is unknown: choose one of {', '.join((*SCALES, LARGER))}.")
        self.scale, self.folder, self.without_seed, self.resamples = scale, folder, without_seed, resamples
        self._whole: dict[str, pd.DataFrame | NotMeasured] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        if name not in self._whole:
            self._whole[name] = self._read(*name.split("/"))
        table = self._whole[name]
        if isinstance(table, NotMeasured):
            raise table
        if self.without_seed is None or "seed" not in table:
            return table
        kept = table[table["seed"] != self.without_seed]
        if kept.empty and len(table):
            raise NotMeasured(f"{name.split('/')[0]} holds no seed but {self.without_seed}, which is left out.")
        return kept

    def without(self, seed: int, resamples: int | None = None) -> Tables:
        """The same tables as if a seed had not been measured."""
        tables = Tables(self.scale, self.folder, seed, resamples)
        tables._whole = self._whole  # what was read serves both
        return tables

    def seeds(self, study: str) -> set[int]:
        """The seeds that a study was measured with."""
        if study in STUDIES:
            return measured_seeds(study, self.scale, self.folder)
        return set(self[f"{study}/runs"]["seed"].tolist())

    def _read(self, study: str, table: str) -> pd.DataFrame | NotMeasured:
        try:
            if study not in STUDIES:
                return load_runs(study, self.scale, table, self.folder)
            if self.scale == LARGER:
                return NotMeasured(f"{study} was not measured at scale {LARGER!r}.")
            return load_measured(study, self.scale, table, self.folder)
        except NotMeasured as missing:
            return missing


BUNDLED = Tables("bundled")  # what the chapters' sliders read


@dataclass(frozen=True)
class Measurement:
    """One number that a claim is judged by.

    study: whose tables it is read from.  label: what is measured.

    measure: tables -> Estimate. A list of them is of several kinds, all of which must hold: the weakest stands for
    them.  {label: Estimate} is one row each, where one fit gives several.  ValueError: the tables hold too little.

    above, below: the threshold, as it was written down before the measurement; neither: described, decides nothing.

    unless: an outcome that takes "met" away from a falsifier: with an interval above 0 it is not met, and with one that
    reaches above 0 it is not known to be.

    whole: the name of all measurements of the claim by this study; where the study was not made, one row has it.

    scales: at which it can be measured, by default all.
    """

    study: str
    label: str
    measure: Callable[[Tables], Estimate | list[Estimate] | dict[str, Estimate]]
    above: float | None = None
    below: float | None = None
    unless: Callable[[Tables], Estimate] | None = None
    whole: str = ""
    scales: Sequence[str] | None = None

    @property
    def decides(self) -> bool:
        return self.above is not None or self.below is not None

    def judge(self, estimate: Estimate, falsifier: bool = False) -> str:
        """The rule of every verdict: does the whole interval lie on the threshold's side?

        It does: "replicates"; none of it does: "does not replicate"; else, or if the estimate is doubted: inconclusive.
        falsifier: the claim is one, which is "not met" where its opposite replicates, and "met" where that does not.
        """
        if not self.decides:
            return DESCRIBED
        if estimate.doubt:
            return "inconclusive"
        outcome = verdict(estimate, above=self.above, below=self.below)
        return FALSIFIED[outcome] if falsifier else outcome


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and what would refute it.

    source: figure, table or section of the paper.  A claim whose id ends in "falsifier" is one: it states what would
    refute the paper, and its measurements are of the opposite.
    """

    id: str
    statement: str
    source: str
    refuted_if: str
    rows: Sequence[Measurement] = field(default=(), repr=False)

    @property
    def is_falsifier(self) -> bool:
        return self.id.endswith("falsifier")

    @property
    def paper(self) -> str:
        """H, D or P; R for a control that a review of H asked for."""
        return self.id[0]
