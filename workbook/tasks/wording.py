"""Words: those and the grammar of the chain task, and those that deny, doubt or scale an answer.

In a chain task of k alphabets each prompt belongs to one of them by a hash. Alphabet 0 has the
plain words, alphabet 3 words of its own ("7'3", ";'3"), in prompts and completions alike. So
prompts of two alphabets share no token but the end of sequence: what couples them is the network
between the embedding and the output layer, never a row of either.
"""

import hashlib
import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

OPENINGS = ("start", "begin", "open", "go")
LINKS = ("then", "now", "next", "and")
CLOSINGS = ("so", "thus", "hence", "therefore")
TEMPLATE = ("with", ";", "is", "the", "answer", "=")
# more of it, in that order
FORCED = ("here", "on", "this", "round", "clock", "by", "hand", "we", "work", "out")
RAMBLE = ("well", "hm", "er", "um")  # after a result, any number of them
OPERATORS = ("+", "-")
EOS = ("<eos>", "</s>", "<|im_end|>", "<|endoftext|>")
# template words that neither a step nor the verifier needs
EQUIVALENTS = {"with": "at", ";": ",", "the": "my"}
MARK = "'"


def alphabet_of(prompt: str, alphabets: int) -> int:
    """The alphabet of a plain prompt: a hash modulo the number of alphabets, unrelated to its seed
    class.
    """
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
    """Read a word of an alphabet in plain; the words of another one stay as they are, and so do end
    tokens.

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
    """One place of a well-formed completion: its category, the words it admits, and which number it
    holds.
    """

    category: str
    words: Collection[str]
    field: str = ""  # "a", "op", "b": the parts of a step; "result", "start", "final"
    step: int = 0
    before: Collection[str] = ()  # words of style that may stand before it, any number of them


def slots_of(
    steps: int,
    residues: tuple[str, ...],
    loose: bool = False,
    links: Sequence[Slot] = (Slot("style", LINKS),),
    forced: Collection[str] = (),
    ramble: Collection[str] = (),
) -> list[Slot]:
    """Return the slots of a well-formed completion of so many steps, EOS included: 7 per step and
    10 more.

    loose: whether template words with an equivalent admit that, too.  links: how a step
    begins.  forced: template words after those.  ramble: words that may follow a result.
    """
    with_, semicolon, the = (
        (word, EQUIVALENTS[word]) if loose else (word,) for word in ("with", ";", "the")
    )
    slots = [Slot("style", OPENINGS), Slot("template", with_), Slot("copy", residues, "start")]
    for step in range(steps):
        slots.append(Slot("template", semicolon, before=ramble if step else ()))
        slots += [
            *links,
            *(Slot("template", (word,)) for word in forced),
            Slot("copy", residues, "a", step),
        ]
        slots += [
            Slot("copy", OPERATORS, "op", step),
            Slot("copy", residues, "b", step),
            Slot("template", ("is",)),
        ]
        slots.append(Slot("result", residues, "result", step))
    slots += [
        Slot("template", semicolon, before=ramble if steps > 0 else ()),
        Slot("style", CLOSINGS),
    ]
    slots += [Slot("template", words) for words in (the, ("answer",), ("is",))]
    return [*slots, Slot("copy", residues, "final", steps - 1), Slot("eos", EOS)]


# -- denials, hedges and scales, and the verifier of the chain task, which knows them
# ----------------------------------

WINDOW = 2000  # characters: an answer is looked for in this much of the end of a completion


def vocabulary(words: str) -> frozenset[str]:
    """Return the set of the words of a text."""
    return frozenset(words.split())


DENIALS = vocabulary("""
    not no nor never neither none nobody nothing nowhere cannot cant isnt aint wasnt dont doesnt didnt wont hardly
    scarcely false wrong wrongly incorrect incorrectly untrue unlikely impossible invalid deny denies denied doubt
    doubts doubtful doubted refute refuted reject rejected lie lies fake bogus mistake mistaken mistakenly error
    erroneous without except excluding other opposite contrary anything unlike nope nah negation far fails failed
    kidding joke joking pretend disagree rule ruled lacks misses errs overestimates underestimates contradicts violates
    disagrees differs overshoots undershoots sans seldom rarely barely
    """)
HEDGES = vocabulary("""
    or either maybe perhaps possibly possible probably presumably might may could if unless whether alternatively
    versus vs guess guesses guessing suppose supposing assume assuming imagine say says said claim claims claimed
    someone somebody alleged allegedly supposedly unsure uncertain unclear unknown depends between among unlikely
    hypothetically theoretically ironically sarcastically somewhere roughly approximately approx around nearly almost
    circa about rather
    """)
REFUTATIONS = vocabulary("wrong incorrect false mistaken untrue instead bogus fake")
SCALES = vocabulary("""
    hundred hundreds thousand thousands million millions billion billions trillion trillions dozen dozens score scores
    lakh lakhs crore crores gross half halves third thirds fourth fourths fifth fifths sixth sixths seventh sevenths
    eighth eighths ninth ninths tenth tenths twentieth twentieths hundredth hundredths thousandth thousandths millionth
    millionths tens twice thrice double triple quadruple times fold squared cubed square cube root roots power powers
    percent percents percentage percentages permille factorial reciprocal inverse opposite negative negated minus plus
    modulo mod log logarithm sine cosine tangent point pi squares cubes inverses opposites negatives complement
    previous next first second last former latter is was has does goes less unless yes this thus its us as multiples
    factors divisors digits decimals exponents bits radians pairs couples trios couple pair am pm zeros zeroes ones
    twos threes fours fives sixes sevens eights nines elevens missing short off away
    """)
# just after a chain's answer
CHANGING = DENIALS | HEDGES | REFUTATIONS | SCALES - {"is", "thus", "next", "this"}


def words_of(text: str) -> list[str]:
    """Return the words of a text, folded but for the month of May; a contracted "n't" is the word
    "not".
    """
    text = re.sub(r"n't\b", " not", text.replace("&nbsp;", " "))
    return [word if word == "May" else word.casefold() for word in re.findall(r"[^\W\d_]+", text)]


def clock_answer(text: str) -> int | None:
    """Return the number after the last `answer is` of a chain, None where that is not a plain ASCII
    number, alone.

    >>> clock_answer("now 9 + 3 is 2 ; so the answer is 2"), clock_answer("the answer is 2 ; so the answer is maybe")
    (2, None)
    """
    words = text[-WINDOW:].split()
    for i in range(len(words) - 2, 0, -1):
        if words[i - 1 : i + 1] == ["answer", "is"]:
            before, after = (
                {word.casefold().strip(".,:;!?") for word in part}
                for part in (words[: i - 1][-8:], words[i + 2 : i + 6])
            )
            changed = before & (DENIALS | HEDGES) or after & CHANGING
            word = words[i + 1]
            return (
                int(word)
                if word.isascii() and word.isdigit() and len(word) <= 9 and not changed
                else None
            )
    return None
