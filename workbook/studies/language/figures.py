"""The tables that chapter 10 draws of language models (`workbook.studies.figures`)."""

import pandas as pd

from workbook.chapters.language.charts import BY_LENGTH, READ
from workbook.chapters.worlds.charts import NAMES
from workbook.statistics import unit_curve
from workbook.studies.language.training import LENGTH
from workbook.studies.record import Tables

RULES = NAMES | {LENGTH: BY_LENGTH}
_TASKS = ("sums", "ramble")


def language_training(folder=None) -> pd.DataFrame:
    """A row per task, reading, rule and batch: mean, low and high over units."""
    parts = []
    for task in _TASKS:
        table = Tables(f"smollm2:{task}", folder)["smollm2_training/runs"]
        table = table.assign(rule=table["arm"].map(RULES))
        for reading in READ:
            curve = unit_curve(table, "batch", reading, by="rule")
            parts.append(curve.assign(task=task, reading=reading))
    return pd.concat(parts, ignore_index=True)


def _follows() -> pd.DataFrame:
    """A row per draw of prompts of SmolLM2, number of prompts and kind of token: how often the
    token follows its own rollout's sign, and how often the other prompts' push has that sign.
    """
    rates = Tables("smollm2_plain")["dose_llm/rates"]
    return rates[["seed", "prompts", "tokens", "follows", "others_follow"]]


FIGURES = {
    "smollm2_training": {"language/training": language_training},
    "dose_llm": {"language/follows": _follows},
}
