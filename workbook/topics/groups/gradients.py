"""Two rollouts, one softmax at each of two positions: what their gradients do to a shared token and to their own.

Rollout A is `so 7`, rollout B is `so 4`. Each pushes the logits of the softmax it was drawn from by its advantage
times (e - p), e the one-hot vector of its token and p the probabilities, and the pushes of a group add up
(Cancellation Hypothesis, arXiv 2605.08666, section 3).
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.topics.groups.toy import compute_push
from workbook.views.explorer import Explorer, slider
from workbook.views.style import diverging, finish

SHARED, ONLY_A, ONLY_B = "“so”, in A and in B", "“7”, in A only", "“4”, in B only"
SOURCES = ["from A", "from B", "net"]


def compute_gradients_meet(advantage_a: float = 1.0, advantage_b: float = -1.0, p_shared: float = 0.5) -> pd.DataFrame:
    """Pushes on the shared token and on each rollout's own: columns token, source (from A, from B, net), push.

    p_shared: probability of the shared token; `7` and `4` have 0.4 each.
    """
    if not 0 < p_shared < 1:
        raise ValueError(f"p_shared={p_shared} is not a probability: it must lie between 0 and 1.")
    advantages = [advantage_a, advantage_b]
    first = compute_push([0, 0], advantages, [p_shared, 1 - p_shared])[:, 0]
    second = compute_push([0, 1], advantages, [0.4, 0.4, 0.2])
    rows = {SHARED: first, ONLY_A: second[:, 0], ONLY_B: second[:, 1]}
    return pd.DataFrame(
        [
            {"token": token, "source": source, "push": float(push)}
            for token, (a, b) in rows.items()
            for source, push in zip(SOURCES, (a, b, a + b), strict=True)
        ]
    )


def gradients_meet_chart(table: pd.DataFrame) -> alt.LayerChart:
    """One bar per token and source: pushes that meet on the shared token, and those that do not."""
    base = alt.Chart(table).encode(
        y=alt.Y("token:N", sort=[SHARED, ONLY_A, ONLY_B], title=None).axis(labelFontSize=13, labelLimit=200),
        yOffset=alt.YOffset("source:N", sort=SOURCES),
    )
    push = alt.X("push:Q", title="push on the token's logit (advantage × (1 − p) or −advantage × p)").scale(
        domain=[-2, 2], nice=False
    )
    label = alt.Text("push:Q", format="+.2f")
    right, left = alt.datum.push >= 0, alt.datum.push < 0
    chart = alt.layer(
        base.mark_bar(stroke="black").encode(
            x=push,
            color=alt.Color("push:Q", legend=None).scale(diverging(1)),
            strokeWidth=alt.when(alt.datum.source == "net").then(alt.value(1.5)).otherwise(alt.value(0)),
            opacity=alt.when(alt.datum.source == "net").then(alt.value(1)).otherwise(alt.value(0.55)),
            tooltip=["token:N", "source:N", alt.Tooltip("push:Q", format="+.3f")],
        ),
        base.transform_filter(right).mark_text(align="left", dx=4).encode(x=push, text=label),
        base.transform_filter(left).mark_text(align="right", dx=-4).encode(x=push, text=label),
        base.mark_text(align="left", color="#444444").encode(x=alt.value(6), text="source:N"),
        alt.Chart().mark_rule(color="black").encode(x=alt.datum(0)),
    )
    return finish(
        chart,
        "Where two rollouts' gradients meet, and where they do not",
        "blue pushes a token up, orange down; outlined: the sum of both",
        "Bars: the push from rollout A, from rollout B, and their sum, on a shared token and on a token of each alone.",
        height=300,
    )


def explore_gradients_meet() -> Explorer:
    """Slide the advantage of rollout B: at −1 the shared token stands still and the answers part."""
    controls = {
        "advantage_a": slider(1.0, -1.0, 1.0, 0.05, "advantage of A"),
        "advantage_b": slider(-1.0, -1.0, 1.0, 0.05, "advantage of B"),
        "p_shared": slider(0.5, 0.05, 0.95, 0.05, "probability of “so”"),
    }
    return Explorer(compute_gradients_meet, gradients_meet_chart, controls, say_gradients_meet)


def say_gradients_meet(table: pd.DataFrame) -> str:
    """What is left on the shared token and on each rollout's own."""
    net = table[table["source"] == "net"].set_index("token")["push"] + 0.0
    still = "stands still" if abs(net[SHARED]) < 1e-9 else f"moves by {net[SHARED]:+.2f}"
    return f"The shared token {still}; “7” moves by {net[ONLY_A]:+.2f}, “4” by {net[ONLY_B]:+.2f}."
