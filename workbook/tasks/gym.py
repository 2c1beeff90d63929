"""reasoning-gym's procedural data sets as tasks: questions generated offline, each with one answer.

Its own verifiers never see a completion: some hand a model's text to `eval` or to sympy's parser,
which evaluates it too, and many read past what they do not know ("not 4", "4 or 5" or "-4" earn
full marks somewhere). An answer is read in its prescribed place and compared with the reference
(`workbook.tasks.verify`), so data sets whose questions have several right answers are refused.
"""

import random
from difflib import get_close_matches
from typing import Any

import numpy as np
import reasoning_gym
from datasets import Dataset
from reasoning_gym.factory import DATASETS

from workbook.messages import InvalidValue
from workbook.tasks.task import Task, as_prompt, positive_int
from workbook.tasks.verify import agrees, folded, stated_answer

_SEVERAL_ANSWERS = """
    boxnet codeio composite countdown graph_color group_anagrams intermediate_integration jugs
    kakurasu knight_swap n_queens palindrome_generation palindrome_partitioning propositional_logic
    puzzle24 quantum_lock rubiks_cube rush_hour shortest_path simple_integration sokoban
    tower_of_hanoi
"""
# they iterate over sets of strings, so that their rows differ from process to process
_NO_SEED = "isomorphic_strings ransom_note word_ladder"
_REFUSALS = {
    **dict.fromkeys(
        _SEVERAL_ANSWERS.split(), "its questions have more right answers than the one it names"
    ),
    **dict.fromkeys(_NO_SEED.split(), "its rows have no seed"),
}
# reasoning-gym's row i of seed s is row i - 1 of seed s + 1: seeds must lie far apart
_SEED_STRIDE = 1_000_003


class Gym(Task):
    """The task "gym:<dataset>"; options are the fields of that data set's own config.

    chat: prompts are chat messages (default) or plain text.
    instruction: a sentence put after each question.

    Raises ValueError for a data set that does not exist, that is refused, or that refuses its
    config.
    """

    def __init__(
        self, dataset: str, chat: bool = True, instruction: str = "", **config: Any
    ) -> None:
        if dataset in _REFUSALS:
            raise InvalidValue(
                "dataset",
                dataset,
                "another data set, such as 'chain_sum'",
                f"dataset={dataset!r} is refused: {_REFUSALS[dataset]}; 'chain_sum' is one that is"
                " taken.",
            )
        if dataset not in DATASETS:
            allowed = allowed_datasets()
            # a slip of the pen is answered by names like it
            near = get_close_matches(dataset, allowed, n=3) or allowed[:8]
            raise InvalidValue(
                "dataset",
                dataset,
                f"one of the {len(allowed)} of reasoning-gym that are taken, such as"
                f" {', '.join(near)}; workbook.tasks.gym.allowed_datasets() lists them",
            )
        # fields of every config, which `dataset` sets
        for option in ("seed", "size"):
            if option in config:
                raise InvalidValue(
                    option,
                    config[option],
                    "left out",
                    f"{option} is set by .dataset(n, seed), and is no option of gym data set"
                    f" {dataset!r}.",
                )
        self.name = f"gym:{dataset}"
        self.source = dataset
        self.config = config
        self.chat = chat
        self.instruction = instruction
        # so that a config is refused now
        self._generate(1, 0)

    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows prompt, answer; questions may repeat in a small config."""
        positive_int("n", n, 1, _SEED_STRIDE)
        positive_int("seed", seed, 0)
        prompts = []
        answers = []
        for row in self._generate(n, seed):
            question = f"{row['question']}\n{self.instruction}".strip()
            prompts.append(as_prompt(question, self.chat))
            answers.append(str(row["answer"]))
        return Dataset.from_dict({"prompt": prompts, "answer": answers})

    def score(self, completion: str, answer: str, **row: Any) -> float:
        """Return 1 if the completion states the reference in its place; see `verify.agrees`."""
        return float(agrees(completion, answer))

    def stated(self, completion: str) -> str | None:
        """Return what stands in the prescribed place, without case and markup, None without it."""
        stated = stated_answer(completion)
        return None if stated is None else folded(stated)

    def _generate(self, n: int, seed: int) -> list[dict]:
        """Return n rows.

        Some data sets draw from the global generators: these get a seed, and are restored after.
        """
        python_state = random.getstate()
        numpy_state = np.random.get_state()
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            rows = reasoning_gym.create_dataset(
                self.source, size=n, seed=seed * _SEED_STRIDE % 2**31, **self.config
            )
            return list(rows)
        except (TypeError, AssertionError, ValueError) as error:
            config_class = DATASETS[self.source][1]
            fields = [
                name for name in config_class.__dataclass_fields__ if name not in ("seed", "size")
            ]
            # its own messages do not name an unknown option
            unknown = [f"it has no {name}" for name in self.config if name not in fields]
            reason = "; ".join(unknown) or str(error).strip() or type(error).__name__
            raise ValueError(
                f"{self.name} refuses {self.config}: {reason}; its options are {', '.join(fields)}."
            ) from None
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


def allowed_datasets() -> list[str]:
    """Return the names that get_task("gym:<name>") takes."""
    return sorted(set(DATASETS) - set(_REFUSALS))
