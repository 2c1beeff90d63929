"""Optimizers by name, over the weights that a policy trains.

Adaptive optimizers divide each weight's gradient by its usual size, and momentum adds the gradients
of earlier steps. Both change how much of what cancelled in the gradient comes back in the step, so
runs that compare this name their optimizer.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn

from workbook.messages import InvalidValue, require_one_of

OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "sgd_momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamw_no_momentum": partial(torch.optim.AdamW, betas=(0.0, 0.999)),
}


def optimizer_of(
    policy, name: str, lr: float, parameters: Sequence[str] | None = None
) -> torch.optim.Optimizer:
    """Make an optimizer of OPTIMIZERS over all trained weights, or over the named ones.

    Raises InvalidValue for an unknown optimizer or weight.
    """
    require_one_of("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name](list(trained_weights(policy, parameters).values()), lr=lr)


def trained_weights(policy, names: Sequence[str] | None = None) -> dict[str, nn.Parameter]:
    """The weights that require gradients, by name, or those of them that are named.

    Raises InvalidValue for no name, and for one that is none of these weights'.
    """
    trained = {
        name: weight for name, weight in policy.model.named_parameters() if weight.requires_grad
    }
    wanted = list(trained if names is None else names)
    if not wanted or not trained.keys() >= set(wanted):
        valid = f"names of weights that this policy trains, such as {list(trained)[:1]}"
        raise InvalidValue("parameters", names, valid)
    return {name: trained[name] for name in wanted}
