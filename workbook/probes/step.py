"""The measured and undone step: a real update of a policy inside `untouched`, which every probe is made of.

    with untouched(policy):
        update(policy, rollouts, optimizer="sgd", lr=0.1)
        after = logps(policy, rollouts)
    # here every weight, gradient, mode and random generator is as it was

The update is the objective of `workbook.theory.weights`: J = sum_it w_it A_it log pi_it with w detached, so that one
step on fresh rollouts is GRPO's, and further steps on the same rollouts are PPO's with its ratios and clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbook.policies.restoring import evaluating, gradients, no_gradients, restoring
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.rollouts.scoring import rollout_logps
from workbook.theory.weights import update_weights
from workbook.training.progress import progress

OPTIMIZERS: dict[str, Callable] = {
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr),
    "sgd_momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9),
    "adam": lambda parameters, lr: torch.optim.Adam(parameters, lr),
    "adamw": lambda parameters, lr: torch.optim.AdamW(parameters, lr),
    "adamw_no_momentum": lambda parameters, lr: torch.optim.AdamW(parameters, lr, betas=(0.0, 0.999)),
}
ONE_STEP_OPTIMIZERS = ("sgd", "adamw")  # momentum makes no difference to one step
STEP_NATS = 0.1  # root mean square change of log-probability to which the studies match the learning rate of one step
SCORED_AT_ONCE = 64  # rollouts
FIELDS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")


@restoring
def untouched(policy) -> Iterator[None]:
    """Put a policy back after the block: weights, buffers, gradients and modes are then as before.

    torch's random generators are put back, too. Memory: one copy of what can change, that is of buffers and of
    parameters that require gradients; frozen (quantized) weights are not copied.
    """
    model: nn.Module = policy.model
    trained = [p for p in model.parameters() if p.requires_grad]
    weights = [p.detach().clone() for p in trained]
    flags = [(p, p.requires_grad, p.grad) for p in model.parameters()]
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    values = [(b, b.clone()) for b in model.buffers()]
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.random.fork_rng():
            for p in trained:
                p.grad = None
            yield
    finally:
        for p, weight in zip(trained, weights, strict=True):
            p.detach().copy_(weight)
        for p, required, gradient in flags:
            p.requires_grad_(required)
            p.grad = gradient
        for module, own in buffers:
            module._buffers = own
        for b, value in values:
            b.detach().copy_(value)
        for module, training in modes:
            module.training = training


def logps(policy, rollouts: Rollouts, batch_size: int | None = None) -> Float[Tensor, "B T"]:
    """Log-probability of every completion token under the policy as it is now, in nats, zero outside the mask."""
    rollouts = rollouts.to(policy.model.device)
    with no_gradients(), evaluating(policy.model):
        parts = torch.arange(len(rollouts)).split(batch_size or SCORED_AT_ONCE)
        return torch.cat([_logps(policy.model, rollouts.select(rows)) for rows in progress(parts, "scoring")])


def _logps(model: nn.Module, part: Rollouts) -> Float[Tensor, "b T"]:
    return rollout_logps(model, *(getattr(part, name) for name in FIELDS))


def optimizer_of(policy, name: str, lr: float, parameters: list[nn.Parameter] | None = None) -> torch.optim.Optimizer:
    """An optimizer of OPTIMIZERS over the parameters, by default all that require gradients; ValueError if unknown."""
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name!r} is unknown: choose one of {', '.join(OPTIMIZERS)}.")
    return OPTIMIZERS[name](parameters or [p for p in policy.model.parameters() if p.requires_grad], lr)


def update(
    policy,
    rollouts: Rollouts,
    optimizer: str | torch.optim.Optimizer = "adamw",
    lr: float = 1e-3,
    steps: int = 1,
    chosen: Bool[Tensor, "B T"] | None = None,
    parameters: list[nn.Parameter] | None = None,
    batch_size: int = 32,
    aggregate: str = "dr_grpo",
    clip: tuple[float, float] | None = (0.2, 0.2),
    seen: Callable[[Tensor, Tensor], None] | None = None,
) -> Float[Tensor, " steps"]:
    """Take real optimizer steps on the rollouts, in place, in eval mode; returns the gradient's norm at each step.

    optimizer: one of OPTIMIZERS, or one that goes on from earlier steps (lr and parameters are then its own).
    chosen: (B, T), the tokens that push; None: all of them. The normalizer does not depend on it, so that a choice
    takes pushes away and leaves the rest as they were.
    parameters: what to train, by default all that require gradients.  batch_size: rollouts of one backward pass.
    aggregate, clip: as in `update_weights`; ratios are to the log-probabilities at the first step.
    seen: called with (rows, their log-probabilities) at the first step, for the rollouts that push.

    Raises ValueError for an unknown optimizer and for rollouts whose advantages are all 0, which push nothing.
    """
    stepper = optimizer_of(policy, optimizer, lr, parameters) if isinstance(optimizer, str) else optimizer
    if not rollouts.advantages.any():
        raise ValueError("rollouts push nothing, all advantages are 0: take groups with different rewards.")
    model = policy.model
    rollouts = rollouts.to(model.device)
    trained = [p for group in stepper.param_groups for p in group["params"]]
    old = logps(policy, rollouts, batch_size) if steps > 1 else torch.zeros_like(rollouts.old_logps)  # of ratios 1
    alive = rollouts.completion_mask.bool()
    pushing = alive if chosen is None else alive & chosen.to(alive.device)
    norms = []
    with evaluating(model):
        for step in range(steps):
            now = old if step == 0 else logps(policy, rollouts, batch_size)
            weights = update_weights(now, old, alive, rollouts.advantages, clip=clip, aggregate=aggregate)
            advantages = rollouts.advantages if rollouts.advantages.dim() == 2 else rollouts.advantages[:, None]
            pushes = (weights * advantages).masked_fill(~pushing, 0.0)
            stepper.zero_grad(set_to_none=True)
            pushed = pushes.any(1)  # the other rollouts would add zeros
            pushed[0] |= not pushed.any()
            parts = pushed.nonzero().squeeze(1).split(batch_size)
            for rows in progress(parts, f"update, step {step + 1} of {steps}"):
                scored = _logps(model, rollouts.select(rows))
                (-(pushes[rows] * scored).sum()).backward()
                if seen is not None and step == 0:
                    seen(rows, scored.detach())
            if all(p.grad is None for p in trained):
                raise RuntimeError("No gradient reached a trained weight; is the policy's head or adapter cut off?")
            norms.append(torch.stack([p.grad.norm() for p in trained if p.grad is not None]).norm())
            stepper.step()
    return torch.stack(norms)


def logp_change(
    policy,
    rollouts: Rollouts,
    optimizer: str | torch.optim.Optimizer = "adamw",
    lr: float = 1e-3,
    chosen: Bool[Tensor, "B T"] | None = None,
    batch_size: int = 32,
    **settings,
) -> Float[Tensor, "B T"]:
    """Take `update`'s steps, in place; returns the change of every completion token's log-probability, in nats.

    Rollouts that push need no scoring before: the first step's own pass has their log-probabilities. Afterwards the
    same rows are scored together, so that what did not move has changed by exactly 0.
    """
    rollouts = rollouts.to(policy.model.device)
    pushing = rollouts.completion_mask.bool() if chosen is None else chosen.to(rollouts.completion_mask.device)
    idle = ~(pushing & (rollouts.advantages != 0).view(len(rollouts), -1)).any(1)
    scored = []
    for rows in idle.nonzero().squeeze(1).split(batch_size):
        if len(rows):
            scored.append((rows, logps(policy, rollouts.select(rows))))
    taken = {"chosen": chosen, "batch_size": batch_size, **settings}
    update(policy, rollouts, optimizer, lr, seen=lambda *part: scored.append(part), **taken)
    moved = scored[-1][1].new_zeros(rollouts.completion_ids.shape)
    for rows, before in progress(scored, "scoring"):
        moved[rows] = logps(policy, rollouts.select(rows)) - before
    return moved


def matched_lr(
    policy,
    rollouts: Rollouts,
    optimizer: str,
    target: float = 0.1,
    start: float = 1e-3,
    tolerance: float = 0.05,
    **settings,
) -> float:
    """The learning rate at which one step on the rollouts moves their tokens by `target` nats (root mean square).

    Optimizers differ in size before they differ in kind; at equal movement only the kind is left. One step is
    taken at `start`; its change of the weights is then scaled until movement is within `tolerance` (relative), since
    a first step of every optimizer here is proportional to lr.  settings: more of `update`.

    Raises ValueError for a target that is not above 0, or that no scale within 20 tries reaches.
    """
    if not target > 0:
        raise ValueError(f"target={target!r} must be above 0 nats.")
    trained = settings.get("parameters") or [p for p in policy.model.parameters() if p.requires_grad]
    alive = rollouts.completion_mask.bool()
    with untouched(policy), no_gradients():
        before, weights = logps(policy, rollouts), [p.clone() for p in trained]
        with gradients():
            update(policy, rollouts, optimizer, start, **settings)
        change = [p - w for p, w in zip(trained, weights, strict=True)]
        scale, low, high = 1.0, 0.0, float("inf")  # too small, too large: movement need not grow as lr does
        for _ in range(20):
            for p, w, c in zip(trained, weights, change, strict=True):
                p.copy_(w + scale * c)
            moved = (logps(policy, rollouts) - before)[alive.to(before.device)]
            size = float(moved.pow(2).mean().sqrt())
            if abs(size / target - 1) < tolerance:
                return start * scale
            low, high = (scale, high) if size < target else (low, scale)
            scale *= min(max(target / size, 1e-2), 1e2) if size > 0 else 1e2
            if not low < scale < high:
                scale = (low * high) ** 0.5 if low else high / 10
    raise ValueError(f"No learning rate of {optimizer} moves these tokens by target={target} nats; try a smaller one.")


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
) -> Iterator[tuple[int, Rollouts]]:
    """Train the policy on-policy; hand over (step, fresh rollouts) before step 0, every, 2 every, ... and at the end.

    Whatever is measured on the policy in between belongs to that moment of training. Each step samples new rollouts,
    takes one optimizer step on them and forgets them; when the iteration ends, the policy is as it was.
    settings: more of `update`.
    """
    rows = task.dataset(prompts * (steps + 1), seed)
    with untouched(policy):
        stepper = optimizer_of(policy, optimizer, lr, settings.get("parameters"))
        for step in progress(range(steps + 1), "training"):
            batch = rows.select(range(step * prompts, (step + 1) * prompts))
            rollouts = sample_rollouts(policy, task, batch, group_size, seed + step, max_new_tokens)
            if step % every == 0 or step == steps:
                yield step, rollouts
            if step < steps and rollouts.advantages.any():
                update(policy, rollouts, stepper, **settings)
