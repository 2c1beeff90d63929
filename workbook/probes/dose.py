"""Curves over the prompts in a step, from block coupling: the own prompt beside the others.

What decides whether a token follows its rollout's sign, the own prompt or the others in the batch?
Rollouts of the measured prompts are a block each, since any number of these prompts may join a
step; the other prompts come in bundles, one block per sign. To first order a step's change is the
sum of its blocks' changes, so every curve comes from one set of small steps. A change counts as
movement beyond `MOVED` times the step's root mean square: 0.01 nats in a step of 0.1 nats, whatever
its length.

    # a pass per rollout of 24 prompts and per 16 others
    blocks = dose_blocks(policy, rollouts, measured=24)
    # H1: do tokens follow their own rollout's sign?
    dose_curve(blocks, (1, 8, 64))
    # H5: net change of shared and of specific tokens
    net_curve(blocks, (1, 8, 64))
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbook.messages import InvalidValue
from workbook.probes.blocks import STEP_DRAWS, Blocks, block_coupling, category_shift, step_changes
from workbook.probes.step import MOVED, STEP_NATS, ScaledStep
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.theory.coupling import NEARLY_CERTAIN

DOSES = tuple(2**k for k in range(10))  # prompts per step
DOSE_PROMPTS = 24
BUNDLE_PROMPTS = 16
CONFIDENCE_BANDS = (0.0, 0.3, 0.6, NEARLY_CERTAIN)  # of the token's probability
# columns by which the control R1 tells words apart
MATCHED_BY = {
    "matched by word": ["token_id"],
    "matched by word and place": ["token_id", "position"],
}
SHARING = ("word-shared", "sign-shared", "sign- and place-shared", "position-shared")
ROLLOUT_KINDS = ("own", "same word and place", "same word elsewhere", "no such word")


@in_batches
def dose_blocks(
    policy,
    rollouts: Rollouts,
    measured: int = DOSE_PROMPTS,
    bundle: int = BUNDLE_PROMPTS,
) -> Blocks:
    """Blocks for curves over prompts per step.

    A block for each rollout of the first `measured` pushing prompts, and two, one per sign, for
    each bundle of the others. Prompts that do not fill a bundle are left out.

    Raises ValueError where fewer prompts push, or `bundle` is larger than `measured`: no draw would
    make some steps.
    """
    if not 1 <= bundle <= measured:
        raise InvalidValue("bundle", bundle, f"from 1 to measured={measured!r}")
    advantages = rollouts.advantages.view(len(rollouts), -1)  # (B, 1) or (B, T)
    pushing = rollouts.group_ids[(advantages != 0).any(1)].unique().tolist()
    if len(pushing) < measured:
        raise InvalidValue(
            "measured", measured, f"at most {len(pushing)}, the prompts that push; sample more"
        )
    alone = pushing[:measured]
    others = pushing[measured:]
    whole = len(others) // bundle * bundle
    bundle_of = {group: k // bundle for k, group in enumerate(others[:whole])}

    # labels of bundles begin beyond those of single rollouts
    labels = torch.full_like(rollouts.completion_ids, -1)
    positive = (advantages[:, 0] > 0).tolist()
    for row, group in enumerate(rollouts.group_ids.tolist()):
        if group in bundle_of:
            labels[row] = len(rollouts) + 2 * bundle_of[group] + positive[row]
        elif group in alone:
            labels[row] = row
    return block_coupling(policy, rollouts, blocks=labels, measured=alone)


def anchor_labels(
    rollouts: Rollouts, groups: Sequence[int], n: int, seed: int = 0
) -> Int[Tensor, "B T"]:
    """A label for each of n tokens that push alone, -1 for all others.

    The tokens are drawn from the rollouts of these prompts that push.
    """
    device = rollouts.group_ids.device
    chosen = torch.isin(rollouts.group_ids, torch.tensor(groups, device=device))
    pushing = rollouts.completion_mask.bool() & (chosen & (rollouts.advantages != 0))[:, None]
    places = pushing.flatten().nonzero().squeeze(1).cpu()
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    drawn = places[order[:n]]
    labels = torch.full(pushing.shape, -1, device=pushing.device)
    labels.view(-1)[drawn.to(labels.device)] = torch.arange(len(drawn), device=labels.device)
    return labels


# --- H1, R1, R5: whose sign does a token follow?


def dose_curve(
    blocks: Blocks, doses: Sequence[int] = DOSES, draws: int = STEP_DRAWS, seed: int = 0
) -> pd.DataFrame:
    """`flip_rates` of steps on each number of prompts: its columns and prompts."""
    weights = {name: matched_weights(blocks.tokens, by) for name, by in MATCHED_BY.items()}
    blocks = replace(blocks, tokens=blocks.tokens.assign(**weights))
    rows = [
        flip_rates(step_changes(blocks, dose, draws, seed)).assign(prompts=dose) for dose in doses
    ]
    return pd.concat(rows, ignore_index=True)


def matched_weights(
    tokens: pd.DataFrame, by: Sequence[str] = ("token_id",)
) -> Float[np.ndarray, " N"]:
    """R1: weights that make each word weigh the same in both signs' rollouts of its prompt.

    With n+ and n- the occurrences in rollouts of either sign: min(n+, n-) / n of the token's own
    sign; 0 for tokens of probability NEARLY_CERTAIN and more.  by: columns that tell words apart.
    """
    word = [tokens[name] for name in ("group", *by)]
    sign = np.sign(tokens["push"])
    positive = (sign == 1).groupby(word).transform("sum")
    negative = (sign == -1).groupby(word).transform("sum")
    # the side with more of a word is weighed down to the other
    own = np.where(sign > 0, positive, negative)
    weights = np.minimum(positive, negative) / np.maximum(own, 1)
    counts = (sign != 0) & (tokens["logp"] < np.log(NEARLY_CERTAIN))
    return np.where(counts, weights, 0.0)


def flip_rates(table: pd.DataFrame) -> pd.DataFrame:
    """H1 of one step's token table with push and change (nats): a row per set of tokens.

    tokens: all; unsure, below p = 0.9; moved, beyond MOVED of the step's rms; MATCHED_BY, where the
    table has its weights.
    follows: chance that the change has the push's sign, mean of both signs' rollouts (0.5: the sign
    says nothing).
    others_follow: that what the other prompts do has it.  distance: total variation between the
    shares (boosted, suppressed, stable) of both signs' mean prompts.  crossed: the same, each
    difference's sign taken from one half of the prompts and its size from the other, so that noise
    does not add.  share: of tokens that move.  own, others: rms of the change by the own prompt and
    by the others, NaN without a column own.  count: sum of the tokens' weights.
    """
    table = table[table["push"] != 0]
    change = table["change"].to_numpy(dtype=float)
    eps = MOVED * np.sqrt(np.mean(change**2))
    weights = {
        "all": np.ones(len(table)),
        "unsure": table["logp"] < np.log(NEARLY_CERTAIN),
        "moved": np.abs(change) > eps,
    }
    weights |= {name: table[name] for name in MATCHED_BY if name in table}
    rows = [
        {"tokens": name, **_rates(table, eps, np.asarray(weight, dtype=float))}
        for name, weight in weights.items()
    ]
    return pd.DataFrame(rows)


def _rates(table: pd.DataFrame, eps: float, weight: Float[np.ndarray, " N"]) -> dict[str, float]:
    """The numbers of `flip_rates` for one weighted set of tokens."""
    change = table["change"].to_numpy(dtype=float)
    own = table["own"].to_numpy(dtype=float) if "own" in table else np.full(len(table), np.nan)
    others = change - own
    positive = (table["push"] > 0).to_numpy()
    sign = np.where(positive, 1, -1)

    # weighted shares of each prompt's positive and of its negative rollouts
    events = pd.DataFrame(
        {
            "boosted": change > eps,
            "suppressed": change < -eps,
            "stable": np.abs(change) <= eps,
            "follows": change * sign > 0,
            "others_follow": others * sign > 0,
        }
    )
    sums = events.mul(weight, axis=0).assign(weight=weight)
    sums = sums.groupby([table["group"].to_numpy(), positive]).sum()
    shares = sums[sums["weight"] > 0].drop(columns="weight").div(sums["weight"], axis=0).dropna()
    is_positive = shares.index.get_level_values(1).to_numpy(dtype=bool)
    up = shares[is_positive].droplevel(1)
    down = shares[~is_positive].droplevel(1)

    # prompts with weight on both sides
    both = up.index.intersection(down.index)
    up = up.loc[both]
    down = down.loc[both]
    gaps = (up - down)[["boosted", "suppressed", "stable"]].to_numpy()  # (P, 3)
    distance = float(np.abs(gaps.mean(0)).sum() / 2) if len(gaps) else np.nan
    crossed = np.nan
    # half the sum of |mean gap|, signs from every other prompt and sizes from the rest, both ways
    if len(gaps) > 1:
        first = gaps[::2].mean(0)
        second = gaps[1::2].mean(0)
        crossed = float((np.sign(first) @ second + np.sign(second) @ first) / 4)

    def mean(values) -> float:
        return float(np.average(values, weights=weight)) if weight.any() else np.nan

    return {
        "follows": float((up["follows"] + down["follows"]).mean() / 2),
        "others_follow": float((up["others_follow"] + down["others_follow"]).mean() / 2),
        "distance": distance,
        "crossed": crossed,
        "share": mean(np.abs(change) > eps),
        "own": mean(own**2) ** 0.5,
        "others": mean(others**2) ** 0.5,
        "count": float(weight.sum()),
    }


# --- H5: what shared tokens keep


def net_curve(
    blocks: Blocks, doses: Sequence[int] = DOSES, draws: int = STEP_DRAWS, seed: int = 0
) -> pd.DataFrame:
    """H5: mean change of unsure tokens of positive rollouts, by whether the prompt shares them.

    Columns prompts, identity (of SHARING), kind (shared, specific), band (of p, CONFIDENCE_BANDS),
    tokens, net (mean change), own (of it, by the own prompt), size (mean |change|); in units of the
    rms change that a prompt alone causes. word-shared: the word stands in another rollout;
    sign-shared: in a negative one; sign- and place-shared: in a negative one at the same position;
    position-shared: in all of them at the same position.
    """
    blocks = replace(blocks, tokens=blocks.tokens.assign(**sharing_flags(blocks.tokens)))
    rows = []
    unit = None
    for dose in doses:
        table = step_changes(blocks, dose, draws, seed)
        table = table[(table["push"] > 0) & (table["logp"] < np.log(NEARLY_CERTAIN))]
        if unit is None:
            unit = np.sqrt(np.mean(table["own"] ** 2))
        table = table.assign(
            change=table["change"] / unit,
            own=table["own"] / unit,
            size=table["change"].abs() / unit,
            band=pd.cut(np.exp(table["logp"]), CONFIDENCE_BANDS, labels=False),
        )
        for identity in SHARING:
            kind = np.where(table[identity], "shared", "specific")
            cells = table.groupby([kind, "band"]).agg(
                tokens=("size", "size"),
                net=("change", "mean"),
                own=("own", "mean"),
                size=("size", "mean"),
            )
            cells = cells.rename_axis(["kind", "band"]).reset_index()
            rows.append(cells.assign(identity=identity, prompts=dose))
    return pd.concat(rows, ignore_index=True)


def sharing_flags(tokens: pd.DataFrame) -> dict[str, pd.Series]:
    """Whether a token is shared within its prompt, for each of SHARING: {identity: (N,) bool}."""
    word = ["group", "token_id"]
    word_and_place = ["group", "token_id", "position"]
    signed = tokens.assign(negative=tokens["push"] < 0)
    rollouts = tokens.groupby("group")["rollout"].transform("nunique")
    rollouts_with_word = tokens.groupby(word)["rollout"].transform("nunique")
    rollouts_with_both = tokens.groupby(word_and_place)["rollout"].transform("nunique")
    return {
        "word-shared": rollouts_with_word > 1,
        "sign-shared": signed.groupby(word)["negative"].transform("any"),
        "sign- and place-shared": signed.groupby(word_and_place)["negative"].transform("any"),
        "position-shared": rollouts_with_both == rollouts,
    }


# --- R3: signs permuted, frequencies fixed


def permuted_signs(blocks: Blocks) -> pd.DataFrame:
    """R3: change of an unsure token per advantage of a rollout, by what that rollout holds.

    By linearity this is what permuting advantages within the group does, with all frequencies
    fixed. Columns rollout (of ROLLOUT_KINDS), effect (mean, as a share of own's), pairs. What one
    rollout gets, another loses, so what counts is how the kinds differ.  Needs blocks of one
    rollout each for the measured prompts, as `dose_blocks` makes.
    """
    # advantage x weight, one number for a rollout's tokens
    push = blocks.pushing.groupby("block")["push"].first()
    *kinds, otherwise = ROLLOUT_KINDS
    parts = []
    for _, pushing in blocks.tokens[blocks.tokens["block"] >= 0].groupby("group"):
        unsure = pushing[pushing["logp"] < np.log(NEARLY_CERTAIN)]
        for block, rollout in pushing.groupby("block"):
            conditions = [
                unsure["block"] == block,
                _stands_in(unsure, rollout, ["token_id", "position"]),
                _stands_in(unsure, rollout, ["token_id"]),
            ]
            kind = np.select(conditions, kinds, otherwise)
            effect = blocks.changes[block, unsure.index] / push[block]
            parts.append(pd.DataFrame({"rollout": kind, "effect": effect.astype(float)}))
    effects = pd.concat(parts).groupby("rollout")["effect"]
    table = effects.agg(effect="mean", pairs="size").reindex(ROLLOUT_KINDS)
    return table.assign(effect=table["effect"] / table.loc["own", "effect"]).reset_index()


def _stands_in(tokens: pd.DataFrame, rollout: pd.DataFrame, by: list[str]) -> np.ndarray:
    """Whether each token equals some token of the rollout in these columns."""
    return pd.MultiIndex.from_frame(tokens[by]).isin(pd.MultiIndex.from_frame(rollout[by]))


# --- H6, and real steps


def shift_curve(
    blocks: Blocks, doses: Sequence[int], draws: int = STEP_DRAWS, seed: int = 0
) -> pd.DataFrame:
    """H6: `category_shift`, averaged over prompts, at equal prompts and at equal gradient energy.

    Columns category, both, positive_only, shift, prompts (of the positive-only step), equal_energy,
    prompts_both.
    """
    columns = ["both", "positive_only", "shift", "prompts_both"]
    rows = []
    for dose in doses:
        for equal_energy in (False, True):
            table = category_shift(blocks, dose, draws, seed, equal_energy)
            table = table.rename(columns={"prompts": "prompts_both"})
            means = table.groupby("category")[columns].mean().reset_index()
            rows.append(means.assign(prompts=dose, equal_energy=equal_energy))
    return pd.concat(rows, ignore_index=True)


@in_batches
def real_step_changes(
    policy, batch: Rollouts, tokens: Rollouts, optimizer: str = "sgd"
) -> pd.DataFrame:
    """The table of `tokens` after one real step on the batch: push (advantage) and change, nats.

    The step's length is such that it moves them by STEP_NATS (root mean square).
    """
    alive = tokens.completion_mask.bool()
    before = logps(policy, tokens)[alive]  # (N,)
    step = ScaledStep(policy, batch, optimizer, 1e-4, clip=None)
    # movement is nearly proportional to the scale
    scale = 1.0
    for _ in range(6):
        moved = (logps(step.apply(scale), tokens)[alive] - before).double().cpu().numpy()
        size = float(np.sqrt(np.mean(moved**2)))
        if abs(size / STEP_NATS - 1) < 0.05:
            break
        scale *= STEP_NATS / size
    table = tokens.token_table()
    return table.assign(push=table["advantage"].astype(float), change=moved)
