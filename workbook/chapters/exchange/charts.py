"""Charts of gradient exchangeability: the residual meter, repairs, pushes of TRL's losses, the KL
penalty, KL drift, right answers.
"""

import altair as alt
import pandas as pd

from workbook.chapters.exchange.drift import PATHS, STEPS, WHEN
from workbook.chapters.exchange.objectives import PULLS
from workbook.chapters.exchange.toy import MECHANISMS, TOGETHER
from workbook.views.figures import INTERVAL, bars, by_sign, forest, panels, rule, series
from workbook.views.style import (
    ACCENT,
    NEUTRAL,
    SERIES,
    WIDTH,
    describe_rows,
    require_columns,
    titled,
    tooltips,
)
from workbook.views.tokens import token_strip

REPAIRS = [NEUTRAL, *SERIES[:2]]  # of TRANSFORMS
STROKES = {"columns": 3, "symbolType": "stroke", "symbolStrokeWidth": 2.5, "labelLimit": 220}
RUNS = ["your settings", "equal weights"]
MEASURES = {
    "entropy": ("entropy over the right answers (nats)", [0, 1.1]),
    "log-odds": ("change of log-odds, first : second", [-1, 3.5]),
    "reward": ("probability of a right answer", [0.4, 1]),
}
RESIDUAL = "residual (0 cancels, 1 adds up)"
_FRACTIONS = "datum.value < 1 ? '1/' + format(1 / datum.value, 'd') : format(datum.value, 'd')"


# --- the residual of one step


def exchange_chart(meter: pd.DataFrame, pushes: pd.DataFrame) -> alt.HConcatChart:
    """Left the residual of each mechanism with its interval, right one group's pushes."""
    y = alt.Y("mechanism:N", sort=[*MECHANISMS, TOGETHER], title=None).axis(labelLimit=180)
    silent = (
        "(datum.silent > 0.005 ? ', ' + format(datum.silent, '.0%') + ' of groups silent' : '')"
    )
    texts = alt.Chart(meter).transform_calculate(text=f"format(datum.mean, '.2f') + {silent}")
    mechanisms = bars(
        meter,
        y,
        alt.X("mean:Q", title=RESIDUAL).scale(domain=[0, 1]),
        color=alt.when("datum.on").then(alt.value(ACCENT)).otherwise(alt.value("#b9c3cc")),
        zero=False,
        form=".3f",
        shown=["silent"],
        over=[texts.mark_text(align="left", dx=6).encode(x="high:Q", y=y, text="text:N")],
        width=288,
        height=230,
    )
    rollout = alt.Y("rollout:N", sort=None, title="rollout")
    push = alt.X("push:Q", title="push, share of the group's total").scale(domain=[-1, 1])
    rewards = (
        alt.Chart(pushes)
        .mark_text(align="left", color=NEUTRAL)
        .encode(x=alt.value(4), y=rollout, text="reward:N")
    )
    look = {
        "number": "+.2f",
        "outlined": "datum.rollout === 'net'",
        "shown": ["reward"],
        "over": [rewards],
    }
    push = push.axis(values=[-1, -0.5, 0, 0.5, 1])
    group = bars(pushes, rollout, push, color=by_sign("push"), width=207, height=230, **look)
    return panels(
        [mechanisms, group],
        "Equal weights and one direction leave nothing on a shared word",
        "left: mean over 200 groups with its 95 % interval, dark: switched on; right: one group of"
        " eight rollouts",
        "Bars of the residual under each mechanism alone and all that are switched on; the pushes"
        " of one group.",
        spacing=24,
    )


def repairs_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Residual of each mechanism alone, without a repair and with either; columns mechanism,
    transform, mean, ...
    """
    title = "Both repairs mend ratios, clips and lengths, only one a mask, none a direction"
    subtitle = "each mechanism alone: mean over 200 groups with its 95 % interval"
    return _residuals(
        table, "mechanism", "transform", title, subtitle, colors=REPAIRS, height=alt.Step(15)
    )


def normalizer_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Residual that a loss's normalizer leaves, by batch and loss type; columns batch, loss_type,
    mean, low, high.
    """
    title, subtitle = (
        "A rollout's own length is an unequal weight",
        "before the first step: mean and 95 % interval",
    )
    return _residuals(table, "batch", "loss_type", title, subtitle, height=alt.Step(15))


def _residuals(
    table: pd.DataFrame, row: str, by: str, title: str, subtitle: str, **look
) -> alt.LayerChart:
    require_columns(table, (row, by, *INTERVAL), "a chart of residuals")
    x = alt.X("mean:Q", title=RESIDUAL).scale(domainMin=0)
    numbers = describe_rows(table, row, by, form=".3f", interval=True)
    return titled(forest(table, row, x, by=by, zero=True, **look), title, subtitle, numbers)


def ratios_chart(words: pd.DataFrame) -> alt.LayerChart:
    """Draw A and B as text, each word coloured by its ratio; table of `two_rollouts`."""
    return titled(
        token_strip(words, "ratio"),
        "Ratios leave 1 only behind the error",
        "blue: likelier than when it was sampled; orange: less likely; ▲ ▼ stopped by the clip",
        describe_rows(words, "rollout", "position", "token", value="ratio", form=".2f"),
    )


# --- pushes of TRL's losses


def formula_chart(formula: pd.DataFrame, pushes: pd.DataFrame) -> alt.LayerChart:
    """Pushes of TRL's loss on every token of A, above, and of B, below; the chosen one outlined.

    formula, pushes: of `compute_formula`.
    """
    height = 230
    x = alt.X("position:O", axis=None)
    y = alt.Y("push:Q", title="push (A's words above, B's below)").axis(tickCount=6)
    layers = []
    for rollout, words_at in (("A", -8), ("B", height + 8)):
        base = alt.Chart(pushes).transform_filter(alt.datum.rollout == rollout)
        hints = tooltips(pushes, "rollout", "position", "token", "push", form="+.5f")
        bar = base.mark_bar(strokeWidth=3).encode(
            x=x,
            y=y,
            color=by_sign("push"),
            stroke=alt.when("datum.chosen").then(alt.value("black")).otherwise(alt.value(None)),
            tooltip=hints,
        )
        # upright words that begin, or end, at the plot's edge
        align = "left" if rollout == "A" else "right"
        words = base.mark_text(angle=270, align=align, fontSize=12).encode(
            x=x, y=alt.value(words_at), text="token:N"
        )
        layers += [bar, words]
    return titled(
        alt.layer(*layers).properties(width=WIDTH - 60, height=height),
        "All words of a rollout get one push, until a ratio or the clip changes it",
        "blue pushes a word up, orange down; words without a bar get no push; outlined: the chosen",
        describe_rows(pushes, "rollout", "position", "token", value="push", form="+.4f"),
    )


def reference_pull_chart(curve: pd.DataFrame, chosen: pd.DataFrame) -> alt.LayerChart:
    """Net push on a token against its probability over the reference's: reward alone, and with
    either form of the KL penalty.

    curve, chosen: of `compute_reference_pull`.
    """
    x = alt.X("ratio:Q", title="probability over the reference's, π / π_ref")
    x = x.scale(type="log", base=2, domain=[1 / 64, 64], nice=False)
    x = x.axis(values=[1 / 64, 1 / 16, 1 / 4, 1, 4, 16, 64], labelExpr=_FRACTIONS)
    y = alt.Y("push:Q", title="push on the token").scale(domain=[-1.5, 1.5], clamp=True)
    names = [*PULLS]
    marks = alt.Chart(chosen).mark_point(size=90, filled=True, opacity=1, clip=True)
    marks = marks.encode(x=x, y=y, color=alt.Color("series:N"))
    chart = series(
        curve,
        x,
        y,
        by="series",
        names=names,
        dash="series",
        spread=None,
        points=False,
        zero=True,
        clip=True,
        legend=STROKES,
        over=[marks],
        height=250,
    )
    return titled(
        chart,
        "GRPO's penalty holds a word that falls; one that rises it slows by β at most",
        "where a line crosses 0 the word stands still; dots: the chosen ratio",
        describe_rows(chosen, "series", "ratio", value="push", form="+.3f"),
    )


# --- drift over many steps


def kl_drift_chart(table: pd.DataFrame) -> alt.LayerChart:
    """KL from the first policy over steps, beside that of a coin toss; table of
    `compute_kl_drift`.
    """
    x = alt.X("step:Q", title="step").scale(domain=[0, STEPS])
    y = alt.Y("mean:Q", title="KL from the first policy (nats)")
    look = {"names": PATHS, "dash": "series", "legend": STROKES, "points": False, "height": 220}
    last = table[table["step"] == STEPS]
    return titled(
        series(table, x, y, by="series", **look),
        "A push that keeps its sign drifts far, a coin toss hardly",
        "line: mean of 64 draws; band: 95 % interval",
        describe_rows(last, "series", form=".2e"),
    )


def solutions_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """Entropy over equally right answers, their log-odds and the reward, step by step, against
    equal weights.
    """
    x, look = alt.X("step:Q", title="step").scale(domain=[0, STEPS]), {"width": 171, "height": 220}
    return panels(
        [_measure(table, measure, x, RUNS, **look) for measure in MEASURES],
        "By softmax steps, equally right answers drift apart",
        "means over 48 seeds with 95 % intervals; dashed: the same with equal weights",
        "Three line charts over steps: entropy over the right answers, log-odds of two of them, and"
        " reward.",
        spacing=24,
    )


def _measure(
    table: pd.DataFrame, measure: str, x: alt.X, runs: list[str], **look
) -> alt.LayerChart:
    """One of MEASURES over steps, a line per run."""
    title, domain = MEASURES[measure]
    y = alt.Y("mean:Q", title=title).scale(domain=domain, nice=False)
    lines = series(
        table,
        x,
        y,
        by="run",
        names=runs,
        dash="run",
        points=False,
        clip=True,
        **{"legend": STROKES} | look,
    )
    return lines.transform_filter(alt.datum.measure == measure)


def long_run_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """Entropy over equally right answers and their log-odds on a logarithmic step axis; table of
    `long_runs`.
    """
    runs = table["run"].drop_duplicates().tolist()
    x = alt.X("step:Q", title="step").scale(type="log", nice=False).axis(values=[1, 10, 100, 1000])
    legend = STROKES | {"columns": 2, "labelLimit": 240}
    look = {"spread": "bars", "legend": legend, "width": 287, "height": 240}
    return panels(
        [_measure(table, measure, x, runs, **look) for measure in ("entropy", "log-odds")],
        "Over thousands of steps: the softmax gradient goes on, the natural gradient halts",
        "means over seeds with 95 % intervals; the step axis is logarithmic",
        "Two line charts on a logarithmic step axis: entropy over the right answers, and change of"
        " their log-odds.",
        spacing=30,
    )


def entropy_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Entropy of every setting, a dot for each of WHEN, against where all began; table of
    `entropy_by_setting`.
    """
    start = float(table["start"].iloc[0])
    x = alt.X("mean:Q", title="entropy over three equally right answers (nats)").scale(
        domain=[0.4, 1], nice=False
    )
    look = {"by": "when", "names": [*WHEN.values()], "colors": SERIES[:2], "number": ".2f"}
    under = [rule(start, "x", dashed=True, color=NEUTRAL)]
    return titled(
        forest(table, "setting", x, under=under, **look),
        "Entropy falls with equal weights, too",
        f"means over seeds with 95 % intervals; dashed: the start, {start:.2f} nats",
        describe_rows(table, "setting", "when", form=".3f", interval=True),
    )
