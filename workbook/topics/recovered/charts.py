"""Charts of credit recovered: curves over what it depends on, and the rules."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from workbook.statistics import unit_curve
from workbook.studies.bench import DIALS
from workbook.studies.claim import FAMILY
from workbook.topics.recovered.claims import DIALS_STUDY, MEMBERS_STUDY, STUDY
from workbook.topics.recovered.study import GROUP_SIZE, PROMPTS, RULE
from workbook.views.curves import curve_chart
from workbook.views.figures import forest
from workbook.views.style import WIDTH, describe_rows, titled

SHARES = (-0.25, 1.25)  # of the axis; a share may lie beyond where signal and noise point apart
PAPERS = {"group_size": (2, 16, "both papers"), "prompts": (16, 96, "batch sizes of arXiv 2605.08666")}
AXES = {"group_size": "rollouts per prompt", "prompts": "prompts in the step"}
START = {"alphabets": 1.0, "confidence": 0.998}  # of members without the dial
DIAL_AXES = {"alphabets": "private alphabets", "confidence": "template confidence", "width": "width"}
DIAL_AXES |= {"operands": "operands a chain", "sft_steps": "steps of supervised training"}
UPDATE = "the update, in the weights' space"
LINES = {"all": "all tokens", "result": "result words", "style": "style words"}


def recovered_curve(axis: str, column: str = "signal", width: int = WIDTH) -> alt.LayerChart:
    """The measured share of signal over rollouts per prompt or prompts: all tokens, results, and the update itself.

    axis: of `AXES` or `DIAL_AXES`.  column: signal, noise, bias or coupling (not of the update).
    """
    study = DIALS_STUDY if axis in START else MEMBERS_STUDY if axis in DIALS else STUDY
    shares = along_axis(FAMILY[f"{study}/shares"], axis, column)
    lines = [shares[shares["category"] == name].assign(line=words) for name, words in LINES.items()]
    if column != "coupling":
        update = along_axis(FAMILY[f"{study}/update"], axis, column)
        lines.append(update.assign(line=UPDATE))
        if (axis, column) == ("group_size", "signal"):
            lines.append(predicted(update).assign(line=f"predicted for the update from {GROUP_SIZE} rollouts"))
    words = (AXES | DIAL_AXES)[axis]
    return curve_chart(
        unit_curve(pd.concat(lines), axis, column, by="line"),
        axis,
        series="line",
        x_title=words,
        y_title=f"share of {column}",
        title=f"Share of {column} in one {RULE} step, by {words}" if width == WIDTH else f"By {words}",
        log2=axis not in ("confidence", "operands"),
        reference=[0.0, 1.0],
        paper=PAPERS.get(axis),
        form=".0%",
        clip=True,
        scale={"domain": SHARES, "nice": False},
        subtitle=None if width == WIDTH else "band: 95 % t interval over policies",
        width=width,
    )


def along_axis(table: pd.DataFrame, axis: str, column: str) -> pd.DataFrame:
    """Rows of the rule along an axis, with the axis as a column of numbers."""
    table = table[table["rule"] == RULE]
    if axis in AXES:
        return table[table["axis"] == axis].dropna(subset=column)
    if axis in DIALS:
        return table[table["dial"] == axis].rename(columns={"level": axis})
    own = table[table["dial"].isin([axis, "none"])]
    return own.assign(**{axis: np.where(own["dial"] == "none", START[axis], own["level"])})


def predicted(update: pd.DataFrame) -> pd.DataFrame:
    """Share of signal if noise per signal goes as 1 / (G - 1): 1 / (1 + nu (G0 - 1) / (G - 1)), nu that at G0 = 8."""
    known = update[update["group_size"] == GROUP_SIZE].set_index("seed")["noise_per_signal"]
    noise = update["seed"].map(known) * (GROUP_SIZE - 1) / (update["group_size"] - 1)
    return update.assign(signal=1 / (1 + noise))


def members_chart() -> alt.HConcatChart:
    """The share of signal by width, length of the chain and steps of supervised training, side by side."""
    return alt.hconcat(*(recovered_curve(dial, width=190) for dial in DIALS), spacing=12, padding=12)


def rules_chart() -> alt.LayerChart:
    """Share of signal in the update of each rule at 16 prompts of 8 rollouts, with its interval over units."""
    update = FAMILY[f"{STUDY}/update"].query("axis == 'rule'")
    curve = unit_curve(update.assign(place=0), "place", "signal", by="rule").sort_values("mean", ascending=False)
    x = alt.X("mean:Q", title="share of signal in the update").axis(format="%")
    return titled(
        forest(curve, "rule", x, number=".0%", form=".1%"),
        "How much of each rule's update is credit",
        f"{PROMPTS} prompts, {GROUP_SIZE} rollouts each; 95 % t intervals over {int(curve['units'].max())} units",
        describe_rows(curve, "rule", form=".1%", interval=True),
    )
