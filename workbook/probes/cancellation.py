"""Cancelled share: how much of the push on a word does the other sign take away?

    rows = prompt_rows(policy, rollouts, measured=24)        # what a unit push of each rollout does: small steps, once
    shares(rows.sums(rows.weights(), prompts=8))             # a sum of rows: any prompts, rollouts, or permuted rewards

One step changes a token by a sum over who pushes: the same prompt with the token's own sign (that
of its rollout's advantage; its own rollout included), the same prompt with the other sign, other
prompts with either: PARTS. A *side* is a part, or a sum of two, of one sign. The cancelled share of
a set of tokens is

    - sum(other side x own side) / sum(own side^2)      1: the other sign takes it all, 0: nothing, below 0: it adds

within the prompt (its own two parts; to first order no other prompt changes it) or in the batch
(both of each sign).

On *all* tokens good and bad rollouts do not cancel but agree, an identity: with q the chance of
reward 1, grad q = q E[score | 1] and 0 = q E[score | 1] + (1 - q) E[score | 0], so pushes of mean
advantage (1 - q) and -q are, on average, (1 - q) grad q and q grad q, parallel. Noise alone keeps
their cosine below 1 (`sign_products`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.messages import InvalidValue
from workbook.policies.models import private_copy
from workbook.probes.blocks import Blocks, block_coupling
from workbook.probes.directions import Along
from workbook.probes.dose import CONFIDENCE_BANDS
from workbook.probes.step import on_policy_pushes
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.theory.advantages import group_advantages, permute_in_groups
from workbook.theory.coupling import NEARLY_CERTAIN
from workbook.training.optimizers import trained_weights

# own prompt or others, own sign or the other one
PARTS = ("same", "other", "others_same", "others_other")
RIGHT, WRONG, LATER = "right result", "wrong result", "result after an error"
# weighed as results are over bands of confidence and of the word's frequency
MATCHED = "style, matched"
WORD_IDENTITIES = {"word": [], "word and place": ["position"], "word and state": ["step", "value"]}
ANY = "any word"  # shared or not
ORDERS = ("sum of rows", "others first", "other sign first")
FREQUENCIES = (3, 5, 9, 17)  # of a word among its prompt's tokens, from which on a band begins


@dataclass(frozen=True)
class PushRows:
    """What pushes do to tokens, a row per block of rollouts of one reward, as if each had an
    advantage of 1.

    blocks: `Blocks` whose table of blocks has the columns reward (NaN: a block of several prompts,
    which pushed with its own advantages), rollouts, and last, the place of its last rollout in its
    group.
    """

    blocks: Blocks

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """The measured tokens with kind (`kinds`), unsure, frequency (of the word in its prompt),
        step and value.
        """
        tokens, rollout = self.blocks.tokens, self.blocks.tokens["rollout"]
        result = tokens["category"] == "result"
        value = tokens["token_id"].where(result).groupby(rollout).ffill().groupby(rollout).shift()
        return tokens.assign(
            kind=kinds(tokens),
            unsure=tokens["logp"] < np.log(NEARLY_CERTAIN),
            frequency=tokens.groupby(["group", "token_id"])["logp"].transform("size"),
            step=result.groupby(rollout).cumsum() - result,
            value=value.fillna(-1),
        )

    @cached_property
    def codes(self) -> dict[str, Int[np.ndarray, " N"]]:
        """Number of each token's word within its prompt, by WORD_IDENTITIES; states where the task has
        results.
        """
        known = [
            name
            for name in WORD_IDENTITIES
            if name != "word and state" or (self.tokens["category"] == "result").any()
        ]
        keys = {name: ["group", "token_id", *WORD_IDENTITIES[name]] for name in known}
        return {name: self.tokens.groupby(by).ngroup().to_numpy() for name, by in keys.items()}

    @cached_property
    def groups(self) -> list[int]:
        """The measured prompts."""
        return self.tokens["group"].unique().tolist()

    def weights(
        self, first: int | None = None, permuted: int | None = None
    ) -> Float[np.ndarray, " K"]:
        """The advantage of each row, reckoned within the first rollouts of a group (all by
        default).

        permuted: seed of a permutation of the rewards within each group; rows of several rollouts
        do not push then.
        """
        rows = self.blocks.blocks
        own = rows["reward"].notna() & (rows["last"] < (first or np.inf))
        own = (own & ((rows["rollouts"] == 1) | (permuted is None))).to_numpy()
        rewards, groups, counts = (
            torch.tensor(rows[name].to_numpy()[own]) for name in ("reward", "group", "rollouts")
        )
        if permuted is not None:
            rewards = permute_in_groups(rewards, groups, torch.Generator().manual_seed(permuted))
        repeated = (values.repeat_interleave(counts) for values in (rewards, groups))
        weights = (rows["reward"].isna() & (permuted is None)).to_numpy(dtype=float)
        weights[own] = group_advantages(*repeated)[counts.cumsum(0) - counts].numpy()
        return weights

    def parts(
        self, weights: Float[np.ndarray, " K"], prompts: int = 1, seed: int | None = None
    ) -> pd.DataFrame:
        """The tokens that push, with sign and PARTS of their change per learning rate in a step on
        so many prompts.

        The other prompts that push are the next ones in a circle, or drawn with a seed; bundles
        join last, and whole. Raises ValueError for more prompts than push, and where none does.
        """
        sizes = self.blocks.blocks[weights != 0].groupby("group")["prompts"].max()
        single, bundles = (np.array(sizes.index[chosen]) for chosen in (sizes == 1, sizes > 1))
        if seed is not None:
            single, bundles = map(np.random.default_rng(seed).permutation, (single, bundles))
        tables = []
        for group in filter(set(single).__contains__, self.groups):
            order = np.concatenate([np.roll(single, -int(np.argmax(single == group)))[1:], bundles])
            beside = order[1 + sizes[order].cumsum().to_numpy() <= prompts]
            if 1 + sizes[beside].sum() != prompts:
                raise InvalidValue(
                    "prompts",
                    prompts,
                    "reached by whole bundles",
                    f"prompts={prompts} can't be made of {len(single)} that push and whole"
                    " bundles.",
                )
            tables.append(self.split(weights, group, beside))
        if not tables:
            raise ValueError(
                "No measured prompt has different rewards; take more rollouts or other prompts."
            )
        return pd.concat(tables)

    def split(
        self, weights: Float[np.ndarray, " K"], group: int, beside: Sequence[int]
    ) -> pd.DataFrame:
        """`parts` of one prompt's tokens in a step on it and those beside it."""
        groups, of = self.blocks.blocks["group"].to_numpy(), self.tokens["block"].to_numpy()
        signs = np.sign(weights * self.blocks.blocks["sign"].to_numpy())
        at = np.flatnonzero((self.tokens["group"] == group) & (of >= 0) & (signs[of] != 0))
        joins = np.flatnonzero(np.isin(groups, [group, *beside]) & (weights != 0))
        near, agree = (groups[joins] == group)[:, None], signs[joins, None] == signs[of[at]]
        pushes = weights[joins, None] * self.blocks.changes[np.ix_(joins, at)]  # (rows, tokens)
        masks = (near & agree, near & ~agree, ~near & agree, ~near & ~agree)
        columns = {
            name: np.where(mask, pushes, 0.0).sum(0)
            for name, mask in zip(PARTS, masks, strict=True)
        }
        return pd.DataFrame({"sign": signs[of[at]], **columns}, index=at)

    def sets(self, parts: pd.DataFrame) -> dict[tuple[str, str], Float[np.ndarray, " M"]]:
        """Weights of `parts`' tokens by (identity, kind): unsure ones whose word stands in rollouts
        of both signs.
        """
        at, sign = parts.index.to_numpy(), parts["sign"].to_numpy()
        tokens = self.tokens.iloc[at]
        kind, unsure = tokens["kind"].to_numpy(), tokens["unsure"].to_numpy()
        sets = {(ANY, "all"): unsure.astype(float)}
        for identity, codes in self.codes.items():
            codes = codes[at]
            both = [
                np.bincount(codes[sign == side], minlength=codes.max() + 1) > 0 for side in (1, -1)
            ]
            shared = unsure & np.logical_and(*both)[codes]
            named = {
                name: (shared & (kind == name)).astype(float) for name in np.unique(kind[unsure])
            }
            if "style" in named and (
                results := [named[name] for name in (RIGHT, WRONG, LATER) if name in named]
            ):
                named[MATCHED] = matched(tokens, named["style"], sum(results))
            sets |= {
                (identity, name): one
                for name, one in {"all": shared.astype(float), **named}.items()
            }
        return sets

    def sums(
        self, weights: Float[np.ndarray, " K"], prompts: int = 1, seed: int | None = None
    ) -> pd.DataFrame:
        """Sums over each set of tokens, of which every share is a ratio: columns identity, kind and
        as `set_sums`.
        """
        parts = self.parts(weights, prompts, seed)
        rows = [
            {"identity": i, "kind": k, **set_sums(parts, one)}
            for (i, k), one in self.sets(parts).items()
        ]
        return pd.DataFrame(rows)


def kinds(tokens: pd.DataFrame) -> np.ndarray:
    """Each token's category; of results whether right, the first wrong one, or after an error of
    its rollout.
    """
    wrong = tokens["credit"].fillna(0.0) < -1e-9
    before = wrong.groupby(tokens["rollout"]).cumsum() > wrong
    result, category = tokens["category"] == "result", tokens["category"].fillna("token")
    return np.select([result & before, result & wrong, result], [LATER, WRONG, RIGHT], category)


def matched(
    tokens: pd.DataFrame, given: Float[np.ndarray, " M"], wanted: Float[np.ndarray, " M"]
) -> np.ndarray:
    """Weights that make the given tokens as many as the wanted ones in each band of confidence and
    of frequency.
    """
    cell = len(FREQUENCIES) * np.digitize(np.exp(tokens["logp"]), CONFIDENCE_BANDS) + np.digitize(
        tokens["frequency"], FREQUENCIES
    )
    there, asked = (np.bincount(cell, one) for one in (given, wanted))
    return given * (asked / np.maximum(there, 1))[cell]


def set_sums(parts: pd.DataFrame, weights: Float[np.ndarray, " M"]) -> dict[str, float]:
    """Weighted sums over tokens: own2, cross (own side squared, times the other) within the prompt;
    side2, side_cross

    in the batch; beside, others2 (what other prompts do, times the own side, and squared); net2 (of
    the whole change); tokens; up, down (tokens of either sign) and up_follows, down_follows (those
    whose change has their own sign).
    """
    same, other, others_same, others_other = (parts[name].to_numpy() for name in PARTS)
    others, sign = others_same + others_other, parts["sign"].to_numpy()
    side, net = same + others_same, same + other + others
    terms = {
        "own2": same**2,
        "cross": same * other,
        "side2": side**2,
        "side_cross": side * (other + others_other),
    }
    terms |= {
        "beside": same * others,
        "others2": others**2,
        "net2": net**2,
        "tokens": np.ones(len(net)),
    }
    terms |= {"up": sign > 0, "up_follows": (sign > 0) & (net > 0)}
    terms |= {"down": sign < 0, "down_follows": (sign < 0) & (net < 0)}
    return {name: float(term @ weights) for name, term in terms.items()}


def shares(sums: pd.DataFrame) -> pd.DataFrame:
    """Sums with the cancelled share within the prompt and in the batch, and follows, the chance to
    follow the own sign.

    >>> ends = pd.DataFrame({"own2": 1.0, "cross": [-1.0, 0.0, 1.0], "side2": 1.0, "side_cross": 0.0})
    >>> (shares(ends.assign(up=1, down=1, up_follows=1, down_follows=0))["within"] + 0.0).tolist()
    [1.0, 0.0, -1.0]
    """
    follows = (sums["up_follows"] / sums["up"] + sums["down_follows"] / sums["down"]) / 2
    within, batch = -sums["cross"] / sums["own2"], -sums["side_cross"] / sums["side2"]
    return sums.assign(within=within, batch=batch, follows=follows)


# --- rows of a policy


def unit_rows(
    policy, rollouts: Rollouts, labels: Int[Tensor, " B"], measured: Bool[Tensor, " B"]
) -> PushRows:
    """A small step for each label of rollouts (below 0: none), recorded on the measured rollouts:
    see `PushRows`.

    Rollouts of one prompt and reward push with an advantage of 1; a label of several keeps their
    own advantages.
    """
    rollouts, groups = rollouts.to("cpu"), rollouts.group_ids.cpu().long()
    columns = {
        "block": labels.numpy(),
        "group": groups.numpy(),
        "reward": rollouts.rewards.numpy(),
        "rollouts": 1,
    }
    facts = pd.DataFrame(columns)
    facts = (
        facts.assign(last=facts.groupby("group").cumcount()).query("block >= 0").groupby("block")
    )
    known = facts.agg({"reward": "first", "last": "max", "rollouts": "sum", "group": "first"})
    known["reward"] = known["reward"].where((facts[["group", "reward"]].nunique() == 1).all(axis=1))
    units = torch.isin(labels, torch.tensor(known.index[known["reward"].notna()].to_numpy()))
    # a prompt's rollouts that are not measured, for a while another group
    beside = groups.max() + 1 + groups
    lent = replace(rollouts, advantages=torch.where(units, 1.0, rollouts.advantages))
    lent = replace(lent, group_ids=torch.where(measured, groups, beside))
    labels = labels[:, None].expand(rollouts.completion_ids.shape)
    blocks = block_coupling(policy, lent, labels, groups[measured].unique().tolist())
    known = known.loc[blocks.blocks["block"]].reset_index(drop=True)
    return PushRows(replace(blocks, blocks=blocks.blocks.assign(**known)))


@in_batches
def prompt_rows(
    policy,
    rollouts: Rollouts,
    measured: int,
    alone: int | None = None,
    bundle: int = 16,
    by: str = "rollout",
) -> PushRows:
    """Rows for any number of prompts: of the measured ones each rollout (by="sign": each sign) a
    row; others by sign.

    The first `measured` prompts that push are measured; up to `alone` (all by default) push by
    themselves, the rest in whole bundles.  Raises ValueError where none pushes.
    """
    groups = rollouts.group_ids[rollouts.advantages != 0].unique().tolist()
    alone = len(groups) if alone is None else alone
    place = {
        group: k
        for k, group in enumerate(groups[: alone + (len(groups) - alone) // bundle * bundle])
    }
    place = torch.tensor([place.get(group, -1) for group in rollouts.group_ids.tolist()])
    bundled = torch.where(place < alone, place, alone + (place - alone) // bundle)
    labels = len(rollouts) + 2 * bundled + (rollouts.advantages > 0).cpu()
    own = place < (measured if by == "rollout" else 0)
    labels = torch.where(own, torch.arange(len(rollouts)), labels).masked_fill(place < 0, -1)
    return unit_rows(policy, rollouts, labels, (place >= 0) & (place < measured))


@in_batches
def rollout_rows(policy, rollouts: Rollouts, measured: int = 8, alone: int = 64) -> PushRows:
    """Rows for any power of 2 of one prompt's rollouts: the first `alone` a row each, then
    doublings by sign.
    """
    n = torch.arange(len(rollouts))
    doubling = torch.log2((n + 0.5).clamp(min=1)).floor().long()
    labels = torch.where(
        n < alone, n, len(rollouts) + 2 * doubling + (rollouts.advantages > 0).cpu()
    )
    return unit_rows(policy, rollouts, labels, n < measured)


# --- what the whole gradient does


@in_batches
def sign_products(
    policy, rollouts: Rollouts, sizes: Sequence[int], chosen: Bool[Tensor, "B T"] | None = None
) -> pd.DataFrame:
    """Products of what one prompt's good and bad rollouts push, by its number of rollouts: a row
    per size.

    product, up2, down2: of the two signs' gradients; up_lengths, down_lengths: their squared
    lengths without noise, from the product of what came with this size and before.  chosen: (B, T),
    tokens that push.
    """
    along, alive = Along(policy), rollouts.completion_mask.bool()
    alive = alive if chosen is None else alive & chosen
    rows, start, total, count = (
        [],
        0,
        {"up": torch.zeros(1), "down": torch.zeros(1)},
        {"up": 0, "down": 0},
    )
    for size in sizes:
        part, row = rollouts.select(slice(start, size)), {"rollouts": size}
        for name, sign in (("up", 1), ("down", -1)):
            own = sign * part.advantages > 0
            pushes, more, new = (
                alive[start:size] * own[:, None] * float(sign),
                torch.zeros(1),
                int(own.sum()),
            )
            if pushes.any():
                more = torch.cat([g.flatten() for g in along.gradient_of(part, pushes).values()])
            scale = (count[name] + new) ** 2 / max(count[name] * new, 1)
            row[f"{name}_lengths"] = scale * float((total[name] * more).sum())
            total[name], count[name] = total[name] + more, count[name] + new
            row[f"{name}2"] = float(total[name].square().sum())
        rows.append(row | {"product": float((total["up"] * total["down"]).sum())})
        start = size
    return pd.DataFrame(rows)


@in_batches
def left_out(
    policy,
    rollouts: Rollouts,
    rows: PushRows,
    group: int,
    beside: Sequence[int],
    nats: Sequence[float],
) -> dict[tuple[float, str], pd.DataFrame]:
    """`PushRows.parts` of one prompt's tokens by real SGD steps in which pushes are left out:
    {(size, ORDERS): table}.

    The step of everything (the prompt and those beside it), of the prompt alone, of the tokens' own
    sign alone: what a removal changes is the part of those who were removed. rows: of these
    rollouts; their sum sets the rate, at which unsure tokens move by `nats` (mean |dlogp|) to first
    order, and is the first table. Column real: of everything.
    """
    mine, own, pushes = (
        private_copy(policy),
        rollouts.group_ids == group,
        on_policy_pushes(rollouts),
    )
    weights, part = trained_weights(mine), rollouts.select(own)
    start, alive = (
        {name: p.detach().clone() for name, p in weights.items()},
        part.completion_mask.bool(),
    )
    before = logps(policy, part)[alive]
    by_sum = rows.split(rows.weights(), group, beside)
    unsure, positive = (
        rows.tokens["unsure"].to_numpy()[by_sum.index],
        (by_sum["sign"] > 0).to_numpy(),
    )

    def gradient(rows: Bool[Tensor, " B"]) -> dict[str, Tensor]:
        return Along(policy).gradient_of(rollouts, pushes * rows[:, None])

    def moved(rate: float, *terms: tuple[int, dict[str, Tensor]]) -> Float[np.ndarray, " M"]:
        for name, p in weights.items():
            p.detach().copy_(
                start[name] + rate * sum(sign * direction[name] for sign, direction in terms)
            )
        return (logps(mine, part)[alive] - before).double().cpu().numpy()

    whole = gradient(torch.isin(rollouts.group_ids, torch.tensor([group, *beside])))
    up, down = (gradient(own & (sign * rollouts.advantages > 0)) for sign in (1, -1))
    tables = {}
    for size in nats:
        rate = size / by_sum.loc[unsure, [*PARTS]].sum(axis=1).abs().mean()
        everything, prompt = moved(rate, (1, whole)), moved(rate, (1, up), (1, down))
        same = np.where(positive, moved(rate, (1, up)), moved(rate, (1, down)))
        less = [moved(rate, (1, whole), (-1, other)) for other in (down, up)]
        without = np.where(positive, *less)  # the other sign
        taken = {
            "other": (prompt - same, everything - without),
            "others_same": (everything - prompt, without - same),
        }
        columns = [by_sum[[*PARTS]] * rate]
        columns += [
            {"same": same, "others_other": 0.0} | {name: both[k] for name, both in taken.items()}
            for k in (0, 1)
        ]
        for order, parts in zip(ORDERS, columns, strict=True):
            tables[size, order] = by_sum.assign(**parts, real=everything)
    return tables
