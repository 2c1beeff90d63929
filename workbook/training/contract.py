"""What the trainer leans on in TRL's GRPOTrainer, asked of the TRL that is installed, so that no
release is pinned.

A method that the trainer wraps was read in each release that was tried, by its source's hash: of
another source a trainer warns, once. What a switch needs of a source is texts in their order; where
one is missing, that switch alone is refused. Tried means that `make trls` passes, bit equality on
five architectures under every loss type in it.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.metadata import version

from trl import GRPOTrainer

from workbook.training.config import CancellationConfig

TRIED = {  # {method: {start of the SHA-256 of its source: releases}}
    "_calculate_rewards": {"cef3c7c2f4": "1.13", "d91a9f1983": "1.14, 1.16"},
    "_generate_and_score_completions": {
        "538d68a1c8": "1.13",
        "8206ac1138": "1.14",
        "7483266957": "1.14",
    }
    | {"3344fb4baa": "1.16"},
    "_prepare_inputs": {"d4ae818bcb": "1.13, 1.14, 1.16"},
    "_compute_loss": {"693347018c": "1.13, 1.14", "84d6cf614b": "1.16"},
    "_get_per_token_logps_and_entropies": {
        "311046072f": "1.13",
        "5bc6ae5a1e": "1.14",
        "e5505fe041": "1.16",
    },
}
WRAPPED = (*TRIED, "_clip_grad_norm")  # the last is transformers' own
RELEASES = "1.13, 1.14 and 1.16"
_SCORED = "per_token_logps, entropies, aux_loss = self._get_per_token_logps_and_entropies("
_PUSHED = (_SCORED, 'inputs["advantages"]')
_WEIGHTED = (
    *_PUSHED,
    'inputs.get("old_per_token_logps")',
    'self.importance_sampling_level == "token"',
)
_SCORES = (
    "self._calculate_rewards(",
    'self._logs["advantages"].extend(',
    '"advantages": advantages',
)
_BUFFERS = (
    *(
        "self._step % generate_every == 0 or self._buffered_inputs is None",
        "_generate_and_score_completions(",
    ),
    *(
        "split_pixel_values_by_grid(",
        "shuffle_sequence_dict(",
        "split_tensor_dict(",
        "unsplit_pixel_values_by_grid(",
    ),
    "self._buffered_inputs[self._step % self.args.steps_per_generation]",
)
NEEDS = (  # field, method, texts whose first occurrences come in this order
    ("batching", "_prepare_inputs", _BUFFERS),
    ("advantage_estimator", "_generate_and_score_completions", _SCORES),
    (
        "group_transform",
        "_compute_loss",
        (*_WEIGHTED, 'per_token_loss * inputs["importance_sampling_ratio"]'),
    ),
    ("clipping", "_compute_loss", _WEIGHTED),
    ("trim_padding", "_compute_loss", (_SCORED,)),
    ("measure_cancellation", "_compute_loss", _PUSHED),
    ("record_tokens", "_compute_loss", (*_PUSHED, "self.beta != 0.0")),
)


@cache
def sources() -> dict[str, str]:
    """Source of each method of TRL's that the trainer wraps; "" where it can't be read."""
    found = dict.fromkeys(TRIED, "")
    for name in found:
        with suppress(OSError, AttributeError):
            found[name] = inspect.getsource(getattr(GRPOTrainer, name))
    return found


def source_hash(source: str) -> str:
    """First ten hexadecimal digits of a source's SHA-256."""
    return hashlib.sha256(source.strip().encode()).hexdigest()[:10]


def broken(args: CancellationConfig, kind: type[GRPOTrainer], rule=None) -> Iterator[str]:
    """A sentence for each switch of `args` that this TRL lacks something for, and each method that
    can't be wrapped.

    kind: the class that wraps, none of whose other methods may have a name that TRL uses.
    rule: the credit rule that advantage_estimator means, which may write the loss's advantages
    itself.
    """
    here, tried = f"trl {version('trl')}", f"take a trl of {RELEASES}."
    if "unsloth" in sys.modules:
        yield (
            f"Unsloth puts its own trainer and loss in TRL's place; use {kind.__name__} in a"
            " process without it."
        )
    own = {name for name, member in vars(kind).items() if callable(member)} - {
        *WRAPPED,
        *dir(object),
    }
    for name in own & {*dir(GRPOTrainer)}:
        yield f"{here} has a method {name} that {kind.__name__} would replace; {tried}"
    for name in WRAPPED:
        parameters = inspect.signature(getattr(kind, name)).parameters.values()
        arguments = [
            p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD
        ]
        try:
            inspect.signature(getattr(GRPOTrainer, name)).bind(*arguments)
        except (AttributeError, TypeError):
            yield (
                f"{here} has no GRPOTrainer.{name}({', '.join(arguments[1:])}), which"
                f" {kind.__name__} wraps; {tried}"
            )
    for field, method, texts in (
        *NEEDS,
        *[("advantage_estimator", "_compute_loss", _WEIGHTED)] * bool(rule),
    ):
        value, default = getattr(args, field), getattr(CancellationConfig, field)
        if value != default and (text := missing(sources()[method], texts)):
            needs = f"{field}={value!r} leans on {text!r} in GRPOTrainer.{method}"
            yield f"{needs}, which {here} lacks there; leave it at {default!r}, or {tried}"


def missing(source: str, texts: tuple[str, ...]) -> str | None:
    """The first of the texts that a source lacks, or has before the one that it should follow."""
    places = [source.find(text) for text in texts]
    wrong = (
        text
        for text, place, before in zip(texts, places, [-1, *places], strict=False)
        if place <= before
    )
    return next(wrong, None)


@cache
def warn_of_unknown() -> None:
    """Warn, once in a process, of methods whose source is none of those that were tried."""
    if unknown := [
        name for name, source in sources().items() if source_hash(source) not in TRIED[name]
    ]:
        differ = (
            f"{' and '.join(unknown)} of trl {version('trl')} differ from those of {RELEASES},"
            " which were tried"
        )
        warnings.warn(f"{differ}; what each switch needs of them is checked.", stacklevel=3)
