"""Words and grammar of the chain task: roles, private alphabets, equivalents, slots.

In a task of k alphabets each prompt belongs to one of them by a hash. Alphabet 0 has the plain words, alphabet 3 words
of its own ("7'3", ";'3"), in prompts and completions alike. So prompts of two alphabets share no token but the end of
sequence: what couples them is the network between the embedding and the output layer, never a row of either.
"""

import hashlib
from collections.abc import Collection
from typing import NamedTuple

OPENINGS = ("start", "begin", "open", "go")
LINKS = ("then", "now", "next", "and")
CLOSINGS = ("so", "thus", "hence", "therefore")
TEMPLATE = ("with", ";", "is", "the", "answer", "=")
OPERATORS = ("+", "-")
EOS = ("<eos>", "</s>", "<|im_end|>", "<|endoftext|>")
EQUIVALENTS = {"with": "at", ";": ",", "the": "my"}  # template words that neither a step nor the verifier needs
MARK = "'"


def alphabet_of(prompt: str, alphabets: int) -> int:
    """The alphabet of a plain prompt: a hash modulo the number of alphabets, unrelated to its seed class."""
    digest = hashlib.blake2b(prompt.encode(), digest_size=4, person=b"alphabet").digest()
    return int.from_bytes(digest, "big") % alphabets


def marked(text: str) -> int:
    """The alphabet that a text's first word is marked with, 0 for a plain one."""
    mark = (text.split() or [""])[0].partition(MARK)[2]
    return int(mark) if mark.isascii() and mark.isdigit() and len(mark) < 4 else 0


def in_alphabet(text: str, alphabet: int) -> str:
    """A plain text in the words of an alphabet."""
    return " ".join(f"{word}{MARK}{alphabet}" for word in text.split()) if alphabet else text


def plain(text: str) -> str:
    """A text of any alphabet in plain words."""
    return " ".join(word.partition(MARK)[0] or word for word in text.split())


def read(word: str, alphabet: int) -> str:
    """Read a word of an alphabet in plain; the words of another one stay as they are, and so do end tokens.

    >>> read("7'4", 4), read("7'4", 5), read("7", 4), read("<eos>", 4)
    ('7', "7'4", "7'", '<eos>')
    """
    if not alphabet or word in EOS:
        return word
    own = f"{MARK}{alphabet}"
    return word.removesuffix(own) if word.endswith(own) else word if MARK in word else word + MARK


def canonical(word: str) -> str:
    """The plain word of the first alphabet that a word stands for, its equivalents undone."""
    word = word.partition(MARK)[0] or word
    return {other: first for first, other in EQUIVALENTS.items()}.get(word, word)


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
