"""The sign-composition intervention (R3): advantages are permuted within each group, and nothing else changes.

If shared tokens stand still because opposing pushes cancel (H5), then what moves a token is the balance of signs over
its occurrences, and changing that balance with everything else held fixed must move it. Within each group the
advantages are permuted over the rollouts at random; a real step is taken for each permutation. Prompts, prefixes and
token frequencies are the same in all of them, so a token's differences between them are caused by the signs alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from workbook.probes.step import progress
from workbook.rollouts.sample import Rollouts
from workbook.theory.coupling import NEARLY_CERTAIN
from workbook.topics.flips.probe import token_flips


def sign_composition(
    policy,
    rollouts: Rollouts,
    permutations: int = 8,
    optimizer: str = "sgd",
    lr: float = 0.1,
    seed: int = 0,
    **settings,
) -> pd.DataFrame:
    """The token table once per permutation, with columns permutation, dlogp, others and balance.

    advantage: as permuted.  dlogp: change of log-probability (nats) in a step with it.  others: sum of the advantages
    of the same token in the group's other rollouts.  balance: sum of A over all its occurrences in the group, its own
    included, over the sum of |A|: 1 if all are in positive rollouts, 0 if they cancel.
    settings: more of `update`.  The policy is left as it was.

    Raises ValueError for fewer than two permutations, which leave nothing to compare.
    """
    if permutations < 2:
        raise ValueError(
            f"permutations={permutations!r} must be 2 or more, so that a token can be compared with itself."
        )
    generator = torch.Generator().manual_seed(seed)
    tables = []
    for number in progress(range(permutations), "permutations"):
        permuted = replace(rollouts, advantages=_permuted(rollouts, generator))
        table = token_flips(policy, permuted, optimizer, lr, **settings)
        tables.append(_composition(table).assign(permutation=number))
    return pd.concat(tables, ignore_index=True)


def composition_effects(table: pd.DataFrame) -> pd.DataFrame:
    """What one unit of advantage does to a token, by where it stands: columns group, own, others, tokens.

    Least squares per prompt over the unsure tokens (p < 0.9), each token compared with itself over the permutations:
    dlogp = own * (advantage of its rollout) + others * (advantages on the same token in other rollouts) + a constant
    of the token. In nats per unit of advantage. Prompts whose rollouts share no token are left out.
    """
    unsure = table[table["logp"] < np.log(NEARLY_CERTAIN)]
    columns = ["advantage", "others", "dlogp"]
    centred = unsure[columns] - unsure.groupby(["rollout", "position"])[columns].transform("mean")
    rows = []
    for group, here in centred.groupby(unsure["group"]):
        causes = here[["advantage", "others"]].to_numpy()
        if np.linalg.matrix_rank(causes, tol=1e-6) == 2:
            own, others = np.linalg.lstsq(causes, here["dlogp"].to_numpy(), rcond=None)[0]
            rows.append((group, own, others, len(here)))
    return pd.DataFrame(rows, columns=["group", "own", "others", "tokens"])


def permuted_advantages(rollouts: Rollouts, seed: int = 0) -> Rollouts:
    """The rollouts with advantages permuted within each group: frequencies as they were, rewards without meaning."""
    return replace(rollouts, advantages=_permuted(rollouts, torch.Generator().manual_seed(seed)))


def _permuted(rollouts: Rollouts, generator: torch.Generator) -> torch.Tensor:
    """The advantages, permuted within each group."""
    permuted = rollouts.advantages.clone()
    for group in rollouts.group_ids.unique():
        rows = (rollouts.group_ids == group).nonzero().squeeze(1)
        permuted[rows] = rollouts.advantages[rows[torch.randperm(len(rows), generator=generator).to(rows.device)]]
    return permuted


def _composition(table: pd.DataFrame) -> pd.DataFrame:
    """Add others and balance to a token table."""
    signs = table["advantage"].astype(float)
    kind = [table["group"], table["token_id"]]
    total = signs.groupby(kind).transform("sum")
    own = signs.groupby([*kind, table["rollout"]]).transform("sum")
    size = signs.abs().groupby(kind).transform("sum")
    return table.assign(others=total - own, balance=np.where(size > 0, total / size.where(size > 0, 1.0), 0.0))
