"""Study pairs: is a step's credit carried by the pairs of pushes that cancel?

The change of a token by its own prompt's step is split by pair (`workbook.probes.pairs`). The pairs
that cancel are those of the other sign and the same word. The deciding number is by how much the
correlation of change and exact credit falls when they are left out, beyond what leaving out other
pairs of the same summed size costs, as a share of it:

    R = (fall(other sign, same word) - mean of fall(twins)) / correlation

Correlations are over unsure tokens, about the mean of their cell: prompt, sign and class of token.
Twins: same sign and same word (without the token itself), other sign and other words, same sign and
other words, each scaled to the summed size of what the cancelling pairs do (never up). `by_hand`
has what R is without credit, and in one context.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from workbook.probes.agreement import falls, pushed_by
from workbook.probes.cancellation import kinds
from workbook.probes.pairs import OWN_KINDS, PromptPairs, prompt_pairs
from workbook.probes.values import exact_values
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies.unit import StudyUnit
from workbook.theory.advantages import group_advantages, permute_in_groups
from workbook.theory.coupling import NEARLY_CERTAIN

PROMPTS, _GROUP_SIZE, _PERMUTATIONS = 12, 8, 32
DRAWN = 4  # prompts drawn for each that is wanted, since groups of equal rewards push nothing
CLASSES = ("style", "right result", "wrong result")


def same_word_shares(table: pd.DataFrame) -> pd.DataFrame:
    """By class: what the other sign's same word takes from a token's own side of the same word, as
    sums.

    taken = - sum(cancelling x own) / sum(own^2), own: the token itself and same sign, same word.
    Columns: kind, cross, own2, tokens, occurrences (mean number of the word's tokens in its
    prompt).
    """
    own = table["self"] + pushed_by(table, "same sign, same word")
    sums = pd.DataFrame(
        {"cross": -own * pushed_by(table, "cancelling"), "own2": own**2, "tokens": 1.0}
    )
    sums["occurrences"] = table["occurrences"]
    return sums.groupby(table["kind"]).sum().reset_index()


def mixed_rollouts(unit: StudyUnit, prompts: int = PROMPTS) -> Rollouts:
    """Rollouts of so many training prompts with unlike rewards, with advantages of Dr. GRPO."""
    given = (unit.task, DRAWN * prompts, _GROUP_SIZE, unit.data_seed, unit.setting.max_new_tokens)
    rollouts = sample_rollouts(unit.policy, *given)
    advantages = group_advantages(rollouts.rewards, rollouts.group_ids, "dr_grpo")
    groups = [
        g for g in rollouts.group_ids.unique().tolist() if advantages[rollouts.group_ids == g].any()
    ]
    chosen = torch.isin(rollouts.group_ids, torch.tensor(groups[:prompts]))
    return replace(rollouts, advantages=advantages).select(chosen)


def pairs_study(
    unit: StudyUnit, prompts: int = PROMPTS, permutations: int = _PERMUTATIONS
) -> dict[str, pd.DataFrame]:
    """Tables of one unit.

    tokens: unsure tokens with exact credit, class, sign, OWN_KINDS, occurrences of their word in
    the prompt, and place.
    shares: sums of `same_word_shares`, by permutation (-1: the rewards as they were).
    falls: `falls` by permutation, and with cancelling pairs themselves as the credit (credit =
    "made by cancelling").
    """
    rollouts = mixed_rollouts(unit, prompts)
    values = exact_values(unit.policy, unit.task, rollouts)
    generator = torch.Generator().manual_seed(unit.data_seed)
    signs = [rollouts.advantages]
    for _ in range(permutations):
        signs.append(permute_in_groups(rollouts.advantages, rollouts.group_ids, generator))
    parts: list[list[pd.DataFrame]] = [[] for _ in signs]
    for pairs in prompt_pairs(unit.policy, rollouts):
        about = described(pairs.tokens, unit, rollouts, values).assign(
            word_coupling=word_coupling(pairs)
        )
        unsure = (about["logp"] < np.log(NEARLY_CERTAIN)) & about["inside"]
        for part, advantages in zip(parts, signs, strict=True):
            own = advantages[torch.tensor(about["rollout"].to_numpy(copy=True))].double().numpy()
            part.append(
                pd.concat([about.assign(sign=np.sign(own)), pairs.split(own)], axis=1)[unsure]
            )
    tables = [pd.concat(part, ignore_index=True) for part in parts]
    by_permutation = [
        (
            same_word_shares(table).assign(permutation=k),
            {"permutation": k, "credit": "exact", **falls(table)},
        )
        for k, table in enumerate(tables, -1)
    ]
    made = tables[0].assign(made=pushed_by(tables[0], "cancelling"))
    control = {"permutation": -1, "credit": "made by cancelling", **falls(made, "made")}
    kept = [
        "group",
        "rollout",
        "position",
        "place",
        "token_id",
        "context",
        "kind",
        "sign",
        "reward",
        "logp",
    ]
    kept += ["credit", "occurrences", "word_coupling", *OWN_KINDS]
    tokens = tables[0][kept].astype(dict.fromkeys(("logp", *kept[10:]), "float32"))
    return {
        "tokens": tokens,
        "shares": pd.concat([shares for shares, _ in by_permutation], ignore_index=True),
        "falls": pd.DataFrame([*(row for _, row in by_permutation), control]),
    }


def word_coupling(pairs: PromptPairs) -> np.ndarray:
    """Mean coupling of each token with the other tokens of its word, as a share of its own; NaN for
    a single one.
    """
    words, own = pairs.tokens["token_id"].to_numpy(), np.diag(pairs.gram)
    same = (words[:, None] == words[None]) & ~np.eye(len(words), dtype=bool)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(same, pairs.gram, 0.0).sum(1) / same.sum(1) / own


def described(tokens: pd.DataFrame, unit: StudyUnit, rollouts: Rollouts, values) -> pd.DataFrame:
    """A prompt's tokens with exact credit, class (kind), place in the grammar and occurrences of
    the word.
    """
    at = tuple(torch.tensor(tokens[["rollout", "position"]].to_numpy(copy=True)).T)
    table = tokens.assign(
        credit=values.credit[at].double().cpu().numpy(), inside=values.inside[at].cpu().numpy()
    )
    table["kind"] = kinds(table)
    table["occurrences"] = table.groupby("token_id")["logp"].transform("size")
    places = [
        unit.task.places(rollouts.prompts[k], rollouts.tokens[k]) for k in table["rollout"].unique()
    ]
    return table.assign(place=[place for row in places for place in row])
