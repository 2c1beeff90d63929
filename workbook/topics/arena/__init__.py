"""The arena: every credit rule under one budget of sampled tokens, between permuted advantages and true credit (12).

rules      who stands in it: the trainer's rules and estimators, rules of one's own, and the exact oracle
marks      a rule's update against the exact policy gradient, its advantages against true credit
runs       one unit: training under the budget, and exact held-out value at its end
study      every rule in ten units, the bounds in thirty      scores    the table: scores, ratios, intervals
claims     what is stated, and what each row measures         charts    the table as one picture
contests   one rule at a small setting, resumable, placed into the table: `python -m workbook arena`

Terms: *score*, the way from permuted advantages (0) to the true credit of every token (1); *gain*, the share of the
oracle's gain over the start; a *unit* is a policy and a stream of prompts.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "topics.arena.charts": "arena_chart save_chart",
    "topics.arena.contests": "contest measured_table place setting_of",
    "topics.arena.marks": "rule_marks",
    "topics.arena.rules": "contender exact_oracle",
    "topics.arena.runs": "FULL SMALL Setting train_rule unit_tables",
    "topics.arena.scores": "arena_table headline outcomes",
    "topics.arena.study": "arena_study",
    "topics.arena.text": "table_markdown table_text",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
