"""TRL's trainer with the switches of cancellation, and runs that can be watched, stopped, resumed
and compared.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "training.checks": "problems",
    "training.config": "CancellationConfig RunConfig",
    "training.credit_calls": "credit_call",
    "training.layout": "batch_layout",
    "training.loop": "LoopConfig train",
    "training.optimizers": "optimizer_of",
    "training.trainer": "CancellationTrainer",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
