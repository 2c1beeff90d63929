"""Any question-and-answer data set as a task, from a hub or a local folder.

`datasets` loads it, running none of its code. An answer is read in its prescribed place and
compared with the reference (`workbook.tasks.verify`).
"""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
from datasets import Dataset, load_dataset
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError

from workbook.messages import InvalidValue, one_line
from workbook.tasks.task import RowsTask, as_prompt
from workbook.tasks.verify import agrees, folded, stated_answer

HUB_TIMEOUT_S = 5.0  # until a hub counts as unreachable


class Hub(RowsTask):
    """The task "hub:<dataset>": a hub id or a local folder of Parquet, JSON lines, CSV, ...

    prompt_column, answer_column: columns of that data set; of an answer with `####` in it (GSM8K)
    what follows counts.
    split, subset: as in `datasets.load_dataset`.
    chat: prompts are chat messages (default) or plain text.
    instruction: a sentence put after each question.

    Raises ValueError for what is not there, naming what is.
    """

    def __init__(
        self,
        dataset: str,
        prompt_column: str = "question",
        answer_column: str = "answer",
        split: str = "train",
        subset: str | None = None,
        chat: bool = True,
        instruction: str = "",
    ) -> None:
        self.name = f"hub:{dataset}"
        self.source = self.name
        self.chat = chat
        self.instruction = instruction
        self.prompt_column = prompt_column
        self.answer_column = answer_column
        self.rows = _load(dataset, subset, split)
        for field, column in (("prompt_column", prompt_column), ("answer_column", answer_column)):
            if column not in self.rows.column_names:
                raise InvalidValue(
                    field,
                    column,
                    f"a column of {dataset!r}, which has {', '.join(self.rows.column_names)}",
                )

    def score(self, completion: str, answer: str, **row: Any) -> float:
        """Return 1 if the completion states the reference in its place; see `verify.agrees`."""
        return float(agrees(completion, answer))

    def stated(self, completion: str) -> str | None:
        """Return what stands in the prescribed place, without case and markup, None without it."""
        stated = stated_answer(completion)
        return None if stated is None else folded(stated)

    def posed(self, rows: Dataset) -> Dataset:
        """Return prompt and answer, of a worked answer what follows `####`."""
        prompts = []
        for prompt in rows[self.prompt_column]:
            # a question, or chat messages already
            if not isinstance(prompt, list):
                question = f"{prompt}\n{self.instruction}".strip()
                prompts.append(as_prompt(question, self.chat))
            elif self.chat:
                prompts.append(prompt)
            else:
                prompts.append("\n".join(message["content"] for message in prompt))
        answers = [str(answer).rsplit("####", 1)[-1].strip() for answer in rows[self.answer_column]]
        return Dataset.from_dict({"prompt": prompts, "answer": answers})


def _load(dataset: str, subset: str | None, split: str) -> Dataset:
    """Load one split of a local folder, of a hub, or of an earlier download from one.

    A hub that does not answer within HUB_TIMEOUT_S is not asked.
    """
    # every refusal ends with what needs no network
    advice = "give a local folder, or use 'chain' or 'gym:<dataset>', which need no hub"
    local = Path(dataset).expanduser()
    if not local.exists() and dataset.startswith((".", "/", "~")):
        raise InvalidValue(
            "dataset",
            dataset,
            "a folder that is there, or a hub id",
            f"dataset={dataset!r} is no folder: {advice}.",
        )
    try:
        if local.exists():
            return load_dataset(str(local), subset, split=split)
        # of a silent hub `datasets` would ask again and again: its cache alone is looked at
        offline = constants.HF_HUB_OFFLINE or not _hub_answers(dataset)
        with (
            patch.multiple(constants, HF_HUB_OFFLINE=offline),
            patch.multiple(datasets.config, HF_HUB_OFFLINE=offline),
        ):
            return load_dataset(dataset, subset, split=split)
    # datasets, huggingface_hub and pyarrow raise errors of many classes
    except Exception as error:
        reason = one_line(error).rstrip(".") or type(error).__name__
        raise ValueError(
            f"cannot load {dataset!r} (subset {subset!r}, split {split!r}): {reason}; {advice}."
        ) from None


def _hub_answers(dataset: str) -> bool:
    """Return whether the hub answers in time, if only that it lacks the data set."""
    try:
        HfApi().dataset_info(dataset, timeout=HUB_TIMEOUT_S)
    # an HTTP error is an answer, a timeout is none
    except Exception as error:
        return isinstance(error, HfHubHTTPError)
    return True
