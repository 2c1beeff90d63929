"""reasoning-gym's procedural data sets as tasks: questions generated offline, each with its one
answer.

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

SEVERAL = """
    boxnet codeio composite countdown graph_color group_anagrams intermediate_integration jugs kakurasu knight_swap
    n_queens palindrome_generation palindrome_partitioning propositional_logic puzzle24 quantum_lock rubiks_cube
    rush_hour shortest_path simple_integration sokoban tower_of_hanoi
"""
REFUSED = dict.fromkeys(
    SEVERAL.split(), "its questions have more right answers than the one it names"
)
# they iterate over sets of strings, so that their rows differ from process to process
REFUSED |= dict.fromkeys(
    ("isomorphic_strings", "ransom_note", "word_ladder"), "its rows have no seed"
)
# reasoning-gym's row i of seed s is row i - 1 of seed s + 1: seeds must lie far apart
SEED_STRIDE = 1_000_003


class Gym(Task):
    """The task "gym:<dataset>"; options are the fields of that data set's own config.

    chat: prompts are chat messages (default) or plain text. instruction: a sentence put after each
    question. Raises ValueError for a data set that does not exist, that is refused, or that refuses
    its config.
    """

    def __init__(
        self, dataset: str, chat: bool = True, instruction: str = "", **config: Any
    ) -> None:
        if dataset in REFUSED:
            raise InvalidValue(
                "dataset",
                dataset,
                "another data set, such as 'chain_sum'",
                f"dataset={dataset!r} is refused: {REFUSED[dataset]}; 'chain_sum' is one that is"
                " taken.",
            )
        if dataset not in DATASETS:
            near = get_close_matches(dataset, taken := allowed_datasets(), n=3) or taken[:8]
            raise InvalidValue(
                "dataset",
                dataset,
                f"one of the {len(taken)} of reasoning-gym that are taken, such as"
                f" {', '.join(near)}; workbook.tasks.gym.allowed_datasets() lists them",
            )
        if taken := {"seed", "size"} & set(config):
            raise InvalidValue(
                sorted(taken)[0],
                config[sorted(taken)[0]],
                "left out",
                f"{sorted(taken)[0]} is set by .dataset(n, seed), and is no option of gym data set"
                f" {dataset!r}.",
            )
        self.name, self.source, self.config = f"gym:{dataset}", dataset, config
        self.chat, self.instruction = chat, instruction
        self._generate(1, 0)  # so that a config is refused now

    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows prompt, answer; questions may repeat in a small config."""
        rows = self._generate(positive_int("n", n, 1, SEED_STRIDE), positive_int("seed", seed, 0))
        prompts = [
            as_prompt(f"{row['question']}\n{self.instruction}".strip(), self.chat) for row in rows
        ]
        return Dataset.from_dict(
            {"prompt": prompts, "answer": [str(row["answer"]) for row in rows]}
        )

    def score(self, completion: str, answer: str, **row: Any) -> float:
        """Return 1 if the completion states the reference answer in the prescribed place; see
        `verify.agrees`.
        """
        return float(agrees(completion, answer))

    def stated(self, completion: str) -> str | None:
        """Return what stands in the prescribed place, without case and markup; see
        `verify.stated_answer`.
        """
        return None if (found := stated_answer(completion)) is None else folded(found)

    def _generate(self, n: int, seed: int) -> list[dict]:
        """Return n rows; the global generators, from which some data sets draw, get a seed and are
        restored after.
        """
        states, first = (random.getstate(), np.random.get_state()), seed * SEED_STRIDE % 2**31
        random.seed(seed)
        np.random.seed(seed % 2**32)
        try:
            return list(
                reasoning_gym.create_dataset(self.source, size=n, seed=first, **self.config)
            )
        except (TypeError, AssertionError, ValueError) as error:
            fields = [
                field
                for field in DATASETS[self.source][1].__dataclass_fields__
                if field not in ("seed", "size")
            ]
            unknown = [f"it has no {name}" for name in self.config if name not in fields]
            reason = "; ".join(unknown) or str(error).strip() or type(error).__name__
            raise ValueError(
                f"{self.name} refuses {self.config}: {reason}; its options are {', '.join(fields)}."
            ) from None
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def allowed_datasets() -> list[str]:
    """Return the names that get_task("gym:<name>") takes."""
    return sorted(set(DATASETS) - set(REFUSED))
