"""Names that the settings of an objective may have, each set once. Without torch, since a config is read without it."""

import re
from math import isfinite

LEVELS = ("token", "sequence")  # of the ratio
CLIPPINGS = ("asymmetric", "symmetric")
TRANSFORMS = ("min_replace", "advantage_orthogonal")
TRANSFORMS_BY_LABEL = {"none": None, "min-replace": "min_replace", "advantage-orthogonal": "advantage_orthogonal"}
TRANSFORM_INPUTS = ("clamped_ratios", "clipped_weights")
AGGREGATES = ("grpo", "dapo", "dr_grpo")
ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce", "positive_only", "negative_only")  # one advantage per rollout
RULES = (  # credit rules with a name: one advantage per rollout or per token, see theory.credit_rules
    *("prefix_credit", "lambda_grpo", "edit_mask", "ibpo", "gtpo", "nthr", "token_hidden_reward"),
    *("advantage_reweighting", "lopti", "w_reinforce", "negative_token_filtering", "balanced_aggregation"),
    *("coin_reward", "permuted", "oracle"),
)
OWN = re.compile(r"own:(?P<file>[^\x00-\x1f]+\.py):(?P<function>[^\W\d]\w*)")  # a credit rule of the reader's own
RENAMED = {"counterfactual": "prefix_credit"}  # what estimators were called before
STRATEGIES = ("shuffled", "query_preserved", "reward_balanced", "query_preserved_reward_balanced", "sign_partitioned")
WHOLE_GROUP = ("query_preserved", "query_preserved_reward_balanced")  # strategies that keep a group in one mini-batch
SIGNS = ("positive", "negative")  # of a rollout's advantage


def check_choice(name: str, value: object, valid: tuple) -> None:
    """Raise a ValueError that names the valid values, unless `value` is one of them.

    >>> check_choice("level", "token", LEVELS)
    """
    if value not in valid:
        raise ValueError(f"{name} {value!r} is unknown; valid are {', '.join(map(str, valid))}.")


def check_estimator(value: object) -> None:
    """Raise a ValueError, in one sentence, unless `value` names an estimator, a credit rule or one of the reader's own.

    >>> check_estimator("own:credit.py:my_rule")
    >>> check_estimator("counterfactual")
    Traceback (most recent call last):
    ValueError: advantage_estimator='counterfactual' is now called 'prefix_credit', which is what it computes.
    """
    if isinstance(value, str) and value in RENAMED:
        now = f"is now called {RENAMED[value]!r}, which is what it computes"
        raise ValueError(f"advantage_estimator={value!r} {now}.")
    if value not in (*ESTIMATORS, *RULES) and not (isinstance(value, str) and OWN.fullmatch(value)):
        shown = repr(value)[:200]
        valid = f"{', '.join((*ESTIMATORS, *RULES))}, or own:<file.py>:<function>"
        raise ValueError(f"advantage_estimator={shown} is unknown; valid values are {valid}.")


def check_range(low: float, high: float, closed: bool = True, **settings: float) -> None:
    """Raise a ValueError that names the first setting outside [low, high] (not closed: (low, high)), or not finite.

    >>> check_range(0, 1, share=0.5)
    """
    for name, value in settings.items():
        if not isfinite(value) or not (low <= value <= high if closed else low < value < high):
            bounds = f"from {low} to {high}" if closed else f"strictly between {low} and {high}"
            raise ValueError(f"{name}={value} is out of range: it must lie {bounds}.")
