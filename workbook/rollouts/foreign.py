"""Rollouts as other programs write them: one record of a file -> one `Record`, every value checked.

Files come from strangers: nothing in them is run, texts and lists are bounded, and what is wrong is a `Malformed`,
whose message is the end of a sentence that begins with the file and the line.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MAX_CHARACTERS = 1_000_000  # of one text
MAX_LENGTH = 1_000_000  # tokens of one rollout
ALIASES = {  # names under which JSON lines and Parquet files have our columns; the first that is there is read
    "step": ("step", "global_step"),
    "group": ("group", "group_id", "uid", "problem_id", "example_id"),
    "prompt": ("prompt", "input", "question", "query"),
    "completion": ("completion", "output", "response", "text"),
    "tokens": ("tokens",),
    "token_ids": ("token_ids", "completion_ids", "output_ids"),
    "reward": ("reward", "score"),
    "advantage": ("advantage", "advantages"),
    "old_logp": ("old_logp", "old_logps", "old_log_probs", "rollout_log_probs"),
    "logp": ("logp", "logps", "logprobs", "log_probs"),
    "entropy": ("entropy", "entropies"),
    "ratio": ("ratio", "ratios", "importance_ratio"),
    "importance": ("importance", "importance_weights", "rollout_is_weights"),
}
PER_TOKEN = ("advantage", "old_logp", "logp", "entropy", "ratio", "importance")


class Malformed(Exception):
    """What is wrong with a record: the rest of a sentence, without a full stop."""


@dataclass
class Record:
    """One rollout. columns: a number for all of its tokens, or an array of one number per token, NaN where unknown.

    group: what rollouts of the same prompt have in common, None if nothing says so; groups: where that comes from,
    "file", "prompt" or "none".  Of tokens, token_ids and text one is enough; a text alone is cut into tokens later.
    """

    step: int = 0
    group: Any = None
    rollout: int | None = None  # its number within the step, where the file has one
    prompt: str = ""
    tokens: list[str] | None = None
    token_ids: list[int] | None = None
    text: str | None = None
    columns: dict[str, float | np.ndarray] = field(default_factory=dict)
    stopped: list[str] | None = None
    objective: dict | None = None
    groups: str = "none"
    origin: str = "completions"

    def __len__(self) -> int:
        return len(self.token_ids if self.tokens is None else self.tokens)


def short(value: Any) -> str:
    """A value for a message: on one line, at most 60 characters."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**40 else "a number of more than 40 digits"
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:57] + "..."


def plain_record(row: Mapping, rewards: list[str] = ()) -> Record:
    """A record of JSON lines, or a row of a Parquet file, with the names of `ALIASES`.

    rewards: columns whose sum is the reward, where none is called so.
    """
    names = {ours: name for ours, valid in ALIASES.items() if (name := _first(row, valid)) is not None}
    if not {"completion", "tokens", "token_ids"} & set(names):
        raise Malformed(f"has none of {', '.join(ALIASES['completion'])}, tokens and token_ids")
    value = {ours: row[name] for ours, name in names.items()}
    tokens = check_strings(value["tokens"]) if "tokens" in value else None
    ids = token_ids(value["token_ids"]) if "token_ids" in value else None
    if tokens is not None and ids is not None and len(tokens) != len(ids):
        raise Malformed(f"tokens has {len(tokens)} entries and token_ids {len(ids)}")
    length = len(tokens) if tokens is not None else len(ids) if ids is not None else None
    prompt = _chat_text("prompt", value["prompt"]) if "prompt" in value else ""
    record = Record(
        step=step_of(value.get("step", 0)),
        group=_group(value["group"]) if "group" in value else prompt or None,
        groups="file" if "group" in value else "prompt" if prompt else "none",
        prompt=prompt,
        tokens=tokens,
        token_ids=ids,
        text=_reply("completion", value["completion"]) if length is None else None,
    )
    if "reward" in value:
        record.columns["reward"] = number_of(names["reward"], value["reward"])
    elif rewards:
        parts = [number_of(name, row.get(name)) for name in rewards]  # as TRL: what a function did not score counts 0
        record.columns["reward"] = math.nan if all(map(math.isnan, parts)) else float(np.nansum(parts))
    for column in PER_TOKEN:
        if column in value:
            many = isinstance(value[column], list | tuple | np.ndarray)
            if many and length is None:
                raise Malformed(f"{names[column]} has a value per token, but neither tokens nor token_ids are there")
            one = numbers(names[column], value[column], length) if many else number_of(names[column], value[column])
            record.columns[column] = one
    if not {"reward", "advantage"} & set(record.columns):
        raise Malformed("has neither a reward nor an advantage")
    return record


# --- values


def _first(row: Mapping, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if row.get(name) is not None), None)


def step_of(value: Any) -> int:
    if isinstance(value, np.integer):
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**31:
        raise Malformed(f"step is {short(value)}, but must be a whole number of steps")
    return value


def _group(value: Any) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, int | str):
        raise Malformed(f"group is {short(value)}, but must be a whole number or a text")
    return value


def number_of(name: str, value: Any) -> float:
    value = value.item() if isinstance(value, np.generic) else value
    if value is None:
        return math.nan
    if not isinstance(value, int | float):
        raise Malformed(f"{name} is {short(value)}, but must be a number")
    try:
        return float(value)
    except OverflowError:
        raise Malformed(f"{name} is {short(value)}, which no float holds") from None


def numbers(name: str, values: Any, length: int) -> np.ndarray:
    """One float per token, NaN for null; a number counts for all."""
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(values, list | tuple):
        raise Malformed(f"{name} is {short(values)}, but must be a list of {length} numbers")
    if len(values) != length:
        raise Malformed(f"{name} has {len(values)} values for {length} tokens")
    if (odd := next((v for v in values if v is not None and not isinstance(v, int | float)), None)) is not None:
        raise Malformed(f"{name} holds {short(odd)}, which is no number")
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError:
        raise Malformed(f"{name} holds a number that no float holds") from None


def token_ids(values: Any) -> list[int]:
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(values, list) or len(values) > MAX_LENGTH:
        raise Malformed(f"token_ids must be a list of at most {MAX_LENGTH:,} whole numbers")
    if (odd := next((v for v in values if type(v) is not int or not 0 <= v < 2**31), None)) is not None:
        raise Malformed(f"token_ids holds {short(odd)}, which is no token id")
    return values


def check_strings(values: Any, length: int | None = None) -> list[str]:
    values = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise Malformed("tokens must be a list of texts, one per token")
    if len(values) > MAX_LENGTH or (length is not None and len(values) != length):
        raise Malformed(f"tokens has {len(values):,} texts for {MAX_LENGTH if length is None else length:,} tokens")
    return [check_text("tokens", value) for value in values]


def check_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{name} is {short(value)}, but must be a text")
    if len(value) > MAX_CHARACTERS:
        raise Malformed(f"{name} has {len(value):,} characters; the most that is read is {MAX_CHARACTERS:,}")
    return value.encode("utf-8", "replace").decode()  # half a character of 16 bits is none


def _messages(name: str, value: Any) -> list[dict] | None:
    """Chat messages as plain dicts of texts; None for what is no chat."""
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if not isinstance(value, list):
        return None
    if not all(isinstance(turn, Mapping) and isinstance(turn.get("role"), str) for turn in value):
        raise Malformed(f"{name} is {short(value)}, but must be a text or a list of chat messages")
    return [{"role": turn["role"], "content": _content(turn.get("content"))} for turn in value]


def _content(value: Any) -> str:
    value = value.tolist() if isinstance(value, np.ndarray) else value
    if isinstance(value, list):  # parts, of which some are pictures
        value = "".join(
            part["text"] for part in value if isinstance(part, Mapping) and isinstance(part.get("text"), str)
        )
    return value if isinstance(value, str) else ""


def _chat_text(name: str, value: Any) -> str:
    """A prompt as text; a chat as the JSON of its messages, from which `as_prompt` makes one again."""
    messages = _messages(name, value)
    return check_text(name, value if messages is None else json.dumps(messages, ensure_ascii=False))


def _reply(name: str, value: Any) -> str:
    """A completion as text; of a chat, what the assistant wrote."""
    messages = _messages(name, value)
    if messages is None:
        text = check_text(name, value)
        messages = as_prompt(text)
        if messages == text:
            return text
    return check_text(name, "\n".join(turn["content"] for turn in messages if turn["role"] == "assistant"))


def as_prompt(text: str) -> str | list[dict]:
    """A prompt as the data set had it: chat messages, where the text is their JSON.

    >>> as_prompt("5 - 6 ="), as_prompt('[{"role": "user", "content": "hi"}]')
    ('5 - 6 =', [{'role': 'user', 'content': 'hi'}])
    """
    if not text.startswith('[{"role"'):
        return text
    try:
        return _messages("prompt", json.loads(text)) or text
    except (ValueError, RecursionError, Malformed):
        return text


def words(text: str) -> list[str]:
    """Text cut into words, each with the space before it; together they are the text.

    >>> words(" so 5 - 6\\nis 9 ")
    [' so', ' 5', ' -', ' 6', '\\nis', ' 9', ' ']
    """
    return re.findall(r"\s*\S+|\s+$", text)
