"""What every task offers: prompts with answers, a reward that verifies and, where known, the credit of each token."""

from abc import ABC, abstractmethod
from typing import Any

from datasets import Dataset

from workbook.tasks.verify import clamp, completion_text

Annotation = list[tuple[str, float]]


class Task(ABC):
    """Prompts, answers and a verifier; `reward` is handed to TRL as it is.

    A subclass gives `name`, `dataset` and `score`; `annotate` only where the true credit of tokens is known.
    """

    name: str

    @abstractmethod
    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows with the columns prompt (text or chat messages) and answer, the same rows for the same seed."""

    @abstractmethod
    def score(self, completion: str, answer: str, **row: Any) -> float:
        """Return the score of one completion text; `reward` clamps it to [0, 1] and turns an exception into 0."""

    def reward(self, prompts: list, completions: list, answer: list[str], **columns: Any) -> list[float]:
        """Return one reward in [0, 1] per completion, as a TRL reward function.

        prompts and completions: B texts, or B lists of chat messages; answer: B texts. Further columns of the data set
        reach `score` row by row, TRL's own arguments do not matter. Nothing a model writes raises an exception here.
        """
        per_row = {
            key: value for key, value in columns.items() if isinstance(value, list) and len(value) == len(answer)
        }
        rewards = []
        for i, (completion, truth) in enumerate(zip(completions, answer, strict=True)):
            try:
                row = {key: value[i] for key, value in per_row.items()}
                rewards.append(clamp(self.score(completion_text(completion), str(truth), **row)))
            except Exception:  # a verifier that trips over a text has not verified it
                rewards.append(0.0)
        return rewards

    def annotate(self, prompt: Any, answer: str, tokens: list[str]) -> Annotation | None:
        """Return (category, true credit) per completion token, None where the task does not know them."""
        return None


def as_prompt(text: str, chat: bool) -> str | list[dict[str, str]]:
    """Return a question as it is, or as the chat message of a user."""
    return [{"role": "user", "content": text}] if chat else text


def positive_int(field: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return value if it is an integer in [least, most], else raise a ValueError that names the field."""
    inside = (
        isinstance(value, int) and not isinstance(value, bool) and value >= least and (most is None or value <= most)
    )
    if not inside:
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{field} is {value!r}, but must be an integer {limits}.")
    return value
