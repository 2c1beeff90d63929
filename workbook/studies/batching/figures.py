"""What chapters 08 and 14 draw of the study of mini-batches: a function for each table of
data/figures/batching.
"""

from math import nan

import pandas as pd

from workbook.chapters.batching.explore import OUTCOMES
from workbook.chapters.batching.toy import NAMES
from workbook.statistics import t_interval
from workbook.studies.batching.claims import LEVEL
from workbook.studies.batching.study import (
    PROMPTS,
    against_shuffled,
    ends,
    measured_curves,
    tuned_levels,
)
from workbook.studies.record import load_measured
from workbook.views.figures import INTERVAL


def _orders() -> pd.DataFrame:
    """Every outcome of an order minus that of shuffled runs, a row per policy, level, order and
    matching; prompts: of a generation batch.
    """
    _runs, keys = ends(measured_curves()), ["policy", "level", "order", "matched"]
    parts = [
        against_shuffled(_runs, name).groupby(keys)["difference"].mean().rename(name)
        for name in OUTCOMES
    ]
    # a policy's units are one
    table = pd.concat(parts, axis=1).reset_index().rename(columns={"policy": "seed"})
    return table.assign(prompts=PROMPTS)


def _choices() -> pd.DataFrame:
    """What an order changes about the held-out value, beside two ordinary choices: columns change,
    mean, low, high, units.
    """
    _runs = ends(measured_curves()).query("matched")
    gaps = against_shuffled(_runs.query("level == @LEVEL"))
    gaps = gaps.groupby(["order", "policy"])["difference"].mean()
    changes = {f"{NAMES[order]} instead of shuffled": part for order, part in gaps.groupby("order")}

    shuffled = _runs.query("order == 'shuffled'")
    shuffled = shuffled.pivot(index="seed", columns="level", values="value")
    for level in (2, 32):
        name = f"{level} prompts per mini-batch instead of 8, each at half of its best rate"
        changes[name] = (shuffled[level] - shuffled[LEVEL]).dropna()
    rows = [(name, *t_interval(part), len(part)) for name, part in changes.items()]

    tuning = ends(load_measured("batch_rates", "family", "curves")).query("level == @LEVEL")
    tuning = tuning.pivot(index="seed", columns="lr", values="value")
    calm = min(tuning.columns, key=lambda rate: abs(rate - tuned_levels()[LEVEL]))
    halved = tuning[calm / 2] - tuning[calm]
    # three units: too few for an interval
    rows.append(("half of these runs' learning rate", halved.mean(), nan, nan, len(halved)))
    return pd.DataFrame(rows, columns=["change", *INTERVAL, "units"])


FIGURES = {
    "batch_composition": {
        "batching/orders": _orders,
        "batching/choices": _choices,
    },
}
