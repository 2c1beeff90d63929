"""The tables that chapter 10 draws of language models (`workbook.studies.figures`)."""

import pandas as pd

from workbook.chapters.language.charts import BY_LENGTH, READ
from workbook.chapters.worlds.charts import NAMES
from workbook.statistics import nested_mean, t_interval, unit_curve
from workbook.studies.flips.claims import contrasts
from workbook.studies.language.training import LENGTH
from workbook.studies.record import Tables

RULES = NAMES | {LENGTH: BY_LENGTH}
_TASKS = ("sums", "ramble")
_MODELS = {  # what it is called: scale, study
    "the family, ten policies": ("family", "dose"),
    "SmolLM2, six draws": ("smollm2_plain", "dose_llm"),
    "Gemma, one draw": ("gemma3_plain", "dose_llm"),
}
PROMPTS = (1, 16, 64)  # that push in a step


def _runs() -> pd.DataFrame:
    """A row per task, unit, rule and batch: value, tax, tokens of an answer and of a wrong one."""
    parts = []
    for task in _TASKS:
        table = Tables(f"smollm2:{task}")["smollm2_training/runs"]
        parts.append(table.assign(task=task, rule=table["arm"].map(RULES)))
    columns = ["task", "seed", "rule", "batch", "value", "tax", "length", "wrong_length"]
    return pd.concat(parts, ignore_index=True)[columns]


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


def _tuning() -> pd.DataFrame:
    """A row per rule, rate and batch: the held-out reward, mean over the tuning policies."""
    table = Tables("smollm2:sums")["smollm2_rates/runs"]
    table = table.assign(rule=table["arm"].map(RULES))
    return table.groupby(["rule", "lr", "batch"], as_index=False)["value"].mean()


def _follows() -> pd.DataFrame:
    """A row per draw of prompts of SmolLM2, number of prompts and kind of token: how often the
    token follows its own rollout's sign, and how often the other prompts' push has that sign.
    """
    rates = Tables("smollm2_plain")["dose_llm/rates"]
    return rates[["seed", "prompts", "tokens", "follows", "others_follow"]]


def _models() -> pd.DataFrame:
    """A row per quantity, model and number of prompts that push: mean, low and high over units, and
    how many units; of one unit its number alone.
    """
    rows = []
    for model, (scale, study) in _MODELS.items():
        rates, net = Tables(scale)[f"{study}/rates"], Tables(scale)[f"{study}/net"]
        ratios = contrasts(net[net["identity"] == "sign-shared"])
        quantities = {
            "a moved token follows its own rollout": (rates.query("tokens == 'moved'"), "follows"),
            "distance of the two signs' shares": (rates.query("tokens == 'all'"), "distance"),
            "net change, shared / specific": (ratios, "ratio"),
        }
        for quantity, (table, column) in quantities.items():
            curve = unit_curve(table[table["prompts"].isin(PROMPTS)], "prompts", column)
            rows.append(curve.assign(quantity=quantity, model=model))
    return pd.concat(rows, ignore_index=True)


def _mass() -> pd.DataFrame:
    """Where the movement goes that single tokens cause: means over draws, by place and kind."""
    table = Tables("smollm2_plain")["dose_llm/mass"]
    return table.groupby(["where", "kind"], as_index=False)[["pairs", "mass", "net"]].mean()


def _shift() -> pd.DataFrame:
    """Template words, both signs minus positive only: mean, low and high by prompts per step, at
    equal prompts and at equal gradient energy.
    """
    table = Tables("smollm2_plain")["dose_llm/shift"].query("category == 'Template'")
    return unit_curve(table, "prompts", "shift", by="equal_energy")


def _agreement() -> pd.DataFrame:
    """On which share of tokens the output layer alone predicts the sign of a change, by step of a
    short training: mean, low and high, by a t interval over draws and by a bootstrap over draws and
    prompts.
    """
    table = Tables("smollm2_chat")["coupling/agreement"]
    rows = []
    for step, part in table.groupby("step"):
        intervals = {
            "t, draws": t_interval(part.groupby("seed")["agree"].mean()),
            "bootstrap, draws and prompts": nested_mean(part, "agree"),
        }
        for name, interval in intervals.items():
            rows.append({"step": step, "interval": name, **interval._asdict()})
    return pd.DataFrame(rows)


FIGURES = {
    "smollm2_training": {"language/runs": _runs, "language/training": language_training},
    "smollm2_rates": {"language/tuning": _tuning},
    "dose_llm": {
        "language/follows": _follows,
        "language/mass": _mass,
        "language/models": _models,
        "language/shift": _shift,
    },
    "coupling": {"language/agreement": _agreement},
}
