"""Whether every unit was measured under a text that stood before: by the history, and by git.

history.yaml beside a manifest holds each registration under which a unit was measured, with the
name of its file.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import yaml

from audit.reckoning import RESULTS, ROOT, texts


def digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def history(experiment: Path) -> list[dict]:
    """file, sha256 and text of each text in an experiment's history."""
    path = experiment / "history.yaml"
    return yaml.load(path.read_bytes(), yaml.CSafeLoader) if path.exists() else []


def registered_units(results: Path) -> Iterator[tuple[Path, pd.DataFrame]]:
    """Each experiment, with its units that name a registration."""
    for path in sorted(results.glob("*/manifest.parquet")):
        units = pd.read_parquet(path, columns=["part", "scale", "seed", "commit", "registration"])
        yield path.parent, units.dropna(subset="registration")


def compare_with_history(results: Path = RESULTS) -> list[str]:
    """Texts whose hash is another one than stated, and units that were measured under a text that
    nobody has.
    """
    faults = []
    for experiment, units in registered_units(results):
        kept = history(experiment)
        faults += [
            f"{one['file']}: its text is another"
            for one in kept
            if digest(one["text"].encode()) != one["sha256"]
        ]
        path = experiment / "registration.yaml"
        standing = texts(path.read_bytes().decode()) if path.exists() else {}
        known = {
            digest(text.encode()) for text in [*standing.values(), *(one["text"] for one in kept)]
        }
        for (part, hash_), rows in units[~units["registration"].isin(known)].groupby(
            ["part", "registration"]
        ):
            faults.append(
                f"{part}: {len(rows)} units were measured under {hash_[:8]}, which is no known text"
            )
    return faults


def compare_with_git(results: Path = RESULTS) -> tuple[list[str], str]:
    """Units in whose commit their registration did not stand, and how many were looked up."""
    faults, looked_up, unknown = [], 0, 0
    for experiment, units in registered_units(results):
        files = {one["sha256"]: one["file"] for one in history(experiment)}
        for (part, commit, hash_), rows in units.groupby(["part", "commit", "registration"]):
            if shown(commit) is None:  # a clone without its history
                unknown += len(rows)
                continue
            looked_up += len(rows)
            alone = shown(f"{commit}:{files.get(hash_)}")
            together = shown(f"{commit}:data/results/{experiment.name}/registration.yaml") or b""
            stood = [
                *([alone] if alone else []),
                *(text.encode() for text in texts(together.decode()).values()),
            ]
            if hash_ not in map(digest, stood):
                faults.append(
                    f"{part}: {len(rows)} units name {hash_[:8]}, which did not stand at"
                    f" {commit[:8]}"
                )
    without = f"; the commits of {unknown} are not in this clone" if unknown else ""
    return (
        faults,
        f"{looked_up} units: their registration stood in the commit that measured them{without}.",
    )


def shown(thing: str) -> bytes | None:
    """What git has under a name; None if it has nothing."""
    answer = subprocess.run(
        ["git", "cat-file", "-p", thing], cwd=ROOT, capture_output=True, check=False
    )
    return answer.stdout if answer.returncode == 0 else None
