"""Residuals of TRL's loss types: the study's tables with t intervals over units, their chart, and one batch live."""

from __future__ import annotations

import textwrap

import altair as alt
import numpy as np
import pandas as pd

from workbook.statistics import Interval, t_interval
from workbook.studies.claim import Tables
from workbook.studies.registration import MIN_UNITS
from workbook.theory.choices import check_choice
from workbook.topics.drift.charts import intervals
from workbook.views.explorer import Explorer, menu, slider
from workbook.views.figures import INTERVAL, forest, panels
from workbook.views.style import ACCENT, describe_rows, require, titled

SMALLEST_EFFECT = 0.01  # as registered: a hundredth of the push
EXACT = 1e-5  # a residual below this is 0 up to float32
REUSE_LABELS = {1: "1st step", 2: "2nd", 4: "4th", 8: "8th"}
REUSE_COLORS = ["#c4c4c4", "#8c8c8c", ACCENT, "#222222"]  # later is darker; the 4th step is what was registered
OUTCOMES = ("every", "shared", "permuted", "silent", "changed")
LABELS = {
    "sequence, min_replace": "sequence min_replace",
    "sequence, advantage_orthogonal": "sequence advantage_orthogonal",
}
SCALES = {"bundled": "bundled policy", "smollm2_chat": "SmolLM2-135M, chat"}


def loss_type_levels(scale: str = "bundled", outcome: str = "every", tables: Tables | None = None) -> pd.DataFrame:
    """Tabulate an outcome of the study for every arm and reuse, 95 % t intervals over units (seeds).

    outcome: one of OUTCOMES, columns of `loss_types.group_residuals`.  Columns arm, kind, reuse, mean, low, high,
    units; mean and interval are NaN below 6 units, as where an arm lets nothing push.

    Raises ValueError for an unknown outcome, and NotMeasured for a scale without tables.
    """
    return _intervals(_units(scale, outcome, tables), outcome)


def loss_type_effects(scale: str = "bundled", reuse: int = 4, tables: Tables | None = None) -> pd.DataFrame:
    """Tabulate the registered primary outcome: each arm's residual minus dr_grpo's in the same unit.

    Columns arm, kind, reuse, mean, low, high, units, verdict: "adds" (whole interval above 0.01), "takes away" (below
    -0.01), "no difference of interest" (within), "undecided", or "too few units".
    """
    units = _units(scale, "every", tables).query("reuse == @reuse")
    base = units[units["arm"] == "dr_grpo"].set_index("seed")["every"]
    table = _intervals(units.assign(every=units["every"] - units["seed"].map(base)), "every")
    return table.assign(verdict=[_verdict(Interval(row.mean, row.low, row.high)) for row in table.itertuples()])


def _verdict(change: Interval) -> str:
    if np.isnan(change.mean):
        return "too few units"
    if change.low > SMALLEST_EFFECT:
        return "adds"
    if change.high < -SMALLEST_EFFECT:
        return "takes away"
    within = change.low > -SMALLEST_EFFECT and change.high < SMALLEST_EFFECT
    return "no difference of interest" if within else "undecided"


def _units(scale: str, outcome: str, tables: Tables | None) -> pd.DataFrame:
    """Mean over a unit's groups: columns arm, kind, reuse, seed and the outcome."""
    check_choice("outcome", outcome, OUTCOMES)
    table = (tables or Tables(scale))["loss_types/residuals"]
    return table.groupby(["arm", "kind", "reuse", "seed"], sort=False)[outcome].mean().astype(float).reset_index()


def _intervals(units: pd.DataFrame, outcome: str) -> pd.DataFrame:
    rows = []
    for keys, part in units.groupby(["arm", "kind", "reuse"], sort=False):
        values = part[outcome].dropna()
        interval = t_interval(values) if len(values) >= MIN_UNITS else [np.nan] * 3
        rows.append((*keys, *interval, len(values)))
    return pd.DataFrame(rows, columns=["arm", "kind", "reuse", *INTERVAL, "units"])


def loss_types_chart(levels: dict[str, pd.DataFrame]) -> alt.HConcatChart:
    """Residual of every arm at each reuse, a panel per scale; {scale: table of `loss_type_levels`}.

    Arms with the same numbers at every scale share a row. Hollow: 0 up to rounding. The axis is linear near 0 and
    logarithmic above 0.01, the smallest effect of interest (dashed).
    """
    for table in levels.values():
        require(table, ("arm", "kind", "reuse", *INTERVAL), "loss_types_chart")
    tables = [table.pivot(index="arm", columns="reuse", values="mean") for table in levels.values()]
    arms = next(iter(levels.values()))["arm"].drop_duplicates()
    names = _same_numbers(pd.concat(tables, axis=1).round(6).loc[arms])
    look = {"by": "step", "names": list(REUSE_LABELS.values()), "colors": REUSE_COLORS, "shapes": ["circle"] * 4}
    look |= {"hollow": f"datum.mean < {EXACT}", "threshold": SMALLEST_EFFECT, "width": 215, "height": alt.Step(6)}
    charts = []
    for scale, table in levels.items():
        rows = table[table["arm"].isin(names)].dropna(subset="mean")
        rows = rows.assign(step=rows["reuse"].map(REUSE_LABELS), loss=rows["arm"].map(names)).round(5)
        rows = rows[["loss", "step", *INTERVAL, "units"]]
        row = _loss_axis(list(names.values()))
        charts.append(forest(rows, row, _residual_axis(), labels=not charts, title=SCALES[scale], form=".4f", **look))
    fourth = pd.concat([table.assign(scale=scale) for scale, table in levels.items()]).query("reuse == 4")
    return panels(
        charts,
        "Residual on a token that all of a group shared, by step on the same rollouts",
        "mean over units with 95 % t interval; hollow: 0 up to rounding; dashed: a hundredth of the push",
        "At the 4th step: " + describe_rows(fourth[fourth["arm"].isin(names)].dropna(), "scale", "arm", form=".3f"),
    ).resolve_scale(y="shared")


def _residual_axis() -> alt.X:
    x = alt.X("mean:Q", title="residual (0 cancels, 1 adds up)").axis(values=[0, 0.01, 0.03, 0.1, 0.3, 1], format="~g")
    return x.scale(type="symlog", constant=0.01, domain=[0, 1], clamp=True, nice=False)


def _loss_axis(order: list[str]) -> alt.Y:
    lines = "split(datum.label, '; ')"
    return alt.Y("loss:N", sort=order, title=None).axis(labelLimit=330, grid=True, labelExpr=lines)


def _same_numbers(numbers: pd.DataFrame) -> dict[str, str]:
    """{first arm: the names of all whose numbers are the same}, in lines of some 50 letters, in the table's order.

    >>> _same_numbers(pd.DataFrame({1: [0.0, 0.1, 0.0]}, index=["a", "b", "c"]))
    {'a': 'a, c', 'b': 'b'}
    """
    rows: dict[tuple, list[str]] = {}
    for arm, values in numbers.fillna(-1.0).iterrows():
        rows.setdefault(tuple(values), []).append(arm)
    return {arms[0]: _label(arms) for arms in rows.values()}


def _label(arms: list[str]) -> str:
    """Names with "; " between lines; a name is not broken."""
    names = ", ".join(LABELS.get(arm, arm).replace(" ", "\u00a0") for arm in arms)
    return "; ".join(textwrap.wrap(names, 52, break_on_hyphens=False)).replace("\u00a0", " ")


# --- one batch


def compute_loss_types(residuals: pd.DataFrame, reuse: int = 4, outcome: str = "every") -> pd.DataFrame:
    """Tabulate an outcome of every arm at one step on a batch: columns loss, mean, low, high over the batch's groups.

    residuals: of `residuals_of_batch`.  reuse: the step, 1 to 8.  outcome: one of OUTCOMES.  95 % bootstrap intervals;
    an arm that lets nothing push has no row.

    Raises ValueError for an unknown outcome, and a step that the table does not have.
    """
    check_choice("outcome", outcome, OUTCOMES)
    check_choice("reuse", reuse, tuple(residuals["reuse"].unique().tolist()))
    here = residuals[residuals["reuse"] == reuse]
    wide = here.pivot(index="group", columns="arm", values=outcome)[here["arm"].drop_duplicates().tolist()]
    table = intervals(wide.dropna(axis=1, how="all").astype(float)).rename(columns={"arm": "loss"})
    return table.replace({"loss": LABELS})


def one_batch_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Every arm's residual on one batch at one step; table of `compute_loss_types`."""
    row = _loss_axis(table["loss"].tolist())
    look = {"hollow": f"datum.mean < {EXACT}", "threshold": SMALLEST_EFFECT, "width": 400, "height": alt.Step(14)}
    return titled(
        forest(table, row, _residual_axis(), form=".4f", **look),
        "One batch, at the chosen step",
        "mean over groups with 95 % interval; hollow: 0 up to rounding; dashed: a hundredth of the push",
        describe_rows(table, "loss", form=".3f"),
    )


def describe_loss_types(table: pd.DataFrame) -> str:
    """Which arms leave a hundredth or more, and which leave nothing."""
    most = table.sort_values("mean", ascending=False).iloc[0]
    large, none = int((table["mean"] > SMALLEST_EFFECT).sum()), int((table["mean"] < EXACT).sum())
    return (
        f"{large} of {len(table)} losses leave more than {SMALLEST_EFFECT:g}, {none} nothing up to rounding; most: "
        f"{most['loss']}, {most['mean']:.3f} [{most['low']:.3f}, {most['high']:.3f}]."
    )


def explore_loss_types(residuals: pd.DataFrame) -> Explorer:
    """Every loss on one batch: the step on it, and which residual; residuals: of `residuals_of_batch`."""
    names = {
        "as if shared, at every position": "every",
        "position-shared tokens": "shared",
        "weights permuted": "permuted",
    }
    controls = {
        "reuse": slider(1, 1, int(residuals["reuse"].max()), 1, "step on the batch"),
        "outcome": menu("every", list(names.items()), "residual"),
    }
    return Explorer(compute_loss_types, one_batch_chart, controls, describe_loss_types, {"residuals": residuals})
