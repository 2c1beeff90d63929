"""Token flipping: which tokens one update boosts, suppresses or leaves alone (chapters 05 and 10; H1, H5, R3, R5).

probe         one real step, every token's change, the shares of changes by sign, tokens matched by frequency
index         the cancellation index: the signal that remains of opposing pushes on a token, and what it predicts
composition   advantages permuted within each group, frequencies fixed
dose          the study of curves over prompts per step; dose_charts: its figures and explorers
study         one policy at one setting; settings: for sliders; sharing: reasons why shared words move
claims        what is stated of which tokens flip, and the measures of the registered outcomes
backbones     curves of language models beside the family (chapter 10); dose_llm: their study, language_models: its rows
columns       the study of shares by backbone and sign, and its live chart (chapter 14)
live          the same curves on the policy in hand; live_steps: what shared words keep, one step at any setting
charts        figures, each beside its explorer          exercises     checks of chapters 05 and 10

Terms: a token is *boosted*, *suppressed* or *stable* as its logp changes by more than eps nats; *sign-shared* tokens
occur in positive and in negative rollouts of their prompt, *specific* ones in one kind alone.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "topics.flips.backbones": "backbones_chart compute_backbones explore_backbones",
    "topics.flips.charts": (
        "explore_flips explore_flips_of flips_chart movement_by_category movement_chart predictors_chart"
    ),
    "topics.flips.columns": "column_shares compute_columns describe_columns live_columns",
    "topics.flips.claims": "MAX_SHARED_RATIO MAX_TV_DISTANCE composition_effect flip_distance_of shared_ratio",
    "topics.flips.composition": "composition_effects permuted_advantages sign_composition",
    "topics.flips.dose": "live_curves pushing_prompts",
    "topics.flips.dose_charts": (
        "compute_dose compute_net dials_chart distance_chart dose_chart explore_dose sharing_chart shift_chart"
    ),
    "topics.flips.exercises": "check_balance check_sample_size check_shares check_words",
    "topics.flips.index": "cancellation_index predictions predicts",
    "topics.flips.language_models": "llm_expectations net_ratios shifts",
    "topics.flips.live": "live_backbones live_backbones_chart live_dose",
    "topics.flips.live_steps": "live_flips live_net own_share own_share_chart",
    "topics.flips.probe": "eps_curve flip_distance flip_shares frequency_matched shares_by_prompt token_flips",
    "topics.flips.settings": "compute_flips",
    "topics.flips.sharing": "IDENTITIES cross_prompt_effect identity_ratio",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
