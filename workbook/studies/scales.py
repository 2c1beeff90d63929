"""Scales of a study: which policy and task, how many prompts, rollouts and seeds."""

from __future__ import annotations

from dataclasses import dataclass, field

from workbook.training.messages import show_value


@dataclass(frozen=True)
class Scale:
    """How large a study is: which policy and task, how many prompts, rollouts per prompt, new tokens and seeds."""

    name: str
    policy: str
    task: str
    prompts: int
    held_out: int
    group_size: int
    max_new_tokens: int
    seeds: int
    task_options: dict = field(default_factory=dict)


ONE_DIGIT_SUMS = {"chat": True, "max_terms": 2, "max_digits": 1}
PLAIN_SUMS = ONE_DIGIT_SUMS | {"chat": False}
SCALES = {
    "tiny": Scale("tiny", "bundled", "chain", 6, 4, 8, 48, 1),
    "bundled": Scale("bundled", "bundled", "chain", 64, 64, 8, 48, 5),
    # of the first unit: every other one has a policy and prompts of its own (`studies.bench`)
    "family": Scale("family", "family:seed=1", "chain", 64, 64, 8, 48, 10),
    # one-digit sums asked in two ways, which are two tasks: in a chat (reward near 0.2), or as plain text to go on from
    "smollm2_chat": Scale("smollm2_chat", "smollm2-135m", "gym:chain_sum", 8, 4, 8, 20, 3, ONE_DIGIT_SUMS),
    "smollm2_plain": Scale("smollm2_plain", "smollm2-135m", "gym:chain_sum", 160, 4, 8, 8, 2, PLAIN_SUMS),
    "gemma3_plain": Scale("gemma3_plain", "gemma3-270m", "gym:chain_sum", 80, 4, 8, 8, 1, PLAIN_SUMS),
}


def check_scale(name: str) -> None:
    """Raise a ValueError unless `name` is one of SCALES."""
    if name not in SCALES:
        raise ValueError(f"scale={show_value(name)} is unknown: choose one of {', '.join(SCALES)}.")
