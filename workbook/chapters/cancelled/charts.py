"""Charts of the cancelled share: four bars per class of word, and curves over rollouts and over
prompts.
"""

import altair as alt
import numpy as np
import pandas as pd

from workbook.probes.cancellation import RIGHT_RESULT, WRONG_RESULT, cancelled_shares
from workbook.views.charts import curve_chart
from workbook.views.figures import bars, panels
from workbook.views.style import NEUTRAL, SERIES, describe_rows

BARS = ["same prompt, same sign", "same prompt, other sign", "other prompts", "net"]
PLACES = ["within the prompt", "in the batch"]
SHOWN = ("style", "template", RIGHT_RESULT, WRONG_RESULT, "Math", "Template", "Reasoning")
_LONGEST = 1.25  # of the axis of shares, either way; a share may lie beyond


def bar_tables(sums: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Tables of `cancellation_chart` from sums over words that both signs share: bars and shares.

    bars: kind, part (of BARS), push: along the own side, which is 1; three add up to the
    fourth.  shares: kind, place (of PLACES), share, tokens.
    """
    words = cancelled_shares(sums[(sums["identity"] == "word") & (sums["own2"] > 0)]).set_index(
        "kind"
    )
    kinds = words.loc[[kind for kind in SHOWN if kind in words.index]]
    pushes = (
        kinds[["own2", "cross", "beside"]].div(kinds["own2"], axis=0).set_axis(BARS[:3], axis=1)
    )
    pushes[BARS[3]] = pushes.sum(axis=1)
    both = kinds[["tokens", "within", "batch"]].set_axis(["tokens", *PLACES], axis=1)
    melted = {"bars": pushes.reset_index().melt("kind", var_name="part", value_name="push")}
    return melted | {
        "shares": both.reset_index().melt(["kind", "tokens"], var_name="place", value_name="share")
    }


def cancellation_chart(bars: pd.DataFrame, shares: pd.DataFrame) -> alt.HConcatChart:
    """Left who pushes a class of words, along its own side; right the cancelled share; tables of
    `bar_tables`.
    """
    kinds = bars["kind"].unique().tolist()
    y = alt.Y("kind:N", sort=list(SHOWN), title=None).axis(labelLimit=160)
    push = alt.X("push:Q", title="push along that of the same sign (= 1)")
    share = alt.X("share:Q", title="cancelled share").scale(
        domain=[-_LONGEST, _LONGEST], clamp=True
    )
    number = alt.Chart(shares).mark_text(align="left", dx=4)
    number = number.encode(
        y=y, yOffset=alt.YOffset("place:N", sort=PLACES).scale(domain=PLACES), x=alt.value("width")
    )
    number = number.encode(text=alt.Text("share:Q", format="+.2f"))
    look = {"height": alt.Step(72, **{"for": "position"}), "legend": {"columns": 2}}
    four, two = ([SERIES[k] for k in places] for places in ((0, 1, 3), (1, 2)))
    left = draw_bars(bars, y, push, by="part", names=BARS, colors=[*four, NEUTRAL], **look)
    labelless = y.copy().axis(labels=False)
    right = draw_bars(
        shares, labelless, share, by="place", names=PLACES, colors=two, over=[number], **look
    )
    chart = panels(
        [left.properties(width=318), right.properties(width=222)],
        "What the other sign takes away from words that both signs share",
        "right panel: 1, the other sign takes it all; 0, nothing; below 0, it adds",
        f"{len(kinds)} classes."
        f" {describe_rows(shares, 'kind', 'place', value='share', form='.2f')}.",
        spacing=30,
    )
    return chart.resolve_scale(color="independent", yOffset="independent")


draw_bars = bars  # a parameter above bears its name


def describe_shares(bars: pd.DataFrame, shares: pd.DataFrame) -> str:
    """The cancelled shares of a table in a sentence."""
    parts = [
        f"{kind}: {rows[PLACES[0]]:.2f} within the prompt, {rows[PLACES[1]]:.2f} in the batch"
        for kind, rows in shares.pivot(index="kind", columns="place", values="share").iterrows()
    ]
    return f"Cancelled share. {'; '.join(parts)}."


def ceiling_chart(table: pd.DataFrame) -> alt.LayerChart:
    """The cancelled share in the toy against the rollouts of a prompt; table of `toy.ceiling`."""
    lines = table.assign(
        mean=table["share"], low=np.nan, high=np.nan, line=table["kind"] + ", " + table["rewards"]
    )
    return curve_chart(
        lines,
        "rollouts",
        series="line",
        x_title="rollouts of a prompt",
        y_title="cancelled share: what the other sign takes",
        title="The cancelled share tends to 0 even where pushes cancel exactly",
        subtitle=(
            "chapter 02's toy, where pushes in one context cancel exactly; permuted: with shuffled"
            " rewards"
        ),
        reference=[(0.0, "nothing taken")],
        spread=None,
    )
