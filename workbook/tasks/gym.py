"""reasoning-gym's procedural data sets as tasks: verifiable, generated offline, scored by their own verifiers.

Some of those verifiers hand the model's text to `eval` or to sympy's parser, which evaluates it too. They are refused
here, found by reading their source, so that one which a later reasoning-gym adds is refused as well. The others get a
short, plain span of the completion, never the completion itself.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import reasoning_gym
from datasets import Dataset
from reasoning_gym.factory import DATASETS

from workbook.tasks.task import Task, as_prompt, positive_int
from workbook.tasks.verify import as_number, stated_answer, stated_number

EVALUATORS = {"eval", "exec", "compile", "parse_expr", "sympify"}
AUDITED = {"basic_arithmetic"}  # evaluates the expression it has generated itself, and compares the answer as text
REFUSED = {
    "composite": "it scores with the verifiers of its members, whichever those are",
    "rubiks_cube": "its verifier plays a move as many times as the text says",
    "sokoban": "its verifier takes a tenth of a second over a long text",
}
SEED_STRIDE = 1_000_003  # reasoning-gym's row i of seed s is row i - 1 of seed s + 1: seeds must lie far apart
HUGE_EXPONENT = re.compile(r"[eE][+-]?[0-9]{4}")  # exact arithmetic on such a number takes for ever


class Gym(Task):
    """The task "gym:<dataset>"; options are the fields of that data set's own config.

    chat: prompts are chat messages (default) or plain text. instruction: a sentence put after each question.
    partial: pass on reasoning-gym's partial credit, which pays half for 14 where 4 is right; by default the reward is 1
    or 0.
    Raises ValueError for a data set that does not exist, that evaluates model text, or that refuses its config.
    """

    def __init__(
        self, dataset: str, chat: bool = True, instruction: str = "", partial: bool = False, **config: Any
    ) -> None:
        if dataset not in DATASETS:
            raise ValueError(f"gym data set is {dataset!r}, but must be one of: {', '.join(allowed_datasets())}.")
        if not is_allowed(dataset):
            raise ValueError(
                f"gym data set {dataset!r} is refused: its module evaluates text; 'chain_sum' is one that does not."
            )
        if taken := {"seed", "size"} & set(config):
            raise ValueError(
                f"{sorted(taken)[0]} is set by .dataset(n, seed), and is no option of gym data set {dataset!r}."
            )
        self.name, self.source, self.config = f"gym:{dataset}", dataset, config
        self.chat, self.instruction, self.partial = chat, instruction, partial
        self._scorer = self._generate(1, 0)
        self._verify_verifier()

    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows prompt, answer, metadata (JSON, for the verifier); questions may repeat in a small config."""
        entries = list(self._generate(positive_int("n", n, 1, SEED_STRIDE), positive_int("seed", seed, 0)))
        rows = {"prompt": [], "answer": [], "metadata": []}
        for entry in entries:
            rows["prompt"].append(as_prompt(f"{entry['question']}\n{self.instruction}".strip(), self.chat))
            rows["answer"].append(str(entry["answer"]))
            rows["metadata"].append(json.dumps(entry["metadata"], default=str))
        return Dataset.from_dict(rows)

    def score(self, completion: str, answer: str, metadata: str = "{}", **row: Any) -> float:
        """Return 1 if reasoning-gym gives full marks to the stated answer, else 0; if partial, its marks."""
        if as_number(answer) is not None:
            stated = stated_number(completion) or ""
        else:
            stated = stated_answer(completion, lines="\n" in answer.strip())
        if not stated or HUGE_EXPONENT.search(stated):
            return 0.0
        entry = {"question": "", "answer": answer, "metadata": json.loads(metadata)}
        marks = float(self._scorer.score_answer(stated, entry))
        return marks if self.partial else float(marks >= 1)

    def _verify_verifier(self) -> None:
        """Refuse a verifier that pays nonsense, or that does not pay its own answers as we store them."""
        rows = self.dataset(3)
        for answer, metadata in zip(rows["answer"], rows["metadata"], strict=True):
            texts = [f"<answer>{answer}</answer>", "<answer>qzx</answer>"]
            right, nonsense = self.reward(texts, texts, [answer] * 2, metadata=[metadata] * 2)
            if right < 0.99 or nonsense > 0.5:
                paid = f"{right:.2f} for its own answer and {nonsense:.2f} for nonsense"
                raise ValueError(
                    f"{self.name} is refused: its verifier pays {paid}; 'gym:chain_sum' is one that is taken."
                )

    def _generate(self, n: int, seed: int) -> Any:
        try:
            return reasoning_gym.create_dataset(self.source, size=n, seed=seed * SEED_STRIDE % 2**31, **self.config)
        except (TypeError, AssertionError, ValueError) as error:
            fields = [field for field in DATASETS[self.source][1].__dataclass_fields__ if field not in ("seed", "size")]
            raise ValueError(
                f"{self.name} refuses {self.config}: {error}; its options are {', '.join(fields)}."
            ) from None


def is_allowed(dataset: str) -> bool:
    """Return whether no code in the module of a data set's class calls an evaluator by name."""
    module = inspect.getmodule(DATASETS[dataset][0])
    return dataset in AUDITED or (dataset not in REFUSED and not EVALUATORS & set(_called(module)))


def allowed_datasets() -> list[str]:
    """Return the names that get_task("gym:<name>") takes."""
    return [name for name in sorted(DATASETS) if is_allowed(name)]


def _called(module: ModuleType) -> Iterator[str]:
    """Yield the bare name of everything that a module's source calls, but for re.compile and the like."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name):
                yield function.id
            elif isinstance(function, ast.Attribute) and function.attr != "compile":
                yield function.attr
