"""A LoRA base that stays as it was, though adapters are merged into it and taken out again for each weight sync."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps

import torch
from peft.tuners.tuners_utils import BaseTunerLayer


def keeping_base(model: torch.nn.Module, sync: Callable) -> Callable:
    """Wrap `sync`, which merges a PeftModel's adapters and unmerges them, so that the frozen base keeps its bits.

    W + BA - BA is W only up to rounding, which adds up over the syncs of a run: below float32 to more than the adapter
    itself. Checkpoints hold the adapter alone, so a base that moved is in none. Holds one copy of the weights of
    adapted layers in main memory.

    >>> keeping_base(torch.nn.Linear(1, 1), lambda: 3)()  # nothing is adapted
    3
    """
    layers = [module.get_base_layer() for module in model.modules() if isinstance(module, BaseTunerLayer)]
    frozen = [p for layer in layers for p in layer.parameters(recurse=False) if not p.requires_grad]
    kept = [p.detach().to("cpu", copy=True) for p in frozen]

    @wraps(sync)
    def synced(*args, **kwargs):
        result = sync(*args, **kwargs)
        with torch.no_grad():
            for parameter, value in zip(frozen, kept, strict=True):
                parameter.copy_(value)
        return result

    return synced
