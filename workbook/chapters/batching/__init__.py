"""Batching: which rollouts should share an optimizer step (chapter 08; H11 to H13).

Terms: *query-preserved* keeps a prompt's rollouts in one mini-batch, *reward-balanced* gives each
the same mix of signs, *sign-partitioned* parts the signs; *jitter* is a curve's movement from step
to step.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.batching.explore": (
        "cut_parts cut_parts_chart endpoints_chart explore_batching live_walks runs_chart"
    ),
    "chapters.batching.toy": "NAMES check_order compute_cut explore_cut",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
