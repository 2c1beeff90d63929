"""Names that the settings of an objective may have, each set once. Without torch, since a config is
read without it.
"""

import re

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
