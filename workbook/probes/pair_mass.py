"""Pairs of a prompt's tokens by mass: where coupling goes, and whether the two signs oppose.

The sum of |K| over all pairs of a kind, its *mass*, says where a token's change comes from. A few
strong pairs can matter less than many weak ones.

On-policy the score's expectation is zero, sum_y pi(y) (e_y - pi) = 0: what pairs of the same token
add, pairs of different tokens take away. So the sums over kinds say little unless they are read
together; `opposed_signs` reads them so for the two signs of a prompt.
"""

import pandas as pd
import torch

from workbook.probes.coupling import coupling_by_confidence, gradient_products, group_tokens
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.theory.coupling import BELOW_HALF

_PAIR_KIND = ["weights", "same", "where", "signs", "unsure"]


@in_batches
def pair_sums(
    policy, rollouts: Rollouts, prompts: int, anchors: int, seed: int = 0
) -> pd.DataFrame:
    """Number of pairs, sum and sum of |.| of their coupling by kind, within prompts.

    Columns weights ("output layer": K of all pairs; "all weights": products of `anchors` tokens of
    each of the first prompts, weighted for how they were drawn), same, where, signs, unsure (0, 1,
    2: of the pair's tokens), pairs, net, size. Pairs of one context are among them.
    """
    # all pairs, in the output layer: from their means
    cells = coupling_by_confidence(policy, rollouts)
    in_output_layer = cells.assign(
        weights="output layer",
        unsure=(cells["less_sure"] == 0).astype(int) + (cells["more_sure"] == 0).astype(int),
        net=cells["mean"] * cells["pairs"],
        size=cells["size"] * cells["pairs"],
    )

    # drawn tokens with all others of their prompt, in all weights: each as often as it stands for
    first_groups = rollouts.group_ids.unique()[:prompts]
    first = rollouts.select(torch.isin(rollouts.group_ids, first_groups))
    products = gradient_products(policy, first, anchors, seed=seed)
    products = products[products["where"] != "itself"]
    weight = _anchor_weights(products)
    unsure_anchor = (products["p_anchor"] < BELOW_HALF).astype(int)
    unsure_other = (products["p_other"] < BELOW_HALF).astype(int)
    in_all_weights = products.assign(
        weights="all weights",
        unsure=unsure_anchor + unsure_other,
        pairs=weight,
        net=weight * products["product"],
        size=weight * products["product"].abs(),
    )

    table = pd.concat([in_output_layer, in_all_weights])
    return table.groupby(_PAIR_KIND)[["pairs", "net", "size"]].sum().reset_index()


def _anchor_weights(pairs: pd.DataFrame) -> pd.Series:
    """Number of tokens that an anchor stands for, of its prompt and confidence.

    Anchors are drawn in turn from the sure and the unsure tokens of a prompt.
    """
    bins = [pairs["group"], pairs["p_anchor"] < BELOW_HALF]
    drawn = pairs["anchor"].groupby(bins).transform("nunique")
    tokens = pairs.drop_duplicates("other")
    in_bin = tokens.groupby(["group", tokens["p_other"] < BELOW_HALF]).size()
    bin_of_pair = pd.MultiIndex.from_arrays(bins)
    return pd.Series(bin_of_pair.map(in_bin), pairs.index).astype(float) / drawn


@in_batches
def opposed_signs(policy, rollouts: Rollouts, blocks) -> pd.DataFrame:
    """Inner product of a prompt's positive and negative gradients, a row per prompt (H5).

    blocks: `block_coupling` of the rollouts by sign.  Columns group; same, different: the product's
    parts by pairs of the same and of different tokens, in the output layer and in units of the two
    gradients' lengths there (below 0: they cancel); cosine, their sum; cosine_all: of all weights.
    A prompt without both gradients is left out.
    """
    rows = []
    gram = blocks.gram()
    for tokens in group_tokens(policy, rollouts):
        advantages = tokens.rollouts.token_table()["advantage"].to_numpy(dtype=float)
        push = torch.tensor(advantages)
        up = push > 0
        kernel = tokens.states.kernel().double().cpu()  # (N, N)
        squares = [_gradient_square(push[side], kernel[side][:, side]) for side in (up, ~up)]
        pair_of_blocks = blocks.blocks.index[blocks.blocks["group"] == tokens.group].tolist()
        if len(pair_of_blocks) != 2 or not min(squares) > 0:
            continue

        # (positive tokens, negative tokens)
        products = push[up][:, None] * kernel[up][:, ~up] * push[~up][None]
        ids = tokens.states.tokens.cpu()
        same = ids[up][:, None] == ids[~up][None]
        scale = (squares[0] * squares[1]) ** 0.5
        of_same = float(products[same].sum()) / scale
        of_different = float(products[~same].sum()) / scale

        # all weights; the measured gram is symmetric but for rounding
        a, b = pair_of_blocks
        cosine_all = (gram[a, b] + gram[b, a]) / 2 / (gram[a, a] * gram[b, b]) ** 0.5
        row = {
            "group": tokens.group,
            "same": of_same,
            "different": of_different,
            "cosine": of_same + of_different,
            "cosine_all": float(cosine_all),
        }
        rows.append(row)
    return pd.DataFrame(rows)


def _gradient_square(push: torch.Tensor, kernel: torch.Tensor) -> float:
    """Squared length of the gradient of some tokens' pushes in the output layer."""
    return float((push @ kernel @ push).clamp(min=0))
