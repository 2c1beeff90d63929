"""What cancels, what teaches: pairs of pushes, masks by sharing, the dial of opposition, and a
world without coupling.

The book's question, in experiments that could come out either way: does cancellation turn one
reward per rollout into credit per token? `by_hand` computes what each deciding number must be with
and without credit, in a case that can be.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.teaching.charts": "masks_chart opposition_chart pairs_chart",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
