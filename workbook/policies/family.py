"""The family: policies of the chain task that differ in one thing.

    load_policy("family:seed=3")                a committed one: the same weights everywhere
    load_policy("family:seed=3,alphabets=4")    its prompts are spread over 4 private alphabets

A statement about policies needs several of them. data/family holds those that studies take as
units, and some for tuning, in 8 bits: they differ in the seed of their supervised training. Members
with other dials are for questions about a cause: two members differ in that dial alone. They are
trained by a command (`workbook.studies.making`), never by loading one. All lie in the user's cache
folder, below family/.
"""

import json
import re
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from pathlib import Path

from workbook.messages import InvalidValue, show_value
from workbook.places import cache_folder, data_path
from workbook.policies.packaged import RECORD, is_whole
from workbook.policies.small import unpack_policy
from workbook.tasks.chain import Chain
from workbook.tasks.task import positive_int

# how members' names begin
FAMILY = "family:"
# seed=K.safetensors, one of other dials, and members.json: what each is
COMMITTED = data_path("family")
# counted up when training changes, so that a cached member of an older one is made anew
RECIPE = 2
# a dial's value in a name
NUMBER = r"[0-9]{1,10}|[0-9]{0,3}\.[0-9]{1,20}"
LIMITS = {
    "seed": (0, 2**31 - 1),
    "alphabets": (1, 256),
    "width": (8, 1024),
    "operands": (2, 12),
    "sft_steps": (2, 100_000),
}


@dataclass(frozen=True)
class Member:
    """One policy of the family: a seed of supervised training, and dials.

    alphabets, confidence, operands: of its task (`workbook.tasks.chain`).
    width: of the residual stream.
    sft_steps: of the supervised training, 64 demonstrations each.

    Raises ValueError naming the dial that is out of range.

    >>> Member(3, confidence=0.8).name, Member(3).name
    ('family:seed=3,confidence=0.8', 'family:seed=3')
    """

    seed: int
    alphabets: int = 1
    confidence: float = 1.0
    width: int = 64
    operands: int = 5
    sft_steps: int = 600

    def __post_init__(self) -> None:
        for dial, (least, most) in LIMITS.items():
            positive_int(dial, getattr(self, dial), least, most)
        if self.width % 8:
            raise InvalidValue(
                "width", self.width, "a multiple of 8: of 4 heads of an even width each"
            )
        # the task checks confidence
        self.task  # noqa: B018

    @property
    def name(self) -> str:
        """The name that `load_policy` knows it by; dials at their default are left out."""
        dials = {dial: getattr(self, dial) for dial in DEFAULTS}
        changed = {dial: value for dial, value in dials.items() if value != DEFAULTS[dial]}
        return FAMILY + ",".join(f"{dial}={_digits(value)}" for dial, value in changed.items())

    @property
    def task_options(self) -> dict:
        """The options of its task, as `get_task("chain", ...)` takes them."""
        return {
            "operands": self.operands,
            "alphabets": self.alphabets,
            "confidence": self.confidence,
        }

    @property
    def task(self) -> Chain:
        return Chain(**self.task_options)

    @property
    def base(self) -> "Member":
        """The member that its training starts from: one alphabet, full confidence."""
        return replace(self, alphabets=1, confidence=1.0)


DEFAULTS = {dial.name: dial.default for dial in fields(Member)}


def _digits(number: float) -> str:
    """A number as names have it: in decimals, never with an exponent, and exactly.

    >>> _digits(1e-05), _digits(3), _digits(0.8)
    ('0.00001', '3', '0.8')
    """
    return f"{Decimal(str(number)):f}"


def member_of(name: str) -> Member:
    """The member of a name.

    Raises ValueError for a name of none.

    >>> member_of("family:confidence=0.8,seed=3")
    Member(seed=3, alphabets=1, confidence=0.8, width=64, operands=5, sft_steps=600)
    """
    dials = {}
    for part in name.removeprefix(FAMILY).split(","):
        dial, _, value = part.partition("=")
        if dial not in DEFAULTS or dial in dials or not re.fullmatch(NUMBER, value):
            raise InvalidValue(
                "name",
                name,
                "family:seed=3 and, after commas, further dials once each, of"
                f" {', '.join(DEFAULTS)}, e.g. family:seed=3,confidence=0.8; {show_value(part)} is"
                " none of them",
            )
        dials[dial] = int(value) if value.isdigit() else float(value)
    if "seed" not in dials:
        raise InvalidValue("name", name, "one with a seed, e.g. family:seed=3")
    return Member(**dials)


def member_folder(member: Member) -> Path:
    """The folder of a member that is committed or was made.

    Raises ValueError, naming the command that makes it, for any other.
    """
    target = cached_member(member)
    file = committed_file(member)
    if file.exists():
        # the committed weights, whatever the cache holds
        facts = {"made_by": "data/family/make_family.py", "member": member.name}
        length = max(64, member.task.longest)
        return unpack_policy(file, target, member.task, member.width, length, facts)
    if not was_made(target):
        raise ValueError(
            f"{member.name} is not among the committed policies (data/family), and training it"
            f" takes minutes: python -m workbook.studies.making {member.name} makes it."
        )
    return target


def cached_member(member: Member) -> Path:
    """Where a member lies in the user's cache, or would."""
    return cache_folder() / "family" / member.name.removeprefix(FAMILY)


def was_made(folder: Path) -> bool:
    """Whether a folder holds a whole member that was trained by the present recipe."""
    if not is_whole(folder):
        return False
    record = json.loads((folder / RECORD).read_text())
    return record.get("recipe") == RECIPE


def committed_file(member: Member) -> Path:
    """Where a member lies, if it is committed."""
    return COMMITTED / f"{member.name.removeprefix(FAMILY)}.safetensors"


def committed_seeds(role: str) -> tuple[int, ...]:
    """The SFT seeds of the committed policies of a role, "unit" or "tuning", in order."""
    members = json.loads((COMMITTED / "members.json").read_text())["members"]
    return tuple(member["seed"] for member in members if member["role"] == role)
