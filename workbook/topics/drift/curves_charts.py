"""Charts of the curves over training: those that were measured, and two objectives trained now over them."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache

import altair as alt
import numpy as np
import pandas as pd

from workbook.policies.copies import private_copy
from workbook.statistics import unit_curve
from workbook.studies.claim import FAMILY, NotMeasured, Tables
from workbook.tasks.chain import SEED_CLASSES
from workbook.topics.drift.arms import ARMS
from workbook.topics.drift.curves import CURVES, GROUPS, LR, PAIRS, PLACES, training_curves
from workbook.topics.drift.effects import gap_at_end, places_on
from workbook.training.progress import show_partial
from workbook.views.curves import curve_chart
from workbook.views.explorer import Explorer, log_slider, menu, power_slider, slider, switch
from workbook.views.figures import panels, series
from workbook.views.live_study import LiveStudy
from workbook.views.style import NEUTRAL, SERIES, panel_title

OUTCOMES = {  # column: title of its panel, and of the axis
    "value": ("exact held-out value", "reward"),
    "tax": ("tax of style words", "nats a word"),
    "odds": ("change of odds of equal solutions", "nats"),
    "style_entropy": ("entropy of style words", "nats a word"),
}
MECHANISMS = {  # what is read at groups of eight, along PPO and GSPO
    "agreement, moved": ("output layer agrees, moved tokens", "share"),
    "agreement, all": ("output layer agrees, all tokens", "share"),
    "gap": ("value of boosted − suppressed tokens", "reward"),
}
PLACE_NAMES = {
    "groups of eight, usual template words": GROUPS,
    "pairs, template confidence 0.8": PAIRS,
}
ROLES = ["first objective", "second objective", "the first, advantages permuted"]
COLUMNS = ["line", "arm", "batch", "outcome", "mean"]
EACH_ITS_OWN = "each its own"
PANEL = {"width": 255, "height": 150}


def curve_of(outcome: str, place: tuple[int, float], tables: Tables = FAMILY) -> pd.DataFrame:
    """Means over units along training, a line an arm: arm, batch, mean, low, high, units; permuted twins are named so.

    A batch at which a unit was not read, and a run that has collapsed by then, are left out.
    """
    rows = tables[f"{CURVES}/curves"]
    here = (rows["group_size"] == place[0]) & np.isclose(rows["confidence"], place[1])
    rows = rows[here].dropna(subset=[outcome])
    rows = rows.assign(arm=rows["arm"] + np.where(rows["permuted"], ", permuted", ""))
    return unit_curve(rows, "batch", outcome, by="arm")


# --- as measured


def explore_curves() -> Explorer:
    """A menu of the two places over the measured curves of all objectives."""
    controls = {"place": menu(next(iter(PLACE_NAMES)), list(PLACE_NAMES), "place")}
    return Explorer(compute_curves, curves_over_training_chart, controls, describe_curves)


def compute_curves(place: str = "groups of eight, usual template words") -> dict[str, pd.DataFrame]:
    """Measured curves of every objective at a place: {"curves": arm, batch, outcome, mean, low, high, units}."""
    parts = [curve_of(name, PLACE_NAMES[place]).assign(outcome=name) for name in OUTCOMES]
    return {"curves": pd.concat(parts, ignore_index=True)}


def curves_over_training_chart(curves: pd.DataFrame) -> alt.VConcatChart:
    """Value, tax, odds and entropy along training, a line an objective; table of `compute_curves`."""
    names = [*PLACES[GROUPS], *(name for name in curves["arm"].unique() if "permuted" in name)]
    look = {"names": names, "colors": [*SERIES, NEUTRAL], "spread": None, "dash": "arm"}
    return _grid(
        curves,
        OUTCOMES,
        "arm",
        "Along training: what each objective earns, and what it moves that no reward asks for",
        "means over six policies; four AdamW steps on each batch, learning rate 3e-4",
        **look,
    )


def mechanisms_chart(tables: Tables = FAMILY) -> alt.VConcatChart:
    """Agreement of output layer and whole network, and the gap in value, along training, in groups of eight."""
    parts = [curve_of(name, GROUPS, tables).assign(outcome=name) for name in MECHANISMS]
    curves = pd.concat(parts, ignore_index=True)
    return _grid(
        curves,
        MECHANISMS,
        "arm",
        "Along training: the output layer as a proxy, and the gap in value",
        "means and 95 % t intervals over six policies, groups of eight",
        names=sorted(curves["arm"].unique()),
    )


def _grid(table: pd.DataFrame, outcomes: dict, by: str, title: str, subtitle: str, **look) -> alt.VConcatChart:
    """A panel an outcome, two in a row, under one title."""
    x = alt.X("batch:Q", title="generation batches").axis(tickMinStep=1, format="d")
    parts = []
    for name, (head, unit) in outcomes.items():
        y = alt.Y("mean:Q", title=unit).scale(zero=False)
        part = series(table, x, y, by, title=head, form=".4f", **PANEL, **look)
        parts.append(part.transform_filter(alt.datum.outcome == name))
    rows = [alt.hconcat(*parts[k : k + 2], spacing=14) for k in range(0, len(parts), 2)]
    ends = table.sort_values("batch").groupby([by, "outcome"], sort=False).tail(1)
    words = "; ".join(f"{row[by]}, {row['outcome']}: {row['mean']:.3g}" for _, row in ends.iterrows())
    return panels(rows, title, subtitle, f"At the end: {words}.", vertical=True)


def describe_curves(curves: pd.DataFrame) -> str:
    """Where the objectives end: the range of their values, and the least and the largest tax."""
    ends = curves[(curves["batch"] == curves["batch"].max()) & ~curves["arm"].str.contains("permuted")]
    value, tax = (ends[ends["outcome"] == name].set_index("arm")["mean"] for name in ("value", "tax"))
    return (
        f"At the end values lie from {value.min():.3f} ({value.idxmin()}) to {value.max():.3f} ({value.idxmax()}), "
        f"taxes from {tax.min():.4f} ({tax.idxmin()}) to {tax.max():.4f} nats a word ({tax.idxmax()})."
    )


def fix_by_group_size(tables: Tables = FAMILY) -> pd.DataFrame:
    """What min-replace gains over GSPO by rollouts per prompt, in exact value: group_size, mean, low, high, units.

    Runs of the study `confidence`: 128 rollouts a batch, template confidence 0.8, rates tuned in pairs.
    """
    gain, units = gap_at_end("min-replace", "GSPO"), places_on(tables, "group_size")
    rows = [(seed, size, gain(path)) for size, paths in units.items() for seed, path in paths.items()]
    return unit_curve(pd.DataFrame(rows, columns=["seed", "group_size", "gain"]), "group_size", "gain")


def fix_by_group_size_chart(tables: Tables = FAMILY) -> alt.LayerChart:
    """The curve of `fix_by_group_size`."""
    return curve_chart(
        fix_by_group_size(tables),
        "group_size",
        x_title="rollouts per prompt G (128 rollouts a batch)",
        y_title="exact value, min-replace minus GSPO",
        title="What min-replace gains over GSPO, by the size of the group",
        reference=[(0.0, "no gain")],
        form="+.3f",
    )


# --- live


def compute_live_curves(
    policy,
    task,
    first: str = "GSPO",
    second: str = "min-replace",
    twin: bool = False,
    lr: float = LR,
    epsilon: str | float = EACH_ITS_OWN,
    group_size: int = 2,
    batches: int = 4,
    seed: int = 1,
) -> dict[str, pd.DataFrame]:
    """Train two objectives on this policy, read after every batch: tables committed and live, with COLUMNS.

    twin: train the first once more, with advantages permuted within their groups.  epsilon: half the clip range of
    both.  committed: the same arms' means over the family, at the place of this group size (pairs, else groups of
    eight).  Raises ValueError as `training_curves` does.
    """
    committed = _committed((first, second, first) if twin else (first, second), group_size)
    show_partial(committed=committed, live=committed.iloc[:0])
    settings = {"batches": batches, "group_size": group_size, "lr": lr, "seed": SEED_CLASSES * seed}
    settings["epsilon"] = None if epsilon == EACH_ITS_OWN else float(epsilon)
    lines = []
    for role, arm in zip(ROLES, (first, second, *((first,) if twin else ())), strict=False):
        run = training_curves(policy, task, [arm], permuted=role == ROLES[2], **settings)
        lines.append(_long(run, role))
        show_partial(live=pd.concat(lines, ignore_index=True))
    return {"committed": committed, "live": pd.concat(lines, ignore_index=True)}


def _long(run: pd.DataFrame, role: str) -> pd.DataFrame:
    table = run.melt(["arm", "batch"], list(OUTCOMES), "outcome", "mean")
    return table.assign(line=role)[COLUMNS]


def _committed(arms: tuple[str, ...], group_size: int) -> pd.DataFrame:
    """Measured means of these arms in their roles; those that were not measured at this place are missing."""
    rows = []
    for role, arm in zip(ROLES, arms, strict=False):
        name = f"{arm}, permuted" if role == ROLES[2] else arm
        for outcome in OUTCOMES:
            curve = _curve(outcome, group_size)
            rows.append(
                curve[curve["arm"] == name].assign(line=role, outcome=outcome, arm=arm).reindex(columns=COLUMNS)
            )
    return pd.concat(rows, ignore_index=True)


@lru_cache(maxsize=16)
def _curve(outcome: str, group_size: int) -> pd.DataFrame:
    with suppress(NotMeasured):
        return curve_of(outcome, PAIRS if group_size == PAIRS[0] else GROUPS)
    return pd.DataFrame(columns=["arm", "batch", "mean"]).astype({"batch": int, "mean": float})


def live_curves_chart(committed: pd.DataFrame, live: pd.DataFrame) -> alt.VConcatChart:
    """Value, tax, odds and entropy by generation batch: dashed as measured on the family, solid as trained now."""
    x = alt.X("batch:Q", title="generation batches").axis(tickMinStep=1, format="d")
    color = (
        alt.Color("line:N", title=None).scale(domain=ROLES, range=SERIES[:3]).legend(orient="bottom", labelLimit=260)
    )
    parts = []
    for name, (head, unit) in OUTCOMES.items():
        y = alt.Y("mean:Q", title=unit).scale(zero=False)
        here = alt.datum.outcome == name
        shown = ["line:N", "arm:N", "batch:Q", alt.Tooltip("mean:Q", format=".4f", title=head)]
        before = alt.Chart(committed).transform_filter(here).mark_line(strokeDash=[4, 3], opacity=0.7)
        now = alt.Chart(live).transform_filter(here).encode(x=x, y=y, color=color, tooltip=shown)
        layers = alt.layer(
            before.encode(x=x, y=y, color=color), now.mark_line(strokeWidth=2.5), now.mark_point(filled=True)
        )
        parts.append(layers.properties(title=panel_title(head), **PANEL))
    return panels(
        [alt.hconcat(*parts[:2], spacing=14), alt.hconcat(*parts[2:], spacing=14)],
        "Two objectives along training",
        "solid: trained now, on this policy; dashed: means over six policies, at the study's rate and clip ranges",
        "Curves of runs that were trained now on this policy, over the means of six policies.",
        vertical=True,
    )


def describe_live_curves(committed: pd.DataFrame, live: pd.DataFrame) -> str:
    """Where the runs end: value and tax of each."""
    if live.empty:
        return ""
    ends = live[live["batch"] == live["batch"].max()].pivot_table("mean", ["line", "arm"], "outcome", sort=False)
    words = [
        f"{line} ({arm}): value {row['value']:.3f}, tax {row['tax']:.4f} nats a word"
        for (line, arm), row in ends.iterrows()
    ]
    return "; ".join(words) + "."


def live_curves(policy, task, batches: int = 4, group_size: int = 2) -> LiveStudy:
    """Two objectives, their rate, clip range, group size, batches and seed: runs on a copy of a policy."""
    controls = {
        "first": menu("GSPO", list(ARMS), ROLES[0]),
        "second": menu("min-replace", list(ARMS), ROLES[1]),
        "twin": switch(False, "twin with permuted advantages"),
        "lr": log_slider(LR, -4, -2.5, "learning rate"),
        "epsilon": menu(EACH_ITS_OWN, [EACH_ITS_OWN, 0.003, 0.01, 0.03, 0.1, 0.2, 0.5], "clip range"),
        "group_size": power_slider(group_size, 16, "rollouts per prompt", least=2),
        "batches": slider(batches, 1, 12, 1, "generation batches"),
        "seed": slider(1, 0, 19, 1, "seed of prompts, rollouts"),
    }
    committed = _committed(("GSPO", "min-replace"), group_size)
    tables = {"committed": committed, "live": committed.iloc[:0]}
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_live_curves, live_curves_chart, controls, tables, describe_live_curves, variables)
