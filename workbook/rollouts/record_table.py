"""Records of rollouts as a token table: texts are cut into tokens, groups and rollouts numbered within each step."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd

from workbook.rollouts.foreign import Record, words
from workbook.rollouts.token_files import MAX_TOKENS, NUMBERS, STOPS


def record_table(records: Iterator[Record], tokenizer, notes: list[str]) -> pd.DataFrame:
    """Lay records out, one row per token; groups and rollouts are numbered within each step. Empty without tokens."""
    rows, total, origins = [], 0, set()
    for record in records:
        origins.add(_cut(record, tokenizer))
        rows.append(record)
        total += len(record)
        if total > MAX_TOKENS:
            raise ValueError(f"There are more than {MAX_TOKENS:,} tokens; give the path of one file, or split it.")
    if empty := sum(len(record) == 0 for record in rows):
        notes.append(f"{empty} rollouts without tokens were left out.")
    rows = _without_repeats([record for record in rows if len(record)], notes)
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(_columns(rows))
    groups = {record.groups for record in rows}
    table.attrs["source"] = {
        "format": rows[0].origin,
        "tokens": "+".join(sorted(origins)),
        "groups": "none" if "none" in groups else "prompt" if "prompt" in groups else "file",
    }
    if objective := next((record.objective for record in reversed(rows) if record.objective), None):
        table.attrs["objective"] = objective
    return table


def _columns(rows: list[Record]) -> dict[str, Any]:
    lengths = [len(record) for record in rows]
    groups, rollouts = _numbered(rows)
    columns = {
        "step": np.repeat(np.int32([record.step for record in rows]), lengths),
        "group": np.repeat(np.int32(groups), lengths),
        "rollout": np.repeat(np.int32(rollouts), lengths),
        "position": np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
    }
    if all(record.token_ids is not None for record in rows):
        columns["token_id"] = np.concatenate([record.token_ids for record in rows]).astype(np.int32)
    columns["token"] = pd.Categorical(list(chain.from_iterable(record.tokens for record in rows)))
    codes, prompts = pd.factorize(np.array([record.prompt for record in rows], dtype=object))
    columns["prompt"] = pd.Categorical.from_codes(np.repeat(codes, lengths), prompts)
    for name in NUMBERS:
        if any(name in record.columns for record in rows):
            values = [np.broadcast_to(record.columns.get(name, np.nan), len(record)) for record in rows]
            with np.errstate(over="ignore"):  # what float32 cannot hold is infinite
                columns[name] = np.concatenate(values).astype(np.float32)
    if any(record.stopped is not None for record in rows):
        texts = chain.from_iterable(record.stopped or [""] * len(record) for record in rows)
        columns["stopped"] = pd.Categorical(list(texts), categories=STOPS)
    return columns


def _without_repeats(rows: list[Record], notes: list[str]) -> list[Record]:
    """Leave out a step that has the very rollouts of the one before, as TRL logs a batch that is used several times."""
    batches: dict[int, list[Record]] = {}
    for record in rows:
        batches.setdefault(record.step, []).append(record)
    kept, before, repeats = [], None, 0
    for batch in batches.values():
        texts = [(record.prompt, record.text) for record in batch]
        if batch[0].text is not None and texts == before:
            repeats += 1
        else:
            kept += batch
        before = texts
    if repeats:
        notes.append(f"{repeats} of {len(batches)} steps repeat the rollouts of the step before and were left out.")
    return kept


def _cut(record: Record, tokenizer) -> str:
    """Give a record its tokens' texts; returns where they come from: "file", "tokenizer", "words" or "ids"."""
    if record.tokens is not None:
        return "file"
    if record.token_ids is None:
        if tokenizer is None:
            record.tokens = words(record.text)
            return "words"
        record.token_ids = list(tokenizer(record.text, add_special_tokens=False)["input_ids"])
    if tokenizer is None:
        record.tokens = [f"#{token}" for token in record.token_ids]
        return "ids"
    texts = {token: tokenizer.decode([token]) for token in set(record.token_ids)}
    record.tokens = [texts[token] for token in record.token_ids]
    return "tokenizer"


def _numbered(rows: list[Record]) -> tuple[list[int], list[int]]:
    """For each record its group's and its own number within its step; one without a group is a group of its own.

    Numbers of the file are kept, if all have them and no two are one.
    """
    known = [(record.step, record.rollout) for record in rows]
    if all(record.rollout is not None and type(record.group) is int for record in rows) and len(set(known)) == len(
        rows
    ):
        return [record.group for record in rows], [record.rollout for record in rows]
    groups: dict[int, dict] = {}
    counts: dict[int, int] = {}
    numbers = []
    for i, record in enumerate(rows):
        names = groups.setdefault(record.step, {})
        key = ("rollout", i) if record.group is None else record.group
        rollout = counts[record.step] = counts.get(record.step, -1) + 1
        numbers.append((names.setdefault(key, len(names)), rollout))
    return [group for group, _ in numbers], [rollout for _, rollout in numbers]
