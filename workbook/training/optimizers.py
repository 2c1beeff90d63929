"""Optimizers by name, over the weights that a policy trains."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from workbook.messages import InvalidValue, require_one_of

OPTIMIZERS: dict[str, Callable] = {
    "sgd": lambda parameters, lr: torch.optim.SGD(parameters, lr),
    "sgd_momentum": lambda parameters, lr: torch.optim.SGD(parameters, lr, momentum=0.9),
    "adam": lambda parameters, lr: torch.optim.Adam(parameters, lr),
    "adamw": lambda parameters, lr: torch.optim.AdamW(parameters, lr),
    "adamw_no_momentum": lambda parameters, lr: torch.optim.AdamW(
        parameters, lr, betas=(0.0, 0.999)
    ),
}


def optimizer_of(
    policy, name: str, lr: float, parameters: Sequence[str] | None = None
) -> torch.optim.Optimizer:
    """An optimizer of OPTIMIZERS over all trained weights or the named ones.

    Raises ValueError, in one sentence, for an unknown optimizer or weight.
    """
    require_one_of("optimizer", name, OPTIMIZERS)
    return OPTIMIZERS[name](list(trained_weights(policy, parameters).values()), lr)


def trained_weights(policy, names: Sequence[str] | None = None) -> dict[str, nn.Parameter]:
    """The weights that require gradients, by name, or those of them that are named; ValueError for
    another name.
    """
    trained = {name: p for name, p in policy.model.named_parameters() if p.requires_grad}
    wanted = list(trained if names is None else names)
    if not wanted or set(wanted) - trained.keys():
        raise InvalidValue(
            "parameters",
            names,
            f"names of weights that this policy trains, such as {[*trained][:1]}",
        )
    return {name: trained[name] for name in wanted}
