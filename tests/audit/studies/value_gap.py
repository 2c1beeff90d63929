"""value_gap: exact value of boosted minus suppressed tokens, and what it grows with."""

from __future__ import annotations

import numpy as np

from audit.tables import at, each, one

SAMPLE, PROMPTS, FIXED = "rollouts per prompt, 16 prompts", "prompts, 8 rollouts each", "rollouts per prompt, 64 in all"


def gap(pool, rollouts="all", matched="position", of="value", advantages="own"):
    place = {"pool": pool, "rollouts": rollouts, "matched": matched, "of": of, "advantages": advantages}
    return lambda units: one(units.table("gaps"), "gap", **place)


def slope(axis, along, pool, matched="position"):
    """Least squares of the gap per doubling; a unit needs two cells with a gap."""

    def number(rows):
        rows = rows.dropna(subset=["gap"])
        x = np.log2(rows[along].to_numpy(float))
        away = x - x.mean()
        return (away * rows["gap"]).sum() / (away**2).sum() if len(rows) > 1 else np.nan

    return lambda units: each(at(units.table("budget"), axis=axis, pool=pool, matched=matched), number)


def widening(pool, nats=0.01):
    def number(units):
        rows = at(units.table("repeated"), pool=pool, nats=nats, matched="position")
        return one(rows, "gap", step=8) - one(rows, "gap", step=1)

    return number


OUTCOMES = {
    "H7": gap("training"),
    "H7 positive": gap("training", "positive"),
    "H7 negative": gap("training", "negative"),
    "H7 unmatched": gap("training", matched="prompt"),
    "H7 credit": gap("training", of="credit"),
    "H7 permuted": gap("training", advantages="permuted"),
    "R4": gap("held-out"),
    "R4 negative": gap("held-out", "negative"),
    "R4 positive": gap("held-out", "positive"),
    "R4 permuted": gap("held-out", advantages="permuted"),
    "R1 value": gap("training", matched="token"),
    "H8": slope(SAMPLE, "group_size", "training"),
    "H8 held-out": slope(SAMPLE, "group_size", "held-out"),
    "H8 unmatched": slope(SAMPLE, "group_size", "training", "prompt"),
    "H8 prompts": slope(PROMPTS, "prompts", "held-out"),
    "H8 fixed budget": slope(FIXED, "group_size", "held-out"),
    "H9": widening("training"),
    "H9 held-out": widening("held-out"),
    "H9 tenth": widening("training", 0.001),
}
