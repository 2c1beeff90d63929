"""Pairs of a prompt's tokens by mass: where coupling goes, and whether the two signs oppose.

The sum of |K| over all pairs of a kind, its *mass*, says where a token's change comes from.
On-policy the score's expectation is zero, sum_y pi(y) (e_y - pi) = 0: what pairs of the same token
add, pairs of different tokens take away.
"""

import pandas as pd
import torch

from workbook.probes.coupling import coupling_by_confidence, gradient_products, group_tokens
from workbook.rollouts.sample import Rollouts
from workbook.theory.coupling import BELOW_HALF

PAIR_KIND = ["weights", "same", "where", "signs", "unsure"]


def pair_sums(
    policy, rollouts: Rollouts, prompts: int, anchors: int, seed: int = 0
) -> pd.DataFrame:
    """Number of pairs, sum and sum of |.| of their coupling by kind, within prompts; same-context
    pairs are there.

    Columns weights ("output layer": K of all pairs; "all weights": products of `anchors` tokens of
    each of the first prompts, weighted for how they were drawn), same, where, signs, unsure (0, 1,
    2: of the pair's tokens), pairs, net, size.
    """
    cells = coupling_by_confidence(policy, rollouts)
    unsure = (cells["less_sure"] == 0).astype(int) + (cells["more_sure"] == 0).astype(int)
    sums = {"net": cells["mean"] * cells["pairs"], "size": cells["size"] * cells["pairs"]}
    parts = [cells.assign(weights="output layer", unsure=unsure, **sums)]
    few = rollouts.select(torch.isin(rollouts.group_ids, rollouts.group_ids.unique()[:prompts]))
    products = gradient_products(policy, few, anchors, seed=seed)
    pairs = products[products["where"] != "itself"]
    unsure = (pairs["p_anchor"] < BELOW_HALF).astype(int) + (pairs["p_other"] < BELOW_HALF).astype(
        int
    )
    weight = anchor_weights(pairs)
    sums = {
        "pairs": weight,
        "net": weight * pairs["product"],
        "size": weight * pairs["product"].abs(),
    }
    parts.append(pairs.assign(weights="all weights", unsure=unsure, **sums))
    return pd.concat(parts).groupby(PAIR_KIND)[["pairs", "net", "size"]].sum().reset_index()


def anchor_weights(pairs: pd.DataFrame) -> pd.Series:
    """How many tokens of its prompt and confidence an anchor stands for: they were drawn in turn
    from both.
    """
    bins = [pairs["group"], pairs["p_anchor"] < BELOW_HALF]
    drawn = pairs["anchor"].groupby(bins).transform("nunique")
    whole = pairs.drop_duplicates("other").groupby(["group", pairs["p_other"] < BELOW_HALF]).size()
    return pd.Series(pd.MultiIndex.from_arrays(bins).map(whole), pairs.index).astype(float) / drawn


def opposed_signs(policy, rollouts: Rollouts, blocks) -> pd.DataFrame:
    """H5: inner product of a prompt's positive and negative gradients, a row per prompt; do they
    oppose one another?

    Columns group; same, different: its parts by pairs of the same and of different tokens, in the
    output layer and in units of the two gradients' lengths there (below 0: they cancel); cosine,
    their sum; cosine_all: of all weights.
    """
    rows, gram, about = [], blocks.gram(), blocks.blocks
    for tokens in group_tokens(policy, rollouts):
        table = tokens.rollouts.token_table()
        push = torch.tensor(table["advantage"].to_numpy(dtype=float))
        kernel, up = tokens.states.kernel().double().cpu(), push > 0
        products = push[up][:, None] * kernel[up][:, ~up] * push[~up][None]
        lengths = [
            float((push[side] @ kernel[side][:, side] @ push[side]).clamp(min=0))
            for side in (up, ~up)
        ]
        at = about.index[about["group"] == tokens.group].tolist()
        if len(at) != 2 or not min(lengths) > 0:
            continue
        ids = tokens.states.tokens.cpu()
        same = ids[up][:, None] == ids[~up][None]
        scale = (lengths[0] * lengths[1]) ** 0.5
        parts = {
            "same": float(products[same].sum()) / scale,
            "different": float(products[~same].sum()) / scale,
        }
        whole = float(
            (gram[at[0], at[1]] + gram[at[1], at[0]])
            / 2
            / (gram[at[0], at[0]] * gram[at[1], at[1]]) ** 0.5
        )
        rows.append(
            {"group": tokens.group, **parts, "cosine": sum(parts.values()), "cosine_all": whole}
        )
    return pd.DataFrame(rows)
