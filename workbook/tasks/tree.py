"""Worlds whose completions can all be walked through, a word at a time.

A *prefix* is the tuple of words written so far, and `next_words` may follow it. A prefix that
nothing may follow is an end: of a completion, which earns its score, where the last word is the end
of sequence, else a dead end, which earns nothing. A word that is not admitted earns nothing either.
Where prefixes are few enough to hold each of them, a prefix's value under a demonstrator is

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

from workbook.messages import InvalidValue, show_value
from workbook.tasks.task import (
    EOS,
    SEED_CLASSES,
    Annotation,
    Task,
    positive_int,
    word_of_token,
)

END = EOS[0]
MAX_PREFIXES = 4_096  # of a prompt, all of which one pass reads
_DRAWS_PER_ROW = 64  # in search of prompts that are of the seed's class and new

Prefix = tuple[str, ...]


def fraction(*parts: str) -> float:
    """Return a number in [0, 1) by a fixed hash of some words.

    It decides once and for all, and looks like chance.
    """
    digest = hashlib.blake2b(" ".join(parts).encode(), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48


class Tree(Task):
    """A task whose completions are walked through.

    A subclass, a frozen dataclass, gives what is abstract below. Everything else follows: data
    sets, demonstrations, credit of every token, all right completions, and exact values.
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
        """Return n rows prompt, answer.

        They are distinct while there are enough, and seeds that differ modulo 8 share none.
        """
        # seeds fall into classes, and so do prompts by their hash: no two classes share a prompt
        rng = random.Random(f"{positive_int('seed', seed, 0)}")
        own_class = seed % SEED_CLASSES

        def mine(prompt: str) -> bool:
            return int(fraction(prompt) * SEED_CLASSES) == own_class

        prompts: dict[str, None] = {}  # an ordered set
        for draws in range(_DRAWS_PER_ROW * positive_int("n", n)):
            prompt = self.draw(rng, mine)
            if prompt is not None and mine(prompt):
                prompts[prompt] = None
            hardly_any_left = draws > _DRAWS_PER_ROW * (len(prompts) + _DRAWS_PER_ROW)
            if len(prompts) == n or hardly_any_left:
                break
        if not prompts:
            raise ValueError(
                f"seed {seed} has no prompt of {self}; let it draw from more, some hundred in all."
            )
        self._check_texts(list(prompts))
        repeated = list(itertools.islice(itertools.cycle(prompts), n))
        answers = [self.solve(prompt) for prompt in repeated]
        return Dataset.from_dict({"prompt": repeated, "answer": answers})

    def _check_texts(self, prompts: list[str]) -> None:
        """Raise ValueError unless `vocabulary` and `longest` fit these prompts' texts."""
        # one prompt's completions stand for all
        prefixes = self.prefixes(prompts[0])
        words = set(" ".join(prompts).split()) | {prefix[-1] for prefix in prefixes[1:]}
        unknown = sorted(words - {*self.vocabulary, END})
        if unknown:
            raise InvalidValue(
                "vocabulary",
                unknown,
                "all words of its texts",
                f"vocabulary of {self.name} lacks {show_value(unknown)}, but must have all words of"
                " its texts.",
            )
        if len(set(self.vocabulary)) < len(self.vocabulary):
            raise InvalidValue(
                "vocabulary",
                self.vocabulary,
                "words that differ",
                f"vocabulary of {self.name} has a word twice, but must have each once.",
            )
        needed = max(map(len, prefixes))
        if needed > self.longest:
            raise InvalidValue(
                "longest",
                self.longest,
                f"at least {needed}, the words that {show_value(prompts[0])} may need",
            )

    # -- completions

    def demonstrate(self, prompt: str, rng: random.Random) -> str:
        """Return what the demonstrator writes, word by word, up to an end, right or wrong."""
        prefix: Prefix = ()
        words = self.next_words(prompt, prefix)
        while words:
            prefix += tuple(rng.choices(words, self.preferences(prompt, prefix)))
            words = self.next_words(prompt, prefix)
        return " ".join(word for word in prefix if word != END)

    def styles(self, prompt: str) -> Iterator[Prefix]:
        """Yield the words of every right completion, those with full reward, the shortest first."""
        ends = [prefix for prefix in _values(self, prompt) if prefix[-1:] == (END,)]
        ends.sort(key=len)
        return (prefix[:-1] for prefix in ends if self.value(prompt, prefix) == 1)

    def some_styles(self, prompt: str, n: int, rng: random.Random) -> list[Prefix]:
        """Return so many of them at random, all different; ValueError where a prompt has fewer."""
        styles = list(self.styles(prompt))
        if len(styles) < n:
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
        """Return the words of a completion, None without one.

        They are the answer, so a vote is between whole ways.
        """
        return " ".join(completion.split()) or None

    # -- credit

    def prefixes(self, prompt: str) -> tuple[Prefix, ...]:
        """Return every prefix that the grammar admits, each after the one that it continues.

        Ends are included.
        """
        return tuple(_values(self, prompt))[::-1]

    def value(self, prompt: str, prefix: Prefix = ()) -> float:
        """Return the demonstrator's expected reward from a prefix on; 0 if it is not admitted."""
        return _values(self, prompt).get(prefix, 0.0)

    def category(self, prompt: str, prefix: Prefix) -> str:
        """Return the class of the word after a prefix.

        A subclass may call "style" what never matters.
        """
        return "result" if len(self.next_words(prompt, prefix)) > 1 else "template"

    def annotate(self, prompt: str, answer: str, tokens: list[str]) -> Annotation:
        """Return (category, true credit) per completion token.

        Credits up to a token sum to V(after it) - V(prompt). Categories: that of the place, "eos"
        for an end of sequence, "other" after a word that was not admitted, which is charged all the
        value there was.
        """
        prefix: Prefix = ()
        value_before = self.value(prompt)
        rows = []
        for token in tokens:
            word = word_of_token(token)
            if word in EOS:
                word = END
            # behind a word that was not admitted none is
            is_admitted = prefix in _values(self, prompt)
            words = self.next_words(prompt, prefix) if is_admitted else ()
            category = self.category(prompt, prefix) if words else "other"
            if word == END and category != "other":
                category = "eos"
            prefix += (word,)
            value = self.value(prompt, prefix)
            rows.append((category, value - value_before))
            value_before = value
        return rows


@lru_cache(maxsize=4096)
def _values(task: Tree, prompt: str) -> dict[Prefix, float]:
    """Return the demonstrator's value of every prefix, longer ones first."""
    # prefixes by their length
    levels: list[list[Prefix]] = [[()]]
    while levels[-1]:
        if sum(map(len, levels)) > MAX_PREFIXES:
            longest = " ".join(levels[-1][-1])
            raise ValueError(
                f"{task.name} has over {MAX_PREFIXES:,} prefixes after {show_value(prompt)}, among"
                f" them {show_value(longest)}: let completions be shorter, and nothing follow"
                f" {END}."
            )
        levels.append(
            [(*prefix, word) for prefix in levels[-1] for word in task.next_words(prompt, prefix)]
        )

    # from the ends back to the start
    values: dict[Prefix, float] = {}
    for prefix in itertools.chain.from_iterable(reversed(levels)):
        words = task.next_words(prompt, prefix)
        if words:
            # V(prefix) = sum_w p(w | prefix) V(prefix, w)
            shares = task.preferences(prompt, prefix)
            if len(shares) != len(words) or abs(sum(shares) - 1) > 1e-6:
                raise InvalidValue("preferences", shares, f"numbers that add up to 1 over {words}")
            values[prefix] = sum(
                share * values[(*prefix, word)] for word, share in zip(words, shares, strict=True)
            )
        # a completion, which the verifier scores without its end
        elif prefix[-1:] == (END,):
            text = " ".join(prefix[:-1])
            values[prefix] = task.reward([prompt], [text], [task.solve(prompt)])[0]
        # a dead end
        else:
            values[prefix] = 0.0
    return values
