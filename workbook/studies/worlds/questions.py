"""Studies of plain's settings: `worlds_groups`, when large groups help, and `worlds_defaults`,
which default biases it.

A batch has 64 rollouts, so that large groups leave few prompts; in the worlds of the lowest and the
highest start pairs and sixteens run at half and twice plain's own rate, too. A default is plain
with one thing changed:

    arm      what is unequal                           TRL's setting            twin
    length   a rollout's tokens weigh 1 / T_i          loss type grpo           mean over the group
    scaling  a group's tokens weigh 1 / s_g            scale_rewards            plain
    clip     two steps a batch, ratios clipped at 0.2  num_iterations, epsilon  mean over the group
    sampler  top_p 0.9, of which no weight knows       vLLM's                   plain

A twin has the sum of the weights (up to a factor that AdamW does not see) without their inequality.
Table updates, of what a batch pushes the policy at the start by, the sum over its steps of the
gradient of 1/B sum_it w A log pi: total2, mean squared length; mean2, that of its expectation m;
bias2:

    |m|^2 - <m, e>^2 / |e|^2    off the exact gradient e; of products of two halves of the batches,
                                without noise
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import LlamaForCausalLM

from workbook.app.half_way import PLAIN
from workbook.app.world_runs import GROUP_SIZE, KEPT, PROMPTS
from workbook.policies.models import private_copy
from workbook.probes.recovered import exact_gradient
from workbook.studies.unit import StudyUnit
from workbook.studies.worlds.study import SIZES, squares, unit_rates, world_config
from workbook.theory.advantages import group_index, group_mean
from workbook.theory.credit import CreditBatch
from workbook.theory.credit_controls import EqualWeights
from workbook.training.loop import LoopConfig, add_advantages, sample_batch, train, train_on
from workbook.training.optimizers import optimizer_of, trained_weights

# the lowest start value first
STARTS = tuple(map("world:{}".format, ("low", "two_thirds", "third", "plain", "walk")))
GROUPS = {
    str(size): {"prompts": PROMPTS * GROUP_SIZE // size, "group_size": size}
    for size in (2, 4, 8, 16)
}
PAIRS, MANY, FEW_REDRAWS, CLIP, TOP_P, RATES = (
    "2",
    "16",
    8,
    (0.2, 0.2),
    0.9,
    {"half rate": 0.5, "twice rate": 2.0},
)
TWINS = {"length": "length, equal", "scaling": PLAIN, "clip": "clip, equal", "sampler": PLAIN}
ASKED = {
    "world:ramble": ("length",),
    "world:third": ("scaling", "clip", "sampler"),
    "world:low": ("scaling",),
}


def by_length(batch: CreditBatch, equal: bool = False) -> Float[Tensor, " B"]:
    """Plain advantages times mean T / T_i, or, `equal`, times the mean of that over the group."""
    lengths, (index, count) = (
        batch.mask.sum(1).to(batch.rewards),
        group_index(batch.group_ids, len(batch)),
    )
    weights = lengths.mean() / lengths
    return batch.group_advantages(PLAIN) * (
        group_mean(weights, index, count)[index] if equal else weights
    )


class Nucleus(LlamaForCausalLM):
    """A model that samples from its likeliest words alone, those that hold TOP_P, and is scored as
    if it did not.
    """

    def generate(self, *, generation_config, **given):
        """Sample as `transformers` does."""
        generation_config.top_p = TOP_P
        return super().generate(generation_config=generation_config, **given)


CHANGES = {  # of plain's loop
    "length": {"rule": by_length},
    "length, equal": {"rule": partial(by_length, equal=True)},
    "scaling": {"rule": "grpo"},
    "clip": {"epochs": 2, "clip": CLIP},
    "clip, equal": {"epochs": 2, "rule": EqualWeights("token", CLIP)},
}


def groups_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables runs and updates (mean2 of exact gradients) of one unit; NotMeasured until rates have
    been tuned.
    """
    plain = world_config(unit, PLAIN, unit_rates(unit)[PLAIN])
    loops = {size: replace(plain, **change) for size, change in GROUPS.items()}
    exact, pushes = redrawn(unit, loops, FEW_REDRAWS)
    e2 = across(exact, exact)["mean2"]
    updates = [
        {"arm": n, **squares([*g]), "mean2": (1 - 1 / int(n)) ** 2 * e2} for n, g in pushes.items()
    ]
    for words, rate in (
        RATES.items() if unit.setting.name in (STARTS[0], STARTS[-1], "tiny") else ()
    ):
        loops |= {
            f"{size}, {words}": replace(loops[size], lr=rate * plain.lr) for size in (PAIRS, MANY)
        }
    return {"runs": _trained(unit, loops), "updates": pd.DataFrame(updates)}


def defaults_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables runs and updates of one unit; NotMeasured until rates have been tuned.

    From other pushes a multiple of plain's noise is taken off: its push minus 7/8 of the same
    prompts' exact gradient, which is 0 on average, so that no bias goes with it.
    """
    plain, asked = (
        world_config(unit, PLAIN, unit_rates(unit)[PLAIN]),
        ASKED.get(unit.setting.name, TWINS),
    )
    loops = {
        arm: replace(plain, **CHANGES.get(arm, {}))
        for arm in (PLAIN, *asked, *map(TWINS.get, asked))
    }
    exact, pushes = redrawn(unit, loops, SIZES[unit.setting.name].redraws)
    noise, updates = pushes[PLAIN] - (1 - 1 / GROUP_SIZE) * exact, []
    for arm, g in pushes.items():
        shared = float((g * noise).sum() / noise.square().sum()) if arm != PLAIN else 0.0
        updates.append({"arm": arm, **squares([*g]), **across(g - shared * noise, exact)})
    return {"runs": _trained(unit, loops), "updates": pd.DataFrame(updates)}


def policy_of(unit: StudyUnit, arm: str):
    """A copy of the policy at the start, with the arm's sampler."""
    mine = private_copy(unit.policy)
    if arm == "sampler":
        mine.model.__class__ = Nucleus
    return mine


def _trained(unit: StudyUnit, loops: Mapping[str, LoopConfig]) -> pd.DataFrame:
    """Readings of a run of every arm."""
    sizes, tables = SIZES[unit.setting.name], []
    for arm, loop in loops.items():
        given = (
            policy_of(unit, arm),
            unit.task,
            loop,
            unit.data_seed,
            unit.readings(sizes.held_out),
            sizes.every,
        )
        tables.append(
            unit.cached_table(arm, partial(train, *given))[KEPT].assign(arm=arm, lr=loop.lr)
        )
    return pd.concat(tables, ignore_index=True)


def redrawn(
    unit: StudyUnit, loops: Mapping[str, LoopConfig], redraws: int
) -> tuple[Float[Tensor, "R D"], dict[str, Tensor]]:
    """Exact gradients on prompts that nobody trains on, and by arm what batches of these prompts
    push by (R, D).
    """
    task, seed, most = unit.task, unit.held_out_seed, max(loop.prompts for loop in loops.values())
    data, pushes, exact = task.dataset(most * redraws, seed), {arm: [] for arm in loops}, []
    for draw in range(redraws):
        rows = data.select(range(most * draw, most * (draw + 1)))
        exact.append(exact_gradient(unit.policy, task, rows["prompt"]).double())
        for arm, loop in loops.items():
            mine = policy_of(unit, arm)
            optimizer = optimizer_of(mine, loop.optimizer, loop.lr)
            weights = trained_weights(mine).values()
            asked = rows.select(range(loop.prompts))
            sampled = sample_batch(mine, task, loop, asked, seed, draw)
            given, _ = add_advantages(mine, task, loop, sampled, seed, draw)
            steps = train_on(mine, task, loop, given, optimizer, seed)
            gradients = [-torch.cat([weight.grad.flatten() for weight in weights]) for _ in steps]
            pushes[arm].append(loop.max_new_tokens * torch.stack(gradients).sum(0).double())
    return torch.stack(exact), {arm: torch.stack(parts) for arm, parts in pushes.items()}


def across(pushes: Float[Tensor, "R D"], exact: Float[Tensor, "R D"]) -> dict[str, float]:
    """mean2 and bias2 of batches' pushes, by products across two halves of them."""
    (g, h), (e, f) = ((part[::2].mean(0), part[1::2].mean(0)) for part in (pushes, exact))
    return {"mean2": float(g @ h), "bias2": float(g @ h - (g @ f) * (h @ e) / (e @ f))}
