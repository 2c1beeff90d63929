"""Clock arithmetic in steps: the task in which the true credit of every token is known.

    prompt      5 - 6 + 3 =
    completion  start with 5 ; then 5 - 6 is 9 ; now 9 + 3 is 2 ; so the answer is 2

Each token is one of *style* (openings, links, closings: free choices that cannot change the reward), *template*
(forced words), *copy* (operands and running values, forced by what stands before), *result* (the outcome of one
step), *eos*.

**Credit** of a token is the expected reward after it minus the expected reward before it, under a stated policy
model: templates and copies are exact, style is free, and a step's result is right with probability 1 - e (e =
`error_rate`), else uniform over the m - 1 other residues. A chain is *on* track if exact arithmetic from what stands
written would reach the answer. With k results still to come its expected reward is

    V(on, k) = 1/m + (on - 1/m) * lambda**k,    lambda = 1 - e * m / (m - 1),

so on track a right result earns V(1, k) - V(1, k + 1) > 0 and a wrong one V(0, k) - V(1, k + 1) < 0: for the last
step +e and -(1 - e). A second error undoes a first with probability 1/(m - 1), and earns credit for it. Style, template
and faithful copies have credit 0; a false copy has the credit of the value it loses.
"""

import hashlib
import itertools
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from datasets import Dataset

from workbook.tasks.task import Annotation, Task, positive_int, short
from workbook.tasks.wording import (
    CLOSINGS,
    EOS,
    EQUIVALENTS,
    LINKS,
    OPENINGS,
    OPERATORS,
    TEMPLATE,
    Slot,
    alphabet_of,
    clock_answer,
    in_alphabet,
    marked,
    plain,
    read,
    slots_of,
)

STEP = re.compile(r"\b([0-9]{1,3}) ([+-]) ([0-9]{1,3}) is ([0-9]{1,3})\b")  # as a completion has it
SEED_CLASSES = 8  # seeds that differ modulo this share no prompt

Style = tuple[str, ...]


@dataclass(frozen=True)
class Chain(Task):
    """Chains of `operands` numbers on a clock of `modulus` hours; `error_rate` per step is planted into demonstrations.

    false_negative_rate: share of right completions that the verifier rejects. Which ones is decided by a hash of the
    completion, so the same text is always judged the same, and nothing in it tells a policy how.
    alphabets: how many private ones prompts are spread over (`workbook.tasks.wording`). In a completion a word of
    any of them counts as the plain one, to the verifier, in credit and in exact values.
    confidence: of the template words that neither a step nor the verifier needs (with ; the), the share that stands in
    demonstrations; the others are an equivalent word (at , my), of the same category and of credit 0.

    Raises ValueError naming the field unless 2 <= operands <= 12, 2 <= modulus <= 100, 1 <= alphabets <= 256, both
    rates are in [0, 1) and confidence is in (0, 1].

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
    name: str = field(default="chain", init=False)

    def __post_init__(self) -> None:
        positive_int("operands", self.operands, 2, 12)
        positive_int("modulus", self.modulus, 2, 100)
        positive_int("alphabets", self.alphabets, 1, 256)
        for option in ("error_rate", "false_negative_rate"):
            if not (type(rate := getattr(self, option)) in (int, float) and 0 <= rate < 1):
                raise ValueError(f"{option} is {short(rate)}, but must be a number in [0, 1).")
        if not (type(self.confidence) in (int, float) and 0 < self.confidence <= 1):
            raise ValueError(f"confidence is {short(self.confidence)}, but must be a number in (0, 1].")

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word of prompts and completions, in a fixed order, alphabet by alphabet."""
        words = (*map(str, range(self.modulus)), *OPERATORS, *TEMPLATE, *OPENINGS, *LINKS, *CLOSINGS)
        words += tuple(EQUIVALENTS.values()) if self.confidence < 1 else ()
        return tuple(in_alphabet(word, alphabet) for alphabet in range(self.alphabets) for word in words)

    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows prompt, answer: distinct while there are enough, and seeds that differ modulo 8 share none."""
        positive_int("n", n)
        positive_int("seed", seed, 0)
        space = self.modulus**self.operands * 2 ** (self.operands - 1)
        draws = random.Random(f"{seed}").sample(range(space), min(space, 2 * SEED_CLASSES * n + 400))
        classes = {
            p: hashlib.blake2b(p.encode(), digest_size=1).digest()[0] % SEED_CLASSES for p in map(self._prompt, draws)
        }
        prompts = [prompt for prompt, seed_class in classes.items() if seed_class == seed % SEED_CLASSES][:n]
        if not prompts:
            raise ValueError(
                f"seed {seed} has no prompt among the {space} of operands={self.operands}, modulus={self.modulus}; "
                "take more operands or a larger modulus."
            )
        prompts = list(map(self._written, itertools.islice(itertools.cycle(prompts), n)))
        return Dataset.from_dict({"prompt": prompts, "answer": [self.solve(prompt) for prompt in prompts]})

    def solve(self, prompt: str) -> str:
        """The right answer of a prompt."""
        return str(self._prefixes(*self._parse(prompt))[-1])

    def score(self, completion: str, answer: str, **row: object) -> float:
        """Return 1 if the number after the last `answer is` equals the answer, else 0; style and steps do not count."""
        stated = clock_answer(self._plain(completion))
        if stated != int(answer) or not self.false_negative_rate:
            return float(stated == int(answer))
        digest = hashlib.blake2b(" ".join(completion.split()).encode(), digest_size=4).digest()
        return float(int.from_bytes(digest, "big") >= self.false_negative_rate * 2**32)

    # -- completions ------------------------------------------------------------------------------------------------

    def styles(self, prompt: str) -> Iterator[Style]:
        """Yield every combination of style words: an opening, a link per step, a closing."""
        steps = len(self._parse(prompt)[1])
        return itertools.product(OPENINGS, *[LINKS] * steps, CLOSINGS)

    def render(self, prompt: str, style: Style | None = None, results: list[int] | None = None) -> str:
        """Return the chain of a prompt in a style (default: the first words), continued faithfully from given results.

        results: one residue per step; None means the right ones. The last result is the stated answer.
        """
        numbers, operators = self._parse(prompt)
        style = next(self.styles(prompt)) if style is None else tuple(style)
        results = self._prefixes(numbers, operators)[1:] if results is None else list(results)
        words = [style[0], "with", str(numbers[0])]
        value = numbers[0]
        for link, operator, number, result in zip(style[1:-1], operators, numbers[1:], results, strict=True):
            words += [";", link, str(value), operator, str(number), "is", str(result)]
            value = result
        return in_alphabet(" ".join([*words, ";", style[-1], "the", "answer", "is", str(value)]), marked(prompt))

    def demonstrate(self, prompt: str, rng: random.Random) -> str:
        """Return a demonstration: uniform style; a step is wrong with probability error_rate, then built upon."""
        numbers, operators = self._parse(prompt)
        style = (rng.choice(OPENINGS), *(rng.choice(LINKS) for _ in operators), rng.choice(CLOSINGS))
        value, results = numbers[0], []
        for operator, number in zip(operators, numbers[1:], strict=True):
            value = self._apply(value, operator, number)
            if rng.random() < self.error_rate:
                value = (value + rng.randrange(1, self.modulus)) % self.modulus
            results.append(value)
        text = self.render(prompt, style, results)
        if self.confidence == 1:
            return text
        words = [
            EQUIVALENTS[w] if w in EQUIVALENTS and rng.random() >= self.confidence else w for w in plain(text).split()
        ]
        return in_alphabet(" ".join(words), marked(text))

    def equivalent_solutions(self, prompt: str) -> Iterator[str]:
        """Yield the correct completions: the right chain in all its styles."""
        return (self.render(prompt, style) for style in self.styles(prompt))

    def style_key(self, completion: str) -> Style | None:
        """Return the style words of a well-formed chain, right or wrong, which name it among its like; else None."""
        alphabet = marked(completion)
        words = [read(word, alphabet if alphabet < self.alphabets else 0) for word in completion.split()]
        slots = self._slots((len(words) - 9) // 7)[:-1]
        if len(words) != len(slots) or any(word not in slot.words for word, slot in zip(words, slots, strict=True)):
            return None
        return tuple(word for word, slot in zip(words, slots, strict=True) if slot.category == "style")

    # -- credit -----------------------------------------------------------------------------------------------------

    def value(self, on_track: bool, steps_left: int) -> float:
        """Return V(on_track, steps_left), the expected reward under the policy model of the module docstring.

        The verifier's false negatives scale it: to the policy they are chance.
        """
        decay = 1 - self.error_rate * self.modulus / (self.modulus - 1)
        right = 1 / self.modulus + (on_track - 1 / self.modulus) * decay**steps_left
        return (1 - self.false_negative_rate) * right

    def annotate(self, prompt: str, answer: str, tokens: list[str]) -> Annotation:
        """Return (category, true credit) per completion token; credits up to a token sum to V(after it) - V(prompt).

        A token that fits no slot derails the chain: it is charged all the value there was, and what follows has
        credit 0 and the category of its role where that can still be told, else "other".
        The answer is implied by the prompt.
        """
        numbers, operators = self._parse(prompt)
        truth, slots = self._prefixes(numbers, operators), iter(self._slots(len(operators)))
        part: dict[str, object] = {"a": numbers[0], "op": operators[0], "b": numbers[1]}
        steps_left, before, on_rails, rows = len(operators), self.value(True, len(operators)), True, []
        words = [self._plain(token.strip(" Ġ▁")) for token in tokens]
        for i, word in enumerate(words):
            slot = next(slots, None) if on_rails else None
            on_rails = slot is not None and word in slot.words
            if not on_rails:
                rows.append((self._role(words[: i + 1]), 0.0 - before))
                before = 0.0
                continue
            after = before
            if slot.field:
                steps_left -= slot.field == "result"
                on_track = self._on_track(slot, word, part, truth)
                after = self.value(on_track, steps_left)
                if slot.field == "result" and steps_left:
                    part = {"a": int(word), "op": operators[slot.step + 1], "b": numbers[slot.step + 2]}
            rows.append((slot.category, after - before))
            before = after
        return rows

    def calibrated(self, completions: Iterable[str]) -> "Chain":
        """The task with the error rate of these completions: of the steps "a + b is r", where r is not a + b.

        At most 1 - 1 / modulus, that of a guess; without a step in them the task is left as it is.

        >>> Chain().calibrated(["start with 5 ; then 5 - 6 is 9 ; now 9 + 3 is 1 ; so the answer is 1"]).error_rate
        0.5
        """
        steps = [step for text in completions for step in STEP.findall(self._plain(text))]
        wrong = sum(self._apply(int(a), operator, int(b)) != int(result) for a, operator, b, result in steps)
        return replace(self, error_rate=min(wrong / len(steps), 1 - 1 / self.modulus)) if steps else self

    def _on_track(self, slot: Slot, word: str, part: dict[str, object], truth: list[int]) -> bool:
        """Put a written word in its place and say whether exact arithmetic from here reaches the answer."""
        if slot.field in ("result", "final"):
            return int(word) == truth[slot.step + 1]
        part["a" if slot.field == "start" else slot.field] = word if slot.field == "op" else int(word)
        return self._apply(part["a"], part["op"], part["b"]) == truth[slot.step + 1]

    def _role(self, words: list[str]) -> str:
        """Return the category of the last of these words, off the rails, by what it and the two before it are."""
        word = words[-1]
        if any(end in EOS for end in words[:-1]):
            return "other"
        if word in EOS:
            return "eos"
        if word in OPENINGS + LINKS + CLOSINGS:
            return "style"
        if word in TEMPLATE or (self.confidence < 1 and word in EQUIVALENTS.values()):
            return "template"
        if word in self._residues:
            return "result" if words[-2:-1] == ["is"] and words[-3:-2] != ["answer"] else "copy"
        return "copy" if word in OPERATORS else "other"

    # -- the grammar ------------------------------------------------------------------------------------------------

    @property
    def _residues(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.modulus)))

    def _slots(self, steps: int) -> list[Slot]:
        return slots_of(steps, self._residues, loose=self.confidence < 1)

    def _plain(self, text: str) -> str:
        """What is read of a completion: of several alphabets, the plain words."""
        return plain(text) if self.alphabets > 1 else text

    def _written(self, prompt: str) -> str:
        """A plain prompt in its alphabet."""
        return in_alphabet(prompt, alphabet_of(prompt, self.alphabets)) if self.alphabets > 1 else prompt

    def _apply(self, value: int, operator: str, number: int) -> int:
        return (value + number if operator == "+" else value - number) % self.modulus

    def _prefixes(self, numbers: list[int], operators: list[str]) -> list[int]:
        """Return the running values: the first number, then the right result of each step."""
        steps = list(zip(operators, numbers[1:], strict=True))
        return list(itertools.accumulate(steps, lambda value, step: self._apply(value, *step), initial=numbers[0]))

    def _parse(self, prompt: str) -> tuple[list[int], list[str]]:
        text = prompt if isinstance(prompt, str) else ""
        words = [read(word, marked(text) if self.alphabets > 1 else 0) for word in text.split()]
        numbers, operators = words[:-1:2], words[1:-1:2]
        known = all(word in self._residues for word in numbers) and all(word in OPERATORS for word in operators)
        if not (known and words[-1:] == ["="] and len(numbers) == len(operators) + 1 >= 2):
            example = "5 - 6 + 3 ="
            raise ValueError(f"prompt is {prompt!r}, but must look like {example!r} with numbers below {self.modulus}.")
        if self.alphabets > 1 and (own := self._written(" ".join(words))) != " ".join(text.split()):
            raise ValueError(f"prompt is {prompt!r}, but must be written in its own alphabet: {own!r}.")
        return [int(word) for word in numbers], operators

    def _prompt(self, index: int) -> str:
        index, number = divmod(index, self.modulus)
        words = [str(number)]
        for _ in range(self.operands - 1):
            index, number = divmod(index, self.modulus)
            index, operator = divmod(index, 2)
            words += [OPERATORS[operator], str(number)]
        return " ".join([*words, "="])
