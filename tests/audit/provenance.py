"""What manifests, checksums, registrations and git say of the units that decide."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from functools import cache
from pathlib import Path

from audit.tables import ROOT, Registered, Units


def faults(units: Units, registered: Registered) -> list[str]:
    """What is wrong with the units of a study at a scale; empty if nothing is.

    Every file is as its checksum says; each unit's tables come from an unmodified tree, at a commit that has the very
    registration which stands now and that is part of this history; units are numbered from 0 without a gap, and as many
    as registered, or as the stopping rule's minimum.
    """
    registration = units.folder.parent / "registration.yaml"
    have, here = units.registered, f"{units.study}, {units.scale}"
    wrong = [f"{here}, unit {unit}: {what}" for unit in have for what in of_unit(units, unit, registration)]
    if have != list(range(len(have))):
        wrong.append(f"{here}: units {have} are not numbered from 0 without a gap")
    least = minimum(registered.stopping_rule, units.count)
    if registered.decides and 0 < len(have) < least:
        wrong.append(f"{here}: {len(have)} units; its stopping rule asks for {least}")
    return wrong


def of_unit(units: Units, unit: int, registration: Path) -> list[str]:
    """What is wrong with one unit."""
    folder, manifest = units.folder / f"seed={unit}", units.manifests[unit]
    registered = manifest.get("registration")
    stated = registered.get("sha256") if isinstance(registered, dict) else registered
    git, digest, wrong = manifest["git"], sha256(registration.read_bytes()), changed_files(folder)
    if git["modified"] is not False:
        wrong.append("its tree was modified")
    if stated != digest:
        wrong.append("its registration is another one than the one that stands now")
    if (at := at_commit(git["commit"], registration.parent.name)) is not None and sha256(at) != digest:
        wrong.append("its commit has another registration, or none")
    if not in_history(git["commit"]):
        wrong.append(f"its commit {git['commit']} is not part of this history")
    return wrong


def changed_files(folder: Path) -> list[str]:
    """Files of a unit that are not as its checksums say, or that these do not name."""
    sums = json.loads((folder / "checksums.json").read_text(encoding="utf-8"))
    there = {path.name for path in folder.iterdir()} - {"checksums.json"}
    wrong = [f"{name} has no checksum, or is not there" for name in sorted(there ^ set(sums))]
    changed = (name for name in there & set(sums) if sha256((folder / name).read_bytes()) != sums[name]["sha256"])
    return wrong + [f"{name} is not as its checksum says" for name in sorted(changed)]


def minimum(stopping_rule: str, count: int) -> int:
    """Units that the stopping rule asks for at least: "at least 6", "at least units 0 to 15"; else all.

    >>> minimum("Units 0 to 9 in order. At least 6 if time runs out.", 10), minimum("at least units 0 to 15", 30)
    (6, 16)
    """
    if several := re.search(r"[Aa]t least units 0 to (\d+)", stopping_rule):
        return int(several.group(1)) + 1
    few = re.search(r"[Aa]t least (\d+)", stopping_rule)
    return int(few.group(1)) if few else count


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@cache
def at_commit(commit: str, study: str) -> bytes | None:
    """A study's registration as it was at a commit, b"" if it was not there; None where git has no such commit."""
    if git("cat-file", "-e", f"{commit}^{{commit}}").returncode:
        return None
    read = git("show", f"{commit}:data/results/{study}/registration.yaml")
    return read.stdout if read.returncode == 0 else b""


@cache
def in_history(commit: str) -> bool:
    """Whether a commit is an ancestor of the present one; True where there is no whole history to look in."""
    if whole_history():
        return git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0
    return True


@cache
def whole_history() -> bool:
    """Whether git knows all commits here: neither an unpacked archive nor a shallow clone."""
    shallow = git("rev-parse", "--is-shallow-repository")
    return shallow.returncode == 0 and shallow.stdout.strip() == b"false"


def git(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True)
