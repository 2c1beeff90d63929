"""Copies of a policy that may be changed, and what is switched for a while: eval mode, random generators.

A probe steps a copy and never the policy that it is given. So there is nothing to put back, and an interrupt, another
thread or an error in the middle of a step leaves the policy as it was.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn


def private_copy(policy, weights: bool = True):
    """A policy of one's own to step: it has copies of the trained weights and of the buffers, and is in eval mode.

    Frozen (and quantized) weights are shared. Memory: one copy of what is trained, of a policy with LoRA its adapters.
    weights: False shares the trained ones, too, so that only modules, hooks and configs are its own.
    """
    shared = {}
    for p in policy.model.parameters():
        if not (p.requires_grad and weights):
            shared[id(p)] = p
            if (state := getattr(p, "quant_state", None)) is not None:  # of bitsandbytes, which its layer holds, too
                shared[id(state)] = state
    return replace(policy, model=copy.deepcopy(policy.model, shared).eval())


def reading(policy):
    """The policy for passes in eval mode: itself, or where it is in another mode a view of it with the same weights.

    Rotary embeddings that depend on the longest sequence so far (dynamic, longrope) are a reason for a view, too.
    """
    switched = any(module.training or _varies_with_length(module) for module in policy.model.modules())
    return private_copy(policy, weights=False) if switched else policy


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Eval mode inside the block; afterwards every submodule is in the mode it was in.

    Rotary embeddings that depend on the longest sequence so far (dynamic, longrope) forget those of the block. Of other
    models in eval mode, as `load_policy` gives them, nothing is switched.
    """
    training = [module for module in model.modules() if module.training]
    rotary = [module for module in model.modules() if _varies_with_length(module)]
    before = [(module, dict(vars(module)), {n: b.clone() for n, b in module._buffers.items()}) for module in rotary]
    buffers = [dict(module._buffers) for module in rotary]
    try:
        if training:
            model.eval()
        yield model
    finally:
        for module in training:
            module.training = True
        for (module, attributes, values), own in zip(before, buffers, strict=True):
            vars(module).update(attributes)
            module._buffers = own
            for name, buffer in own.items():
                buffer.data.copy_(values[name])


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators inside the block (the CPU's and the device's); afterwards they are as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _varies_with_length(module: nn.Module) -> bool:
    """Return whether a module is a rotary embedding whose frequencies transformers changes during a forward pass."""
    kinds = vars(module).get("rope_type")
    kinds = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any("dynamic" in kind or kind == "longrope" for kind in kinds if isinstance(kind, str))
