"""Tables and charts of token flipping: curves over prompts per step, and shares by sign.

Every interval is a t interval over units (policy and prompts), unless a chart says otherwise. The
paper's place on the axis is our guess: it names batches of 16 to 96 in one figure.
"""

from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd

from workbook.policies.load import Policy
from workbook.probes.blocks import Blocks, block_coupling
from workbook.probes.dose import dose_curve
from workbook.probes.flips import EPS, EPSILONS, SIGN_COLUMNS
from workbook.rollouts.sample import Rollouts
from workbook.theory.coupling import NEARLY_CERTAIN
from workbook.views.charts import curve_chart
from workbook.views.figures import bars
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
ROUTES = ("its own rollout", "other rollouts of its prompt", "other prompts")
# above a panel: A is a rollout's name in the book
_COLUMN_LABELS = (
    "datum.value === 'A > 0' ? 'rollouts pushed up'"
    " : datum.value === 'A < 0' ? 'rollouts pushed down' : datum.value"
)
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


def movement_by_route(blocks: Blocks) -> pd.DataFrame:
    """How far unsure tokens are moved by each of ROUTES in one step of all blocks, by class.

    blocks: of `dose_blocks` with a block for each rollout.  Columns route, category (of CLASSES),
    mean (rms over tokens, the largest = 1), follows (share of tokens that this route moves the way
    of their own rollout's sign), tokens.
    """
    tokens, changes = blocks.tokens, blocks.changes.astype(float)  # (K, N)
    is_own = tokens["block"].to_numpy()[None] == np.arange(len(changes))[:, None]
    groups = blocks.blocks["group"].to_numpy()
    is_own_prompt = tokens["group"].to_numpy()[None] == groups[:, None]
    of_routes = (is_own, is_own_prompt & ~is_own, ~is_own_prompt)
    shown = (tokens["logp"] < np.log(NEARLY_CERTAIN)) & (tokens["advantage"] != 0)
    shown &= tokens["category"].isin(CLASSES)
    rows = []
    for route, mask in zip(ROUTES, of_routes, strict=True):
        change = np.where(mask, changes, 0.0).sum(0)  # (N,)
        follows = np.sign(change) == np.sign(tokens["advantage"])
        moved = tokens.assign(square=change**2, follows=follows)[shown].groupby("category")
        means = moved.agg(mean=("square", "mean"), follows=("follows", "mean"))
        means["tokens"] = moved.size()
        rows.append(means.assign(route=route, mean=means["mean"] ** 0.5).reset_index())
    table = pd.concat(rows, ignore_index=True)
    return table.assign(mean=table["mean"] / table["mean"].max())


def routes_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Bars of `movement_by_route`, a row for each route, a bar for each class."""
    require_columns(table, ["route", "category", "mean", "follows"], "routes_chart")
    rows = table.assign(low=float("nan"), high=float("nan"))
    y = alt.Y("route:N", sort=list(ROUTES), title=None)
    x = alt.X("mean:Q", title="how far the route moves an unsure token (rms, largest = 1)")
    look = {"names": list(CLASSES), "number": ".2f", "shown": ["follows", "tokens"]}
    return titled(
        bars(rows, y, x, "category", **look, height=alt.Step(25)),
        "Other prompts move style words most; every route moves results",
        "one step of this policy, a small step for each rollout; unsure: p < 0.9",
        describe_rows(table, "category", "route", form=".2f"),
    )


# --- backbones


def own_sign_now(policy: Policy, rollouts: Rollouts, measured: Sequence[int]) -> pd.DataFrame:
    """Rows of the policy in hand for `backbones_chart`: how often a moved token follows its own
    rollout's sign, in steps on one prompt and on all of the rollouts' prompts.

    measured: groups whose tokens are asked.
    """
    blocks = block_coupling(policy, rollouts, blocks="prompt", measured=measured)
    curve = dose_curve(blocks, sorted({1, blocks.prompts})).query("tokens == 'moved'")
    follows = curve["follows"]
    asked = {"series": NOW, "quantity": "own sign", "units": 1}
    return curve.assign(mean=follows, low=follows, high=follows, **asked)


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
    prompts = table.groupby("model", sort=False)["prompts"].max()
    counts = ", ".join(f"{model} {count:.0f}" for model, count in prompts.items())
    return titled(
        drawn.properties(width=167, height=alt.Step(30)).facet(
            column=alt.Column("column:N", sort=list(SIGN_COLUMNS), title=None).header(
                labelExpr=_COLUMN_LABELS
            )
        ),
        "One step leaves most tokens of chains alone, and moves most of a language model's",
        f"prompts, each with rollouts of both signs: {counts}",
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
