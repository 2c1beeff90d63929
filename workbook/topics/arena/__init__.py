"""The arena: credit rules under one budget of sampled tokens, between permuted advantages and true credit (12).

Terms: *score*, the way from permuted advantages (0) to the true credit of every token (1); *gain*, the share of the
oracle's gain over the start; a *unit* is a policy and a stream of prompts.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "topics.arena.charts": "arena_chart save_chart table_markdown table_text",
    "topics.arena.claims": "arena_table headline outcomes",
    "topics.arena.study": ("FULL SMALL Setting contender contest exact_oracle measured_table place rule_marks"),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
