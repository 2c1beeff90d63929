"""Clock arithmetic in steps: the task in which the true credit of every token is known.

    prompt      5 - 6 + 3 =
    completion  start with 5 ; then 5 - 6 is 9 ; now 9 + 3 is 2 ; so the answer is 2

Each token is one of *style* (openings, links, closings: free choices that cannot change the
reward), *template* (forced words), *copy* (operands and running values, forced by what stands
before), *result* (the outcome of one step), *eos*.

**Credit** of a token is the expected reward after it minus the expected reward before it, under a
stated policy
model: templates and copies are exact, style is free, and a step's result is right with probability
1 - e (e = `error_rate`), else uniform over the m - 1 other residues. A chain is *on* track if exact
arithmetic from what stands written would reach the answer. With k results still to come its
expected reward is

    V(on, k) = 1/m + (on - 1/m) * lambda**k,    lambda = 1 - e * m / (m - 1),

so on track a right result earns V(1, k) - V(1, k + 1) > 0 and a wrong one V(0, k) - V(1, k + 1) <
0: for the last step +e and -(1 - e). A second error undoes a first with probability 1/(m - 1), and
earns credit for it. Style, template and faithful copies have credit 0; a false copy has the credit
of the value it loses.

**Dials** make other worlds of it: pairs whose likeliest result is wrong, more or fewer free and
forced words, ways that later words must respect, a reward for each step, wrong results that ramble.
Errors in general, and what is expected of a chain that makes them: `workbook.tasks.chain_grammar`.
"""

import hashlib
import itertools
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from datasets import Dataset

from workbook.messages import InvalidValue
from workbook.tasks.chain_grammar import (
    ChainGrammar,
    drawn_offset,
    expected_rewards,
    shifts_of,
    still_right,
)
from workbook.tasks.task import Annotation, positive_int
from workbook.tasks.wording import (
    CLOSINGS,
    EOS,
    EQUIVALENTS,
    LINKS,
    OPENINGS,
    OPERATORS,
    RAMBLE,
    TEMPLATE,
    Slot,
    clock_answer,
    in_alphabet,
    marked,
    plain,
)

STEP = re.compile(r"\b([0-9]{1,3}) ([+-]) ([0-9]{1,3}) is ([0-9]{1,3})\b")  # as a completion has it
SEED_CLASSES = 8  # seeds that differ modulo this share no prompt


@dataclass(frozen=True)
class Chain(ChainGrammar):
    """Chains of `operands` numbers on a clock of `modulus` hours; `error_rate` per step is planted
    into demonstrations.

    false_negative_rate: share of right completions that the verifier rejects. Which ones is decided
    by a hash of the completion, so the same text is always judged the same, and nothing in it tells
    a policy how.
    alphabets: how many private ones prompts are spread over (`workbook.tasks.wording`). In a
    completion a word of any of them counts as the plain one, to the verifier, in credit and in
    exact values.
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
    ramble: after a wrong result demonstrations have 0 to so many words that say nothing, each
    number as likely. After any result a completion may have any number of them.

    Raises ValueError naming the field unless 2 <= operands <= 12, 2 <= modulus <= 100, 1 <=
    alphabets <= 256, both rates are in [0, 1), confidence is in (0, 1], wrong_modes in [0, 1],
    free_words in 0 ... 4, forced_words in 2 ... 12 and ramble in 0 ... 20.

    >>> task = Chain(operands=3)
    >>> task.render("5 - 6 + 3 =", style=("start", "then", "now", "so"))
    'start with 5 ; then 5 - 6 is 9 ; now 9 + 3 is 2 ; so the answer is 2'
    >>> task.reward(["5 - 6 + 3 ="], ["so the answer is 2"], ["2"])
    [1.0]
    """

    name: str = field(default="chain", init=False)

    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows prompt, answer: distinct while there are enough, and seeds that differ
        modulo 8 share none.
        """
        positive_int("n", n)
        positive_int("seed", seed, 0)
        space = self.modulus**self.operands * 2 ** (self.operands - 1)
        draws = random.Random(f"{seed}").sample(
            range(space), min(space, 2 * SEED_CLASSES * n + 400)
        )
        classes = {
            p: hashlib.blake2b(p.encode(), digest_size=1).digest()[0] % SEED_CLASSES
            for p in map(self._prompt, draws)
        }
        prompts = [
            prompt for prompt, seed_class in classes.items() if seed_class == seed % SEED_CLASSES
        ][:n]
        if not prompts:
            raise InvalidValue(
                "operands",
                self.operands,
                "more, or modulus larger",
                f"seed {seed} has no prompt among the {space} of operands={self.operands},"
                f" modulus={self.modulus}; take more operands or a larger modulus.",
            )
        prompts = list(map(self._written, itertools.islice(itertools.cycle(prompts), n)))
        return Dataset.from_dict(
            {"prompt": prompts, "answer": [self.solve(prompt) for prompt in prompts]}
        )

    def solve(self, prompt: str) -> str:
        """The right answer of a prompt; where each step is rewarded, the right running values after
        them.
        """
        values = self._prefixes(*self._parse(prompt))[1:]
        return " ".join(map(str, values if self.reward_by == "steps" else values[-1:]))

    def score(self, completion: str, answer: str, **row: object) -> float:
        """Return 1 if the number after the last `answer is` equals the answer, else 0; style and
        steps do not count.

        Where each step is rewarded, return the share of the running values in `answer` that the
        steps state, in order. Of several ways, only what stands before a link of another way than
        the opening's is read.
        """
        text, right = self._of_one_way(self._plain(completion)), answer.split()
        by_steps = self.reward_by == "steps"
        stated = (
            [int(result) for *_, result in STEP.findall(text)] if by_steps else [clock_answer(text)]
        )
        earned = sum(int(a) == b for a, b in zip(right, stated, strict=False)) / len(right)
        if not earned or not self.false_negative_rate:
            return earned
        digest = hashlib.blake2b(" ".join(completion.split()).encode(), digest_size=4).digest()
        return earned * (int.from_bytes(digest, "big") >= self.false_negative_rate * 2**32)

    def stated(self, completion: str) -> str | None:
        """Return the number after the last `answer is` that `score` reads, None where there is
        none.
        """
        return (
            None
            if (found := clock_answer(self._of_one_way(self._plain(completion)))) is None
            else str(found)
        )

    # -- completions
    # ------------------------------------------------------------------------------------------------

    def demonstrate(self, prompt: str, rng: random.Random) -> str:
        """Return a demonstration: uniform style; a result is wrong as `drawn_offset` says, then
        built upon.
        """
        numbers, operators = self._parse(prompt)
        style = tuple(map(rng.choice, self._choices(len(operators))))
        value, results, rambles = numbers[0], [], []
        for operator, number, shift in zip(
            operators, numbers[1:], self._shifts(numbers, operators), strict=True
        ):
            off = drawn_offset(rng, self.modulus, self.error_rate, shift)
            value = (self._apply(value, operator, number) + off) % self.modulus
            results.append(value)
            words = rng.randint(0, self.ramble) if off and self.ramble else 0
            rambles.append([rng.choice(RAMBLE) for _ in range(words)])
        text = self.render(prompt, style, results, rambles)
        if self.confidence == 1:
            return text
        words = [
            EQUIVALENTS[w] if w in EQUIVALENTS and rng.random() >= self.confidence else w
            for w in plain(text).split()
        ]
        return in_alphabet(" ".join(words), marked(text))

    # -- credit
    # -----------------------------------------------------------------------------------------------------

    def value(self, on_track: bool, steps_left: int) -> float:
        """Return V(on_track, steps_left), the expected reward under the policy model of the module
        docstring.

        The verifier's false negatives scale it: to the policy they are chance. It is that of a task
        without wrong modes that rewards the answer; of any other: `to_come`.
        """
        return (1 - self.false_negative_rate) * still_right(
            on_track, steps_left, self.modulus, self.error_rate
        )

    def to_come(self, prompt: str, results: int = 0, off: int = 0) -> float:
        """Return the expected reward still to come after so many results, off by `off` from the
        right running value.
        """
        return (1 - self.false_negative_rate) * self._expected(*self._parse(prompt))[results][off]

    def annotate(self, prompt: str, answer: str, tokens: list[str]) -> Annotation:
        """Return (category, true credit) per completion token; credits up to a token sum to V(after
        it) - V(prompt).

        A token that fits no slot, or is a link of another way, derails the chain: it is charged all
        that was still to come, and what follows has credit 0 and the category of its role where
        that can still be told, else "other". The answer is implied by the prompt.
        """
        numbers, operators = self._parse(prompt)
        truth, steps = self._prefixes(numbers, operators), len(operators)
        part: dict[str, object] = {"a": numbers[0], "op": operators[0], "b": numbers[1]}
        to_come, accepted = self._expected(numbers, operators), 1 - self.false_negative_rate
        results, earned, before, rows = 0, 0.0, accepted * to_come[0][0], []
        words = [self._plain(token.strip(" Ġ▁")) for token in tokens]
        slots = self._slots(steps, *words[:1])[::-1]  # those to come, the next one last
        for i, word in enumerate(words):
            if slots and word in slots[-1].before:
                rows.append(("style", 0.0))
                continue
            slot = slots.pop() if slots else None
            if slot is None or word not in slot.words:
                rows.append((self._role(words[: i + 1]), earned - before))
                before, slots = earned, []
                continue
            after = before
            if slot.field:
                results += slot.field == "result"
                off = self._offset(slot, word, part, truth)
                if slot.field == "result" and self.reward_by == "steps":
                    earned += accepted * (off == 0) / steps
                after = earned + accepted * to_come[results][off]
                if slot.field == "result" and results < steps:
                    part = {
                        "a": int(word),
                        "op": operators[slot.step + 1],
                        "b": numbers[slot.step + 2],
                    }
            rows.append((slot.category, after - before))
            before = after
        return rows

    def calibrated(self, completions: Iterable[str]) -> "Chain":
        """The task with the error rate of these completions: of the steps "a + b is r", where r is
        not a + b.

        At most 1 - 1 / modulus, that of a guess; without a step in them the task is left as it is.
        Steps of a pair with a wrong mode do not count: what errs there is no rate.

        >>> Chain().calibrated(["start with 5 ; then 5 - 6 is 9 ; now 9 + 3 is 1 ; so the answer is 1"]).error_rate
        0.5
        """
        steps = [step for text in completions for step in STEP.findall(self._plain(text))]
        steps = [step for step in steps if not any(self._shifts([0, int(step[2])], [step[1]]))]
        wrong = sum(
            self._apply(int(a), operator, int(b)) != int(result) for a, operator, b, result in steps
        )
        return (
            replace(self, error_rate=min(wrong / len(steps), 1 - 1 / self.modulus))
            if steps
            else self
        )

    def _offset(self, slot: Slot, word: str, part: dict[str, object], truth: list[int]) -> int:
        """Put a written word in its place and return what exact arithmetic from here is off by."""
        if slot.field in ("result", "final"):
            return (int(word) - truth[slot.step + 1]) % self.modulus
        part["a" if slot.field == "start" else slot.field] = (
            word if slot.field == "op" else int(word)
        )
        return (self._apply(part["a"], part["op"], part["b"]) - truth[slot.step + 1]) % self.modulus

    def _role(self, words: list[str]) -> str:
        """Return the category of the last of these words, off the rails, by what it and the two
        before it are.
        """
        word = words[-1]
        if any(end in EOS for end in words[:-1]):
            return "other"
        if word in EOS:
            return "eos"
        if word in OPENINGS + LINKS + CLOSINGS + self._ramble:
            return "copy" if word in LINKS and self.ways > 1 else "style"
        if word in TEMPLATE + self._forced or (
            self.confidence < 1 and word in EQUIVALENTS.values()
        ):
            return "template"
        if word in self._residues:
            return "result" if words[-2:-1] == ["is"] and words[-3:-2] != ["answer"] else "copy"
        return "copy" if word in OPERATORS else "other"

    def _of_one_way(self, text: str) -> str:
        """A plain text up to its first link of another way than the opening's; "" without an
        opening.
        """
        if self.ways == 1:
            return text
        words = text.split()
        if not words or words[0] not in OPENINGS:
            return ""
        other = {*LINKS} - {LINKS[OPENINGS.index(words[0])]}
        return " ".join(itertools.takewhile(lambda word: word not in other, words))

    def _shifts(self, numbers: list[int], operators: list[str]) -> tuple[int, ...]:
        """The shift of each step's pair, 0 where its mode is right."""
        shifts = shifts_of(self.wrong_modes, self.modulus)
        return tuple(shifts.get(pair, 0) for pair in zip(operators, numbers[1:], strict=True))

    def _expected(self, numbers: list[int], operators: list[str]) -> list[list[float]]:
        """The reward to come after so many results, by what the running value is off by; of a
        perfect verifier.
        """
        shifts = self._shifts(numbers, operators)
        return expected_rewards(self.modulus, self.error_rate, shifts, self.reward_by == "steps")
