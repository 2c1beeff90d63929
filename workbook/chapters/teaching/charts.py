"""Figures of the experiments on what cancels and what teaches, of the tables in
data/figures/teaching.
"""

import altair as alt
import pandas as pd

from workbook.views.charts import curve_chart, intervals_chart
from workbook.views.figures import rule
from workbook.views.style import NEUTRAL, SERIES, describe_rows, titled, tooltips

MASK = "the mask"  # kind of a row that is no twin
NETWORK, COMPUTED = "networks, measured", "one context, computed"


def pairs_chart(table: pd.DataFrame):
    """How much more the agreement with credit loses without the pairs that cancel than without
    other pairs.

    table: teaching/pairs; label, scale (NETWORK or COMPUTED), mean, low, high.
    """
    return intervals_chart(
        table,
        "Pairs that cancel add to agreement in one context, and hardly in a network",
        "what the agreement of a step with exact credit loses without them, beyond other pairs; 95"
        " % t intervals",
        "share of the correlation of change and credit",
        threshold=0.25,
    )


def masks_chart(table: pd.DataFrame):
    """What training on some tokens alone ends at, over how much of the exact credit they hold.

    table: teaching/masks; label, kind, credit, mean, low, high, batches.
    """
    batches = table["batches"].iloc[0]
    x = alt.X("credit:Q", title="share of the unsure tokens' exact |credit| that is pushed").scale(
        domain=[0, 1.2], nice=False
    )
    y = alt.Y("mean:Q", title="value at the end minus plain's")
    base = alt.Chart(table).encode(x=x)
    names = table["kind"].drop_duplicates().tolist()
    color = alt.Color("kind:N", sort=names, title=None).scale(
        domain=names, range=list(SERIES[: len(names)])
    )
    shape = alt.Shape("kind:N", sort=names, title=None).scale(domain=names)
    hints = tooltips(table, "label", "kind", "credit", "mean", "low", "high")
    layers = [
        rule(0, "y", dashed=True, color=NEUTRAL),
        base.mark_rule(size=3, opacity=0.4).encode(y=alt.Y("low:Q"), y2="high:Q", color=color),
        base.mark_point(size=90, filled=True, opacity=1).encode(
            y=y, color=color, shape=shape, tooltip=hints
        ),
        base.transform_filter(f"datum.kind == '{MASK}'")
        .mark_text(align="left", dx=8, dy=17, fontSize=12)
        .encode(y=y, text="label:N", color=color),
    ]
    return titled(
        alt.layer(*layers).properties(width=520, height=280),
        "What a mask teaches goes with how much credit it holds",
        f"exact held-out value after {batches} batches on these tokens alone; 95 % t intervals over"
        " ten policies",
        describe_rows(table, "label", "kind", interval=True),
    )


def opposition_chart(table: pd.DataFrame):
    """Value at the end by the share of the baseline that is subtracted, minus that with all of it.

    table: teaching/opposition; world, share, mean, low, high, units.
    """
    return curve_chart(
        table,
        "share",
        "world",
        x_title="share of the group's mean reward that is subtracted",
        y_title="value at the end minus GRPO's",
        title="Training without a baseline ends higher than with all of GRPO's",
        log2=False,
        reference=[(0.0, "all of it: GRPO without scaling")],
    )
