"""The laboratory: an experiment of one's own, from its settings to a comparison over seeds (chapters 04, 08, 11, 12).

settings    choices -> a run's settings, a grid around them, and what is wrong with both
loading     a run's settings -> choices
examine     whether model and prompts are there, the model can read them, and memory suffices
preview     two prompts as the model gets them, four completions of each, their rewards
choices     the form: basic settings or all, each explained, with files to choose from
controls    a few settings over a config, with a monitor's Start
widget      `Laboratory`: choose, try, forecast, start, watch, compare, export
            (its parts: own_files, try_it, forecast, results)
monitor     `ExperimentMonitor` watches sweeps, too, and can be refused its Start
qlora       `QLoRAForm`: a (Q)LoRA run by controls, with the memory it needs as they move (chapter 11)
compare     curves and outcomes of runs, and the effect of a setting, paired by seed
exercises   what fits a card, how many seeds an interval needs, a reward that no talk can win

Terms: a *choice* is a menu's or slider's keyword, a *setting* a field of the trainer; a *trial* is the first generation
batches of a run, trained to forecast its time; an *effect* is a mean difference from a baseline over seeds.
"""

from workbook.lazy import lazy_names

_HOMES = {
    "ExperimentMonitor": "topics.laboratory.monitor",
    "Laboratory": "topics.laboratory.widget",
    "MIN_SEEDS": "topics.laboratory.compare",
    "TrainerControls": "topics.laboratory.controls",
    "QLoRAForm": "topics.laboratory.qlora",
    "choices_of": "topics.laboratory.loading",
    "check_fits": "topics.laboratory.exercises",
    "check_reward": "topics.laboratory.exercises",
    "check_seeds": "topics.laboratory.exercises",
    "compare_settings": "topics.laboratory.compare",
    "comparison_chart": "topics.laboratory.compare",
    "experiment": "topics.laboratory.settings",
    "forecast_chart": "topics.laboratory.settings",
    "forecast_sentence": "topics.laboratory.forecast",
    "plan": "topics.laboratory.settings",
    "run_tables": "topics.laboratory.compare",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
