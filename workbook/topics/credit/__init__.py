"""Hidden credit: whether tokens that an update boosts are worth more (chapter 07; H6 to H9, R1, R4).

values        a token's value, exact on the chain task, elsewhere by continuing rollouts after it
prefixes      rollouts' prefixes, ready to be continued, their key-value caches cut from one pass
exact_gaps    the gap in exact value over policies and seeds, matched for position: what decides H7, H8, H9, R4
gaps          the gap in value: of boosted minus suppressed tokens, by sign, sampling budget and repeated update
shares        the share of each category of token in what a step moves
study         tables measured once, for verdicts; settings: for sliders
claims        what is stated, against which number, and how it is estimated
live_gaps     the gap by budget and after repeated updates, on a policy in hand
charts        figures, each beside its explorer          exercises     checks of chapter 07

Terms: a token's *value* is the expected reward once it is written; its *credit* is what it changed about that.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "probes.value_gaps": "cell_gap exact_pool",
    "topics.credit.charts": (
        "credit_against_movement explore_budget explore_gap movement_by_class repeated_chart shares_chart value_path"
    ),
    "topics.credit.claims": "category_shift",
    "topics.credit.exact_gaps": "FIXED SMALL_NATS moved_tokens step_gaps",
    "topics.credit.exercises": "check_continuations check_gap",
    "topics.credit.gaps": "repeated_updates sampling_budget value_gap",
    "topics.credit.live_gaps": "live_budget live_repeated",
    "topics.credit.live_step": "live_value_gap",
    "topics.credit.live_classes": "live_shares",
    "topics.credit.settings": "compute_budget compute_gap",
    "topics.credit.shares": "category_shares update_share_by_category",
    "topics.credit.values": "exact_values token_values",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
