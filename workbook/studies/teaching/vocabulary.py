"""Study vocabulary: what the pairs that cancel take and give, by the number of words, in a toy and
on chains.

The toy is one context of V equally likely words and 8 rollouts whose rewards ignore them. Chains
spread their prompts over private alphabets, so that words are shared by fewer prompts; values count
words of other alphabets as the plain word, and where they err by more than a fiftieth of the reward
nothing is said.
"""

import numpy as np
import pandas as pd

from workbook.probes.values import value_error
from workbook.studies.teaching.pairs import pairs_study
from workbook.studies.unit import StudyUnit

TOY_WORDS, TOY_STEPS, TOY_ROLLOUTS = (2, 3, 4, 10, 30, 100, 300, 1000), 2000, 8
ALPHABETS = (1, 4, 16, 64)
ERROR_PROMPTS, CONTINUATIONS = 32, 64


def vocabulary_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables of one unit of the family: falls and shares of `pairs_study` by alphabets, and value
    errors.
    """
    parts: dict[str, list[pd.DataFrame]] = {"falls": [], "shares": [], "errors": []}
    for alphabets in ALPHABETS:
        member = unit.dialled(alphabets=alphabets) if alphabets > 1 else unit
        error = value_error(
            member.policy, member.task, ERROR_PROMPTS, CONTINUATIONS, member.held_out_seed
        )
        made = pairs_study(member) | {"errors": pd.DataFrame([error])}
        for name, rows in parts.items():
            rows.append(made[name].assign(alphabets=alphabets))
    return {name: pd.concat(rows, ignore_index=True) for name, rows in parts.items()}


def toy_table(seed: int = 0) -> pd.DataFrame:
    """Columns words, taken and returned: `toy_shares` by the number of words."""
    return pd.DataFrame([{"words": words, **toy_shares(words, seed=seed)} for words in TOY_WORDS])


def toy_shares(
    words: int, group: int = TOY_ROLLOUTS, steps: int = TOY_STEPS, seed: int = 0
) -> dict[str, float]:
    """Of a token's own side of its word: what the other sign's same word takes, and what its other
    words return.

    Ratios of sums over steps; in one context <e_i - p, e_j - p> is [same word] - 1 / V.
    """
    rng = np.random.default_rng([seed, words])
    cross = returned = own2 = 0.0
    for _ in range(steps):
        drawn, rewards = rng.integers(words, size=group), rng.integers(2, size=group)
        pushes = rewards - rewards.mean()
        same_word, signs = drawn[:, None] == drawn[None], np.sign(pushes)
        moved, agree = (same_word - 1 / words) * pushes, signs[:, None] == signs[None]
        own = np.where(same_word & agree, moved, 0.0).sum(1)
        cross -= own @ np.where(same_word & ~agree, moved, 0.0).sum(1)
        returned += own @ np.where(~same_word & ~agree, moved, 0.0).sum(1)
        own2 += own @ own
    return {"taken": cross / own2, "returned": returned / own2}
