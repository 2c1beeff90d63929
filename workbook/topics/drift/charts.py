"""Charts of drift fixing: what reuse leaves on shared tokens, what objectives come to, what causes which failure."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.rollouts.sample import Rollouts
from workbook.theory.choices import LEVELS
from workbook.theory.groups import shared_places
from workbook.topics.drift.probe import CLIPPINGS, left_on_shared, objective_weights
from workbook.topics.drift.settings import DRAWN, TRANSFORMS, compute_objectives, intervals
from workbook.topics.groups.charts import beside, small
from workbook.views.explorer import Explorer, log_slider, menu, slider
from workbook.views.style import NEGATIVE, NEUTRAL, POSITIVE, SERIES, finish, require

NAMES = list(TRANSFORMS)
BY_TRANSFORM = alt.Scale(domain=NAMES, range=[NEUTRAL, *SERIES[:2]])
DASHES = alt.Scale(domain=NAMES, range=[[1, 0], [6, 3], [2, 2]])
SHAPES = alt.Scale(domain=NAMES, range=["circle", "square", "triangle-up"])
LEGEND = alt.Legend(orient="bottom", symbolStrokeWidth=2.5)
ZERO = alt.Chart().mark_rule(color="#999999").encode(x=alt.datum(0))
INTERVAL = ("mean", "low", "high")


# --- one batch, gone over again


def compute_reuse(
    rollouts: Rollouts,
    path,
    level: str = "sequence",
    clipping: str = "none",
    epsilon: float = 0.03,
    transform: str = "none",
    times: int = 4,
) -> dict[str, pd.DataFrame]:
    """What an objective leaves on the tokens that a group shares, for each time a batch has been gone over.

    path: (times + 1, B, T) log-probabilities, as from `reuse_path`.  Other arguments as in `objective_weights`.

    Returns lines: times, residual, low, high (95 % over groups), silent, own, chosen;  pushes: of one group, rollout,
    reward and its push on the shared tokens as a share of the group's total, and their net.
    """
    settings = {"level": level, "clipping": clipping, "epsilon": epsilon, "transform": transform}
    left = [left_on_shared(rollouts, objective_weights(rollouts, now, **settings)).set_index("group") for now in path]
    lines = intervals(pd.concat({k: each["residual"] for k, each in enumerate(left)}, axis=1, names=["times"]))
    for name in ("silent", "own"):
        lines[name] = [each[name].mean() for each in left]
    lines["chosen"] = lines["times"] == times
    weights = objective_weights(rollouts, path[times], **settings)
    return {"lines": lines, "pushes": _pushes_of(rollouts, weights)}


def _pushes_of(rollouts: Rollouts, weights) -> pd.DataFrame:
    """The pushes on shared tokens of the group whose rewards are nearest to half right."""
    groups = rollouts.group_ids.unique()
    means = [abs(float(rollouts.rewards[rollouts.group_ids == group].mean()) - 0.5) for group in groups]
    here = rollouts.group_ids == groups[means.index(min(means))]
    shared = shared_places(rollouts.completion_ids, rollouts.completion_mask, rollouts.group_ids)
    pushes = ((weights * shared).sum(1) * rollouts.advantages)[here].double()
    shares = pushes / pushes.abs().sum().clamp(min=1e-12)
    rewards = ["right" if reward > 0 else "wrong" for reward in rollouts.rewards[here]]
    rows = [*zip(map(str, range(1, len(shares) + 1)), rewards, shares.tolist(), strict=True)]
    return pd.DataFrame([*rows, ("net", "", float(shares.sum()))], columns=["rollout", "reward", "push"])


def reuse_chart(lines: pd.DataFrame, pushes: pd.DataFrame) -> alt.HConcatChart:
    """Left the residual against the times a batch was gone over, right one group's pushes; tables of compute_reuse."""
    x = alt.X("times:Q", title="times the batch was gone over").axis(tickMinStep=1, format="d")
    title = "residual (0 cancels, 1 adds up)"
    y = alt.Y("mean:Q", title=title).scale(domain=[0, 1])
    base = alt.Chart(lines).encode(x=x)
    chosen = base.transform_filter("datum.chosen")
    tooltip = ["times:Q", *[alt.Tooltip(f"{name}:Q", format=".3f") for name in (*INTERVAL, "silent", "own")]]
    left = alt.layer(
        base.mark_area(opacity=0.2, color=POSITIVE).encode(y=alt.Y("low:Q", title=title), y2="high:Q"),
        base.mark_line(strokeWidth=2.5, color=POSITIVE).encode(y=y),
        base.mark_point(filled=True, size=45, opacity=1, color=POSITIVE).encode(y=y, tooltip=tooltip),
        chosen.mark_rule(strokeDash=[4, 3], color=NEUTRAL),
        chosen.mark_point(size=170, color="black", strokeWidth=2).encode(y=y),
        chosen.mark_text(dy=-16, fontWeight="bold").encode(y=y, text=alt.Text("mean:Q", format=".3f")),
    ).properties(width=330, height=230, title=small("shared tokens of all groups"))
    bars = alt.Chart(pushes).encode(y=alt.Y("rollout:N", sort=None, title="rollout"))
    push = alt.X("push:Q", title="push on shared tokens (share of the total)").scale(domain=[-0.6, 0.6], clamp=True)
    up = alt.when("datum.push >= 0").then(alt.value(POSITIVE)).otherwise(alt.value(NEGATIVE))
    net = alt.when("datum.rollout == 'net'").then(alt.value(1.5)).otherwise(alt.value(0))
    number = alt.Text("push:Q", format="+.2f")
    right = alt.layer(
        bars.mark_bar(stroke="black").encode(
            x=push, color=up, strokeWidth=net, tooltip=["rollout", "reward", "push:Q"]
        ),
        bars.transform_filter("datum.push >= 0").mark_text(align="left", dx=4).encode(x=push, text=number),
        bars.transform_filter("datum.push < 0").mark_text(align="right", dx=-4).encode(x=push, text=number),
        bars.mark_text(align="left", color=NEUTRAL).encode(x=alt.value(4), text="reward:N"),
        ZERO,
    ).properties(width=280, height=230, title=small("one group, at the chosen point"))
    return beside(
        [left, right],
        "What is left on the tokens that a whole group shares",
        "left: mean over groups with its 95 % interval; right: pushes of one group's rollouts, and their sum",
        "A line of the residual against reuse, and bars of one group's pushes on the tokens that it shares.",
    )


def say_reuse(lines: pd.DataFrame, pushes: pd.DataFrame) -> str:
    """The chosen point in words."""
    here = lines[lines["chosen"]].iloc[0]
    return (
        f"Gone over {here['times']:.0f} times: residual {here['mean']:.3f} [{here['low']:.3f}, {here['high']:.3f}]; "
        f"{here['silent']:.0%} of shared tokens have weight 0; tokens of a rollout's own keep {here['own']:.0%} of "
        "their push."
    )


class LiveReuse(Explorer):
    """An explorer over a batch that a cell has just gone over; the code below takes the reader's `rollouts, path`."""

    @property
    def code(self) -> str:
        """An import and a call that compute what is drawn, from the variables `rollouts` and `path`."""
        line, call = super().code.split("\n\n")
        return f"{line}\n\n{call.replace('(', '(rollouts, path, ', 1)}"


def explore_reuse(rollouts: Rollouts, path) -> Explorer:
    """Level, clipping, epsilon, transform and times of reuse over one batch of a real policy."""

    def compute(**settings):
        return compute_reuse(rollouts, path, **settings)

    compute.__name__, compute.__module__ = compute_reuse.__name__, compute_reuse.__module__
    controls = {
        "level": menu("sequence", list(LEVELS), "ratio"),
        "clipping": menu("none", list(CLIPPINGS), "clipping"),
        "epsilon": log_slider(0.03, -2.5, 0, "clip range"),
        "transform": menu("none", [(name, value or "none") for name, value in TRANSFORMS.items()], "transform"),
        "times": slider(min(4, len(path) - 1), 0, len(path) - 1, 1, "times gone over"),
    }
    return LiveReuse(compute, reuse_chart, controls, say_reuse)


# --- whole runs


def objectives_chart(lines: pd.DataFrame, changes: pd.DataFrame) -> alt.HConcatChart:
    """Left an outcome against reuse, a line per transform; right what each changes; tables of compute_objectives."""
    require(lines, ("transform", "reuse", *INTERVAL, "chosen", "outcome"), "objectives_chart")
    at = f"datum.reuse * pow(2, 0.07 * (indexof({NAMES}, datum.transform) - 1))"  # side by side
    x = alt.X("at:Q", title="times each rollout is used").scale(type="log", base=2, domain=[0.85, 9.4], nice=False)
    base = (
        alt.Chart(lines)
        .transform_calculate(at=at)
        .encode(
            x=x.axis(values=[1, 2, 4, 8]),
            color=alt.Color("transform:N", title=None, sort=NAMES, legend=LEGEND, scale=BY_TRANSFORM),
        )
    )
    chosen = alt.Chart(lines).transform_filter("datum.chosen && datum.transform == 'none'")
    title, difference = "mean over seeds, 95 % interval", "difference to no transform"
    y = alt.Y("mean:Q", title=title).scale(zero=True)
    shown = ["transform:N", "reuse:Q", *[alt.Tooltip(f"{name}:Q", format=".4g") for name in INTERVAL]]
    left = alt.layer(
        chosen.mark_rule(strokeWidth=30, color="#eeeeee").encode(x="reuse:Q"),
        base.mark_line(strokeWidth=2).encode(
            y=y, strokeDash=alt.StrokeDash("transform:N", title=None, sort=NAMES, legend=LEGEND, scale=DASHES)
        ),
        base.mark_rule(strokeWidth=2, opacity=0.6).encode(y=alt.Y("low:Q", title=title), y2="high:Q"),
        base.mark_point(filled=True, size=60, opacity=1).encode(
            y=y, shape=alt.Shape("transform:N", title=None, sort=NAMES, legend=LEGEND, scale=SHAPES), tooltip=shown
        ),
        chosen.mark_text(align="left", fontWeight="bold").encode(x=alt.value(4), y=alt.value(-8), text="outcome:N"),
    ).properties(width=360, height=240)
    bars = alt.Chart(changes).encode(y=alt.Y("transform:N", sort=NAMES, title=None).axis(labelLimit=150))
    change = alt.X("mean:Q", title=difference).scale(zero=True, padding=24)
    color = alt.Color("transform:N", legend=None, scale=BY_TRANSFORM)
    right = alt.layer(
        ZERO,
        bars.mark_rule(size=3, opacity=0.5).encode(x=alt.X("low:Q", title=difference), x2="high:Q", color=color),
        bars.mark_point(filled=True, size=80, opacity=1).encode(x=change, color=color, tooltip=shown[:1] + shown[2:]),
        bars.mark_text(dy=-13).encode(x=change, text=alt.Text("mean:Q", format="+.3~g")),
    ).properties(width=200, height=130, title=small("at the chosen reuse, paired by seed"))
    return beside(
        [left, right],
        "What an objective comes to, against how often each rollout is used",
        "two mini-batches, gone over once to eight times, at an equal number of sampled rollouts",
        "Lines: an outcome against reuse for three transforms. Dots: the difference each makes at the chosen reuse.",
    )


def say_objectives(lines: pd.DataFrame, changes: pd.DataFrame) -> str:
    """The chosen point in words."""
    here = lines[lines["chosen"]].set_index("transform")
    told = ", ".join(f"{name} {here.loc[name, 'mean']:.3g}" for name in NAMES if name in here.index)
    return f"{here['outcome'].iloc[0]}, each rollout used {here['reuse'].iloc[0]:.0f} times: {told}."


def explore_objectives() -> Explorer:
    """Outcome, ratio, clipping and reuse over the runs of the study drift_fixing."""
    controls = {
        "outcome": menu("tax", [(label, name) for name, label in DRAWN.items()], "outcome"),
        "level": menu("sequence", list(LEVELS), "ratio"),
        "clipping": menu("none", list(CLIPPINGS), "clipping"),
        "doublings": slider(1, 0, 3, 1, "reuse, 2^"),
    }
    return Explorer(compute_objectives, objectives_chart, controls, say_objectives)


def group_size_chart(table: pd.DataFrame, series: str, title: str, unit: str) -> alt.LayerChart:
    """A quantity against rollouts per prompt, a line per `series`; columns group_size, mean, low, high and it."""
    require(table, ("group_size", series, *INTERVAL), "group_size_chart")
    names = list(dict.fromkeys(table[series]))
    at = f"datum.group_size * pow(2, 0.06 * indexof({names}, datum['{series}']))"  # side by side
    x = alt.X("at:Q", title="rollouts per prompt, G").scale(type="log", base=2, domain=[1.8, 18.5], nice=False)
    base = (
        alt.Chart(table)
        .transform_calculate(at=at)
        .encode(
            x=x.axis(values=[2, 4, 8, 16]),
            color=alt.Color(f"{series}:N", title=None, sort=names).scale(domain=names, range=SERIES[: len(names)]),
        )
    )
    y = alt.Y("mean:Q", title=unit).scale(zero=False)
    chart = alt.layer(
        base.mark_rule(strokeWidth=2, opacity=0.6).encode(y=alt.Y("low:Q", title=unit), y2="high:Q"),
        base.mark_line(strokeWidth=2).encode(y=y),
        base.mark_point(filled=True, size=60, opacity=1).encode(
            y=y,
            shape=alt.Shape(f"{series}:N", title=None, sort=names).scale(domain=names),
            tooltip=[f"{series}:N", "group_size:Q", *[alt.Tooltip(f"{name}:Q", format="+.4f") for name in INTERVAL]],
        ),
    )
    told = (f"{getattr(row, series)}, G = {row.group_size}: {row.mean:+.3f}" for row in table.itertuples())
    return finish(chart, title, "mean over seeds, 95 % interval", "; ".join(told), width=420, height=220)


def tax_chart(table: pd.DataFrame) -> alt.Chart:
    """Tax against learning, a dot per objective and reuse; columns level, clipping, transform, reuse, area, tax."""
    require(table, ("level", "clipping", "transform", "reuse", "area", "tax"), "tax_chart")
    chart = (
        alt.Chart(table)
        .mark_point(filled=True, opacity=0.75)
        .encode(
            x=alt.X("area:Q", title="mean sampled reward over the run").scale(zero=False, padding=12),
            y=alt.Y("tax:Q", title="tax: movement of style words (nats)").scale(type="log", nice=False, padding=12),
            color=alt.Color("transform:N", sort=NAMES, scale=BY_TRANSFORM),
            shape=alt.Shape("level:N", title="ratio").scale(domain=list(LEVELS), range=["circle", "triangle-up"]),
            size=alt.Size("reuse:O", title="times used").scale(domain=[1, 2, 4, 8], range=[25, 60, 120, 220]),
            tooltip=["level:N", "clipping:N", "transform:N", "reuse:Q", "area:Q", "tax:Q"],
        )
    )
    return finish(
        chart,
        "What is learned, and what is paid for it",
        "a dot per objective and reuse, means over seeds; the tax axis is logarithmic",
        f"{len(table)} objectives; tax from {table['tax'].min():.3g} to {table['tax'].max():.3g} nats.",
        width=460,
        height=300,
    )


# --- several outcomes under one another


def effects_chart(table: pd.DataFrame, row: str, title: str, subtitle: str) -> alt.HConcatChart:
    """Effects with intervals, a panel per outcome with an axis of its own; columns `row`, outcome, mean, low, high."""
    require(table, (row, "outcome", *INTERVAL), "effects_chart")
    panels = []
    for k, (outcome, part) in enumerate(table.groupby("outcome", sort=False)):
        axis = alt.Axis(labelLimit=260) if k == 0 else None
        base = alt.Chart(part).encode(y=alt.Y(f"{row}:N", sort=None, title=None, axis=axis))
        color = alt.condition("datum.low > 0 || datum.high < 0", alt.value(POSITIVE), alt.value(NEUTRAL))
        x = alt.X("mean:Q", title=None).scale(zero=True, padding=12).axis(tickCount=4)
        shown = [f"{row}:N", *[alt.Tooltip(f"{name}:Q", format="+.4f") for name in INTERVAL]]
        panel = alt.layer(
            ZERO,
            base.mark_rule(size=3, opacity=0.5).encode(x=alt.X("low:Q", title=None), x2="high:Q", color=color),
            base.mark_point(filled=True, size=60, opacity=1).encode(x=x, color=color, tooltip=shown),
            base.mark_text(dy=-9, fontSize=9).encode(x=x, text=alt.Text("mean:Q", format="+.2~g")),
        )
        panels.append(panel.properties(width=128, height=alt.Step(30), title=small(str(outcome))))
    told = "; ".join(f"{r[row]}, {r['outcome']}: {r['mean']:+.3g}" for r in table.to_dict("records"))
    return beside(panels, title, subtitle, told)
