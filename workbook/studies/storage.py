"""Where measured tables lie: an experiment is a folder, and each table of its parts is one Parquet
file.

    data/results/<experiment>/
        <part>.<table>.parquet    rows of all units, below columns scale and seed
        manifest.parquet          a row per unit: part, scale, seed, and what it was made with
        registration.yaml         what is registered of each part (`studies.registration`)
        history.yaml              texts under which units were measured, with their SHA-256

A part is what `measure` makes tables of, under its study's name. A unit counts once it stands in
the manifest, which is written last: what a process wrote of a unit before it was killed is not
read, and the next one replaces it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workbook.places import data_path

Result = TypeVar("Result")

RESULTS = data_path("results")
EXPERIMENTS = {  # experiment: its parts; a part that stands in none is an experiment of its own
    "arena": ("arena", "arena_mix"),
    "batch_composition": ("batch_composition", "batch_one_prompt", "minibatches"),
    "dose": ("dose", "dose_llm", "mass", "coupling", "flip_backbones"),
    "masks": ("masks", "masks_sgd", "delta"),
    "opposition": ("opposition", "opposition_noise"),
    "pairs": ("pairs", "tabular", "vocabulary", "cancelled"),
    "rates": (
        *("arena_rates", "batch_rates", "confidence_tuning", "equal_weights_tuning"),
        *("mask_rates", "mask_rates_plain", "mask_rates_sgd", "smollm2_rates", "worlds_rates"),
    ),
    "smollm2": ("smollm2_probes", "smollm2_training"),
    "unequal_weights": ("confidence", "equal_weights", "training_curves", "loss_types"),
    "worlds": (
        "worlds",
        "worlds_300",
        "worlds_300_plain_rate",
        "worlds_groups",
        "worlds_start",
        "worlds_values",
    ),
}
EXPERIMENT_OF = {part: experiment for experiment, parts in EXPERIMENTS.items() for part in parts}
MANIFEST = "manifest.parquet"
UNIT = ["scale", "seed"]  # a table's first columns; no table has others of these names
MANIFEST_COLUMNS = [
    *(
        "part",
        "scale",
        "seed",
        "command",
        "seconds",
        "created",
        "commit",
        "modified",
        "registration",
    ),
    *("policy", "sha256", "policies", "versions", "platform", "device", "sizes", "provenance"),
]
COMPRESSION = {"compression": "zstd", "compression_level": 9}


def experiment_folder(part: str, folder: str | Path | None = None) -> Path:
    """The folder of a part's experiment, there or not.  folder: of results, instead of
    data/results.

    >>> experiment_folder("worlds_300").name, experiment_folder("arena").name
    ('worlds', 'arena')
    """
    return Path(folder or RESULTS) / EXPERIMENT_OF.get(part, part)


def table_paths(part: str, folder: str | Path | None = None) -> list[Path]:
    """The files of a part's tables, by name."""
    return sorted(experiment_folder(part, folder).glob(f"{part}.*.parquet"))


# --- reading


# (function, path): a file's version, and what the function made of it
_known: dict[tuple, tuple] = {}


def read_once(read: Callable[[Path], Result], path: Path) -> Result | None:
    """What a function makes of a file, once for each version of it; None where there is no file."""
    try:
        facts = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    version, place = (facts.st_mtime_ns, facts.st_size, facts.st_ino), (read, path)
    if place not in _known or _known[place][0] != version:
        _known[place] = version, read(path)
    return _known[place][1]


def _units(path: Path) -> dict[str, pd.DataFrame]:
    """{part: its rows} of a manifest."""
    return dict(tuple(pd.read_parquet(path).groupby("part")))


def read_manifest(part: str, folder: str | Path | None = None) -> pd.DataFrame:
    """A row per unit of a part, by scale and seed, with the columns MANIFEST_COLUMNS.

    command, seconds: what made the unit, and how long it took.  created, commit, modified: when,
    from which commit, and whether the tree differed from it (None: not known).  registration: hash
    of the text that stood then, if any. policy, sha256: name and weights of the unit's policy;
    policies: JSON, {name: SHA-256} of all that were loaded. versions, sizes, provenance: JSON, of
    packages, of the scale as it was, and of the policy.
    """
    rows = (read_once(_units, experiment_folder(part, folder) / MANIFEST) or {}).get(part)
    return pd.DataFrame(columns=MANIFEST_COLUMNS) if rows is None else rows.reset_index(drop=True)


def measured_seeds(part: str, scale: str, folder: str | Path | None = None) -> list[int]:
    """The units of a part that stand at a scale, in order."""
    rows = read_manifest(part, folder)
    return rows.loc[rows["scale"] == scale, "seed"].tolist()


def read_table(
    part: str, scale: str, table: str, folder: str | Path | None = None
) -> pd.DataFrame | None:
    """Rows of a part's table at a scale, unit by unit in order, with the last column seed; None
    where there are none.

    A column that units of other scales alone have is empty.
    """
    whole = read_once(pq.read_table, experiment_folder(part, folder) / f"{part}.{table}.parquet")
    if whole is None:
        return None
    seeds = pa.array(measured_seeds(part, scale, folder), pa.int64())
    rows = whole.filter(pc.and_(pc.equal(whole["scale"], scale), pc.is_in(whole["seed"], seeds)))
    return (
        rows.select([*whole.column_names[len(UNIT) :], "seed"]).to_pandas() if len(rows) else None
    )


# --- writing


def manifest_row(part: str, scale: str, seed: int, facts: Mapping) -> dict:
    """A unit's row of the manifest.

    facts: command, seconds and registration; scale, a dict of sizes; policies, {name: SHA-256}; and
    what `files.made_with` says.
    """
    git, policy = facts.get("git") or {}, dict(facts.get("policy") or {})
    row = {
        name: facts.get(name)
        for name in ("command", "seconds", "created", "registration", "platform", "device")
    }
    row |= {
        "part": part,
        "scale": scale,
        "seed": seed,
        "commit": git.get("commit"),
        "modified": git.get("modified"),
    }
    row |= {"policy": policy.pop("name", None), "sha256": policy.pop("sha256", None)}
    for name, value in (("policies", facts.get("policies")), ("versions", facts.get("versions"))):
        row[name] = value and json.dumps(value, default=str)
    row |= {
        "sizes": json.dumps(facts.get("scale") or {}),
        "provenance": json.dumps(policy, default=str),
    }
    return {name: row[name] for name in MANIFEST_COLUMNS}


def write_unit(
    part: str,
    scale: str,
    seed: int,
    tables: Mapping[str, pd.DataFrame],
    facts: Mapping,
    folder: str | Path | None = None,
) -> bool:
    """Add a unit's rows to the tables of its part, then its row to the manifest; whether it was not
    there yet.

    facts: see `manifest_row`.  Several processes may add units at once: each waits for the others'
    files.

    Raises ValueError for a table with a column of its own named scale or seed.
    """
    from filelock import FileLock

    for name, table in tables.items():
        if taken := set(UNIT) & set(table.columns):
            raise ValueError(
                f"Table {name!r} of {part} has a column {min(taken)!r}, which names the unit;"
                " rename it."
            )
    place = experiment_folder(part, folder)
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / ".lock"):
        if seed in measured_seeds(part, scale, folder):
            return False
        for name, table in tables.items():
            _add(place / f"{part}.{name}.parquet", table, scale=scale, seed=seed)
        row = pd.DataFrame([manifest_row(part, scale, seed, facts)])
        _add(place / MANIFEST, row.drop(columns=["part", *UNIT]), part=part, scale=scale, seed=seed)
    return True


def _add(path: Path, rows: pd.DataFrame, **unit: str | int) -> None:
    """Put a unit's rows into a file, in place of any that it has of the unit; all are sorted by
    unit.
    """
    own = pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata()
    for place, (name, value) in enumerate(unit.items()):
        own = own.add_column(place, name, pa.array([value] * len(rows), pa.scalar(value).type))
    parts, known = [own], read_once(pq.read_table, path)
    if known is not None:
        of_unit = reduce(pc.and_, (pc.equal(known[name], value) for name, value in unit.items()))
        parts = [known.filter(pc.invert(of_unit)), own]
    order = [(name, "ascending") for name in unit]  # stable: a unit's rows keep theirs
    write_table(path, pa.concat_tables(parts, promote_options="permissive").sort_by(order))


def write_table(path: Path, table: pa.Table) -> None:
    """Write an Arrow table as Parquet, atomically: words as numbers of a dictionary, as there are
    few, others plain.
    """
    from workbook.files import replacement

    words = [field.name for field in table.schema if not pa.types.is_primitive(field.type)]
    with replacement(path) as temporary:
        pq.write_table(table, temporary, use_dictionary=words, **COMPRESSION)
