"""Worlds: when one reward per rollout is enough, at which price, and what other rules do there (04,
07, 13).

Terms: *arm*, a credit rule in a world; *half-way*, half of the way from the start's value to the
best attainable one; *price*, octaves of sampled tokens until there that plain group advantages need
more than known credit. The arena, all credit rules in two worlds, is `workbook.app.arena`.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.worlds.charts": "defaults_chart map_chart",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
