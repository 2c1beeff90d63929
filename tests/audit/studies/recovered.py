"""recovered, recovered_dials and recovered_members: what part of a step's movement is signal, bias and noise."""

from __future__ import annotations

import numpy as np

from audit.tables import at, each, one

STEP = {"axis": "rule", "prompts": 16, "group_size": 8}


def share(column="signal", category="all", rule="grpo"):
    """signal, bias, noise: own and coupled; coupling: all that is coupled."""

    def number(units):
        rows = at(units.table("shares"), **STEP, rule=rule, category=category)
        names = {
            "signal": ("own_signal", "coupled_signal"),
            "noise": ("own_noise", "coupled_noise"),
            "coupling": ("coupled_signal", "coupled_bias", "coupled_noise"),
        }[column]
        return sum(one(rows, name) for name in names)

    return number


def update(column, rule="grpo"):
    return lambda units: one(units.table("update"), column, **STEP, rule=rule)


def needed(units):
    return update("oracle_rollouts")(units) / 128


def octaves(units):
    rows = at(units.table("update"), axis="group_size", rule="grpo", prompts=16)

    def number(unit):
        noise = dict(zip(unit["group_size"], unit["noise_per_signal"], strict=True))
        return np.mean([abs(np.log2(noise[g] / (noise[8] * 7 / (g - 1)))) for g in (2, 4, 16, 32, 64)])

    return each(rows, number)


def held_out(units):
    def cosine(prompts, size):
        rows = at(units.table("update"), axis="equal", rule="grpo")
        return one(rows, "cosine_held_out", prompts=prompts, group_size=size)

    return cosine(4, 32) - cosine(64, 2)


def less_grpo(rule):
    return lambda units: update("signal", rule)(units) - update("signal")(units)


OUTCOMES = {
    "S1": share(),
    "S1 weights": update("signal"),
    "S1 oracle": share(rule="oracle"),
    "S1 coupling": share("coupling"),
    "S1 result": share(category="result"),
    "S2": share("noise", "style"),
    "S3": needed,
    "S3 cosine": update("expected_cosine"),
    "S4": octaves,
    "S4 held out": held_out,
    "S5": less_grpo("positive_only"),
    "S5 negative": less_grpo("negative_only"),
    "S5 bias": update("expected_cosine", "positive_only"),
}


def dialled(dial, level, *columns):
    """Sum of columns, all tokens, GRPO, on the members with a dial minus on those at their defaults."""

    def number(units):
        rows = at(units.table("shares"), rule="grpo", category="all")
        away, base = at(rows, dial=dial, level=float(level)), at(rows, dial="none")
        return sum(one(away, name) - one(base, name) for name in columns)

    return number


SIGNAL = ("own_signal", "coupled_signal")
DIALS = {
    "S6": dialled("alphabets", 16, *SIGNAL),
    "S6 style": dialled("alphabets", 16, "coupled_noise"),
    "S7": dialled("confidence", 0.7, *SIGNAL),
}


def high_less_low(dial, low, high):
    """The signal's share, all tokens, GRPO, on the members at a dial's high level minus on those at its low one."""

    def number(units):
        rows = at(units.table("shares"), rule="grpo", category="all", dial=dial)
        ends = [at(rows, level=float(level)) for level in (high, low)]
        return sum(one(ends[0], name) - one(ends[1], name) for name in SIGNAL)

    return number


MEMBERS = {
    "S1 width": high_less_low("width", 32, 128),
    "S1 length": high_less_low("operands", 3, 6),
    "S1 training": high_less_low("sft_steps", 300, 1200),
}
