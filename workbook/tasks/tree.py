"""Worlds whose completions can all be walked through: a word at a time, few enough prefixes to hold
each of them.

A prefix is the tuple of words written so far, and `next_words` may follow it. A prefix that nothing
may follow is an
end: of a completion, which earns its score, where the last word is the end of sequence, else a dead
end, which earns nothing. A word that is not admitted earns nothing either. So a prefix's value
under a demonstrator is

    V(prefix) = sum_w p(w | prefix) V(prefix, w)        over the admitted words w,

credit of a word is V after it minus V before it, and both are exact. `workbook.probes.values` has
the same sums with a policy's own p.
"""

import hashlib
import itertools
import random
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import lru_cache

from datasets import Dataset

from workbook.messages import InvalidValue
from workbook.tasks.task import (
    EOS,
    SEED_CLASSES,
    Annotation,
    Task,
    positive_int,
    short,
    word_of_token,
)

END = EOS[0]
DRAWS = 64  # per row, in search of prompts that are of the seed's class and new
MAX_PREFIXES = 4_096  # of a prompt, all of which one pass reads
Prefix = tuple[str, ...]


def fraction(*parts: str) -> float:
    """A number in [0, 1) by a fixed hash of some words: what is decided once and for all, and looks
    like chance.
    """
    return (
        int.from_bytes(hashlib.blake2b(" ".join(parts).encode(), digest_size=6).digest(), "big")
        / 2**48
    )


class Tree(Task):
    """A task whose completions are walked through: a subclass, a frozen dataclass, gives what is
    abstract below.

    Everything else follows: data sets, demonstrations, credit of every token, all right
    completions, and exact values.
    """

    @property
    @abstractmethod
    def vocabulary(self) -> tuple[str, ...]:
        """Every word of prompts and completions, in a fixed order, without the end of sequence."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """Words that a completion may need, its end included."""

    @abstractmethod
    def draw(self, rng: random.Random, mine: Callable[[str], bool]) -> str | None:
        """Draw a prompt that the data set may have (`mine`), None if this draw has none."""

    @abstractmethod
    def solve(self, prompt: str) -> str:
        """Return what `score` needs to know of a prompt: the answer column."""

    @abstractmethod
    def next_words(self, prompt: str, prefix: Prefix) -> Prefix:
        """Return the words that may follow a prefix, `END` among them; none at an end."""

    @abstractmethod
    def preferences(self, prompt: str, prefix: Prefix) -> tuple[float, ...]:
        """Return the demonstrator's probability of each of the `next_words`."""

    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows prompt, answer: distinct while there are enough, and seeds that differ
        modulo 8 share none.
        """
        rng, own = random.Random(f"{positive_int('seed', seed, 0)}"), seed % SEED_CLASSES
        prompts: dict[str, None] = {}
        for draws in range(DRAWS * positive_int("n", n)):
            drawn = self.draw(rng, lambda prompt: int(fraction(prompt) * SEED_CLASSES) == own)
            if drawn is not None and int(fraction(drawn) * SEED_CLASSES) == own:
                prompts[drawn] = None
            # hardly any are left to find
            if len(prompts) == n or draws > DRAWS * (len(prompts) + DRAWS):
                break
        if not prompts:
            raise ValueError(
                f"seed {seed} has no prompt of {self}; let it draw from more, some hundred in all."
            )
        rows = list(itertools.islice(itertools.cycle(prompts), n))
        words = {*" ".join(prompts).split(), *(prefix[-1] for prefix in self.prefixes(rows[0])[1:])}
        if unknown := sorted(words - {*self.vocabulary, END}):
            raise InvalidValue(
                "vocabulary",
                unknown,
                "all words of its texts",
                f"vocabulary of {self.name} lacks {short(unknown)}, but must have all words of its"
                " texts.",
            )
        if len({*self.vocabulary}) < len(self.vocabulary):
            raise InvalidValue(
                "vocabulary",
                self.vocabulary,
                "words that differ",
                f"vocabulary of {self.name} has a word twice, but must have each once.",
            )
        if (needed := max(map(len, self.prefixes(rows[0])))) > self.longest:
            raise InvalidValue(
                "longest",
                self.longest,
                f"at least {needed}, the words that {short(rows[0])} may need",
            )
        return Dataset.from_dict({"prompt": rows, "answer": list(map(self.solve, rows))})

    # -- completions
    # ------------------------------------------------------------------------------------------------

    def demonstrate(self, prompt: str, rng: random.Random) -> str:
        """Return what the demonstrator writes, word by word, up to an end, right or wrong."""
        prefix: Prefix = ()
        while words := self.next_words(prompt, prefix):
            prefix += tuple(rng.choices(words, self.preferences(prompt, prefix)))
        return " ".join(word for word in prefix if word != END)

    def styles(self, prompt: str) -> Iterator[Prefix]:
        """Yield the words of every right completion, those with full reward, the shortest first."""
        ends = sorted(
            (prefix for prefix in _values(self, prompt) if prefix[-1:] == (END,)), key=len
        )
        return (prefix[:-1] for prefix in ends if self.value(prompt, prefix) == 1)

    def some_styles(self, prompt: str, n: int, rng: random.Random) -> list[Prefix]:
        """Return so many of them at random, all different; ValueError where a prompt has fewer."""
        if len(styles := list(self.styles(prompt))) < n:
            raise InvalidValue(
                "prompt",
                prompt,
                f"one with {n} completions that earn 1 up to {END}; it has {len(styles)}",
            )
        return rng.sample(styles, n)

    def equivalent_solutions(self, prompt: str) -> Iterator[str]:
        """Yield the right completions, the shortest first."""
        return map(" ".join, self.styles(prompt))

    def render(self, prompt: str, style: Prefix | None = None) -> str:
        """Return a right completion of a prompt: of given words, or the shortest."""
        return " ".join(next(self.styles(prompt)) if style is None else style)

    def stated(self, completion: str) -> str | None:
        """Return the words of a completion: they are the answer, so a vote is between whole ways.
        None without one.
        """
        return " ".join(completion.split()) or None

    # -- credit
    # -----------------------------------------------------------------------------------------------------

    def prefixes(self, prompt: str) -> tuple[Prefix, ...]:
        """Return every prefix that the grammar admits, ends included, each after the one that it
        continues.
        """
        return tuple(_values(self, prompt))[::-1]

    def value(self, prompt: str, prefix: Prefix = ()) -> float:
        """Return the expected reward of the demonstrator from a prefix on; 0 for one that is not
        admitted.
        """
        return _values(self, prompt).get(prefix, 0.0)

    def category(self, prompt: str, prefix: Prefix) -> str:
        """Return the class of the word after a prefix; a subclass may call "style" what never
        matters.
        """
        return "result" if len(self.next_words(prompt, prefix)) > 1 else "template"

    def annotate(self, prompt: str, answer: str, tokens: list[str]) -> Annotation:
        """Return (category, true credit) per completion token; credits up to a token sum to V(after
        it) - V(prompt).

        Categories: that of the place, "eos" for an end of sequence, "other" after a word that was
        not admitted, which is charged all the value there was.
        """
        prefix, before, rows = (), self.value(prompt), []
        for word in map(word_of_token, tokens):
            word = END if word in EOS else word
            words = self.next_words(prompt, prefix) if prefix in _values(self, prompt) else ()
            place = self.category(prompt, prefix) if words else "other"
            prefix += (word,)
            after = self.value(prompt, prefix)
            rows.append(("eos" if word == END and place != "other" else place, after - before))
            before = after
        return rows


@lru_cache(maxsize=4096)
def _values(task: Tree, prompt: str) -> dict[Prefix, float]:
    """The demonstrator's value of every prefix, longer ones first."""
    levels: list[list[Prefix]] = [[()]]
    while levels[-1]:
        if sum(map(len, levels)) > MAX_PREFIXES:
            raise ValueError(
                f"{task.name} has over {MAX_PREFIXES:,} prefixes after {short(prompt)}, among them"
                f" {short(' '.join(levels[-1][-1]))}: let completions be shorter, and nothing"
                f" follow {END}."
            )
        levels.append(
            [(*prefix, word) for prefix in levels[-1] for word in task.next_words(prompt, prefix)]
        )
    values: dict[Prefix, float] = {}
    for prefix in itertools.chain.from_iterable(reversed(levels)):
        if words := task.next_words(prompt, prefix):
            shares = task.preferences(prompt, prefix)
            if len(shares) != len(words) or abs(sum(shares) - 1) > 1e-6:
                raise InvalidValue("preferences", shares, f"numbers that add up to 1 over {words}")
            values[prefix] = sum(
                p * values[(*prefix, word)] for word, p in zip(words, shares, strict=True)
            )
        else:
            text, answer = " ".join(prefix[:-1]), task.solve(prompt)
            values[prefix] = (
                task.reward([prompt], [text], [answer])[0] if prefix[-1:] == (END,) else 0.0
            )
    return values
