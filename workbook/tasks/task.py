"""Tasks: prompts with answers, a reward that verifies, where known each token's credit; what a reader wrote, loaded."""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unicodedata import normalize

from datasets import Dataset


def short(value: Any, most: int = 60) -> str:
    """Return a value as Python writes it, of one that is long the beginning."""
    try:
        text = repr(value)
    except ValueError:  # an integer of too many digits
        text = f"a {type(value).__name__} that can't be shown"
    return text if len(text) <= most else f"{text[: most - 4]} ..."


def positive_int(field: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return value if it is an integer in [least, most], else raise a ValueError that names the field."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{field} is {short(value)}, but must be an integer {limits}.")
    return value


def completion_text(completion: object) -> str:
    """Return the text of one completion: a string as it is, of chat messages the last one's content, of all else "".

    >>> completion_text([{"role": "assistant", "content": "so the answer is 2"}])
    'so the answer is 2'
    """
    if isinstance(completion, list | tuple) and completion:
        completion = completion[-1]
    if isinstance(completion, dict):
        completion = completion.get("content")
    return completion if isinstance(completion, str) else ""


def clamp(score: object) -> float:
    """Return a score as a float in [0, 1]; what is not a finite number gives 0.

    >>> clamp(1.7), clamp(float("nan")), clamp(None), clamp(True)
    (1.0, 0.0, 0.0, 1.0)
    """
    try:
        number = float(score)
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(1.0, max(0.0, number)) if math.isfinite(number) else 0.0


def function_file(named: str, kind: str) -> tuple[Path, str]:
    """Return file and function of "<file>.py:<function>"; ValueError, naming the kind, for anything else."""
    file, _, function = named.rpartition(":") if isinstance(named, str) else ("", "", "")
    if not file.endswith(".py") or not function.isidentifier():
        raise ValueError(f"{kind} is {short(named, 200)}, but must be '<file>.py:<function>', or a function.")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise ValueError(
            f"the {kind} file {short(file, 200)} is no Python file; give the path of an existing .py file."
        )
    return path, function


def load_function(named: str, kind: str) -> Callable:
    """Import "<file>.py:<function>" with its folder importable, for helpers beside it, and return the function.

    Raises ValueError, in one sentence with the line of the file, if it can't be imported or has no such function.
    """
    path, name = function_file(named, kind)
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # data classes look themselves up there
    sys.path.insert(0, str(path.parent))
    # bytecode left beside a file would, after an edit within the same second, pass for that of the new text
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(f"the {kind} file {path.name} can't be imported: {error_line(error, path)}.") from None
    finally:
        sys.dont_write_bytecode = kept
        sys.path.remove(str(path.parent))
    function = getattr(module, name, None)
    if not callable(function):
        own = [key for key, value in vars(module).items() if inspect.isfunction(value) and not key.startswith("_")]
        raise ValueError(f"{path.name} has no function {name!r}; it has {', '.join(own[:20]) or 'none'}.")
    return function


def error_line(error: BaseException, path: Path | None = None) -> str:
    """Return an exception in one line, with the last line of the file `path` that it came through.

    >>> error_line(KeyError("topic"))
    "KeyError: 'topic'"
    """
    text = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".rstrip(": ")
    lines = [
        frame.lineno for frame in traceback.extract_tb(error.__traceback__) if path and frame.filename == str(path)
    ]
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{type(error).__name__}: {error.msg} (line {error.lineno})"
    return f"{text} (line {lines[-1]} of {path.name})" if lines else text


Annotation = list[tuple[str, float]]

HELD_OUT_SEED = 1_000_003  # added to a seed for held-out prompts: they come from another stream than training prompts
MAX_REDRAWS = 64  # of a stream, per held-out row, in search of prompts that are not trained on


class Task(ABC):
    """Prompts, answers and a verifier; `reward` is handed to TRL as it is.

    A subclass gives `name`, `dataset` and `score`; `annotate` only where the true credit of tokens is known.
    """

    name: str

    @abstractmethod
    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows with the columns prompt (text or chat messages) and answer, the same rows for the same seed."""

    @property
    def sources(self) -> dict[str, str]:
        """SHA-256 of each file or function of the reader's own that the task is made of, by a short name."""
        return {}

    def split(self, train: int, held_out: int, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Return train rows and held_out rows (0 or more), of which no prompt is among the training prompts.

        Training rows are `dataset(train, seed)`, held-out rows those of seed + HELD_OUT_SEED; where these repeat a
        training prompt, further rows of that stream stand in. Raises ValueError if there are too few.
        """
        rows = self.dataset(train, seed)
        if positive_int("held_out", held_out, 0) == 0:
            return rows, rows.select([])
        return rows, held_out_rows(self, set(map(prompt_key, rows["prompt"])), held_out, seed + HELD_OUT_SEED)

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

    def calibrated(self, completions: Iterable[str]) -> Task:
        """Return the task whose `annotate` knows the credit under the policy that wrote these completions."""
        return self


def held_out_rows(task: Task, trained: set[str], n: int, seed: int) -> Dataset:
    """Return n rows of a task's stream `seed` whose `prompt_key` is not in trained; the first n where none of them is.

    Replacements are distinct. Raises ValueError if n * MAX_REDRAWS rows of the stream do not have enough of them.
    """
    rows, drawn = task.dataset(n, seed), n
    kept = [row for row in rows if prompt_key(row["prompt"]) not in trained]
    while len(kept) < n and drawn < n * MAX_REDRAWS:
        drawn *= 2
        seen = trained | {prompt_key(row["prompt"]) for row in kept}
        fresh = {key: row for row in task.dataset(drawn, seed) if (key := prompt_key(row["prompt"])) not in seen}
        kept += fresh.values()
    if len(kept) < n:
        raise ValueError(
            f"{task.name} has too few prompts to hold out {n}: of {drawn} drawn, {len(kept)} are not among the "
            f"{len(trained)} that are trained on; take fewer of either, or options that give more prompts."
        )
    return Dataset.from_list(kept[:n], features=rows.features)


def split_rows(rows: Dataset, prompts: Iterable, train: int, held_out: int, source: str) -> tuple[Dataset, Dataset]:
    """Split rows that stand in the order in which they are drawn: the first to train, the last held out.

    prompts: of the rows, one each; no prompt is on both sides. Raises ValueError, naming the source and the numbers,
    if there are too few rows.
    """
    positive_int("train", train)
    positive_int("held_out", held_out, 0)
    keys = list(map(prompt_key, prompts))
    last = {key: place for place, key in enumerate(keys)}
    held = sorted(range(len(keys)), key=lambda place: (-last[keys[place]], -place))[:held_out]
    taken = {keys[place] for place in held}
    trained = [place for place, key in enumerate(keys) if key not in taken][:train]
    if len(trained) < train or len(held) < held_out:
        repeated = f", with {len(last)} different prompts" if len(last) < len(keys) else ""
        both = f"{train} prompts to train and {held_out} held out" if held_out else f"{train} prompts"
        raise ValueError(f"{both} are asked for, but {source} has {len(keys)} rows{repeated}; ask for fewer.")
    return rows.select(trained), rows.select(held)


def prompt_key(prompt: Any) -> str:
    """Return what two prompts have in common if they ask the same: their text, however it is spaced and composed.

    >>> prompt_key("caf\\u00e9  =") == prompt_key("cafe\\u0301 =\\n")
    True
    """
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, default=str, ensure_ascii=False)
    return " ".join(normalize("NFC", text).split())


def as_prompt(text: str, chat: bool) -> str | list[dict[str, str]]:
    """Return a question as it is, or as the chat message of a user."""
    return [{"role": "user", "content": text}] if chat else text
