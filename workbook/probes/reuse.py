"""Reuse of one batch: its ratios over epochs, and what objectives then leave on shared tokens.

After a first optimizer step a batch is off-policy: its ratios leave 1, and an objective weighs each
rollout by them. Unequal weights in a group leave a part of the push on tokens that all of the group
share; equal ones cancel it.
"""

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbook.messages import InvalidValue, progress, require_one_of
from workbook.policies.models import private_copy
from workbook.probes.step import update
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts
from workbook.theory import weights as token_weights
from workbook.theory.advantages import group_extreme, group_index, group_sum, shared_places
from workbook.theory.choices import CLIPPINGS as BOUNDED
from workbook.theory.choices import TRANSFORMS
from workbook.theory.weights import cancellation_residual
from workbook.training.optimizers import optimizer_of

CLIPPINGS = ("none", *BOUNDED)
EQUAL = "equal weights"  # the name of an objective that weighs all rollouts the same


def reuse_path(
    policy,
    rollouts: Rollouts,
    times: int = 8,
    lr: float = 5e-4,
    optimizer: str = "adamw",
    minibatches: int = 2,
) -> Float[Tensor, "times1 B T"]:
    """Log-probabilities of a batch before and after each epoch on it, in nats; the policy stays as
    it was.

    An epoch: one optimizer step is taken on each of `minibatches` parts, whole groups in order, all
    ratios taken as 1.

    Raises ValueError if the groups can't be divided so, or a part pushes nothing.
    """
    groups = rollouts.group_ids.unique()
    if minibatches < 1 or len(groups) % minibatches:
        raise InvalidValue(
            "minibatches", minibatches, f"a divisor of the {len(groups)} groups of these rollouts"
        )
    halves = groups.split(len(groups) // minibatches)
    parts = [rollouts.select(torch.isin(rollouts.group_ids, chosen)) for chosen in halves]
    mine = private_copy(policy)
    stepper, path = optimizer_of(mine, optimizer, lr), [logps(mine, rollouts)]
    for _ in progress(range(times), "epochs on the batch"):
        for part in parts:
            update(mine, part, stepper)
        path.append(logps(mine, rollouts))
    return torch.stack(path)


def objective_weights(
    rollouts: Rollouts,
    now: Float[Tensor, "B T"],
    level: str = "token",
    clipping: str = "asymmetric",
    epsilon: float = 0.2,
    transform: str = "none",
) -> Float[Tensor, "B T"]:
    """The weight of each token under an objective, as CancellationTrainer gives it, before the
    loss's normalizer.

    now: log-probabilities of the policy that is being trained; the rollouts' own are those of the
    policy that sampled. level, clipping, epsilon: as in `surrogate_weights`; clipping "none" leaves
    ratios free.  transform: "none" or one of TRANSFORMS; it sees ratios held inside the clip range,
    by either clipping.  Shapes (B, T).
    """
    require_one_of("clipping", clipping, CLIPPINGS)
    require_one_of("transform", transform, ("none", *TRANSFORMS))
    batch = (
        now,
        rollouts.old_logps,
        rollouts.completion_mask.bool(),
        rollouts.advantages,
        rollouts.group_ids,
    )
    return token_weights.objective_weights(
        *batch,
        level,
        clip=None if clipping == "none" else (epsilon, epsilon),
        clipping="symmetric" if clipping == "symmetric" else "asymmetric",
        transform=None if transform == "none" else transform,
    )


def shared_tokens(rollouts: Rollouts) -> pd.DataFrame:
    """The token table with a column shared: whether all of the group has this token at this
    position.
    """
    shared = shared_places(rollouts.completion_ids, rollouts.completion_mask, rollouts.group_ids)
    return rollouts.token_table().assign(
        shared=shared[rollouts.completion_mask.bool()].cpu().numpy()
    )


def left_on_shared(rollouts: Rollouts, weights: Float[Tensor, "B T"]) -> pd.DataFrame:
    """Residual that an objective leaves, by group: a row for each group whose rewards differ.

    Columns: group; residual, |sum w A| / sum |w A| at a shared place, averaged over the group's
    shared places (0 cancels, 1 adds up); silent, the share of shared tokens with weight 0; own, the
    size of the group's pushes |w A| on the tokens it does not share, relative to weights of 1.
    """
    mask, advantages = rollouts.completion_mask.bool(), rollouts.advantages[:, None]
    shared = shared_places(rollouts.completion_ids, rollouts.completion_mask, rollouts.group_ids)
    own, index = mask & ~shared, group_index(rollouts.group_ids, len(rollouts))
    places = group_extreme(shared.long(), *index, "amax")  # (groups, T)
    residual = (
        cancellation_residual(weights, rollouts.advantages, rollouts.group_ids) * places
    ).sum(1)

    def total(values: Tensor) -> Tensor:
        return group_sum(values.double().sum(1), *index)

    usual = total(advantages.abs() * own)
    columns = {
        "group": rollouts.group_ids.unique(),
        "residual": residual / places.sum(1),
        "silent": total((weights == 0) & shared) / total(shared),
        "own": total((weights * advantages).abs() * own) / usual,
    }
    table = pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
    return table[((usual > 0) & (places.sum(1) > 0)).cpu().numpy()].reset_index(drop=True)
