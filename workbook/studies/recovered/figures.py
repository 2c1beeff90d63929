"""Figures of credit recovered: signal over group sizes and prompts, and the parts of a step."""

from collections.abc import Mapping

import pandas as pd

from workbook.chapters.recovered.explore import LINES, UPDATE
from workbook.statistics import t_interval, unit_curve
from workbook.studies.record import FAMILY
from workbook.studies.recovered.study import GROUP_SIZE, RULE
from workbook.views.charts import parts_table

_AXES = ("group_size", "prompts")


def _curves() -> pd.DataFrame:
    """Own-prompt share of signal over each of AXES: axis, line, size, mean, low, high, units."""
    return pd.concat([curve(FAMILY, axis).assign(axis=axis) for axis in _AXES])


def curve(tables: Mapping, axis: str) -> pd.DataFrame:
    """The lines over one axis: all tokens, results, style words, the update, and what group sizes
    predict of it.
    """
    shares, update = (
        _along(tables[f"recovered/{name}"], axis).rename(columns={axis: "size"})
        for name in ("shares", "update")
    )
    lines = [shares[shares["category"] == name].assign(line=words) for name, words in LINES.items()]
    lines.append(update.assign(line=UPDATE))
    if axis == "group_size":
        # noise per signal goes as 1 / (G - 1): 1 / (1 + nu (G0 - 1) / (G - 1)), nu that at G0
        at_base = update[update["size"] == GROUP_SIZE].groupby("seed")["noise_per_signal"].mean()
        noise = update["seed"].map(at_base) * (GROUP_SIZE - 1) / (update["size"] - 1)
        line = f"predicted for the update from {GROUP_SIZE} rollouts"
        lines.append(update.assign(signal=1 / (1 + noise), line=line))
    return unit_curve(pd.concat(lines), "size", "signal", by="line")


def _parts_by_prompts() -> pd.DataFrame:
    """Parts of what moves each class, a panel for each number of prompts: rows of `parts_table`."""
    steps = _along(FAMILY["recovered/shares"], "prompts").dropna(subset="signal")
    means = steps.groupby(["prompts", "category"]).mean(numeric_only=True).reset_index()
    panels = [
        parts_table(rows).assign(panel=f"prompts that push: {prompts}")
        for prompts, rows in means.groupby("prompts")
    ]
    return pd.concat(panels)


def _result_signal() -> pd.DataFrame:
    """Signal in what moves results, by prompts that push, and by how much more prompts raise it.

    Columns prompts (a number, or "64 minus 16"), mean, low, high.
    """
    steps = _along(FAMILY["recovered/shares"], "prompts").query("category == 'result'")
    # means over a unit's draws
    units = steps.pivot_table(index="seed", columns="prompts", values="signal")
    columns = {str(prompts): units[prompts] for prompts in units}
    columns |= {
        f"{more} minus {less}": units[more] - units[less] for more, less in ((64, 16), (16, 1))
    }
    intervals = {name: t_interval(column.dropna()) for name, column in columns.items()}
    table = pd.DataFrame.from_dict(intervals, orient="index", columns=["mean", "low", "high"])
    return table.rename_axis("prompts").reset_index()


def _along(table: pd.DataFrame, axis: str) -> pd.DataFrame:
    return table[(table["rule"] == RULE) & (table["axis"] == axis)]


FIGURES = {
    "recovered": {
        "recovered/curves": _curves,
        "recovered/parts_by_prompts": _parts_by_prompts,
        "recovered/result_signal": _result_signal,
    }
}
