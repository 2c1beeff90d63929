"""How much of the pushes on a policy cancels: inside one optimizer step, and across the steps of a generation batch.

Opposing gradients can meet in two places. Inside a step they are summed before the optimizer sees them. Across steps
the optimizer takes one after the other, and what the first did the next may undo. Order and composition of mini-batches
decide which of the two happens; to first order in the learning rate, plain SGD ends at the same place by either.
"""

from __future__ import annotations

import torch
from transformers import TrainerCallback

from workbook.theory.weights import cancelled_share


class CancellationMeter(TrainerCallback):
    """Measures every `trainer.args.measure_cancellation`-th generation batch; logs three metrics under `cancellation/`.

    in_step: 1 - |g+ + g-| / (|g+| + |g-|), with g+ and g- the loss's gradients by rollouts of positive and negative
        advantage, summed over an optimizer step's micro-batches: 0 = nothing cancels, as with one sign only; two
        equally long gradients at a right angle give 0.29; 1 = everything.
    sign_cosine: cosine of g+ and g-, where both are there: -1 = opposed, 0 = unrelated.
    across_steps: 1 - |sum of the steps' displacements| / sum of |displacement|, over a generation batch's optimizer
        steps, weights as one vector.

    It costs two more passes per measured step and a copy of the trainable weights; gradients are summed over processes.
    """

    def __init__(self, trainer):
        self.trainer, self.pushes, self.path = trainer, None, None
        args = trainer.args
        self.window = max(
            1, args.steps_per_generation * args.num_iterations // args.gradient_accumulation_steps
        )  # optimizer steps per generation batch

    def measure_step(self, model, inputs) -> None:
        """Add one micro-batch's gradients by sign; `inputs` as the loss takes them."""
        if not self._due():
            return
        trainer = self.trainer
        model = trainer.accelerator.unwrap_model(model)
        weights = [p for p in model.parameters() if p.requires_grad]
        logged = {name: list(values) for name, values in trainer._metrics["train"].items()}
        for row, sign in enumerate((1, -1)):
            pushing = sign * inputs["advantages"] > 0
            if pushing.any():
                loss = trainer._compute_loss(model, dict(inputs) | {"pushing": pushing})
                found = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
                self.pushes[row] += torch.cat([g.flatten().float() for g in found])
        trainer._metrics["train"].clear()
        trainer._metrics["train"].update(logged)

    def on_step_begin(self, args, state, control, model=None, **kwargs):
        due = self._due()
        here = _position(model) if due else None
        self.pushes = here.new_zeros(2, len(here)) if due else None
        if state.global_step % self.window == 0:
            self.path = [here] if due else None

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if self.pushes is not None:
            pushes = self.trainer.accelerator.reduce(self.pushes, "sum")
            if pushes.any():
                self.trainer._log_cancellation("in_step", cancelled_share(pushes))
            if pushes.any(dim=1).all():
                self.trainer._log_cancellation("sign_cosine", torch.cosine_similarity(*pushes, dim=0))
            self.pushes = None
        if self.path is not None:
            self.path.append(_position(model))
            if len(self.path) > self.window:
                self.trainer._log_cancellation("across_steps", cancelled_share(torch.stack(self.path).diff(dim=0)))
                self.path = None

    def _due(self) -> bool:
        return self.trainer.state.global_step // self.window % self.trainer.args.measure_cancellation == 0


def _position(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten().float() for p in model.parameters() if p.requires_grad])
