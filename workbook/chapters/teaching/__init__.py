"""What cancels, what teaches, and what to believe (13): pairs of pushes, masks by sharing, the dial
of opposition, and how far the ledger's intervals are to be trusted.

The book's question, in experiments that could come out either way: does cancellation turn one
reward per rollout into credit per token?
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.teaching.charts": "masks_chart opposition_chart pairs_chart",
    "chapters.teaching.intervals": "coverage_chart units_needed_chart",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
