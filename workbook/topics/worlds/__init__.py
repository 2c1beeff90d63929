"""Worlds: when one reward per rollout is enough, at which price, and what other rules do there (04, 07, 12, 13).

Terms: *arm*, a credit rule in a world; *half-way*, half of the way from the start's value to the best attainable one;
*price*, octaves of sampled tokens until there that plain group advantages need more than known credit; the *arena*, all
credit rules in two worlds.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "studies.record": "Tables load_measured",
    "studies.registration": "WORLD_SCALES",
    "topics.worlds.arena": "arena_rates_study arena_study contest place",
    "topics.worlds.arena_charts": "arena_chart chart_kind save_chart table_markdown table_text",
    "topics.worlds.arena_outcomes": "arena_table headline measured_table rule_ends rule_rates",
    "topics.worlds.charts": (
        "defaults_chart defaults_table groups_chart groups_table "
        "map_chart map_table price_chart rules_chart rules_table"
    ),
    "topics.worlds.explore": "compute_walk compute_world explore_walk explore_world live_rules world_start",
    "topics.worlds.outcomes": "Law law lead own_rates points predicted run_ends unit_outcomes value_errors",
    "topics.worlds.study": "ARMS rates_study start_study worlds_study",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
