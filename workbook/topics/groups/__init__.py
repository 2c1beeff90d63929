"""Cancellation in a group: what the advantages of one prompt's rollouts push, word by word (chapters 00, 02).

toy          rollouts of three words, the net push of a group, other signs (R3), matched frequencies (R1), training
charts       where two rollouts' gradients meet; a group that grows by one rollout at a time
mixed        which groups hold both rewards, by their size (chapter 13)
many_groups  estimators side by side, interventions on signs, group size, long runs, parts of a step
expected     what a group pushes in expectation (credit) and by chance, exactly
exercises    the push on a shared token, leave-one-out advantages, a group's net push, signs, flawed arguments

Terms: a *push* A (e - p) is a rollout's part in the gradient by one softmax's logits; *style*, *template* and *result*
are the toy's words without influence on the reward, nearly without choice, and with the whole reward.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "topics.groups.toy": (
        "COMPARED SIGN_RULES WORDS assign_signs compute_estimators compute_growing compute_intervention draw_groups "
        "make_policy moved push_on_logits train_policy"
    ),
    "topics.groups.charts": (
        "compute_gradients_meet explore_gradients_meet explore_growing gradients_meet_chart growing_chart"
    ),
    "topics.groups.expected": "Word compute_parts push_moments toy_words",
    "topics.groups.many_groups": (
        "estimators_chart explore_estimators explore_intervention explore_parts frequency_chart group_size_chart "
        "intervention_chart training_chart"
    ),
    "topics.groups.mixed": "compute_mixed explore_mixed mixed_chart",
    "topics.groups.exercises": ("OPENINGS check_net_push check_rloo check_shared_push check_signs"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
