"""Figures of chapter 07: the committed tables in data/figures/teaching, and what was run now."""

import altair as alt
import pandas as pd

from workbook.views.charts import intervals_chart
from workbook.views.figures import bars, by_sign, forest, panels, rule, series
from workbook.views.style import ACCENT, NEUTRAL, SERIES, describe_rows, titled, tooltips

MASK = "the mask"  # kind of a row that is no twin
_TWIN = "twin: permuted signs"
_KINDS = {_TWIN: "its twin: shuffled signs", "twin: as much |credit|": "random, as much credit"}
NETWORK, COMPUTED = "networks, measured", "one context, computed"
NOW = "one policy, now"
_LEADS = [-0.15, 0.25]  # of the axis of ends, which stays where it is under the slider


def agreement_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Agreement of a step with credit, whole and without sets of pairs; of `agreement_table`."""
    x = alt.X("agreement:Q", title="correlation of a token's change and its exact credit")
    x = x.axis(tickCount=6).scale(padding=30)
    y = alt.Y("left_out:N", sort=None, title="left out").axis(labelLimit=240)
    chart = bars(table, y, x, number=".2f", height=170)
    return titled(
        chart,
        "Leaving out the pairs that cancel costs little more than leaving out others",
        "one policy, now; other sets are scaled down to the size of the one that cancels",
        describe_rows(table, "left_out", value="agreement", form=".2f"),
    )


def givers_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Who pushes style words along their own sign; table of `givers_table`."""
    x = alt.X("push:Q", title="push along that of the same sign's same word (= 1)").scale(
        padding=40
    )
    y = alt.Y("pushers:N", sort=None, title=None).axis(labelLimit=200)
    chart = bars(table, y, x, number="+.2f", height=150, color=by_sign("push"))
    return titled(
        chart,
        "What the same word takes from a style word, its rivals give back",
        "one policy, now; each prompt pushes alone",
        describe_rows(table, "pushers", value="push", form="+.2f"),
    )


def pairs_chart(table: pd.DataFrame):
    """How much more the agreement with credit loses without the pairs that cancel than without
    other pairs.

    table: teaching/pairs; label, scale (NETWORK or COMPUTED), mean, low, high.
    """
    return intervals_chart(
        table,
        "Pairs that cancel add to agreement in one context, and hardly in a network",
        "share of the agreement lost without them, beyond other pairs; dashed: the least that would"
        " matter; 95 % t intervals",
        "share of the agreement of a step with exact credit",
        threshold=0.25,
    )


def masks_chart(table: pd.DataFrame):
    """What training on some tokens alone ends at, over how much of the exact credit they hold.

    table: teaching/masks; label, kind, credit, mean, low, high, batches. A line joins each mask
    and its twin.
    """
    batches = table["batches"].iloc[0]
    twins = table[table["kind"].isin([MASK, _TWIN])]
    twins = twins[twins["label"].duplicated(keep=False)]
    table = table.assign(kind=table["kind"].replace(_KINDS))
    x = alt.X("credit:Q", title="share of the unsure tokens' credit that the mask holds").scale(
        domain=[0, 1.2], nice=False
    )
    y = alt.Y("mean:Q", title="end minus end of all tokens")
    base = alt.Chart(table).encode(x=x)
    names = table["kind"].drop_duplicates().tolist()
    color = alt.Color("kind:N", sort=names, legend=alt.Legend(title=None, symbolOpacity=1))
    color = color.scale(domain=names, range=list(SERIES[: len(names)]))
    shape = alt.Shape("kind:N", sort=names, title=None).scale(domain=names)
    hints = tooltips(table, "label", "kind", "credit", "mean", "low", "high")
    layers = [
        rule(0, "y", dashed=True, color=NEUTRAL),
        alt.Chart(twins)
        .mark_line(color=NEUTRAL, strokeWidth=1.5, point=False)
        .encode(x=x, y=y, detail="label:N"),
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
        f"reward after {batches} batches on these tokens alone; a line leads from a mask to its"
        " twin; 95 % t intervals over ten policies",
        describe_rows(table, "label", "kind", interval=True),
    )


CHOSEN, FULL = "the share chosen", "all of it: GRPO without scaling"


def opposition_chart(
    noise: pd.DataFrame, chosen: pd.DataFrame, run: pd.DataFrame, measured: pd.DataFrame
) -> alt.HConcatChart:
    """The dial of opposition: noise of a step, a run of one policy, and ends of ten policies.

    noise: share, noise.  chosen: one row, share, noise and lead of the dial's setting.
    run: batch, value, line (CHOSEN, FULL).
    measured: rows of teaching/opposition at that share; world, mean, low, high.
    """
    share = alt.X("share:Q", title="share subtracted").scale(domain=[0, 1], nice=False, padding=8)
    share = share.axis(values=[0, 0.5, 1])
    setting = alt.Chart(chosen).encode(x=share)
    line = setting.mark_rule(color=NEUTRAL, strokeDash=[4, 3])
    dot = setting.mark_point(size=110, filled=True, color=ACCENT, opacity=1)
    height = 210
    left = series(
        noise,
        share,
        alt.Y("noise:Q", title="noise per signal (GRPO: 1)").scale(zero=True),
        spread=None,
        points=False,
        over=[line, dot.encode(y="noise:Q")],
        width=150,
        height=height,
        title="Noise of one step",
        color=alt.value(ACCENT),
    )
    middle = series(
        run,
        alt.X("batch:Q", title="batches"),
        alt.Y("value:Q", title="expected reward, exact").scale(zero=False),
        "line",
        names=[CHOSEN, FULL],
        colors=[ACCENT, NEUTRAL],
        spread=None,
        points=False,
        width=150,
        height=height,
        legend={"columns": 1},
        title="One run",
    )
    right = forest(
        measured,
        "world",
        alt.X("mean:Q", title="end minus GRPO's").scale(domain=_LEADS, nice=False, clamp=True),
        number="+.2f",
        zero=True,
        width=170,
        height=height,
        title="Ends of ten policies each",
    )
    chart = panels(
        [left, middle, right],
        "Training without a baseline ended higher in three kinds of chains",
        "left and middle: one policy, now; right: measured at the share chosen, 95 % t intervals",
        describe_rows(measured, "world", interval=True),
        spacing=24,
    )
    return chart.resolve_scale(color="independent", shape="independent")
