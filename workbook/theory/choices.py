"""Choices of an objective's settings: every valid name, each declared once.

Importing this module does not import torch: a config is read without it.
"""

import re

# -- the advantage

# one advantage per rollout
ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce", "positive_only", "negative_only")
# a credit rule of the reader's own
OWN = re.compile(r"own:(?P<file>[^\x00-\x1f]+\.py):(?P<function>[^\W\d]\w*)")
# registrations, committed tables and older configs name a rule by its former name
FORMER_RULE_NAMES = {"oracle": "known_credit"}
# of a rollout's advantage
SIGNS = ("positive", "negative")

# -- the weight of a token

# of the ratio
LEVELS = ("token", "sequence")
CLIPPINGS = ("asymmetric", "symmetric")
TRANSFORMS = ("min_replace", "advantage_orthogonal")
TRANSFORMS_BY_LABEL = {
    "none": None,
    "min-replace": "min_replace",
    "advantage-orthogonal": "advantage_orthogonal",
}
TRANSFORM_INPUTS = ("clamped_ratios", "clipped_weights")
# of tokens into a loss, by the names of TRL's loss types
AGGREGATES = ("grpo", "dapo", "dr_grpo")

# -- the order of mini-batches

STRATEGIES = (
    "shuffled",
    "query_preserved",
    "reward_balanced",
    "query_preserved_reward_balanced",
    "sign_partitioned",
)
# strategies that keep a group in one mini-batch
WHOLE_GROUP = ("query_preserved", "query_preserved_reward_balanced")
