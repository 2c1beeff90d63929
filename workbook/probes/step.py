"""A measured step, the building block of every probe: real updates of a copy of a policy.

What a push on one token does to the others follows from the weights that they share. It can be
computed to first order, or be seen: copy the policy, let an optimizer take the step, and score the
same tokens before and after. The policy itself never changes.

    mine = private_copy(policy)
    update(mine, rollouts, optimizer="sgd", lr=0.1)
    change = logps(mine, rollouts) - logps(policy, rollouts)

The update is the objective of `workbook.theory.weights`,

    J = sum_it w_it A_it log pi_it,        w detached,

so that one step on fresh rollouts is GRPO's, and further steps on the same rollouts are PPO's with
its ratios and clipping.

Letters: B rollouts, T completion tokens, N tokens within the mask.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbook.messages import InvalidValue, progress, require_one_of
from workbook.policies.models import private_copy, reading
from workbook.rollouts.likelihood import in_passes, logps, passes, scores
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.rollouts.scoring import in_batches
from workbook.rollouts.states import output_states
from workbook.theory.advantages import permute_in_groups
from workbook.theory.weights import update_weights
from workbook.training.optimizers import optimizer_of, trained_weights

ONE_STEP_OPTIMIZERS = ("sgd", "adamw")  # momentum makes no difference to one step
# nats: root mean square change of log-probability to which studies match one step
STEP_NATS = 0.1
MOVED = 0.1  # of a step's root mean square change, beyond which a token counts as moved
SIGN_SOURCES = ("by reward", "permuted")  # whose signs push


def require_pushes(rollouts: Rollouts, pushing: Bool[Tensor, "B T"] | None = None) -> None:
    """Raise InvalidValue unless some rollout has an advantage, or some of these tokens pushes."""
    if not (rollouts.advantages if pushing is None else pushing).any():
        raise InvalidValue(
            "rollouts",
            rollouts,
            "groups with different rewards",
            "rollouts push nothing, all advantages are 0: take groups with different rewards.",
        )


def on_policy_pushes(rollouts: Rollouts, aggregate: str = "dr_grpo") -> Float[Tensor, "B T"]:
    """Weight times advantage of every token in a step on fresh rollouts, 0 outside the mask.

    On fresh rollouts all ratios are 1, so that the weights are those of `aggregate` alone.
    """
    alive = rollouts.completion_mask.bool()
    zero_logps = torch.zeros_like(rollouts.old_logps)  # exp(0 - 0) = 1
    weights = update_weights(
        zero_logps, zero_logps, alive, rollouts.advantages, aggregate=aggregate
    )
    # advantages are (B,), or (B, T) where a rule gives each token its own
    pushes = weights * rollouts.advantages.view(len(rollouts), -1)
    return pushes.masked_fill(~alive, 0.0)


# --- steps in the weights


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
    on_scored: Callable[[Tensor, Tensor], None] | None = None,
) -> Float[Tensor, " steps"]:
    """Take real optimizer steps on the rollouts, in eval mode; returns each gradient's norm.

    The given policy moves: take `private_copy` of one that shall stay.
    optimizer: one of OPTIMIZERS, or one that goes on from earlier steps (lr and parameters are then
    its own).
    chosen: (B, T), the tokens that push; None: all of them. The normalizer does not depend on it,
    so that a choice takes pushes away and leaves the rest as they were.
    parameters: names of the weights to train, by default all that require gradients.
    aggregate, clip: as in `update_weights`; ratios are to the log-probabilities at the first step.
    on_scored: called with (rows, their log-probabilities) at the first step, for the rollouts that
    push.

    Raises ValueError for an unknown optimizer and for rollouts whose advantages are all 0, which
    push nothing.
    """
    if isinstance(optimizer, str):
        optimizer = optimizer_of(policy, optimizer, lr, parameters)
    require_pushes(rollouts)
    policy = reading(policy)
    rollouts = rollouts.to(policy.model.device)
    trained = [p for group in optimizer.param_groups for p in group["params"]]

    alive = rollouts.completion_mask.bool()
    pushing = alive if chosen is None else alive & chosen.to(alive.device)  # (B, T)
    advantages = rollouts.advantages.view(len(rollouts), -1)  # (B, 1) or (B, T)
    # step 0: now == old, so any values give ratio 1, and a single step needs no pass for them
    old = logps(policy, rollouts) if steps > 1 else torch.zeros_like(rollouts.old_logps)
    norms = []
    with torch.enable_grad():
        for step in range(steps):
            now = old if step == 0 else logps(policy, rollouts)
            weights = update_weights(
                now, old, alive, rollouts.advantages, clip=clip, aggregate=aggregate
            )
            pushes = (weights * advantages).masked_fill(~pushing, 0.0)  # (B, T)

            # rollouts without a push would add zeros to the gradient
            has_push = pushes.any(1)
            if not has_push.any():
                # one of them gives the gradient of 0 that the optimizer needs
                has_push[0] = True
            optimizer.zero_grad(set_to_none=True)
            parts = passes(policy, rollouts, has_push.nonzero().squeeze(1))
            for rows in in_passes(parts, f"update, step {step + 1} of {steps}"):
                scored = scores(policy.model, rollouts.select(rows))
                loss = -(pushes[rows] * scored).sum()
                loss.backward()
                if on_scored is not None and step == 0:
                    on_scored(rows, scored.detach())

            gradients = [p.grad for p in trained if p.grad is not None]
            if not gradients:
                raise RuntimeError(
                    "No gradient reached a trained weight; is the policy's head or adapter cut off?"
                )
            norms.append(torch.stack([gradient.norm() for gradient in gradients]).norm())
            optimizer.step()
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
    """Change of each completion token's log-probability (nats) by `update`, which moves the policy.

    The first step already scores the pushing rollouts, saving one pass. Afterwards the same rows
    are scored together, so that what did not move has changed by exactly 0.
    """
    rollouts = rollouts.to(policy.model.device)
    pushing = rollouts.completion_mask.bool() if chosen is None else chosen
    has_advantage = (rollouts.advantages != 0).view(len(rollouts), -1)
    idle = ~(pushing.to(has_advantage.device) & has_advantage).any(1)
    # (rows, their log-probabilities before): of the idle rollouts here, of the others by the step
    before = [
        (rows, logps(policy, rollouts.select(rows)))
        for rows in passes(policy, rollouts, idle.nonzero().squeeze(1))
    ]

    def remember(rows: Tensor, scored: Tensor) -> None:
        before.append((rows, scored))

    update(policy, rollouts, optimizer, lr, chosen=chosen, on_scored=remember, **settings)

    change = before[-1][1].new_zeros(rollouts.completion_ids.shape)
    for rows, old in progress(before, "scoring"):
        now = logps(policy, rollouts.select(rows), batch_size=len(rows))
        change[rows] = now - old
    return change


class ScaledStep:
    """One step of an optimizer, to be applied in any length.

    A first step of every optimizer here is proportional to lr, so that one backward pass stands for
    the steps at all learning rates.
    """

    def __init__(
        self, policy, rollouts: Rollouts, optimizer: str, lr: float, parameters=None, **settings
    ):
        self.policy = private_copy(policy)
        self.weights = trained_weights(self.policy, parameters).values()
        self.start = [p.detach().clone() for p in self.weights]
        update(self.policy, rollouts, optimizer, lr, parameters=parameters, **settings)
        # the step is kept as a direction in the weights
        self.change = [
            p.detach() - start for p, start in zip(self.weights, self.start, strict=True)
        ]

    def apply(self, scale: float):
        """The policy after the step times `scale`, from where it started."""
        for p, start, change in zip(self.weights, self.start, self.change, strict=True):
            p.detach().copy_(start + scale * change)
        return self.policy


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
    """The learning rate at which one step on the rollouts moves their tokens by `target` nats.

    Movement is the root mean square change of log-probability. Optimizers differ in size before
    they differ in kind; at equal movement they differ in kind alone.
    One step is taken at `start`; its change of the weights is then scaled until movement is within
    `tolerance` (relative).  settings: more of `update`.

    Raises ValueError for a target that is not above 0, or that no scale within 20 tries reaches.
    """
    if not target > 0:
        raise InvalidValue("target", target, "above 0 nats")
    step = ScaledStep(policy, rollouts, optimizer, start, **settings)
    alive = rollouts.completion_mask.bool()
    before = logps(policy, rollouts)  # (B, T)

    # movement need not grow as the scale does: bracket it between too small and too large
    scale = 1.0
    too_small = 0.0
    too_large = float("inf")
    for _ in range(20):
        moved = (logps(step.apply(scale), rollouts) - before)[alive.to(before.device)]
        size = float(moved.pow(2).mean().sqrt())
        if abs(size / target - 1) < tolerance:
            return start * scale
        if size < target:
            too_small = scale
        else:
            too_large = scale

        # in proportion, by at most a factor of 100
        factor = target / size if size > 0 else 1e2
        scale *= min(max(factor, 1e-2), 1e2)
        if not too_small < scale < too_large:
            scale = (too_small * too_large) ** 0.5 if too_small else too_large / 10
    raise InvalidValue(
        "target",
        target,
        f"smaller: no learning rate of {optimizer} moves these tokens by so many nats",
    )


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
    # one optimizer for all steps, so that its momentum goes on
    mine = private_copy(policy)
    stepper = optimizer_of(mine, optimizer, lr, settings.get("parameters"))
    for step in progress(range(steps + 1), "training"):
        batch = rows.select(range(step * prompts, (step + 1) * prompts))
        rollouts = sample_rollouts(mine, task, batch, group_size, seed + step, max_new_tokens)
        if step % every == 0 or step == steps:
            yield step, mine, rollouts
        if step < steps and rollouts.advantages.any():
            update(mine, rollouts, stepper, **settings)


# --- a step of the output layer alone


@in_batches
def output_layer_step(
    policy,
    rollouts: Rollouts,
    lr: float,
    chosen: Bool[Tensor, "B T"] | None = None,
    aggregate: str = "dr_grpo",
) -> Float[Tensor, " N"]:
    """Change of each token's log-probability (nats) by SGD's first step on the output layer alone.

    In closed form (see `predicted_delta_logp`), which is also the step of a head that is tied to
    the embeddings if the embeddings could stay where they are.  chosen, aggregate: as in `update`.
    N tokens in the order of the token table.
    """
    pushes = on_policy_pushes(rollouts, aggregate)
    if chosen is not None:
        pushes = pushes.masked_fill(~chosen.to(pushes.device), 0.0)
    # only the last layer moves: what goes into it stays as it is
    states = output_states(policy, rollouts)
    alive = rollouts.completion_mask.bool()
    return states.predicted(pushes[alive].to(states.hidden.device), lr)


# --- which rollouts and signs push


def pushing_prompts(rollouts: Rollouts, prompts: int) -> Rollouts:
    """The rollouts of the first prompts that push, so many at most; ValueError where none does."""
    pushing = rollouts.group_ids[rollouts.advantages != 0].unique()[:prompts]
    if not len(pushing):
        raise ValueError(
            "No prompt has different rewards; take more rollouts per prompt, or another seed."
        )
    return rollouts.select(torch.isin(rollouts.group_ids, pushing))


def permuted_advantages(rollouts: Rollouts, seed: int = 0) -> Rollouts:
    """The rollouts with advantages permuted within each group.

    Frequencies are as they were, and rewards mean nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    permuted = permute_in_groups(rollouts.advantages, rollouts.group_ids, generator)
    return replace(rollouts, advantages=permuted)


def with_signs(rollouts: Rollouts, signs: str, seed: int = 0) -> Rollouts:
    """The rollouts with advantages by their reward, or permuted within each group."""
    require_one_of("signs", signs, SIGN_SOURCES)
    return permuted_advantages(rollouts, seed) if signs == "permuted" else rollouts


def frequency_matched(table: pd.DataFrame, seed: int = 0, by: str = "token_id") -> pd.DataFrame:
    """The control R1: each token occurs equally often on both sides of its prompt.

    Rows of the more frequent side are dropped at random, and rollouts of advantage 0 altogether.
    Order and columns stay.
    """
    pushing = table[table["advantage"] != 0]
    shuffled = pushing.sample(frac=1, random_state=seed)
    word = [shuffled["group"], shuffled[by]]
    positive = shuffled["advantage"] > 0
    negative = shuffled["advantage"] < 0

    # of each word, as many on either side as the side with fewer has
    quota = np.minimum(
        positive.groupby(word).transform("sum"), negative.groupby(word).transform("sum")
    )
    place = shuffled.groupby([*word, positive]).cumcount()
    return shuffled[(place < quota).to_numpy()].sort_index()
