"""One generation batch walked through twice: how far apart two ways end, and how that falls with the learning rate.

To first order plain SGD ends where one step on the whole batch ends, whoever shares a mini-batch: the distance between
two ways falls with the square of the learning rate. What is not linear in a step's gradient parts them at the first
power: clipping, momentum, Adam.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from workbook.policies.copies import private_copy
from workbook.probes.step import matched_lr, update
from workbook.rollouts.sample import Rollouts
from workbook.theory.batching import minibatch_order
from workbook.topics.batching.cut import CUT_MENU, endpoints_chart
from workbook.training.progress import progress, show_partial
from workbook.views.explorer import log_slider, menu, power_slider, slider
from workbook.views.live_study import LiveStudy

FACTORS = (1 / 64, 1 / 16, 1 / 4, 1.0)  # of the largest learning rate
SMALL = 1 / 4  # factors up to which slopes are taken
COLUMNS = ["optimizer", "factor", "distance", "of the way", "slope", "label"]
APART = 1.9  # factor by which labels stand apart on the logarithmic axis


def optimizers(clip: float, momentum: float) -> dict[str, tuple[str, partial]]:
    """{name: (whose learning rate, optimizer)}: SGD, SGD and AdamW with what makes a step not linear."""
    return {
        "SGD": ("sgd", partial(torch.optim.SGD)),
        "SGD, norm clipped": ("sgd", partial(ClippedSGD, limit=clip)),
        "SGD, momentum": ("sgd", partial(torch.optim.SGD, momentum=momentum)),
        "AdamW": ("adamw", partial(torch.optim.AdamW, betas=(momentum, 0.999))),
        "AdamW, no momentum": ("adamw_no_momentum", partial(torch.optim.AdamW, betas=(0.0, 0.999))),
    }


class ClippedSGD(torch.optim.SGD):
    """SGD on gradients whose norm is at most a limit."""

    def __init__(self, params, lr: float, limit: float):
        super().__init__(params, lr)
        self.limit = limit

    def step(self, closure=None):
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], self.limit)
        return super().step(closure)


def walk(policy, batch: Rollouts, order: Tensor, parts: int, make, lr: float) -> tuple[Tensor, list[float]]:
    """One optimizer step on each mini-batch of an order: how far the weights went (D,), and the gradients' norms.

    make: parameters, lr -> optimizer.  The policy is then as it was.
    """
    mine = private_copy(policy)
    trained = [p for p in mine.model.parameters() if p.requires_grad]
    start, optimizer = torch.cat([p.detach().flatten() for p in trained]), make(trained, lr)
    norms = [float(update(mine, batch.select(rows), optimizer)) for rows in order.chunk(parts)]
    return torch.cat([p.detach().flatten() for p in trained]) - start, norms


def compute_walks(
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
    """Distance of the weights after two ways through one batch: tables same and other, a row per optimizer and factor.

    same: the mini-batches of the order `first` and the same ones in reverse; other: those of `first` and of `other`.
    clip: the norm at which one optimizer clips.  momentum: of SGD, and beta 1 of AdamW.  nats: root mean square
    movement by one step at the largest learning rate.  Columns: optimizer, factor (of the largest rate), distance, of
    the way (distance over the length of the first way), slope (log-log, of factors up to SMALL), label (where a number
    stands), bound (share of steps that are clipped).  Works in double precision; the policy is then as it was.

    Raises ValueError where an order can't cut the batch into so many parts.
    """
    generator = torch.Generator().manual_seed(seed)
    orders = {
        strategy: minibatch_order(strategy, rollouts.group_ids, rollouts.advantages, minibatches, generator)
        for strategy in dict.fromkeys((first, other))
    }
    ways = {"same": orders[first].reshape(minibatches, -1).flip(0).flatten(), "other": orders[other]}
    exact, chosen = replace(policy, model=copy.deepcopy(policy.model).double()), optimizers(clip, momentum)
    rates = {
        name: matched_lr(policy, rollouts, name, nats) for name in dict.fromkeys(one for one, _ in chosen.values())
    }
    rows: dict[str, list] = {"same": [], "other": []}
    for name, factor in progress([(name, factor) for name in chosen for factor in FACTORS], "walks"):
        own, make = chosen[name]
        lr = factor * rates[own]
        end, norms = walk(exact, rollouts, orders[first], minibatches, make, lr)
        for change, order in ways.items():
            apart = float((walk(exact, rollouts, order, minibatches, make, lr)[0] - end).norm())
            bound = float(np.mean(np.array(norms) > clip))
            rows[change].append((name, factor, apart, apart / float(end.norm()), bound))
        show_partial(**{change: _table(walked) for change, walked in rows.items()})
    return {change: _table(walked) for change, walked in rows.items()}


def _table(rows: list[tuple]) -> pd.DataFrame:
    """Rows with their lines' slopes and the places of their numbers; lines of one point have neither."""
    table = pd.DataFrame(rows, columns=["optimizer", "factor", "distance", "of the way", "bound"])
    small = table[(table["factor"] <= SMALL) & (table["distance"] > 0)]
    slopes = dict(_slopes(small))
    table = table.assign(slope=table["optimizer"].map(slopes).astype(float), label=np.nan)
    ends = table[table["factor"] == FACTORS[-1]].sort_values("distance")["distance"]
    place = 0.0
    for row, distance in ends.items():
        place = max(distance, APART * place)
        table.loc[row, "label"] = place
    return table


def _slopes(table: pd.DataFrame) -> Iterator[tuple[str, float]]:
    for name, line in table.groupby("optimizer"):
        if len(line) > 1:
            yield name, float(np.polyfit(np.log(line["factor"]), np.log(line["distance"]), 1)[0])


def describe_walks(same: pd.DataFrame, other: pd.DataFrame) -> str:
    """The slopes of other mini-batches, and how often the clipping binds."""
    slopes = other.drop_duplicates("optimizer").dropna(subset="slope")
    bound = other.loc[other["optimizer"] == "SGD, norm clipped", "bound"].mean()
    words = ", ".join(f"{row.optimizer} {row.slope:.1f}" for row in slopes.itertuples())
    return f"Slopes, other mini-batches: {words}. Clipping binds in {bound:.0%} of its steps."


def live_walks(policy, rollouts: Rollouts) -> LiveStudy:
    """Cuts, mini-batches, clip, momentum, learning rate and seed of two ways through a batch in hand."""
    controls = {
        "first": menu("query_preserved", CUT_MENU, "one cut"),
        "other": menu("sign_partitioned", CUT_MENU, "another cut"),
        "minibatches": power_slider(4, 8, "mini-batches", least=2),
        "clip": log_slider(0.1, -2, 1, "clip the gradient's norm at"),
        "momentum": slider(0.9, 0.0, 0.99, 0.01, "momentum"),
        "nats": log_slider(0.05, -3, -0.7, "largest step (nats, rms)"),
        "seed": slider(0, 0, 19, 1, "seed of the cuts"),
    }
    empty = pd.DataFrame(columns=[*COLUMNS, "bound"])
    start = {"same": empty, "other": empty.copy()}
    variables = {"policy": policy, "batch": rollouts}
    return LiveStudy(compute_walks, endpoints_chart, controls, start, describe_walks, variables)
