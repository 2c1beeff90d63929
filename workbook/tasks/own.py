"""A reader's own prompts and reward: a CSV or JSON-lines file, and a Python function.

    prompt,answer,topic                          def score(completion, answer, topic):
    What is 2 + 3?,5,sums                            return float(answer in completion)

Rows that can't be used are all named, by line, before any of them is; nothing is half-loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset

from workbook.tasks.inputs import completion_text, positive_int, short
from workbook.tasks.own_reward import InProcess, InThread
from workbook.tasks.own_rows import LINE, BadRows, read_rows, read_source
from workbook.tasks.task import Task, as_prompt, split_rows

__all__ = ["BadRows", "Own", "own_task", "read_rows"]


class Own(Task):
    """The task "own:<data file>": rows of one's own, scored by a function of one's own; arguments as of `own_task`."""

    def __init__(
        self, data: str | Path | list[dict], reward: str | Callable, chat: bool = False, seconds: float = 2.0
    ) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 600:
            raise ValueError(f"seconds is {short(seconds)}, but must be a number above 0 and at most 600.")
        if not isinstance(chat, bool):
            raise ValueError(f"chat is {short(chat)}, but must be true or false.")
        self.rows, self._rows_sha256 = read_source(data)
        self.source = "rows" if isinstance(data, list) else Path(data).name
        self.name, self.chat = f"own:{'rows' if isinstance(data, list) else data}", chat
        self._call = _caller(reward, seconds)

    @property
    def sources(self) -> dict[str, str]:
        """SHA-256 of the rows and of the reward's file with those beside it that it imports, or of its function."""
        reward = {f"reward {name}": digest for name, digest in self._call.files.items()}
        return {f"prompts {self.source}": self._rows_sha256} | reward

    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows drawn without replacement: prompt, answer, line and the file's other columns."""
        return self.split(positive_int("n", n), 0, seed)[0]

    def split(self, train: int, held_out: int, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Return rows to train on and rows held out, which share no prompt; ValueError if there are too few rows."""
        rows = Dataset.from_list(self.rows).shuffle(seed=positive_int("seed", seed, 0))
        trained, held = split_rows(rows, rows["prompt"], train, held_out, self.source)
        return self._posed(trained), self._posed(held)

    def _posed(self, rows: Dataset) -> Dataset:
        """Rows with their prompts as the policy gets them."""
        if not self.chat:
            return rows
        columns = {name: rows[name] for name in rows.column_names if name != "prompt"}
        return Dataset.from_dict(columns | {"prompt": [as_prompt(prompt, chat=True) for prompt in rows["prompt"]]})

    def score(self, completion: str, answer: str, **row: Any) -> float:
        """Return what the function gives; ValueError, naming the row, if that is not one finite number in time."""
        result = self._call(completion, answer, row)
        if "problem" in result:
            where = f"line {row[LINE]} of {self.source}" if LINE in row else f"the answer {answer!r}"
            raise ValueError(f"The reward function {self._call.name} {result['problem']}, at {where}.")
        return result["reward"]

    def reward(self, prompts: list, completions: list, answer: list[str], **columns: Any) -> list[float]:
        """As in `Task`, but neither clamped nor forgiving: a function that fails ends the run, in a sentence."""
        per_row = {
            key: value
            for key, value in columns.items()
            if isinstance(value, list) and len(value) == len(answer) and key in self.rows[0]
        }
        per_row["prompt"] = [completion_text(prompt) for prompt in prompts]
        return [
            self.score(completion_text(completion), truth, **{key: value[i] for key, value in per_row.items()})
            for i, (completion, truth) in enumerate(zip(completions, answer, strict=True))
        ]


def own_task(
    path_or_rows: str | Path | list[dict],
    reward: str | Callable | None = None,
    chat: bool = False,
    seconds: float = 2.0,
) -> Own:
    """Return a task of one's own rows and reward function.

    path_or_rows: the path of a .csv, .jsonl or .json (lines) file, or a list of dicts; each row has the columns prompt
    and answer, and whatever else the function wants to know.
    reward: (completion, answer, **row) -> a finite number; row holds those further columns that the function takes by
    name (all, if it takes **row), the prompt, and the row's line. Named as "<file>.py:<function>" it can be written
    into a run's config (`task: own:<data file>`, `task_options: {reward: ...}`) and is ended when it hangs; a function
    at hand works in this process alone, where one that hangs is given up, but goes on.
    chat: prompts become the chat message of a user.  seconds: the most that one call may take.

    Raises BadRows for rows, ValueError for a file, column or function that can't be used.

    >>> rows = [{"prompt": "2 + 3 =", "answer": 5}, {"prompt": "2 + 2 =", "answer": 4}]
    >>> task = own_task(rows, lambda completion, answer: answer in completion)
    >>> task.reward(["2 + 3 ="], ["it is 5"], ["5"])
    [1.0]
    """
    return Own(path_or_rows, reward, chat, seconds)


def _caller(reward: str | Callable, seconds: float) -> InProcess | InThread:
    if callable(reward):
        return InThread(reward, seconds)
    file, colon, function = reward.rpartition(":") if isinstance(reward, str) else ("", "", "")
    if not colon or not file.endswith(".py") or not function.isidentifier():
        raise ValueError(f"reward is {short(reward, 200)}, but must be '<file>.py:<function>', or a function.")
    return InProcess(file, function, seconds)
