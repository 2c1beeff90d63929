"""training_curves: runs of arms at one learning rate, in groups of eight and in pairs.

What the registration's sentences leave to the tables: a run of which any value is below half of its first gives no
number; the last reading is the one of the largest batch; entropy lost is the first reading's minus the last's.
"""

from __future__ import annotations

import numpy as np

from audit.tables import at, each

EIGHT, PAIRS = (8, 1.0), (2, 0.8)


def runs(units, place):
    table = units.table("curves")
    return at(table[table["permuted"].to_numpy() == 0], group_size=place[0], confidence=place[1])


def run(rows, arm, column):
    """A column of one arm's run, batches in order; NaN throughout where it collapsed."""
    own = at(rows, arm=arm).sort_values("batch")
    values = own["value"].to_numpy(float)
    return own[column].to_numpy(float) * (1.0 if values.min() >= values[0] / 2 else np.nan)


def difference(first, second, column, place=PAIRS, since_start=False):
    """At the end, first arm's minus second's; since_start: of what was lost since the first reading."""

    def number(rows):
        one, other = run(rows, first, column), run(rows, second, column)
        return (one[0] - one[-1]) - (other[0] - other[-1]) if since_start else one[-1] - other[-1]

    return lambda units: each(runs(units, place), number)


def worst(column):
    return lambda units: each(runs(units, EIGHT), lambda rows: run(rows, "PPO", column).min())


def late(units):
    return each(runs(units, EIGHT), lambda rows: run(rows, "PPO", "gap")[-3:].mean())


OUTCOMES = {
    "D4 over training": difference("GSPO", "min-replace", "tax"),
    "D4 over training, eight": difference("GSPO", "min-replace", "tax", EIGHT),
    "D5 over training": difference("GSPO", "min-replace", "style_entropy", since_start=True),
    "D8 over training": difference("min-replace", "GSPO", "value"),
    "D8 over training, eight": difference("min-replace", "GSPO", "value", EIGHT),
    "H4 over training": worst("agreement, moved"),
    "H4 over training, all": worst("agreement, all"),
    "H7 over training": late,
}
