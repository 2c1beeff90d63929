"""Chapter 06, live: one token pushes on the policy in hand, at several learning rates, over the study's curves."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from workbook.policies.copies import private_copy
from workbook.probes.step import ONE_STEP_OPTIMIZERS
from workbook.rollouts.sample import sample_rollouts
from workbook.theory.choices import check_choice
from workbook.theory.coupling import UNSURE
from workbook.topics.coupling.charts import OUTSIDE, push_curves
from workbook.topics.coupling.masked import choose_tokens, followers, masked_update, shared_token
from workbook.topics.coupling.study import ADAM_SCALE, LRS
from workbook.training.progress import progress, show_partial
from workbook.views.explorer import menu, power_slider, slider
from workbook.views.live_study import LiveStudy
from workbook.views.style import SERIES, finish, require

RATES = LRS[::3]
CONFIDENCE = {"unsure": (0.0, UNSURE), "sure": (0.9, 1.0)}  # of the token that pushes
SIGNS = {"better rollouts": 1, "worse rollouts": -1}
SPARE = 3  # times as many prompts are sampled, since not every one has such a token
COLUMNS = ["kind", "lr", "size", "dlogp"]


def compute_live_push(
    policy,
    task,
    pushing: str = "unsure",
    side: str = "better rollouts",
    optimizer: str = "sgd",
    prompts: int = 4,
    group_size: int = 8,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """How far tokens move when one token of a prompt pushes: committed and live, columns kind, lr, size, dlogp.

    pushing: of CONFIDENCE.  side: of SIGNS, whose occurrences push.  prompts: of which the mean is taken, at most.
    Raises ValueError for an unknown choice, and where no prompt has such a token under both signs.
    """
    check_choice("pushing", pushing, tuple(CONFIDENCE))
    check_choice("side", side, tuple(SIGNS))
    check_choice("optimizer", optimizer, ONE_STEP_OPTIMIZERS)
    committed = push_curves(optimizer, pushing)
    show_partial(committed=committed, live=committed.iloc[:0])
    rollouts = sample_rollouts(policy, task, SPARE * prompts, group_size, seed, max_new_tokens=48)
    groups = list(_with_token(rollouts, CONFIDENCE[pushing], SIGNS[side]))[:prompts]
    if not groups:
        raise ValueError(f"No prompt has {pushing} tokens under both signs with seed={seed}; take more rollouts.")
    scale = ADAM_SCALE if optimizer == "adamw" else 1.0
    tables = []
    for rate, (part, chosen) in progress([(rate, group) for rate in RATES for group in groups], "masked updates"):
        moved = followers(part, masked_update(policy, part, chosen, optimizer, rate * scale))
        tables.append(moved[moved["kind"].isin(OUTSIDE)].assign(lr=rate * scale))
        live = pd.concat(tables).groupby(["kind", "lr"])[["size", "dlogp"]].mean().reset_index()[COLUMNS]
        show_partial(live=live)
    return {"committed": committed, "live": live}


def _with_token(rollouts, confidence: tuple[float, float], sign: int):
    """(rollouts of a prompt, the tokens that push) of the prompts that have such a token under both signs."""
    for group in rollouts.group_ids.unique().tolist():
        part = rollouts.select(rollouts.group_ids == group)
        if (token := shared_token(part, confidence)) is not None:
            yield part, choose_tokens(part, token, confidence=confidence, sign=sign)


def live_push_chart(committed: pd.DataFrame, live: pd.DataFrame) -> alt.LayerChart:
    """Movement by learning rate: lines as committed, points as measured now; tables of `compute_live_push`."""
    require(committed, COLUMNS, "live_push_chart")
    kinds = list(OUTSIDE)
    scale = alt.Scale(type="log")
    color = alt.Color("kind:N", sort=kinds, title=None).scale(domain=kinds, range=SERIES[: len(kinds)])
    color = color.legend(orient="bottom", columns=4, symbolOpacity=1)
    x = alt.X("lr:Q", title="learning rate (log scale)", scale=scale).axis(tickCount=4, format="~g")
    y = alt.Y("size:Q", title="mean |dlogp| (nats, log scale)", scale=scale).axis(tickCount=6, format="~g")
    shown = ["kind:N", *(alt.Tooltip(f"{name}:Q", format=".3g") for name in ("lr", "size", "dlogp"))]
    lines = alt.Chart(committed).mark_line(opacity=0.5, strokeWidth=2).encode(x=x, y=y, color=color)
    points = alt.Chart(live).mark_point(filled=True, size=60, opacity=1).encode(x=x, y=y, color=color, tooltip=shown)
    return finish(
        alt.layer(lines, points),
        "One token pushes: how far others move, on this policy now",
        "lines: the study's mean over prompts and seeds; points: measured now",
        f"Points of this policy over the study's lines of {committed['kind'].nunique()} kinds of token.",
        height=260,
    )


def describe_live_push(committed: pd.DataFrame, live: pd.DataFrame) -> str:
    """The live movement of the same token, unsure, beside the next kind, at the middle rate."""
    rate = float(np.sort(live["lr"].unique())[live["lr"].nunique() // 2])
    here = live[live["lr"] == rate].set_index("kind")["size"]
    movements = "; ".join(f"{kind} {size:.2g}" for kind, size in here.items())
    return f"At a rate of {rate:.2g}, mean |dlogp| in nats: {movements}."


def live_push(policy, task, prompts: int = 4) -> LiveStudy:
    """What pushes, the optimizer, prompts, rollouts and seed of masked updates on a copy of a policy."""
    controls = {
        "pushing": menu("unsure", [("an unsure token", "unsure"), ("a sure token", "sure")], "what pushes"),
        "side": menu("better rollouts", list(SIGNS), "pushing in"),
        "optimizer": menu("sgd", [("SGD", "sgd"), ("AdamW (a hundredth of the rate)", "adamw")], "optimizer"),
        "prompts": power_slider(prompts, 16, "prompts"),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    committed = push_curves()
    tables = {"committed": committed, "live": committed.iloc[:0]}
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_live_push, live_push_chart, controls, tables, describe_live_push, variables)
