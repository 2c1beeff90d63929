"""From a folder a unit to a file a table: python -m audit.convert [--source FOLDER] [--remove], tests/ on the path.

Reads <source>/<study>/<scale>/seed=<k>/{*.parquet, manifest.json} and the texts beside them, and adds the units to the
tables, manifests, registrations and histories below data/results, in place of the same units; then reads all of them
back and compares: every frame, every manifest, every text. --source: another tree's data/results, by default this
one's. --remove: delete the old folders in data/results when all are equal. Texts that units were measured under, and
that stand no longer, are read from the source's git.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from workbook.studies import storage
from workbook.studies.record import KEPT, STUDIES
from workbook.studies.registration import FILE, MARK, NOTES, documents
from workbook.training.files import write_text

RECOVERED = ("recovered", "recovered_dials", "recovered_members")
RENAMED = {(study, "update"): {"scale": "constant"} for study in RECOVERED}  # a unit's columns have these names now
COVERAGE = ("coverage", "skewness", "placed")  # tables of the simulation that become one
HISTORY = "history.yaml"
PREAMBLE = """\
# The registrations under which units were measured, and notes on them, each byte for byte as it was committed under the
# name `file`. sha256 is of the text; the manifest of a unit names the one that stood when it was measured.
"""


def main() -> None:
    """Convert, compare, and say what was compared."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", type=Path, default=storage.RESULTS)
    parser.add_argument("--remove", action="store_true")
    args = parser.parse_args()
    units = old_units(args.source)
    write_tables(units)
    convert_coverage(args.source)
    write_texts(args.source, units)
    compare(units)
    if args.remove:
        remove_old()
    files = [file for file in storage.RESULTS.rglob("*") if file.is_file()]
    print(f"data/results: {len(files)} files, {sum(file.stat().st_size for file in files) / 1e6:.1f} MB")


def remove_old() -> None:
    """Delete what data/results has in the old layout."""
    for folder in {path.parents[1] for path in storage.RESULTS.glob("*/*/seed=*/manifest.json")}:
        shutil.rmtree(folder)
    texts = [file for file in storage.RESULTS.glob("*/*.yaml") if file.name != HISTORY]
    for file in texts:
        if not MARK.match(file.read_text(encoding="utf-8")):
            file.unlink()
    coverage = storage.experiment_folder("coverage")
    for name in (*(f"{table}.parquet" for table in COVERAGE), "coverage.py", "manifest.json", "checksums.json"):
        (coverage / name).unlink(missing_ok=True)
    for folder in storage.RESULTS.iterdir():
        if not any(folder.iterdir()):
            folder.rmdir()


def old_units(source: Path) -> dict[tuple[str, str, int], Path]:
    """{(study, scale, seed): folder} of the old layout."""
    units, unknown = {}, set()
    for path in sorted(source.glob("*/*/seed=*/manifest.json")):
        study, scale = path.parts[-4], path.parts[-3].replace("=", ":")
        if study in (*STUDIES, *KEPT):
            units[study, scale, json.loads(path.read_text("utf-8"))["seed"]] = path.parent
        else:
            unknown.add(study)
    if unknown:
        print(f"left out, since no study has that name: {', '.join(sorted(unknown))}")
    return units


def old_table(path: Path) -> pd.DataFrame:
    return pd.read_parquet(path).rename(columns=RENAMED.get((path.parts[-4], path.stem), {}))


def merged(path: Path, rows: dict[tuple, pd.DataFrame], keys: list[str]) -> None:
    """Write the rows of units, and those of other units that a file has already."""
    parts = []
    for unit, frame in rows.items():
        part = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()
        for place, (name, value) in enumerate(zip(keys, unit, strict=True)):
            part = part.add_column(place, name, pa.array([value] * len(frame), pa.scalar(value).type))
        parts.append(part)
    if path.exists():
        known = pq.read_table(path)
        of_others = [unit not in rows for unit in zip(*(known[name].to_pylist() for name in keys), strict=True)]
        parts.insert(0, known.filter(pa.array(of_others, pa.bool_())))
    parts = [part for part in parts if len(part)] or parts[:1]
    whole = pa.concat_tables(parts, promote_options="permissive")
    storage.write_table(path, whole.sort_by([(name, "ascending") for name in keys]))


def write_tables(units: dict) -> None:
    tables, manifests = defaultdict(dict), defaultdict(dict)
    for (study, scale, seed), folder in units.items():
        place = storage.experiment_folder(study)
        place.mkdir(exist_ok=True)
        for path in folder.glob("*.parquet"):
            frame = old_table(path)
            assert not set(storage.UNIT) & set(frame.columns), path
            tables[place / f"{study}.{path.stem}.parquet"][scale, seed] = frame
        facts = json.loads((folder / "manifest.json").read_text("utf-8"))
        row = pd.DataFrame([storage.manifest_row(study, scale, seed, facts)])
        manifests[place / storage.MANIFEST][study, scale, seed] = row.drop(columns=["part", *storage.UNIT])
    for path, rows in tables.items():
        merged(path, rows, storage.UNIT)
    for path, rows in manifests.items():
        merged(path, rows, ["part", *storage.UNIT])


def convert_coverage(source: Path) -> None:
    """The simulation's three tables under one another, and its manifest."""
    if not (source / "coverage" / "manifest.json").exists():
        return
    facts = json.loads((source / "coverage" / "manifest.json").read_text("utf-8"))
    facts |= {"scale": {"repetitions": facts["repetitions"]}, "command": "python -m audit.coverage build/results"}
    parts = {name: pd.read_parquet(source / "coverage" / f"{name}.parquet") for name in COVERAGE}
    table = pd.concat([part.assign(table=name) for name, part in parts.items()], ignore_index=True)
    place = storage.experiment_folder("coverage")
    row = pd.DataFrame([storage.manifest_row("coverage", "", 0, facts)]).drop(columns=["part", *storage.UNIT])
    merged(place / "coverage.intervals.parquet", {("", 0): table}, storage.UNIT)
    merged(place / storage.MANIFEST, {("coverage", "", 0): row}, ["part", *storage.UNIT])
    back = storage.read_table("coverage", "", "intervals")
    for name, part in parts.items():
        own = back[back["table"] == name][part.columns].reset_index(drop=True).astype(part.dtypes)
        pd.testing.assert_frame_equal(own, part, check_exact=True)


# --- texts


def git(source: Path, *words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=source, capture_output=True, check=True).stdout


def committed(source: Path, name: str) -> list[bytes]:
    """The versions of a file in git, the newest first."""
    root = git(source, "rev-parse", "--show-toplevel").decode().strip()
    path = (source.resolve() / name).relative_to(root).as_posix()
    commits = git(Path(root), "log", "--format=%H", "--diff-filter=AM", "--", path).decode().split()
    return [git(Path(root), "show", f"{commit}:{path}") for commit in commits]


def write_texts(source: Path, units: dict) -> None:
    """Every part's registration and notes as they stand, and the history."""
    cited = defaultdict(set)
    for study, _, _ in units:
        cited[study] |= set(storage.read_manifest(study)["registration"].dropna())
    standing, history = defaultdict(dict), defaultdict(dict)
    for study in dict.fromkeys(study for study, _, _ in units):
        place = storage.experiment_folder(study)
        if (place / FILE).exists() and MARK.match(text := (place / FILE).read_bytes().decode()):
            standing[place] = documents(text) | standing[place]
        if (place / HISTORY).exists():
            for kept in yaml.safe_load((place / HISTORY).read_bytes()):
                history[place][kept["file"], kept["text"].encode()] = None
        for note in ("", *NOTES):
            name = f"{study}/{note}.yaml" if note else f"{study}/{FILE}"
            versions = [text for text in committed(source, name) if not MARK.match(text.decode())]
            now = (source / name).read_bytes() if (source / name).exists() else None
            if now is not None and not MARK.match(now.decode()):
                versions = [now, *(text for text in versions if text != now)]
                standing[place][study, note] = now.decode()
            for number, text in enumerate(versions):
                if number == 0 or hashlib.sha256(text).hexdigest() in cited[study]:
                    history[place][f"data/results/{name}", text] = None
    for place, texts in standing.items():
        parts = list(storage.EXPERIMENTS.get(place.name, (place.name,)))
        order = sorted(texts, key=lambda key: (parts.index(key[0]), key[1]))
        write_text(place / FILE, "".join(f"--- # {' '.join(key).strip()}\n{texts[key]}" for key in order))
        assert documents((place / FILE).read_bytes().decode()) == texts
        yaml.safe_load_all((place / FILE).read_bytes())
    for place, entries in history.items():
        if entries:
            write_text(place / HISTORY, PREAMBLE + "".join(entry(*one) for one in entries))
            back = yaml.safe_load((place / HISTORY).read_bytes())
            assert [(one["file"], one["text"].encode()) for one in back] == list(entries)
            assert all(one["sha256"] == hashlib.sha256(one["text"].encode()).hexdigest() for one in back)
    for study, hashes in cited.items():
        known = {hashlib.sha256(text).hexdigest() for _, text in history[storage.experiment_folder(study)]}
        assert hashes <= known, (study, hashes - known)
    print(f"{sum(map(len, standing.values()))} texts stand, {sum(map(len, history.values()))} in histories")


def entry(file: str, text: bytes) -> str:
    """A text of the history as YAML."""
    lines = text.decode().split("\n")
    assert lines[-1] == "", file
    assert lines[-2] != "", file
    body = "".join(f"    {line}\n" if line else "\n" for line in lines[:-1])
    kind = "|2" if lines[0][:1] in ("", " ") else "|"
    return f"- file: {file}\n  sha256: {hashlib.sha256(text).hexdigest()}\n  text: {kind}\n{body}"


# --- the proof


def compare(units: dict) -> None:
    """Raise an AssertionError unless every unit reads back as it was."""
    rows, frames, proof = 0, 0, (hashlib.sha256(), hashlib.sha256())
    by_scale = defaultdict(list)
    for (study, scale, seed), folder in units.items():
        by_scale[study, scale].append((seed, folder))
    for (study, scale), seeds in sorted(by_scale.items()):
        seeds, frames_of = sorted(seeds), defaultdict(list)
        manifest = storage.read_manifest(study).set_index(["scale", "seed"])
        for seed, folder in seeds:
            facts = json.loads((folder / "manifest.json").read_text("utf-8"))
            assert facts_of(manifest.loc[(scale, seed)], seed, facts) == facts, folder
            for path in sorted(folder.glob("*.parquet")):
                frames_of[path.stem].append(old_table(path).assign(seed=seed))
        for name, parts in frames_of.items():
            old, new = pd.concat(parts, ignore_index=True), storage.read_table(study, scale, name)
            if not len(old):
                assert new is None, (study, scale, name)
                continue
            new = new[new["seed"].isin(old["seed"])].reset_index(drop=True)  # without units that stood there already
            for column in old.columns[old.dtypes == "int64"]:
                if new[column].dtype == "float64":  # of another scale there are fractions
                    print(f"whole numbers as float64: {study} {scale} {name} {column}")
                    old[column] = old[column].astype("float64")
            pd.testing.assert_frame_equal(new, old, check_exact=True)  # rows, their order, columns and dtypes
            for digest, frame in zip(proof, (old, new), strict=True):
                digest.update(f"{study} {scale} {name} {frame.dtypes.to_dict()}".encode())
                digest.update(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
            rows, frames = rows + len(old), frames + len(parts)
        print(f"equal: {study} {scale}: {len(seeds)} units, tables {', '.join(frames_of)}")
    assert proof[0].digest() == proof[1].digest()
    print(
        f"equal: {len(units)} units and manifests, {frames} frames, {rows} rows; SHA-256 of both {proof[0].hexdigest()}"
    )


def facts_of(row: pd.Series, seed: int, old: dict) -> dict:
    """The old manifest, from a row of the new one; what the old one has not is None there."""
    known = {name: None if pd.isna(value) else value for name, value in row.items()}
    for name in ("policies", "versions", "sizes", "provenance"):
        known[name] = known[name] and json.loads(known[name])
    facts = {name: known[name] for name in ("command", "seconds", "created", "registration", "platform", "device")}
    facts |= {"seed": seed, "versions": known["versions"], "policies": known["policies"], "scale": known["sizes"]}
    facts["git"] = {"commit": known["commit"], "modified": known["modified"]}
    facts["policy"] = {"name": known["policy"], "sha256": known["sha256"]} | known["provenance"]
    return {name: value for name, value in facts.items() if name in old or value is not None}


if __name__ == "__main__":
    main()
