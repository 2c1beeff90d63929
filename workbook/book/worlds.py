"""The page of the worlds: what each world is, and what exact credit adds there, from the ledger."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from workbook.files import replacement, write_text
from workbook.ledger import registered
from workbook.messages import InvalidValue
from workbook.places import data_path
from workbook.statistics import t_interval
from workbook.tasks.worlds import WORLD

_BEGIN, _END = "<!-- worlds -->", "<!-- /worlds -->"
# in the order of the page's list of worlds
_WORLDS = (
    *("plain", "low", "longer", "third", "two_thirds", "false_negatives", "forced", "free"),
    *("ways", "ramble", "long", "steps", "walk", "walk_wrong"),
)
# columns of the table, and the rows of the ledger that they show
_LEADS = {"known credit ends ahead by": "Q1 separates"}
_TIMES = {"tokens that group advantages need": "Q1 world"}
_SHARES = {"entropy minimisation gains": "Q1 entropy"}
# not drawn: it runs along group advantages in most worlds
_UNDRAWN = "positive-only"


def worlds_table() -> list[list[str]]:
    """A row for each world, heading first, as texts: its start, and what came of each question."""
    rows = [["world", "start", *_LEADS, *_TIMES, *_SHARES]]
    for name in _WORLDS:
        judged = registered(f"{WORLD}{name}")
        start = world_start(name)
        cells = [name, f"{start['value'].mean():.2f}" if len(start) else ""]
        cells += [_estimate(judged.get(key), "{:+.2f}") for key in _LEADS.values()]
        # octaves are doublings
        cells += [_estimate(judged.get(key), "{:.1f}", np.exp2) for key in _TIMES.values()]
        for key in _SHARES.values():
            cells.append(_estimate(judged[key], "{:.0%}") if key in judged else _entropy(name))
        rows.append(cells)
    return rows


def world_start(name: str) -> pd.DataFrame:
    """The starts of a world's units, as `describe_start` describes them, a row each; empty while
    there are none.
    """
    path = data_path("worlds", name, "members.json")
    members = json.loads(path.read_text(encoding="utf-8"))["members"] if path.exists() else []
    return pd.DataFrame([one["start"] for one in members if one["role"] == "unit"])


def _entropy(world: str) -> str:
    """Entropy minimisation's share of plain's gain in a world whose ledger has no row of it, from
    the same runs and in the same way.
    """
    from workbook.studies.record import Tables
    from workbook.studies.worlds.claims import share_of_plain_gain

    tables = Tables(f"{WORLD}{world}", data_path("results"))
    units = share_of_plain_gain(tables, "entropy_minimization")
    interval = t_interval(units)
    mean = units.attrs["estimate"]
    return f"*{mean:.0%}* [{interval.low:.0%}, {interval.high:.0%}]"


def _estimate(row, form: str, scale=float) -> str:
    """A row's mean and interval, in bold where the interval lies on one side of no difference."""
    if row is None:
        return ""
    if not np.isfinite(row.mean):
        return row.outcome
    mean, low, high = (form.format(scale(value)) for value in (row.mean, row.low, row.high))
    # octaves, leads and shares are all 0 where nothing differs
    decided = row.low > 0 or row.high < 0
    return f"**{mean}** [{low}, {high}]" if decided else f"{mean} [{low}, {high}]"


def worlds_markdown() -> str:
    """The table as Markdown."""
    heading, *rows = worlds_table()
    lines = [heading, ["---", *["---:"] * 4], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_worlds(path: Path) -> bool:
    """Write the table between a page's marks; whether the page changed.

    Raises ValueError for a page without the marks.
    """
    page = path.read_text(encoding="utf-8")
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise InvalidValue("page", str(path), f"a file with the marks {_BEGIN} and {_END}")
    text = f"{before}{_BEGIN}\n{worlds_markdown()}\n{_END}{after}"
    if text == page:
        return False
    write_text(path, text)
    return True


def save_worlds_chart(path: Path) -> None:
    """Draw what each rule reaches in every world, as .png, .svg or .html."""
    from workbook.app.arena_charts import chart_kind
    from workbook.chapters.worlds import map_chart
    from workbook.views.measured import measured_table

    kind = chart_kind(path)
    with replacement(path) as temporary:
        table = measured_table("worlds/map").query("rule != @_UNDRAWN")
        chart = map_chart(table, title="Known credit ends highest in every world, often by little")
        chart.save(str(temporary), format=kind, scale_factor=2)
