"""Parts of a report's page: a section, a table whose cells are texts, a chart as a picture, numbers as texts."""

from __future__ import annotations

from dataclasses import dataclass, field

import altair as alt
import numpy as np
import pandas as pd

from workbook.statistics import Interval
from workbook.views.renderer import picture, to_spec
from workbook.views.style import visible

TOP = 12  # rows of a table of tokens; of a table of steps, at either end


@dataclass
class Section:
    """A section of the page: what is missing, sentences with the findings, charts, tables, and how to read them."""

    name: str
    title: str
    lead: list[str] = field(default_factory=list)
    figures: list[alt.LayerChart] = field(default_factory=list)
    tables: list[dict] = field(default_factory=list)
    how: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def table_of(caption: str, columns: dict[str, pd.Series], tokens: tuple[str, ...] = ()) -> dict:
    """A table for the template, its columns being texts; tokens: the columns that hold tokens.

    A long one keeps the first and last rows.
    """
    rows = pd.DataFrame({name: list(column) for name, column in columns.items()}).astype(str)
    heads = [{"name": n, "token": n in tokens, "number": n not in tokens and _is_number(rows[n])} for n in rows]
    cells = rows.to_numpy().tolist()
    if len(cells) > 2 * TOP:
        cells = [*cells[:TOP], ["…"] * len(heads), *cells[-TOP:]]
    return {"caption": caption, "columns": heads, "rows": cells}


def _is_number(column: pd.Series) -> bool:
    return bool(column.str.fullmatch(r"[+\-–]?[\d.,e+\-]*( %)?").all())


def figure(chart) -> dict:
    """A chart as a picture with its size and description; the description alone, where it can't be drawn."""
    data, about = picture(to_spec(chart))
    return {"png": data.get("image/png"), "text": data["text/plain"], **about.get("image/png", {})}


def numbers(values: pd.Series, form: str) -> pd.Series:
    """Numbers as texts, a dash for what is not finite.

    >>> numbers(pd.Series([0.25, float("nan")]), ".0%").tolist()
    ['25 %', '–']
    """
    return values.map(lambda value: f"{value:{form}}".replace("%", " %") if np.isfinite(value) else "–")


def interval_text(interval: Interval, form: str = ".0%") -> str:
    """The ends of an interval in brackets; "" for one without ends, or of equal values."""
    ends = f" [{interval.low:{form}}, {interval.high:{form}}]".replace("%", " %")
    return ends if interval.low < interval.high else ""


def token_texts(values) -> list[str]:
    """Tokens with nothing hidden, at most 24 characters each."""
    return [visible(text, 24) for text in values]
