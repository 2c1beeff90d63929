"""What each loss type and correction of TRL leaves on tokens that a group shares, on the same rollouts and policies.

A token that all of a group shares cancels if and only if the weights of its rollouts are exchangeable (D1 in the
claims). This study reads every arm's exact weights (`loss_arms`) at the r-th optimizer step on the same rollouts,
r = 1, 2, 4, 8, and reports the residual |sum w A| / sum |w A|. The policy moves by one reference objective for all
arms: Dr. GRPO's with each ratio taken as 1, AdamW. A bfloat16 copy of the policy samples the rollouts, as vLLM would;
groups of equal rewards push nothing and are left out, as by DAPO's dynamic sampling.

What was stated before the first measurement: data/results/loss_types/registration.yaml.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbook.policies.copies import evaluating, private_copy
from workbook.probes.step import FIELDS, optimizer_of, progress, update
from workbook.rollouts.generation import end_tokens
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.rollouts.scoring import sequence_logps
from workbook.studies.bench import Bench
from workbook.theory.groups import group_extreme, group_index, group_sum, permute_in_groups, shared_places
from workbook.theory.weights import cancellation_residual
from workbook.topics.drift.loss_arms import ARMS, Arm, Scores, arm_pushes

REUSE = (1, 2, 4, 8)
LEARNING_RATES = {"tiny": 2.5e-4, "bundled": 2.5e-4, "smollm2_chat": 2.5e-6}  # by scale: a first step of some 0.04 nats
PROMPTS = {"tiny": 6, "bundled": 32, "smollm2_chat": 12}  # by scale, sampled
GROUPS = {"tiny": 6, "bundled": 32, "smollm2_chat": 3}  # by scale: at most, the first whose rewards differ
NEW_TOKENS = {"smollm2_chat": 24}  # by scale, where it is not the scale's own
PERMUTATIONS = 16
CHANGED = 1e-5  # relative difference of a push from dr_grpo's that counts as a change


def loss_types_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables residuals (a row per prompt, arm and reuse) and drift (a row per reuse) of one seed."""
    policy, scale = bench.policy, bench.scale
    length = NEW_TOKENS.get(scale.name, scale.max_new_tokens)
    sampled = half_precision_rollouts(policy, bench.task, PROMPTS[scale.name], scale.group_size, bench.seed, length)
    rollouts, lr = mixed_groups(sampled, GROUPS[scale.name]), LEARNING_RATES[scale.name]
    path = moved_scores(policy, rollouts, lr)
    drift = drift_of(policy, rollouts, path).assign(lr=lr, prompts=PROMPTS[scale.name])
    return {"residuals": loss_type_residuals(policy, bench.task, rollouts, path, seed=bench.seed), "drift": drift}


def residuals_of_batch(policy, task, prompts: int = 16, seed: int = 0, lr: float = 2.5e-4) -> pd.DataFrame:
    """Residual of every arm on one batch of 8 rollouts a prompt, before each of eight steps on it.

    Returns the table of `loss_type_residuals`, reuse 1 to 8.  Raises ValueError if no group has different rewards.
    """
    rollouts = mixed_groups(half_precision_rollouts(policy, task, prompts, 8, seed, 48))
    path = moved_scores(policy, rollouts, lr, tuple(range(1, 9)))
    return loss_type_residuals(policy, task, rollouts, path, seed=seed)


def mixed_groups(rollouts: Rollouts, most: int | None = None) -> Rollouts:
    """Keep the first groups whose rewards differ, at most so many; ValueError if there is none."""
    index, groups = group_index(rollouts.group_ids, len(rollouts))
    low, high = (group_extreme(rollouts.rewards, index, groups, kind) for kind in ("amin", "amax"))
    chosen = (low < high).nonzero().squeeze(1)[:most]
    if not len(chosen):
        raise ValueError(f"none of the {groups} groups has different rewards, so nothing pushes; sample more prompts.")
    return rollouts.select(torch.isin(index, chosen))


def half_precision_rollouts(policy, task, prompts: int, group_size: int, seed: int, max_new_tokens: int) -> Rollouts:
    """Sample groups from a bfloat16 copy of the policy; old_logps are that copy's."""
    sampler = replace(policy, model=copy.deepcopy(policy.model).to(torch.bfloat16))
    return sample_rollouts(sampler, task, prompts, group_size, seed, max_new_tokens)


def moved_scores(policy, rollouts: Rollouts, lr: float, reuse: tuple[int, ...] = REUSE) -> dict[int, Scores]:
    """Score the rollouts before the r-th AdamW step on them, for each r of `reuse`; the policy stays as it was.

    The steps follow Dr. GRPO's gradient with each ratio taken as 1, so that no arm's own weights steer them.
    """
    scores, last = {}, max(reuse)
    mine = private_copy(policy)
    stepper = optimizer_of(mine, "adamw", lr)
    for step in progress(range(1, last + 1), "steps on the rollouts"):
        if step in reuse:
            with torch.no_grad(), evaluating(mine.model):
                scores[step] = sequence_logps(mine.model, *(getattr(rollouts, name) for name in FIELDS))
        if step < last:
            update(mine, rollouts, stepper, clip=None)
    return scores


def loss_type_residuals(
    policy, task, rollouts: Rollouts, path: dict[int, Scores], arms: tuple[Arm, ...] = ARMS, seed: int = 0
) -> pd.DataFrame:
    """Tabulate the residual that each arm leaves: a row per group, arm and reuse.

    rollouts: of `mixed_groups`.  Columns group, arm, kind, reuse and those of `group_residuals`; changed, for
    corrections and transforms, the share of the group's tokens whose push is not dr_grpo's.
    """
    base, rows = {}, []
    for arm in progress(arms, "arms"):
        advantages, pushes = arm_pushes(policy, task, rollouts, arm, path)
        base = pushes if arm.name == "dr_grpo" else base
        for reuse, push in pushes.items():
            generator = torch.Generator().manual_seed(1_000 * seed + reuse)  # each arm's weights permuted alike
            table = group_residuals(rollouts, push, advantages, generator)
            if arm.kind in ("correction", "transform"):
                table["changed"] = _changed(rollouts, push, base[reuse]).cpu().numpy()
            rows.append(table.assign(arm=arm.name, kind=arm.kind, reuse=reuse))
    return _compact(pd.concat(rows, ignore_index=True))


def group_residuals(
    rollouts: Rollouts, pushes: Float[Tensor, "B T"], advantages: Float[Tensor, "B T"], generator: torch.Generator
) -> pd.DataFrame:
    """Residual |sum w A| / sum |w A| of each group: 0 cancels, 1 adds up.

    Columns: group;
    shared, over places where all rollouts have the same token, averaged over those at which any rollout pushes;
    every, over all places that no rollout ends before, as if the group shared a token there;
    permuted, `every` with the weights w permuted among the group's rollouts, averaged over 16 permutations: what
    weights as unequal as these leave if they do not follow the reward;
    places, the number of shared places;  silent, the share of the group's tokens that do not push.
    NaN where nothing pushes.  Shapes: pushes and advantages (B, T), pushes 0 outside the loss's mask.
    """
    mask, group_ids, pushes = rollouts.completion_mask.bool(), rollouts.group_ids, pushes.double()
    index, groups = group_index(group_ids, len(rollouts))
    same = shared_places(rollouts.completion_ids, mask, group_ids)
    shared, common = (group_extreme(places.long(), index, groups, "amin").bool() for places in (same, mask))
    weights = torch.where(advantages != 0, pushes / advantages, 0.0)
    orders = [permute_in_groups(torch.arange(len(group_ids)), group_ids.cpu(), generator) for _ in range(PERMUTATIONS)]
    permuted = [_mean_over_places(weights[order] * advantages, group_ids, common) for order in orders]
    idle = group_sum(((pushes == 0) & mask).double().sum(1), index, groups)
    columns = {
        "group": torch.arange(groups),
        "shared": _mean_over_places(pushes, group_ids, shared),
        "every": _mean_over_places(pushes, group_ids, common),
        "permuted": torch.stack(permuted).mean(0),
        "places": shared.sum(1),
        "silent": idle / group_sum(mask.double().sum(1), index, groups),
    }
    return pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})


def drift_of(policy, rollouts: Rollouts, path: dict[int, Scores]) -> pd.DataFrame:
    """Tabulate how far the policy had moved at each reuse, a row each, beside what the unit's rollouts are like.

    Columns reuse; drift, shared_drift and sequence_drift: root mean square log-ratio (nats) of all tokens, of
    position-shared ones, and of rollouts' means; outside: share of ratios outside 1 +- 0.2; mismatch and
    sequence_mismatch: root mean square difference (nats) to the sampler's log-probability, by token and by rollout;
    truncated and shared: shares of rollouts and tokens; length and length_sd: tokens; reward; groups.
    """
    mask, start = rollouts.completion_mask.bool(), path[min(path)][0]
    same = shared_places(rollouts.completion_ids, mask, rollouts.group_ids)
    lengths, off = mask.sum(1), (start - rollouts.old_logps) * mask
    last = rollouts.completion_ids.gather(1, lengths[:, None] - 1).squeeze(1)
    unit = {
        "mismatch": _rms(off[mask]),
        "sequence_mismatch": _rms(off.sum(1)),
        "truncated": float((~torch.isin(last, last.new_tensor(end_tokens(policy)))).double().mean()),
        "length": float(lengths.double().mean()),
        "length_sd": float(lengths.double().std()),
        "shared": float(same.sum() / mask.sum()),
        "reward": float(rollouts.rewards.double().mean()),
        "groups": len(rollouts.group_ids.unique()),
    }
    rows = []
    for reuse, (now, _) in path.items():
        moved = (now - start) * mask
        row = {"drift": _rms(moved[mask]), "shared_drift": _rms(moved[same])}
        row["sequence_drift"] = _rms(moved.sum(1) / lengths)
        row["outside"] = float(((moved[mask].exp() - 1).abs() > 0.2).double().mean())
        rows.append({"reuse": reuse} | row | unit)
    return pd.DataFrame(rows)


def _changed(rollouts: Rollouts, pushes: Tensor, base: Tensor) -> Float[Tensor, " groups"]:
    """Share of each group's tokens whose push differs from the base's."""
    mask, index = rollouts.completion_mask.bool(), group_index(rollouts.group_ids, len(rollouts))
    differs = ((pushes - base).abs() > CHANGED * base.abs()) & mask
    return group_sum(differs.double().sum(1), *index) / group_sum(mask.double().sum(1), *index)


def _mean_over_places(pushes: Tensor, group_ids: Tensor, places: Bool[Tensor, "groups T"]) -> Float[Tensor, " groups"]:
    """Residual of each group, averaged over those of its places at which any rollout pushes; NaN without any."""
    pushing = places & (group_extreme(pushes.abs(), *group_index(group_ids, len(pushes)), "amax") > 0)
    residual = cancellation_residual(pushes, torch.ones_like(pushes), group_ids)  # (groups, T)
    return (residual * pushing).sum(1) / pushing.sum(1)


def _rms(values: Tensor) -> float:
    return float(values.double().square().mean().sqrt())


def _compact(table: pd.DataFrame) -> pd.DataFrame:
    numbers = table.select_dtypes("float64").columns
    return table.astype(dict.fromkeys(numbers, "float32") | {"group": "int16", "places": "int16", "reuse": "int8"})
