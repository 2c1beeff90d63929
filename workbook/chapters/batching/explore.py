"""Chapters 08 and 14: the study under menus, parts of each cut's steps, two ways live."""

import copy
from dataclasses import replace
from functools import partial

import altair as alt
import numpy as np
import pandas as pd
import torch

from workbook.chapters.batching.toy import CUT_MENU, NAMES
from workbook.messages import progress, show_partial
from workbook.probes.minibatches import clipped_sgd, minibatch_displacement, split_minibatches
from workbook.probes.recovered import PUSH_PARTS, exact_gradient
from workbook.probes.step import matched_lr
from workbook.probes.values import exact_values
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.theory.batching import minibatch_order
from workbook.views.charts import PART_NAMES, signal_noise_chart
from workbook.views.explorer import Explorer, browse, log_slider, menu, power_slider, slider
from workbook.views.figures import panels, series
from workbook.views.live_study import LiveStudy
from workbook.views.measured import measured_table
from workbook.views.style import SERIES, describe_rows, require_columns, titled

# orders whose lines are drawn, from the top
DRAWN = ("sign_partitioned", "reward_balanced", "query_preserved")
WALKS = ["SGD", "SGD, norm clipped", "SGD, momentum", "AdamW"]
FRACTION = "datum.value < 1 ? '1/' + format(1 / datum.value, '.0f') : '1'"
OUTCOMES = ["value", "area", "jitter", "collapsed", "sign_cosine", "grad_norm", "moved", "tax"]
# of the largest learning rate; up to which slopes are taken
FACTORS, SMALL = (1 / 64, 1 / 16, 1 / 4, 1.0), 1 / 4
PART_OF = {
    "signal": PART_NAMES["own_signal"],
    "bias": PART_NAMES["bias"],
    "noise": PART_NAMES["own_noise"],
}
WHOLE = "the whole batch at once"
RESIDUAL = "cancellation/batch_residual"
# of what a run logs: the titles of their panels
RUN_PANELS = {"reward": "mean reward", RESIDUAL: "residual: share of pushes that stays"}


# --- the study


def explore_batching() -> Explorer:
    """Menus over the study's outcomes and matching: each order minus shuffled, over the prompts per
    mini-batch. Whole prompts in balance end where whole prompts do, and are left out.
    """
    table = measured_table("batching/orders")
    table = table[table["order"].isin(DRAWN)]
    prompts = table["prompts"].iloc[0]
    matched = menu(True, [("matched", True), ("as it is", False)], "gradient norm")
    return browse(
        table.assign(order=table["order"].map(NAMES)),
        "level",
        OUTCOMES,
        {"matched": matched},
        "order",
        labels={"value": "outcome"},
        title="The larger the mini-batch, the less its order matters",
        subtitle="line: mean of paired runs; band: 95 % t interval over policies",
        x_title=f"prompts' worth of rollouts in a mini-batch (of {prompts} in a generation batch)",
        y_title="minus the shuffled twin",
        reference=[(0.0, "as shuffled")],
        form="+.3f",
        names=[NAMES[order] for order in DRAWN],
        colors=SERIES[1:],
    )


# --- the steps of each cut


def cut_parts(
    policy, task, prompts: int = 8, group_size: int = 8, minibatches: int = 4, seed: int = 0
) -> pd.DataFrame:
    """Signal, bias and noise in the steps of every cut of one batch: category (a cut), part, order,
    share, size.

    size: mean cosine of the steps with the exact gradient of all the batch's prompts.  ValueError
    where no group has different rewards, and where a cut is impossible.
    """
    rollouts = sample_rollouts(policy, task, prompts, group_size, seed=seed, max_new_tokens=48)
    if not rollouts.advantages.any():
        raise ValueError(
            f"{prompts} prompts have no group of different rewards with seed={seed}; take more."
        )
    values, generator = exact_values(policy, task, rollouts), torch.Generator().manual_seed(seed)
    cuts = {WHOLE: (torch.arange(len(rollouts)), 1)}
    for strategy, name in NAMES.items():
        args = (rollouts.group_ids, rollouts.advantages, minibatches, generator)
        cuts[name] = (minibatch_order(strategy, *args), minibatches)
    perfect, order, rows = (
        exact_gradient(policy, task, list(dict.fromkeys(rollouts.prompts))),
        list(PART_OF),
        [],
    )
    for name in progress(cuts, "cuts"):
        split = split_minibatches(policy, rollouts, values, cuts[name], perfect)
        rows += [
            (name, PART_OF[part], order.index(part), split[part], split["cosine"])
            for part in PUSH_PARTS
        ]
    return pd.DataFrame(rows, columns=["category", "part", "order", "share", "size"])


def cut_parts_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Stacked shares of what the steps of each cut are made of; table of `cut_parts`."""
    subtitle = (
        "of the steps' squared length, against the prompts in them; right: cosine with the exact"
        " credit of all prompts"
    )
    words = describe_rows(table, "category", "part", value="share", form=".0%")
    return titled(
        signal_noise_chart(table, named=list(PART_OF.values())),
        "Whole prompts know their own prompts better, and all prompts no better",
        subtitle,
        words,
    )


# --- two runs


def runs_chart(runs: dict[str, pd.DataFrame], every: int = 4) -> alt.HConcatChart:
    """Reward and cancellation residual of runs along training, a line for each.

    runs: {name: metrics as a `Run` logs them}.  every: optimizer steps of a generation batch, over
    which a point is the mean.
    """
    parts = []
    for name, metrics in runs.items():
        require_columns(metrics, ("step", *RUN_PANELS), "runs_chart")
        batch = ((metrics["step"] - 1) // every + 1).rename("batch")
        means = metrics.groupby(batch)[list(RUN_PANELS)].mean().reset_index()
        parts.append(means.assign(run=NAMES.get(name, name)))
    table = pd.concat(parts, ignore_index=True)
    x = alt.X("batch:Q", title="generation batches").axis(tickMinStep=1, format="d")
    look = {"spread": None, "dash": "run", "width": 287, "height": 200}
    charts = []
    for column, title in RUN_PANELS.items():
        y = alt.Y(f"{column}:Q", title=None).scale(domain=[0, 1])
        charts.append(series(table, x, y, "run", title=title, form=".2f", **look))
    last = table[table["batch"] == table["batch"].max()]
    return panels(
        charts,
        "Where opposite pushes do not meet, reward rises all the same",
        "one pair of runs; a point is the mean over a generation batch",
        "; ".join(
            f"{row['run']}: reward {row['reward']:.2f}, residual {row[RESIDUAL]:.2f} in the end"
            for _, row in last.iterrows()
        ),
    )


# --- two ways through a batch


def endpoints_chart(same: pd.DataFrame, other: pd.DataFrame) -> alt.HConcatChart:
    """How far apart two ways through one batch end, as a share of the distance walked, against the
    learning rate; tables of `measure_walks`.
    """
    x = alt.X("factor:Q", title="learning rate ÷ the largest")
    x = x.scale(type="log", base=4, nice=False, padding=12)
    x = x.axis(values=list(FACTORS), labelExpr=FRACTION)
    look = {"names": WALKS, "spread": None, "dash": "optimizer", "form": ".1%", "width": 287}
    ways, charts = {"the same mini-batches, in reverse": same, "other mini-batches": other}, []
    top = max(1.0, *(table["share"].max() for table in ways.values() if len(table)), 0.0)
    for title, table in ways.items():
        require_columns(table, ("optimizer", "factor", "share", "slope"), "endpoints_chart")
        y = alt.Y("share:Q", title=None if charts else "apart, share of the distance walked")
        y = y.scale(domain=[0, top]).axis(format="%", tickCount=5)
        charts.append(series(table, x, y, "optimizer", title=title, height=230, **look))
    ends = pd.concat([table.assign(way=title) for title, table in ways.items()])
    ends = ends[ends["factor"].isin([FACTORS[0], FACTORS[-1]])]
    return panels(
        charts,
        "As rates shrink, SGD forgets the cut; momentum and Adam do not",
        "two ways through one batch, from the same weights: how far apart the weights end",
        describe_rows(ends, "way", "optimizer", "factor", value="share", form=".1%"),
    )


def measure_walks(
    policy,
    rollouts: Rollouts,
    first: str = "query_preserved",
    other: str = "sign_partitioned",
    minibatches: int = 4,
    clip: float = 0.1,
    momentum: float = 0.9,
    nats: float = 0.05,
    seed: int = 0,
) -> dict[str, pd.DataFrame]:
    """Distance of the weights after two ways through one batch: tables same and other, a row per
    optimizer and factor.

    same: the mini-batches of the order `first` and the same ones in reverse; other: those of
    `first` and of `other`.
    clip: the norm at which one optimizer clips.  momentum: of SGD, and beta 1 of AdamW.  nats: root
    mean square movement by one step at the largest learning rate.  Columns: optimizer, factor (of
    the largest rate), distance, share (distance over the first way's length), slope (of the
    logarithms of distance and factor, up to SMALL).  In double precision; ValueError where an order
    can't cut the batch into so many parts.
    """
    generator = torch.Generator().manual_seed(seed)
    args = (rollouts.group_ids, rollouts.advantages, minibatches, generator)
    orders = {
        strategy: minibatch_order(strategy, *args) for strategy in dict.fromkeys((first, other))
    }
    ways = {
        "same": orders[first].reshape(minibatches, -1).flip(0).flatten(),
        "other": orders[other],
    }
    makes = [
        torch.optim.SGD,
        partial(clipped_sgd, limit=clip),
        partial(torch.optim.SGD, momentum=momentum),
        partial(torch.optim.AdamW, betas=(momentum, 0.999)),
    ]
    rates_of = dict(zip(WALKS, ("sgd", "sgd", "sgd", "adamw"), strict=True))
    largest = {
        name: matched_lr(policy, rollouts, name, nats) for name in dict.fromkeys(rates_of.values())
    }
    exact, rows = (
        replace(policy, model=copy.deepcopy(policy.model).double()),
        {"same": [], "other": []},
    )
    pairs = [
        (name, make, factor) for name, make in zip(WALKS, makes, strict=True) for factor in FACTORS
    ]
    for name, make, factor in progress(pairs, "walks"):
        lr = factor * largest[rates_of[name]]
        end = minibatch_displacement(exact, rollouts, orders[first], minibatches, make, lr)
        for change, order in ways.items():
            apart = float(
                (minibatch_displacement(exact, rollouts, order, minibatches, make, lr) - end).norm()
            )
            rows[change].append((name, factor, apart, apart / float(end.norm())))
        show_partial(**{change: _distances(walked) for change, walked in rows.items()})
    return {change: _distances(walked) for change, walked in rows.items()}


def _distances(rows: list[tuple]) -> pd.DataFrame:
    """Rows with their lines' slopes; a line of one point has none."""
    table = pd.DataFrame(rows, columns=["optimizer", "factor", "distance", "share"])
    small = table[(table["factor"] <= SMALL) & (table["distance"] > 0)]
    slopes = {
        name: float(np.polyfit(np.log(line["factor"]), np.log(line["distance"]), 1)[0])
        for name, line in small.groupby("optimizer")
        if len(line) > 1
    }
    return table.assign(slope=table["optimizer"].map(slopes).astype(float))


def live_walks(policy, rollouts: Rollouts) -> LiveStudy:
    """Cuts, mini-batches, clip, momentum, learning rate and seed of two ways through a batch in
    hand.
    """
    controls = {
        "first": menu("query_preserved", CUT_MENU, "one cut"),
        "other": menu("sign_partitioned", CUT_MENU, "another cut"),
        "minibatches": power_slider(4, 8, "mini-batches", least=2),
        "clip": log_slider(0.1, -2, 1, "clip the gradient's norm at"),
        "momentum": slider(0.9, 0.0, 0.99, 0.01, "momentum"),
        "nats": log_slider(0.05, -3, -0.7, "largest step (nats, rms)"),
        "seed": slider(0, 0, 19, 1, "seed of the cuts"),
    }
    start, variables = (
        {"same": _distances([]), "other": _distances([])},
        {"policy": policy, "batch": rollouts},
    )
    return LiveStudy(measure_walks, endpoints_chart, controls, start, variables=variables)
