"""Names that the settings of an objective may have, each set once. Without torch, since a config is
read without it.
"""

import re
from math import isfinite

LEVELS = ("token", "sequence")  # of the ratio
CLIPPINGS = ("asymmetric", "symmetric")
TRANSFORMS = ("min_replace", "advantage_orthogonal")
TRANSFORMS_BY_LABEL = {
    "none": None,
    "min-replace": "min_replace",
    "advantage-orthogonal": "advantage_orthogonal",
}
TRANSFORM_INPUTS = ("clamped_ratios", "clipped_weights")
AGGREGATES = ("grpo", "dapo", "dr_grpo")
# one advantage per rollout
ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce", "positive_only", "negative_only")
# a credit rule of the reader's own
OWN = re.compile(r"own:(?P<file>[^\x00-\x1f]+\.py):(?P<function>[^\W\d]\w*)")
STRATEGIES = (
    "shuffled",
    "query_preserved",
    "reward_balanced",
    "query_preserved_reward_balanced",
    "sign_partitioned",
)
# strategies that keep a group in one mini-batch
WHOLE_GROUP = ("query_preserved", "query_preserved_reward_balanced")
SIGNS = ("positive", "negative")  # of a rollout's advantage


def check_choice(name: str, value: object, valid: tuple) -> None:
    """Raise a ValueError that names the valid values, unless `value` is one of them.

    >>> check_choice("level", "token", LEVELS)
    """
    if value not in valid:
        raise ValueError(f"{name} {value!r} is unknown; valid are {', '.join(map(str, valid))}.")


def check_range(low: float, high: float, closed: bool = True, **settings: float) -> None:
    """Raise a ValueError that names the first setting outside [low, high] (not closed: (low,
    high)), or not finite.

    >>> check_range(0, 1, share=0.5)
    """
    for name, value in settings.items():
        if not isfinite(value) or not (low <= value <= high if closed else low < value < high):
            bounds = f"from {low} to {high}" if closed else f"strictly between {low} and {high}"
            raise ValueError(f"{name}={value} is out of range: it must lie {bounds}.")
