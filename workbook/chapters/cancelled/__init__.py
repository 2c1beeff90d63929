"""Cancelled share: what the other sign takes away from the push on a word (chapters 02, 05 and
10; C1 to C4).

Terms: `workbook.probes.cancellation`. A word is *shared* here where it stands in rollouts of both
signs of its prompt.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.cancelled.charts": "ceiling_chart",
    "chapters.cancelled.toy": "ceiling toy_rows",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
