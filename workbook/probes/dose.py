"""Curves over the number of prompts in a step, read off block coupling: what a token's own prompt
and the others do.

    blocks = dose_blocks(policy, rollouts, measured=24)          # a pass per rollout of 24 prompts and per 16 others
    dose_curve(blocks, (1, 8, 64))                               # H1: do tokens follow their own rollout's sign?
    net_curve(blocks, (1, 8, 64))                                # H5: net change of shared and of specific tokens

Rollouts of the measured prompts are a block each, since any number of these prompts may join a
step; the other prompts come in bundles, one block per sign. To first order a step's change is the
sum of its blocks' changes, so every curve is of one set of small steps. A change counts as movement
beyond `MOVED` times the step's root mean square: 0.01 nats in a step of 0.1 nats, whatever its
length.
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
MEASURED, BUNDLE = 24, 16  # prompts
BANDS = (0.0, 0.3, 0.6, NEARLY_CERTAIN)  # of the token's probability
MATCHED = {"matched by word": ["token_id"], "matched by word and place": ["token_id", "position"]}
IDENTITIES = ("word-shared", "sign-shared", "sign- and place-shared", "position-shared")


@in_batches
def dose_blocks(
    policy, rollouts: Rollouts, measured: int = MEASURED, bundle: int = BUNDLE
) -> Blocks:
    """Blocks for curves over prompts per step: rollouts of the first `measured` pushing prompts,
    bundles of the others.

    Raises ValueError where fewer prompts push, or `bundle` is larger than `measured`: no draw would
    make some steps.
    """
    if not 1 <= bundle <= measured:
        raise InvalidValue("bundle", bundle, f"from 1 to measured={measured!r}")
    pushing = (
        rollouts.group_ids[(rollouts.advantages.view(len(rollouts), -1) != 0).any(1)]
        .unique()
        .tolist()
    )
    if len(pushing) < measured:
        raise InvalidValue(
            "measured", measured, f"at most {len(pushing)}, the prompts that push; sample more"
        )
    bundles = (len(pushing) - measured) // bundle  # whole ones, a block for each sign of each
    place = {
        group: k // bundle
        for k, group in enumerate(pushing[measured : measured + bundles * bundle])
    }
    labels = torch.full_like(rollouts.completion_ids, -1)
    signs = (rollouts.advantages.view(len(rollouts), -1)[:, 0] > 0).tolist()
    for row, (group, positive) in enumerate(zip(rollouts.group_ids.tolist(), signs, strict=True)):
        if group in place:
            labels[row] = len(rollouts) + 2 * place[group] + positive
        elif group in pushing[:measured]:
            labels[row] = row
    return block_coupling(policy, rollouts, blocks=labels, measured=pushing[:measured])


def anchor_labels(
    rollouts: Rollouts, groups: Sequence[int], n: int, seed: int = 0
) -> Int[Tensor, "B T"]:
    """A label for each of n tokens that push alone, drawn from the rollouts of some prompts; -1 for
    all others.
    """
    chosen = torch.isin(rollouts.group_ids, torch.tensor(groups, device=rollouts.group_ids.device))
    pushing = rollouts.completion_mask.bool() & (chosen & (rollouts.advantages != 0))[:, None]
    places = pushing.flatten().nonzero().squeeze(1).cpu()
    drawn = places[torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))[:n]]
    labels = torch.full(pushing.shape, -1, device=pushing.device)
    labels.view(-1)[drawn.to(labels.device)] = torch.arange(len(drawn), device=labels.device)
    return labels


# --- H1, R1, R5: whose sign does a token follow?


def dose_curve(
    blocks: Blocks, doses: Sequence[int] = DOSES, draws: int = STEP_DRAWS, seed: int = 0
) -> pd.DataFrame:
    """`flip_rates` of steps on each number of prompts: its columns and prompts."""
    matched = {name: matched_weights(blocks.tokens, by) for name, by in MATCHED.items()}
    blocks = replace(blocks, tokens=blocks.tokens.assign(**matched))
    rows = [
        flip_rates(step_changes(blocks, dose, draws, seed)).assign(prompts=dose) for dose in doses
    ]
    return pd.concat(rows, ignore_index=True)


def matched_weights(
    tokens: pd.DataFrame, by: Sequence[str] = ("token_id",)
) -> Float[np.ndarray, " N"]:
    """R1: weights under which each word (at each place) weighs alike in both signs' rollouts of its
    prompt.

    With n+ and n- the occurrences in rollouts of either sign: min(n+, n-) / n of the token's own
    sign; 0 for tokens of probability NEARLY_CERTAIN and more.  by: columns that tell words apart.
    """
    sign, keys = np.sign(tokens["push"]), [tokens[name] for name in ("group", *by)]
    positive, negative = ((sign == side).groupby(keys).transform("sum") for side in (1, -1))
    own = np.where(sign > 0, positive, negative)
    weights = np.minimum(positive, negative) / np.maximum(own, 1)
    return np.where((sign != 0) & (tokens["logp"] < np.log(NEARLY_CERTAIN)), weights, 0.0)


def flip_rates(table: pd.DataFrame) -> pd.DataFrame:
    """H1 of one step's token table with push and change (nats): a row per set of tokens, columns as
    below.

    tokens: all; unsure, below p = 0.9; moved, beyond MOVED of the step's rms; MATCHED, where the
    table has its weights.
    follows: chance that the change has the push's sign, mean of both signs' rollouts (0.5: the sign
    says nothing).
    others_follow: that what the other prompts do has it.  distance: total variation between the
    shares (boosted, suppressed, stable) of both signs' mean prompts.  crossed: the same, each
    difference's sign taken from one half of the prompts and its size from the other, so that noise
    does not add.  share: of tokens that move.  own, others: rms of the change by the own prompt and
    by the others.  Without a column own, what needs it is NaN.
    """
    table = table[table["push"] != 0]
    change = table["change"].to_numpy(dtype=float)
    eps = MOVED * np.sqrt(np.mean(change**2))
    unsure = table["logp"] < np.log(NEARLY_CERTAIN)
    weights = {"all": np.ones(len(table)), "unsure": unsure, "moved": np.abs(change) > eps}
    weights |= {name: table[name] for name in MATCHED if name in table}
    return pd.DataFrame(
        [{"tokens": name, **_rates(table, eps, weight)} for name, weight in weights.items()]
    )


def _rates(table: pd.DataFrame, eps: float, weight) -> dict[str, float]:
    weight, positive = np.asarray(weight, dtype=float), (table["push"] > 0).to_numpy()
    change = table["change"].to_numpy(dtype=float)
    own = table["own"].to_numpy(dtype=float) if "own" in table else np.full(len(table), np.nan)
    sign = np.where(positive, 1, -1)
    cells = {"boosted": change > eps, "suppressed": change < -eps, "stable": np.abs(change) <= eps}
    cells |= {"follows": change * sign > 0, "others_follow": (change - own) * sign > 0}
    # weighted means of each prompt's positive and of its negative rollouts, for prompts with weight
    # in both
    sums = pd.DataFrame(cells).mul(weight, axis=0).assign(weight=weight)
    sums = sums.groupby([table["group"].to_numpy(), positive]).sum()
    means = sums[sums["weight"] > 0].drop(columns="weight").div(sums["weight"], axis=0).dropna()
    up, down = (
        means[means.index.get_level_values(1) == side].droplevel(1) for side in (True, False)
    )
    both = up.index.intersection(down.index)
    up, down = up.loc[both], down.loc[both]
    gaps = (up - down)[["boosted", "suppressed", "stable"]].to_numpy()  # (P, 3)
    crossed = np.nan
    # half the sum of |mean gap|, signs from every other prompt and sizes from the rest, both ways
    if len(gaps) > 1:
        first, second = gaps[::2].mean(0), gaps[1::2].mean(0)
        crossed = float((np.sign(first) @ second + np.sign(second) @ first) / 4)

    def mean(values):
        return float(np.average(values, weights=weight)) if weight.any() else np.nan

    return {
        "follows": float((up["follows"] + down["follows"]).mean() / 2),
        "others_follow": float((up["others_follow"] + down["others_follow"]).mean() / 2),
        "distance": float(np.abs(gaps.mean(0)).sum() / 2) if len(gaps) else np.nan,
        "crossed": crossed,
        "share": mean(np.abs(change) > eps),
        "own": mean(own**2) ** 0.5,
        "others": mean((change - own) ** 2) ** 0.5,
        "count": float(weight.sum()),
    }


# --- H5: what shared tokens keep


def net_curve(
    blocks: Blocks, doses: Sequence[int] = DOSES, draws: int = STEP_DRAWS, seed: int = 0
) -> pd.DataFrame:
    """H5: mean change of unsure tokens of positive rollouts, by whether other rollouts of the
    prompt share them.

    Columns prompts, identity (of IDENTITIES), kind (shared, specific), band (of p, BANDS), tokens,
    net (mean change), own (of it, by the own prompt), size (mean |change|); in units of the rms
    change that a prompt alone causes. word-shared: the word stands in another rollout; sign-shared:
    in a negative one; sign- and place-shared: in a negative one at the same position;
    position-shared: in all of them at the same position.
    """
    shared = shared_tokens(blocks.tokens)
    blocks = replace(blocks, tokens=blocks.tokens.assign(**shared))
    rows, unit = [], None
    for dose in doses:
        table = step_changes(blocks, dose, draws, seed)
        table = table[(table["push"] > 0) & (table["logp"] < np.log(NEARLY_CERTAIN))]
        unit = np.sqrt(np.mean(table["own"] ** 2)) if unit is None else unit
        columns = {name: table[name] / unit for name in ("change", "own")} | {
            "size": table["change"].abs() / unit
        }
        table = table.assign(**columns, band=pd.cut(np.exp(table["logp"]), BANDS, labels=False))
        for identity in IDENTITIES:
            kinds = table.groupby([np.where(table[identity], "shared", "specific"), "band"])
            means = {"net": ("change", "mean"), "own": ("own", "mean"), "size": ("size", "mean")}
            cells = (
                kinds.agg(tokens=("size", "size"), **means)
                .rename_axis(["kind", "band"])
                .reset_index()
            )
            rows.append(cells.assign(identity=identity, prompts=dose))
    return pd.concat(rows, ignore_index=True)


def shared_tokens(tokens: pd.DataFrame) -> dict[str, pd.Series]:
    """For each of IDENTITIES, whether a token is shared so within its prompt: {identity: (N,)
    bool}.
    """
    word, place = (tokens.groupby(["group", "token_id", *more]) for more in ([], ["position"]))
    rollouts = tokens.groupby("group")["rollout"].transform("nunique")
    negative = tokens.assign(negative=tokens["push"] < 0)
    return {
        "word-shared": word["rollout"].transform("nunique") > 1,
        "sign-shared": negative.groupby(["group", "token_id"])["negative"].transform("any"),
        "sign- and place-shared": (
            negative.groupby(["group", "token_id", "position"])["negative"].transform("any")
        ),
        "position-shared": place["rollout"].transform("nunique") == rollouts,
    }


# --- R3: signs permuted, frequencies fixed


ROLLOUTS = ("own", "same word and place", "same word elsewhere", "no such word")


def permuted_signs(blocks: Blocks) -> pd.DataFrame:
    """R3: change of an unsure token per unit of advantage given to a rollout of its prompt, by what
    that rollout holds.

    By linearity this is what permuting advantages within the group does, with all frequencies
    fixed. Columns rollout (of ROLLOUTS), effect (mean, as a share of own's), pairs. What one
    rollout gets, another loses, so what counts is how the kinds differ.  Needs blocks of one
    rollout each for the measured prompts, as `dose_blocks` makes.
    """
    # advantage x weight, one number for a rollout's tokens
    push = blocks.pushing.groupby("block")["push"].first()
    parts = []
    for _, whole in blocks.tokens[blocks.tokens["block"] >= 0].groupby("group"):
        tokens = whole[whole["logp"] < np.log(NEARLY_CERTAIN)]
        for block, there in whole.groupby("block"):
            words = (["token_id", "position"], ["token_id"])
            same = [
                pd.MultiIndex.from_frame(tokens[w]).isin(pd.MultiIndex.from_frame(there[w]))
                for w in words
            ]
            kind = np.select([tokens["block"] == block, *same], ROLLOUTS[:3], ROLLOUTS[3])
            effect = blocks.changes[block, tokens.index] / push[block]
            parts.append(pd.DataFrame({"rollout": kind, "effect": effect.astype(float)}))
    table = (
        pd.concat(parts)
        .groupby("rollout")["effect"]
        .agg(effect="mean", pairs="size")
        .reindex(ROLLOUTS)
    )
    return table.assign(effect=table["effect"] / table.loc["own", "effect"]).reset_index()


# --- H6, and real steps


def shift_curve(
    blocks: Blocks, doses: Sequence[int], draws: int = STEP_DRAWS, seed: int = 0
) -> pd.DataFrame:
    """H6: `category_shift`, averaged over prompts, at equal prompts and at equal gradient energy.

    Columns category, both, positive_only, shift, prompts (of the positive-only step), equal_energy,
    prompts_both.
    """
    rows = []
    for dose in doses:
        for equal in (False, True):
            table = category_shift(blocks, dose, draws, seed, equal).rename(
                columns={"prompts": "prompts_both"}
            )
            means = (
                table.groupby("category")[["both", "positive_only", "shift", "prompts_both"]]
                .mean()
                .reset_index()
            )
            rows.append(means.assign(prompts=dose, equal_energy=equal))
    return pd.concat(rows, ignore_index=True)


@in_batches
def real_step(policy, batch: Rollouts, tokens: Rollouts, optimizer: str = "sgd") -> pd.DataFrame:
    """`tokens`' table after one real step on the batch that moves them by STEP_NATS (rms): push
    (advantage), change.
    """
    alive, step, scale = (
        tokens.completion_mask.bool(),
        ScaledStep(policy, batch, optimizer, 1e-4, clip=None),
        1.0,
    )
    before = logps(policy, tokens)[alive]
    # the step's length by the secant rule; movement is nearly proportional to it
    for _ in range(6):
        moved = (logps(step.apply(scale), tokens)[alive] - before).double().cpu().numpy()
        size = float(np.sqrt(np.mean(moved**2)))
        if abs(size / STEP_NATS - 1) < 0.05:
            break
        scale *= STEP_NATS / size
    table = tokens.token_table()
    return table.assign(push=table["advantage"].astype(float), change=moved)
