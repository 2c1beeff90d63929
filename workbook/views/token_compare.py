"""What a heatmap shows beside its rollouts: another column, another recorded step, another table or objective.

A choice is its label in the menu: "column credit", "step 4", or the name of a table or objective that was given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pandas as pd

from workbook.views.loss_pushes import with_push
from workbook.views.style import printable, require
from workbook.views.token_cells import PLACES, prepare
from workbook.views.token_scale import is_number

COLUMN, STEP = "column ", "step "
OTHER_ROLLOUTS = "other rollouts, of the same prompt", "other rollouts, of another prompt"
REWARD_COLUMNS = {"reward"}  # one value for a whole rollout: its label has it


@dataclass(frozen=True)
class Beside:
    """A table beside the first one.

    column: what it is coloured by, "" the first one's.  names: of both, "" by their columns.
    """

    table: pd.DataFrame
    column: str = ""
    names: tuple[str, str] = ("", "")


def name_of(objective: dict | None, other: str) -> str:
    """What a table is called: its loss, where its objective is known."""
    kind = objective.get("loss_type") if isinstance(objective, dict) else None
    return printable(kind)[:40] if isinstance(kind, str) and kind else other


def change_of(objective: dict) -> str:
    """What an objective is called that differs from the table's.

    >>> change_of({"loss_type": "cispo", "epsilon_high": 5.0})
    'cispo, epsilon_high 5.0'
    """
    parts = [f"{value}" if name == "loss_type" else f"{name} {value}" for name, value in objective.items()]
    return printable(", ".join(parts))[:60] or "the same objective"


def choices(table: pd.DataFrame, steps: list[int], given: str | None) -> list[str]:
    """What may be chosen to stand beside `table`: a given table, the other steps of its run, its numeric columns."""
    columns = [f"{COLUMN}{name}" for name in table if is_number(table[name]) and name not in {*PLACES, *REWARD_COLUMNS}]
    return [*([given] if given else []), *(f"{STEP}{step}" for step in steps), *columns]


def label_of(
    compare, table: pd.DataFrame, objective: dict | None, steps: list[int]
) -> tuple[str, Callable[[pd.DataFrame, dict | None], pd.DataFrame] | None]:
    """The menu's label of what `compare=` asks for, and if it is no column or step, a function of the first pane's
    table and objective that makes the other table.

    Raises ValueError for a column that the table lacks, a step that is not recorded, and for anything else.
    """
    if compare is None:
        return "", None
    if isinstance(compare, pd.DataFrame):
        require(compare, ("group", "rollout", "position", "token"), "compare=")
        name = name_of(compare.attrs.get("objective"), "other table")
        return f"{name} (compared)" if name == name_of(objective, "") else name, lambda *_: compare
    if isinstance(compare, dict):
        pushes_under(table, objective, compare)
        return change_of(compare), lambda table, objective: pushes_under(table, objective, compare)
    if isinstance(compare, str):
        require(table, (compare,), "compare=")
        if not is_number(table[compare]):
            raise ValueError(f"compare={compare!r} is a column of texts; compare with a column of numbers.")
        return f"{COLUMN}{compare}", None
    if isinstance(compare, int) and not isinstance(compare, bool):
        if compare not in steps:
            valid = f"choose one of {steps[:8]}" if steps else "it is a table and no run"
            raise ValueError(f"compare={compare} is no recorded step: {valid}.")
        return f"{STEP}{compare}", None
    raise ValueError(
        "compare= takes a column's name, a recorded step of the run, another token table, or an objective as a dict, "
        f"and not a {type(compare).__name__}."
    )


def pushes_under(table: pd.DataFrame, objective: dict | None, change: dict) -> pd.DataFrame:
    """The table with its tokens' pushes under another objective; ValueError if it has none of its own beside."""
    if "push" not in table:
        raise ValueError(
            "compare= with an objective needs the table's own pushes: give with_push(table, objective), or a run."
        )
    table.attrs["objective"] = objective
    return with_push(table, change)


def rows_beside(rows: pd.DataFrame, table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows of `table` that belong beside one group's `rows`, and a note, "" where they are the same tokens.

    The same tokens come in the order of `rows`; else it is the group of the same prompt, of the same number, or the
    first.
    """
    same = _same_tokens(rows, table[table["group"] == rows["group"].iloc[0]])
    if same is not None:
        return same, ""
    prompt = rows["prompt"].iloc[0] if "prompt" in rows and "prompt" in table else None
    of_prompt = table.loc[table["prompt"] == prompt, "group"] if prompt is not None else table["group"].iloc[:0]
    groups = set(table["group"])
    numbered = rows["group"].iloc[0] if rows["group"].iloc[0] in groups else table["group"].iloc[0]
    group = of_prompt.iloc[0] if len(of_prompt) else numbered
    return table[table["group"] == group], OTHER_ROLLOUTS[0 if len(of_prompt) else 1]


def _same_tokens(rows: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame | None:
    """`others` in the order of `rows`, None unless both hold the same tokens at the same places."""
    places = ["rollout", "position"]
    if len(rows) != len(others) or others.duplicated(places).any():
        return None
    index = pd.MultiIndex.from_frame(rows[places])
    ordered = others.set_index(pd.MultiIndex.from_frame(others[places]))
    if not index.isin(ordered.index).all():
        return None
    ordered = ordered.loc[index].set_axis(rows.index)
    return ordered if (ordered["token"].astype(str) == rows["token"].astype(str)).all() else None


def beside(label: str, table: pd.DataFrame, step: int, read_step, given: pd.DataFrame | None) -> Beside:
    """What a label stands for; read_step(step) reads another step's table, and may raise."""
    if label.startswith(COLUMN) and label.removeprefix(COLUMN) in table:
        return Beside(table, label.removeprefix(COLUMN))
    if label.startswith(STEP) and label.removeprefix(STEP).isdecimal():
        return Beside(prepare(read_step(int(label.removeprefix(STEP)))), names=(f"{STEP}{step}", label))
    if given is None:
        raise ValueError(f"{label} can't be compared with: choose from the menu.")
    return Beside(given, names=(name_of(table.attrs.get("objective"), "this table"), label))
