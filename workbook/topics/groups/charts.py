"""Charts of toy groups: two gradients that meet, rollouts added one at a time, estimators, interventions, many groups.

The first explorer has two rollouts, A `so 7` and B `so 4`. Each pushes the logits of the softmax it was drawn from by
its advantage times (e - p), e the one-hot vector of its token and p the probabilities, and the pushes of a group add up
(Cancellation Hypothesis, arXiv 2605.08666, section 3).
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.topics.groups.toy import (
    CLASSES,
    COMPARED,
    SIDES,
    SIGNS,
    WORDS,
    compute_estimators,
    compute_growing,
    compute_intervention,
    push_on_logits,
)
from workbook.views import figures
from workbook.views.explorer import Explorer, menu, slider, switch
from workbook.views.figures import panels, rule
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, SERIES, diverging, panel_title, titled

SHARED, ONLY_A, ONLY_B = "“so”, in A and in B", "“7”, in A only", "“4”, in B only"
SOURCES = ["from A", "from B", "net"]
COLORS = [SERIES[2], NEUTRAL, SERIES[3]]  # style, template, result
DASHES = [[6, 3], [2, 2], [1, 0]]
LABELS = {word: f"{word} · {name}" for name in CLASSES for word in WORDS[name]}
EXAMPLES = {name: WORDS[name][0] for name in CLASSES}  # so, is, 7


# --- two rollouts


def compute_gradients_meet(advantage_a: float = 1.0, advantage_b: float = -1.0, p_shared: float = 0.5) -> pd.DataFrame:
    """Pushes on the shared token and on each rollout's own: columns token, source (from A, from B, net), push.

    p_shared: probability of the shared token; `7` and `4` have 0.4 each.
    """
    if not 0 < p_shared < 1:
        raise ValueError(f"p_shared={p_shared} is not a probability: it must lie between 0 and 1.")
    advantages = [advantage_a, advantage_b]
    first = push_on_logits([0, 0], advantages, [p_shared, 1 - p_shared])[:, 0]
    second = push_on_logits([0, 1], advantages, [0.4, 0.4, 0.2])
    pushes = {SHARED: first, ONLY_A: second[:, 0], ONLY_B: second[:, 1]}
    rows = [
        (token, source, float(push))
        for token, (a, b) in pushes.items()
        for source, push in zip(SOURCES, (a, b, a + b), strict=True)
    ]
    return pd.DataFrame(rows, columns=["token", "source", "push"])


def gradients_meet_chart(table: pd.DataFrame) -> alt.LayerChart:
    """One bar per token and source: pushes that meet on the shared token, and those that do not."""
    y = alt.Y("token:N", sort=[SHARED, ONLY_A, ONLY_B], title=None).axis(labelFontSize=13, labelLimit=200)
    title = "push on the token's logit (advantage × (1 − p) or −advantage × p)"
    sources = alt.Chart(table).mark_text(align="left", color="#444444")
    chart = figures.bars(
        table,
        y,
        alt.X("push:Q", title=title).scale(domain=[-2, 2], nice=False),
        by="source",
        names=SOURCES,
        color=alt.Color("push:Q", legend=None).scale(diverging(1)),
        number="+.2f",
        outlined="datum.source === 'net'",
        mark={"opacity": {"expr": "datum.source === 'net' ? 1 : 0.55"}},
        form="+.3f",
        over=[sources.encode(y=y, yOffset=alt.YOffset("source:N", sort=SOURCES), x=alt.value(6), text="source:N")],
        height=300,
    )
    return titled(
        chart,
        "Where two rollouts' gradients meet, and where they do not",
        "blue pushes a token up, orange down; outlined: the sum of both",
        "Bars: the push from rollout A, from rollout B, and their sum, on a shared token and on a token of each alone.",
    )


def describe_gradients_meet(table: pd.DataFrame) -> str:
    """Net push on the shared token and on each rollout's own, in a sentence."""
    net = table[table["source"] == "net"].set_index("token")["push"] + 0.0
    still = "stands still" if abs(net[SHARED]) < 1e-9 else f"moves by {net[SHARED]:+.2f}"
    return f"The shared token {still}; “7” moves by {net[ONLY_A]:+.2f}, “4” by {net[ONLY_B]:+.2f}."


def explore_gradients_meet() -> Explorer:
    """Slide the advantage of rollout B: at −1 the shared token stands still and the answers part."""
    controls = {
        "advantage_a": slider(1.0, -1.0, 1.0, 0.05, "advantage of A"),
        "advantage_b": slider(-1.0, -1.0, 1.0, 0.05, "advantage of B"),
        "p_shared": slider(0.5, 0.05, 0.95, 0.05, "probability of “so”"),
    }
    return Explorer(compute_gradients_meet, gradients_meet_chart, controls, describe_gradients_meet)


# --- one group, rollout by rollout


def growing_chart(bars: pd.DataFrame, path: pd.DataFrame, rollouts: pd.DataFrame) -> alt.HConcatChart:
    """Left the net push so far on every word, right its way there on `so`, `is` and `7`; tables of compute_growing."""
    reach = {"domain": [-0.6, 0.6], "clamp": True, "nice": False}
    ticks = {"title": "net push so far ÷ G", "values": [-0.6, -0.3, 0, 0.3, 0.6]}
    push = alt.X("push:Q").scale(**reach).axis(**ticks)
    color = figures.by_sign("push")
    pushes = figures.bars(
        bars, _words(), push, color=color, number="+.3f", form="+.3f", shown=["class"], width=280, height=230
    )
    lines = alt.Chart(path).transform_filter(alt.FieldOneOfPredicate("word", [*EXAMPLES.values()]))
    positive = alt.when("datum.advantage > 0").then(alt.value(POSITIVE))
    signs = alt.Chart(rollouts).encode(
        x=alt.X("rollout:Q"),
        y=alt.value(8),
        text="sign:N",
        opacity=alt.when("datum.seen").then(alt.value(1)).otherwise(alt.value(0)),
        color=positive.when("datum.advantage < 0").then(alt.value(NEGATIVE)).otherwise(alt.value(NEUTRAL)),
        tooltip=["rollout:Q", "text:N", "reward:Q", alt.Tooltip("advantage:Q", format="+.3f")],
    )
    labels = f"{ {name: f'{word} ({name})' for name, word in EXAMPLES.items()} }[datum.label]"
    legend = alt.Legend(title=None, orient="bottom", labelExpr=labels, symbolStrokeWidth=2.5)
    paths = alt.layer(
        rule(0, "y", color="#bbbbbb"),
        lines.transform_filter("datum.seen")
        .mark_line(interpolate="step-after", strokeWidth=2.5)
        .encode(
            x=alt.X("rollouts:Q", title="rollouts added").axis(tickMinStep=1, format="d").scale(nice=False),
            y=alt.Y("push:Q").scale(**reach).axis(**ticks),
            color=_class_color(legend),
            strokeDash=alt.StrokeDash("class:N", legend=legend, sort=CLASSES).scale(domain=CLASSES, range=DASHES),
            order="rollouts:Q",
        ),
        signs.mark_text(fontSize=15, fontWeight="bold"),
    )
    return panels(
        [pushes, paths.properties(width=400, height=230)],
        "Net push on each word while rollouts are added",
        "left: every word, so far; right: the way there, with the sign of each rollout's advantage above",
        "Bars: net push on each word of the three softmaxes. Lines: the same after each rollout, for so, is and 7.",
    )


def describe_growing(bars: pd.DataFrame, path: pd.DataFrame, rollouts: pd.DataFrame) -> str:
    """The newest rollout, and the net push so far on the three example words."""
    seen = rollouts[rollouts["seen"]]
    if rollouts["reward"].nunique() == 1 and (rollouts["advantage"] == 0).all():
        return f"All {len(rollouts)} rewards of this draw are equal, so every advantage is 0 and nothing is pushed."
    if seen.empty:
        return "No rollout yet: nothing is pushed."
    push = bars.set_index("word")["push"] + 0.0
    pushes = ", ".join(f"“{word}” {push[word]:+.3f}" for word in EXAMPLES.values())
    last, count = seen.iloc[-1], "all" if len(seen) == len(rollouts) else f"{len(seen)} of {len(rollouts)}"
    outcome = f"reward {last['reward']:.0f}, advantage {last['advantage']:+.2f}"
    return f"Rollout {last['rollout']} says “{last['text']}”: {outcome}. Net push after {count}: {pushes}."


def explore_growing() -> Explorer:
    """Add rollouts one at a time and watch the net push on shared and on specific words."""
    controls = {
        "so_far": slider(3, 0, 32, 1, "rollouts added"),
        "group_size": menu(8, [2, 4, 8, 16, 32], "group size G"),
        "estimator": menu("grpo", COMPARED, "estimator"),
        "p_right": slider(0.5, 0.05, 0.95, 0.05, "probability of “7”"),
        "draw": slider(0, 0, 50, 1, "random draw"),
    }
    return Explorer(compute_growing, growing_chart, controls, describe_growing)


# --- many groups


def estimators_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """What each estimator moves per class, and its share of the whole; a table of compute_estimators."""
    title = "moved per rollout (advantage × probability)"
    x = alt.X("moved:Q", title=title).scale(domain=[0, 0.6], clamp=True, nice=False).axis(tickCount=6)
    share = alt.X("share:Q", title="share of what it moves").scale(domain=[0, 1]).axis(format="%", tickCount=3)
    look = {"color": _class_color(None), "mark": {"opacity": 0.75}, "zero": False, "height": alt.Step(15)}
    columns = ["estimator", "moved", "low", "high", "share"]
    sizes = figures.bars(table, _classes(), x, width=330, form=".3f", shown=columns, **look)
    numbers = alt.Chart(table).mark_text(align="left", dx=3).encode(y=_classes(), x=share)
    numbers = numbers.encode(text=alt.Text("share:Q", format=".1%"))
    shares = figures.bars(
        table,
        _classes(),
        share,
        intervals=False,
        labels=False,
        width=200,
        form=".3f",
        shown=columns,
        over=[numbers],
        **look,
    )
    row = alt.Row("estimator:N", sort=COMPARED, title=None)
    header = alt.Header(labelAngle=0, labelAlign="left", labelFontSize=12, labelFontWeight="bold")
    return panels(
        [sizes.facet(row=row.header(header), spacing=8), shares.facet(row=row.header(labels=False), spacing=8)],
        "What each estimator moves, on average over 256 groups",
        "left: size, with 95 % intervals over groups; right: the same as shares of each estimator's update",
        "Bars per estimator and class of word: how much of the push remains after summing over the group.",
    )


def describe_estimators(table: pd.DataFrame) -> str:
    """Movement of the opening per unit of movement of the result, for each estimator."""
    wide = table.pivot(index="estimator", columns="class", values="moved").loc[list(COMPARED)]
    ratio = wide["style"] / wide["result"].clip(lower=1e-12)
    values = ", ".join(f"{name} {value:.2f}" for name, value in ratio.items())
    return f"Opening moved per unit of result: {values}."


def explore_estimators() -> Explorer:
    """Estimators side by side, on average over many groups."""
    controls = {
        "group_size": slider(8, 2, 32, 1, "group size G"),
        "p_right": slider(0.5, 0.05, 0.95, 0.05, "probability of “7”"),
        "spread": slider(0.3, 0.0, 0.5, 0.05, "spread of difficulty"),
        "styles": slider(3, 2, 6, 1, "openings to choose from"),
        "temperature": slider(1.0, 0.5, 1.5, 0.05, "sampler's temperature"),
    }
    return Explorer(compute_estimators, estimators_chart, controls, describe_estimators)


def intervention_chart(rates: pd.DataFrame, net: pd.DataFrame, sizes: pd.DataFrame) -> alt.HConcatChart:
    """Occurrence rates, signed push per word, and what is moved per class; tables of compute_intervention."""
    rate = alt.X("rate:Q", title="rate of occurrence").scale(domain=[0, 1]).axis(tickCount=3)
    side, below = {"sort": SIDES, "title": None}, alt.Legend(orient="bottom")
    dots = alt.Chart(rates).encode(x=rate, y=_words())
    occurrence = alt.layer(
        dots.mark_line(color="#999999").encode(detail="word:N"),
        dots.mark_point(filled=True, size=70, opacity=0.9).encode(
            color=alt.Color("side:N", legend=below, **side).scale(domain=SIDES, range=[POSITIVE, NEGATIVE]),
            shape=alt.Shape("side:N", **side).scale(domain=SIDES, range=["triangle-up", "triangle-down"]),
            tooltip=["word:N", "side:N", alt.Tooltip("rate:Q", format=".3f")],
        ),
    ).properties(width=190, height=230, title=panel_title("how often, on either side"))
    push = alt.X("push:Q", title="mean net push ÷ G").scale(domain=[-0.42, 0.42], clamp=True, nice=False)
    look = {"form": "+.3f", "width": 230, "height": 230, "title": "signed: net push on average"}
    signed = figures.bars(
        net, _words(), push, color=figures.by_sign("push"), labels=False, mark={"opacity": 0.8}, **look
    )
    size = alt.X("moved:Q", title="moved per rollout").scale(domain=[0, 0.5], clamp=True, nice=False)
    sizes_moved = figures.bars(
        sizes,
        _classes(),
        size,
        color=_class_color(None),
        mark={"opacity": 0.75},
        form=".3f",
        shown=["before"],
        over=[alt.Chart(sizes).mark_tick(thickness=3, color="black", size=34).encode(x="before:Q", y=_classes())],
        width=180,
        height=230,
        title="size in a group (mark: before)",
    )
    return panels(
        [occurrence, signed, sizes_moved],
        "The same rollouts with other signs, or with frequencies matched",
        "means over 256 groups with 95 % intervals; estimator grpo",
        "Left: how often each word occurs on each side. Middle: net push on each word. Right: what is moved per class.",
    ).resolve_scale(color="independent", shape="independent")


def describe_intervention(rates: pd.DataFrame, net: pd.DataFrame, sizes: pd.DataFrame) -> str:
    """Movement of each class, beside what it was before the switches."""
    parts = [f"{row['class']} {row['moved']:.3f} (before {row['before']:.3f})" for _, row in sizes.iterrows()]
    return "Moved per rollout: " + ", ".join(parts) + "."


def explore_intervention() -> Explorer:
    """Permute the signs, or match frequencies, and leave everything else as it is."""
    controls = {
        "signs": menu("by reward", SIGNS, "signs (R3)"),
        "matched": switch(False, "match frequencies (R1)"),
        "group_size": slider(8, 2, 32, 1, "group size G"),
        "temperature": slider(1.0, 0.5, 1.5, 0.05, "sampler's temperature"),
        "noise": slider(0.1, 0.0, 0.5, 0.05, "verifier's error rate"),
    }
    return Explorer(compute_intervention, intervention_chart, controls, describe_intervention)


# --- what chapter 02 measures


def frequency_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """Net push against the difference in occurrence, one mark a word and group; on the grey line they are equal.

    table: columns estimator, class, difference, push (divided by the group's mass of positive advantages).
    """
    line = alt.Chart(pd.DataFrame({"difference": [-1, 1], "push": [-1, 1]})).mark_line(color="#999999")
    legend = alt.Legend(title=None, orient="bottom")
    at = {
        "x": alt.X("difference:Q", title="rate among A > 0 minus rate among A < 0").scale(domain=[-1, 1]),
        "y": alt.Y("push:Q", title="net push ÷ mass of A > 0").scale(domain=[-1.6, 1.6]),
    }
    shape = alt.Shape("class:N", sort=CLASSES, legend=legend).scale(domain=CLASSES)
    dots = alt.Chart(table).mark_point(filled=True, size=35, opacity=0.6, clip=True)
    dots = dots.encode(**at, color=_class_color(legend), shape=shape)
    charts = [
        alt.layer(line.encode(**at), dots.transform_filter(alt.datum.estimator == name)).properties(
            title=panel_title(name), width=230, height=230
        )
        for name in table["estimator"].unique()
    ]
    return panels(
        charts,
        "What a group pushes, and how often each word occurs on either side",
        "one mark a word and group, a few outside; on the grey line a push is the difference in occurrence",
        "Marks: net push per mass of advantage against the difference of occurrence rates.",
    )


def group_size_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Root mean square push against group size, both logarithmic; columns group_size, rms, low, high, series."""
    y = alt.Y("rms:Q", title="root mean square push per rollout").scale(type="log", nice=False)
    x = alt.X("group_size:Q", title="rollouts in a group, G").scale(type="log", base=2)
    return titled(
        figures.series(table, x, y.axis(values=[0.01, 0.02, 0.05, 0.1, 0.2]), by="series", spread="bars", height=260),
        "Push that remains on a word, against group size",
        "means over seeds with 95 % bootstrap intervals; both axes logarithmic",
        "Lines per estimator and word: root mean square net push per rollout against group size.",
    )


def training_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """A panel a quantity, over steps; columns step, quantity, mean, low, high, estimator, sampler."""
    y = alt.Y("mean:Q", title=None).scale(zero=False)
    look = {"by": "estimator", "dash": "sampler", "width": 210, "height": 200}
    return panels(
        [
            figures.series(table, alt.X("step:Q"), y, title=quantity, **look).transform_filter(
                alt.datum.quantity == quantity
            )
            for quantity in table["quantity"].unique()
        ],
        "Training with and without negative rollouts",
        "means over independent policies, with 95 % bootstrap intervals",
        "Lines over steps: probability of the template word, entropy of the opening, probability of the right result.",
    )


def _words() -> alt.Y:
    """The axis of all words, each with its class."""
    return alt.Y("word:N", sort=list(LABELS), title=None).axis(labelExpr=f"{LABELS}[datum.label]")


def _classes() -> alt.Y:
    return alt.Y("class:N", sort=CLASSES, title=None)


def _class_color(legend: alt.Legend | None) -> alt.Color:
    """One colour for each class of word."""
    return alt.Color("class:N", legend=legend, sort=CLASSES).scale(domain=CLASSES, range=COLORS)


beside, small = panels, panel_title  # until the other rooms call the kit
