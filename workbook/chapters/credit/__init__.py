"""Hidden credit: whether tokens that an update boosts are worth more (chapter 06; H6 to H9, R1,
R4).

Terms: a token's *value* is the expected reward once it is written; its *credit* is what it changed
about that.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.credit.explore": (
        "check_continued check_continuations continued_rewards explore_budget explore_repeated"
        " live_value_gap movement_by_class shares_chart value_path"
    ),
    "chapters.credit.repeated": "check_value_gap repeat_updates repeated_chart",
    "chapters.grading": "yours_or_ours",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
