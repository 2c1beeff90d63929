"""What a token table's columns mean to whoever draws it, and one group of it as the page gets it.

A recorded table's `stopped` says what took a token's gradient away. It is drawn as a mark, too, so that colour, which
shows one column at a time, is not the only cue.
"""

from __future__ import annotations

import unicodedata

import numpy as np
import pandas as pd

from workbook.views.style import printable, printable_table, visible
from workbook.views.token_scale import Scale, is_number, number, scale_of

PLACES = ("group", "rollout", "position", "token", "token_id", "step", "prompt")  # where a token stands: no colour
MARKS = {"": "", "no advantage": "", "clip low": "▼", "clip high": "▲"}  # by `stopped`; else MASKED
MASKED = "■"
MEANINGS = {"▲": "clipped above", "▼": "clipped below", MASKED: "masked"}
MAX_POSITIONS = 1_000_000  # of a rollout: the page keeps the place of each
MAX_CHARACTERS, MAX_LEVEL = 14, 24  # of a token's text in its cell, of a category's name
MAX_PROMPT = 300  # characters of a group's prompt above the cells
MAX_READ = 1_000  # characters of one token where the answer is read as text


def prepare(table: pd.DataFrame) -> pd.DataFrame:
    """A token table that can be drawn, whatever is in it; with what a step moved, `dlogp`, if it holds both ends.

    Raises ValueError for a table without rows, and rows without a place.
    """
    check_places(table)
    if {"logp", "logp_after"} <= set(table) and "dlogp" not in table:
        table = table.assign(dlogp=table["logp_after"] - table["logp"])
    return printable_table(table)


def check_places(table: pd.DataFrame) -> None:
    """Raise a ValueError unless there are tokens, each in a group and at a position that are whole numbers."""
    if not len(table):
        raise ValueError("TokenHeatmap needs a token to show; the table has no rows.")
    for name, least, most in (("group", -(2**31), 2**31 - 1), ("position", 0, MAX_POSITIONS - 1)):
        values = pd.to_numeric(table[name], errors="coerce")
        wrong = np.flatnonzero(~((values % 1 == 0) & values.between(least, most)))
        if len(wrong):
            raise ValueError(
                f"{name} must be a whole number from {least} to {most}; row {wrong[0]} of the table has "
                f"{str(table[name].iloc[wrong[0]])[:40]!r}."
            )


def mark(stopped) -> str:
    """The mark of a token whose gradient was taken away.

    >>> [mark(reason) for reason in ("", "clip high", "clip low", "tool", float("nan"))]
    ['', '▲', '▼', '■', '']
    """
    return "" if pd.isna(stopped) else MARKS.get(str(stopped), MASKED)


def level_name(name: str, level: str) -> str:
    """A category's value as legends and menus name it.

    >>> level_name("stopped", ""), level_name("stopped", "clip low"), level_name("kind", "a\\nb")
    ('not stopped', 'clip low', 'a⏎b')
    """
    if level.strip():
        return visible(level, MAX_LEVEL, space=" ")
    return "not stopped" if name == "stopped" else "(empty)"


def readable(token) -> str:
    """A token's text as its model wrote it, spaces and line breaks kept, what can't be seen by its number.

    >>> readable(" the\\n"), readable("\\u202eevil\\x00")
    (' the\\n', '\\\\u202eevil\\\\u0000')
    """
    text = "".join(f"\\u{ord(c):04x}" if _is_hidden(c) else c for c in str(token))
    return text if len(text) <= MAX_READ else text[: MAX_READ - 1] + "…"


def _is_hidden(character: str) -> bool:
    kind = unicodedata.category(character)
    return character not in "\n\t" and (kind[0] == "C" or kind in ("Zl", "Zp"))


def are_words(tokens: pd.Series) -> bool:
    """Whether tokens are whole words, so that a space belongs between any two: none begins or ends with one.

    >>> are_words(pd.Series(["so", "7"])), are_words(pd.Series(["so", " 7"]))
    (True, False)
    """
    texts = tokens.astype(str)
    return not (texts.str.strip() != texts).any()


def scales(table: pd.DataFrame, ends=()) -> dict[str, Scale]:
    """A scale of colours for each column of numbers.

    ends: tables that give the scales of the columns they have, so that colours can be compared from table to table.
    """
    known = {}
    for name in table:
        if name not in PLACES and is_number(table[name]):
            others = [other[name] for other in ends if name in other and is_number(other[name])]
            known[name] = scale_of(name, *(others or [table[name]])).over(name, table[name], *others)
    return known


def encode(rows: pd.DataFrame, table: pd.DataFrame, known: dict[str, Scale]) -> tuple[list[dict], np.ndarray]:
    """Columns to colour by, and their values as numbers (columns, tokens); levels are of the whole table.

    known: `scales` of the columns.
    """
    columns, values = [], []
    for name in rows.columns:
        if name in PLACES:
            continue
        if is_number(rows[name]):
            scale = known[name]
            column = {"limit": scale.limit, "center": scale.center, "side": scale.side}
            numbers = rows[name].to_numpy(dtype=float)
        else:
            column, numbers = _categorical(name, rows[name], table[name])
        columns.append({"name": name, "slot": len(values)} | column)
        values.append(numbers)
    return columns, np.array(values)


def _categorical(name: str, values: pd.Series, everywhere: pd.Series) -> tuple[dict, np.ndarray]:
    levels, ranks = rank_levels(values, everywhere)
    about = {"levels": [level_name(name, level) for level in levels]}
    if name == "stopped":
        about["marks"] = [mark(level) for level in levels]
    return about, ranks


def rank_levels(values: pd.Series, everywhere: pd.Series) -> tuple[list[str], np.ndarray]:
    """The levels of a category in its whole table, and the number of each value's level, NaN where it is unknown."""
    levels = sorted(map(str, everywhere.dropna().unique()))
    ranks = {level: rank for rank, level in enumerate(levels)}
    return levels, np.array([ranks[str(value)] if pd.notna(value) else np.nan for value in values], dtype=float)


def rollout_names(rows: pd.DataFrame) -> pd.Series:
    """The rollout of each row as its label, with the reward where it is known."""
    names = rows["rollout"].map(printable).astype(object)
    if "reward" in rows and is_number(rows["reward"]):
        names = names + "  reward " + rows["reward"].map(lambda reward: number(reward, form=".2f"))
    return names


def wire(rows: pd.DataFrame, table: pd.DataFrame, known: dict[str, Scale]) -> dict:
    """prompt, shape, columns, values and places of `rows`, one group of `table`.

    shape: tokens, positions, labels of the rows, texts of the kinds of tokens (short, and as they were written), and
    whether these are words with spaces between.  columns: name, slot in values, and limit, center and side or levels
    and their marks.  values: float32, columns x tokens; a text is the number of its level.  places: int32, index into
    texts, row, position, each of every token.
    """
    kinds, texts = pd.factorize(rows["token_id"] if "token_id" in rows else rows["token"])
    first = rows["token"].astype(object).groupby(kinds).first()
    rollouts, _ = pd.factorize(rows["rollout"], use_na_sentinel=False)
    prompts = rows["prompt"].dropna().unique() if "prompt" in rows else []
    columns, values = encode(rows, table, known)
    with np.errstate(over="ignore"):  # beyond float32 is infinite
        values = values.astype("<f4")
    return {
        "prompt": visible(prompts[0], MAX_PROMPT, space=" ") if len(prompts) else "",
        "shape": {
            "tokens": len(rows),
            "positions": int(rows["position"].max()) + 1,
            "rows": rollout_names(rows[~rows["rollout"].duplicated()]).tolist(),
            "texts": [visible(first[k], MAX_CHARACTERS) for k in range(len(texts))],
            "raw": [readable(first[k]) for k in range(len(texts))],
            "words": are_words(table["token"]),
        },
        "columns": columns,
        "values": values.tobytes(),
        "places": np.stack([kinds, rollouts, rows["position"]]).astype("<i4").tobytes(),
    }
