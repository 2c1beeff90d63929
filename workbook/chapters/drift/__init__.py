"""Drift fixing: what exchangeable weights can change, what they leave, and what that does to
training (chapter 09).

Terms: the *learning tax* is the movement of tokens that no reward asks for, in nats; *reuse* is
epochs on one batch.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.drift.charts": (
        "cosines_chart energy_chart group_sizes_chart objective_look reuse_chart weights_chart"
    ),
    "chapters.drift.exercises": (
        "check_residual residual_of_groups residual_on_shared residual_or_ours"
    ),
    "chapters.drift.explore": "live_curves",
    "chapters.drift.parts": "parts_at_reuse",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
