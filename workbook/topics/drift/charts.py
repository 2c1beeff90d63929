"""Charts of drift fixing: the residual on shared tokens under reuse, and several outcomes below one another."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.rollouts.sample import Rollouts
from workbook.statistics import bootstrap_mean
from workbook.theory.choices import LEVELS
from workbook.theory.choices import TRANSFORMS_BY_LABEL as TRANSFORMS
from workbook.theory.groups import shared_places
from workbook.topics.drift.probe import CLIPPINGS, left_on_shared, objective_weights
from workbook.views.explorer import Explorer, log_slider, menu, slider
from workbook.views.figures import INTERVAL, bars, by_sign, clear_of_zero, forest, panels, series
from workbook.views.style import NEUTRAL, describe_rows, require

RESAMPLES = 999  # of a bootstrap interval that a slider waits for


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


def intervals(wide: pd.DataFrame) -> pd.DataFrame:
    """Mean and 95 % bootstrap interval of every column over its rows without a gap.

    Returns the names of the columns' levels as columns, and mean, low, high.
    """
    rows = [bootstrap_mean(wide[column].dropna(), resamples=RESAMPLES) for column in wide]
    return pd.concat([wide.columns.to_frame(index=False), pd.DataFrame(rows)], axis=1)


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
