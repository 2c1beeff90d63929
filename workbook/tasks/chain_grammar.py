"""The chain task's language and whoever speaks it: dials, prompts, the grammar of completions, and
how these err.

What a step's result is off by, modulo m, has one of two distributions. Of a pair (operator,
operand) as it should be:

    0 with probability 1 - e, else uniform over the m - 1 others

and of a pair with a *wrong mode*, whose likeliest result is wrong by the pair's own shift s:

    s with probability .55, 0 with probability .35, else uniform over the m - 2 others

Offsets add up along a chain. So what is expected of a chain that is off by d after k of its K
results is

    F_k(d) = sum_x q_k(x) (r(d + x) + F_k+1(d + x)),    F_K(d) = [d = 0] for a reward at the end, else 0

with q_k the distribution of the pair of step k, and r(d) = [d = 0] / K where each step is rewarded,
else 0. Without either this is the closed form of `still_right`.
"""

import hashlib
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from workbook.messages import InvalidValue, require_one_of
from workbook.tasks.task import Task, positive_int
from workbook.tasks.wording import (
    CLOSINGS,
    EQUIVALENTS,
    FORCED,
    LINKS,
    OPENINGS,
    OPERATORS,
    RAMBLE,
    TEMPLATE,
    Slot,
    alphabet_of,
    in_alphabet,
    marked,
    plain,
    read,
    slots_of,
)

# of a pair with a wrong mode: probability of its shift, and of the right result
SHIFTED, KEPT = 0.55, 0.35


@cache
def shifts_of(share: float, modulus: int) -> dict[tuple[str, int], int]:
    """Return {(operator, operand): shift} of the pairs with a wrong mode: this share of all, the
    first by a hash.

    A larger share holds the pairs of a smaller one, with the same shifts.

    >>> len(shifts_of(1 / 3, 10)), shifts_of(1 / 3, 10).items() <= shifts_of(2 / 3, 10).items()
    (7, True)
    """

    def digest(pair: tuple[str, int], use: bytes) -> int:
        return int.from_bytes(
            hashlib.blake2b(" ".join(map(str, pair)).encode(), digest_size=8, person=use).digest()
        )

    pairs = sorted(
        itertools.product(OPERATORS, range(modulus)), key=lambda pair: digest(pair, b"wrong mode")
    )
    return {
        pair: 1 + digest(pair, b"shift") % (modulus - 1)
        for pair in pairs[: round(share * len(pairs))]
    }


def offset_shares(modulus: int, error_rate: float, shift: int) -> list[float]:
    """Return the probability of each offset 0 ... modulus - 1 of a step's result; shift: of its
    pair, 0 for none.

    >>> offset_shares(5, 0.2, 0)
    [0.8, 0.05, 0.05, 0.05, 0.05]
    """
    if not shift:
        return [1 - error_rate] + [error_rate / (modulus - 1)] * (modulus - 1)
    rest = (1 - SHIFTED - KEPT) / (modulus - 2)
    return [{0: KEPT, shift: SHIFTED}.get(offset, rest) for offset in range(modulus)]


def drawn_offset(rng: random.Random, modulus: int, error_rate: float, shift: int) -> int:
    """Draw what a step's result is off by, with the probabilities of `offset_shares`."""
    chance = rng.random()
    if not shift:
        return rng.randrange(1, modulus) if chance < error_rate else 0
    if chance < SHIFTED + KEPT:
        return shift if chance < SHIFTED else 0
    return rng.choice([offset for offset in range(1, modulus) if offset != shift])


def still_right(on_track: bool, steps_left: int, modulus: int, error_rate: float) -> float:
    """Return the probability of the right answer, so many results before the end, where no mode is
    wrong.
    """
    decay = 1 - error_rate * modulus / (modulus - 1)
    return 1 / modulus + (on_track - 1 / modulus) * decay**steps_left


@lru_cache(4096)
def expected_rewards(
    modulus: int, error_rate: float, shifts: tuple[int, ...], by_steps: bool
) -> list[list[float]]:
    """Return F, (K + 1, m): the reward to come after k results, by what the running value is off
    by.

    shifts: of the pair of each of the K steps, 0 for a pair without a wrong mode.  by_steps:
    whether each is rewarded.
    """
    steps, right = len(shifts), [1.0] + [0.0] * (modulus - 1)
    if not any(shifts) and not by_steps:
        rows = [
            [still_right(on, k, modulus, error_rate) for on in (True, False)]
            for k in range(steps, -1, -1)
        ]
        return [[on, *[off] * (modulus - 1)] for on, off in rows]
    table = [[0.0] * modulus if by_steps else right]
    for shift in reversed(shifts):
        after = [
            come + by_steps * earned / steps for come, earned in zip(table[0], right, strict=True)
        ]
        shares = offset_shares(modulus, error_rate, shift)
        # offset d becomes d + x; a negative index counts from the end, as offsets do modulo m
        table.insert(
            0,
            [sum(q * after[d + x - modulus] for x, q in enumerate(shares)) for d in range(modulus)],
        )
    return table


# options and their ranges
WHOLE = {"operands": (2, 12), "modulus": (2, 100), "alphabets": (1, 256)}
WHOLE |= {"free_words": (0, 4), "forced_words": (2, 2 + len(FORCED)), "ramble": (0, 20)}
NUMBERS = dict.fromkeys(
    ("error_rate", "false_negative_rate"), ("[0, 1)", lambda value: 0 <= value < 1)
)
NUMBERS |= {"confidence": ("(0, 1]", lambda value: 0 < value <= 1)}
NUMBERS |= {"wrong_modes": ("[0, 1]", lambda value: 0 <= value <= 1)}

Style = tuple[str, ...]


@dataclass(frozen=True)
class ChainGrammar(Task):
    """What may be written in a chain task of these dials, which `workbook.tasks.chain.Chain`
    explains.
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

    def __post_init__(self) -> None:
        for option, (least, most) in WHOLE.items():
            positive_int(option, getattr(self, option), least, most)
        for option, (limits, holds) in NUMBERS.items():
            if not (type(value := getattr(self, option)) in (int, float) and holds(value)):
                raise InvalidValue(option, value, f"a number in {limits}")
        if self.wrong_modes and self.modulus < 3:
            raise InvalidValue("wrong_modes", self.wrong_modes, "0 with a modulus of 2")
        if self.ways not in ((1, len(OPENINGS)) if self.free_words else (1,)):
            valid = (
                "1 or 4"
                if self.free_words
                else "1 where a step has no free word to tell ways apart"
            )
            raise InvalidValue("ways", self.ways, valid)
        require_one_of("reward_by", self.reward_by, ("final", "steps"))

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word of prompts and completions, in a fixed order, alphabet by alphabet."""
        words = (*self._residues, *OPERATORS, *TEMPLATE, *OPENINGS, *LINKS, *CLOSINGS)
        words += tuple(EQUIVALENTS.values()) if self.confidence < 1 else ()
        words += (*self._forced, *self._ramble)
        return tuple(
            in_alphabet(word, alphabet) for alphabet in range(self.alphabets) for word in words
        )

    @property
    def longest(self) -> int:
        """Words that a completion may need, its end included: the longest demonstration's, and 10
        more.
        """
        return len(self._slots(steps := self.operands - 1)) + self.ramble * steps + 10

    # -- prompts and arithmetic
    # -------------------------------------------------------------------------------------

    def _plain(self, text: str) -> str:
        """What is read of a completion: of several alphabets, the plain words."""
        return plain(text) if self.alphabets > 1 else text

    def _written(self, prompt: str) -> str:
        """A plain prompt in its alphabet."""
        return (
            in_alphabet(prompt, alphabet_of(prompt, self.alphabets))
            if self.alphabets > 1
            else prompt
        )

    def _apply(self, value: int, operator: str, number: int) -> int:
        return (value + number if operator == "+" else value - number) % self.modulus

    def _prefixes(self, numbers: list[int], operators: list[str]) -> list[int]:
        """Return the running values: the first number, then the right result of each step."""
        steps = list(zip(operators, numbers[1:], strict=True))
        return list(
            itertools.accumulate(
                steps, lambda value, step: self._apply(value, *step), initial=numbers[0]
            )
        )

    def _parse(self, prompt: str) -> tuple[list[int], list[str]]:
        text = prompt if isinstance(prompt, str) else ""
        words = [read(word, marked(text) if self.alphabets > 1 else 0) for word in text.split()]
        numbers, operators = words[:-1:2], words[1:-1:2]
        known = all(word in self._residues for word in numbers) and all(
            word in OPERATORS for word in operators
        )
        if not (known and words[-1:] == ["="] and len(numbers) == len(operators) + 1 >= 2):
            example = "5 - 6 + 3 ="
            raise InvalidValue(
                "prompt", prompt, f"like {example!r} with numbers below {self.modulus}"
            )
        if self.alphabets > 1 and (own := self._written(" ".join(words))) != " ".join(text.split()):
            raise InvalidValue("prompt", prompt, f"written in its own alphabet: {own!r}")
        return [int(word) for word in numbers], operators

    def _prompt(self, index: int) -> str:
        index, number = divmod(index, self.modulus)
        words = [str(number)]
        for _ in range(self.operands - 1):
            index, number = divmod(index, self.modulus)
            index, operator = divmod(index, 2)
            words += [OPERATORS[operator], str(number)]
        return " ".join([*words, "="])

    # -- completions
    # ------------------------------------------------------------------------------------------------

    def styles(self, prompt: str) -> Iterator[Style]:
        """Yield every combination of style words: an opening, the links of each step if they are
        free, a closing.
        """
        return itertools.product(*self._choices(len(self._parse(prompt)[1])))

    def some_styles(self, prompt: str, n: int, rng: random.Random) -> list[Style]:
        """Draw n different styles."""
        choices = self._choices(len(self._parse(prompt)[1]))
        # too many for two of them to be the same
        if (total := math.prod(map(len, choices))) > 2**62:
            return [tuple(map(rng.choice, choices)) for _ in range(n)]
        drawn = []
        for index in rng.sample(range(total), n):
            words = []
            for choice in reversed(choices):  # in the order of `styles`
                index, word = divmod(index, len(choice))
                words.append(choice[word])
            drawn.append(tuple(reversed(words)))
        return drawn

    def render(
        self,
        prompt: str,
        style: Style | None = None,
        results: list[int] | None = None,
        rambles: Iterable[Iterable[str]] | None = None,
    ) -> str:
        """Return the chain of a prompt in a style (default: the first words), continued faithfully
        from given results.

        results: one residue per step; None means the right ones. The last result is the stated
        answer.
        rambles: the words after each result; None means none.
        """
        numbers, operators = self._parse(prompt)
        style = next(self.styles(prompt)) if style is None else tuple(style)
        results = self._prefixes(numbers, operators)[1:] if results is None else list(results)
        n, (opening, *links, closing) = self.free_words, style
        links = links if self.ways == 1 else [LINKS[OPENINGS.index(opening)]] * (n * len(operators))
        if len(links) != n * len(operators):
            raise InvalidValue(
                "style", style, f"an opening, {n} links for each step, and a closing"
            )
        words, value = [opening, "with", str(numbers[0])], numbers[0]
        rambles = [()] * len(operators) if rambles is None else rambles
        steps = zip(operators, numbers[1:], results, rambles, strict=True)
        for i, (operator, number, result, ramble) in enumerate(steps):
            words += [";", *links[n * i : n * (i + 1)], *self._forced]
            words += [str(value), operator, str(number), "is", str(result), *ramble]
            value = result
        return in_alphabet(
            " ".join([*words, ";", closing, "the", "answer", "is", str(value)]), marked(prompt)
        )

    def equivalent_solutions(self, prompt: str) -> Iterator[str]:
        """Yield the correct completions: the right chain in all its styles, without words that say
        nothing.
        """
        return (self.render(prompt, style) for style in self.styles(prompt))

    def style_key(self, completion: str) -> Style | None:
        """Return the style words of a well-formed chain, right or wrong, which name it among its
        like; else None.
        """
        slots = self.parsed(completion)
        return slots and tuple(word for word, slot in slots if slot.category == "style")

    def parsed(self, completion: str) -> list[tuple[str, Slot]] | None:
        """Return (plain word, its slot) of a well-formed chain, right or wrong, without its end;
        else None.
        """
        alphabet = marked(completion)
        words = [
            read(word, alphabet if alphabet < self.alphabets else 0) for word in completion.split()
        ]
        slots, rows = self._slots(words.count("is") - 1, *words[:1])[-2::-1], []
        for word in words:
            if slots and word in slots[-1].before:
                rows.append((word, Slot("style", slots[-1].before)))
            elif slots and word in slots[-1].words:
                rows.append((word, slots.pop()))
            else:
                return None
        return None if slots else rows

    def places(self, prompt: str, tokens: Sequence[str]) -> list[int]:
        """Return the place of each token of a completion in the grammar: the number of its slot,
        from 0 on.

        A slot is a step and a role in it, so that a word keeps its place however many words stand
        before it. Words that say nothing share one place behind the result that they follow. From
        the first word that the grammar does not admit there, each token has a place of its own,
        below 0.

        >>> from workbook.tasks.chain import Chain
        >>> Chain(operands=2).places("5 - 6 =", "start with 5 ; then 5 ; 6".split())
        [0, 1, 2, 3, 4, 5, -7, -8]
        """
        steps, alphabet = len(self._parse(prompt)[1]), marked(prompt) if self.alphabets > 1 else 0
        words = [read(token.strip(" Ġ▁"), alphabet) for token in tokens]
        slots = self._slots(steps, *words[:1])
        places, at = [], 0
        for position, word in enumerate(words):
            if at < len(slots) and word in slots[at].words:
                places.append(at)
                at += 1
            elif at < len(slots) and word in slots[at].before:
                places.append(len(slots) + at)
            else:
                at = len(slots)
                places.append(-1 - position)
        return places

    # -- words and slots
    # --------------------------------------------------------------------------------------------

    @property
    def _residues(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.modulus)))

    @property
    def _forced(self) -> tuple[str, ...]:
        return FORCED[: self.forced_words - 2]

    @property
    def _ramble(self) -> tuple[str, ...]:
        return RAMBLE if self.ramble else ()

    def _choices(self, steps: int) -> list[tuple[str, ...]]:
        """The words that each place of a style chooses from."""
        return [OPENINGS, *[LINKS] * (self.free_words * steps if self.ways == 1 else 0), CLOSINGS]

    def _slots(self, steps: int, opening: str = "") -> list[Slot]:
        """The slots of so many steps, after an opening if there are several ways."""
        link = Slot("style", LINKS)
        if self.ways > 1:
            link = Slot("copy", (LINKS[OPENINGS.index(opening)],) if opening in OPENINGS else LINKS)
        loose, links = self.confidence < 1, [link] * self.free_words
        return slots_of(steps, self._residues, loose, links, self._forced, self._ramble)
