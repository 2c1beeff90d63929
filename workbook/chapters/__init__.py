"""What one chapter alone needs: its toy, explorers and charts, and the checks of its exercises."""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.exercises": "batch_numbers blame_differences check_batch check_reward check_rule",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
