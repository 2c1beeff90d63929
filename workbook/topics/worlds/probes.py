"""Which probe says, without knowing any value, that credit does not arrive: study `worlds_probes`, its rows and table.

A plain run of each unit, and at its start and after 8 and 24 batches, of one policy each: the exact population
share of signal of a batch's update (`study.update_squares`), and what can be read off sixteen batches that the run
could have next.

    halves      the same share by the gradients of two halves of a batch's prompts (`signal_share` of theory):
                2 c / (1 + c) where both are of one length and c is their cosine
    quarters, prompts       the same of four quarters and of all single prompts: the simple noise scale of 1812.06162
    mixed       share of groups whose rewards differ
    spread      mean standard deviation of rewards within a group
    follows     share of unsure tokens that the update moves their own way, to first order, both signs counting equally
    reset gap   credit of positive rollouts' tokens minus that of negative ones', by continuations before and after them
    value gap   the same of tokens that the update boosts minus those that it suppresses

Table readings: a row per batch (draw) of a checkpoint (batch); permuted_ columns: with rewards permuted in each group.
Table truth: a row per checkpoint with mean2, total2, and the exact value of held-out prompts.
"""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbook.policies.models import evaluating, private_copy
from workbook.probes.directions import Along
from workbook.probes.recovered import flat_gradient
from workbook.probes.step import optimizer_of, scores
from workbook.probes.values import expected_reward
from workbook.rollouts.credit import credit_batch
from workbook.rollouts.sample import Rollouts
from workbook.statistics import pseudo_values
from workbook.studies.bench import Bench
from workbook.studies.loop import Loop, advantaged, train_on
from workbook.studies.record import NotMeasured, Tables, Void
from workbook.studies.registration import WORLD_SCALES
from workbook.theory.coupling import NEARLY_CERTAIN
from workbook.theory.decomposition import signal_share
from workbook.topics.worlds.outcomes import OPEN, PLAIN, check_values, world_name, world_tables
from workbook.topics.worlds.study import PROMPTS, loop_of, update_squares

PARTS = {"halves": 2, "quarters": 4, "prompts": PROMPTS}
BEST = "prompts"  # as named before any unit was measured
PROBES = (*PARTS, "mixed", "spread", "follows", "reset gap", "value gap")
RATE, DRAWS, ANCHORS, CONTINUATIONS, RESETS = 3e-4, 16, 24, 8, 8  # resets: of every eighth batch
FAR = 1000  # batches' numbers at a checkpoint begin at this times its own: their rollouts are no other's


class Sizes(NamedTuple):
    """Checkpoints, in batches of the run, and batches drawn for the exact share."""

    checkpoints: tuple[int, ...] = (0, 8, 24)
    redraws: int = 12


SIZES = dict.fromkeys(WORLD_SCALES, Sizes()) | {"tiny": Sizes((0, 2), 2)}


def probes_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables readings and truth of one unit."""
    size, task, seed = SIZES[bench.scale.name], bench.task, bench.data_seed
    loop, last = loop_of(bench, PLAIN, RATE), max(size.checkpoints)
    data, mine = task.dataset(PROMPTS * (last + DRAWS), seed), private_copy(bench.policy)
    held_out = task.dataset(PROMPTS * size.redraws, bench.held_out_seed)["prompt"]
    optimizer, readings, truth = optimizer_of(mine, loop.optimizer, RATE), [], []
    rows = [data.select(range(PROMPTS * k, PROMPTS * (k + 1))) for k in range(last + DRAWS)]
    for batch in range(last + 1):
        first = FAR * (batch + 1)
        if batch in size.checkpoints:
            value = float(expected_reward(mine, task, held_out).mean())
            truth.append(update_squares(bench, mine, size.redraws, first, (PLAIN,)).assign(batch=batch, value=value))
            for draw in range(DRAWS):
                read = read_batch(mine, task, loop, rows[batch + draw], seed, first + draw, draw % RESETS == 0)
                readings.append({"batch": batch, "draw": draw, **read})
        if batch < last:
            rollouts, _ = advantaged(mine, task, loop, rows[batch], seed, batch + 1, batch)
            list(train_on(mine, task, loop, rollouts, optimizer, seed, batch))
    tables = {"readings": pd.DataFrame(readings), "truth": pd.concat(truth, ignore_index=True).drop(columns="rule")}
    return {name: table.assign(world=world_name(bench.scale.name)) for name, table in tables.items()}


def read_batch(policy, task, loop: Loop, rows, seed: int, number: int, resets: bool) -> dict[str, float]:
    """What a batch of a policy says of itself; NaN where its groups have nothing to tell."""
    rollouts, _ = advantaged(policy, task, loop, rows, seed, number)
    twin, _ = advantaged(policy, task, replace(loop, permuted=True), rows, seed, number, given=rollouts)
    own, other = prompt_gradients(policy, rollouts, [rollouts.advantages, twin.advantages])
    groups = rollouts.rewards.view(-1, loop.group_size)
    read = part_sums(own) | {f"permuted_{name}": number for name, number in part_sums(other).items()}
    read |= {"mixed": float((groups.amax(1) > groups.amin(1)).float().mean()), "spread": float(groups.std(1).mean())}
    read |= dict.fromkeys(("follows", "reset gap", "value gap"), np.nan)
    if not resets or not rollouts.advantages.any():
        return read
    along = Along(policy)
    sizes = [p.numel() for p in along.parameters.values()]
    parts = zip(along.parameters.items(), own.sum(0).float().split(sizes), strict=True)
    change = along.change(rollouts, {name: part.view_as(p) for (name, p), part in parts})  # (B, T)
    pushed = rollouts.completion_mask.bool() & (rollouts.advantages != 0)[:, None]
    signs = rollouts.advantages.sign()[:, None].expand_as(change)
    unsure = pushed & (rollouts.old_logps < np.log(NEARLY_CERTAIN))
    sides = [(change * signs > 0)[unsure & (signs == sign)].float().mean() for sign in (1, -1)]
    read["follows"] = float(sum(sides)) / 2
    places = pushed.nonzero()
    places = places[torch.randperm(len(places), generator=torch.Generator().manual_seed(number))[:ANCHORS]]
    credit = reset_credit(policy, task, rollouts, places, seed, number, loop.max_new_tokens)
    at = places.unbind(1)
    return read | {"reset gap": sides_apart(credit, signs[at]), "value gap": sides_apart(credit, change[at])}


def prompt_gradients(policy, rollouts: Rollouts, advantages: list[Tensor]) -> list[Float[Tensor, "P D"]]:
    """Gradients by each prompt's rollouts of mean_i A_i log pi_i over all of them, one set for each advantages (B,)."""
    parts: list[list[Tensor]] = [[] for _ in advantages]
    with evaluating(policy.model), torch.enable_grad():
        for group in rollouts.group_ids.unique():
            rows = (rollouts.group_ids == group).nonzero().squeeze(1)
            scored = scores(policy.model, rollouts.select(rows)).sum(1)
            for own, given in zip(parts, advantages, strict=True):
                objective = (given[rows] * scored).sum() / len(rollouts)
                own.append(flat_gradient(policy, objective, keep_graph=True).double())
    return [torch.stack(own) for own in parts]


def part_sums(parts: Float[Tensor, "P D"]) -> dict[str, float]:
    """Squared length of a gradient (whole2), and the sums of those of its halves (halves2), quarters2 and prompts2."""
    counts = {"whole": 1, **PARTS}
    return {f"{name}2": float(parts.unflatten(0, (n, -1)).sum(1).square().sum()) for name, n in counts.items()}


def reset_credit(
    policy, task, rollouts: Rollouts, places: Tensor, seed: int, number: int, longest: int
) -> Float[Tensor, " n"]:
    """Credit of the tokens at places (n, 2): mean reward of continuations after each minus that of others before it."""
    batch = credit_batch(policy, rollouts, task, (seed, number), 0, longest)
    prefixes = [
        rollouts.completion_ids[rollout, : position + after].tolist()
        for rollout, position in places.tolist()
        for after in (0, 1)
        for _ in range(CONTINUATIONS)
    ]
    rewards = batch.continue_from(places[:, 0].repeat_interleave(2 * CONTINUATIONS), prefixes)
    before, after = rewards.view(-1, 2, CONTINUATIONS).mean(2).unbind(1)
    return after - before


def sides_apart(credit: Float[Tensor, " n"], side: Float[Tensor, " n"]) -> float:
    """Mean credit where `side` is above 0 minus that where it is below; NaN if one is empty."""
    return float(credit[side > 0].mean() - credit[side < 0].mean())


# --- what the tables say


def probe_readings(table: pd.DataFrame, batches: int = DRAWS) -> pd.DataFrame:
    """PROBES, and PARTS with rewards permuted, by (seed, batch, reading), so many batches a reading.

    Of several batches shares are of sums of squares. Where nothing is pushed they are 0: no credit arrives.
    """
    keys = ["seed", "batch", "reading"]
    groups = table.assign(reading=table["draw"] // batches).drop(columns=["draw", "world"]).groupby(keys)
    sums, read = groups.sum(), groups.mean()
    for prefix in ("", "permuted_"):
        for name, parts in PARTS.items():
            share = signal_share(sums[f"{prefix}whole2"], sums[f"{prefix}{name}2"], parts)
            read[prefix + name] = share.fillna(0.0)
    return read[[*PROBES, *map("permuted_{}".format, PARTS)]]


def probe_points(tables: Tables) -> pd.DataFrame:
    """A row per world and checkpoint: world, number (its place), batch, share (exact; a ratio of means over units), and
    the means over units of PROBES; of worlds that count. Raises NotMeasured where no world has been measured."""
    rows = []
    for scale in OPEN:
        one = world_tables(scale, tables.folder)
        with suppress(NotMeasured, Void):
            check_values(one)
            means = one["worlds_probes/truth"].groupby("batch")[["mean2", "total2"]].mean()
            read = probe_readings(one["worlds_probes/readings"]).groupby("batch").mean()
            named = {"world": world_name(scale), "number": [*WORLD_SCALES].index(scale)}
            rows.append(read.assign(share=means["mean2"] / means["total2"], **named).reset_index())
    if not rows:
        raise NotMeasured("worlds_probes has been measured in no world.")
    return pd.concat(rows, ignore_index=True)


def rank_agreement(table: pd.DataFrame, probe: str) -> float:
    """Spearman's rank correlation of a probe with the exact share."""
    return float(table[probe].corr(table["share"], method="spearman"))


def agreement(tables: Tables, probe: str) -> pd.Series:
    """Pseudo-values of `rank_agreement` over worlds and checkpoints, one per world."""
    return pseudo_values(probe_points(tables), partial(rank_agreement, probe=probe), unit="number")


def own_agreement(tables: Tables, probe: str, batches: int) -> pd.Series:
    """In one world `rank_agreement` of its units' single readings with the exact shares of their own, one number."""
    check_values(tables)
    own = tables["worlds_probes/truth"].set_index(["seed", "batch"])
    read = probe_readings(tables["worlds_probes/readings"], batches)
    return pd.Series([rank_agreement(read.join((own["mean2"] / own["total2"]).rename("share")), probe)])


def overstated(tables: Tables, probe: str) -> pd.Series:
    """A probe of PARTS over the exact share, a ratio of each world's means."""
    means = probe_points(tables).groupby("number")[[probe, "share"]].mean()
    ratio = np.log(means[probe] / means["share"]).rename_axis("unit")
    ratio.attrs["log"] = True
    return ratio


def unit_reading(tables: Tables, column: str) -> pd.Series:
    """Mean over checkpoints of a unit's reading."""
    return probe_readings(tables["worlds_probes/readings"])[column].groupby("seed").mean().rename_axis("unit")
