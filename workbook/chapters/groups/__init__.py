"""Cancellation in a group: what the advantages of one prompt's rollouts push, word by word
(chapters 00, 02).

Terms: a *push* A (e - p) is a rollout's part in the gradient by one softmax's logits; *style*,
*template* and *result* are the toy's words without influence on the reward, nearly without choice,
and with the whole reward.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.groups.charts": (
        "baseline_chart difficulty_chart frequency_chart gradients_meet_chart group_size_chart"
    ),
    "chapters.grading": "yours_or_ours",
    "chapters.groups.exercises": "FOUR_RULES check_group_advantages four_rules",
    "chapters.groups.expected": "Word compute_mixed compute_parts push_moments",
    "chapters.groups.explore": (
        "OPENINGS PART_SETTINGS check_signs check_word_push"
        " draw_word_pushes explore_gradients_meet explore_growing explore_mixed explore_parts"
    ),
    "chapters.groups.toy": (
        "COMPARED SIGN_RULES WORDS assign_signs compute_gradients_meet compute_growing draw_groups"
        " make_policy moved push_on_logits push_on_word sum_pushes"
    ),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
