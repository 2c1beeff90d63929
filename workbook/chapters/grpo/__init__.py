"""GRPO from scratch, beside the trainer (chapter 04).

Terms: the *surrogate* min(r A, clip(r) A) is what a step raises; a *normalizer* is what its sum
over tokens is divided by, and tells TRL's loss types apart.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.grpo.charts": "value_curves",
    "chapters.grpo.explore": "LOSS_TYPES check_normalizers clipped_loss",
    "chapters.grpo.replay": "ADAM_EPSILON LR SampledBatch largest_difference trainer_steps",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
