"""A study's tables, made once and kept, and claims as records.

A claim's record says what is stated, what would refute it, and which measurements decide.

    MEASURES = {"dose": {"H1 control": measure}}    # in claims.py of a room of studies:
                                                    # study: {key of its outcome: measure}

A measurement is a function `Tables` -> one number per unit, so that a chapter and the ledger cannot
disagree; what it is judged by stands in its study's registration, what a claim states in
data/book/claims.yaml. A key begins with its claim's id. A study of which some keys are measured at
one scale alone names it: "dose_llm@gemma3_plain". `studies.ledger` collects the measures of all
rooms and judges them. Where tables lie: `studies.storage`.
"""

from __future__ import annotations

import hashlib
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from workbook.messages import InvalidValue, explain_error, show_value
from workbook.places import clone
from workbook.studies.registration import (
    ALL_WORLDS,
    POLICY_SCALES,
    SCALES,
    WORLD_SCALES,
    Outcome,
    Registration,
    check_scale,
    is_sealed,
    read_registration,
)
from workbook.studies.storage import (
    MANIFEST,
    experiment_folder,
    measured_seeds,
    read_manifest,
    read_table,
    table_paths,
    write_unit,
)

UNNAMED = "Writing to data/results, since no folder is named,"
_STUDIES = {  # study: the function StudyUnit -> {name of a table: table}
    "arena": "studies.worlds.arena:arena_study",
    "arena_mix": "studies.worlds.arena:mix_study",
    "arena_rates": "studies.worlds.arena:arena_rates_study",
    "batch_composition": "studies.batching.study:batch_composition_study",
    "batch_one_prompt": "studies.batching.study:one_prompt_study",
    "batch_rates": "studies.batching.study:batch_rates_study",
    "cancelled": "studies.cancelled.study:cancelled_study",
    "confidence": "studies.drift.study:confidence_study",
    "confidence_tuning": "studies.drift.study:tuning_study",
    "dose": "studies.flips.study:dose_study",
    "dose_llm": "studies.flips.study:dose_llm_study",
    "equal_weights": "studies.drift.equal_weights:equal_weights_study",
    "equal_weights_tuning": "studies.drift.equal_weights:equal_weights_tuning",
    "flip_backbones": "studies.flips.study:flip_backbones_study",
    "loss_types": "studies.drift.loss_types:loss_types_study",
    "mass": "studies.coupling.study:mass_study",
    "minibatches": "studies.batching.study:minibatches_study",
    "recovered": "studies.recovered.study:recovered_study",
    "smollm2_probes": "studies.language.study:probes_study",
    "smollm2_rates": "studies.language.training:language_rates_study",
    "smollm2_training": "studies.language.training:training_study",
    "training_curves": "studies.drift.study:training_curves_study",
    "delta": "studies.teaching.delta:delta_study",
    "mask_rates": "studies.teaching.masks:mask_rates_study",
    "mask_rates_plain": "studies.teaching.masks:plain_rates_study",
    "mask_rates_sgd": "studies.teaching.masks:sgd_rates_study",
    "masks": "studies.teaching.masks:masks_study",
    "masks_sgd": "studies.teaching.masks:sgd_masks_study",
    "opposition": "studies.teaching.opposition:opposition_study",
    "opposition_noise": "studies.teaching.opposition:opposition_noise_study",
    "pairs": "studies.teaching.pairs:pairs_study",
    "tabular": "studies.teaching.tabular:tabular_study",
    "vocabulary": "studies.teaching.vocabulary:vocabulary_study",
    "value_gap": "studies.credit.study:value_gap_study",
    "worlds": "studies.worlds.study:worlds_study",
    "worlds_300": "studies.worlds.study:lasting_study",
    "worlds_300_plain_rate": "studies.worlds.study:plain_rate_study",
    "worlds_defaults": "studies.worlds.questions:defaults_study",
    "worlds_groups": "studies.worlds.questions:groups_study",
    "worlds_rates": "studies.worlds.study:world_rates_study",
    "worlds_start": "studies.worlds.study:start_study",
    "worlds_values": "studies.worlds.study:values_study",
}
# studies of the tuning policies of a scale
TUNING = (
    "arena_rates",
    "mask_rates",
    "mask_rates_plain",
    "mask_rates_sgd",
    "smollm2_rates",
    "worlds_rates",
)
_RETIRED = (
    "coupling",
)  # studies whose tables can be read still, and whose measuring code has left

PROVENANCE = ["unit", "created", "commit", "modified", "registration", "policy"]


class NotMeasured(ValueError):
    """A table that a study was not made to have, or not by any seed that is left in."""


class Void(ValueError):
    """What a row would show could have another cause, by a rule that was fixed beforehand."""


def check_results(folder: str | Path) -> None:
    """Raise a ValueError, in one sentence, unless a folder holds studies' tables with readable
    manifests.
    """
    known = (*_STUDIES, *_RETIRED)
    tables = [
        path
        for path in sorted(Path(folder).glob("*/*.*.parquet"))
        if path.name.split(".")[0] in known
    ]
    if not tables:
        raise InvalidValue("folder", str(folder), "one that `measure` wrote tables to")
    for path in tables:
        try:
            for file in (path, path.with_name(MANIFEST)):
                pq.read_schema(file)
        except (OSError, pa.ArrowException) as error:
            raise ValueError(
                f"{path} or its manifest can't be read: {explain_error(error, 100)}"
            ) from None


def measure(
    study: str,
    scale: str = "bundled",
    seeds: Sequence[int] | None = None,
    folder: str | Path | None = None,
) -> list[Path]:
    """Make a study's tables for every unit that has none yet; returns the files of its tables.

    A unit is in the tables whole or not at all, so a study that was broken off goes on where it
    was. Within a unit, too, where its study caches tables (`StudyUnit.cached_table`): at the same
    commit, unmodified, and registration.

    seeds: numbers of units; by default as many as were registered for the scale, else the scale's.
    At the scale "worlds" a seed is a world, of which all units are measured.
    folder: instead of data/results.

    Raises ValueError for an unknown study or scale, and for no folder where the package holds
    data/results itself.
    """
    run = _study(study)
    check_scale(scale)
    _check_sizes(run, study, scale)
    # one that is not as it must be is refused before the work
    registration = read_registration(study, folder)
    registered = registration.units.get(scale) if registration else None
    if seeds is None:
        seeds = range(registered or SCALES[scale].seeds)
    if scale == ALL_WORLDS:
        for k in seeds:
            measure(study, [*WORLD_SCALES][k], folder=folder)
        return table_paths(study, folder)
    if folder is None and not set(seeds) <= set(measured_seeds(study, scale)):
        clone(UNNAMED)
    for seed in seeds:
        # another process may have measured it meanwhile
        if seed not in measured_seeds(study, scale, folder):
            registered_text = registration and registration.hash
            _measure_unit(run, study, scale, seed, registered_text, folder)
    return table_paths(study, folder)


def _measure_unit(
    run: Callable,
    study: str,
    scale: str,
    number: int,
    registration: str | None,
    folder: str | Path | None,
) -> None:
    """Make a unit's tables and write them, with what they were made from.

    registration: hash of the study's text as it is now.
    """
    from workbook.files import made_with
    from workbook.studies.unit import StudyUnit

    role = "tuning" if study in TUNING and scale in POLICY_SCALES else "unit"
    unit = StudyUnit(scale, number, role)
    began = time.perf_counter()
    place = (
        experiment_folder(study, folder)
        / ".parts"
        / f"{study}-{scale.replace(':', '=')}-seed={number}"
    )
    unit.results = folder
    unit.parts = _parts(place, made_with(unit.policy)["git"], registration)
    tables = run(unit)
    facts = {
        "command": (
            f"python -m workbook measure {shlex.quote(study)} --scale {scale} --seeds {number}"
        ),
        "seconds": round(time.perf_counter() - began, 1),
        "registration": registration,
        "scale": asdict(unit.setting),
        **made_with(unit.policy),
        "policies": unit.loaded,
    }
    write_unit(study, scale, number, tables, facts, folder)
    if unit.parts is not None:
        shutil.rmtree(unit.parts, ignore_errors=True)


def _parts(place: Path, git: dict | None, registration: str | None) -> Path | None:
    """Where tables of an unfinished unit are cached; None in a modified tree.

    Those of another commit or registration have another folder.
    """
    if git is None or git["modified"]:
        return None
    digest = hashlib.sha256(repr((git["commit"], registration)).encode()).hexdigest()[:8]
    return place.with_name(f"{place.name}-{digest}")


def load_measured(
    study: str, scale: str, table: str, folder: str | Path | None = None
) -> pd.DataFrame:
    """One table of a study at a scale, all seeds under one another, with the column seed.

    Raises ValueError for an unknown study or scale, and NotMeasured, naming the command that makes
    it, if there is no such table, or it is sealed (`registration.is_sealed`).
    """
    _check_study(study)
    check_scale(scale)
    if is_sealed(study, folder):
        raise NotMeasured(
            f"{study} is being measured: nobody reads its tables before its last registered"
            " unit is."
        )
    rows = read_table(study, scale, table, folder)
    if rows is None:
        raise NotMeasured(
            f"{study} holds no table {table!r} at scale {scale!r}; "
            f"python -m workbook measure {study} --scale {scale} makes its tables."
        )
    return rows


def provenance(study: str, scale: str, folder: str | Path | None = None) -> pd.DataFrame:
    """What the manifests of a study's units say, a row each: unit, created, commit, modified,
    registration, policy.

    modified: whether the tree differed from the commit (None: not known).  registration: the hash
    of the one that stood when the unit was measured, if any. At the scale "worlds" a unit is a
    world, with a row for each of its own units.
    """
    if scale == ALL_WORLDS:
        worlds = [
            provenance(study, name, folder).assign(unit=k) for k, name in enumerate(WORLD_SCALES)
        ]
        return pd.concat([rows for rows in worlds if len(rows)] or worlds[:1], ignore_index=True)
    check_scale(scale)
    rows = read_manifest(study, folder).rename(columns={"seed": "unit"})
    return rows.loc[rows["scale"] == scale, PROVENANCE].sort_values("unit", ignore_index=True)


def _check_study(name: str) -> None:
    if name not in (*_STUDIES, *_RETIRED):
        raise InvalidValue("study", name, tuple(_STUDIES))


def _study(name: str) -> Callable:
    _check_study(name)
    if name in _RETIRED:
        raise InvalidValue(
            "study",
            name,
            tuple(_STUDIES),
            f"study={show_value(name)} is measured no longer; its tables are kept, for"
            " `load_measured`.",
        )
    module, _, function = _STUDIES[name].partition(":")
    return getattr(import_module(f"workbook.{module}"), function)


def _check_sizes(study: Callable, name: str, scale: str) -> None:
    """Raise a ValueError if the study's module states sizes by scale, and none for this one."""
    module = import_module(study.__module__)
    sizes = getattr(module, "LANGUAGE_MODELS" if name == "dose_llm" else "SIZES", None)
    if isinstance(sizes, dict) and scale not in sizes:
        known = ", ".join(known for known in sizes if known in SCALES)
        raise InvalidValue("scale", scale, f"one at which {name} is measured: {known}")


class Tables:
    """Tables of all studies at one scale, each read once: `tables["dose/rates"]` is a study's, all
    units as rows.

    folder: instead of data/results.

    Raises ValueError for an unknown scale; a table that was not measured raises NotMeasured.
    """

    def __init__(self, scale: str = "bundled", folder: str | Path | None = None):
        check_scale(scale)
        self.scale, self.folder = scale, folder
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
        # the same object each time, by which a room may cache
        if (study, count) not in self._registered:
            tables = Tables(self.scale, self.folder)
            # what was read serves both
            tables._whole, tables._counts = self._whole, {**self._counts, study: count}
            self._registered[study, count] = tables
        return self._registered[study, count]

    def provenance(self, study: str) -> pd.DataFrame:
        """What the manifests of a study's units say: see `record.provenance`."""
        return provenance(study, self.scale, self.folder)


FAMILY = Tables("family")  # what the chapters' sliders read


@dataclass(frozen=True)
class Measurement:
    """One number per unit (policy x seed), which a registered outcome is judged by.

    study: whose tables it is read from.  key: of the outcome in the study's registration, which
    holds everything else: the sentence, its role, side, threshold and smallest effect of interest.

    measure: tables -> Series, one number per unit (index: the unit); NaN: that unit could not be
    measured. A statistic that is no mean of units, such as a ratio, goes through
    `statistics.pseudo_values`. ValueError: the tables hold too little.

    scale: at which alone it is measured, by default wherever its outcome is registered.
    """

    study: str
    key: str
    measure: Callable[[Tables], pd.Series]
    scale: str | None = None

    def registration(self, folder: str | Path | None = None) -> Registration | None:
        """The registration of its study, if there is one."""
        return read_registration(self.study, folder)

    def outcome(self, folder: str | Path | None = None) -> Outcome | None:
        """What its study registered for it, if it did."""
        registration = self.registration(folder)
        return registration.outcomes.get(self.key) if registration else None


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, and what would refute it.

    words: the statement in at most eight.  source: figure, table or section of the paper.

    A claim whose id ends in "falsifier" is one: it states what would refute the paper, and its
    measurements are of the opposite.
    """

    id: str
    words: str
    statement: str
    source: str
    refuted_if: str
    rows: Sequence[Measurement] = field(default=(), repr=False)

    @property
    def paper(self) -> str:
        """H, D or P; R for a control that a review of H asked for."""
        return self.id[0]
