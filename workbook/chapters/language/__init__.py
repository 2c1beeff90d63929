"""Language models at which something is decided: the questions of other rooms, asked of SmolLM2
tuned to sums (10).
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.language.beside": "beside_family",
    "chapters.language.charts": "training_by_rule_chart",
    "chapters.language.exercises": "check_products",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
