"""The laboratory: an experiment of one's own, from settings to a comparison over seeds (chapters 04, 08, 11, 12)."""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "topics.laboratory.choices": "QLORA experiment plan",
    "topics.laboratory.compare": "MIN_SEEDS compare_settings comparison_chart run_tables",
    "topics.laboratory.exercises": "check_fits check_reward",
    "topics.laboratory.form": "RunForm",
    "topics.laboratory.log_form": "LogForm Tabs",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
