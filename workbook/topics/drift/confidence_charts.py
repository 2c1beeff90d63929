"""Charts of the study `confidence` and their explorers: what a group shares, what objectives leave, what it costs."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from workbook.rollouts.sample import Rollouts
from workbook.studies.claim import FAMILY, Tables
from workbook.theory.choices import check_choice
from workbook.topics.drift.charts import effects_chart
from workbook.topics.drift.confidence import GROUP_SIZES, regrouped
from workbook.topics.drift.effects import OUTCOMES, arm_effects, energy_curve, residual_curve, run_curve
from workbook.topics.drift.energy import shared_energy, two_word_share
from workbook.views.curves import curve_chart
from workbook.views.explorer import Explorer, menu, power_slider
from workbook.views.figures import bars, panels, series
from workbook.views.style import SERIES

GROUPS = [f"G = {size}" for size in GROUP_SIZES]
LINES = ["GSPO", "min-replace", "GSPO, permuted", "min-replace, permuted"]
X_TITLES = {"confidence": "template confidence p, pairs (G = 2)", "group_size": "rollouts per prompt G, p = 0.8"}
CLASSES = ("style", "template", "copy", "result", "all")


# --- what a group shares


def energy_chart(now: pd.DataFrame | None = None, tables: Tables = FAMILY) -> alt.LayerChart:
    """Share of gradient energy on tokens that whole groups share, against template confidence, a line a group size.

    now: of `energy_now`, drawn as diamonds.
    """
    bound = two_word_share(7 / 8, 8)
    over = [] if now is None else [_diamonds(now)]
    measured = "; diamonds: this policy, now" if over else ""
    return curve_chart(
        energy_curve(tables),
        "confidence",
        series="group",
        names=GROUPS,
        x_title="template confidence p",
        y_title="share of all energy",
        title="Only pairs share much: gradient energy on tokens that a whole group has",
        subtitle=f"line: mean of 6 units of the family, band: 95 % t interval{measured}",
        log2=False,
        scale={"domain": [0, 0.3]},
        clip=True,
        reference=[(bound, f"the most that a group of 8 can share of two-word slots: {bound:.3f}")],
        over=over,
    )


def energy_now(policy, rollouts: Rollouts) -> pd.DataFrame:
    """Share of energy that groups of 2, 4, 8 and 16 share in one batch: columns group, confidence, mean.

    rollouts: groups of 16 or more, which are cut into smaller ones.  confidence: mean probability of template words.
    """
    tokens = rollouts.token_table().query("category == 'template'")
    confidence, rows = float(np.exp(tokens["logp"]).mean()), []
    for size in GROUP_SIZES:
        shares = shared_energy(policy, regrouped(rollouts, size)).set_index("category")["shared_energy"]
        rows.append((f"G = {size}", confidence, shares["all"]))
    return pd.DataFrame(rows, columns=["group", "confidence", "mean"])


def _diamonds(now: pd.DataFrame) -> alt.Chart:
    points = alt.Chart(now).mark_point(shape="diamond", size=110, filled=True, stroke="black", opacity=1)
    shown = ["group:N", alt.Tooltip("confidence:Q", format=".3f"), alt.Tooltip("mean:Q", format=".3f")]
    color = alt.Color("group:N", sort=GROUPS).scale(domain=GROUPS, range=SERIES[: len(GROUPS)])
    return points.encode(x="confidence:Q", y="mean:Q", color=color, tooltip=shown)


def compute_sharing(policy, rollouts: Rollouts, group_size: int = 2) -> dict[str, pd.DataFrame]:
    """What groups of a size share of one batch's energy, and of a slot of two words in theory.

    rollouts: large groups, which are cut into smaller ones.  Returns theory: p, share;  classes: category, energy (the
    class's share of all energy), shared (of all energy, on tokens that whole groups have), expected.
    """
    grid = np.linspace(0.5, 0.999, 60)
    shares = [two_word_share(p, group_size) for p in grid]
    theory = pd.DataFrame({"p": grid, "share": shares, "group": f"G = {group_size}"})
    classes = shared_energy(policy, regrouped(rollouts, group_size)).rename(columns={"shared": "places"})
    classes = classes.rename(columns={"shared_energy": "shared"})[["category", "energy", "shared", "expected"]]
    return {"theory": theory, "classes": classes[classes["category"].isin(CLASSES)].reset_index(drop=True)}


def sharing_chart(theory: pd.DataFrame, classes: pd.DataFrame) -> alt.HConcatChart:
    """Left a two-word slot in theory, right this batch by class of token; tables of `compute_sharing`."""
    x = alt.X("p:Q", title="probability p of the likelier word").scale(domain=[0.5, 1.0]).axis(tickCount=6)
    y = alt.Y("share:Q", title="shared / all energy of the slot").scale(domain=[0, 0.5])
    slot = series(theory, x, y, points=False, spread=None, title="a slot of two words, expected", width=300, height=220)
    row = alt.Y("category:N", sort=list(CLASSES), title=None)
    value = alt.X("shared:Q", title="shared energy (share of all)").scale(domain=[0, 0.3], clamp=True)
    look = {"number": ".3f", "shown": ["energy", "expected"], "width": 280, "height": 220}
    batch = bars(classes, row, value, title="this batch", **look)
    return panels(
        [slot, batch],
        "What exchangeable weights could cancel",
        "energy A²|e − p|² on tokens that all of a group have at the same position",
        "A curve of the shared part of a slot's energy against p, and bars of a batch's shared energy by class.",
    )


def describe_sharing(theory: pd.DataFrame, classes: pd.DataFrame) -> str:
    """The chosen group size in words."""
    best = theory.loc[theory["share"].idxmax()]
    whole = classes.set_index("category").loc["all"]
    return (
        f"{theory['group'].iloc[0]}: of a two-word slot at most {best['share']:.3f}, at p = {best['p']:.2f}; of this "
        f"batch {whole['shared']:.3f} of all energy (by the tokens' probabilities {whole['expected']:.3f})."
    )


def explore_sharing(policy, rollouts: Rollouts) -> Explorer:
    """Group size on one batch of a real policy, and on a slot of two words."""
    size = int((rollouts.group_ids == rollouts.group_ids[0]).sum())
    controls = {"group_size": power_slider(2, size, "group size", least=2)}
    variables = {"policy": policy, "rollouts": rollouts}
    return Explorer(compute_sharing, sharing_chart, controls, describe_sharing, variables)


# --- what an objective leaves on it


def residual_chart(tables: Tables = FAMILY) -> alt.LayerChart:
    """Residual of objectives on shared tokens, weighted by energy, against template confidence in pairs."""
    shown = ["token ratio", "sequence ratio", "sequence, clipped", "token, clipped", "token, symmetric", "min-replace"]
    return curve_chart(
        residual_curve(tables, shown),
        "confidence",
        series="objective",
        names=shown,
        x_title=X_TITLES["confidence"],
        y_title="residual (0 cancels, 1 adds up)",
        title="What objectives leave on shared tokens after three epochs on a batch",
        subtitle="weighted by energy; clips at 0.01; line: mean, band: 95 % t interval over 6 units",
        log2=False,
        scale={"domain": [0, 1]},
    )


# --- what training pays


def compute_training(outcome: str = "free_tax", beyond: bool = True) -> dict[str, pd.DataFrame]:
    """An outcome of GSPO and of min-replace after training, along both axes of the study's plane.

    outcome: one of OUTCOMES.  beyond: minus that of the twin with permuted advantages; else arms and twins.  Returns
    confidence and group_size: the axis, arm, mean, low, high, units, outcome (its title).
    """
    check_choice("outcome", outcome, tuple(OUTCOMES))
    title = OUTCOMES[outcome] + (", minus the twin's" if beyond else "")
    curves = {axis: run_curve(FAMILY, outcome, axis, beyond) for axis in X_TITLES}
    return {axis: curve.assign(outcome=title) for axis, curve in curves.items()}


def training_chart(confidence: pd.DataFrame, group_size: pd.DataFrame) -> alt.HConcatChart:
    """An outcome after training along template confidence (left) and group size (right); of `compute_training`."""
    charts = []
    for axis, curve in {"confidence": confidence, "group_size": group_size}.items():
        title = alt.Chart(curve).mark_text(align="left", fontWeight="bold", baseline="bottom")
        title = title.transform_window(row="row_number()").transform_filter("datum.row == 1")
        look = {"names": LINES, "colors": SERIES[:4], "width": 265, "height": 220, "zero": True}
        look |= {"over": [title.encode(x=alt.value(0), y=alt.value(-4), text="outcome:N")], "subtitle": ""}
        look |= {"x_title": X_TITLES[axis], "y_title": "mean over units", "log2": axis == "group_size"}
        charts.append(curve_chart(curve, axis, series="arm", **look))
    return panels(
        charts,
        "Training without and with exchangeable weights",
        "at the end of training; line: mean, band: 95 % t interval over 6 units",
        "Lines of an outcome of GSPO and min-replace along template confidence and along group size.",
    )


def describe_training(confidence: pd.DataFrame, group_size: pd.DataFrame) -> str:
    """The deciding point in words."""
    here = confidence[np.isclose(confidence["confidence"], 0.8)].set_index("arm")
    words = ", ".join(f"{arm} {row['mean']:.3g} [{row['low']:.3g}, {row['high']:.3g}]" for arm, row in here.iterrows())
    return f"{confidence['outcome'].iloc[0]}; pairs at p = 0.8: {words}."


def explore_training() -> Explorer:
    """Which outcome of training, and whether minus that of the twins, along both axes of the study."""
    controls = {
        "outcome": menu("free_tax", [(title, name) for name, title in OUTCOMES.items()], "outcome"),
        "beyond": menu(True, [("minus the permuted twin's", True), ("arms and twins", False)], "shown"),
    }
    return Explorer(compute_training, training_chart, controls, describe_training)


def arms_chart(tables: Tables = FAMILY) -> alt.HConcatChart:
    """What every arm reaches and pays at the deciding point, pairs at p = 0.8."""
    names = {"gain": "value minus GSPO's", "free_tax": "tax (nats)", "excess": "tax minus its twin's (nats)"}
    title = "Seven objectives where groups share almost a quarter of the energy"
    subtitle = "at the end of training, pairs, p = 0.8; 95 % t interval over units; colour: the interval leaves out 0"
    return effects_chart(arm_effects(tables).replace({"outcome": names}), "arm", title, subtitle)
