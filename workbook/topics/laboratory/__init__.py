"""The laboratory: an experiment of one's own, from its settings to a comparison over seeds (chapters 04, 08, 11, 12).

choices      keywords -> a run's config, a grid around it, what is wrong with both; controls
form         `RunForm`: the choices as controls, with Try it, memory, Start and Compare
try_it       two prompts as the model gets them, four completions of each and their rewards, in a process of its own
compare      curves and outcomes of runs, and the effect of a setting, paired by seed
exercises    a reward that no talk can win
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "topics.laboratory.choices": "QLORA experiment plan",
    "topics.laboratory.compare": "MIN_SEEDS compare_settings comparison_chart run_tables",
    "topics.laboratory.exercises": "check_reward",
    "topics.laboratory.form": "RunForm",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
