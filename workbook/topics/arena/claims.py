"""Claims of the arena: how much plain group credit gets of what is possible, and whether neighbours' rules get more.

A1: ours.  P1: prefix credit (arXiv 2509.21154, our reading).  P2: IBPO (arXiv 2605.16302) as our reading has it, its
continuations counted.  P3: its edit mask alone. Each is compared with the group advantage that it starts from. What
each row measures, and against which number, stands in data/results/arena/registration.yaml.
"""

from __future__ import annotations

from functools import partial

import pandas as pd

from workbook.studies.claim import Claim, Measurement, Tables
from workbook.topics.arena.rules import LOWER, PLAIN, UPPER
from workbook.topics.arena.scores import START, cosine, outcomes, ratio_units, score_units, wide

STUDY = "arena"


def scored(tables: Tables, rule: str, **settings) -> pd.Series:
    """Pseudo-values of a rule's score; settings: of `scores.score_units`."""
    return score_units(outcomes(tables[f"{STUDY}/runs"]), rule, **settings)


def value_gap(tables: Tables, rule: str, base: str, column: str = "value") -> pd.Series:
    """Exact held-out value at equal sampled tokens, rule minus base, per unit."""
    values = wide(outcomes(tables[f"{STUDY}/runs"]), column)
    return values[rule] - values[base]


def marks_gap(tables: Tables, rule: str, base: str, column: str = "correlation") -> pd.Series:
    """A column of the marks, rule minus base, per unit."""
    values = tables[f"{STUDY}/marks"].pivot(index="seed", columns="rule", values=column)
    return values[rule] - values[base]


def cosine_units(tables: Tables, rule: str) -> pd.Series:
    """Pseudo-values of the cosine of a rule's mean update with the ideal one."""
    return ratio_units(tables[f"{STUDY}/marks"], rule, cosine)


def _row(key: str, measure, **settings) -> Measurement:
    return Measurement(STUDY, key, partial(measure, **settings), scales=["family"])


def against(key: str, rule: str, base: str) -> list[Measurement]:
    """A neighbour's rows: held-out value first, then what its advantages know."""
    return [
        _row(key, value_gap, rule=rule, base=base),
        _row(f"{key} mechanism", marks_gap, rule=rule, base=base),
        _row(f"{key} area", value_gap, rule=rule, base=base, column="area"),
    ]


CLAIMS = [
    Claim(
        "A1",
        "one reward per rollout already teaches most of what the true credit of every token would",
        "the question of both titles",
        "plain group advantages get less than half of the way from permuted advantages to true credit",
        [
            _row("A1", scored, rule=PLAIN),
            _row("A1 gain", scored, rule=PLAIN, floor=START),
            _row("A1 mechanism", cosine_units, rule=PLAIN),
            _row("A1 distance", value_gap, rule=PLAIN, base=UPPER),
            _row("A1 control", value_gap, rule="coin_reward", base=LOWER),
            _row("A1 unmatched", scored, rule=PLAIN, match="none"),
        ],
    ),
    Claim(
        "P1",
        "comparing rollouts where they part gives step credit that teaches faster [reading]",
        "arXiv 2509.21154, the hidden process reward",
        "no more is learned from as many sampled tokens",
        against("P1", "prefix_credit", PLAIN),
    ),
    Claim(
        "P2",
        "crediting a failing rollout's edits, and rewarding those that one edit saves, teaches faster (IBPO) [reading]",
        "arXiv 2605.16302",
        "no more is learned from as many sampled tokens, its continuations counted",
        against("P2", "ibpo", "grpo"),
    ),
    Claim(
        "P3",
        "crediting only the tokens in which a failing rollout differs from its nearest correct sibling teaches faster "
        "[reading]",
        "arXiv 2605.16302, its edit mask alone",
        "no more is learned from as many sampled tokens",
        against("P3", "edit_mask", "grpo"),
    ),
]
