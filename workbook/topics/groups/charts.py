"""Charts of toy groups: rollouts added one at a time, estimators side by side, and the two interventions."""

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
)
from workbook.views.explorer import Explorer, menu, slider, switch
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, SERIES

COLORS = [SERIES[2], NEUTRAL, SERIES[3]]  # style, template, result
DASHES = [[6, 3], [2, 2], [1, 0]]
LABEL = "datum.word + ' · ' + datum.class"
SORTED = [f"{word} · {name}" for name in CLASSES for word in WORDS[name]]
SIGN = "(datum.push || datum.advantage || 0)"
BY_SIGN = alt.when(f"{SIGN} > 0").then(alt.value(POSITIVE)).when(f"{SIGN} < 0").then(alt.value(NEGATIVE))
BY_SIGN = BY_SIGN.otherwise(alt.value(NEUTRAL))
FOLLOWED = [WORDS[name][0] for name in CLASSES]  # so, is, 7


def growing_chart(bars: pd.DataFrame, path: pd.DataFrame, rollouts: pd.DataFrame) -> alt.HConcatChart:
    """Left the net push so far on every word, right its way there on `so`, `is` and `7`; tables of compute_growing."""
    ticks = {"title": "net push so far ÷ G", "values": [-0.6, -0.3, 0, 0.3, 0.6]}
    scale = {"domain": [-0.6, 0.6], "clamp": True, "nice": False}
    base = alt.Chart(bars).transform_calculate(label=LABEL).encode(y=_words())
    push = alt.X("push:Q").scale(**scale).axis(**ticks)
    left = alt.layer(
        base.mark_bar().encode(x=push, color=BY_SIGN, tooltip=["word:N", "class:N", _number("push")]),
        *_signed_text(base, push),
        alt.Chart().mark_rule(color="black").encode(x=alt.datum(0)),
    ).properties(width=280, height=230)
    y = alt.Y("push:Q").scale(**scale).axis(**ticks)
    x = alt.X("rollouts:Q", title="rollouts added").axis(tickMinStep=1, format="d").scale(nice=False)
    lines = alt.Chart(path).transform_filter(alt.FieldOneOfPredicate("word", FOLLOWED)).transform_filter("datum.seen")
    signs = alt.Chart(rollouts).encode(
        x=alt.X("rollout:Q"),
        y=alt.value(8),
        text="sign:N",
        opacity=alt.when("datum.seen").then(alt.value(1)).otherwise(alt.value(0)),
        color=BY_SIGN,
        tooltip=["rollout:Q", "said:N", "reward:Q", _number("advantage")],
    )
    legend = alt.Legend(title=None, orient="bottom", labelExpr=_followed_expression(), symbolStrokeWidth=2.5)
    right = alt.layer(
        alt.Chart().mark_rule(color="#bbbbbb").encode(y=alt.datum(0)),
        lines.mark_line(interpolate="step-after", strokeWidth=2.5).encode(
            x=x,
            y=y,
            color=class_color("class:N", legend),
            strokeDash=alt.StrokeDash("class:N", legend=legend, sort=CLASSES).scale(domain=CLASSES, range=DASHES),
            order="rollouts:Q",
        ),
        signs.mark_text(fontSize=15, fontWeight="bold"),
    )
    return beside(
        [left, right.properties(width=400, height=230)],
        "What is left on each word while rollouts are added",
        "left: every word, so far; right: the way there, with the sign of each rollout's advantage above",
        "Bars: net push on each word of the three softmaxes. Lines: the same after each rollout, for so, is and 7.",
    )


def estimators_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """What each estimator moves per class, and its share of the whole; a table of compute_estimators."""

    def panel(layers, width: int, header) -> alt.FacetChart:
        row = alt.Row("estimator:N", sort=COMPARED, title=None, header=header)
        return alt.layer(*layers, data=table).properties(width=width, height=alt.Step(15)).facet(row=row, spacing=8)

    base = alt.Chart().encode(y=alt.Y("class:N", sort=CLASSES, title=None), color=class_color("class:N", None))
    bare = base.encode(y=alt.Y("class:N", sort=CLASSES, title=None, axis=None))
    hint = ["estimator:N", "class:N", *map(_number, ("moved", "low", "high")), _number("share")]
    title = "moved per rollout (advantage × probability)"
    x = alt.X("moved:Q", title=title).scale(domain=[0, 0.6], clamp=True, nice=False).axis(tickCount=6)
    shown = alt.Text("share:Q", format=".1%")
    sizes = [
        base.mark_bar(opacity=0.75).encode(x=x, tooltip=hint),
        base.mark_rule(strokeWidth=2).encode(x=alt.X("low:Q"), x2="high:Q", color=alt.value("black")),
    ]
    share = alt.X("share:Q", title="share of what it moves").scale(domain=[0, 1]).axis(format="%", tickCount=3)
    shares = [
        bare.mark_bar(opacity=0.75).encode(x=share, tooltip=hint),
        bare.mark_text(align="left", dx=3).encode(x=share, text=shown, color=alt.value("black")),
    ]
    header = alt.Header(labelAngle=0, labelAlign="left", labelFontSize=12, labelFontWeight="bold")
    return beside(
        [panel(sizes, 330, header), panel(shares, 200, alt.Header(labels=False))],
        "What each estimator moves, on the average over 256 groups",
        "left: size, with 95 % intervals over groups; right: the same as shares of each estimator's update",
        "Bars per estimator and class of word: how much of the push is left after summing over the group.",
    )


def intervention_chart(rates: pd.DataFrame, net: pd.DataFrame, sizes: pd.DataFrame) -> alt.HConcatChart:
    """Occurrence rates, signed push per word, and what is moved per class; tables of compute_intervention."""
    height = 230
    rate = alt.X("rate:Q", title="rate of occurrence").scale(domain=[0, 1]).axis(tickCount=3)
    side, below = {"sort": SIDES, "title": None}, alt.Legend(orient="bottom")
    dots = alt.Chart(rates).transform_calculate(label=LABEL).encode(y=_words())
    left = alt.layer(
        dots.mark_line(color="#999999").encode(x=rate, detail="label:N"),
        dots.mark_point(filled=True, size=70, opacity=0.9).encode(
            x=rate,
            color=alt.Color("side:N", legend=below, **side).scale(domain=SIDES, range=[POSITIVE, NEGATIVE]),
            shape=alt.Shape("side:N", **side).scale(domain=SIDES, range=["triangle-up", "triangle-down"]),
            tooltip=["word:N", "side:N", _number("rate")],
        ),
    ).properties(width=190, height=height, title=small("how often, on either side"))
    hint = ["word:N", *map(_number, ("push", "low", "high"))]
    words = alt.Chart(net).transform_calculate(label=LABEL).encode(y=_words(axis=None))
    push = alt.X("push:Q", title="mean net push ÷ G").scale(domain=[-0.42, 0.42], clamp=True, nice=False)
    middle = alt.layer(
        words.mark_bar(opacity=0.8).encode(x=push, color=BY_SIGN, tooltip=hint),
        words.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q"),
        alt.Chart().mark_rule(color="black").encode(x=alt.datum(0)),
    ).properties(width=230, height=height, title=small("signed: left on average"))
    hint = ["class:N", _number("moved"), _number("before")]
    kinds = alt.Chart(sizes).encode(y=alt.Y("class:N", sort=CLASSES, title=None))
    size = alt.X("moved:Q", title="moved per rollout").scale(domain=[0, 0.5], clamp=True, nice=False)
    right = alt.layer(
        kinds.mark_bar(opacity=0.75).encode(x=size, color=class_color("class:N", None), tooltip=hint),
        kinds.mark_rule(strokeWidth=2).encode(x="low:Q", x2="high:Q"),
        kinds.mark_tick(thickness=3, color="black", size=34).encode(x="before:Q"),
    ).properties(width=180, height=height, title=small("size in a group (mark: before)"))
    return beside(
        [left, middle, right],
        "The same rollouts with other signs, or with frequencies matched",
        "means over 256 groups with 95 % intervals; estimator grpo",
        "Left: how often each word occurs on each side. Middle: net push on each word. Right: what is moved per class.",
    ).resolve_scale(color="independent", shape="independent")


def explore_growing() -> Explorer:
    """Add rollouts one at a time and watch what is left on shared and on specific words."""
    controls = {
        "so_far": slider(3, 0, 32, 1, "rollouts added"),
        "group_size": menu(8, [2, 4, 8, 16, 32], "group size G"),
        "estimator": menu("grpo", COMPARED, "estimator"),
        "p_right": slider(0.5, 0.05, 0.95, 0.05, "probability of “7”"),
        "draw": slider(0, 0, 50, 1, "random draw"),
    }
    return Explorer(compute_growing, growing_chart, controls, say_growing)


def explore_estimators() -> Explorer:
    """Estimators side by side on the average over many groups."""
    controls = {
        "group_size": slider(8, 2, 32, 1, "group size G"),
        "p_right": slider(0.5, 0.05, 0.95, 0.05, "probability of “7”"),
        "spread": slider(0.3, 0.0, 0.5, 0.05, "spread of difficulty"),
        "styles": slider(3, 2, 6, 1, "openings to choose from"),
        "temperature": slider(1.0, 0.5, 1.5, 0.05, "sampler's temperature"),
    }
    return Explorer(compute_estimators, estimators_chart, controls, say_estimators)


def explore_intervention() -> Explorer:
    """Deal the signs anew, or match frequencies, and leave everything else as it is."""
    controls = {
        "signs": menu("by reward", SIGNS, "signs (R3)"),
        "matched": switch(False, "match frequencies (R1)"),
        "group_size": slider(8, 2, 32, 1, "group size G"),
        "temperature": slider(1.0, 0.5, 1.5, 0.05, "sampler's temperature"),
        "noise": slider(0.1, 0.0, 0.5, 0.05, "verifier's error rate"),
    }
    return Explorer(compute_intervention, intervention_chart, controls, say_intervention)


def say_growing(bars: pd.DataFrame, path: pd.DataFrame, rollouts: pd.DataFrame) -> str:
    """The newest rollout, and what is left on the words that are followed."""
    seen = rollouts[rollouts["seen"]]
    if rollouts["reward"].nunique() == 1 and (rollouts["advantage"] == 0).all():
        return f"All {len(rollouts)} rewards of this draw are equal, so every advantage is 0 and nothing is pushed."
    left = bars.set_index("word")["push"] + 0.0
    rest = ", ".join(f"“{word}” {left[word]:+.3f}" for word in FOLLOWED)
    if seen.empty:
        return "No rollout yet: nothing is pushed."
    last = seen.iloc[-1]
    count = "all" if len(seen) == len(rollouts) else f"{len(seen)} of {len(rollouts)}"
    verdict = f"reward {last['reward']:.0f}, advantage {last['advantage']:+.2f}"
    return f"Rollout {last['rollout']} says “{last['said']}”: {verdict}. Left after {count}: {rest}."


def say_estimators(table: pd.DataFrame) -> str:
    """How far the opening is moved, for each unit that the result is."""
    wide = table.pivot(index="estimator", columns="class", values="moved").loc[list(COMPARED)]
    ratio = wide["style"] / wide["result"].clip(lower=1e-12)
    return (
        "Opening moved per unit of result: " + ", ".join(f"{name} {value:.2f}" for name, value in ratio.items()) + "."
    )


def say_intervention(rates: pd.DataFrame, net: pd.DataFrame, sizes: pd.DataFrame) -> str:
    """What the switches did to each class."""
    parts = [f"{row['class']} {row['moved']:.3f} (before {row['before']:.3f})" for _, row in sizes.iterrows()]
    return "Moved per rollout: " + ", ".join(parts) + "."


def small(text: str) -> alt.TitleParams:
    """The title of one panel of several."""
    return alt.TitleParams(text, anchor="start", fontSize=12)


def _words(**kwargs) -> alt.Y:
    return alt.Y("label:N", sort=SORTED, title=None, **kwargs)


def class_color(field: str, legend) -> alt.Color:
    """One colour for each class of word."""
    return alt.Color(field, legend=legend, sort=CLASSES).scale(domain=CLASSES, range=COLORS)


def _number(column: str) -> alt.Tooltip:
    return alt.Tooltip(f"{column}:Q", format="+.3f" if column in ("push", "advantage") else ".3f")


def _signed_text(base, x: alt.X) -> list[alt.Chart]:
    """The number beside its bar, on the side it points to."""
    text = alt.Text("push:Q", format="+.3f")
    sides = (("datum.push >= 0", "left", 4), ("datum.push < 0", "right", -4))
    return [base.transform_filter(where).mark_text(align=to, dx=dx).encode(x=x, text=text) for where, to, dx in sides]


def _followed_expression() -> str:
    """Vega's expression for the legend: the word that stands for its class."""
    return "".join(f"datum.label == '{name}' ? '{WORDS[name][0]} ({name})' : " for name in CLASSES) + "datum.label"


def beside(panels: list, title: str, subtitle: str, description: str) -> alt.HConcatChart:
    """Panels side by side under one title."""
    heading = alt.TitleParams(title, subtitle=subtitle, anchor="start", subtitleColor=NEUTRAL)
    return alt.hconcat(*panels, spacing=14).properties(title=heading, description=f"{title}. {description}")
