"""Sums of two two-digit numbers, said in a sentence of free words: a task that a language model can
start to learn.

    37 + 45 =              So the total is 82.

Opening, noun and verb are *style*, of which the reward never asks; digits are *results*; all else
is *template*. Where ones carry, the demonstrator mostly forgets the carry (72), so that the
likeliest answer of such a prompt is wrong; and now and then one digit is any other. With `ramble`,
a wrong answer is led up to: So the total is perhaps, nearly, 72. A token's credit is that of the
demonstrator: its chance of the right answer behind the digits so far, minus before; with `ramble`,
where earlier words tell, nobody says it.
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

FREE = (  # openings, nouns, verbs
    ("So", "Now", "Well", "Okay", "Then", "Thus"),
    ("sum", "total", "result", "answer"),
    ("is", "makes", "equals", "gives"),
)
HEDGES = ("perhaps", "maybe", "roughly", "nearly", "probably", "possibly", "almost", "likely")
CLASSES = {
    "eos": {*EOS},
    "style": {*itertools.chain(*FREE), *HEDGES},
    "template": {"the", "", ".", ","},
}
NUMBER = re.compile("[-.,0-9]+")


@dataclass(frozen=True)
class Sums(Task):
    """The task "sums": 3,240 prompts whose sum is below 100; seeds that differ modulo 8 share none.

    error_rate: chance that one digit is another one.  forgotten: that the demonstrator leaves a
    carry out.  ramble: the most words by which it hedges a wrong answer, half of them at least; 0:
    none.
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
        """Return n rows prompt, answer: distinct while there are enough."""
        own = positive_int("seed", seed, 0) % SEED_CLASSES
        every = [f"{a} + {b} =" for a in range(10, 90) for b in range(10, 100 - a)]
        prompts = [prompt for prompt in every if int(fraction(prompt) * SEED_CLASSES) == own]
        random.Random(seed).shuffle(prompts)
        rows = list(itertools.islice(itertools.cycle(prompts), positive_int("n", n)))
        return Dataset.from_dict({"prompt": rows, "answer": list(map(self.solve, rows))})

    def solve(self, prompt: str) -> str:
        """Return the right sum."""
        return str(sum(map(int, prompt.split()[:3:2])))

    def score(self, completion: str, answer: str, **row) -> float:
        """Return 1 if the completion holds one number, and that is the answer."""
        return float(self.stated(completion) == answer)

    def stated(self, completion: str) -> str | None:
        """Return the one number that a completion holds; None where it holds none or several."""
        numbers = [
            number for found in NUMBER.findall(completion) if (number := found.rstrip("-.,"))
        ]
        return numbers[0] if len(numbers) == 1 else None

    def answers(self, prompt: str) -> dict[str, float]:
        """Return the demonstrator's chance of each answer.

        >>> shares = Sums(error_rate=0.0).answers("37 + 45 =")
        >>> round(shares["82"], 3), round(shares["72"], 3)
        (0.3, 0.7)
        """
        tens, ones = right = self.solve(prompt)
        other = [t + ones for t in "123456789" if t != tens] + [
            tens + o for o in "0123456789" if o != ones
        ]
        shares, kept = dict.fromkeys(other, self.error_rate / len(other)), 1 - self.error_rate
        if int(prompt[1]) + int(prompt[6]) > 9:
            shares[str(int(right) - 10)] += kept * self.forgotten
            kept *= 1 - self.forgotten
        return shares | {right: kept}

    def demonstrate(self, prompt: str, rng: random.Random) -> str:
        """Return what the demonstrator writes, right or wrong."""
        shares = self.answers(prompt)
        (number,) = rng.choices(list(shares), shares.values())
        most = self.ramble if number != self.solve(prompt) else 0
        hedges = rng.choices(HEDGES, k=rng.randint(most // 2, most))
        return self.render(prompt, tuple(map(rng.choice, FREE)), ", ".join((*hedges, number)))

    def equivalent_solutions(self, prompt: str) -> Iterator[str]:
        """Yield the right completions."""
        return (self.render(prompt, style) for style in itertools.product(*FREE))

    def some_styles(self, prompt: str, n: int, rng: random.Random) -> list[tuple[str, ...]]:
        """Return so many choices of the free words, all different."""
        return rng.sample([*itertools.product(*FREE)], n)

    def render(
        self, prompt: str, style: tuple[str, ...] = ("So", "total", "is"), said: str = ""
    ) -> str:
        """Return the completion in given words that says the right sum, or what else is said."""
        return " {} the {} {} {}.".format(*style, said or self.solve(prompt))

    def annotate(self, prompt: str, answer: str, tokens: list[str]) -> Annotation:
        """Return (category, credit under the demonstrator) per token; "other" is a word that it
        never writes.

        A digit too many is charged all the value there was. Tokens are single digits, as SmolLM2's
        are.
        """
        shares, digits, rows = self.answers(prompt), "", []
        before = shares[answer]
        for word in map(word_of_token, tokens):
            if word.isascii() and word.isdigit():
                digits += word
                reached = sum(
                    share for number, share in shares.items() if number.startswith(digits)
                )
                after = shares[answer] / reached if answer.startswith(digits) else 0.0
                rows.append(("result", after - before))
                before = after
            else:
                rows.append(
                    (next((name for name, words in CLASSES.items() if word in words), "other"), 0.0)
                )
        return [(category, None) for category, _ in rows] if self.ramble else rows
