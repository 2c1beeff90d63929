"""The residual meter: what is left of a shared token's update under each mechanism, and what mending it costs."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.topics.exchange.shared import TRANSFORMS
from workbook.topics.exchange.toy import MECHANISMS, TOGETHER, compute_exchange, compute_transforms
from workbook.views.explorer import Explorer, menu, slider, switch
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, SERIES

KEPT = ("right answers' own: push kept", "wrong answers' own: push kept")
SHARES = ("shared token: residual", "own tokens pushed the wrong way", "groups silenced")
CLIPPINGS = ["none", "symmetric", "asymmetric"]


def exchange_chart(meter: pd.DataFrame, pushes: pd.DataFrame) -> alt.HConcatChart:
    """Left the residual of each mechanism with its interval, right one group's pushes on the shared token."""
    return titled(
        alt.hconcat(_meter(meter), _pushes(pushes), spacing=30),
        "What is left of the update on a token that the whole group shares",
        "left: mean over 200 groups with its 95 % interval, blue: switched on; right: one group of eight rollouts",
        "Bars of the residual under each mechanism alone and all that are switched on; the pushes of one group.",
    )


def _meter(meter: pd.DataFrame) -> alt.LayerChart:
    silent = "(datum.silent > 0.005 ? ', ' + format(datum.silent, '.0%') + ' of groups silent' : '')"
    base = alt.Chart(meter).encode(
        y=alt.Y("mechanism:N", sort=[*MECHANISMS, TOGETHER], title=None).axis(labelLimit=180)
    )
    x = alt.X("mean:Q", title="residual (0 cancels, 1 adds up)").scale(domain=[0, 1])
    on = alt.when("datum.on").then(alt.value(POSITIVE)).otherwise(alt.value("#b9c3cc"))
    return alt.layer(
        base.mark_bar().encode(x=x, color=on, tooltip=["mechanism", alt.Tooltip("mean:Q", format=".3f"), "silent:Q"]),
        base.mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q"),
        base.transform_calculate(text=f"format(datum.mean, '.2f') + {silent}")
        .mark_text(align="left", dx=6)
        .encode(x="high:Q", text="text:N"),
    ).properties(width=330, height=250)


def _pushes(pushes: pd.DataFrame) -> alt.LayerChart:
    base = alt.Chart(pushes).encode(y=alt.Y("rollout:N", sort=None, title="rollout"))
    x = (
        alt.X("push:Q", title="push on the shared token (share of the group's total)")
        .scale(domain=[-1, 1])
        .axis(values=[-1, -0.5, 0, 0.5, 1])
    )
    net = alt.when("datum.rollout == 'net'").then(alt.value(1.5)).otherwise(alt.value(0))
    up = alt.when("datum.push >= 0").then(alt.value(POSITIVE)).otherwise(alt.value(NEGATIVE))
    label = alt.Text("push:Q", format="+.2f")
    return alt.layer(
        base.mark_bar(stroke="black").encode(x=x, color=up, strokeWidth=net, tooltip=["rollout", "reward", "push:Q"]),
        base.transform_filter("datum.push >= 0").mark_text(align="left", dx=4).encode(x=x, text=label),
        base.transform_filter("datum.push < 0").mark_text(align="right", dx=-4).encode(x=x, text=label),
        base.mark_text(align="left", color=NEUTRAL).encode(x=alt.value(4), text="reward:N"),
        alt.Chart().mark_rule().encode(x=alt.datum(0)),
    ).properties(width=260, height=250)


def say_exchange(meter: pd.DataFrame, pushes: pd.DataFrame) -> str:
    """The residual of what is switched on."""
    last = meter.set_index("mechanism").loc[TOGETHER]
    silent = f" In {last['silent']:.0%} of groups nothing pushes it at all." if last["silent"] > 0.005 else ""
    if last["mean"] < 1e-9:
        return f"Switched on together: the shared token cancels.{silent}"
    interval = f"{last['mean']:.3f} [{last['low']:.3f}, {last['high']:.3f}]"
    return f"Switched on together: {interval} of the update is left on the shared token.{silent}"


def explore_exchange() -> Explorer:
    """Every mechanism as a switch, its strength as a slider, on one residual meter."""
    controls = {
        "sequence": switch(True, "sequence ratio (GSPO)"),
        "drift": slider(0.2, 0.0, 1.0, 0.02, "ratio drift"),
        "clipping": menu("none", CLIPPINGS, "clipping"),
        "clip_range": slider(0.2, 0.01, 1.0, 0.01, "clip range"),
        "per_length": switch(False, "1/T per sequence"),
        "length_spread": slider(0.5, 0.0, 1.0, 0.05, "length spread"),
        "own_embeddings": switch(False, "own embeddings"),
        "angle": slider(60.0, 0.0, 90.0, 5.0, "angle of gradients (°)"),
        "masking": switch(False, "position masking"),
        "masked_share": slider(0.25, 0.0, 0.75, 0.05, "share masked"),
        "transform": menu("none", list(TRANSFORMS), "transform"),
        "follows_reward": slider(0.0, 0.0, 1.0, 0.05, "follows the reward"),
    }
    return Explorer(compute_exchange, exchange_chart, controls, say_exchange)


def transforms_chart(table: pd.DataFrame) -> alt.VConcatChart:
    """Three transforms beside one another: what they do to the shared token, and to the tokens that should move."""
    shares = _rows(table, SHARES, [0, 1], "share", ".3f")
    kept = _rows(table, KEPT, [0, 3], "multiple of the untransformed push", ".2f")
    return titled(
        alt.vconcat(shares, kept, spacing=12),
        "What a transform mends, and what it does to the tokens that should move",
        "means over 200 groups with their 95 % intervals; bars end at the panel's edge, the label has the number",
        "For no transform, min-replace and advantage-orthogonal: residual, wrong-way and silenced shares, push kept.",
    )


def _rows(table: pd.DataFrame, measures: tuple, domain: list, title: str, number: str) -> alt.FacetChart:
    chosen = alt.FieldOneOfPredicate("measure", list(measures))
    base = alt.Chart().encode(y=alt.Y("transform:N", sort=list(TRANSFORMS), title=None).axis(labelLimit=150))
    x = alt.X("mean:Q", title=title).scale(domain=domain, clamp=True, nice=False).axis(tickCount=6)
    color = alt.Color("transform:N", legend=None).scale(domain=list(TRANSFORMS), range=[NEUTRAL, *SERIES[:2]])
    return (
        alt.layer(
            base.mark_bar().encode(x=x, color=color, tooltip=["measure", "transform", "mean:Q", "low:Q", "high:Q"]),
            base.mark_rule(strokeWidth=1.5).encode(x="low:Q", x2="high:Q"),
            base.mark_text(align="left", dx=6).encode(x="high:Q", text=alt.Text("mean:Q", format=number)),
            data=table,
        )
        .properties(width=380, height=54)
        .transform_filter(chosen)
        .facet(
            row=alt.Row("measure:N", sort=list(measures), title=None).header(
                labelAngle=0, labelAlign="left", labelLimit=230, labelFontSize=12
            ),
            spacing=8,
        )
    )


def say_transforms(table: pd.DataFrame) -> str:
    """What either transform costs, in one sentence."""
    mean = table.pivot(index="measure", columns="transform", values="mean")
    low, project = mean["min-replace"], mean["advantage-orthogonal"]
    return (
        f"Min-replace keeps {low[KEPT[0]]:.0%} of the right answers' push and {low[KEPT[1]]:.0%} of the wrong ones', "
        f"and silences {low[SHARES[2]]:.0%} of groups. Advantage-orthogonal keeps {project[KEPT[0]]:.0%} and "
        f"{project[KEPT[1]]:.0%}, and pushes {project[SHARES[1]]:.1%} of own tokens against their advantage."
    )


def explore_transforms() -> Explorer:
    """Make the weights unequal, and see what either transform does to the tokens that should move."""
    controls = {
        "level": menu("sequence", ["sequence", "token"], "ratio"),
        "drift": slider(0.2, 0.0, 1.0, 0.02, "ratio drift"),
        "clipping": menu("none", CLIPPINGS, "clipping"),
        "clip_range": slider(0.2, 0.01, 1.0, 0.01, "clip range"),
        "per_length": switch(True, "1/T per sequence"),
        "length_spread": slider(0.5, 0.0, 1.0, 0.05, "length spread"),
        "right": slider(0.5, 0.05, 0.95, 0.05, "share of right answers"),
        "follows_reward": slider(0.0, 0.0, 1.0, 0.05, "follows the reward"),
        "group_size": slider(8, 2, 32, 1, "group size"),
    }
    return Explorer(compute_transforms, transforms_chart, controls, say_transforms)


def titled(chart, title: str, subtitle: str, description: str):
    """A concat's title and description."""
    heading = alt.TitleParams(title, subtitle=subtitle, anchor="start", subtitleColor=NEUTRAL)
    return chart.properties(title=heading, description=f"{title}. {description}")
