"""Derivatives of log-probabilities along a direction of the weights: exact, or by central finite
differences.

    change_j = d/ds log pi(j; theta + s g)  at s = 0  =  <grad log pi(j), g>

One forward-mode pass carries this derivative for all tokens at once; a loop over tokens would need
a backward pass for each. Quantized layers have no forward mode: for them (log pi(theta + s g) - log
pi(theta - s g)) / 2s.
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
STEP = 1e-2  # nats: how far a finite difference moves the log-probability that moves farthest
SETTLED = 3.0  # ... give or take this factor
# how far the differences of a step and of half of it may be apart, as a share of the largest
STRAIGHT = 0.25

Direction = dict[str, Tensor]
_ONE_AT_A_TIME = threading.Lock()  # forward mode is a state of torch, not of a thread


class Along:
    """Gradients of a policy's log-probabilities, and their changes along a direction.

    parameters: None all that require gradients, "lora" the adapters among them, or a list of
    names.  method: of METHODS; once `change` has run, "auto" has become the one that it took.
    Raises ValueError for other methods, and for parameters of which the policy has none.
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
        self.policy, self.parameters = policy, trained_weights(policy, parameters)
        quantized = any(not p.is_floating_point() for p in policy.model.parameters())
        self.method = "difference" if method == "auto" and quantized else method

    def gradient(self, rollouts: Rollouts, place: tuple[int, int]) -> Direction:
        """Gradient of the log-probability of the token at place (rollout, position), by one
        backward pass.
        """
        with torch.enable_grad():
            logp = scores(reading(self.policy).model, rollouts)[place]
            slopes = torch.autograd.grad(logp, list(self.parameters.values()), allow_unused=True)
        named = zip(self.parameters.items(), slopes, strict=True)
        return {name: torch.zeros_like(p) if g is None else g for (name, p), g in named}

    def gradient_of(self, rollouts: Rollouts, pushes: Float[Tensor, "B T"]) -> Direction:
        """Gradient of the sum of all log-probabilities, each times its push."""
        total = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        model = reading(self.policy).model
        with torch.enable_grad():
            pushing = pushes.any(1).nonzero().squeeze(1)
            for rows in in_passes(passes(self.policy, rollouts, pushing), "gradient"):
                whole = (pushes[rows] * scores(model, rollouts.select(rows))).sum()
                slopes = torch.autograd.grad(
                    whole, list(self.parameters.values()), allow_unused=True
                )
                for part, slope in zip(total.values(), slopes, strict=True):
                    if slope is not None:
                        part.add_(slope)
                del whole, slopes, slope  # before the next ones
        return total

    def change(self, rollouts: Rollouts, direction: Direction) -> Float[Tensor, "B T"]:
        """Derivative of every completion token's log-probability along the direction, zero outside
        the mask.
        """
        if self.method == "auto":
            try:
                change, self.method = self._jvp(rollouts, direction), "jvp"
            except NotImplementedError:  # an operation of this model has no forward mode
                change, self.method = self._difference(rollouts, direction), "difference"
            return change
        return (self._jvp if self.method == "jvp" else self._difference)(rollouts, direction)

    def _jvp(self, rollouts: Rollouts, direction: Direction) -> Float[Tensor, "B T"]:
        parts = passes(self.policy, rollouts, kind="along")
        if len(parts) > 1:
            return torch.cat(
                [
                    self._jvp(rollouts.select(rows), direction)
                    for rows in in_passes(parts, "derivative")
                ]
            )
        # which `functional_call` lends other weights
        model = private_copy(self.policy, weights=False).model
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        if hasattr(base, "get_experts_implementation") and any(
            base.get_experts_implementation().values()
        ):
            # as with plain attention, operations that have a forward mode
            base.set_experts_implementation("eager")
        scorer = _Scorer(model, rollouts)

        def scored(weights: Direction) -> Tensor:
            return functional_call(
                scorer, {f"model.{name}": weight for name, weight in weights.items()}, ()
            )

        return derivative(scored, self.parameters, direction)

    def _difference(self, rollouts: Rollouts, direction: Direction) -> Float[Tensor, "B T"]:
        square = sum(float(g.double().pow(2).sum()) for g in direction.values())
        if square == 0:
            return torch.zeros_like(rollouts.old_logps)
        step = STEP / square  # the anchor's own change is step x square; others may move farther
        mine = private_copy(self.policy)
        weights = trained_weights(mine, list(self.parameters))

        @torch.no_grad()
        def moved(step: float) -> Tensor:
            for name, p in weights.items():
                p.copy_(self.parameters[name] + step * direction[name])
            return torch.cat(
                [scores(mine.model, rollouts.select(rows)) for rows in passes(mine, rollouts)]
            )

        for _ in range(3):
            change = moved(step) - moved(-step)
            farthest = float(change.abs().max()) / 2
            if STEP / SETTLED < farthest < STEP * SETTLED or farthest == 0:
                break
            step *= STEP / farthest
        for _ in range(4):  # a step that is too long for a straight line is shortened
            half = moved(step / 2) - moved(-step / 2)
            bend = float((change - 2 * half).abs().max())
            if bend <= max(STRAIGHT * float(change.abs().max()), STEP / 100):
                return change / (2 * step)
            step /= 8
            change = moved(step) - moved(-step)
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
        # a level that an interrupt in the middle of a pass has left open
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
    """A model together with what it shall score, so that `functional_call` can put other weights
    in.
    """

    def __init__(self, model: nn.Module, rollouts: Rollouts):
        super().__init__()
        self.model, self.rollouts = model, rollouts

    def forward(self) -> Float[Tensor, "B T"]:
        return scores(self.model, self.rollouts)
