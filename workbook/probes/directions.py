"""Derivatives of log-probabilities along a direction of the weights: exact, or by differences.

How much does a small step along g change each token's log-probability? To first order by

    change_j = d/ds log pi(j; theta + s g)  at s = 0  =  <grad log pi(j), g>

One forward-mode pass carries this derivative for all tokens at once; a loop over tokens would need
a backward pass for each. Quantized layers have no forward mode: for them central differences of two
plain passes stand in,

    change_j = (log pi(j; theta + s g) - log pi(j; theta - s g)) / 2s
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbook.messages import InvalidValue, require_one_of
from workbook.policies.models import private_copy, reading
from workbook.rollouts.likelihood import in_passes, passes, scores
from workbook.rollouts.sample import Rollouts
from workbook.training.optimizers import trained_weights

METHODS = ("auto", "jvp", "difference")
# nats: how far a finite difference moves the log-probability that moves farthest, and the factor
# by which it may miss that
_DIFFERENCE_NATS = 1e-2
_NATS_FACTOR = 3.0
# how far the differences of a step and of half of it may be apart, as a share of the largest
_MAX_BEND = 0.25

Direction = dict[str, Tensor]
_ONE_AT_A_TIME = threading.Lock()  # forward mode is a state of torch, not of a thread


class Along:
    """Gradients of a policy's log-probabilities, and their changes along a direction.

    parameters: None all that require gradients, "lora" the adapters among them, or a list of
    names.  method: of METHODS; once `change` has run, "auto" has become the method that it took.
    Raises ValueError for other methods, and for parameters that the policy does not have.
    """

    def __init__(self, policy, parameters: str | Sequence[str] | None = None, method: str = "auto"):
        require_one_of("method", method, METHODS)
        if parameters == "lora":
            parameters = [name for name in trained_weights(policy) if "lora_" in name]
            if not parameters:
                raise InvalidValue(
                    "parameters",
                    "lora",
                    "None or a list of names",
                    "parameters='lora': this policy has no LoRA adapter; load one with lora=8.",
                )
        elif isinstance(parameters, str):
            raise InvalidValue("parameters", parameters, 'None, "lora" or a list of names')
        self.policy = policy
        self.parameters = trained_weights(policy, parameters)
        quantized = any(not p.is_floating_point() for p in policy.model.parameters())
        self.method = "difference" if method == "auto" and quantized else method

    def gradient(self, rollouts: Rollouts, place: tuple[int, int]) -> Direction:
        """Gradient of one token's log-probability, by one backward pass.

        place: (rollout, position).
        """
        weights = list(self.parameters.values())
        with torch.enable_grad():
            logp = scores(reading(self.policy).model, rollouts)[place]
            slopes = torch.autograd.grad(logp, weights, allow_unused=True)
        return {
            name: torch.zeros_like(p) if slope is None else slope
            for (name, p), slope in zip(self.parameters.items(), slopes, strict=True)
        }

    def gradient_of(self, rollouts: Rollouts, pushes: Float[Tensor, "B T"]) -> Direction:
        """Gradient of the sum of all log-probabilities, each times its push."""
        weights = list(self.parameters.values())
        total = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        model = reading(self.policy).model
        pushing = pushes.any(1).nonzero().squeeze(1)
        with torch.enable_grad():
            for rows in in_passes(passes(self.policy, rollouts, pushing), "gradient"):
                objective = (pushes[rows] * scores(model, rollouts.select(rows))).sum()
                slopes = torch.autograd.grad(objective, weights, allow_unused=True)
                for part, slope in zip(total.values(), slopes, strict=True):
                    if slope is not None:
                        part.add_(slope)
                # else these are held beside those of the next pass
                del objective, slopes, slope
        return total

    def change(self, rollouts: Rollouts, direction: Direction) -> Float[Tensor, "B T"]:
        """Derivative of every token's log-probability along the direction, 0 outside the mask."""
        if self.method == "difference":
            return self._difference(rollouts, direction)
        if self.method == "jvp":
            return self._jvp(rollouts, direction)
        try:
            change = self._jvp(rollouts, direction)
        except NotImplementedError:
            # an operation of this model has no forward mode
            change = self._difference(rollouts, direction)
            self.method = "difference"
        else:
            self.method = "jvp"
        return change

    def _jvp(self, rollouts: Rollouts, direction: Direction) -> Float[Tensor, "B T"]:
        """The exact derivative, in as many forward-mode passes as memory asks for."""
        parts = passes(self.policy, rollouts, kind="along")
        if len(parts) > 1:
            changes = [
                self._jvp(rollouts.select(rows), direction)
                for rows in in_passes(parts, "derivative")
            ]
            return torch.cat(changes)

        # `functional_call` lends other weights to this copy
        model = private_copy(self.policy, weights=False).model
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        has_experts = hasattr(base, "get_experts_implementation") and any(
            base.get_experts_implementation().values()
        )
        if has_experts:
            # as with plain attention, its operations have a forward mode
            base.set_experts_implementation("eager")
        scorer = _Scorer(model, rollouts)

        def scored(weights: Direction) -> Float[Tensor, "B T"]:
            lent = {f"model.{name}": weight for name, weight in weights.items()}
            return functional_call(scorer, lent, ())

        return derivative(scored, self.parameters, direction)

    def _difference(self, rollouts: Rollouts, direction: Direction) -> Float[Tensor, "B T"]:
        """The derivative by central differences, whose step is neither lost nor bent."""
        squared_length = sum(float(g.double().pow(2).sum()) for g in direction.values())
        if squared_length == 0:
            return torch.zeros_like(rollouts.old_logps)
        mine = private_copy(self.policy)
        weights = trained_weights(mine, list(self.parameters))

        @torch.no_grad()
        def logps_at(step: float) -> Float[Tensor, "B T"]:
            for name, p in weights.items():
                p.copy_(self.parameters[name] + step * direction[name])
            parts = [scores(mine.model, rollouts.select(rows)) for rows in passes(mine, rollouts)]
            return torch.cat(parts)

        def difference(step: float) -> Float[Tensor, "B T"]:
            return logps_at(step) - logps_at(-step)

        # along its own gradient a token moves by step times squared length; others may move farther
        step = _DIFFERENCE_NATS / squared_length
        for _ in range(3):
            change = difference(step)
            farthest = float(change.abs().max()) / 2
            shortest = _DIFFERENCE_NATS / _NATS_FACTOR
            longest = _DIFFERENCE_NATS * _NATS_FACTOR
            if shortest < farthest < longest or farthest == 0:
                break
            step *= _DIFFERENCE_NATS / farthest

        # on a straight line half the step makes half the difference: else the step is shortened
        for _ in range(4):
            half = difference(step / 2)
            bend = float((change - 2 * half).abs().max())
            if bend <= max(_MAX_BEND * float(change.abs().max()), _DIFFERENCE_NATS / 100):
                return change / (2 * step)
            step /= 8
            change = difference(step)
        raise ValueError(
            f"{type(self.policy.model).__name__} does not change smoothly along a gradient:"
            " differences of a step and of half of it disagree, as they do where tokens are sent"
            ' to other experts or where numbers are coarse; use float32 weights, and method="jvp"'
            " where the model has it."
        )


def derivative(
    compute: Callable[[Direction], Tensor], weights: Direction, tangents: Direction
) -> Tensor:
    """Derivative of compute(weights) along tangents of the weights, by one forward-mode pass."""
    with _ONE_AT_A_TIME, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        # close the level that an interrupt in the middle of a pass has left open
        with suppress(RuntimeError):
            torch._C._exit_dual_level(level=0)
        forward_ad._current_level = -1
        with forward_ad.dual_level():
            duals = {
                name: forward_ad.make_dual(p.detach(), tangents[name].to(p.dtype))
                for name, p in weights.items()
            }
            value, tangent = forward_ad.unpack_dual(compute(duals))
            return torch.zeros_like(value) if tangent is None else tangent.clone()


class _Scorer(nn.Module):
    """A model with the rollouts to score, so that `functional_call` can lend it other weights."""

    def __init__(self, model: nn.Module, rollouts: Rollouts):
        super().__init__()
        self.model = model
        self.rollouts = rollouts

    def forward(self) -> Float[Tensor, "B T"]:
        return scores(self.model, self.rollouts)
