"""What a task is: prompts, answers, a reward that verifies, and where known each token's credit.

GRPO needs nothing of a data set but prompts and a function that scores completions. A `Task` is
both, together with what this workbook asks besides: prompts held out that are not trained on, and,
in worlds that can be computed, the true credit of every token, against which rules that estimate it
are measured.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import math
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unicodedata import normalize

from workbook.messages import InvalidValue
from workbook.places import naming_extras

if TYPE_CHECKING:  # `estimators --try` answers in a second, half of which this would take
    from datasets import Dataset


def positive_int(field: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return value if it is an integer in [least, most], else raise InvalidValue."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise InvalidValue(field, value, f"an integer {limits}")
    return value


def completion_text(completion: object) -> str:
    """Return the text of one completion.

    A string is the text as it is, of chat messages the last one's content counts, all else is "".

    >>> completion_text([{"role": "assistant", "content": "so the answer is 2"}])
    'so the answer is 2'
    """
    if isinstance(completion, list | tuple) and completion:
        completion = completion[-1]
    if isinstance(completion, dict):
        completion = completion.get("content")
    return completion if isinstance(completion, str) else ""


def word_of_token(token: str) -> str:
    """Return a token without the space, or a tokenizer's sign for one, that stands around it.

    >>> word_of_token("\u0120then")
    'then'
    """
    return token.strip(" Ġ▁")


def graded_rows(completions: list, answer: list, columns: dict) -> Iterator[tuple[str, Any, dict]]:
    """Yield each completion's text with its answer and its row of the columns.

    Of the columns those count that have one value for each answer.
    """
    per_row = {
        key: value
        for key, value in columns.items()
        if isinstance(value, list) and len(value) == len(answer)
    }
    for i, (completion, truth) in enumerate(zip(completions, answer, strict=True)):
        yield completion_text(completion), truth, {key: value[i] for key, value in per_row.items()}


def load_function(named: str, kind: str) -> tuple[Callable, Path]:
    """Import "<file>.py:<function>" and return the function and its file.

    The file's folder is importable meanwhile, for helpers beside it. Raises ValueError, in one
    sentence with the line of the file, if it can't be imported or has no such function.
    """
    file, _, name = named.rpartition(":") if isinstance(named, str) else ("", "", "")
    if not file.endswith(".py") or not name.isidentifier():
        raise InvalidValue(kind, named, "'<file>.py:<function>', or a function")
    path = Path(file).expanduser().resolve()
    if not path.is_file():
        raise InvalidValue(f"{kind} file", file, "the path of an existing .py file")

    # a name of its own, as two files may be called the same as a library
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    # data classes look themselves up there
    sys.modules[spec.name] = module
    sys.path.insert(0, str(path.parent))
    # bytecode left beside a file would, after an edit within the same second, pass for that of the
    # new text
    wrote_bytecode = not sys.dont_write_bytecode
    sys.dont_write_bytecode = True
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"the {kind} file {path.name} can't be imported: {error_line(error, path)}."
        ) from None
    finally:
        sys.dont_write_bytecode = not wrote_bytecode
        sys.path.remove(str(path.parent))

    function = getattr(module, name, None)
    if not callable(function):
        public = [
            key
            for key, value in vars(module).items()
            if inspect.isfunction(value) and not key.startswith("_")
        ]
        listed = ", ".join(public[:20]) or "none"
        raise InvalidValue(kind, name, f"a function of {path.name}, which has {listed}")
    return function, path


def error_line(error: BaseException, path: Path | None = None) -> str:
    """Return an exception in one line, with the last line of the file `path` that it came through.

    >>> error_line(KeyError("topic"))
    "KeyError: 'topic'"
    """
    kind = type(error).__name__
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{kind}: {error.msg} (line {error.lineno})"
    message = " ".join(str(error).split())[:200]
    text = f"{kind}: {message}".rstrip(": ")
    if path is None:
        return text
    # the last line within the reader's own file, not the one deep inside a library
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f"{text} (line {lines[-1]} of {path.name})" if lines else text


# -- a task

Annotation = list[tuple[str, float]]  # (category, true credit) of each token
# ends of sequence, as tokenizers write them
EOS = ("<eos>", "</s>", "<|im_end|>", "<|endoftext|>")
SEED_CLASSES = 8  # seeds that differ modulo this share no prompt of a world

# added to a seed for held-out prompts: they come from another stream than training prompts
HELD_OUT_SEED = 1_000_003
MAX_REDRAWS = 64  # of a stream, per held-out row, in search of prompts that are not trained on


class Task(ABC):
    """Prompts, answers and a verifier; `reward` is handed to TRL as it is.

    A subclass gives `name`, `dataset` and `score`; `annotate` only where the true credit of tokens
    is known.
    """

    name: str

    @abstractmethod
    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Return n rows prompt (text or chat messages), answer: the same for the same seed."""

    @property
    def sources(self) -> dict[str, str]:
        """SHA-256 of each file or function of the reader's own in the task, by a short name."""
        return {}

    def split(self, train: int, held_out: int, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Return train rows and held_out rows (0 or more), which share no prompt.

        Training rows are `dataset(train, seed)`, held-out rows those of seed + HELD_OUT_SEED; where
        these repeat a training prompt, further rows of that stream stand in, all different. Raises
        ValueError if there are too few.
        """
        rows = self.dataset(train, seed)
        if positive_int("held_out", held_out, 0) == 0:
            return rows, rows.select([])
        # prompts are compared by what they ask, however they are spaced
        trained = set(map(prompt_key, rows["prompt"]))
        held_out_seed = seed + HELD_OUT_SEED
        drawn = held_out
        kept = [
            row
            for row in self.dataset(drawn, held_out_seed)
            if prompt_key(row["prompt"]) not in trained
        ]
        # draw twice as many until enough are new
        while len(kept) < held_out and drawn < held_out * MAX_REDRAWS:
            drawn *= 2
            seen = trained | {prompt_key(row["prompt"]) for row in kept}
            fresh = {}
            for row in self.dataset(drawn, held_out_seed):
                key = prompt_key(row["prompt"])
                if key not in seen:
                    fresh[key] = row
            kept += fresh.values()
        if len(kept) < held_out:
            raise InvalidValue(
                "held_out",
                held_out,
                f"at most {len(kept)}, the prompts of {self.name}, of {drawn} drawn, that are not"
                " trained on: take fewer of either, or options that give more prompts",
            )
        return rows, rows.from_list(kept[:held_out], features=rows.features)

    @abstractmethod
    def score(self, completion: str, answer: str, **row: Any) -> float:
        """Return the score of one completion text.

        `reward` clamps it to [0, 1], and what is no finite number is 0.
        """

    def reward(
        self, prompts: list, completions: list, answer: list[str], **columns: Any
    ) -> list[float]:
        """Return one reward in [0, 1] per completion, as a TRL reward function.

        prompts and completions: B texts, or B lists of chat messages; answer: B texts. Further
        columns of the data set reach `score` row by row, TRL's own arguments do not matter. Nothing
        a model writes raises an exception here.
        """
        rewards = []
        for text, truth, row in graded_rows(completions, answer, columns):
            try:
                score = float(self.score(text, str(truth), **row))
            # a verifier that trips over a text has not verified it
            except Exception:
                score = 0.0
            rewards.append(min(1.0, max(0.0, score)) if math.isfinite(score) else 0.0)
        return rewards

    def stated(self, completion: str) -> str | None:
        """Return the answer that the verifier reads in a completion, in one way of writing.

        None where it finds none. Raises ValueError for a task whose verifier does not tell.
        """
        raise ValueError(
            f"{self.name} has a verifier that does not tell which answer a completion states."
        )

    def annotate(self, prompt: Any, answer: str, tokens: list[str]) -> Annotation | None:
        """Return (category, true credit) per completion token, None where they are not known."""
        return None

    def calibrated(self, completions: Iterable[str]) -> Task:
        """Return the task whose credit is that under the policy that wrote these completions."""
        return self


class RowsTask(Task):
    """A task of `rows` that are all there, drawn without replacement.

    A subclass says how they are posed.

    source: what a refusal calls the rows.  prompt_column: of the rows.
    """

    rows: Dataset
    source: str
    prompt_column = "prompt"

    @abstractmethod
    def posed(self, rows: Dataset) -> Dataset:
        """Return rows as the policy and the verifier get them: prompt, answer and others."""

    def dataset(self, n: int, seed: int = 0) -> Dataset:
        """Draw n rows; take `split` to keep prompts apart."""
        return self.split(positive_int("n", n), 0, seed)[0]

    def split(self, train: int, held_out: int, seed: int = 0) -> tuple[Dataset, Dataset]:
        """Return rows to train on and rows held out, which share no prompt.

        Of the rows in the order in which they are drawn, the first are to train and the last are
        held out. Raises ValueError if there are too few.
        """
        positive_int("held_out", held_out, 0)
        positive_int("train", train)
        to_train, to_hold_out, keys = self._places(held_out, seed)
        if len(to_train) < train or len(to_hold_out) < held_out:
            asked = f"{train} prompts"
            if held_out:
                asked += f" to train and {held_out} held out"
            there = f"{len(keys)} rows"
            different = len(set(keys))
            if different < len(keys):
                there += f", with {different} different prompts"
            raise ValueError(
                f"{asked} are asked for, but {self.source} has {there}; ask for fewer."
            )
        # the order in which `_places` counts
        rows = self.rows.shuffle(seed=seed)
        return self.posed(rows.select(to_train[:train])), self.posed(rows.select(to_hold_out))

    def most(self, held_out: int = 0, seed: int = 0) -> int:
        """Return how many rows are left to train on beside so many held out."""
        return len(self._places(held_out, seed)[0])

    def _places(self, held_out: int, seed: int) -> tuple[list[int], list[int], list[str]]:
        """Return places of rows to train on, places to hold out, and the `prompt_key` of all rows.

        Places are those in the order in which rows are drawn.
        """
        rows = self.rows.shuffle(seed=positive_int("seed", seed, 0))
        keys = [prompt_key(prompt) for prompt in rows[self.prompt_column]]
        # rows of one prompt are held out together: prompts whose last row comes last go first
        last_place = {key: place for place, key in enumerate(keys)}
        ranked = sorted(range(len(keys)), key=lambda place: (-last_place[keys[place]], -place))
        to_hold_out = ranked[:held_out]
        held_keys = {keys[place] for place in to_hold_out}
        to_train = [place for place, key in enumerate(keys) if key not in held_keys]
        return to_train, to_hold_out, keys


def prompt_key(prompt: Any) -> str:
    """Return what two prompts share if they ask the same: the text, however spaced and composed.

    >>> prompt_key("caf\\u00e9  =") == prompt_key("cafe\\u0301 =\\n")
    True
    """
    text = prompt
    # chat messages
    if not isinstance(prompt, str):
        text = json.dumps(prompt, default=str, ensure_ascii=False)
    return " ".join(normalize("NFC", text).split())


def as_prompt(text: str, chat: bool) -> str | list[dict[str, str]]:
    """Return a question as it is, or as the chat message of a user."""
    return [{"role": "user", "content": text}] if chat else text


# -- tasks by name

# how a name begins, and the module and maker of its task: imported when it is asked for, as
# reasoning-gym takes seconds
MAKERS = {
    "chain": ("chain", "Chain"),
    "walk": ("walk", "Walk"),
    "gym:": ("gym", "Gym"),
    "hub:": ("hub", "Hub"),
    "own:": ("own", "own_task"),
    "world:": ("worlds", "world_task"),
    "sums": ("sums", "Sums"),
}


def get_task(name: str, /, **options: Any) -> Task:
    """Return the task of a name.

    name: "chain", "walk", "sums", "world:<name>" of data/worlds, "gym:<dataset>" of reasoning-gym,
    "hub:<dataset>" by hub id or local folder, "own:<data file>" by the path of a CSV, JSON-lines or
    Parquet file.
    options: for chain, walk and sums the fields of `Chain`, `Walk` and `Sums`; for gym those of
    that data set's config, and chat; for hub prompt_column, answer_column, split, subset and chat;
    for own reward and chat; for world none.

    Raises ValueError in one sentence on any other name or option.

    >>> get_task("chain", operands=3).dataset(1, seed=0).column_names
    ['prompt', 'answer']
    """
    family, colon, rest = name.partition(":") if isinstance(name, str) else ("", "", "")
    if family + colon not in MAKERS or bool(colon) != bool(rest):
        forms = [kind + "<name>" if kind.endswith(":") else kind for kind in MAKERS]
        listed = ", ".join(map(repr, forms))
        raise InvalidValue("task", name, f"one of {listed}; own and hub take a path, too")
    # only this task's module is imported
    module_name, maker_name = MAKERS[family + colon]
    with naming_extras():
        module = importlib.import_module(f"workbook.tasks.{module_name}")
    maker = getattr(module, maker_name)
    args = (rest,) if rest else ()
    try:
        return maker(*args, **options)
    except TypeError as error:
        known = list(inspect.signature(maker).parameters)[len(args) :]
        raise ValueError(f"task {name!r} takes the options {', '.join(known)}: {error}.") from None
