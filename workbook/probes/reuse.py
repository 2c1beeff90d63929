"""Reuse of one batch: its ratios over epochs, and what objectives then leave on shared tokens.

After a first optimizer step a batch is off-policy: its ratios leave 1, and an objective weighs each
rollout by them. Rollouts of one prompt have advantages that add up to 0, so a token that all of
them share is pushed up as much as down, as long as their weights are equal. Unequal weights leave a
part of that push, the *residual*:

    |sum_i w_i A_i| / sum_i |w_i A_i|        over a group, at one shared place; 0 cancels, 1 adds up

Three steps measure it: `reuse_path` takes the epochs, `token_weights` gives the weights that an
objective then has, `left_on_shared` the residual of them.
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
from workbook.rollouts.scoring import in_batches
from workbook.theory.advantages import group_extreme, group_index, group_sum, shared_places
from workbook.theory.choices import CLIPPINGS, TRANSFORMS
from workbook.theory.weights import cancellation_residual, objective_weights
from workbook.training.optimizers import optimizer_of

EQUAL_WEIGHTS = "equal weights"  # the name of an objective that weighs all rollouts the same


@in_batches
def reuse_path(
    policy,
    rollouts: Rollouts,
    times: int = 8,
    lr: float = 5e-4,
    optimizer: str = "adamw",
    minibatches: int = 2,
) -> Float[Tensor, "times1 B T"]:
    """Log-probabilities of a batch before and after each epoch on it, in nats.

    An epoch: one optimizer step is taken on each of `minibatches` parts, whole groups in order, all
    ratios taken as 1. A copy takes the steps; the policy stays as it was.

    times: epochs.  Raises ValueError if the groups can't be divided so, or a part pushes nothing.
    """
    groups = rollouts.group_ids.unique()
    if minibatches < 1 or len(groups) % minibatches:
        raise InvalidValue(
            "minibatches", minibatches, f"a divisor of the {len(groups)} groups of these rollouts"
        )
    # whole groups in each part, so that their advantages still add up to 0
    parts = [
        rollouts.select(torch.isin(rollouts.group_ids, groups_of_part))
        for groups_of_part in groups.split(len(groups) // minibatches)
    ]

    mine = private_copy(policy)
    # one optimizer over all epochs: its moments go on
    stepper = optimizer_of(mine, optimizer, lr)
    path = [logps(mine, rollouts)]
    for _ in progress(range(times), "epochs on the batch"):
        for part in parts:
            update(mine, part, stepper)
        path.append(logps(mine, rollouts))
    return torch.stack(path)


def token_weights(
    rollouts: Rollouts,
    now: Float[Tensor, "B T"],
    level: str = "token",
    clipping: str = "asymmetric",
    epsilon: float = 0.2,
    transform: str = "none",
) -> Float[Tensor, "B T"]:
    """Weight of each token of the rollouts under an objective, before the loss's normalizer.

    The weights are those of `theory.weights.objective_weights`, as CancellationTrainer gives
    them.

    now: log-probabilities of the policy that is being trained; the rollouts' own are those of the
    policy that sampled.  level, clipping, epsilon: as in `surrogate_weights`; clipping "none"
    leaves ratios free.  transform: "none" or one of TRANSFORMS; it sees ratios held inside the clip
    range, by either clipping.  Shapes (B, T).
    """
    require_one_of("clipping", clipping, ("none", *CLIPPINGS))
    require_one_of("transform", transform, ("none", *TRANSFORMS))
    return objective_weights(
        now,
        rollouts.old_logps,
        rollouts.completion_mask.bool(),
        rollouts.advantages,
        rollouts.group_ids,
        level,
        clip=None if clipping == "none" else (epsilon, epsilon),
        clipping="symmetric" if clipping == "symmetric" else "asymmetric",
        transform=None if transform == "none" else transform,
    )


def position_shared_tokens(rollouts: Rollouts) -> pd.DataFrame:
    """The token table with a column shared: all of the group has this token at this position."""
    shared = shared_places(rollouts.completion_ids, rollouts.completion_mask, rollouts.group_ids)
    alive = rollouts.completion_mask.bool()
    return rollouts.token_table().assign(shared=shared[alive].cpu().numpy())


def left_on_shared(rollouts: Rollouts, weights: Float[Tensor, "B T"]) -> pd.DataFrame:
    """Residual that an objective leaves, by group: a row for each group whose rewards differ.

    Columns: group; residual, |sum w A| / sum |w A| at a shared place, averaged over the group's
    shared places (0 cancels, 1 adds up); silent, the share of shared tokens with weight 0; own, the
    size of the group's pushes |w A| on the tokens it does not share, relative to weights of 1.
    """
    mask = rollouts.completion_mask.bool()
    advantages = rollouts.advantages[:, None]
    index = group_index(rollouts.group_ids, len(rollouts))
    shared = shared_places(rollouts.completion_ids, rollouts.completion_mask, rollouts.group_ids)
    specific = mask & ~shared

    def total(values: Tensor) -> Tensor:
        """Sum over each group's tokens, (groups,)."""
        return group_sum(values.double().sum(1), *index)

    # (groups, T), 1 at the group's shared places
    places = group_extreme(shared.long(), *index, "amax")
    residual = cancellation_residual(
        weights, rollouts.advantages, rollouts.group_ids
    )  # (groups, T)
    pushed_at_weight_1 = total(advantages.abs() * specific)
    columns = {
        "group": rollouts.group_ids.unique(),
        "residual": (residual * places).sum(1) / places.sum(1),
        "silent": total((weights == 0) & shared) / total(shared),
        "own": total((weights * advantages).abs() * specific) / pushed_at_weight_1,
    }
    table = pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})
    # a group of equal rewards pushes nothing, one without a shared place has no residual
    measured = (pushed_at_weight_1 > 0) & (places.sum(1) > 0)
    return table[measured.cpu().numpy()].reset_index(drop=True)
