"""Hidden credit: whether tokens that an update boosts are worth more (chapter 07; H6 to H9, R1, R4).

study       gaps in exact value over policies and seeds: what decides; shares of movement      claims      its rows
explore     a live step of a policy in hand, the study under menus, figures, an exercise's check, and a token's value
            where it is not known exactly: rollouts continued after it

Terms: a token's *value* is the expected reward once it is written; its *credit* is what it changed about that.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "probes.values": "cell_gap exact_pool",
    "topics.credit.explore": "check_continuations explore_budget explore_repeated family_budget live_value_gap "
    "movement_by_class shares_chart token_values value_path",
    "topics.credit.study": "FIXED SMALL_NATS movement_shares",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
