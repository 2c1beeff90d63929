"""Charts of one toy group: two rollouts whose gradients meet, and rollouts that are added one at a time.

The first explorer has two rollouts, A `so 7` and B `so 4`. Each pushes the logits of the softmax it was drawn from by
its advantage times (e - p), e the one-hot vector of its token and p the probabilities, and the pushes of a group add up
(Cancellation Hypothesis, arXiv 2605.08666, section 3).
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.topics.groups.toy import CLASSES, COMPARED, WORDS, compute_growing, push_on_logits
from workbook.views import figures
from workbook.views.explorer import Explorer, menu, slider
from workbook.views.figures import panels, rule
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, SERIES, diverging, titled

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
    reach = {"domain": [-0.8, 0.8], "clamp": True, "nice": False}
    ticks = {"title": "net push so far ÷ G", "values": [-0.6, -0.3, 0, 0.3, 0.6]}
    push = alt.X("push:Q").scale(**reach).axis(**ticks)
    color = figures.by_sign("push")
    pushes = figures.bars(
        bars, words_axis(), push, color=color, number="+.3f", form="+.3f", shown=["class"], width=280, height=230
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
    legend = alt.Legend(title=None, orient="bottom", labelExpr=labels, symbolStrokeWidth=2.5, symbolType="stroke")
    paths = alt.layer(
        rule(0, "y", color="#bbbbbb"),
        lines.transform_filter("datum.seen")
        .mark_line(strokeWidth=2.5, point={"size": 22})
        .encode(
            x=alt.X("rollouts:Q", title="rollouts added").axis(tickMinStep=1, format="d").scale(nice=False),
            y=alt.Y("push:Q").scale(**reach).axis(**ticks),
            color=class_color(legend),
            strokeDash=alt.StrokeDash("class:N", legend=legend, sort=CLASSES).scale(domain=CLASSES, range=DASHES),
            order="rollouts:Q",
        ),
        signs.mark_text(fontSize=15, fontWeight="bold"),
    )
    return panels(
        [pushes, paths.properties(width=340, height=230)],
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
        "so_far": slider(8, 0, 32, 1, "rollouts added"),
        "group_size": menu(8, [2, 4, 8, 16, 32], "group size G"),
        "estimator": menu("grpo", COMPARED, "estimator"),
        "p_right": slider(0.5, 0.05, 0.95, 0.05, "probability of “7”"),
        "draw": slider(0, 0, 50, 1, "random draw"),
    }
    return Explorer(compute_growing, growing_chart, controls, describe_growing)


# --- axes and colours of words


def words_axis() -> alt.Y:
    """The axis of all words, each with its class."""
    return alt.Y("word:N", sort=list(LABELS), title=None).axis(labelExpr=f"{LABELS}[datum.label]")


def classes_axis() -> alt.Y:
    """The axis of the three classes of word."""
    return alt.Y("class:N", sort=CLASSES, title=None)


def class_color(legend: alt.Legend | None) -> alt.Color:
    """One colour for each class of word."""
    return alt.Color("class:N", legend=legend, sort=CLASSES).scale(domain=CLASSES, range=COLORS)
