"""Sums of two two-digit numbers, said in a sentence: a world for small language models.

A model that speaks English can start to learn it, and every token's credit is still known.

    37 + 45 =              So the total is 82.

Opening, noun and verb are *style*, of which the reward never asks; digits are *results*; all else
is *template*. Where ones carry, the demonstrator mostly forgets the carry (72), so that the
likeliest answer of such a prompt is wrong; and now and then one digit is any other. With `ramble`
it leads up to a wrong answer by hedges: So the total is perhaps, nearly, 72.

A token's credit is that of the demonstrator: its chance of the right answer behind the digits so
far, minus the chance before. With `ramble` credit is None, as earlier words tell there.
"""

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from datasets import Dataset

from workbook.tasks.task import (
    EOS,
    SEED_CLASSES,
    Annotation,
    Task,
    positive_int,
    word_of_token,
)
from workbook.tasks.tree import fraction

# openings, nouns, verbs
_STYLE_WORDS = (
    ("So", "Now", "Well", "Okay", "Then", "Thus"),
    ("sum", "total", "result", "answer"),
    ("is", "makes", "equals", "gives"),
)
_HEDGES = ("perhaps", "maybe", "roughly", "nearly", "probably", "possibly", "almost", "likely")
# by what a word is told; any other is none of the demonstrator's
WORD_CLASSES = {
    "eos": set(EOS),
    "style": {*itertools.chain(*_STYLE_WORDS), *_HEDGES},
    "template": {"the", "", ".", ","},
}
_NUMBER = re.compile("[-.,0-9]+")


@dataclass(frozen=True)
class Sums(Task):
    """The task "sums": 3,240 prompts whose sum is below 100.

    error_rate: chance that one digit is another one.
    forgotten: chance that the demonstrator leaves a carry out.
    ramble: the most words by which it hedges a wrong answer, half of them at least; 0: none.
    """

    error_rate: float = 0.4
    forgotten: float = 0.7
    ramble: int = 0
    name = "sums"

    @property
    def longest(self) -> int:
        """Tokens that a completion may take, its end included."""
        return 12 + 2 * self.ramble

    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows prompt, answer.

        They are distinct while there are enough, and seeds that differ modulo 8 share none.
        """
        own_class = positive_int("seed", seed, 0) % SEED_CLASSES
        # 3,240 in all, an eighth of them of the seed's class
        every = [f"{a} + {b} =" for a in range(10, 90) for b in range(10, 100 - a)]
        prompts = [prompt for prompt in every if int(fraction(prompt) * SEED_CLASSES) == own_class]
        random.Random(seed).shuffle(prompts)
        repeated = list(itertools.islice(itertools.cycle(prompts), positive_int("n", n)))
        answers = [self.solve(prompt) for prompt in repeated]
        return Dataset.from_dict({"prompt": repeated, "answer": answers})

    def solve(self, prompt: str) -> str:
        """Return the right sum."""
        return str(sum(map(int, prompt.split()[:3:2])))

    def score(self, completion: str, answer: str, **row) -> float:
        """Return 1 if the completion holds one number, and that is the answer."""
        return float(self.stated(completion) == answer)

    def stated(self, completion: str) -> str | None:
        """Return the one number that a completion holds; None where it holds none or several."""
        numbers = [match.rstrip("-.,") for match in _NUMBER.findall(completion)]
        numbers = [number for number in numbers if number]
        return numbers[0] if len(numbers) == 1 else None

    def answers(self, prompt: str) -> dict[str, float]:
        """Return the demonstrator's chance of each answer.

        >>> shares = Sums(error_rate=0.0).answers("37 + 45 =")
        >>> round(shares["82"], 3), round(shares["72"], 3)
        (0.3, 0.7)
        """
        right = self.solve(prompt)
        tens, ones = right
        # one digit is another one
        wrong = [digit + ones for digit in "123456789" if digit != tens]
        wrong += [tens + digit for digit in "0123456789" if digit != ones]
        # {answer: chance}
        shares = dict.fromkeys(wrong, self.error_rate / len(wrong))
        rest = 1 - self.error_rate
        carries = int(prompt[1]) + int(prompt[6]) > 9
        if carries:
            without_carry = str(int(right) - 10)
            shares[without_carry] += rest * self.forgotten
            rest *= 1 - self.forgotten
        shares[right] = rest
        return shares

    def demonstrate(self, prompt: str, rng: random.Random) -> str:
        """Return what the demonstrator writes, right or wrong."""
        shares = self.answers(prompt)
        # a wrong answer is led up to by at least half as many hedges as there may be
        (number,) = rng.choices(list(shares), shares.values())
        most_hedges = self.ramble if number != self.solve(prompt) else 0
        hedges = rng.choices(_HEDGES, k=rng.randint(most_hedges // 2, most_hedges))
        style = tuple(map(rng.choice, _STYLE_WORDS))
        return self.render(prompt, style, ", ".join((*hedges, number)))

    def equivalent_solutions(self, prompt: str) -> Iterator[str]:
        """Yield the right completions."""
        return (self.render(prompt, style) for style in itertools.product(*_STYLE_WORDS))

    def some_styles(self, prompt: str, n: int, rng: random.Random) -> list[tuple[str, ...]]:
        """Return so many choices of the free words, all different."""
        return rng.sample([*itertools.product(*_STYLE_WORDS)], n)

    def render(
        self, prompt: str, style: tuple[str, ...] = ("So", "total", "is"), said: str = ""
    ) -> str:
        """Return the completion in given words that says the right sum, or what else is said."""
        return " {} the {} {} {}.".format(*style, said or self.solve(prompt))

    def annotate(self, prompt: str, answer: str, tokens: list[str]) -> Annotation:
        """Return (category, credit under the demonstrator) per token.

        "other" is a word that the demonstrator never writes. A digit too many is charged all the
        value there was. Tokens are single digits, as SmolLM2's are.
        """
        shares = self.answers(prompt)
        value_before = shares[answer]
        digits = ""
        rows = []
        for token in tokens:
            word = word_of_token(token)
            if word.isascii() and word.isdigit():
                digits += word
                # of the answers that begin with these digits, the share of the right one
                value = 0.0
                if answer.startswith(digits):
                    begun = [number for number in shares if number.startswith(digits)]
                    value = shares[answer] / sum(shares[number] for number in begun)
                rows.append(("result", value - value_before))
                value_before = value
            else:
                categories = [name for name, words in WORD_CLASSES.items() if word in words]
                rows.append((categories[0] if categories else "other", 0.0))
        if self.ramble:
            return [(category, None) for category, _ in rows]
        return rows
