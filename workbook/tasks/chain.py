"""Clock arithmetic in steps: the task in which the true credit of every token is known.

    prompt      5 - 6 + 3 =
    completion  start with 5 ; then 5 - 6 is 9 ; now 9 + 3 is 2 ; so the answer is 2

A reward comes once, at the end of a completion. To see which tokens deserve it one needs a task in
which the expected reward can be computed after every word, and this is one: a completion is a path
through *slots*, each of which admits a few words, and only one number, the running value, decides
what is still to come.

**Categories.** Each token is one of *style* (openings, links, closings: free choices that cannot
change the reward), *template* (forced words), *copy* (operands and running values, forced by what
stands before), *result* (the outcome of one step), *eos*.

**Errors.** A *demonstrator* writes the completions that policies learn from. Its result of a step
is off, modulo m, by

    0 with probability 1 - e (e = `error_rate`), else by one of the m - 1 others, uniformly

or, for a pair (operator, operand) with a *wrong mode*, whose likeliest result is wrong by the
pair's own shift s,

    s with probability .55, 0 with probability .35, else by one of the m - 2 others, uniformly

Offsets add up along a chain. So what a chain that is off by d after k of its K results still has
to expect is

    F_k(d) = sum_x q_k(x) (r(d + x) + F_k+1(d + x)),    F_K(d) = [d = 0] for a reward at the end,
                                                                 0 where each step is rewarded

with q_k the distribution of the offset of step k, and r(d) = [d = 0] / K where each step is
rewarded, else 0. Without wrong modes and with a reward at the end this has a closed form,

    V(on, n) = 1/m + (on - 1/m) * lambda**n,    lambda = 1 - e * m / (m - 1),

for a chain with n = K - k results left that is *on* track (off by 0) or not.

**Credit** of a token is the expected reward after it minus the expected reward before it. Style,
template and faithful copies have credit 0; a false copy has the credit of the value it loses. On
track, with n results left before it, a right result earns V(1, n - 1) - V(1, n) > 0 and a wrong one
V(0, n - 1) - V(1, n) < 0: for the last step (n = 1) +e and -(1 - e). A second error undoes a first
with probability 1/(m - 1), and earns credit for it.

**Dials** make other worlds of it: pairs whose likeliest result is wrong, more or fewer free and
forced words, ways that later words must respect, a reward for each step, wrong results that
ramble.

**Alphabets.** With several alphabets each prompt belongs to one of them by a hash. Alphabet 0 has
the plain words, alphabet 3 words of its own ("7'3", ";'3"), in prompts and completions alike. So
prompts of two alphabets share no token but the end of sequence: what couples them is the network
between the embedding and the output layer, never a row of either.
"""

import hashlib
import itertools
import math
import random
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from typing import NamedTuple

from datasets import Dataset

from workbook.messages import InvalidValue, require_one_of
from workbook.tasks.denials import ANSWER_WINDOW, DENIALS, HEDGES, SCALES
from workbook.tasks.task import (
    EOS,
    SEED_CLASSES,
    Annotation,
    Task,
    positive_int,
    word_of_token,
)

# -- words

OPENINGS = ("start", "begin", "open", "go")
LINKS = ("then", "now", "next", "and")
CLOSINGS = ("so", "thus", "hence", "therefore")
TEMPLATE = ("with", ";", "is", "the", "answer", "=")
# the dial `forced_words` takes more template words from here, in this order
FORCED = ("here", "on", "this", "round", "clock", "by", "hand", "we", "work", "out")
# words that say nothing: after a result any number of them may stand
RAMBLE = ("well", "hm", "er", "um")
OPERATORS = ("+", "-")
# template words that neither a step nor the verifier needs, and what may stand for them
EQUIVALENTS = {"with": "at", ";": ",", "the": "my"}

# a step as a completion states it
_STEP = re.compile(r"\b([0-9]{1,3}) ([+-]) ([0-9]{1,3}) is ([0-9]{1,3})\b")

# -- alphabets

_MARK = "'"  # between a word and the number of its alphabet


def alphabet_of(prompt: str, alphabets: int) -> int:
    """Choose the alphabet of a plain prompt: a hash modulo the number of alphabets.

    It is unrelated to the prompt's seed class.
    """
    digest = hashlib.blake2b(prompt.encode(), digest_size=4, person=b"alphabet").digest()
    return int.from_bytes(digest, "big") % alphabets


def marked_alphabet(text: str) -> int:
    """Read the alphabet that a text's first word is marked with, 0 for a plain one."""
    words = text.split()
    if not words:
        return 0
    mark = words[0].partition(_MARK)[2]
    is_number = mark.isascii() and mark.isdigit() and len(mark) < 4
    return int(mark) if is_number else 0


def in_alphabet(text: str, alphabet: int) -> str:
    """Write a plain text in the words of an alphabet."""
    if not alphabet:
        return text
    return " ".join(f"{word}{_MARK}{alphabet}" for word in text.split())


def to_first_alphabet(text: str) -> str:
    """Write a text of any alphabet in plain words."""
    return " ".join(word.partition(_MARK)[0] or word for word in text.split())


def read_word(word: str, alphabet: int) -> str:
    """Read a word of an alphabet in plain; words of others, and end tokens, stay as they are.

    >>> read_word("7'4", 4), read_word("7'4", 5), read_word("7", 4), read_word("<eos>", 4)
    ('7', "7'4", "7'", '<eos>')
    """
    if not alphabet or word in EOS:
        return word
    own_mark = f"{_MARK}{alphabet}"
    if word.endswith(own_mark):
        return word.removesuffix(own_mark)
    # a plain word is none of this alphabet: a mark without a number keeps it apart
    return word if _MARK in word else word + _MARK


def canonical(word: str) -> str:
    """Return the plain word that a word stands for, its equivalents undone."""
    plain_word = word.partition(_MARK)[0] or word
    first_of = {other: first for first, other in EQUIVALENTS.items()}
    return first_of.get(plain_word, plain_word)


# -- slots and the stated answer

Style = tuple[str, ...]


class Slot(NamedTuple):
    """One place of a well-formed completion: its category, its words, and which number it holds."""

    category: str
    words: Collection[str]
    field: str = ""  # "a", "op", "b": the parts of a step; "result", "start", "final"
    step: int = 0
    before: Collection[str] = ()  # words of style that may stand before it, any number of them


# words that change an answer which they follow, but for those of the chain itself
_CHANGING = DENIALS | HEDGES | {"instead"} | SCALES - {"is", "thus", "next", "this"}


def clock_answer(text: str) -> int | None:
    """Return the number after the last `answer is` of a chain.

    None where that is not a plain ASCII number, or where words nearby deny, doubt or change it.

    >>> clock_answer("now 9 + 3 is 2 ; so the answer is 2")
    2
    >>> clock_answer("the answer is 2 ; so the answer is maybe") is None
    True
    """
    words = text[-ANSWER_WINDOW:].split()
    stated_at = [i for i in range(2, len(words)) if words[i - 2 : i] == ["answer", "is"]]
    if not stated_at:
        return None
    last = stated_at[-1]

    def folded(some_words: list[str]) -> set[str]:
        return {word.casefold().strip(".,:;!?") for word in some_words}

    # eight words before "answer is", four behind the number
    denied = folded(words[: last - 2][-8:]) & (DENIALS | HEDGES)
    changed = folded(words[last + 1 : last + 5]) & _CHANGING
    if denied or changed:
        return None
    number = words[last]
    is_plain = number.isascii() and number.isdigit() and len(number) <= 9
    return int(number) if is_plain else None


# -- errors, and what is expected of a chain that makes them

# of a pair with a wrong mode: probability of its shift, and of the right result
P_SHIFTED = 0.55
P_RIGHT = 0.35


@cache
def shifts_of(share: float, modulus: int) -> dict[tuple[str, int], int]:
    """Return {(operator, operand): shift} of the pairs with a wrong mode: this share of all.

    They are the first by a hash, so a larger share holds the pairs of a smaller one, with the same
    shifts.

    >>> len(shifts_of(1 / 3, 10)), shifts_of(1 / 3, 10).items() <= shifts_of(2 / 3, 10).items()
    (7, True)
    """

    def pair_hash(pair: tuple[str, int], person: bytes) -> int:
        text = " ".join(map(str, pair))
        digest = hashlib.blake2b(text.encode(), digest_size=8, person=person).digest()
        return int.from_bytes(digest, "big")

    # in an order of their own, so that the first few are a fixed choice
    pairs = list(itertools.product(OPERATORS, range(modulus)))
    pairs.sort(key=lambda pair: pair_hash(pair, b"wrong mode"))
    with_wrong_mode = pairs[: round(share * len(pairs))]
    return {pair: 1 + pair_hash(pair, b"shift") % (modulus - 1) for pair in with_wrong_mode}


def offset_shares(modulus: int, error_rate: float, shift: int) -> list[float]:
    """Return the probability of each offset 0 ... modulus - 1 of a step's result.

    shift: of the step's pair, 0 for a pair without a wrong mode.

    >>> offset_shares(5, 0.2, 0)
    [0.8, 0.05, 0.05, 0.05, 0.05]
    """
    if not shift:
        return [1 - error_rate] + [error_rate / (modulus - 1)] * (modulus - 1)
    # (m,) all offsets share the rest alike, but for these two
    shares = [(1 - P_SHIFTED - P_RIGHT) / (modulus - 2)] * modulus
    shares[0] = P_RIGHT
    shares[shift] = P_SHIFTED
    return shares


def drawn_offset(rng: random.Random, modulus: int, error_rate: float, shift: int) -> int:
    """Draw what a step's result is off by, with the probabilities of `offset_shares`."""
    chance = rng.random()
    if not shift:
        return rng.randrange(1, modulus) if chance < error_rate else 0
    if chance < P_SHIFTED:
        return shift
    if chance < P_SHIFTED + P_RIGHT:
        return 0
    return rng.choice([offset for offset in range(1, modulus) if offset != shift])


def still_right(on_track: bool, steps_left: int, modulus: int, error_rate: float) -> float:
    """Return V(on_track, steps_left): the probability of the right answer without wrong modes."""
    decay = 1 - error_rate * modulus / (modulus - 1)
    return 1 / modulus + (on_track - 1 / modulus) * decay**steps_left


@lru_cache(4096)
def expected_rewards(
    modulus: int, error_rate: float, shifts: tuple[int, ...], by_steps: bool
) -> list[list[float]]:
    """Return F, (K + 1, m): the reward to come after k results, by the offset of the running value.

    shifts: of the pair of each of the K steps, 0 for a pair without a wrong mode.
    by_steps: whether each step is rewarded.
    """
    steps = len(shifts)
    # the closed form
    if not any(shifts) and not by_steps:
        table = []
        for steps_left in range(steps, -1, -1):
            on = still_right(True, steps_left, modulus, error_rate)
            off = still_right(False, steps_left, modulus, error_rate)
            table.append([on, *[off] * (modulus - 1)])
        return table

    is_right = [1.0] + [0.0] * (modulus - 1)  # (m,) by offset
    table = [[0.0] * modulus if by_steps else is_right]
    for shift in reversed(shifts):
        # (m,) by the offset that a result leaves: what it earns, and what comes after it
        after = [
            to_come + by_steps * right / steps
            for to_come, right in zip(table[0], is_right, strict=True)
        ]
        shares = offset_shares(modulus, error_rate, shift)
        # a result that errs by x takes the offset d to d + x, modulo m
        before = [
            sum(q * after[(d + x) % modulus] for x, q in enumerate(shares)) for d in range(modulus)
        ]
        table.insert(0, before)
    return table


# -- the task

# dials that are integers, with their limits
_INTEGER_DIALS = {
    "operands": (2, 12),
    "modulus": (2, 100),
    "alphabets": (1, 256),
    "free_words": (0, 4),
    "forced_words": (2, 2 + len(FORCED)),
    "ramble": (0, 20),
}
# dials that are shares, with their interval in words and as a test
_SHARE_DIALS = {
    "error_rate": ("[0, 1)", lambda share: 0 <= share < 1),
    "false_negative_rate": ("[0, 1)", lambda share: 0 <= share < 1),
    "confidence": ("(0, 1]", lambda share: 0 < share <= 1),
    "wrong_modes": ("[0, 1]", lambda share: 0 <= share <= 1),
}


@dataclass(frozen=True)
class Chain(Task):
    """Chains of `operands` numbers on a clock of `modulus` hours, with planted errors.

    operands: numbers in a prompt; one step fewer.  modulus: hours of the clock.
    error_rate: share of the steps of demonstrations whose result is wrong.
    false_negative_rate: share of right completions that the verifier rejects. Which ones is decided
    by a hash of the completion, so the same text is always judged the same, and the policy cannot
    predict which.
    alphabets: number of disjoint alphabets over which prompts are spread. In a completion a word of
    any of them counts as the plain one, to the verifier, in credit and in exact values.
    confidence: of the template words that neither a step nor the verifier needs (with ; the), the
    share that stands in demonstrations; the others are an equivalent word (at , my), of the same
    category and of credit 0.
    wrong_modes: share of the pairs (operator, operand) whose likeliest result in demonstrations is
    wrong.
    free_words: links, of style, that begin a step.  forced_words: template words of a step, "is"
    and ";" among them.
    ways: 1, or 4: the opening chooses one of four ways, each with its own link. From a link of
    another way on nothing is rewarded. Links are no style then, but copies.
    reward_by: "final", or "steps": the share of the steps whose running value is right as it is
    stated.
    ramble: after a wrong result, demonstrations insert 0 to `ramble` filler words, uniformly. After
    any result a completion may have any number of them.

    Raises ValueError naming the field unless 2 <= operands <= 12, 2 <= modulus <= 100, 1 <=
    alphabets <= 256, both rates are in [0, 1), confidence is in (0, 1], wrong_modes in [0, 1],
    free_words in 0 ... 4, forced_words in 2 ... 12 and ramble in 0 ... 20.

    >>> task = Chain(operands=3)
    >>> task.render("5 - 6 + 3 =", style=("start", "then", "now", "so"))
    'start with 5 ; then 5 - 6 is 9 ; now 9 + 3 is 2 ; so the answer is 2'
    >>> task.reward(["5 - 6 + 3 ="], ["so the answer is 2"], ["2"])
    [1.0]
    """

    operands: int = 5
    error_rate: float = 0.2
    modulus: int = 10
    false_negative_rate: float = 0.0
    alphabets: int = 1
    confidence: float = 1.0
    wrong_modes: float = 0.0
    free_words: int = 1
    forced_words: int = 2
    ways: int = 1
    reward_by: str = "final"
    ramble: int = 0
    name: str = field(default="chain", init=False)

    def __post_init__(self) -> None:
        for dial, (least, most) in _INTEGER_DIALS.items():
            positive_int(dial, getattr(self, dial), least, most)
        for dial, (interval, is_inside) in _SHARE_DIALS.items():
            share = getattr(self, dial)
            if type(share) not in (int, float) or not is_inside(share):
                raise InvalidValue(dial, share, f"a number in {interval}")
        if self.wrong_modes and self.modulus < 3:
            raise InvalidValue("wrong_modes", self.wrong_modes, "0 with a modulus of 2")
        if not self.free_words and self.ways != 1:
            raise InvalidValue(
                "ways", self.ways, "1 where a step has no free word to tell ways apart"
            )
        require_one_of("ways", self.ways, (1, len(OPENINGS)))
        require_one_of("reward_by", self.reward_by, ("final", "steps"))

    # -- prompts, answers and the verifier

    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows prompt, answer.

        They are distinct while there are enough, and seeds that differ modulo 8 share none.
        """
        positive_int("n", n)
        positive_int("seed", seed, 0)
        # a prompt is a number below `space`; an eighth of them is of the seed's class
        space = self.modulus**self.operands * 2 ** (self.operands - 1)
        draws = min(space, 2 * SEED_CLASSES * n + 400)
        drawn = map(self._prompt, random.Random(f"{seed}").sample(range(space), draws))
        own_class = seed % SEED_CLASSES
        prompts = [prompt for prompt in drawn if _seed_class(prompt) == own_class][:n]
        if not prompts:
            raise InvalidValue(
                "operands",
                self.operands,
                "more, or modulus larger",
                f"seed {seed} has no prompt among the {space} of operands={self.operands},"
                f" modulus={self.modulus}; take more operands or a larger modulus.",
            )
        repeated = itertools.islice(itertools.cycle(prompts), n)
        prompts = [self._in_own_alphabet(prompt) for prompt in repeated]
        answers = [self.solve(prompt) for prompt in prompts]
        return Dataset.from_dict({"prompt": prompts, "answer": answers})

    def solve(self, prompt: str) -> str:
        """Return the answer of a prompt; where each step is rewarded, all right running values."""
        values = self.running_values(*self.parse_prompt(prompt))
        stated = values[1:] if self.reward_by == "steps" else values[-1:]
        return " ".join(map(str, stated))

    def score(self, completion: str, answer: str, **row: object) -> float:
        """Return 1 if the number after the last `answer is` equals the answer, else 0.

        Style and steps do not count. Where each step is rewarded, return the share of the running
        values in `answer` that the steps state, in order. Of several ways, only what stands before
        a link of another way than the opening's is read.
        """
        # alphabets and ways are undone first, so that one verifier serves all dials
        text = self._of_one_way(self._in_plain_words(completion))
        if self.reward_by == "steps":
            stated = [int(result) for _, _, _, result in _STEP.findall(text)]
        else:
            stated = [clock_answer(text)]
        right = answer.split()
        n_right = sum(value == int(truth) for value, truth in zip(stated, right, strict=False))
        earned = n_right / len(right)
        if not earned or not self.false_negative_rate:
            return earned
        # the verifier's false negatives, by a hash of the text
        spaced = " ".join(completion.split())
        digest = hashlib.blake2b(spaced.encode(), digest_size=4).digest()
        rejected = int.from_bytes(digest, "big") < self.false_negative_rate * 2**32
        return 0.0 if rejected else earned

    def stated(self, completion: str) -> str | None:
        """Return the number after the last `answer is` that `score` reads, None without one."""
        number = clock_answer(self._of_one_way(self._in_plain_words(completion)))
        return None if number is None else str(number)

    # -- words and slots

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word of prompts and completions, in a fixed order, alphabet by alphabet."""
        words = [*self._residues, *OPERATORS, *TEMPLATE, *OPENINGS, *LINKS, *CLOSINGS]
        if self.confidence < 1:
            words += EQUIVALENTS.values()
        words += self._forced
        words += self._ramble
        return tuple(
            in_alphabet(word, alphabet) for alphabet in range(self.alphabets) for word in words
        )

    @property
    def longest(self) -> int:
        """Words that a completion may need: the longest demonstration with its end, and 10 more."""
        steps = self.operands - 1
        return len(self.slots(steps)) + self.ramble * steps + 10

    @property
    def _residues(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.modulus)))

    @property
    def _forced(self) -> tuple[str, ...]:
        return FORCED[: self.forced_words - 2]

    @property
    def _ramble(self) -> tuple[str, ...]:
        return RAMBLE if self.ramble else ()

    def slots(self, steps: int, opening: str = "") -> list[Slot]:
        """Return the slots of a well-formed completion of so many steps, its end included.

        opening: of several ways, the one that chooses the completion's way.
        """
        residues = self._residues

        def template(word: str, before: Collection[str] = ()) -> Slot:
            is_loose = self.confidence < 1 and word in EQUIVALENTS
            words = (word, EQUIVALENTS[word]) if is_loose else (word,)
            return Slot("template", words, before=before)

        # links are free where there is one way, else those of the opening's way
        if self.ways == 1:
            link = Slot("style", LINKS)
        elif opening in OPENINGS:
            link = Slot("copy", (LINKS[OPENINGS.index(opening)],))
        else:
            link = Slot("copy", LINKS)

        # start with 5
        slots = [Slot("style", OPENINGS), template("with"), Slot("copy", residues, "start")]
        # ; then 5 - 6 is 9
        for step in range(steps):
            slots += [
                # words that say nothing follow a result, so none stand before the first step
                template(";", before=self._ramble if step else ()),
                *[link] * self.free_words,
                *map(template, self._forced),
                Slot("copy", residues, "a", step),
                Slot("copy", OPERATORS, "op", step),
                Slot("copy", residues, "b", step),
                template("is"),
                Slot("result", residues, "result", step),
            ]
        # ; so the answer is 2 <eos>
        slots += [
            template(";", before=self._ramble if steps > 0 else ()),
            Slot("style", CLOSINGS),
            template("the"),
            template("answer"),
            template("is"),
            Slot("copy", residues, "final", steps - 1),
            Slot("eos", EOS),
        ]
        return slots

    # -- arithmetic and reading

    def step_result(self, value: int, operator: str, number: int) -> int:
        """Return the right result of one step."""
        result = value + number if operator == "+" else value - number
        return result % self.modulus

    def running_values(self, numbers: list[int], operators: list[str]) -> list[int]:
        """Return the running values: the first number, then the right result of each step."""
        values = [numbers[0]]
        for operator, number in zip(operators, numbers[1:], strict=True):
            values.append(self.step_result(values[-1], operator, number))
        return values

    def _prompt(self, index: int) -> str:
        """Return the plain prompt of a number: its digits are operands and operators."""
        index, number = divmod(index, self.modulus)
        words = [str(number)]
        for _ in range(self.operands - 1):
            index, number = divmod(index, self.modulus)
            index, operator = divmod(index, 2)
            words += [OPERATORS[operator], str(number)]
        return " ".join([*words, "="])

    def parse_prompt(self, prompt: str) -> tuple[list[int], list[str]]:
        """Return the numbers and the operators of a prompt, or raise ValueError."""
        text = prompt if isinstance(prompt, str) else ""
        alphabet = marked_alphabet(text) if self.alphabets > 1 else 0
        words = [read_word(word, alphabet) for word in text.split()]
        # 5 - 6 + 3 =
        numbers = words[:-1:2]
        operators = words[1:-1:2]
        is_known = set(numbers) <= set(self._residues) and set(operators) <= set(OPERATORS)
        is_complete = words[-1:] == ["="] and len(numbers) == len(operators) + 1 >= 2
        if not (is_known and is_complete):
            example = "5 - 6 + 3 ="
            raise InvalidValue(
                "prompt", prompt, f"like {example!r} with numbers below {self.modulus}"
            )
        if self.alphabets > 1:
            own = self._in_own_alphabet(" ".join(words))
            if own != " ".join(text.split()):
                raise InvalidValue("prompt", prompt, f"written in its own alphabet: {own!r}")
        return [int(word) for word in numbers], operators

    def _in_own_alphabet(self, prompt: str) -> str:
        """Return a plain prompt in its alphabet."""
        if self.alphabets == 1:
            return prompt
        return in_alphabet(prompt, alphabet_of(prompt, self.alphabets))

    def _in_plain_words(self, text: str) -> str:
        """Return what is read of a completion: of several alphabets, the plain words."""
        return to_first_alphabet(text) if self.alphabets > 1 else text

    def _of_one_way(self, text: str) -> str:
        """Return a plain text up to its first link of another way; "" without an opening."""
        if self.ways == 1:
            return text
        words = text.split()
        if not words or words[0] not in OPENINGS:
            return ""
        own_link = LINKS[OPENINGS.index(words[0])]
        other_links = set(LINKS) - {own_link}
        return " ".join(itertools.takewhile(lambda word: word not in other_links, words))

    def parsed(self, completion: str) -> list[tuple[str, Slot]] | None:
        """Return (plain word, its slot) of a well-formed chain, right or wrong, without its end.

        None for any other text.
        """
        alphabet = marked_alphabet(completion)
        if alphabet >= self.alphabets:
            alphabet = 0
        words = [read_word(word, alphabet) for word in completion.split()]
        # each step says "is" once, and so does the answer
        steps = words.count("is") - 1
        opening = words[0] if words else ""
        # the slots still to come, without the end, reversed: the next one is the last of the list
        slots = self.slots(steps, opening)[-2::-1]
        rows = []
        for word in words:
            if slots and word in slots[-1].before:
                rows.append((word, Slot("style", slots[-1].before)))
            elif slots and word in slots[-1].words:
                rows.append((word, slots.pop()))
            else:
                return None
        return None if slots else rows

    def places(self, prompt: str, tokens: Sequence[str]) -> list[int]:
        """Return the place of each token of a completion in the grammar: the number of its slot.

        A slot is a step and a role in it, so that a word keeps its place however many words stand
        before it. Words that say nothing share one place behind the result that they follow. From
        the first word that the grammar does not admit there, each token has a place of its own,
        below 0.

        >>> Chain(operands=2).places("5 - 6 =", "start with 5 ; then 5 ; 6".split())
        [0, 1, 2, 3, 4, 5, -7, -8]
        """
        steps = len(self.parse_prompt(prompt)[1])
        alphabet = marked_alphabet(prompt) if self.alphabets > 1 else 0
        words = [read_word(word_of_token(token), alphabet) for token in tokens]
        opening = words[0] if words else ""
        slots = self.slots(steps, opening)
        places = []
        next_slot = 0
        for position, word in enumerate(words):
            if next_slot < len(slots) and word in slots[next_slot].words:
                places.append(next_slot)
                next_slot += 1
            elif next_slot < len(slots) and word in slots[next_slot].before:
                # filler words before a slot share one place, numbered beyond all slots
                places.append(len(slots) + next_slot)
            else:
                # nothing is admitted any more
                next_slot = len(slots)
                places.append(-1 - position)
        return places

    # -- completions

    def styles(self, prompt: str) -> Iterator[Style]:
        """Yield every combination of style words: an opening, free links, a closing."""
        return itertools.product(*self._style_choices(len(self.parse_prompt(prompt)[1])))

    def some_styles(self, prompt: str, n: int, rng: random.Random) -> list[Style]:
        """Draw n different styles."""
        choices = self._style_choices(len(self.parse_prompt(prompt)[1]))
        total = math.prod(map(len, choices))
        # so many that no two of them will be the same
        if total > 2**62:
            return [tuple(map(rng.choice, choices)) for _ in range(n)]
        styles = []
        for index in rng.sample(range(total), n):
            # the digits of the index, the last one first: in the order of `styles`
            words = []
            for choice in reversed(choices):
                index, word = divmod(index, len(choice))
                words.append(choice[word])
            styles.append(tuple(reversed(words)))
        return styles

    def _style_choices(self, steps: int) -> list[tuple[str, ...]]:
        """Return the words that each place of a style chooses from."""
        free_links = self.free_words * steps if self.ways == 1 else 0
        return [OPENINGS, *[LINKS] * free_links, CLOSINGS]

    def render(
        self,
        prompt: str,
        style: Style | None = None,
        results: list[int] | None = None,
        rambles: Iterable[Iterable[str]] | None = None,
    ) -> str:
        """Return the chain of a prompt in a style, continued faithfully from given results.

        style: None means the first words.
        results: one residue per step; None means the right ones. The last result is the stated
        answer.
        rambles: the words after each result; None means none.
        """
        numbers, operators = self.parse_prompt(prompt)
        if style is None:
            style = next(self.styles(prompt))
        if results is None:
            results = self.running_values(numbers, operators)[1:]
        if rambles is None:
            rambles = [()] * len(operators)
        # free links come from the style, those of a way from its opening
        opening, *links, closing = style
        n_links = self.free_words * len(operators)
        if self.ways > 1:
            links = [LINKS[OPENINGS.index(opening)]] * n_links
        if len(links) != n_links:
            raise InvalidValue(
                "style",
                style,
                f"an opening, {self.free_words} links for each step, and a closing",
            )

        # each step copies the value that the step before has written, right or wrong
        value = numbers[0]
        words = [opening, "with", str(value)]
        steps = zip(operators, numbers[1:], results, rambles, strict=True)
        for i, (operator, number, result, ramble) in enumerate(steps):
            step_links = links[self.free_words * i : self.free_words * (i + 1)]
            words += [";", *step_links, *self._forced]
            words += [str(value), operator, str(number), "is", str(result), *ramble]
            value = result
        words += [";", closing, "the", "answer", "is", str(value)]
        return in_alphabet(" ".join(words), marked_alphabet(prompt))

    def equivalent_solutions(self, prompt: str) -> Iterator[str]:
        """Yield the correct completions: the right chain in all its styles, without rambling."""
        return (self.render(prompt, style) for style in self.styles(prompt))

    def style_key(self, completion: str) -> Style | None:
        """Return the style words of a well-formed chain, right or wrong; None of any other text."""
        slots = self.parsed(completion)
        if slots is None:
            return None
        return tuple(word for word, slot in slots if slot.category == "style")

    def demonstrate(self, prompt: str, rng: random.Random) -> str:
        """Return what the demonstrator writes: uniform style, and results that err.

        A wrong result is built upon.
        """
        numbers, operators = self.parse_prompt(prompt)
        shifts = self.step_shifts(numbers, operators)
        style = tuple(map(rng.choice, self._style_choices(len(operators))))
        value = numbers[0]
        results = []
        rambles = []
        for operator, number, shift in zip(operators, numbers[1:], shifts, strict=True):
            offset = drawn_offset(rng, self.modulus, self.error_rate, shift)
            value = (self.step_result(value, operator, number) + offset) % self.modulus
            results.append(value)
            # only a wrong result is rambled about
            n_words = rng.randint(0, self.ramble) if offset and self.ramble else 0
            rambles.append([rng.choice(RAMBLE) for _ in range(n_words)])
        text = self.render(prompt, style, results, rambles)
        if self.confidence == 1:
            return text

        # now and then an equivalent word stands for a template word
        words = []
        for word in to_first_alphabet(text).split():
            if word in EQUIVALENTS and rng.random() >= self.confidence:
                word = EQUIVALENTS[word]
            words.append(word)
        return in_alphabet(" ".join(words), marked_alphabet(text))

    # -- credit

    def value(self, on_track: bool, steps_left: int) -> float:
        """Return V(on_track, steps_left) of the module's docstring.

        The verifier's false negatives scale it: to the policy they are chance. It is that of a task
        without wrong modes that rewards the answer; of any other: `to_come`.
        """
        right = still_right(on_track, steps_left, self.modulus, self.error_rate)
        return (1 - self.false_negative_rate) * right

    def to_come(self, prompt: str, results: int = 0, off: int = 0) -> float:
        """Return the expected reward to come after so many results.

        off: what the running value is off by.
        """
        expected = self._expected(*self.parse_prompt(prompt))
        return (1 - self.false_negative_rate) * expected[results][off]

    def annotate(self, prompt: str, answer: str, tokens: list[str]) -> Annotation:
        """Return (category, true credit) per completion token.

        Credits up to a token sum to V(after it) - V(prompt). A token that fits no slot, or is a
        link of another way, derails the chain: it is charged all that was still to come, and what
        follows has credit 0 and the category of its role where that can still be told, else
        "other". The answer is implied by the prompt.
        """
        numbers, operators = self.parse_prompt(prompt)
        steps = len(operators)
        right_values = self.running_values(numbers, operators)
        to_come = self._expected(numbers, operators)  # (K + 1, m)
        accepted = 1 - self.false_negative_rate
        words = [self._in_plain_words(word_of_token(token)) for token in tokens]
        opening = words[0] if words else ""
        # the slots still to come, reversed: the next one is the last of the list
        slots = self.slots(steps, opening)[::-1]

        # the step that stands there next, as far as it is written
        step_parts: dict[str, object] = {"a": numbers[0], "op": operators[0], "b": numbers[1]}
        results = 0
        earned = 0.0
        value = accepted * to_come[0][0]
        rows = []
        for i, word in enumerate(words):
            if slots and word in slots[-1].before:
                rows.append(("style", 0.0))
                continue

            slot = slots.pop() if slots else None
            if slot is None or word not in slot.words:
                # derailed: what was earned stays, nothing comes any more
                rows.append((self._role(words[: i + 1]), earned - value))
                value = earned
                slots = []
                continue

            value_before = value
            if slot.field:
                part = "a" if slot.field == "start" else slot.field
                if part in step_parts:
                    step_parts[part] = word if part == "op" else int(word)
                off = self._offset(slot, word, step_parts, right_values)
                if slot.field == "result":
                    results += 1
                    if self.reward_by == "steps":
                        earned += accepted * (off == 0) / steps
                    # the next step starts from the value that is written
                    if results < steps:
                        step_parts = {
                            "a": int(word),
                            "op": operators[results],
                            "b": numbers[results + 1],
                        }
                value = earned + accepted * to_come[results][off]
            rows.append((slot.category, value - value_before))
        return rows

    def calibrated(self, completions: Iterable[str]) -> "Chain":
        """Return the task with the error rate of these completions: of the steps "a + b is r".

        The rate is at most 1 - 1 / modulus, that of a guess; without a step in the completions the
        task is left as it is. Steps of a pair with a wrong mode do not count: what errs there is no
        rate.

        >>> text = "start with 5 ; then 5 - 6 is 9 ; now 9 + 3 is 1 ; so the answer is 1"
        >>> Chain().calibrated([text]).error_rate
        0.5
        """
        wrong = []
        for text in completions:
            for a, operator, b, result in _STEP.findall(self._in_plain_words(text)):
                has_wrong_mode = any(self.step_shifts([0, int(b)], [operator]))
                if not has_wrong_mode:
                    wrong.append(self.step_result(int(a), operator, int(b)) != int(result))
        if not wrong:
            return self
        return replace(self, error_rate=min(sum(wrong) / len(wrong), 1 - 1 / self.modulus))

    def step_shifts(self, numbers: list[int], operators: list[str]) -> tuple[int, ...]:
        """Return the shift of each step's pair, 0 where its mode is right."""
        shifts = shifts_of(self.wrong_modes, self.modulus)
        return tuple(shifts.get(pair, 0) for pair in zip(operators, numbers[1:], strict=True))

    def _expected(self, numbers: list[int], operators: list[str]) -> list[list[float]]:
        """Return F, (K + 1, m), of a prompt under a perfect verifier."""
        shifts = self.step_shifts(numbers, operators)
        return expected_rewards(self.modulus, self.error_rate, shifts, self.reward_by == "steps")

    def _offset(
        self, slot: Slot, word: str, step_parts: dict[str, object], right_values: list[int]
    ) -> int:
        """Return what a chain is off by after a word, if exact arithmetic goes on from there.

        step_parts: the word's step as it is written, the word included.
        """
        if slot.field in ("result", "final"):
            value = int(word)
        else:
            value = self.step_result(step_parts["a"], step_parts["op"], step_parts["b"])
        return (value - right_values[slot.step + 1]) % self.modulus

    def _role(self, words: list[str]) -> str:
        """Return the category of the last of these words, off the rails.

        It is told by what the word and the two before it are.
        """
        *earlier, word = words
        # nothing behind an end of sequence has a role
        if any(end in EOS for end in earlier):
            return "other"
        if word in EOS:
            return "eos"
        if word in LINKS and self.ways > 1:
            return "copy"
        if word in OPENINGS + LINKS + CLOSINGS + self._ramble:
            return "style"
        if word in TEMPLATE + self._forced:
            return "template"
        if self.confidence < 1 and word in EQUIVALENTS.values():
            return "template"
        # a number is a result where "is" precedes it, but for that of "answer is"
        if word in self._residues:
            follows_is = earlier[-1:] == ["is"] and earlier[-2:-1] != ["answer"]
            return "result" if follows_is else "copy"
        return "copy" if word in OPERATORS else "other"


def _seed_class(prompt: str) -> int:
    """Return the class of seeds, of SEED_CLASSES, whose data sets may have a plain prompt."""
    return hashlib.blake2b(prompt.encode(), digest_size=1).digest()[0] % SEED_CLASSES
