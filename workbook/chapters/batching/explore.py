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

OTHERS = [name for strategy, name in NAMES.items() if strategy != "shuffled"]
WALKS = ["SGD", "SGD, norm clipped", "SGD, momentum", "AdamW", "AdamW, no momentum"]
FRACTION = "datum.value < 1 ? '1/' + format(1 / datum.value, '.0f') : '1'"
OUTCOMES = ["value", "area", "jitter", "collapsed", "sign_cosine", "grad_norm", "moved", "tax"]
# of the largest learning rate; up to which slopes are taken
FACTORS, SMALL = (1 / 64, 1 / 16, 1 / 4, 1.0), 1 / 4
APART = 1.9  # factor by which labels stand apart on the logarithmic axis
PART_OF = {
    "signal": PART_NAMES["own_signal"],
    "bias": PART_NAMES["bias"],
    "noise": PART_NAMES["own_noise"],
}
WHOLE = "the whole batch at once"


# --- the study


def explore_batching() -> Explorer:
    """Menus over the study's outcomes and matching: each order minus shuffled, over the prompts per
    mini-batch.
    """
    table = measured_table("batching/orders")
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
        subtitle=("line: mean of paired runs; band: 95 % t interval over policies"),
        x_title=f"prompts' worth of rollouts in a mini-batch (of {prompts} in a generation batch)",
        y_title="difference from shuffled",
        reference=[0.0],
        form="+.3f",
        names=OTHERS,
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
        "of the update, all weights; right: cosine of the steps with the exact credit of all"
        " prompts"
    )
    words = describe_rows(table, "category", "part", value="share", form=".0%")
    return titled(
        signal_noise_chart(table, named=list(PART_OF.values())),
        "Steps of a cut hold less signal than one step on the whole batch",
        subtitle,
        words,
    )


# --- two ways through a batch


def endpoints_chart(same: pd.DataFrame, other: pd.DataFrame) -> alt.HConcatChart:
    """Distance between the ends of two ways through one batch against the learning rate; tables of
    `measure_walks`.
    """
    factors, charts = [1 / 64, 1 / 16, 1 / 4, 1], []
    x = alt.X("factor:Q", title="learning rate ÷ the largest")
    x = x.scale(type="log", base=4, domain=[factors[0] / 1.3, 3]).axis(
        values=factors, labelExpr=FRACTION
    )
    y = alt.Y("distance:Q", title="distance of the weights").scale(type="log")
    y = y.axis(format=".0e", values=[10.0**k for k in range(-8, 2)])
    color = alt.Color("optimizer:N", sort=WALKS).scale(domain=WALKS, range=SERIES)
    look = {
        "names": WALKS,
        "spread": None,
        "legend": {"columns": 3},
        "dash": "optimizer",
        "form": ".2e",
        "width": 287,
    }
    for table, title in (
        (same, "the same mini-batches, in reverse"),
        (other, "other mini-batches"),
    ):
        require_columns(
            table, ("optimizer", "factor", "distance", "slope", "label"), "endpoints_chart"
        )
        last = (
            alt.Chart(table).transform_filter("isValid(datum.label)").mark_text(align="left", dx=8)
        )
        place = alt.Y("label:Q", title="distance of the weights").scale(type="log")
        text = last.encode(x=x, y=place, color=color, text=alt.Text("slope:Q", format=".1f"))
        charts.append(
            series(table, x, y, "optimizer", over=[text], title=title, height=250, **look)
        )
    slopes = pd.concat([same.assign(change="same"), other.assign(change="other")])
    slopes = slopes.dropna(subset="slope").drop_duplicates(["change", "optimizer"])
    return panels(
        charts,
        "The cut changes SGD to second order, momentum and Adam to first",
        "distance of the weights after the steps of one batch; both axes logarithmic; the number is"
        " a line's slope",
        "; ".join(
            f"{row.change} mini-batches, {row.optimizer}: slope {row.slope:.2f}"
            for row in slopes.itertuples()
        )
        or "Distance against the learning rate, a line for each optimizer, in two panels.",
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
    the largest rate), distance, of the way (distance over the first way's length), slope (log-log,
    of factors up to SMALL), label (where its number stands).  In double precision; ValueError where
    an order can't cut the batch into so many parts.
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
    adamw = partial(torch.optim.AdamW, betas=(momentum, 0.999))
    makes = [
        torch.optim.SGD,
        partial(clipped_sgd, limit=clip),
        partial(torch.optim.SGD, momentum=momentum),
        adamw,
    ]
    makes.append(partial(torch.optim.AdamW, betas=(0.0, 0.999)))
    rates_of = dict(zip(WALKS, ("sgd", "sgd", "sgd", "adamw", "adamw_no_momentum"), strict=True))
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
    """Rows with their lines' slopes and the places of their numbers; lines of one point have
    neither.
    """
    table = pd.DataFrame(rows, columns=["optimizer", "factor", "distance", "of the way"])
    small = table[(table["factor"] <= SMALL) & (table["distance"] > 0)]
    slopes = {
        name: float(np.polyfit(np.log(line["factor"]), np.log(line["distance"]), 1)[0])
        for name, line in small.groupby("optimizer")
        if len(line) > 1
    }
    table = table.assign(slope=table["optimizer"].map(slopes).astype(float), label=np.nan)
    place = 0.0
    for row, distance in (
        table.loc[table["factor"] == FACTORS[-1], "distance"].sort_values().items()
    ):
        place = max(distance, APART * place)
        table.loc[row, "label"] = place
    return table


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
