"""What batches of prompts do, read off block coupling: H1, H2 by mass, H5 and H6 for any number of prompts per step.

Each function is pure: `Blocks` -> a table with a row per prompt. A batch is drawn as one measured prompt and
`prompts_per_step - 1` others; the changes of its tokens are the sum of the rows of all their blocks.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.probes.blocks import Blocks
from workbook.theory.coupling import NEARLY_CERTAIN, UNSURE

DRAWS = 8
PAIRS = ("same token, both unsure", "same token, not both unsure", "different token, unsure", "different token, sure")


def step_changes(
    blocks: Blocks, prompts_per_step: int, draws: int = DRAWS, seed: int = 0, positive_only: bool = False
) -> pd.DataFrame:
    """The measured tokens' table with `change` in nats, `draws` times (column draw), with other prompts in the step.

    own: of the change, what the token's own prompt does.  Blocks of several prompts (a bundle) join a step whole; what
    they leave open is filled with single prompts.  positive_only: the blocks of positive advantage push alone.
    Raises ValueError for more prompts than push, and for a number that bundles and single prompts do not make.
    """
    sign, groups = blocks.blocks["sign"].to_numpy(), blocks.blocks["group"].to_numpy()
    if positive_only and (sign == 0).any():
        raise ValueError('positive_only needs blocks of one sign each: block_coupling(..., blocks="sign").')
    active = sign > 0 if positive_only else np.ones(len(sign), dtype=bool)
    sizes = blocks.prompts_by_group()
    names = sizes.index.to_numpy()  # (U,) prompts or bundles
    if not 1 <= prompts_per_step <= sizes.sum():
        raise ValueError(f"prompts_per_step={prompts_per_step} must be from 1 to {sizes.sum()}, the prompts that push.")
    member = ((groups[None] == names[:, None]) & active).astype(float)  # (U, K)
    generator, parts = np.random.default_rng(seed), []
    for group, tokens in blocks.tokens.groupby("group"):
        if group not in names or sizes[group] > 1:
            continue
        sums = member @ blocks.changes[:, tokens.index]  # (U, tokens)
        own = sums[names == group][0]
        beside = [_company(sizes.drop(group), prompts_per_step - 1, generator) for _ in range(draws)]
        joined = np.stack([np.isin(names, chosen) for chosen in beside]).astype(float)  # (draws, U)
        change = own + joined @ sums  # (draws, tokens)
        columns = {"own": np.tile(own, draws), "change": change.ravel(), "draw": np.repeat(np.arange(draws), len(own))}
        parts.append(tokens.loc[np.tile(tokens.index, draws)].assign(**columns))
    if not parts:
        raise ValueError("No measured prompt pushes; measure one with different rewards.")
    return pd.concat(parts, ignore_index=True)


def _company(sizes: pd.Series, wanted: int, generator: np.random.Generator) -> np.ndarray:
    """Names of bundles, as many as fit, and of single prompts that together are `wanted` prompts."""
    singles, bundles = sizes.index[sizes == 1].to_numpy(), sizes.index[sizes > 1].to_numpy()
    chosen = generator.permutation(bundles)[: wanted // int(sizes[bundles].max())] if len(bundles) else bundles
    rest = wanted - int(sizes[chosen].sum())
    if rest > len(singles):
        raise ValueError(
            f"prompts_per_step={wanted + 1} can't be made: {rest} single prompts would join and {len(singles)} can."
        )
    return np.concatenate([chosen, generator.choice(singles, rest, replace=False)])


def follows_own_sign(
    blocks: Blocks, prompts_per_step: int, draws: int = DRAWS, seed: int = 0, below: float = NEARLY_CERTAIN
) -> pd.DataFrame:
    """H1: share of tokens whose change has the sign of their own advantage, by prompt: group, follows, tokens.

    0.5: the sign of a rollout says nothing of what happens to its tokens. Tokens of advantage 0 are left out, and those
    of probability `below` and more, whose changes drown in rounding.
    """
    table = step_changes(blocks, prompts_per_step, draws, seed)
    table = table[(table["push"] != 0) & (table["logp"] < np.log(below))]
    table = table.assign(follows=(np.sign(table["change"]) == np.sign(table["push"])).astype(float))
    return table.groupby("group").agg(follows=("follows", "mean"), tokens=("follows", "size")).reset_index()


def coupling_by_mass(blocks: Blocks) -> pd.DataFrame:
    """H2 by mass: where the movement goes that a block causes outside itself.

    Columns where (own prompt, other prompts), kind (of PAIRS), pairs and mass (shares of all pairs and of the sum of
    |change| in that place), net (sum of change in the block's own direction over the sum of |change|, of blocks of one
    sign, else 0). same token: the block pushes the token's id; both unsure: below p = 0.5 in the block, too.
    """
    tokens, ids = blocks.tokens, blocks.tokens["token_id"].to_numpy()
    unsure = (tokens["logp"] < np.log(UNSURE)).to_numpy()
    rows = []
    for k, pushing in blocks.pushing.groupby("block"):
        there = np.isin(ids, pushing["token_id"])
        there_unsure = np.isin(ids, pushing.loc[pushing["logp"] < np.log(UNSURE), "token_id"])
        kind = np.select([there_unsure & unsure, there, unsure], PAIRS[:3], PAIRS[3])
        about = blocks.blocks.iloc[k]
        where = np.where(tokens["group"] == about["group"], "own prompt", "other prompts")
        change = blocks.changes[k].astype(float)
        cells = pd.DataFrame(
            {"where": where, "kind": kind, "size": np.abs(change), "net": about["sign"] * change, "pairs": 1}
        )
        rows.append(cells[(tokens["block"] != k).to_numpy()].groupby(["where", "kind"]).sum())
    sums = pd.concat(rows).groupby(["where", "kind"]).sum()
    whole = sums.groupby("where").transform("sum")
    shares = pd.DataFrame({"pairs": sums["pairs"] / whole["pairs"], "mass": sums["size"] / whole["size"]})
    return shares.assign(net=sums["net"] / sums["size"]).reset_index()


def net_change(
    blocks: Blocks, prompts_per_step: int, draws: int = DRAWS, seed: int = 0, by: str = "place"
) -> pd.DataFrame:
    """H5: net change of a positive rollout's tokens that negative rollouts of the prompt share, and of its others.

    Columns group, kind (shared, specific), net (mean change), size (mean |change|), tokens; of tokens with p below 0.9.
    by: "place", the same token at the same position, or "token", anywhere. Raises ValueError for another.
    """
    if by not in ("place", "token"):
        raise ValueError(f'by={by!r} must be "place" or "token".')
    table = step_changes(blocks, prompts_per_step, draws, seed)
    keys = ["group", "draw", "token_id"] + (["position"] if by == "place" else [])
    negative = (table["push"] < 0).groupby([table[key] for key in keys]).transform("any")
    table = table.assign(kind=np.where(negative, "shared", "specific"), size=table["change"].abs())
    table = table[(table["push"] > 0) & (table["logp"] < np.log(NEARLY_CERTAIN))]
    means = {"net": ("change", "mean"), "size": ("size", "mean"), "tokens": ("size", "size")}
    return table.groupby(["group", "kind"]).agg(**means).reset_index()


def equal_energy_prompts(blocks: Blocks, prompts_per_step: int) -> int:
    """Prompts of a step with both signs whose gradient has, on average, the squared length of a positive-only step's.

    With e the mean squared length of a prompt's own gradient and c the mean inner product of two prompts', a step on P
    prompts has P e + P (P - 1) c. At least 1, at most prompts_per_step or the prompts that push.
    """
    positive, both = (_energy(blocks, only) for only in (True, False))
    target = positive(prompts_per_step)
    sizes = np.arange(1, blocks.prompts + 1)
    return int(sizes[np.argmin(np.abs(both(sizes) - target))])


def _energy(blocks: Blocks, positive_only: bool):
    """Mean squared length of a step's gradient as a function of its prompts, from the measured blocks' gram matrix."""
    gram, sign = blocks.gram(), blocks.blocks["sign"].to_numpy()
    whole = ~np.isnan(gram[0])  # blocks whose tokens were all measured
    kept = whole & ((sign > 0) | (not positive_only))
    groups = blocks.blocks["group"].to_numpy()[kept]
    within = groups[:, None] == groups[None]
    products, n = gram[np.ix_(kept, kept)], blocks.blocks["group"][whole].nunique()
    own = products[within].sum() / n
    cross = products[~within].sum() / max(1, n * (n - 1))
    return lambda prompts: prompts * own + prompts * (prompts - 1) * cross


def category_shift(
    blocks: Blocks, prompts_per_step: int, draws: int = DRAWS, seed: int = 0, equal_energy: bool = False
) -> pd.DataFrame:
    """H6: each category's share of movement in steps with both signs, less that in steps of positive rollouts only.

    Columns group, category, both, positive_only (shares of the sum of |change| over the prompt's tokens), shift,
    prompts (of the steps with both signs).  equal_energy: these have fewer, so that both gradients are equally long.
    Raises ValueError for blocks that mix signs, and without categories.
    """
    if blocks.tokens["category"].isna().all():
        raise ValueError("The tokens have no categories; sample from a task that annotates them, or use `categorized`.")
    prompts = equal_energy_prompts(blocks, prompts_per_step) if equal_energy else prompts_per_step
    shares = {}
    for name, size in (("both", prompts), ("positive_only", prompts_per_step)):
        table = step_changes(blocks, size, draws, seed, positive_only=name == "positive_only")
        sums = table.assign(size=table["change"].abs()).groupby(["group", "category"])["size"].sum()
        shares[name] = sums / sums.groupby("group").transform("sum")
    table = pd.DataFrame(shares).dropna().reset_index()
    return table.assign(shift=table["both"] - table["positive_only"], prompts=prompts)
