"""Drift that no reward asked for: the KL of an uncancelled push, and the odds among equally right answers."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.topics.exchange.drift import OPERATORS, STEPS, WEIGHTS, compute_kl_drift, compute_solutions
from workbook.topics.exchange.shared import TRANSFORMS
from workbook.views.explorer import Explorer, log_slider, menu, slider
from workbook.views.figures import panels, series
from workbook.views.style import require

ORDERS = ["exact", "quadratic", "difference"]
PATHS = ["from the first policy", "the steps' own, added"]
STROKES = {"columns": 3, "symbolType": "stroke", "symbolStrokeWidth": 2.5, "labelLimit": 220}
RUNS = ["your settings", "equal weights"]
MEASURES = {
    "entropy": ("entropy over the right answers (nats)", [0, 1.1]),
    "log-odds": ("change of log-odds, first : second", [-1, 3.5]),
    "reward": ("probability of a right answer", [0.4, 1]),
}


def kl_drift_chart(rates: pd.DataFrame, chosen: pd.DataFrame, path: pd.DataFrame) -> alt.HConcatChart:
    """Left one step's KL against the learning rate, right the KL over many steps; logarithmic axes."""
    return panels(
        [_one_step(rates, chosen), _many_steps(path)],
        "An uncancelled push drifts: quadratic in the learning rate, and adding up",
        "left: one step, exact, its quadratic form, and their difference; right: 40 steps with the same learning rate",
        "Two log-log charts: KL divergence of one step against the learning rate, and over steps.",
        spacing=40,
    ).resolve_scale(color="independent", strokeDash="independent")


def _one_step(rates: pd.DataFrame, chosen: pd.DataFrame) -> alt.LayerChart:
    x = alt.X("lr:Q", title="learning rate").scale(type="log", domain=[1e-3, 10], nice=False)
    x = x.axis(format=".0e", values=[1e-3, 1e-2, 1e-1, 1, 10])
    y = _log_y("kl:Q", "KL(new, old) after one step (nats)")
    look = {"by": "order", "names": ORDERS, "legend": STROKES, "clip": True, "spread": None}
    marks = alt.Chart(chosen).mark_point(size=90, filled=True, opacity=1, clip=True)
    marks = marks.encode(x=x, y=y, color=alt.Color("order:N"), tooltip=["order:N", "lr:Q", "kl:Q"])
    return series(rates, x, y, **look, dash="order", points=False, over=[marks], width=270, height=230)


def _many_steps(path: pd.DataFrame) -> alt.LayerChart:
    x = alt.X("step:Q", title="step").scale(type="log", domain=[1, STEPS], nice=False)
    y = _log_y("mean:Q", "KL (nats), mean and 95 % interval")
    look = {"by": "series", "names": PATHS, "legend": STROKES, "clip": True}
    return series(path, x, y, **look, dash="series", points=False, width=270, height=230)


def _log_y(field: str, title: str) -> alt.Y:
    values = [10.0**exponent for exponent in range(-10, 2, 2)]
    scale = {"type": "log", "domain": [1e-10, 10], "nice": False, "clamp": True}
    return alt.Y(field, title=title).scale(**scale).axis(format=".0e", values=values)


def describe_kl_drift(rates: pd.DataFrame, chosen: pd.DataFrame, path: pd.DataFrame) -> str:
    """KL of one step in both forms, and after all steps."""
    kl = chosen.set_index("order")["kl"]
    if kl["exact"] < 1e-14:
        return "No more than rounding remains of the push: the policy stays where it is."
    end = path[path["series"] == PATHS[0]].iloc[-1]
    return (
        f"One step: {kl['exact']:.2e} nats; the quadratic form says {kl['quadratic'] / kl['exact']:.3f} of that. "
        f"After {STEPS} steps the policy is {end['mean']:.2e} nats away."
    )


def explore_kl_drift() -> Explorer:
    """How far a softmax drifts on a push that did not cancel."""
    controls = {
        "residual": slider(0.2, 0.0, 1.0, 0.02, "residual"),
        "p_shared": slider(0.4, 0.02, 0.98, 0.02, "probability of the token"),
        "lr": log_slider(0.1, -3, 1, "learning rate"),
        "same_sign": slider(1.0, 0.5, 1.0, 0.05, "same sign each step"),
    }
    return Explorer(compute_kl_drift, kl_drift_chart, controls, describe_kl_drift)


def solutions_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """Entropy over equally right answers, their log-odds and the reward, step by step, against equal weights."""
    x, look = alt.X("step:Q", title="step").scale(domain=[0, STEPS]), {"width": 180, "height": 220}
    return panels(
        [_measure(table, measure, x, RUNS, **look) for measure in MEASURES],
        "Three answers are equally right: do they stay equally likely?",
        "means over 48 seeds with 95 % intervals; dashed: the same with equal weights",
        "Three line charts over steps: entropy over the right answers, log-odds of two of them, and reward.",
        spacing=24,
    )


def _measure(table: pd.DataFrame, measure: str, x: alt.X, runs: list[str], **look) -> alt.LayerChart:
    """One of MEASURES over steps, a line per run."""
    title, domain = MEASURES[measure]
    y = alt.Y("mean:Q", title=title).scale(domain=domain, nice=False)
    lines = series(table, x, y, by="run", names=runs, dash="run", points=False, clip=True, **{"legend": STROKES} | look)
    return lines.transform_filter(alt.datum.measure == measure)


def describe_solutions(table: pd.DataFrame) -> str:
    """Entropy, log-odds and reward after the last step, against equal weights."""
    end = table[table["step"] == STEPS]
    end = dict(zip(zip(end["measure"], end["run"], strict=True), end["mean"], strict=True))
    mine, equal = ({measure: end[measure, run] for measure in MEASURES} for run in RUNS)
    return (
        f"After {STEPS} steps: entropy {mine['entropy']:.2f} (equal weights {equal['entropy']:.2f}), log-odds moved by "
        f"{mine['log-odds']:+.2f} ({equal['log-odds']:+.2f}), reward {mine['reward']:.2f} ({equal['reward']:.2f})."
    )


def explore_solutions() -> Explorer:
    """Three equally right answers over many steps: which update operator keeps their odds?"""
    controls = {
        "weights": menu("one favoured", list(WEIGHTS), "weights"),
        "strength": slider(0.5, 0.0, 2.0, 0.1, "how unequal"),
        "operator": menu("softmax gradient", list(OPERATORS), "update operator"),
        "lr": slider(0.3, 0.02, 1.0, 0.02, "learning rate"),
        "transform": menu("none", list(TRANSFORMS), "transform"),
        "group_size": slider(8, 2, 32, 1, "group size"),
    }
    return Explorer(compute_solutions, solutions_chart, controls, describe_solutions)


def long_run_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """Entropy over equally right answers and their log-odds on a logarithmic step axis, one line a run.

    Columns measure ("entropy" or "log-odds"), run, step, mean, low, high.
    """
    require(table, ("measure", "run", "step", "mean", "low", "high"), "long_run_chart")
    runs = table["run"].drop_duplicates().tolist()
    x = alt.X("step:Q", title="step").scale(type="log", nice=False).axis(values=[1, 10, 100, 1000])
    look = {"spread": "bars", "legend": STROKES | {"columns": 2, "labelLimit": 240}, "width": 280, "height": 240}
    return panels(
        [_measure(table, measure, x, runs, **look) for measure in ("entropy", "log-odds")],
        "Over thousands of steps: the softmax gradient goes on, the natural gradient halts",
        "means over seeds with 95 % intervals; the step axis is logarithmic",
        "Two line charts on a logarithmic step axis: entropy over the right answers, and change of their log-odds.",
        spacing=30,
    )
