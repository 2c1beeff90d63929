"""The methods of TRL's GRPOTrainer that CancellationTrainer overrides, asked of the installed TRL.

A subclass that overrides private methods breaks silently when its parent moves them: an override
that nobody calls changes nothing. So before anything is trained the installed TRL is asked whether
it has each of these methods, with the arguments that the trainer passes on, and no other method of
a name that the trainer has, too.

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
    """Yield a sentence for each method of TRL's that `trainer` can't wrap, or would replace
    unawares.
    """
    installed = f"trl {version('trl')}"
    advice = f"take one of the releases that were tried, {TRIED}."
    if "unsloth" in sys.modules:
        yield (
            f"Unsloth puts its own trainer and loss in TRL's place; use {trainer.__name__} in a"
            " process without it."
        )

    # methods of our own whose name TRL has taken
    own = {name for name, member in vars(trainer).items() if callable(member)}
    own -= {*HOOKS, *dir(object)}
    for name in own.intersection(dir(GRPOTrainer)):
        yield f"{installed} has a method {name} that {trainer.__name__} would replace; {advice}"

    # methods of TRL's that are gone, or take other arguments
    for name in HOOKS:
        parameters = inspect.signature(getattr(trainer, name)).parameters.values()
        required = [
            parameter.name
            for parameter in parameters
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        ]
        try:
            inspect.signature(getattr(GRPOTrainer, name)).bind(*required)
        except (AttributeError, TypeError):
            call = f"{name}({', '.join(required[1:])})"
            yield f"{installed} has no GRPOTrainer.{call}, which {trainer.__name__} wraps; {advice}"
