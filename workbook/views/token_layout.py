"""Where the cells of a group's tokens stand in a picture: aligned by position, or wrapped as text."""

from __future__ import annotations

import pandas as pd

from workbook.views.style import printable, visible
from workbook.views.token_cells import are_words, readable
from workbook.views.token_scale import is_number, number

CHARACTER, PADDING = 7.0, 12.0  # pixels
MARGIN, SPACE = 5.0, 7.0  # pixels, of wrapped text: within a cell beside its text, between two words


def rollout_names(rows: pd.DataFrame) -> pd.Series:
    """The rollout of each row as its label, with the reward where it is known."""
    names = rows["rollout"].map(printable).astype(object)
    if "reward" in rows and is_number(rows["reward"]):
        names = names + "  reward " + rows["reward"].map(lambda reward: number(reward, form=".2f"))
    return names


def aligned(rows: pd.DataFrame, longest: int) -> pd.DataFrame:
    """Cells (text, rollout, position, row, left, right), a column for each position, as wide as its longest token."""
    text = rows["token"].astype(object).map(lambda token: visible(token, longest))
    widths = text.str.len().groupby(rows["position"]).max() * CHARACTER + PADDING
    ends, place = widths.sort_index().cumsum(), rows["position"]
    cells = {"text": text, "rollout": rows["rollout"], "position": place, "row": rollout_names(rows)}
    return pd.DataFrame(cells | {"left": place.map(ends - widths), "right": place.map(ends)})


def wrapped(rows: pd.DataFrame, width: float) -> pd.DataFrame:
    """The same columns where each answer is text of that width: a row for each line, and one above for its name."""
    gap, names, cells = SPACE if are_words(rows["token"]) else 0.0, rollout_names(rows), {}
    for rollout, answer in rows.groupby("rollout", sort=False):
        label = names[answer.index[0]]
        cells[f"name {rollout}"] = (label, rollout, None, f"{label} ", 0.0, 0.0)
        lines = _lines([_one_line(token, width) for token in answer["token"]], width, gap)
        for (index, position), (text, line, left, right) in zip(answer["position"].items(), lines, strict=True):
            cells[index] = (text, rollout, position, f"{label} line {line}", left, right)
    names = ["text", "rollout", "position", "row", "left", "right"]
    return pd.DataFrame.from_dict(cells, orient="index", columns=names)


def _one_line(token, width: float) -> str:
    text, longest = readable(token).replace("\n", "⏎").replace("\t", "⇥"), int(width // CHARACTER) - 1
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _lines(texts: list[str], width: float, gap: float) -> list[tuple[str, int, float, float]]:
    """Each text with its line, left and right edge.

    >>> _lines(["so", "7⏎", "x"], 40, 7)
    [('so', 0, 0.0, 19.0), ('7⏎', 1, 0.0, 19.0), ('x', 2, 0.0, 12.0)]
    """
    line, left, places = 0, 0.0, []
    for text in texts:
        size = len(text) * CHARACTER + MARGIN
        if left and left + size > width:
            line, left = line + 1, 0.0
        places.append((text, line, left, left + size))
        left += size + gap
        if "⏎" in text:
            line, left = line + 1, 0.0
    return places
