"""Token flipping: which tokens one update boosts, suppresses or leaves alone (chapters 05 and 10; H1, H5, R3, R5).

probe         one real step, every token's change, the shares of changes by sign, tokens matched by frequency
index         the cancellation index: the signal that remains of opposing pushes on a token, and what it predicts
composition   advantages permuted within each group, frequencies fixed
study         tables measured once, for verdicts; settings: for sliders; sharing: reasons why shared words move
claims        what is stated of which tokens flip, against which number, and how it is estimated
charts        figures, each beside its explorer          exercises     checks of chapters 05 and 10

Terms: a token is *boosted*, *suppressed* or *stable* as its logp changes by more than eps nats; *sign-shared* tokens
occur in positive and in negative rollouts of their prompt, *specific* ones in one kind alone.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "topics.flips.charts": (
        "doses_chart explore_flips explore_flips_of flips_chart movement_by_category movement_chart "
        "predictors_chart verdict_grid"
    ),
    "topics.flips.claims": "MAX_SHARED_RATIO MAX_TV_DISTANCE composition_effect flip_distance_of shared_ratio",
    "topics.flips.composition": "composition_effects sign_composition",
    "topics.flips.exercises": "check_balance check_sample_size check_shares check_words",
    "topics.flips.index": "cancellation_index predictions predicts",
    "topics.flips.probe": "eps_curve flip_distance flip_shares frequency_matched shares_by_prompt token_flips",
    "topics.flips.settings": "compute_flips",
    "topics.flips.sharing": "IDENTITIES cross_prompt_effect identity_ratio",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
