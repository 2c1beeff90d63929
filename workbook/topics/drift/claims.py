"""Claims of chapter 09: whether unequal weights are what moves words that no reward asked for (D1 to D9, D-falsifier).

What each row measures, and against which number, stands in data/results/confidence/registration.yaml and, over whole
runs at one learning rate, in data/results/training_curves/registration.yaml. Three things are
kept apart: the mechanism (what is left on shared tokens, which is algebra for the repairs), the consequence in training
(tax, entropy, odds, held-out value) and controls. Paper D claims *necessity*: without exchangeable weights there is a
tax. So the falsifier's row asks for a run without them whose tax is no larger than that of its twin with permuted
advantages, which learns nothing.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from workbook.studies.claim import Claim, Measurement, Tables
from workbook.topics.drift.arms import DEAD
from workbook.topics.drift.curves import CURVES, GROUPS, PAIRS
from workbook.topics.drift.effects import (
    STUDY,
    G,
    Paths,
    batches_to_equal_value,
    excess_at_end,
    gap_at_end,
    gap_at_equal_value,
    gap_of_values,
    per_unit,
    residual_gap,
    shared_share,
    slope_by_group,
)


def _row(key: str, measure) -> Measurement:
    return Measurement(STUDY, key, measure, scales=["family"])


def _runs(key: str, number, group_size: int = G) -> Measurement:
    """A row of a number of a unit's runs at confidence 0.8."""
    return _row(key, partial(per_unit, number=number, group_size=group_size))


def value_jitter(values: np.ndarray) -> float:
    """Mean size of the second difference of a run's exact values: without sampling noise."""
    return float(np.abs(np.diff(values, 2)).mean())


def entropy_lost(path: Paths, arm: str, permuted: bool = False) -> pd.DataFrame:
    """A run with the column lost: the entropy of style words that is gone since the start, nats a word."""
    run = path(arm, permuted)
    return run.assign(lost=run["style_entropy"].iloc[0] - run["style_entropy"])


def losing(number):
    """A number of paths, whose runs have the column lost."""
    return lambda path: number(partial(entropy_lost, path))


def gained_lever(tables: Tables) -> pd.Series:
    """Share of energy that whole groups of sixteen share, minus that of pairs, at confidence 0.8."""
    return shared_share(16)(tables) - shared_share(2)(tables)


def at_last(name: str, less: str | None = None, column: str = "value", place=PAIRS, readings: int = 1):
    """A measure of the study `training_curves`: a column at the last readings of an arm, minus another arm's.

    A run that collapsed (its value below half of the start's) gives no number.
    """

    def measure(tables: Tables) -> pd.Series:
        runs = [curve_at(tables, place, arm, column) for arm in (name, less) if arm]
        ends = [run.iloc[:, -readings:].mean(axis=1, skipna=False) for run in runs]
        return ends[0] - ends[1] if less else ends[0]

    return measure


def curve_at(tables: Tables, place: tuple[int, float], arm: str, column: str) -> pd.DataFrame:
    """A column of one arm's runs in `training_curves`, units x batches; NaN throughout where a run collapsed.

    "lost": entropy of style words that is gone since the first reading, nats a word.
    """
    rows = tables[f"{CURVES}/curves"]
    rows = rows[(rows["group_size"] == place[0]) & np.isclose(rows["confidence"], place[1]) & ~rows["permuted"]]
    runs, name = rows[rows["arm"] == arm], "style_entropy" if column == "lost" else column
    value, wanted = (runs.pivot(index="seed", columns="batch", values=one) for one in ("value", name))
    wanted = (-wanted).add(wanted.iloc[:, 0], axis=0) if column == "lost" else wanted
    alive = value.min(axis=1) >= DEAD * value.iloc[:, 0]
    return wanted[alive].reindex(wanted.index)


def at_worst(column: str):
    """A measure of `training_curves`: the least of a column along PPO's run in groups of eight."""
    return lambda tables: curve_at(tables, GROUPS, "PPO", column).min(axis=1, skipna=False)


def _curve(key: str, measure) -> Measurement:
    return Measurement(CURVES, key, measure, scales=["family"])


FIX = ("GSPO", "min-replace")
CLAIMS = [
    Claim(
        "D1",
        "shared tokens stay where they are if weights are exchangeable within the group",
        "condition on the weights",
        "with equal weights more than a tenth of the update is left on shared tokens",
        [
            _row("D1", residual_gap("equal weights", None, "gradient")),
            _row("D1 energy", shared_share(G)),
            _row("D1 energy of eight", shared_share(8)),
            _runs("D1 consequence", gap_at_equal_value("min-replace", "GSPO", "template_tax")),
        ],
    ),
    Claim(
        "D2",
        "a sequence-level ratio leaves more of an update on shared tokens than a token-level one",
        "Cor 3.3",
        "the sequence-level ratio leaves no more on shared tokens than the token-level one",
        [
            _row("D2", residual_gap("sequence ratio", "token ratio")),
            _row("D2 groups of eight", residual_gap("sequence ratio", "token ratio", group_size=8)),
            _row("D2 clipped", residual_gap("sequence, clipped", "sequence ratio")),
        ],
    ),
    Claim(
        "D3",
        "a one-sided clip narrow enough to bind (0.01) leaves an update on shared tokens, a two-sided one hardly",
        "clipping in the objective",
        "the one-sided clip leaves no more on shared tokens than the two-sided one",
        [
            _row("D3", residual_gap("token, clipped", "token, symmetric")),
            _row("D3 sequence", residual_gap("sequence, clipped", "sequence, symmetric")),
            _row("D3 usual range", residual_gap("PPO's clip, 0.2", None, "stopped")),
            _runs("D3 consequence", gap_at_equal_value("PPO", "PPO, symmetric")),
        ],
    ),
    Claim(
        "D4",
        "without cancellation reward-irrelevant tokens drift more: the learning tax",
        "Prop 3.1",
        "at equal value runs without the fix pay no more tax",
        [
            _runs("D4", gap_at_equal_value("GSPO", "min-replace")),
            _runs("D4 clip off", gap_at_equal_value("clip off", "min-replace")),
            _runs("D4 style", gap_at_equal_value("GSPO", "min-replace", "tax")),
            _curve("D4 over training", at_last(*FIX, "tax")),
            _curve("D4 over training, eight", at_last(*FIX, "tax", GROUPS)),
        ],
    ),
    Claim(
        "D5",
        "without cancellation the entropy over equivalent solutions falls",
        "Cor 3.2",
        "at equal value runs without the fix lose no more entropy over equivalent solutions",
        [
            _runs("D5", losing(gap_at_equal_value("GSPO", "min-replace", "lost"))),
            _runs("D5 odds", gap_at_equal_value("GSPO", "min-replace", "odds")),
            _curve("D5 over training", at_last(*FIX, "lost")),
        ],
    ),
    Claim(
        "D6",
        "the group's least weight for all of it restores cancellation",
        "Eq 17",
        "the update on shared tokens does not fall",
        [
            _row("D6", residual_gap("min-replace", None)),
            _row("D6 mechanism", residual_gap("min-replace", "sequence ratio", "gradient")),
            _runs("D6 consequence", gap_at_equal_value("min-replace, clamped", "GSPO")),
            _runs("D6 control", gap_at_equal_value("min-replace, clamped", "clip off")),
        ],
    ),
    Claim(
        "D7",
        "weights made orthogonal to the advantages restore cancellation",
        "Eq 18",
        "the update on shared tokens does not fall",
        [
            _row("D7", residual_gap("orthogonal", None)),
            _row("D7 mechanism", residual_gap("orthogonal", "sequence ratio", "gradient")),
            _runs("D7 consequence", gap_at_equal_value("orthogonal", "GSPO")),
        ],
    ),
    Claim(
        "D8",
        "with that fix (min-replace) training scores higher",
        "Tables 1, 2",
        "the held-out value is not higher",
        [
            _runs("D8", gap_at_end("min-replace", "GSPO")),
            _runs("D8 clamped", gap_at_end("min-replace, clamped", "GSPO")),
            _runs("D8 control", gap_at_end("min-replace, clamped", "clip off")),
            _runs("D8 orthogonal", gap_at_end("orthogonal", "GSPO")),
            _runs("D8 symmetric", gap_at_end("PPO, symmetric", "PPO")),
            _runs("D8 jitter", gap_of_values("min-replace", "GSPO", value_jitter)),
            _runs("D8 compute", batches_to_equal_value("min-replace", "GSPO")),
            _curve("D8 over training", at_last(*FIX[::-1])),
            _curve("D8 over training, eight", at_last(*FIX[::-1], place=GROUPS)),
        ],
    ),
    Claim(
        "D9",
        "the fix gains more with more rollouts per prompt",
        "Table 4",
        "the gain in held-out value does not grow with the group",
        [
            _row("D9", partial(slope_by_group, number=gap_at_end("min-replace", "GSPO"))),
            _row("D9 mechanism", gained_lever),
        ],
    ),
    Claim(
        "D-falsifier",
        "a run without exchangeable weights pays no more tax than its twin, whose weights are unequal, too",
        "what would settle it",
        "a run without exchangeable weights pays no more tax than its twin with permuted advantages",
        [
            _runs("D-falsifier", excess_at_end("GSPO")),
            _runs("D-falsifier clip off", excess_at_end("clip off")),
            _runs("D-falsifier token ratios", excess_at_end("PPO")),
            _runs("D-falsifier exchangeable", excess_at_end("min-replace")),
            _runs("D-falsifier groups of eight", excess_at_end("GSPO"), 8),
        ],
    ),
    Claim(  # its words are chapter 06's
        "H4",
        "",
        "",
        "",
        [
            _curve("H4 over training", at_worst("agreement, moved")),
            _curve("H4 over training, all", at_worst("agreement, all")),
        ],
    ),
    Claim("H7", "", "", "", [_curve("H7 over training", at_last("PPO", None, "gap", GROUPS, 3))]),  # chapter 07's
]
