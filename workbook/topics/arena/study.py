"""The arena's study: every rule in ten units, the bounds and plain group credit in thirty.

A unit is a policy of the family and a stream of prompts. What was stated before, and what is judged by it:
data/results/arena/registration.yaml.
"""

from __future__ import annotations

import pandas as pd

from workbook.studies.bench import Bench
from workbook.topics.arena.rules import ALL, BOUNDS, contender
from workbook.topics.arena.runs import FULL, Setting, unit_tables

WIDE = 10  # units that train every rule; those after them train the bounds and plain group credit
UNMATCHED = 6  # units that also train these three at unmatched update size
NOT_TRAINED = ("rloo",)  # dr_grpo times G / (G - 1) in groups of one size: at equal gradient norm it is the same run


def arena_study(bench: Bench, setting: Setting = FULL) -> dict[str, pd.DataFrame]:
    """Tables marks and runs of a unit: see `runs.unit_tables`."""
    rules = {name: contender(name) for name in (ALL if bench.seed < WIDE else BOUNDS)}
    trained = {"grad_norm": [rule for name, rule in rules.items() if name not in NOT_TRAINED]}
    if bench.seed < UNMATCHED:
        trained[None] = [rules[name] for name in BOUNDS]
    return unit_tables(bench, setting, rules.values(), trained)
