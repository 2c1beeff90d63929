"""Charts of toy groups: gradients that meet, a growing group, baselines, frequencies, sizes."""

import altair as alt
import pandas as pd

from workbook.chapters.groups.toy import CLASSES, PUSHED, SOURCES, WORDS
from workbook.views.charts import curve_chart
from workbook.views.figures import bars, by_sign, panels, rule, series
from workbook.views.style import (
    ACCENT,
    NEGATIVE,
    NEUTRAL,
    POSITIVE,
    SERIES,
    WIDTH,
    describe_rows,
    diverging,
    panel_title,
    titled,
)
from workbook.views.tokens import token_strip

COLORS = [SERIES[1], NEUTRAL, SERIES[0]]  # style, template, result
_DASHES = [[6, 3], [2, 2], [1, 0]]
LABELS = {word: f"{word} · {name}" for name in CLASSES for word in WORDS[name]}
# of an advantage rule, in words
PANELS = {"grpo": "GRPO: the group's own mean", "reinforce": "REINFORCE: the whole batch's mean"}
EXAMPLES = {name: WORDS[name][0] for name in CLASSES}  # so, is, 9
WORD_AXIS = alt.Y("word:N", sort=list(LABELS), title=None).axis(labelExpr=f"{LABELS}[datum.label]")


def class_color(legend: alt.Legend | None) -> alt.Color:
    """One colour for each class of word."""
    return alt.Color("class:N", legend=legend, sort=CLASSES).scale(domain=CLASSES, range=COLORS)


def gradients_meet_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Draw a bar per token and source: pushes meet on the shared token, and on no other."""
    y = alt.Y("token:N", sort=PUSHED, title=None).axis(labelLimit=200)
    x = alt.X("push:Q", title="push on the token's logit (advantage × (1 − p) or −advantage × p)")
    # the source of each push stands beside its bar
    offset = alt.YOffset("source:N", sort=SOURCES)
    names = alt.Chart(table).mark_text(align="left", color="#444444")
    names = names.encode(y=y, yOffset=offset, x=alt.value(6), text="source:N")
    chart = bars(
        table,
        y,
        x.scale(domain=[-2, 2], nice=False),
        by="source",
        names=SOURCES,
        color=alt.Color("push:Q", legend=None).scale(diverging(1)),
        number="+.2f",
        outlined="datum.source === 'net'",
        mark={"opacity": {"expr": "datum.source === 'net' ? 1 : 0.55"}},
        form="+.3f",
        over=[names],
        height=300,
    )
    return titled(
        chart,
        "Opposite advantages cancel on the shared word, and only there",
        "blue pushes a token up, orange down; outlined: the sum of both",
        "Bars: the push from rollout A, from rollout B, and their sum, on a shared token and on a"
        " token of each alone.",
    )


def word_pushes_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Draw rollouts as text, each word coloured by the sum of pushes on it.

    table: a token table with a column push.
    """
    return titled(
        token_strip(table, "push"),
        "Before the error pushes cancel; after it B's free words go down, A's up",
        "colour: the sum of pushes on the word, of all rollouts in its context; blue: up; orange:"
        " down",
        describe_rows(table, "rollout", "position", "token", value="push", form="+.2f"),
    )


def growing_chart(
    net: pd.DataFrame, path: pd.DataFrame, rollouts: pd.DataFrame
) -> alt.HConcatChart:
    """Draw the net push so far on every word, and its way there on `so`, `is` and `9`.

    Tables of `compute_growing`.
    """
    reach = {"domain": [-0.8, 0.8], "clamp": True, "nice": False}
    ticks = {"title": "net push so far ÷ G", "values": [-0.6, -0.3, 0, 0.3, 0.6]}

    # left: a bar per word
    push = alt.X("push:Q").scale(**reach).axis(**ticks)
    pushes = bars(
        net,
        WORD_AXIS,
        push,
        color=by_sign("push"),
        number="+.3f",
        form="+.3f",
        shown=["class"],
        width=234,
        height=230,
    )

    # right: a line per example word, and above it the sign of each rollout's advantage
    ink = (
        alt.when("datum.advantage > 0")
        .then(alt.value(POSITIVE))
        .when("datum.advantage < 0")
        .then(alt.value(NEGATIVE))
        .otherwise(alt.value(NEUTRAL))
    )
    signs = alt.Chart(rollouts).encode(
        x=alt.X("rollout:Q"),
        y=alt.value(8),
        text="sign:N",
        opacity=alt.when("datum.seen").then(alt.value(1)).otherwise(alt.value(0)),
        color=ink,
        tooltip=["rollout:Q", "text:N", "reward:Q", alt.Tooltip("advantage:Q", format="+.3f")],
    )
    labels = {name: f"{word} ({name})" for name, word in EXAMPLES.items()}
    legend = alt.Legend(
        title=None,
        orient="bottom",
        labelExpr=f"{labels}[datum.label]",
        symbolStrokeWidth=2.5,
        symbolType="stroke",
    )
    dashes = alt.StrokeDash("class:N", legend=legend, sort=CLASSES)
    lines = alt.Chart(path).transform_filter(alt.FieldOneOfPredicate("word", [*EXAMPLES.values()]))
    lines = lines.transform_filter("datum.seen").mark_line(strokeWidth=2.5, point={"size": 22})
    step = alt.X("rollouts:Q", title="rollouts added").axis(tickMinStep=1, format="d")
    paths = lines.encode(
        x=step.scale(nice=False),
        y=alt.Y("push:Q").scale(**reach).axis(**ticks),
        color=class_color(legend),
        strokeDash=dashes.scale(domain=CLASSES, range=_DASHES),
        order="rollouts:Q",
    )
    zero = rule(0, "y", color="#bbbbbb")
    layers = alt.layer(zero, paths, signs.mark_text(fontSize=15, fontWeight="bold"))
    return panels(
        [pushes, layers.properties(width=284, height=230)],
        "Rollout by rollout, “9” climbs and “so” wanders",
        "left: every word, so far; right: the way there, with the sign of each rollout's advantage"
        " above",
        "Bars: net push on each word of the three softmaxes. Lines: the same after each rollout,"
        " for so, is and 9.",
    )


def frequency_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """Draw net push against difference in occurrence, a mark per word and group, a panel per rule.

    On the grey line both are equal.

    table: columns estimator, class, difference, push (divided by the group's mass of positive
    advantages).
    """
    x = alt.X("difference:Q", title=["frequency in good rollouts", "minus frequency in bad ones"])
    y = alt.Y("push:Q", title="net push ÷ M")
    at = {"x": x.scale(domain=[-1, 1]), "y": y.scale(domain=[-1.6, 1.6])}
    ends = pd.DataFrame({"difference": [-1, 1], "push": [-1, 1]})
    line = alt.Chart(ends).mark_line(color="#999999").encode(**at)

    legend = alt.Legend(title=None, orient="bottom")
    shape = alt.Shape("class:N", sort=CLASSES, legend=legend).scale(domain=CLASSES)
    dots = alt.Chart(table).mark_point(filled=True, size=35, opacity=0.6, clip=True)
    dots = dots.encode(**at, color=class_color(legend), shape=shape)

    charts = []
    for name in table["estimator"].unique():
        layers = alt.layer(line, dots.transform_filter(alt.datum.estimator == name))
        title = panel_title(PANELS.get(name, name))
        charts.append(layers.properties(title=title, width=260, height=230))
    return panels(
        charts,
        "With the group's own mean as baseline, the push is the difference of frequencies",
        "one mark a word and group, a few beyond the axes; on the grey line both are equal",
        "Marks: net push per mass of advantage against the difference of occurrence rates.",
    )


def group_size_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Draw the root mean square push against group size, both logarithmic.

    Columns group_size, rms, low, high, series.
    """
    x = alt.X("group_size:Q", title="rollouts in a group, G").scale(type="log", base=2)
    y = alt.Y("rms:Q", title="root mean square push per rollout").scale(type="log", nice=False)
    y = y.axis(values=[0.01, 0.02, 0.03, 0.05, 0.1, 0.2])
    return titled(
        series(table, x, y, by="series", spread="bars", height=260),
        "Chance falls with the square root of the group, credit stays",
        "means over seeds with 95 % bootstrap intervals; both axes logarithmic",
        "Lines per estimator and word: root mean square net push per rollout against group size.",
    )


def baseline_chart(table: pd.DataFrame, marks: dict[str, tuple[float, float]]) -> alt.LayerChart:
    """Draw the noise of one rollout's push against the baseline that is subtracted.

    table: columns baseline, noise.
    marks: {name: (baseline, noise)}, points with their names below them.
    """
    across = alt.X("baseline:Q", title="baseline b").scale(nice=False)
    up = alt.Y("noise:Q", title="noise of one rollout's push (rms)").scale(zero=True)
    points = pd.DataFrame(
        [(name, *place) for name, place in marks.items()], columns=["name", "baseline", "noise"]
    )
    line = alt.Chart(table).mark_line(strokeWidth=2.5, color=ACCENT)
    line = line.encode(x=across, y=up)
    here = alt.Chart(points).encode(x=across, y=up)
    dots = here.mark_point(filled=True, size=80, opacity=1, color=ACCENT)
    names = here.mark_text(color=NEUTRAL, dy=20, align="center").encode(text="name:N")
    return titled(
        alt.layer(line, dots, names).properties(width=WIDTH, height=200),
        "A baseline keeps the mean push; near the mean reward it lowers the noise",
        "exact, over all six rollouts; the mean push is the same at every b",
        "; ".join(
            f"{name}: noise {noise:.3f} at b = {b:.2f}" for name, (b, noise) in marks.items()
        ),
    )


def difficulty_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Draw the factor k of each rule against the chance that the prompt is solved.

    table: columns rule, success, k.
    """
    x = alt.X("success:Q", title="chance V that a rollout is right").scale(domain=[0, 1])
    y = alt.Y("k:Q", title="factor k").scale(domain=[0, 2.6], nice=False)
    groups = table.groupby("rule", sort=False)["k"]
    return titled(
        series(table, x, y, by="rule", points=False, spread=None, height=220),
        "GRPO pushes hardest where prompts are seldom or nearly always solved",
        "push per credit, in expectation, in groups of eight",
        "; ".join(f"{rule}: k from {k.min():.3f} to {k.max():.3f}" for rule, k in groups),
    )


def mixed_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Draw how many groups hold both rewards, and how many prompts teach, by group size."""
    return curve_chart(
        table,
        "group_size",
        series="series",
        x_title="rollouts per prompt G",
        y_title="share",
        title="Larger groups more often hold both rewards, and leave fewer prompts",
        subtitle="expected, at a fixed number of rollouts",
        form=".0%",
        scale={"domain": [0, 1]},
        shown=["prompts", "teaching"],
    )
