"""Charts of drift fixing: the residual on shared tokens under reuse, outcomes of objectives, causes of failures."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.rollouts.sample import Rollouts
from workbook.theory.choices import LEVELS
from workbook.theory.groups import shared_places
from workbook.topics.drift.probe import CLIPPINGS, left_on_shared, objective_weights
from workbook.topics.drift.settings import OUTCOME_LABELS, TRANSFORMS, compute_objectives, intervals
from workbook.views.explorer import Explorer, log_slider, menu, slider
from workbook.views.figures import INTERVAL, bars, by_sign, clear_of_zero, forest, panels, series
from workbook.views.style import NEUTRAL, SERIES, describe_rows, finish, require, titled

LABELS, COLORS = list(TRANSFORMS), [NEUTRAL, *SERIES[:2]]  # of the transforms
BY_TRANSFORM = alt.Scale(domain=LABELS, range=COLORS)


# --- one batch, used several times


def compute_reuse(
    rollouts: Rollouts,
    path,
    level: str = "sequence",
    clipping: str = "none",
    epsilon: float = 0.03,
    transform: str = "none",
    times: int = 4,
) -> dict[str, pd.DataFrame]:
    """Residual of an objective on the tokens that a group shares, for each number of epochs on a batch.

    path: (times + 1, B, T) log-probabilities, as from `reuse_path`.  Other arguments as in `objective_weights`.

    Returns lines: times, residual, low, high (95 % over groups), silent, own, chosen;  pushes: of one group, rollout,
    reward and its push on the shared tokens as a share of the group's total, and their net.
    """
    settings = {"level": level, "clipping": clipping, "epsilon": epsilon, "transform": transform}
    tables = [left_on_shared(rollouts, objective_weights(rollouts, now, **settings)).set_index("group") for now in path]
    residuals = {k: table["residual"] for k, table in enumerate(tables)}
    lines = intervals(pd.concat(residuals, axis=1, names=["times"]))
    for name in ("silent", "own"):
        lines[name] = [table[name].mean() for table in tables]
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
    """Left the residual against the epochs on a batch, right one group's pushes; tables of compute_reuse."""
    x = alt.X("times:Q", title="epochs on the batch").axis(tickMinStep=1, format="d")
    y = alt.Y("mean:Q", title="residual (0 cancels, 1 adds up)").scale(domain=[0, 1])
    look = {"shown": ("silent", "own"), "form": ".3f", "width": 330, "height": 230}
    residuals = series(lines, x, y, chosen="chosen", number=".3f", title="shared tokens of all groups", **look)
    rollout = alt.Y("rollout:N", sort=None, title="rollout")
    rewards = alt.Chart(pushes).mark_text(align="left", color=NEUTRAL)
    one_group = bars(
        pushes,
        rollout,
        alt.X("push:Q", title="push on shared tokens (share of the total)").scale(domain=[-0.6, 0.6], clamp=True),
        color=by_sign("push"),
        outlined="datum.rollout == 'net'",
        number="+.2f",
        shown=["reward"],
        over=[rewards.encode(x=alt.value(4), y=rollout, text="reward:N")],
        title="one group, at the chosen point",
        width=280,
        height=230,
    )
    return panels(
        [residuals, one_group],
        "Residual on the tokens that a whole group shares",
        "left: mean over groups with its 95 % interval; right: pushes of one group's rollouts, and their sum",
        "A line of the residual against reuse, and bars of one group's pushes on the tokens that it shares.",
    )


def describe_reuse(lines: pd.DataFrame, pushes: pd.DataFrame) -> str:
    """The chosen point in words."""
    here = lines[lines["chosen"]].iloc[0]
    return (
        f"After {here['times']:.0f} epochs: residual {here['mean']:.3f} [{here['low']:.3f}, {here['high']:.3f}]; "
        f"{here['silent']:.0%} of shared tokens have weight 0; tokens of a rollout's own keep {here['own']:.0%} of "
        "their push."
    )


def explore_reuse(rollouts: Rollouts, path) -> Explorer:
    """Level, clipping, epsilon, transform and epochs on one batch of a real policy."""
    controls = {
        "level": menu("sequence", list(LEVELS), "ratio"),
        "clipping": menu("none", list(CLIPPINGS), "clipping"),
        "epsilon": log_slider(0.03, -2.5, 0, "clip range"),
        "transform": menu("none", [(name, value or "none") for name, value in TRANSFORMS.items()], "transform"),
        "times": slider(min(4, len(path) - 1), 0, len(path) - 1, 1, "epochs on the batch"),
    }
    return Explorer(compute_reuse, reuse_chart, controls, describe_reuse, {"rollouts": rollouts, "path": path})


# --- whole runs


def objectives_chart(lines: pd.DataFrame, changes: pd.DataFrame) -> alt.HConcatChart:
    """Left an outcome against reuse, a line per transform; right what each changes; tables of compute_objectives."""
    require(lines, ("transform", "reuse", *INTERVAL, "chosen", "outcome"), "objectives_chart")
    x = alt.X("reuse:Q", title="times each rollout is used").axis(values=[1, 2, 4, 8])
    x = x.scale(type="log", base=2, domain=[0.85, 9.4], nice=False)
    y = alt.Y("mean:Q", title="mean over seeds, 95 % interval").scale(zero=True)
    chosen = alt.Chart(lines).transform_filter("datum.chosen && datum.transform == 'none'")
    text = chosen.mark_text(align="left", fontWeight="bold")
    look = {"names": LABELS, "colors": COLORS, "dash": "transform", "dodge": 0.07, "spread": "bars", "form": ".4g"}
    look |= {"under": [chosen.mark_rule(strokeWidth=30, color="#eeeeee").encode(x=x)], "width": 360}
    look |= {"over": [text.encode(x=alt.value(4), y=alt.value(-8), text="outcome:N")]}
    outcomes = series(lines, x, y, "transform", **look)
    differences = forest(
        changes,
        alt.Y("transform:N", sort=LABELS, title=None).axis(labelLimit=150),
        alt.X("mean:Q", title="difference to no transform").scale(zero=True, padding=24),
        color=alt.Color("transform:N", legend=None, scale=BY_TRANSFORM),
        zero=True,
        number="+.3~g",
        form=".4g",
        title="at the chosen reuse, paired by seed",
        width=200,
        height=130,
    )
    return panels(
        [outcomes, differences],
        "Outcomes of an objective, against how often each rollout is used",
        "two mini-batches, one to eight epochs on them, at an equal number of sampled rollouts",
        "Lines: an outcome against reuse for three transforms. Dots: the difference each makes at the chosen reuse.",
    )


def describe_objectives(lines: pd.DataFrame, changes: pd.DataFrame) -> str:
    """The chosen point in words."""
    here = lines[lines["chosen"]].set_index("transform")
    means = ", ".join(f"{name} {here.loc[name, 'mean']:.3g}" for name in LABELS if name in here.index)
    return f"{here['outcome'].iloc[0]}, each rollout used {here['reuse'].iloc[0]:.0f} times: {means}."


def explore_objectives() -> Explorer:
    """Outcome, ratio, clipping and reuse over the runs of the study drift_fixing."""
    controls = {
        "outcome": menu("tax", [(label, name) for name, label in OUTCOME_LABELS.items()], "outcome"),
        "level": menu("sequence", list(LEVELS), "ratio"),
        "clipping": menu("none", list(CLIPPINGS), "clipping"),
        "doublings": slider(1, 0, 3, 1, "reuse, 2^"),
    }
    return Explorer(compute_objectives, objectives_chart, controls, describe_objectives)


def rollouts_per_prompt_chart(table: pd.DataFrame, by: str, title: str, unit: str) -> alt.LayerChart:
    """A quantity against rollouts per prompt, a line per name of `by`; columns group_size, mean, low, high and it."""
    require(table, ("group_size", by, *INTERVAL), "rollouts_per_prompt_chart")
    x = alt.X("group_size:Q", title="rollouts per prompt, G").axis(values=[2, 4, 8, 16])
    x = x.scale(type="log", base=2, domain=[1.8, 18.5], nice=False)
    y = alt.Y("mean:Q", title=unit).scale(zero=False)
    look = {"dodge": 0.06, "spread": "bars", "form": "+.4f", "width": 420, "height": 220}
    names = (f"{row[by]}, G = {row['group_size']}: {row['mean']:+.3f}" for row in table.to_dict("records"))
    return titled(series(table, x, y, by, **look), title, "mean over seeds, 95 % interval", "; ".join(names))


def tax_chart(table: pd.DataFrame) -> alt.Chart:
    """Tax against learning, a dot per objective and reuse; columns level, clipping, transform, reuse, area, tax."""
    require(table, ("level", "clipping", "transform", "reuse", "area", "tax"), "tax_chart")
    chart = (
        alt.Chart(table)
        .mark_point(filled=True, opacity=0.75)
        .encode(
            x=alt.X("area:Q", title="mean sampled reward over the run").scale(zero=False, padding=12),
            y=alt.Y("tax:Q", title="tax: movement of style words (nats)").scale(type="log", nice=False, padding=12),
            color=alt.Color("transform:N", sort=LABELS, scale=BY_TRANSFORM),
            shape=alt.Shape("level:N", title="ratio").scale(domain=list(LEVELS), range=["circle", "triangle-up"]),
            size=alt.Size("reuse:O", title="times used").scale(domain=[1, 2, 4, 8], range=[25, 60, 120, 220]),
            tooltip=["level:N", "clipping:N", "transform:N", "reuse:Q", "area:Q", "tax:Q"],
        )
    )
    return finish(
        chart,
        "Reward learned and tax paid",
        "a dot per objective and reuse, means over seeds; the tax axis is logarithmic",
        f"{len(table)} objectives; tax from {table['tax'].min():.3g} to {table['tax'].max():.3g} nats.",
        width=460,
        height=300,
    )


# --- several outcomes below one another


def effects_chart(table: pd.DataFrame, row: str, title: str, subtitle: str) -> alt.HConcatChart:
    """Effects with intervals, a panel per outcome with an axis of its own; columns `row`, outcome, mean, low, high."""
    require(table, (row, "outcome", *INTERVAL), "effects_chart")
    name = alt.Y(f"{row}:N", sort=None, title=None).axis(labelLimit=260)
    x = alt.X("mean:Q", title=None).scale(zero=True, padding=12).axis(tickCount=4)
    look = {"zero": True, "number": "+.2~g", "form": "+.4f", "color": clear_of_zero()}
    look |= {"width": 128, "height": alt.Step(30)}
    charts = []
    for outcome, part in table.groupby("outcome", sort=False):
        charts.append(forest(part, name, x, labels=not charts, title=str(outcome), **look))
    return panels(charts, title, subtitle, describe_rows(table, row, "outcome", form="+.3g"))
