"""Claims as records: what is stated, what would refute it, and the measurements that decide, each a registered outcome.

    MEASURES = {"dose": {"H1 control": measure}}        in a topic's claims.py: study: {key of its outcome: measure}

A measurement is a function `Tables` -> one number per unit, so that a chapter and the ledger cannot disagree; what it
is judged by stands in its study's registration, what a claim states in data/book/claims.yaml. A key begins with its
claim's id. A study of which some keys are measured at one scale alone names it: "dose_llm@gemma3_plain".
`workbook.claims` collects the measures of all topics and judges them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from workbook.statistics import Estimate
from workbook.studies.record import NotMeasured, load_measured, provenance
from workbook.studies.registration import Outcome, Registration, check_scale, read_registration


class Tables:
    """Tables of all studies at one scale, each read once: `tables["dose/rates"]` is a study's, all units as rows.

    folder: instead of data/results.  resamples: of each bootstrap interval, where not the usual number.

    Raises ValueError for an unknown scale; a table that was not measured raises NotMeasured.
    """

    def __init__(self, scale: str = "bundled", folder: str | Path | None = None, resamples: int | None = None):
        check_scale(scale)
        self.scale, self.folder, self.resamples = scale, folder, resamples
        self._whole: dict[str, pd.DataFrame | NotMeasured] = {}
        self._counts: dict[str, int] = {}
        self._registered: dict[tuple[str, int], Tables] = {}

    def __getitem__(self, name: str) -> pd.DataFrame:
        study, table = name.split("/")
        if name not in self._whole:
            try:
                self._whole[name] = load_measured(study, self.scale, table, self.folder)
            except NotMeasured as missing:
                self._whole[name] = missing
        rows = self._whole[name]
        if isinstance(rows, NotMeasured):
            raise rows
        return rows[rows["seed"] < self._counts[study]] if study in self._counts else rows

    def registered(self, study: str, count: int) -> Tables:
        """The same tables with those units of a study alone that it registered, 0 to count - 1."""
        if (study, count) not in self._registered:  # the same object each time, by which a room may cache
            tables = Tables(self.scale, self.folder, self.resamples)
            tables._whole, tables._counts = self._whole, {**self._counts, study: count}  # what was read serves both
            self._registered[study, count] = tables
        return self._registered[study, count]

    def provenance(self, study: str) -> pd.DataFrame:
        """What the manifests of a study's units say: see `record.provenance`."""
        return provenance(study, self.scale, self.folder)


BUNDLED, FAMILY = Tables("bundled"), Tables("family")  # what the chapters' sliders read


@dataclass(frozen=True)
class Measurement:
    """One number per unit (policy x seed), which a registered outcome is judged by.

    study: whose tables it is read from.  key: of the outcome in the study's registration, which holds everything else:
    the sentence, its role, side, threshold and smallest effect of interest.

    measure: tables -> Series, one number per unit (index: the unit); NaN: that unit could not be measured. A statistic
    that is no mean of units, such as a ratio, goes through `statistics.pseudo_values`. ValueError: the tables hold too
    little. A measure that returns an Estimate is of one policy alone: it is described, and decides nothing.

    scale: at which alone it is measured, by default wherever its outcome is registered.
    """

    study: str
    key: str
    measure: Callable[[Tables], pd.Series | Estimate]
    scale: str | None = None

    def registration(self, folder: str | Path | None = None) -> Registration | None:
        """The registration of its study, if there is one."""
        return read_registration(self.study, folder)

    def outcome(self, claim: str, folder: str | Path | None = None) -> Outcome | None:
        """What its study registered for it; None where it registered nothing.

        Raises ValueError if the study registered outcomes of which none has this key, or one of another claim.
        """
        registration = self.registration(folder)
        if registration is None or not registration.outcomes:
            return None
        if self.key not in registration.outcomes:
            known = ", ".join(registration.outcomes)
            raise ValueError(f"{claim}: {self.study} registered no outcome {self.key!r}; its outcomes are {known}.")
        outcome = registration.outcomes[self.key]
        if outcome.claim != claim:
            raise ValueError(
                f"{claim}: the outcome {self.key} that {self.study} registered is of claim {outcome.claim}."
            )
        return outcome


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
    def paper(self) -> str:
        """H, D or P; R for a control that a review of H asked for."""
        return self.id[0]
