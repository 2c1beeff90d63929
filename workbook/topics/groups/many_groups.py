"""Charts of many toy groups: estimators side by side, the two interventions, parts of a step, and what is measured."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.topics.groups.charts import class_color, classes_axis, words_axis
from workbook.topics.groups.expected import RULES, WEIGHTS, compute_parts
from workbook.topics.groups.toy import (
    CLASSES,
    COMPARED,
    SIDES,
    SIGN_RULES,
    compute_estimators,
    compute_intervention,
)
from workbook.views.explorer import Explorer, menu, slider, switch
from workbook.views.figures import bars, by_sign, panels, series
from workbook.views.parts import describe_parts, signal_noise_chart
from workbook.views.style import NEGATIVE, POSITIVE, panel_title, titled


def estimators_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """What each estimator moves per class, and its share of the whole; a table of compute_estimators."""
    title = "moved per rollout (advantage × probability)"
    x = alt.X("moved:Q", title=title).scale(domain=[0, 0.6], clamp=True, nice=False).axis(tickCount=6)
    share = alt.X("share:Q", title="share of what it moves").scale(domain=[0, 1]).axis(format="%", tickCount=3)
    look = {"color": class_color(None), "mark": {"opacity": 0.75}, "zero": False, "height": alt.Step(15)}
    columns = ["estimator", "moved", "low", "high", "share"]
    sizes = bars(table, classes_axis(), x, width=330, form=".3f", shown=columns, **look)
    numbers = alt.Chart(table).mark_text(align="left", dx=3).encode(y=classes_axis(), x=share)
    numbers = numbers.encode(text=alt.Text("share:Q", format=".1%"))
    shares = bars(
        table,
        classes_axis(),
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
    dots = alt.Chart(rates).encode(x=rate, y=words_axis())
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
    signed = bars(net, words_axis(), push, color=by_sign("push"), labels=False, mark={"opacity": 0.8}, **look)
    size = alt.X("moved:Q", title="moved per rollout").scale(domain=[0, 0.5], clamp=True, nice=False)
    sizes_moved = bars(
        sizes,
        classes_axis(),
        size,
        color=class_color(None),
        mark={"opacity": 0.75},
        form=".3f",
        shown=["before"],
        over=[alt.Chart(sizes).mark_tick(thickness=3, color="black", size=34).encode(x="before:Q", y=classes_axis())],
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
        "signs": menu("by reward", SIGN_RULES, "signs (R3)"),
        "matched": switch(False, "match frequencies (R1)"),
        "group_size": slider(8, 2, 32, 1, "group size G"),
        "temperature": slider(1.0, 0.5, 1.5, 0.05, "sampler's temperature"),
        "noise": slider(0.1, 0.0, 0.5, 0.05, "verifier's error rate"),
    }
    return Explorer(compute_intervention, intervention_chart, controls, describe_intervention)


def describe_toy_parts(table: pd.DataFrame) -> str:
    """The parts of all words, and of the openings, which no reward asks for."""
    return f"{describe_parts(table)} {describe_parts(table, 'style')}"


def explore_parts() -> Explorer:
    """What moves the toy's words in one step, exactly: signal, bias, noise and coupling."""
    controls = {
        "group_size": slider(8, 2, 32, 1, "group size G"),
        "estimator": menu("grpo", RULES, "estimator"),
        "prompts": slider(1, 1, 8, 1, "prompts in the step"),
        "cosine": slider(0.2, 0.0, 0.8, 0.05, "cosine of prompts"),
        "temperature": slider(1.0, 0.5, 1.5, 0.05, "sampler's temperature"),
        "weights": menu("equal", list(WEIGHTS), "weights of rollouts"),
    }
    return Explorer(compute_parts, signal_noise_chart, controls, describe_toy_parts)


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
    dots = dots.encode(**at, color=class_color(legend), shape=shape)
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
        series(table, x, y.axis(values=[0.01, 0.02, 0.05, 0.1, 0.2]), by="series", spread="bars", height=260),
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
            series(table, alt.X("step:Q"), y, title=quantity, **look).transform_filter(alt.datum.quantity == quantity)
            for quantity in table["quantity"].unique()
        ],
        "Training with and without negative rollouts",
        "means over independent policies, with 95 % bootstrap intervals",
        "Lines over steps: probability of the template word, entropy of the opening, probability of the right result.",
    )
