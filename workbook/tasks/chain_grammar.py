"""The grammar of the chain task's completions: which words each place admits."""

from collections.abc import Collection
from typing import NamedTuple

from workbook.tasks.chain_words import CLOSINGS, EOS, EQUIVALENTS, LINKS, OPENINGS, OPERATORS


class Slot(NamedTuple):
    """One place of a well-formed completion: its category, the words it admits, and which number it holds."""

    category: str
    words: Collection[str]
    field: str = ""  # "a", "op", "b": the parts of a step; "result", "start", "final"
    step: int = 0


def slots_of(steps: int, residues: tuple[str, ...], loose: bool = False) -> list[Slot]:
    """Return the slots of a well-formed completion of so many steps, EOS included: 7 per step and 10 more.

    loose: whether template words with an equivalent admit that, too.
    """
    with_, semicolon, the = ((word, EQUIVALENTS[word]) if loose else (word,) for word in ("with", ";", "the"))
    slots = [Slot("style", OPENINGS), Slot("template", with_), Slot("copy", residues, "start")]
    for step in range(steps):
        slots += [Slot("template", semicolon), Slot("style", LINKS), Slot("copy", residues, "a", step)]
        slots += [Slot("copy", OPERATORS, "op", step), Slot("copy", residues, "b", step), Slot("template", ("is",))]
        slots.append(Slot("result", residues, "result", step))
    slots += [Slot("template", semicolon), Slot("style", CLOSINGS)]
    slots += [Slot("template", words) for words in (the, ("answer",), ("is",))]
    return [*slots, Slot("copy", residues, "final", steps - 1), Slot("eos", EOS)]
