"""Token flipping: which tokens one update boosts, suppresses or leaves alone (chapters 05, 10 and
14; H1, H5, R3, R5).

Terms: a token is *boosted*, *suppressed* or *stable* as its logp changes by more than eps nats;
*sign-shared* tokens occur in positive and in negative rollouts of their prompt, *specific* ones in
one kind alone.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.flips.charts": (
        "compute_flips describe_flips backbones_chart own_sign_now movement_by_route routes_chart"
    ),
    "chapters.flips.explore": "check_undone live_flips undone_step",
    "chapters.grading": "yours_or_ours",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
