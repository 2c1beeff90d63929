"""Make a study's tables once and keep them.

data/results/<study>/<scale>/seed=<k>/    Parquet files, manifest.json, checksums.json
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

import pandas as pd

from workbook.places import clone, data_path
from workbook.studies.registration import SCALES, check_scale, read_registration
from workbook.training.messages import explain_error, show_value

RESULTS = data_path("results")
UNNAMED = "Writing to data/results, since no folder is named,"
STUDIES = {  # study: the function Bench -> {table's name: table}, in its topic's room
    "arena": "topics.arena.study:arena_study",
    "batch_composition": "topics.batching.study:batch_composition_study",
    "batch_one_prompt": "topics.batching.study:one_prompt_study",
    "batch_rates": "topics.batching.study:batch_rates_study",
    "cancelled": "topics.cancelled.study:cancelled_study",
    "confidence": "topics.drift.study:confidence_study",
    "confidence_tuning": "topics.drift.study:tuning_study",
    "dose": "topics.flips.study:dose_study",
    "dose_alphabets": "topics.flips.study:dose_alphabets_study",
    "dose_dials": "topics.flips.study:dose_dials_study",
    "dose_llm": "topics.flips.study:dose_llm_study",
    "equal_weights": "topics.drift.equal_weights:equal_weights_study",
    "equal_weights_tuning": "topics.drift.equal_weights:equal_weights_tuning",
    "flip_backbones": "topics.flips.study:flip_backbones_study",
    "loss_types": "topics.drift.loss_types:loss_types_study",
    "mass": "topics.coupling.study:mass_study",
    "minibatches": "topics.batching.steps:minibatches_study",
    "recovered": "topics.recovered.study:recovered_study",
    "recovered_dials": "topics.recovered.study:recovered_dials_study",
    "recovered_members": "topics.recovered.study:recovered_members_study",
    "training_curves": "topics.drift.study:training_curves_study",
    "value_gap": "topics.credit.study:value_gap_study",
}
KEPT = ("coupling", "flips")  # studies whose tables can be read still, and whose measuring code has left


PROVENANCE = ["unit", "created", "commit", "modified", "registration", "policy"]


class NotMeasured(ValueError):
    """A table that a study was not made to have, or not by any seed that is left in."""


def check_results(folder: str | Path) -> None:
    """Raise a ValueError, in one sentence, unless a folder holds studies' tables with readable manifests."""
    tables = [path for path in Path(folder).glob("*/*/seed=*/*.parquet") if path.parts[-4] in STUDIES]
    if not tables:
        raise ValueError(f"folder={str(folder)!r} holds no study's tables; give one that `measure` wrote to.")
    for path in tables:
        try:
            json.loads(path.with_name("manifest.json").read_text(encoding="utf-8"))["seed"]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ValueError(f"{path} or its manifest can't be read: {explain_error(error, 100)}") from None


def measure(
    study: str, scale: str = "bundled", seeds: Sequence[int] | None = None, folder: str | Path | None = None
) -> list[Path]:
    """Make the study's tables for every seed that has none yet; returns the folders of all of them.

    A seed's folder appears whole or not at all, so a study that was broken off goes on where it was.
    seeds: by default as many as were registered for the scale, else the scale's.  folder: instead of data/results.

    Raises ValueError for an unknown study or scale, and for no folder where the package holds data/results itself.
    """
    from workbook.studies.bench import Bench
    from workbook.training.files import atomic_folder, made_with, write_json, write_parquet

    run = _study(study)
    _folder(study, scale, folder)
    _check_sizes(run, study, scale)
    registration = read_registration(study, folder)  # one that is not as it must be is refused before the work
    registered = registration.units.get(scale) if registration else None
    seeds = range(registered or SCALES[scale].seeds) if seeds is None else seeds
    folders = [_folder(study, scale, folder) / f"seed={seed}" for seed in seeds]
    if folder is None and not all(place.exists() for place in folders):
        clone(UNNAMED)
    for seed, place in zip(seeds, folders, strict=True):
        if place.exists():
            continue
        bench, began = Bench(scale, seed), time.perf_counter()
        tables = run(bench)
        command = f"python -m workbook measure {shlex.quote(study)} --scale {scale} --seeds {seed}"
        with atomic_folder(place) as new:
            for name, table in tables.items():
                write_parquet(new / f"{name}.parquet", table)
            facts = {"command": command, "seed": seed, "seconds": round(time.perf_counter() - began, 1)}
            facts |= {"registration": registration and registration.hash}
            facts |= {"scale": asdict(bench.scale), **made_with(bench.policy), "policies": bench.loaded}
            write_json(new / "manifest.json", facts)
    return folders


def load_measured(study: str, scale: str, table: str, folder: str | Path | None = None) -> pd.DataFrame:
    """One table of a study at a scale, all seeds under one another, with the column seed.

    Raises ValueError for an unknown study or scale, and NotMeasured, naming the command that makes it, if there is no
    such table.
    """
    _check_study(study)
    paths = sorted(_folder(study, scale, folder).glob(f"seed=*/{table}.parquet"))
    if not paths:
        raise NotMeasured(
            f"{study} holds no table {table!r} at scale {scale!r}; "
            f"python -m workbook measure {study} --scale {scale} makes its tables."
        )
    seeds = [json.loads((path.parent / "manifest.json").read_text(encoding="utf-8"))["seed"] for path in paths]
    return pd.concat(pd.read_parquet(path).assign(seed=seed) for path, seed in zip(paths, seeds, strict=True))


def provenance(study: str, scale: str, folder: str | Path | None = None) -> pd.DataFrame:
    """What the manifests of a study's units say, a row each: unit, created, commit, modified, registration, policy.

    modified: whether the tree differed from the commit (None: not known).  registration: the hash of the one that stood
    when the unit was measured, if any.
    """
    rows = []
    for path in sorted(_folder(study, scale, folder).glob("seed=*/manifest.json")):
        one = json.loads(path.read_text(encoding="utf-8"))
        git, policy = one.get("git") or {}, one.get("policy") or {}
        facts = (one["seed"], one.get("created"), git.get("commit"), git.get("modified"))
        rows.append((*facts, one.get("registration"), policy.get("name")))
    return pd.DataFrame(rows, columns=PROVENANCE).sort_values("unit", ignore_index=True)


def _check_study(name: str) -> None:
    if name not in (*STUDIES, *KEPT):
        raise ValueError(f"study={show_value(name)} is unknown: choose one of {', '.join(STUDIES)}.")


def _study(name: str) -> Callable:
    _check_study(name)
    if name in KEPT:
        raise ValueError(f"study={show_value(name)} is measured no longer; its tables are kept, for `load_measured`.")
    module, _, function = STUDIES[name].partition(":")
    return getattr(import_module(f"workbook.{module}"), function)


def _check_sizes(study: Callable, name: str, scale: str) -> None:
    """Raise a ValueError if the study's module states its sizes by scale and has none for this one."""
    module = import_module(study.__module__)
    sizes = getattr(module, "LANGUAGE_MODELS" if name == "dose_llm" else "SIZES", None)
    if isinstance(sizes, dict) and scale not in sizes:
        known = ", ".join(known for known in sizes if known in SCALES)
        raise ValueError(f"{name} is not measured at scale={show_value(scale)}: choose one of {known}.")


def _folder(study: str, scale: str, folder: str | Path | None) -> Path:
    check_scale(scale)
    return Path(folder or RESULTS) / study / scale.replace(":", "=")  # which not every system has in a path
