"""reasoning-gym's procedural data sets as tasks: verifiable, generated offline, scored by their own verifiers.

Some of those verifiers hand the model's text to `eval` or to sympy's parser, which evaluates it too. They are refused
here, found by reading their source, so that one which a later reasoning-gym adds is refused as well. Many others read
past what they do not know: "not 4", "4 or 5", "nan" or "-4" earn full marks somewhere. So none of them sees a
completion: it must state its answer in the prescribed place (`workbook.tasks.verify`), and a data set's own verifier is
asked only about answers in that data set's notation (`NOTATIONS`), where one question has several right ones.
"""

import ast
import inspect
import json
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

import numpy as np
import reasoning_gym
from datasets import Dataset
from reasoning_gym.factory import DATASETS

from workbook.tasks.task import Task, as_prompt, positive_int
from workbook.tasks.verify import same_answer, stated_answer

EVALUATORS = {"eval", "exec", "compile", "parse_expr", "sympify"}
AUDITED = {"basic_arithmetic"}  # evaluates the expression it has generated itself, and compares the answer as text
REFUSED = {
    "composite": "it scores with the verifiers of its members, whichever those are",
    "rubiks_cube": "its verifier plays a move as many times as the text says",
    "sokoban": "its verifier takes a tenth of a second over a long text",
}
# they iterate over sets of strings, so that their rows differ from process to process
REFUSED |= dict.fromkeys(("isomorphic_strings", "knight_swap", "ransom_note", "word_ladder"), "its rows have no seed")
SEED_STRIDE = 1_000_003  # reasoning-gym's row i of seed s is row i - 1 of seed s + 1: seeds must lie far apart
DECIMAL = r"[-+]?[0-9]{1,20}(?:\.[0-9]{1,20})?"
NOTATIONS = {  # of data sets with several right answers to one question, or several ways to write one
    "advanced_geometry": rf"\({DECIMAL}, ?{DECIMAL}\)|{DECIMAL} ?°?",
    "complex_arithmetic": rf"{DECIMAL}|{DECIMAL} ?[ij]|{DECIMAL} ?[-+] ?[0-9]{{1,20}}(?:\.[0-9]{{1,20}})? ?[ij]",
    "cryptarithm": r"(?!.*\b([A-Z]) ?=.*\b\1 ?=)[A-Z] ?= ?[0-9](?:, ?[A-Z] ?= ?[0-9])*",
    "fraction_simplification": r"-?\$?\\?[dt]?frac\{-?[0-9]+\}\{[0-9]+\}\$?|-?[0-9]+ ?/ ?[0-9]+",
    "group_anagrams": r'\[(?:\["[a-z]+"(?:, ?"[a-z]+")*\](?:, ?)?)+\]',
    "jugs": r'\["[A-Za-z>\- ]+"(?:, ?"[A-Za-z>\- ]+")*\]',
    "kakurasu": r"[01](?:\s[01])*",
    "knights_knaves": r"\w+ is an? \w+(?:(?:, and |, | and )\w+ is an? \w+)*",
    "palindrome_generation": r"[A-Za-z]+",
    "palindrome_partitioning": r'\[(?:\["[a-z]+"(?:, ?"[a-z]+")*\](?:, ?)?)+\]',
    "polynomial_equations": rf"{DECIMAL}(?:, ?{DECIMAL})*",
    "pool_matrix": rf"{DECIMAL}(?:\s{DECIMAL})*",
    "power_function": rf"{DECIMAL}(?:[eE][-+]?[0-9]{{1,3}})?",
    "prime_factorization": r"[0-9]{1,12}(?: ?[×x*] ?[0-9]{1,12})*",
    "quantum_lock": r"[A-C](?: ?(?:→|->|,|\s) ?[A-C])*",
    "shortest_path": r"(?:up|down|left|right)(?: (?:up|down|left|right))*",
    "tower_of_hanoi": r"Move disk \d+ from Peg \d+ to Peg \d+(?:\s+Move disk \d+ from Peg \d+ to Peg \d+)*",
}


class Gym(Task):
    """The task "gym:<dataset>"; options are the fields of that data set's own config.

    chat: prompts are chat messages (default) or plain text. instruction: a sentence put after each question.
    Raises ValueError for a data set that does not exist, that is refused, or that refuses its config.
    """

    def __init__(self, dataset: str, chat: bool = True, instruction: str = "", **config: Any) -> None:
        if dataset not in DATASETS:
            near = get_close_matches(dataset, taken := allowed_datasets(), n=3) or taken[:8]
            raise ValueError(
                f"gym data set is {dataset[:60]!r}, but must be one of the {len(taken)} of reasoning-gym that are "
                f"taken, such as {', '.join(near)}; workbook.tasks.gym.allowed_datasets() lists them."
            )
        if not is_allowed(dataset):
            raise ValueError(
                f"gym data set {dataset!r} is refused: {REFUSED.get(dataset, 'its module evaluates text')}; "
                "'chain_sum' is one that is taken."
            )
        if taken := {"seed", "size"} & set(config):
            raise ValueError(
                f"{sorted(taken)[0]} is set by .dataset(n, seed), and is no option of gym data set {dataset!r}."
            )
        self.name, self.source, self.config = f"gym:{dataset}", dataset, config
        self.chat, self.instruction = chat, instruction
        self._notation = re.compile(NOTATIONS[dataset]) if dataset in NOTATIONS else None
        with _own_generators(0):
            self._scorer = self._generate(1, 0)

    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows prompt, answer, metadata (JSON, for the verifier); questions may repeat in a small config."""
        with _own_generators(positive_int("seed", seed, 0)):
            rows = list(self._generate(positive_int("n", n, 1, SEED_STRIDE), seed))
        prompts = [as_prompt(f"{row['question']}\n{self.instruction}".strip(), self.chat) for row in rows]
        metadata = [json.dumps(row["metadata"], default=str) for row in rows]
        return Dataset.from_dict(
            {"prompt": prompts, "answer": [str(row["answer"]) for row in rows], "metadata": metadata}
        )

    def score(self, completion: str, answer: str, metadata: str = "{}", **row: Any) -> float:
        """Return 1 if the stated answer is the reference, or in the notation and right by the verifier, else 0."""
        stated = stated_answer(completion)
        if stated is not None and same_answer(stated, answer):
            return 1.0
        if stated is None or self._notation is None or not self._notation.fullmatch(stated):
            return 0.0
        entry = {"question": "", "answer": answer, "metadata": json.loads(metadata)}
        return float(self._scorer.score_answer(stated, entry) >= 1)

    def _generate(self, n: int, seed: int) -> Any:
        try:
            return reasoning_gym.create_dataset(self.source, size=n, seed=seed * SEED_STRIDE % 2**31, **self.config)
        except (TypeError, AssertionError, ValueError) as error:
            fields = [field for field in DATASETS[self.source][1].__dataclass_fields__ if field not in ("seed", "size")]
            unknown = [f"it has no {name}" for name in self.config if name not in fields]
            reason = "; ".join(unknown) or str(error).strip() or type(error).__name__
            raise ValueError(
                f"{self.name} refuses {self.config}: {reason}; its options are {', '.join(fields)}."
            ) from None


@contextmanager
def _own_generators(seed: int) -> Iterator[None]:
    """Give Python's and NumPy's global generators, from which some data sets draw, a seed, and restore them after."""
    states = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


def is_allowed(dataset: str) -> bool:
    """Return whether no code in the module of a data set's class calls an evaluator by name."""
    module = inspect.getmodule(DATASETS[dataset][0])
    calls = [node.func for node in ast.walk(ast.parse(inspect.getsource(module))) if isinstance(node, ast.Call)]
    called = {call.id for call in calls if isinstance(call, ast.Name)}
    called |= {call.attr for call in calls if isinstance(call, ast.Attribute)} - {"compile"}  # re.compile and the like
    return dataset in AUDITED or (dataset not in REFUSED and not EVALUATORS & called)


def allowed_datasets() -> list[str]:
    """Return the names that get_task("gym:<name>") takes."""
    return [name for name in sorted(DATASETS) if is_allowed(name)]
