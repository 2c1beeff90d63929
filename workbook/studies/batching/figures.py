"""What chapters 08 and 14 draw of the studies of mini-batches: a function for each table of
data/figures/batching.
"""

from math import nan

import pandas as pd

from workbook.chapters.batching.explore import OUTCOMES
from workbook.chapters.batching.toy import NAMES
from workbook.statistics import nested_mean, t_interval, unit_curve
from workbook.studies.batching.claims import LEVEL, less_cancelled
from workbook.studies.batching.study import (
    PROMPTS,
    against_shuffled,
    ends,
    measured_curves,
    tuned_levels,
)
from workbook.studies.record import Tables, load_measured
from workbook.studies.unit import UNITS
from workbook.views.figures import INTERVAL

_POLICIES = {"bundled": "bundled policy", "smollm2_chat": "SmolLM2-135M"}  # by scale
MEASURES = {"in_step": "cancelled in a step", "sign_cosine": "cosine of the signs"}
ARM_MEANS = ["start", "value", "sign_cosine", "grad_norm", "moved", "collapsed"]
_ARM = ["matched", "level", "order"]


def _mechanism() -> pd.DataFrame:
    """What cancels in a step and the cosine of its signs, before training: columns policy, measure,
    tokens, strategy, mean, low, high.
    """
    rows = []
    for scale, policy in _POLICIES.items():
        steps = load_measured("minibatches", scale, "steps")
        for column, measure in MEASURES.items():
            cells = steps.dropna(subset=column).groupby(["tokens", "strategy"])
            for (tokens, strategy), part in cells:
                rows.append((policy, measure, tokens, strategy, *nested_mean(part, column)))
    return pd.DataFrame(rows, columns=["policy", "measure", "tokens", "strategy", *INTERVAL])


def _whole_prompts() -> pd.DataFrame:
    """Cosine of the signs in query-preserved mini-batches minus that in shuffled ones: a row per
    policy and kind of tokens.
    """
    rows = []
    for scale, policy in _POLICIES.items():
        tables = Tables(scale)
        seeds = tables["minibatches/steps"]["seed"].nunique()
        for tokens in ("all", "shared"):
            gap = less_cancelled(tables, "query_preserved", tokens, "sign_cosine")
            rows.append((policy, seeds, tokens, *gap))
    return pd.DataFrame(rows, columns=["policy", "seeds", "tokens", *INTERVAL])


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


def _runs() -> pd.DataFrame:
    """Means of all runs of an arm, its learning rate, and how many units it has."""
    by_arm = ends(measured_curves()).groupby(_ARM)
    means = by_arm[ARM_MEANS].mean()
    return means.assign(lr=by_arm["lr"].first(), units=by_arm["seed"].nunique()).reset_index()


def _value_curves() -> pd.DataFrame:
    """Exact held-out value along training at level 8, by order: means over policies."""
    curves = measured_curves().query("level == @LEVEL and matched")
    curves = curves.assign(policy=curves["seed"] % len(UNITS))  # three units share a policy
    return unit_curve(curves, "batch", "value", unit="policy", by="order")


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
    rows.append(("half the rate instead of the study's", halved.mean(), nan, nan, len(halved)))
    return pd.DataFrame(rows, columns=["change", *INTERVAL, "units"])


FIGURES = {
    "batch_composition": {
        "batching/orders": _orders,
        "batching/runs": _runs,
        "batching/value_curves": _value_curves,
        "batching/choices": _choices,
    },
    "minibatches": {"batching/mechanism": _mechanism, "batching/whole_prompts": _whole_prompts},
}
