"""What a study registered before its first measured unit: its outcomes, thresholds, number of units and stopping rule.

    registration = read_registration("dose")
    registration.outcomes["H1"].threshold, registration.hash

data/results/<study>/registration.yaml; its hash stands in the manifest of every unit, so that a text that was changed
after the measurement shows. Format, fields and what each means: `Registration` and `Outcome`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from workbook.places import data_path
from workbook.studies.scales import SCALES
from workbook.training.messages import show_value
from workbook.training.run_config import read_yaml

ROLES = ("primary", "mechanism", "consequence", "control", "described")
SOURCES = ("paper", "machine review", "ours")
SIDES = {"above": 1, "below": -1}
MIN_UNITS = 6  # below, there is neither an interval nor an outcome: a sign-flip test of 5 units never reaches 5 %
FILE, LOOKED = "registration.yaml", "looked.yaml"


@dataclass(frozen=True)
class Outcome:
    """One registered number: what it is, and on which side of which threshold the paper's claim lies.

    role: primary (one a claim), mechanism, consequence, control, or described, which decides nothing and needs neither
    side, threshold nor smallest_effect.  claim: its id.  sentence: what was measured.  unit: of the number.

    side: "above" or "below".  smallest_effect: the smallest distance from the threshold that is of interest, in the
    same unit; nearer than that is equivalent to none.

    paper: the paper's effect and setting, where known.  comparable, testable: "yes", "unknown: ...", or "no: why".
    source: of SOURCES.  seen_before: "no", or what of it was known before the threshold was fixed.  place: where on its
    curve ours and the paper's setting lie.
    """

    claim: str
    role: str
    sentence: str
    unit: str = ""
    side: str = ""
    threshold: float = float("nan")
    smallest_effect: float = float("nan")
    paper: str = ""
    comparable: str = "yes"
    testable: str = "yes"
    source: str = "paper"
    seen_before: str = "no"
    place: str = ""

    @property
    def toward(self) -> float:
        """+1 where the paper's claim lies above the threshold, -1 below, NaN for a row that decides nothing."""
        return float(SIDES.get(self.side, "nan"))


@dataclass(frozen=True)
class Registration:
    """A study's registration: units is {scale: how many, numbered from 0}, hash the SHA-256 of the file."""

    study: str
    registered: str
    question: str
    units: Mapping[str, int]
    stopping_rule: str
    outcomes: Mapping[str, Outcome]
    hash: str = ""
    expected: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)


NEEDED = ("study", "registered", "question", "units", "stopping_rule", "outcomes")
NOTES = ("secondary", "cut_before_measuring", "tuning", "definitions", "controls", "collapse", "limits", "notes")
TEXTS = tuple(part.name for part in fields(Outcome) if part.type == "str")
IN_WORDS = (  # fields of a registration from before outcomes were read
    *("registered", "question", "stopping_rule", "expected", "cut_before_measuring", "unit", "primary_outcome"),
    *("smallest_effect_of_interest", "why_this_size", "decision", "secondary_outcomes", "sizes", "exclusions"),
)
_DECIDES = ("side", "threshold", "smallest_effect", "seen_before", "source")


def registration_path(study: str, folder: str | Path | None = None) -> Path:
    """Where a study's registration lies: in `folder`, else in data/results."""
    own = Path(folder) / study / FILE if folder is not None else None
    return own if own is not None and own.exists() else data_path("results") / study / FILE


def read_registration(study: str, folder: str | Path | None = None) -> Registration | None:
    """A study's registration; None where it has none.

    folder: of results, read before data/results.  Raises ValueError, a sentence that names the field, for one that is
    not as it must be.
    """
    path = registration_path(study, folder)
    return _read(path, path.stat().st_mtime_ns) if path.exists() else None


def registered_outcome(study: str, key: str) -> Outcome:
    """Return what a study registered under a key; its threshold and smallest effect are stated there alone.

    >>> registered_outcome("dose", "H1").threshold
    0.1
    """
    return read_registration(study).outcomes[key]


def looked_after(study: str, folder: str | Path | None = None) -> int | None:
    """How many units of a study stood when its outcomes were first looked at, though more were registered; None if all.

    <study>/looked.yaml beside the tables, in `folder` or data/results, written with the later units, says so:
    {units: 6, looked: date, why: words}.

    Raises ValueError, a sentence that names the field, for one that is not as it must be.
    """
    path = (data_path("results") if folder is None else Path(folder)) / study / LOOKED
    if not path.exists():
        return None
    text = read_yaml(path, "looked")
    if not isinstance(text, dict) or set(text) != {"units", "looked", "why"}:
        raise ValueError(f"{path} must be a mapping with the fields units, looked and why.")
    units = text["units"]
    if isinstance(units, bool) or not isinstance(units, int) or units < 1:
        raise ValueError(f"{path}: units is {show_value(units)}; it must be an integer of at least 1.")
    return units


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> Registration:
    """The registration in a file, checked, read once for each version of it."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return check_registration(read_yaml(path, "registration"), path.parent.name, digest, path)


def check_registration(text: Any, study: str, digest: str = "", path: Path | None = None) -> Registration:
    """The registration that a YAML's data stands for.

    Raises ValueError, one sentence with the file (`path`), the field, its value and what would be valid.
    """
    where = f"The registration of {study}" + (f", {path}," if path else "")
    if isinstance(text, dict) and text and not {"study", "outcomes", "units"} & set(text):
        _check_known(where, text, IN_WORDS)
        plain = {name: str(text.get(name) or "") for name in ("registered", "question", "stopping_rule")}
        return Registration(study, **plain, units={}, outcomes={}, hash=digest)
    if not isinstance(text, dict):
        raise ValueError(f"{where} must be a mapping with the fields {', '.join(NEEDED)}.")
    if missing := [name for name in NEEDED if text.get(name) in (None, "", {}, [])]:
        raise ValueError(f"{where} lacks {missing[0]}.")
    _check_known(where, text, (*NEEDED, "expected", *NOTES))
    if text["study"] != study:
        raise ValueError(f"{where}: study is {show_value(text['study'])}; it must be {study!r}, as its folder is.")
    if not isinstance(text["outcomes"], dict):
        raise ValueError(f"{where}: outcomes must be a mapping, a key for each.")
    outcomes = {str(key): _outcome(where, str(key), value) for key, value in text["outcomes"].items()}
    primaries = [outcome.claim for outcome in outcomes.values() if outcome.role == "primary"]
    if twice := [claim for i, claim in enumerate(primaries) if claim in primaries[:i]]:
        raise ValueError(f"{where}: outcomes has two primary ones of claim {twice[0]}; a claim has one.")
    plain = {name: str(text[name]) for name in ("study", "registered", "question", "stopping_rule")}
    notes = {name: text[name] for name in NOTES if name in text}
    return Registration(
        **plain,
        units=_units(where, text["units"]),
        outcomes=outcomes,
        hash=digest,
        expected=str(text.get("expected") or ""),
        notes=notes,
    )


def _check_known(where: str, value: dict, known: tuple[str, ...]) -> None:
    if unknown := [name for name in value if name not in known]:
        raise ValueError(f"{where} has the field {show_value(unknown[0])}; it may have {', '.join(known)}.")


def _units(where: str, value: Any) -> dict[str, int]:
    """{scale: count} of one {scale, count}, or of a list of them."""
    units = {}
    for part in value if isinstance(value, list) else [value]:
        if not isinstance(part, dict) or {"scale", "count"} != set(part):
            raise ValueError(f"{where}: units is {show_value(value)}; it must be {{scale: family, count: 10}}.")
        if (scale := str(part["scale"])) not in SCALES:
            raise ValueError(f"{where}: units.scale is {show_value(scale)}; choose one of {', '.join(SCALES)}.")
        if scale in units:
            raise ValueError(f"{where}: units has the scale {scale} twice; give it one count.")
        count = part["count"]
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise ValueError(f"{where}: units.count is {show_value(count)}; it must be an integer of at least 1.")
        units[scale] = count
    return units


def _outcome(where: str, key: str, value: Any) -> Outcome:
    """One outcome, every field checked."""
    here, known = f"{where}: outcomes.{key}", {part.name: part for part in fields(Outcome)}
    if not isinstance(value, dict):
        raise ValueError(f"{here} must be a mapping of fields.")
    _check_known(here, value, tuple(known))
    value = {name: "yes" if part is True else "no" if part is False else part for name, part in value.items()}
    needed = [name for name, part in known.items() if part.default is MISSING]
    needed += _DECIDES if value.get("role") != "described" else ()
    if missing := [name for name in needed if value.get(name) in (None, "")]:
        raise ValueError(f"{here} lacks {missing[0]}.")
    value = {name: " ".join(str(part).split()) if name in TEXTS else part for name, part in value.items()}
    for name, choices in {"role": ROLES, "source": SOURCES, "side": ("", *SIDES)}.items():
        if name in value and value[name] not in choices:
            known_ones = ", ".join(choice for choice in choices if choice)
            raise ValueError(f"{here}.{name} is {show_value(value[name])}; choose one of {known_ones}.")
    for name in ("threshold", "smallest_effect"):
        value[name] = _number(f"{here}.{name}", value.get(name), positive=name == "smallest_effect")
    for name in ("comparable", "testable"):
        if not value.get(name, "yes").lower().startswith(("yes", "no:", "unknown")):
            choices = '"yes", "unknown: ..." or "no: " and the reason'
            raise ValueError(f"{here}.{name} is {show_value(value[name])}; it must be {choices}.")
    return Outcome(**value)


def _number(field_name: str, value: Any, positive: bool) -> float:
    """A finite number (above 0 if it must be); NaN for none."""
    if value is None:
        return float("nan")
    bound = "a number above 0" if positive else "a finite number"
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise ValueError(f"{field_name} is {show_value(value)}; it must be {bound}.")
    if positive and value <= 0:
        raise ValueError(f"{field_name} is {show_value(value)}; it must be {bound}.")
    return float(value)
