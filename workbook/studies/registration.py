"""What a study registered before its first measured unit: its outcomes, thresholds, number of units
and stopping rule.

    registered_outcome("dose", "H1").threshold, read_registration("dose").hash

data/results/<experiment>/registration.yaml holds a YAML document a study, below a line that names
it:

    --- # dose           the registration: its hash stands in the manifest of every unit, so that a
                         text that was changed after the measurement shows
    --- # dose looked    what was written of it later (NOTES): looked_after, named_after, is_sealed

Thresholds and smallest effects are stated there and nowhere else. A text that is replaced stands in
history.yaml beside it, as long as a unit was measured under it.
"""

import hashlib
import re
from dataclasses import field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    FiniteFloat,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from pydantic.dataclasses import dataclass

from workbook.messages import InvalidValue, require_one_of
from workbook.places import data_path, load_yaml
from workbook.studies.storage import RESULTS, experiment_folder, read_once


@dataclass(frozen=True)
class Setting:
    """How large a study is: which policy and task, how many prompts, rollouts per prompt, new
    tokens and seeds.
    """

    name: str
    policy: str
    task: str
    prompts: int
    held_out: int
    group_size: int
    max_new_tokens: int
    seeds: int
    task_options: dict = field(default_factory=dict)


ONE_DIGIT_SUMS = {"chat": True, "max_terms": 2, "max_digits": 1}
PLAIN_SUMS = ONE_DIGIT_SUMS | {"chat": False}
SCALES = {
    "tiny": Setting("tiny", "bundled", "chain", 6, 4, 8, 48, 1),
    "bundled": Setting("bundled", "bundled", "chain", 64, 64, 8, 48, 5),
    # of the first unit: every other one has a policy and prompts of its own (`studies.unit`)
    "family": Setting("family", "family:seed=1", "chain", 64, 64, 8, 48, 10),
    # one-digit sums asked in two ways, which are two tasks: in a chat (reward near 0.2), or as
    # plain text to go on from
    "smollm2_chat": Setting(
        "smollm2_chat", "smollm2-135m", "gym:chain_sum", 8, 4, 8, 20, 3, ONE_DIGIT_SUMS
    ),
    "smollm2_plain": Setting(
        "smollm2_plain", "smollm2-135m", "gym:chain_sum", 160, 4, 8, 8, 2, PLAIN_SUMS
    ),
    "gemma3_plain": Setting(
        "gemma3_plain", "gemma3-270m", "gym:chain_sum", 80, 4, 8, 8, 1, PLAIN_SUMS
    ),
}
# a scale per world, whose units are its policies; completions are as long as its task's
WORLDS = load_yaml(data_path("worlds", "worlds.yaml").read_text(encoding="utf-8"))
WORLD_SCALES = {
    name: Setting(name, name, name, 64, 64, 8, 0, 10) for name in map("world:{}".format, WORLDS)
}
# SmolLM2 tuned to a task, whose units are policies, too (data/smollm2): sums in a sentence, and
# wrong ones that ramble
TUNED_SCALES = {
    "smollm2:sums": Setting("smollm2:sums", "smollm2:sums,seed=1", "sums", 96, 24, 8, 12, 6),
    "smollm2:ramble": Setting(
        "smollm2:ramble", "smollm2:ramble,seed=1", "sums", 96, 24, 8, 24, 6, {"ramble": 6}
    ),
}
POLICY_SCALES = WORLD_SCALES | TUNED_SCALES  # with policies of their own, for units and for tuning
ALL_WORLDS = "worlds"  # the scale whose units are worlds: the places of their names in worlds.yaml
SCALES |= POLICY_SCALES | {ALL_WORLDS: Setting(ALL_WORLDS, "", "", 0, 0, 8, 0, len(WORLD_SCALES))}


def check_scale(name: str) -> None:
    """Raise a ValueError unless `name` is one of SCALES."""
    require_one_of("scale", name, tuple(SCALES))


ROLES = ("primary", "mechanism", "consequence", "control", "described")
SIDES = {"above": 1, "below": -1}
# below, there is neither an interval nor an outcome: a sign-flip test of 5 units never reaches 5 %
MIN_UNITS = 6
STRICT = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
NAN = float("nan")


def _as_text(value: Any) -> Any:
    """YAML's yes and no as the words they were, and all else on one line."""
    return " ".join({True: "yes", False: "no"}.get(value, str(value)).split())


def _yes_no_unknown(value: str) -> str:
    if not value.lower().startswith(("yes", "no:", "unknown")):
        raise ValueError('it must be "yes", "unknown: ..." or "no: " and the reason')
    return value


Text = Annotated[str, BeforeValidator(_as_text)]
Stated = Annotated[Text, AfterValidator(_yes_no_unknown)]


@dataclass(frozen=True, config=STRICT)
class Outcome:
    """One registered number: what it is, and on which side of which threshold the paper's claim
    lies.

    role: primary (one a claim), mechanism, consequence, control, or described, which decides
    nothing and needs neither side, threshold nor smallest_effect.  claim: its id.  sentence: what
    was measured.  unit: of the number.

    side: "above" or "below".  smallest_effect: the smallest distance from the threshold that is of
    interest, in the same unit; nearer than that is equivalent to none.

    paper: the paper's effect and setting, where known.  comparable, testable: "yes", "unknown:
    ...", or "no: why".
    seen_before: "no", or what of it was known before the threshold was fixed.  place: where on its
    curve ours and the paper's setting lie.  predicted: an interval in which its authors expect the
    mean.  positive_control: the key of an outcome that must be supported before this one may be
    called equivalent to anything.  changed: "", or what of its rule was changed after data had been
    seen.  scales: at which alone it is judged, by default wherever its study is.
    """

    claim: Text
    role: Literal[ROLES]
    sentence: Text
    unit: Text = ""
    side: Literal["", "above", "below"] = ""
    threshold: FiniteFloat = NAN
    smallest_effect: PositiveFloat = NAN
    paper: Text = ""
    predicted: tuple[FiniteFloat, FiniteFloat] = (NAN, NAN)
    positive_control: Text = ""
    changed: Text = ""
    comparable: Stated = "yes"
    testable: Stated = "yes"
    source: Literal["paper", "machine review", "ours"] = "paper"
    seen_before: Text = "no"
    place: Text = ""
    scales: tuple[Literal[(*SCALES,)], ...] = ()

    def __post_init__(self):
        for name in ("side", "threshold", "smallest_effect") if self.role != "described" else ():
            if (value := getattr(self, name)) == "" or value != value:
                raise ValueError(f"it lacks {name}")
        if self.predicted[0] > self.predicted[1]:
            raise ValueError("predicted must be [low, high]")

    @property
    def toward(self) -> float:
        """+1 where the paper's claim lies above the threshold, -1 below, NaN for a row that decides
        nothing.
        """
        return float(SIDES.get(self.side, "nan"))


def _by_scale(value: Any) -> Any:
    """{scale: count} of one {scale, count}, or of a list of them."""
    parts = value if isinstance(value, list) else [value]
    if any(not isinstance(part, dict) or {"scale", "count"} != set(part) for part in parts):
        raise ValueError("it must be {scale: family, count: 10}, or a list of such")
    return {part["scale"]: part["count"] for part in parts}


@dataclass(frozen=True, config=STRICT)
class Registration:
    """A study's registration: units is {scale: how many, numbered from 0}, hash the SHA-256 of its
    text.

    supersedes: the hash of an earlier one, under which tables may have been measured whose numbers
    were known to this.
    """

    study: Text
    registered: Text
    question: Text
    stopping_rule: Text
    units: Annotated[dict[Literal[(*SCALES,)], PositiveInt], BeforeValidator(_by_scale)]
    outcomes: dict[str, Outcome]
    supersedes: Text = ""
    expected: Text = ""
    secondary: Any = None
    cut_before_measuring: Any = None
    tuning: Any = None
    definitions: Any = None
    controls: Any = None
    collapse: Any = None
    limits: Any = None
    notes: Any = None
    hash: str = ""

    def judges(self, outcome: Outcome, scale: str) -> bool:
        """Whether an outcome is judged at a scale."""
        return scale in self.units and scale in (outcome.scales or self.units)


FILE = "registration.yaml"
# a document's study, and which note of it, if it is one
MARK = re.compile(r"^--- # (\w+)(?: (\w+))?\n", re.MULTILINE)
NOTES = ("looked", "named", "predicted", "sealed")


def documents(text: str) -> dict[tuple[str, str], str]:
    """{(study, note): text} of the documents of a registration.yaml; note is "" for a study's
    registration.

    >>> documents("--- # dose\\nunits: 6\\n--- # dose looked\\nunits: 2\\n")
    {('dose', ''): 'units: 6\\n', ('dose', 'looked'): 'units: 2\\n'}
    """
    _, *parts = MARK.split(text)
    return {
        (study, note or ""): part
        for study, note, part in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    }


def registration_path(study: str, folder: str | Path | None = None) -> Path:
    """The file that holds a study's registration: in `folder` where that registers it, else in
    data/results.
    """
    own = experiment_folder(study, folder) / FILE
    return (
        own if folder is None or (study, "") in _documents(own) else experiment_folder(study) / FILE
    )


def read_registration(study: str, folder: str | Path | None = None) -> Registration | None:
    """A study's registration; None where it has none.

    folder: of results, read before data/results.  Raises ValueError, a sentence that names the
    field, for one that is not as it must be.
    """
    text = _documents(registration_path(study, folder)).get((study, ""))
    return None if text is None else _parsed_registration(study, text)


def registered_studies(folder: str | Path | None = None) -> list[str]:
    """The studies that a folder of results (by default data/results) registers, by name."""
    paths = Path(folder or RESULTS).glob(f"*/{FILE}")
    return sorted(study for path in paths for study, note in _documents(path) if not note)


def read_note(study: str, note: str, folder: str | Path | None = None) -> dict[str, Any]:
    """What one of NOTES says of a study beside its tables, in `folder` or data/results; {} where it
    has none.
    """
    text = _documents(experiment_folder(study, folder) / FILE).get((study, note))
    return {} if text is None else _parsed(text)


def registered_outcome(study: str, key: str) -> Outcome:
    """Return what a study registered under a key; its threshold and smallest effect are stated
    there alone.

    >>> registered_outcome("dose", "H1").threshold
    0.1
    """
    return read_registration(study).outcomes[key]


def looked_after(study: str, folder: str | Path | None = None) -> int | None:
    """How many units of a study stood when its outcomes were first looked at, though more were
    registered; None if all.

    The note `looked` beside the tables, written with the later units, says so: {units: 6, looked:
    date, why: words}.
    """
    return read_note(study, "looked", folder).get("units")


def is_sealed(study: str, folder: str | Path | None = None) -> bool:
    """Whether a study's tables stay unread until its last registered unit is measured.

    The note `sealed` beside them says so: {sealed: date, why: words}. Who has measured the last
    unit removes it.
    """
    return (study, "sealed") in _documents(experiment_folder(study, folder) / FILE)


def named_after(study: str, folder: str | Path | None = None) -> dict[str, str]:
    """{key: positive control} of a study's outcomes whose control was named when its data had been
    seen.

    The note `named` beside the registration, which stays as it was, says so: {named: date, why:
    words, controls: {}}.
    """
    text = _documents(registration_path(study, folder)).get((study, "named"))
    return {} if text is None else _parsed(text)["controls"]


def _documents(path: Path) -> dict[tuple[str, str], str]:
    """The documents of a registration.yaml, split once for each version of it; none where there is
    no file.
    """
    return read_once(_split, path) or {}


def _split(path: Path) -> dict[tuple[str, str], str]:
    return documents(path.read_bytes().decode("utf-8"))


@cache
def _parsed(text: str) -> dict[str, Any]:
    return load_yaml(text)


@cache
def _parsed_registration(study: str, text: str) -> Registration:
    """The registration that a text states, checked."""
    stated, digest = load_yaml(text), hashlib.sha256(text.encode()).hexdigest()
    if not {"study", "outcomes", "units"} & set(stated):  # in words, from before outcomes were read
        known = {
            name: stated.get(name) or "" for name in ("registered", "question", "stopping_rule")
        }
        return Registration(study, **known, units=[], outcomes={}, notes=stated, hash=digest)
    return check_registration(stated, study, digest)


def check_registration(text: Any, study: str, digest: str = "") -> Registration:
    """The registration that a YAML's data stands for.

    Raises ValueError, one sentence with the field and what is wrong with it.
    """
    try:
        registration = TypeAdapter(Registration).validate_python(text | {"hash": digest})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidValue(
            place,
            first["input"],
            first["msg"],
            f"The registration of {study}: {place}: {first['msg']}.",
        ) from None
    if registration.study != study:
        raise InvalidValue(
            "study",
            registration.study,
            repr(study),
            f"The registration of {study}: study is {registration.study!r}; it must be {study!r}.",
        )
    primaries = [
        outcome.claim for outcome in registration.outcomes.values() if outcome.role == "primary"
    ]
    if twice := [claim for i, claim in enumerate(primaries) if claim in primaries[:i]]:
        raise ValueError(
            f"The registration of {study}: outcomes has two primary ones of claim {twice[0]}."
        )
    return registration
