"""What can be known of an experiment before anything is trained: whether model and task are there, whether the model
can read the prompts, and whether it fits into memory.

    examine(config) -> Examination

Nothing is fetched and no weights are loaded: it takes a second, but may ask a hub, so a page asks in a thread.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from workbook.policies.load import local_folder
from workbook.rollouts.scoring import tokenize_prompts
from workbook.tasks import get_task
from workbook.tasks.own import Own
from workbook.training.memory import SHAPES, fits
from workbook.training.messages import explain_error
from workbook.training.run_config import RunConfig

READ = 256  # prompts that are looked at, the first of the training set
MAX_UNKNOWN = 0.5  # share of unknown tokens from which on a prompt says next to nothing to the model
NAMED_WORDS = 5
SMALLER = "Here: more micro-batches a step, fewer prompts a batch, a smaller group or fewer tokens."
CHAT_FAMILIES = {"own": False, "gym": True, "hub": True}  # kinds of tasks that have the option chat, and its default


class Examination(NamedTuple):
    """What was learned of a config.

    task: a line on its prompts.  errors: why it can't start.  doubts: why it should not, if it may.  notes: hints.
    """

    task: str = ""
    errors: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Reading(NamedTuple):
    """Tokens of some prompts: how many, which share of them is unknown, and words that stand for unknown ones."""

    tokens: int
    unknown: float
    words: tuple[str, ...]


def examine(config: RunConfig, at_once: int = 1) -> Examination:
    """Look at a config's model, task and memory; at_once: runs at a time."""
    try:
        folder = local_folder(config.policy)
    except (ValueError, OSError, RuntimeError) as error:  # ConnectionError is an OSError
        return Examination(errors=(explain_error(error, 300),))
    try:
        task = get_task(config.task, **config.task_options)
        line = task.describe_split(config.num_prompts, config.eval_prompts, config.seed)
        rows = task.split(config.num_prompts, config.eval_prompts, config.seed)[0]
    except Exception as error:  # whatever it is, the page should say it
        return Examination(errors=(str(error),))
    if folder is None and config.policy not in SHAPES:
        note = f"{config.policy} is not here yet: the first Try it, Forecast or Start fetches it."
        return Examination(line, notes=(note,))
    prompts, doubts, notes = rows["prompt"][:READ], reward_problems(task, rows[0]), []
    if folder is not None:
        try:
            tokenizer = tokenizer_of(folder)
            reading = read_prompts(tokenizer, prompts)
        except Exception as error:  # a folder without a tokenizer; a chat template that fails
            return Examination(line, errors=(f"{config.policy} can't read these prompts: {explain_error(error, 300)}",))
        line = f"{line.rstrip('.')}; {reading.unknown:.0%} of their tokens are unknown to {config.policy}."
        if sentence := unknown_words(config.policy, reading):
            (doubts if reading.unknown >= MAX_UNKNOWN else notes).append(sentence)
        notes += [sentence] if (sentence := unused_template(config, tokenizer, prompts)) else []
    doubts += [f"{sentence} {SMALLER}"] if (sentence := fits(config, at_once)) else []
    return Examination(line, (), tuple(doubts), tuple(notes))


def reward_problems(task, row: dict) -> list[str]:
    """What a reward function of one's own says of an empty completion and of the answer itself, if it fails at them."""
    sentences = []
    if isinstance(task, Own):
        for completion in ("", row["answer"]):
            try:
                task.score(completion, **row)
            except ValueError as error:
                sentences.append(f"{str(error).rstrip('.')}, for the completion {completion!r}.")
    return sentences[:1]


@lru_cache(maxsize=4)
def tokenizer_of(folder: Path):
    """The tokenizer of a local folder; remembered, as it is asked for at each change of a setting."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def read_prompts(tokenizer, prompts: list) -> Reading:
    """Count the tokens of prompts, as the trainer makes them, that the tokenizer has no word for."""
    rows = tokenize_prompts(tokenizer, prompts)
    total, unknown = sum(map(len, rows)), tokenizer.unk_token_id
    missed = sum(row.count(unknown) for row in rows) if unknown is not None else 0
    words = _unknown_words(tokenizer, prompts) if missed else ()
    return Reading(total, missed / total, words)


def _unknown_words(tokenizer, prompts: list) -> tuple[str, ...]:
    """The commonest words of prompts that become the unknown token; none for a tokenizer that does not say where."""
    texts = [prompt if isinstance(prompt, str) else prompt[-1]["content"] for prompt in prompts]
    if not tokenizer.is_fast:
        return ()
    encoded = tokenizer(text=texts, return_offsets_mapping=True)
    counts: dict[str, int] = {}
    for text, ids, spans in zip(texts, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        for token, (start, end) in zip(ids, spans, strict=True):
            if token == tokenizer.unk_token_id:
                counts[text[start:end].strip()] = counts.get(text[start:end].strip(), 0) + 1
    return tuple(sorted(filter(None, counts), key=counts.get, reverse=True)[:NAMED_WORDS])


def unknown_words(model: str, reading: Reading) -> str | None:
    """One sentence if a model has no token for parts of its prompts."""
    if not reading.unknown:
        return None
    words = f", for example {', '.join(map(repr, reading.words))}" if reading.words else ""
    return (
        f"{model} can't read {reading.unknown:.0%} of these prompts: it has no token for that{words}. "
        "Choose a model that knows their language, such as smollm2-135m."
    )


def unused_template(config: RunConfig, tokenizer, prompts: list) -> str | None:
    """One sentence if a model is made for chats and the prompts are none, though they could be."""
    plain = isinstance(prompts[0], str) and tokenizer.chat_template is not None
    if not plain or config.task.partition(":")[0] not in CHAT_FAMILIES:
        return None
    return (
        f"{config.policy} has a chat template and these prompts don't use it, so it continues them instead of "
        "answering; switch on: prompts as chat."
    )
