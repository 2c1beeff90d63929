"""What cancels, what teaches (07): the dial of opposition, pairs of pushes, and masks by sharing.

The book's question, in experiments that could come out either way: does cancellation turn one
reward per rollout into credit per token? Each is measured over ten policies, and runs now on one.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.teaching.charts": (
        "agreement_chart givers_chart masks_chart opposition_chart pairs_chart"
    ),
    "chapters.teaching.exercises": "check_mask mask_rule mask_table",
    "chapters.teaching.explore": "explore_opposition",
    "chapters.teaching.live": (
        "agreement_table credit_shares end_values excess_row givers_table"
        " gradient_noise masks_table sampled_pairs train_rules train_shares"
    ),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
