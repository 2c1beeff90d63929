"""Worlds: when one reward per rollout is enough, at which price, and what other rules do there (04,
07, 12, 13).

Terms: *arm*, a credit rule in a world; *half-way*, half of the way from the start's value to the
best attainable one; *price*, octaves of sampled tokens until there that plain group advantages need
more than known credit; the *arena*, all credit rules in two worlds.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.worlds.arena_charts": "arena_chart chart_kind save_chart table_markdown table_text",
    "chapters.worlds.charts": (
        "defaults_chart defaults_table groups_chart groups_table map_chart map_table price_chart"
        " rules_chart rules_table"
    ),
    "chapters.worlds.explore": (
        "compute_walk compute_world explore_walk explore_world live_rules world_start"
    ),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
