"""The hooks of TRL's GRPOTrainer that CancellationTrainer overrides, asked of the installed TRL.

Tried with trl 1.13, 1.14 and 1.16: `make trls` runs both ends of the range, and bit equality with
TRL under every loss type is part of it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from importlib.metadata import version

from trl import GRPOTrainer

TRIED = "1.13, 1.14 and 1.16"
# methods of TRL's that the trainer wraps; the last is transformers'
HOOKS = (
    "_calculate_rewards",
    "_generate_and_score_completions",
    "_prepare_inputs",
    "_compute_loss",
    "_get_per_token_logps_and_entropies",
    "_clip_grad_norm",
)


def missing_hooks(trainer: type[GRPOTrainer]) -> Iterator[str]:
    """A sentence for each method of TRL's that `trainer` can't wrap, or would replace unawares."""
    here = f"trl {version('trl')}"
    advice = f"take one of the releases that were tried, {TRIED}."
    if "unsloth" in sys.modules:
        yield (
            f"Unsloth puts its own trainer and loss in TRL's place; use {trainer.__name__} in a"
            " process without it."
        )
    own = {name for name, member in vars(trainer).items() if callable(member)}
    for name in own.difference(HOOKS, dir(object)).intersection(dir(GRPOTrainer)):
        yield f"{here} has a method {name} that {trainer.__name__} would replace; {advice}"
    for name in HOOKS:
        parameters = inspect.signature(getattr(trainer, name)).parameters.values()
        arguments = [
            p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD
        ]
        try:
            inspect.signature(getattr(GRPOTrainer, name)).bind(*arguments)
        except (AttributeError, TypeError):
            yield (
                f"{here} has no GRPOTrainer.{name}({', '.join(arguments[1:])}), which"
                f" {trainer.__name__} wraps; {advice}"
            )
