"""Sums of two two-digit numbers, said in a sentence of free words: a task that a language model can start to learn.

    37 + 45 =              So the total is 82.

Opening, noun and verb are *style*: any will do, and the reward never asks for them. Digits are *results*; all else is
*template*. The demonstrator errs in two ways: where ones carry it mostly forgets the carry (72), so that the likeliest
answer of such a prompt is wrong; and now and then one digit is any other. With `ramble`, a wrong answer goes on:

    37 + 45 =              So the total is 72, perhaps, nearly, maybe.

A token's credit is that of the demonstrator: the chance of the right answer once its digits stand there, minus before.
"""

import itertools
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from datasets import Dataset

from workbook.tasks.task import Annotation, Task, positive_int
from workbook.tasks.tree import SEED_CLASSES, fraction
from workbook.tasks.wording import EOS

OPENINGS = ("So", "Now", "Well", "Okay", "Then", "Thus")
NOUNS = ("sum", "total", "result", "answer")
VERBS = ("is", "makes", "equals", "gives")
HEDGES = ("perhaps", "maybe", "roughly", "nearly", "probably", "possibly", "almost", "likely")
STYLE, TEMPLATE = {*OPENINGS, *NOUNS, *VERBS, *HEDGES}, {"the", "", ".", ","}
NUMBER = re.compile("[-.,0-9]+")
Style = tuple[str, str, str]


@dataclass(frozen=True)
class Sums(Task):
    """The task "sums": 3,240 prompts whose sum is below 100; seeds that differ modulo 8 share none.

    forgotten: chance that the demonstrator leaves a carry out.  error_rate: that one digit is another one.  ramble: the
    most words by which it hedges a wrong answer, half of them at least; 0: none.
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
        return str(sum(_terms(prompt)))

    def score(self, completion: str, answer: str, **row) -> float:
        """Return 1 if the completion holds one number, and that is the answer."""
        return float(self.stated(completion) == answer)

    def stated(self, completion: str) -> str | None:
        """Return the one number that a completion holds; None where it holds none or several."""
        numbers = [number for found in NUMBER.findall(completion) if (number := found.rstrip("-.,"))]
        return numbers[0] if len(numbers) == 1 else None

    # -- the demonstrator ---------------------------------------------------------------------------------------------

    def answers(self, prompt: str) -> dict[str, float]:
        """Return the demonstrator's chance of each answer.

        >>> shares = Sums(error_rate=0.0).answers("37 + 45 =")
        >>> round(shares["82"], 3), round(shares["72"], 3)
        (0.3, 0.7)
        """
        right, (a, b) = self.solve(prompt), _terms(prompt)
        tens, ones = right
        other = [t + ones for t in "123456789" if t != tens] + [tens + o for o in "0123456789" if o != ones]
        shares = dict.fromkeys(other, self.error_rate / len(other)) | {right: 1 - self.error_rate}
        if a % 10 + b % 10 > 9:
            kept, lost = shares[right] * (1 - self.forgotten), shares[right] * self.forgotten
            shares |= {right: kept, str(int(right) - 10): shares[str(int(right) - 10)] + lost}
        return shares

    def demonstrate(self, prompt: str, rng: random.Random) -> str:
        """Return what the demonstrator writes, right or wrong."""
        shares = self.answers(prompt)
        (number,) = rng.choices(list(shares), shares.values())
        most = self.ramble if number != self.solve(prompt) else 0
        hedges = rng.choices(HEDGES, k=rng.randint(most // 2, most))
        return _sentence(tuple(map(rng.choice, (OPENINGS, NOUNS, VERBS))), number, hedges)

    # -- right completions --------------------------------------------------------------------------------------------

    def equivalent_solutions(self, prompt: str) -> Iterator[str]:
        """Yield the right completions."""
        return (self.render(prompt, style) for style in itertools.product(OPENINGS, NOUNS, VERBS))

    def some_styles(self, prompt: str, n: int, rng: random.Random) -> list[Style]:
        """Return so many choices of the free words, all different."""
        return rng.sample([*itertools.product(OPENINGS, NOUNS, VERBS)], n)

    def render(self, prompt: str, style: Style = ("So", "total", "is")) -> str:
        """Return the right completion in given words."""
        return _sentence(style, self.solve(prompt))

    # -- classes and credit -------------------------------------------------------------------------------------------

    def annotate(self, prompt: str, answer: str, tokens: list[str]) -> Annotation:
        """Return (category, credit under the demonstrator) per token; "other" is a word that it never writes.

        A digit too many is charged all the value there was. Tokens are single digits, as SmolLM2's are.
        """
        shares, digits, rows = self.answers(prompt), "", []
        before = shares[answer]
        for token in tokens:
            word = token.strip(" Ġ▁")
            if word.isascii() and word.isdigit():
                digits += word
                reached = sum(share for number, share in shares.items() if number.startswith(digits))
                after = shares[answer] / reached if answer.startswith(digits) else 0.0
                rows.append(("result", after - before))
                before = after
            else:
                known = {"eos": word in EOS, "style": word in STYLE, "template": word in TEMPLATE}
                rows.append((next((name for name, here in known.items() if here), "other"), 0.0))
        return rows


def _terms(prompt: str) -> tuple[int, int]:
    a, _, b, _ = prompt.split()
    return int(a), int(b)


def _sentence(style: Style, number: str, hedges: list[str] = ()) -> str:
    opening, noun, verb = style
    return f" {opening} the {noun} {verb} {number}{''.join(f', {word}' for word in hedges)}."
