"""Names that the settings of an objective may have, each set once. Without torch, since a config is read without it."""

LEVELS = ("token", "sequence")  # of the ratio
CLIPPINGS = ("asymmetric", "symmetric")
TRANSFORMS = ("min_replace", "advantage_orthogonal")
TRANSFORMS_BY_LABEL = {"none": None, "min-replace": "min_replace", "advantage-orthogonal": "advantage_orthogonal"}
TRANSFORM_INPUTS = ("clamped_ratios", "clipped_weights")
AGGREGATES = ("grpo", "dapo", "dr_grpo")
ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce", "positive_only", "negative_only")  # one advantage per rollout
STRATEGIES = ("shuffled", "query_preserved", "reward_balanced", "query_preserved_reward_balanced", "sign_partitioned")
WHOLE_GROUP = ("query_preserved", "query_preserved_reward_balanced")  # strategies that keep a group in one mini-batch


def check_choice(name: str, value: object, valid: tuple) -> None:
    """Raise a ValueError that names the valid values, unless `value` is one of them.

    >>> check_choice("level", "token", LEVELS)
    """
    if value not in valid:
        raise ValueError(f"{name} {value!r} is unknown; valid are {', '.join(map(str, valid))}.")
