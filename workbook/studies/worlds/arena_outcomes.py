"""What the studies of the arena come to: every rule's rate and run ends.

The rules that the study `worlds` trains stand here with its runs, plain with an entropy penalty
with those of `arena_mix`, all others with those of `arena`. Half-way is that of `worlds_rates`. A
rule that samples more itself is read where its unit's budget is spent, the most tokens that any run
of `worlds` sampled there: in between two readings on a straight line.
"""

from contextlib import suppress
from functools import lru_cache

import pandas as pd

from workbook.app.arena import WORLDS
from workbook.app.half_way import best_attainable, most_tokens, own_rates, run_ends, within
from workbook.studies.record import NotMeasured, Tables

RULES = (
    *(
        "grpo",
        "reinforce",
        "negative_only",
        "prefix_credit",
        "lambda_grpo",
        "gtpo",
        "nthr",
        "token_hidden_reward",
    ),
    *(
        "advantage_reweighting",
        "lopti",
        "w_reinforce",
        "balanced_aggregation",
        "ibpo",
        "worst_token_reset",
    ),
)
RANDOM = "coin_reward"  # runs at plain's own rate
SCALES = tuple(f"world:{world}" for world in WORLDS)


@lru_cache(maxsize=64)
def rule_rates(tables: Tables) -> pd.DataFrame:
    """`own_rates` of every rule of a world: those of `worlds_rates`, and the arena's with their
    budget and half-way.
    """
    known = tables["worlds_rates/runs"]
    own = within(tables["arena_rates/runs"], most_tokens(known, "policy"), "policy")
    return own_rates(pd.concat([known, own], ignore_index=True), best_attainable(known))


@lru_cache(maxsize=64)
def rule_ends(tables: Tables) -> pd.DataFrame:
    """`run_ends` of a world's units, every rule at its own rate, with the column lr."""
    known = tables["worlds/runs"]
    parts = [known, tables["arena/runs"]]
    with suppress(NotMeasured):
        parts.append(tables["arena_mix/runs"])
    runs = within(pd.concat(parts, ignore_index=True), most_tokens(known))
    return run_ends(runs, best_attainable(tables["worlds_rates/runs"]), by=("arm", "lr"))


def read_rule(tables: Tables, column: str, rule: str) -> pd.Series:
    """A column of `rule_ends` of one rule, one number per unit."""
    ends = rule_ends(tables)
    return ends[ends["arm"] == rule].set_index("seed")[column].rename_axis("unit")
