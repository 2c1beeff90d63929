"""Tables and charts of token flipping: curves over prompts per step, and shares by sign.

Every interval is a t interval over units (policy and prompts), unless a chart says otherwise. The
paper's place on the axis is our guess: it names batches of 16 to 96 in one figure.
"""

import altair as alt
import numpy as np
import pandas as pd

from workbook.probes.blocks import STEP_DRAWS, Blocks, step_changes
from workbook.probes.flips import EPS, EPSILONS, SIGN_COLUMNS
from workbook.statistics import unit_curve
from workbook.theory.coupling import NEARLY_CERTAIN
from workbook.views.charts import curve_chart
from workbook.views.live_study import NOW
from workbook.views.measured import measured_table
from workbook.views.style import NEGATIVE, POSITIVE, describe_rows, require_columns, titled

PAPER = (256, 1024, "a large batch: our guess of the paper's")
PROMPTS = "prompts that push in the step"
FOLLOWS = "chance to follow the own sign"
LESS_AND_LESS = "The more prompts push, the less a token follows its own rollout"
OUTGROWN = "What other prompts do outgrows the own prompt's push"
SAYS_NOTHING = (0.5, "the sign says nothing")
CLASSES = ("result", "style")  # the words of the bundled task that are not forced
# from the bar's foot upwards
CHANGE_COLORS = {"boosted": POSITIVE, "stable": "#dedede", "suppressed": NEGATIVE}
BACKBONES = {  # by scale
    "family": "bundled family",
    "smollm2_plain": "SmolLM2-135M",
    "gemma3_plain": "Gemma 3 270M",
    "smollm2:sums": "SmolLM2, six fine-tunes",
}
# what is asked of backbones: title of the chart, of its axis, what it is compared with
QUANTITIES = {
    "own sign": (f"{LESS_AND_LESS}, on every model", FOLLOWS, SAYS_NOTHING),
    "own share": (OUTGROWN, "own / (own + others), rms", (0.5, "own = others")),
}
BANDS = (
    "band: 95 % t interval over policies (family, fine-tunes) or draws of prompts (SmolLM2-135M);"
    " Gemma: range"
)


def own_share(
    blocks: Blocks, doses=(1, 2, 4, 8), draws: int = STEP_DRAWS, seed: int = 0
) -> pd.DataFrame:
    """Part of an unsure token's movement that its own prompt makes, by class: own / (own + others),
    rms of both.

    Columns category, prompts, mean, low, high (t interval over the measured prompts), units.
    """
    tables = []
    for dose in doses:
        table = step_changes(blocks, dose, draws, seed)
        table = table[(table["logp"] < np.log(NEARLY_CERTAIN)) & table["category"].isin(CLASSES)]
        squares = table.assign(own=table["own"] ** 2, others=(table["change"] - table["own"]) ** 2)
        rms = squares.groupby(["group", "category"])[["own", "others"]].mean() ** 0.5
        tables.append(
            (rms["own"] / rms.sum(axis=1)).rename("share").reset_index().assign(prompts=dose)
        )
    return unit_curve(pd.concat(tables), "prompts", "share", unit="group", by="category")


def own_share_chart(curve: pd.DataFrame) -> alt.LayerChart:
    """Lines of `own_share`, a class each."""
    return curve_chart(
        curve,
        "prompts",
        series="category",
        x_title=PROMPTS,
        y_title="own prompt's part of the movement",
        title="Style words answer to the whole batch sooner than results do",
        subtitle=(
            "rms by the own prompt / (own + others); bands: 95 % t interval over the prompts of"
            " this step"
        ),
        reference=[(0.5, "the other prompts move it as far")],
        names=list(CLASSES),
        scale={"domain": [0, 1]},
    )


# --- backbones


def backbones_chart(curve: pd.DataFrame, quantity: str = "own sign") -> alt.LayerChart:
    """Lines of the table "flips/backbones", and of the policy in hand where it is there, with the
    paper's place shaded.

    quantity: of QUANTITIES, whose lines are drawn.
    """
    title, y_title, reference = QUANTITIES[quantity]
    lines = curve[curve["quantity"] == quantity]
    return curve_chart(
        lines,
        "prompts",
        series="series",
        x_title=PROMPTS,
        y_title=y_title,
        title=title,
        paper=PAPER,
        reference=[reference],
        subtitle=BANDS,
        names=[name for name in (*BACKBONES.values(), NOW) if name in set(lines["series"])],
        height=280,
    )


def compute_flips(
    optimizer: str = "adamw", eps: float = EPS, signs: str = "by reward"
) -> dict[str, pd.DataFrame]:
    """Measured shares by model, means over units: {"table": model, column, change, share, prompts,
    units}.

    eps: the nearest that was measured.
    """
    rows = measured_table("flips/shares")
    nearest = min(EPSILONS, key=lambda measured: abs(np.log(measured / eps)))
    here = (
        (rows["optimizer"] == optimizer)
        & (rows["advantages"] == signs)
        & np.isclose(rows["eps"], nearest)
    )
    shown = ["model", "column", "change", "share", "prompts", "units"]
    return {"table": rows.loc[here, shown].reset_index(drop=True)}


def flips_chart(table: pd.DataFrame) -> alt.FacetChart:
    """Stacked shares, a row a model and a panel a column; table of `compute_flips`, with the policy
    in hand or not.
    """
    require_columns(table, ("model", "column", "change", "share"), "a chart of shares")
    order = list(CHANGE_COLORS)
    color = alt.Color("change:N", title=None, sort=order).scale(
        domain=order, range=list(CHANGE_COLORS.values())
    )
    drawn = (
        alt.Chart(table)
        .transform_calculate(rank=f"indexof({order}, datum.change)")
        .mark_bar(stroke="white")
    )
    shown = [
        "model:N",
        "column:N",
        "change:N",
        alt.Tooltip("share:Q", format=".3f"),
        "prompts:Q",
        "units:Q",
    ]
    drawn = drawn.encode(
        x=alt.X("share:Q", title="share of tokens", stack="zero").scale(domain=[0, 1]),
        y=alt.Y("model:N", title=None, sort=[*BACKBONES.values(), NOW]),
        color=color.legend(orient="bottom"),
        order=alt.Order("rank:Q"),
        tooltip=shown,
    )
    boosted = table[table["change"] == "boosted"]
    return titled(
        drawn.properties(width=167, height=alt.Step(30)).facet(
            column=alt.Column("column:N", sort=list(SIGN_COLUMNS), title=None)
        ),
        "What one step does to tokens, by backbone and by the sign of their rollout",
        "shares over prompts that have rollouts of both signs",
        f"Boosted: {describe_rows(boosted, 'model', 'column', value='share', form='.0%')}.",
    )


def describe_flips(table: pd.DataFrame) -> str:
    """How far apart the two signs' shares are, by model: half the sum of |differences|."""
    wide = table.pivot_table("share", ["model", "change"], "column", sort=False)
    positive, negative = SIGN_COLUMNS[:2]
    difference = (wide[positive] - wide[negative]).abs()
    apart = difference.groupby("model", sort=False).sum() / 2
    return (
        "Distance of the two signs' shares:"
        f" {', '.join(f'{name} {size:.3f}' for name, size in apart.items())}."
    )
