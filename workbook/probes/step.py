"""A measured step: real updates of a copy of a policy, which every probe is made of. The policy
itself never changes.

    mine = private_copy(policy)
    update(mine, rollouts, optimizer="sgd", lr=0.1)
    change = logps(mine, rollouts) - logps(policy, rollouts)

The update is the objective of `workbook.theory.weights`: J = sum_it w_it A_it log pi_it with w
detached, so that one step on fresh rollouts is GRPO's, and further steps on the same rollouts are
PPO's with its ratios and clipping.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbook.messages import InvalidValue, progress, require_one_of
from workbook.policies.models import private_copy, reading
from workbook.rollouts.credit import output_states
from workbook.rollouts.likelihood import in_passes, logps, passes, scores
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.rollouts.scoring import in_batches
from workbook.theory.advantages import permute_in_groups
from workbook.theory.weights import update_weights
from workbook.training.optimizers import optimizer_of, trained_weights

ONE_STEP_OPTIMIZERS = ("sgd", "adamw")  # momentum makes no difference to one step
# root mean square change of log-probability to which the studies match the learning rate of one
# step
STEP_NATS = 0.1
MOVED = 0.1  # of a step's root mean square change, beyond which a token counts as moved
ADVANTAGES = ("by reward", "permuted")  # whose signs push


def require_pushes(rollouts: Rollouts) -> None:
    """Raise InvalidValue unless some rollout has an advantage."""
    if not rollouts.advantages.any():
        raise InvalidValue(
            "rollouts",
            rollouts,
            "groups with different rewards",
            "rollouts push nothing, all advantages are 0: take groups with different rewards.",
        )


@in_batches
def update(
    policy,
    rollouts: Rollouts,
    optimizer: str | torch.optim.Optimizer = "adamw",
    lr: float = 1e-3,
    steps: int = 1,
    chosen: Bool[Tensor, "B T"] | None = None,
    parameters: Sequence[str] | None = None,
    aggregate: str = "dr_grpo",
    clip: tuple[float, float] | None = (0.2, 0.2),
    seen: Callable[[Tensor, Tensor], None] | None = None,
) -> Float[Tensor, " steps"]:
    """Take real optimizer steps on the rollouts, in eval mode; returns the gradient's norm at each
    step.

    The policy given is the one that moves: take `private_copy` of one that shall stay.
    optimizer: one of OPTIMIZERS, or one that goes on from earlier steps (lr and parameters are then
    its own).
    chosen: (B, T), the tokens that push; None: all of them. The normalizer does not depend on it,
    so that a choice takes pushes away and leaves the rest as they were.
    parameters: names of the weights to train, by default all that require gradients.
    aggregate, clip: as in `update_weights`; ratios are to the log-probabilities at the first step.
    seen: called with (rows, their log-probabilities) at the first step, for the rollouts that push.

    Raises ValueError for an unknown optimizer and for rollouts whose advantages are all 0, which
    push nothing.
    """
    stepper = (
        optimizer_of(policy, optimizer, lr, parameters) if isinstance(optimizer, str) else optimizer
    )
    require_pushes(rollouts)
    policy = reading(policy)
    model, rollouts = policy.model, rollouts.to(policy.model.device)
    trained = [p for group in stepper.param_groups for p in group["params"]]
    # of ratios 1
    old = logps(policy, rollouts) if steps > 1 else torch.zeros_like(rollouts.old_logps)
    alive = rollouts.completion_mask.bool()
    pushing = alive if chosen is None else alive & chosen.to(alive.device)
    norms = []
    with torch.enable_grad():
        for step in range(steps):
            now = old if step == 0 else logps(policy, rollouts)
            weights = update_weights(
                now, old, alive, rollouts.advantages, clip=clip, aggregate=aggregate
            )
            advantages = (
                rollouts.advantages
                if rollouts.advantages.dim() == 2
                else rollouts.advantages[:, None]
            )
            pushes = (weights * advantages).masked_fill(~pushing, 0.0)
            stepper.zero_grad(set_to_none=True)
            pushed = pushes.any(1)  # the other rollouts would add zeros
            pushed[0] |= not pushed.any()
            parts = passes(policy, rollouts, pushed.nonzero().squeeze(1))
            for rows in in_passes(parts, f"update, step {step + 1} of {steps}"):
                scored = scores(model, rollouts.select(rows))
                (-(pushes[rows] * scored).sum()).backward()
                if seen is not None and step == 0:
                    seen(rows, scored.detach())
            if all(p.grad is None for p in trained):
                raise RuntimeError(
                    "No gradient reached a trained weight; is the policy's head or adapter cut off?"
                )
            norms.append(torch.stack([p.grad.norm() for p in trained if p.grad is not None]).norm())
            stepper.step()
    return torch.stack(norms)


@in_batches
def logp_change(
    policy,
    rollouts: Rollouts,
    optimizer: str | torch.optim.Optimizer = "adamw",
    lr: float = 1e-3,
    chosen: Bool[Tensor, "B T"] | None = None,
    **settings,
) -> Float[Tensor, "B T"]:
    """Change of every completion token's log-probability (nats) by `update`'s steps, which this
    policy takes.

    Rollouts that push need no scoring before: the first step's own pass has their
    log-probabilities. Afterwards the same rows are scored together, so that what did not move has
    changed by exactly 0.
    """
    rollouts = rollouts.to(policy.model.device)
    pushing = (
        rollouts.completion_mask.bool()
        if chosen is None
        else chosen.to(rollouts.completion_mask.device)
    )
    idle = ~(pushing & (rollouts.advantages != 0).view(len(rollouts), -1)).any(1)
    parts = passes(policy, rollouts, idle.nonzero().squeeze(1))
    scored = [(rows, logps(policy, rollouts.select(rows))) for rows in parts]
    update(
        policy,
        rollouts,
        optimizer,
        lr,
        chosen=chosen,
        seen=lambda *part: scored.append(part),
        **settings,
    )
    moved = scored[-1][1].new_zeros(rollouts.completion_ids.shape)
    for rows, before in progress(scored, "scoring"):
        moved[rows] = logps(policy, rollouts.select(rows), batch_size=len(rows)) - before
    return moved


@in_batches
def matched_lr(
    policy,
    rollouts: Rollouts,
    optimizer: str,
    target: float = 0.1,
    start: float = 1e-3,
    tolerance: float = 0.05,
    **settings,
) -> float:
    """The learning rate at which one step on the rollouts moves their tokens by `target` nats (root
    mean square).

    Optimizers differ in size before they differ in kind; at equal movement only the kind is left.
    One step is taken at `start`; its change of the weights is then scaled until movement is within
    `tolerance` (relative), since a first step of every optimizer here is proportional to
    lr.  settings: more of `update`.

    Raises ValueError for a target that is not above 0, or that no scale within 20 tries reaches.
    """
    if not target > 0:
        raise InvalidValue("target", target, "above 0 nats")
    step = ScaledStep(policy, rollouts, optimizer, start, **settings)
    before, alive = logps(policy, rollouts), rollouts.completion_mask.bool()
    # too small, too large: movement need not grow as lr does
    scale, low, high = 1.0, 0.0, float("inf")
    for _ in range(20):
        moved = (logps(step.taken(scale), rollouts) - before)[alive.to(before.device)]
        size = float(moved.pow(2).mean().sqrt())
        if abs(size / target - 1) < tolerance:
            return start * scale
        low, high = (scale, high) if size < target else (low, scale)
        scale *= min(max(target / size, 1e-2), 1e2) if size > 0 else 1e2
        if not low < scale < high:
            scale = (low * high) ** 0.5 if low else high / 10
    raise InvalidValue(
        "target",
        target,
        f"smaller: no learning rate of {optimizer} moves these tokens by so many nats",
    )


class ScaledStep:
    """One step of an optimizer, to be taken in any length."""

    def __init__(
        self, policy, rollouts: Rollouts, optimizer: str, lr: float, parameters=None, **settings
    ):
        self.policy = private_copy(policy)
        self.weights = trained_weights(self.policy, parameters).values()
        self.start = [p.detach().clone() for p in self.weights]
        update(self.policy, rollouts, optimizer, lr, parameters=parameters, **settings)
        self.change = [
            p.detach() - start for p, start in zip(self.weights, self.start, strict=True)
        ]

    def taken(self, scale: float):
        """The policy after so many times the step."""
        for p, start, change in zip(self.weights, self.start, self.change, strict=True):
            p.detach().copy_(start + scale * change)
        return self.policy


def along_training(
    policy,
    task,
    steps: int,
    prompts: int,
    group_size: int,
    lr: float,
    optimizer: str = "adamw",
    every: int = 1,
    seed: int = 0,
    max_new_tokens: int = 64,
    **settings,
) -> Iterator[tuple[int, object, Rollouts]]:
    """Yield (step, a copy that learns, fresh rollouts) before step 0, every, ... and at the end.

    The loop of `training.loop`, open for what is measured along it. Each step samples new rollouts,
    takes one optimizer step on them by `update` and forgets them; on the same rollouts that is the
    step of `training.loop.take_step`. The rollouts that are yielded are those of the step that
    follows.  settings: more of `update`.
    """
    rows = task.dataset(prompts * (steps + 1), seed)
    mine = private_copy(policy)
    stepper = optimizer_of(mine, optimizer, lr, settings.get("parameters"))
    for step in progress(range(steps + 1), "training"):
        batch = rows.select(range(step * prompts, (step + 1) * prompts))
        rollouts = sample_rollouts(mine, task, batch, group_size, seed + step, max_new_tokens)
        if step % every == 0 or step == steps:
            yield step, mine, rollouts
        if step < steps and rollouts.advantages.any():
            update(mine, rollouts, stepper, **settings)


@in_batches
def output_layer_step(
    policy,
    rollouts: Rollouts,
    lr: float,
    chosen: Bool[Tensor, "B T"] | None = None,
    aggregate: str = "dr_grpo",
) -> Float[Tensor, " N"]:
    """Change of each token's log-probability (nats) if SGD takes `update`'s first step on the
    output layer alone.

    In closed form (see `predicted_delta_logp`), which is also the step of a head that is tied to
    the embeddings if the embeddings could stay where they are.  N tokens in the order of the token
    table.
    """
    alive = rollouts.completion_mask.bool()
    weights = update_weights(
        rollouts.old_logps, rollouts.old_logps, alive, rollouts.advantages, aggregate=aggregate
    )
    pushes = weights * rollouts.advantages.view(len(rollouts), -1)
    if chosen is not None:
        pushes = pushes.masked_fill(~chosen.to(pushes.device), 0.0)
    states = output_states(policy, rollouts)
    return states.predicted(pushes[alive].to(states.hidden.device), lr)


def pushing_prompts(rollouts: Rollouts, prompts: int) -> Rollouts:
    """The rollouts of the first prompts that push, so many at most; ValueError where none does."""
    pushing = rollouts.group_ids[rollouts.advantages != 0].unique()[:prompts]
    if not len(pushing):
        raise ValueError(
            "No prompt has different rewards; take more rollouts per prompt, or another seed."
        )
    return rollouts.select(torch.isin(rollouts.group_ids, pushing))


def permuted_advantages(rollouts: Rollouts, seed: int = 0) -> Rollouts:
    """The rollouts with advantages permuted within each group: frequencies as they were, rewards
    without meaning.
    """
    generator = torch.Generator().manual_seed(seed)
    return replace(
        rollouts, advantages=permute_in_groups(rollouts.advantages, rollouts.group_ids, generator)
    )


def with_signs(rollouts: Rollouts, signs: str, seed: int = 0) -> Rollouts:
    """The rollouts with advantages by their reward, or permuted within each group."""
    require_one_of("signs", signs, ADVANTAGES)
    return permuted_advantages(rollouts, seed) if signs == "permuted" else rollouts


def frequency_matched(table: pd.DataFrame, seed: int = 0, by: str = "token_id") -> pd.DataFrame:
    """The control R1: rows dropped at random until each token occurs equally often on both sides of
    its prompt.

    Rollouts of advantage 0 are dropped. Order and columns stay.
    """
    signed = table[table["advantage"] != 0]
    shuffled = signed.sample(frac=1, random_state=seed)
    side = shuffled["advantage"] > 0
    place = shuffled.groupby([shuffled["group"], shuffled[by], side]).cumcount()
    keys = [signed["group"], signed[by]]
    sides = [
        (signed["advantage"] > 0).groupby(keys).sum(),
        (signed["advantage"] < 0).groupby(keys).sum(),
    ]
    quota = pd.MultiIndex.from_arrays([shuffled["group"], shuffled[by]]).map(
        pd.concat(sides, axis=1).min(axis=1)
    )
    return shuffled[place.to_numpy() < quota.to_numpy()].sort_index()
