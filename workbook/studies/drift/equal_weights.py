"""The study `equal_weights`: a run whose groups weigh their rollouts unequally beside the same run
with equal weights.

Ratios and clips give the rollouts of a group unequal weights. Here each such objective is trained
beside the same one whose weights are, at every step, their mean over the group: rate, clip range,
sizes, prompts, first rollouts and the sum of a group's weights are the same, only the inequality is
gone. A positive control shows what the design can see: of failing rollouts the least likely tenth
of the tokens push alone, so that on shared words one sign is left.

`equal_weights_tuning` chose the one learning rate of all arms, on policies that are no units.
Registration: data/results/unequal_weights/registration.yaml.
"""

from collections.abc import Callable
from dataclasses import replace

import pandas as pd

from workbook.chapters.drift.objectives import HELD_OUT_PROMPTS
from workbook.policies.family import committed_seeds
from workbook.policies.load import load_policy
from workbook.probes.readings import Readings
from workbook.statistics import logs
from workbook.studies.drift.study import DEAD
from workbook.studies.record import Tables
from workbook.studies.unit import StudyUnit
from workbook.theory.credit_controls import EqualWeights
from workbook.training.loop import LoopConfig, train

LR, RATES = 3e-4, (1.5e-4, 3e-4, 6e-4)  # of all arms, as tuned; tried
# generation batches of 64 rollouts, and from one reading to the next
SHORT, TWINS, _LONG, _EVERY = 12, 24, 60, 6
_LOOP = LoopConfig(minibatches=2, epochs=2, order="query_preserved", rule="dr_grpo")
_KEPT = ["batch", "steps", "reward", "value", "moved", "tax", "style_entropy"]
# weights; "least" of the group is min-replace, "one sign" the control
_GSPO, BOTH = "GSPO", ("unequal", "equal")
OBJECTIVES = {  # level of the ratio, clip range
    # its published range (arXiv 2507.18071) for answers of one line
    _GSPO: ("sequence", (40 * 3e-4, 40 * 4e-4)),
    "GSPO, no clip": ("sequence", None),
    "PPO, 0.2": ("token", (0.2, 0.2)),
    "PPO, 0.2 and 0.28": ("token", (0.2, 0.28)),
    "PPO, 0.01": ("token", (0.01, 0.01)),
}
_RUNS = [  # objective, weights, group size, batches, permuted
    *((_GSPO, weights, 2, _LONG, False) for weights in (*BOTH, "least", "one sign")),
    *((_GSPO, weights, 8, _LONG, False) for weights in BOTH),
    *((_GSPO, weights, 8, SHORT, False) for weights in ("least", "one sign")),
    *((_GSPO, weights, *size, True) for size in ((2, TWINS), (8, SHORT)) for weights in BOTH),
    *((name, weights, 2, SHORT, False) for name in list(OBJECTIVES)[1:] for weights in BOTH),
    *(("PPO, 0.2 and 0.28", weights, 8, SHORT, False) for weights in BOTH),
]


def arm_loop(
    objective: str, weights: str, group_size: int, batches: int, permuted: bool = False, lr=LR
) -> LoopConfig:
    """The loop of a run; objective: of OBJECTIVES, weights: "unequal", "equal", "least" or "one
    sign".
    """
    level, clip = OBJECTIVES[objective]
    sizes = {"prompts": 64 // group_size, "group_size": group_size, "batches": batches}
    loop = replace(_LOOP, **sizes, lr=lr, permuted=permuted)
    if weights == "equal":
        return replace(loop, rule=EqualWeights(level, clip))
    fix = {}
    if weights == "least":
        fix = {"transform": "min_replace", "transform_on": "clipped_weights"}
    rule = "negative_token_filtering" if weights == "one sign" else loop.rule
    return replace(loop, level=level, clip=clip, rule=rule, **fix)


def equal_weights_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table runs of one unit: the readings of `train` for each of RUNS, whose columns
    come last.
    """
    runs = (
        [(*run[:3], _EVERY, run[4]) for run in _RUNS[:2]] if unit.setting.name == "tiny" else _RUNS
    )
    return {"runs": _trained(unit, unit.policy, unit.data_seed, runs)}


def equal_weights_tuning(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table rates of one unit: short runs at each of RATES, of every policy that is kept for
    tuning.
    """
    arms = [
        (_GSPO, "unequal"),
        (_GSPO, "equal"),
        (_GSPO, "one sign"),
        ("PPO, 0.2 and 0.28", "unequal"),
    ]
    runs = [(*arm, size, SHORT, False) for arm in arms for size in (2, 8)]
    parts = []
    for seed in committed_seeds("tuning"):
        policy = load_policy(name := f"family:seed={seed}")
        unit.loaded[name] = policy.provenance["sha256"]
        parts += [_trained(unit, policy, seed, runs, lr).assign(policy=name) for lr in RATES]
    return {"rates": pd.concat(parts, ignore_index=True)}


def _trained(unit: StudyUnit, policy, seed: int, runs: list[tuple], lr: float = LR) -> pd.DataFrame:
    """The readings of runs from one policy, with each run's names."""
    held_out = unit.task.dataset(HELD_OUT_PROMPTS, unit.held_out_seed)["prompt"][:]
    readings, tables = Readings(policy, unit.task, held_out), []
    for run in runs:
        table = train(policy, unit.task, arm_loop(*run, lr=lr), seed, readings, _EVERY)[_KEPT]
        names = dict(
            zip(("objective", "weights", "group_size", "batches", "permuted"), run, strict=True)
        )
        tables.append(table.assign(**names, lr=lr))
    return pd.concat(tables, ignore_index=True)


# --- numbers per unit


def curve_of(
    tables: Tables,
    weights: str,
    column="tax",
    size: int = 2,
    objective: str = _GSPO,
    permuted: bool = False,
) -> pd.DataFrame:
    """A column of a run, units x batches; NaN throughout where one that could learn fell below half
    its first value.
    """
    rows = tables["equal_weights/runs"].query(
        "objective == @objective and weights == @weights and group_size == @size"
    )
    rows = rows[rows["permuted"] == permuted]
    value, wanted = (
        rows.pivot(index="seed", columns="batch", values=name) for name in ("value", column)
    )
    return wanted[permuted | (value.min(axis=1) >= DEAD * value[0])].reindex(wanted.index)


def taxes(
    one: str, other: str, batch: int = _LONG, nats: bool = False, **run
) -> Callable[[Tables], pd.Series]:
    """Tax under one kind of weights over that under another, after some batches; nats: minus.  run:
    of `curve_of`.
    """

    def measure(tables: Tables) -> pd.Series:
        first, second = (curve_of(tables, weights, **run)[batch] for weights in (one, other))
        return first - second if nats else logs(first / second)

    return measure
