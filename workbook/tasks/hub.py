"""Any question-and-answer data set as a task, from a hub or local folder, by `datasets`, running
none of its code.
"""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
from datasets import Dataset, load_dataset
from huggingface_hub import HfApi, constants
from huggingface_hub.errors import HfHubHTTPError

from workbook.messages import InvalidValue
from workbook.tasks.task import RowsTask, as_prompt
from workbook.tasks.verify import agrees, folded, stated_answer

HUB_TIMEOUT_S = 5.0  # until a hub counts as unreachable


class Hub(RowsTask):
    """The task "hub:<dataset>": a hub id or a local folder of Parquet, JSON lines, CSV, ...

    prompt_column, answer_column: columns of that data set; of an answer with `####` in it (GSM8K)
    what follows counts. split, subset: as in `datasets.load_dataset`. chat: prompts are chat
    messages (default) or plain text.
    instruction: a sentence put after each question. Raises ValueError for what is not there, naming
    what is.
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
        self.name = self.source = f"hub:{dataset}"
        self.chat, self.instruction = chat, instruction
        self.prompt_column, self.answer_column = prompt_column, answer_column
        self.rows = _load(dataset, subset, split)
        for field, column in (("prompt_column", prompt_column), ("answer_column", answer_column)):
            if column not in self.rows.column_names:
                raise InvalidValue(
                    field,
                    column,
                    f"a column of {dataset!r}, which has {', '.join(self.rows.column_names)}",
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

    def posed(self, rows: Dataset) -> Dataset:
        """Return prompt and answer, of a worked answer what follows `####`."""
        prompts = []
        for prompt in rows[self.prompt_column]:
            if isinstance(prompt, list):  # chat messages already
                prompts.append(
                    prompt if self.chat else "\n".join(message["content"] for message in prompt)
                )
            else:
                prompts.append(as_prompt(f"{prompt}\n{self.instruction}".strip(), self.chat))
        answers = [str(answer).rsplit("####", 1)[-1].strip() for answer in rows[self.answer_column]]
        return Dataset.from_dict({"prompt": prompts, "answer": answers})


def _load(dataset: str, subset: str | None, split: str) -> Dataset:
    """Load one split of a local folder, of a hub that answers or, failing that, of an earlier
    download in the cache.
    """
    here = "give a local folder, or use 'chain' or 'gym:<dataset>', which need no hub"
    local = Path(dataset).expanduser()
    if not local.exists() and dataset.startswith((".", "/", "~")):
        raise InvalidValue(
            "dataset",
            dataset,
            "a folder that is there, or a hub id",
            f"dataset={dataset!r} is no folder: {here}.",
        )
    try:
        if local.exists():
            return load_dataset(str(local), subset, split=split)
        try:
            HfApi().dataset_info(dataset, timeout=HUB_TIMEOUT_S)
            silent = False
        except Exception as error:
            # else it has answered, if only that it lacks the data set
            silent = not isinstance(error, HfHubHTTPError)
        # of a silent hub `datasets` would ask again and again: its cache alone is looked at
        offline = silent or constants.HF_HUB_OFFLINE
        with (
            patch.multiple(constants, HF_HUB_OFFLINE=offline),
            patch.multiple(datasets.config, HF_HUB_OFFLINE=offline),
        ):
            return load_dataset(dataset, subset, split=split)
    except Exception as error:
        reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        raise ValueError(
            f"cannot load {dataset!r} (subset {subset!r}, split {split!r}): {reason}; {here}."
        ) from None
