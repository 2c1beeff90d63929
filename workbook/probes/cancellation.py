"""Cancelled share: how much of the push on a word does the other sign take away?

A good rollout pushes its words up, a bad one pushes the same words down. What remains of a word's
own push? One step changes a token by a sum over who pushes: the same prompt with the token's own
sign (that of its rollout's advantage; its own rollout included), the same prompt with the other
sign, other prompts with either: PUSHER_PARTS. A *side* is a part, or a sum of two, of one sign. The
cancelled share of a set of tokens is

    - sum(other side x own side) / sum(own side^2)

1: the other sign takes it all, 0: nothing, below 0: it adds. It is taken within the prompt (its own
two parts; to first order no other prompt changes it) or in the batch (both of each sign).

    # what a unit push of each rollout does: small steps, once
    rows = prompt_rows(policy, rollouts, measured=24)
    # a sum of rows: any prompts, rollouts, or permuted rewards
    cancelled_shares(rows.sums(rows.weights(), prompts=8))

On *all* tokens good and bad rollouts do not cancel but agree, an identity: with q the chance of
reward 1, grad q = q E[score | 1] and 0 = q E[score | 1] + (1 - q) E[score | 0], so pushes of mean
advantage (1 - q) and -q are, on average, (1 - q) grad q and q grad q, parallel. Noise alone keeps
their cosine below 1 (`sign_products`).

Letters: B rollouts, T completion tokens, K rows, N measured tokens, M of them that push.
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
from workbook.probes.directions import Along, Direction
from workbook.probes.dose import CONFIDENCE_BANDS
from workbook.probes.step import on_policy_pushes
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.theory.advantages import group_advantages, permute_in_groups
from workbook.theory.coupling import NEARLY_CERTAIN
from workbook.training.optimizers import trained_weights

# own prompt or others, own sign or the other one
PUSHER_PARTS = ("same", "other", "others_same", "others_other")
RIGHT_RESULT = "right result"
WRONG_RESULT = "wrong result"
LATER_RESULT = "result after an error"
# weighted to be as many as results in each band of confidence and of the word's frequency
MATCHED_STYLE = "style, matched"
# columns in which two tokens of a prompt are equal, besides the word
WORD_IDENTITIES = {"word": [], "word and place": ["position"], "word and state": ["step", "value"]}
ANY = "any word"  # shared or not
REMOVAL_ORDERS = ("sum of rows", "others first", "other sign first")
# of a word among its prompt's tokens, from which on a band begins
_FREQUENCY_BANDS = (3, 5, 9, 17)


@dataclass(frozen=True)
class PushRows:
    """What pushes do to tokens, a row per block of rollouts of one reward.

    Each row is as if its rollouts had an advantage of 1.

    blocks: `Blocks` whose table of blocks has the columns reward (NaN: a block of several prompts,
    which pushed with its own advantages), rollouts, and last, the place of its last rollout in its
    group.
    """

    blocks: Blocks

    @cached_property
    def tokens(self) -> pd.DataFrame:
        """The measured tokens with kind, unsure, frequency, step and value.

        kind: of `kinds`.  frequency: of the word in its prompt.  step: results before the token in
        its rollout.  value: the last of them, -1 before the first.
        """
        tokens = self.blocks.tokens
        rollout = tokens["rollout"]
        is_result = tokens["category"] == "result"
        last_result = tokens["token_id"].where(is_result).groupby(rollout).ffill()
        return tokens.assign(
            kind=kinds(tokens),
            unsure=tokens["logp"] < np.log(NEARLY_CERTAIN),
            frequency=tokens.groupby(["group", "token_id"])["logp"].transform("size"),
            step=is_result.groupby(rollout).cumsum() - is_result,
            value=last_result.groupby(rollout).shift().fillna(-1),
        )

    @cached_property
    def codes(self) -> dict[str, Int[np.ndarray, " N"]]:
        """Number of each token's word within its prompt, by WORD_IDENTITIES.

        States are known where the task has results.
        """
        has_results = (self.tokens["category"] == "result").any()
        codes = {}
        for name, more in WORD_IDENTITIES.items():
            if name == "word and state" and not has_results:
                continue
            codes[name] = self.tokens.groupby(["group", "token_id", *more]).ngroup().to_numpy()
        return codes

    @cached_property
    def groups(self) -> list[int]:
        """The measured prompts."""
        return self.tokens["group"].unique().tolist()

    def weights(
        self, first: int | None = None, permuted: int | None = None
    ) -> Float[np.ndarray, " K"]:
        """The advantage of each row, within the first rollouts of a group (all by default).

        permuted: seed of a permutation of the rewards within each group; rows of several rollouts
        do not push then.
        """
        rows = self.blocks.blocks
        has_reward = rows["reward"].notna()
        chosen = has_reward & (rows["last"] < (first or np.inf))
        if permuted is not None:
            chosen &= rows["rollouts"] == 1
        chosen = chosen.to_numpy()
        rewards = torch.tensor(rows["reward"].to_numpy()[chosen])
        groups = torch.tensor(rows["group"].to_numpy()[chosen])
        counts = torch.tensor(rows["rollouts"].to_numpy()[chosen])
        if permuted is not None:
            rewards = permute_in_groups(rewards, groups, torch.Generator().manual_seed(permuted))

        # a row of several rollouts counts as many times in its group
        advantages = group_advantages(
            rewards.repeat_interleave(counts), groups.repeat_interleave(counts)
        )
        first_of_row = counts.cumsum(0) - counts
        # bundles pushed with their own advantages, which no permutation changes
        weights = (~has_reward & (permuted is None)).to_numpy(dtype=float)
        weights[chosen] = advantages[first_of_row].numpy()
        return weights

    def parts(
        self, weights: Float[np.ndarray, " K"], prompts: int = 1, seed: int | None = None
    ) -> pd.DataFrame:
        """The tokens that push, with PUSHER_PARTS of their change in a step on so many prompts.

        Columns sign and PUSHER_PARTS, per learning rate. The other prompts that push are the next
        ones in a circle, or drawn with a seed; bundles join last, and whole. Raises ValueError for
        more prompts than push, and where none does.
        """
        sizes = self.blocks.blocks[weights != 0].groupby("group")["prompts"].max()
        single = np.array(sizes.index[sizes == 1])
        bundles = np.array(sizes.index[sizes > 1])
        if seed is not None:
            generator = np.random.default_rng(seed)
            single = generator.permutation(single)
            bundles = generator.permutation(bundles)

        pushing = set(single)
        # each measured prompt in turn is the own one, and others join it
        tables = []
        for group in self.groups:
            if group not in pushing:
                continue
            circle = np.roll(single, -int(np.argmax(single == group)))
            order = np.concatenate([circle[1:], bundles])
            # as many as fit, the own prompt included
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
        group_of_row = self.blocks.blocks["group"].to_numpy()
        sign_of_row = np.sign(weights * self.blocks.blocks["sign"].to_numpy())
        row_of_token = self.tokens["block"].to_numpy()

        # the prompt's tokens whose own row pushes, and the rows that push in this step
        own_pushes = (row_of_token >= 0) & (sign_of_row[row_of_token] != 0)
        tokens = np.flatnonzero((self.tokens["group"] == group) & own_pushes)
        rows = np.flatnonzero(np.isin(group_of_row, [group, *beside]) & (weights != 0))
        pushes = weights[rows, None] * self.blocks.changes[np.ix_(rows, tokens)]  # (rows, tokens)

        sign = sign_of_row[row_of_token[tokens]]
        same_prompt = (group_of_row[rows] == group)[:, None]
        same_sign = sign_of_row[rows, None] == sign
        # (rows, tokens), in the order of PUSHER_PARTS
        masks = (
            same_prompt & same_sign,
            same_prompt & ~same_sign,
            ~same_prompt & same_sign,
            ~same_prompt & ~same_sign,
        )
        columns = {
            name: np.where(mask, pushes, 0.0).sum(0)
            for name, mask in zip(PUSHER_PARTS, masks, strict=True)
        }
        return pd.DataFrame({"sign": sign, **columns}, index=tokens)

    def sets(self, parts: pd.DataFrame) -> dict[tuple[str, str], Float[np.ndarray, " M"]]:
        """Weights of `parts`' tokens by (identity, kind).

        Each set is of unsure tokens whose word stands in rollouts of both signs.
        """
        places = parts.index.to_numpy()
        sign = parts["sign"].to_numpy()
        tokens = self.tokens.iloc[places]
        kind = tokens["kind"].to_numpy()
        unsure = tokens["unsure"].to_numpy()
        sets = {(ANY, "all"): unsure.astype(float)}
        for identity, all_codes in self.codes.items():
            codes = all_codes[places]
            words = codes.max() + 1
            in_positive = np.bincount(codes[sign == 1], minlength=words) > 0
            in_negative = np.bincount(codes[sign == -1], minlength=words) > 0
            shared = unsure & (in_positive & in_negative)[codes]

            of_kind = {
                name: (shared & (kind == name)).astype(float) for name in np.unique(kind[unsure])
            }
            sets[identity, "all"] = shared.astype(float)
            for name, weights in of_kind.items():
                sets[identity, name] = weights
            results = [
                of_kind[name]
                for name in (RIGHT_RESULT, WRONG_RESULT, LATER_RESULT)
                if name in of_kind
            ]
            if "style" in of_kind and results:
                sets[identity, MATCHED_STYLE] = matched(tokens, of_kind["style"], sum(results))
        return sets

    def sums(
        self, weights: Float[np.ndarray, " K"], prompts: int = 1, seed: int | None = None
    ) -> pd.DataFrame:
        """Sums over each set of tokens, of which shares are ratios.

        Columns identity, kind and those of `set_sums`.
        """
        parts = self.parts(weights, prompts, seed)
        rows = [
            {"identity": identity, "kind": kind, **set_sums(parts, token_weights)}
            for (identity, kind), token_weights in self.sets(parts).items()
        ]
        return pd.DataFrame(rows)


def kinds(tokens: pd.DataFrame) -> np.ndarray:
    """Each token's category; of results whether right, the first wrong one, or after an error."""
    is_result = tokens["category"] == "result"
    is_wrong = tokens["credit"].fillna(0.0) < -1e-9
    # a wrong token has itself in its rollout's count
    after_wrong = is_wrong.groupby(tokens["rollout"]).cumsum() > is_wrong
    return np.select(
        [is_result & after_wrong, is_result & is_wrong, is_result],
        [LATER_RESULT, WRONG_RESULT, RIGHT_RESULT],
        tokens["category"].fillna("token"),
    )


def matched(
    tokens: pd.DataFrame, given: Float[np.ndarray, " M"], wanted: Float[np.ndarray, " M"]
) -> Float[np.ndarray, " M"]:
    """Weights that make the given tokens as many as the wanted ones in each band.

    Bands are of confidence and of the word's frequency.
    """
    confidence = np.digitize(np.exp(tokens["logp"]), CONFIDENCE_BANDS)
    frequency = np.digitize(tokens["frequency"], _FREQUENCY_BANDS)
    cell = len(_FREQUENCY_BANDS) * confidence + frequency
    given_in_cell = np.bincount(cell, given)
    wanted_in_cell = np.bincount(cell, wanted)
    return given * (wanted_in_cell / np.maximum(given_in_cell, 1))[cell]


def set_sums(parts: pd.DataFrame, weights: Float[np.ndarray, " M"]) -> dict[str, float]:
    """Weighted sums over tokens, of which shares are ratios.

    - own2, cross: within the prompt, the own side squared, and times the other side
    - side2, side_cross: the same in the batch
    - beside, others2: what other prompts do, times the own side, and squared
    - net2: the whole change squared
    - tokens; up, down: tokens of either sign
    - up_follows, down_follows: those of them whose change has their own sign
    """
    same, other, others_same, others_other = (parts[name].to_numpy() for name in PUSHER_PARTS)
    sign = parts["sign"].to_numpy()
    others = others_same + others_other
    side = same + others_same
    net = same + other + others
    terms = {
        "own2": same**2,
        "cross": same * other,
        "side2": side**2,
        "side_cross": side * (other + others_other),
        "beside": same * others,
        "others2": others**2,
        "net2": net**2,
        "tokens": np.ones(len(net)),
        "up": sign > 0,
        "up_follows": (sign > 0) & (net > 0),
        "down": sign < 0,
        "down_follows": (sign < 0) & (net < 0),
    }
    return {name: float(term @ weights) for name, term in terms.items()}


def cancelled_shares(sums: pd.DataFrame) -> pd.DataFrame:
    """Sums with the cancelled share within the prompt and in the batch, and follows.

    follows: the chance to follow the own sign, mean of both signs.

    >>> sums = pd.DataFrame({"own2": 1.0, "cross": [-1.0, 0.0, 1.0], "side2": 1.0, "side_cross": 0})
    >>> sums = sums.assign(up=1, down=1, up_follows=1, down_follows=0)
    >>> (cancelled_shares(sums)["within"] + 0.0).tolist()
    [1.0, 0.0, -1.0]
    """
    return sums.assign(
        within=-sums["cross"] / sums["own2"],
        batch=-sums["side_cross"] / sums["side2"],
        follows=(sums["up_follows"] / sums["up"] + sums["down_follows"] / sums["down"]) / 2,
    )


# --- rows of a policy


def unit_rows(
    policy, rollouts: Rollouts, labels: Int[Tensor, " B"], measured: Bool[Tensor, " B"]
) -> PushRows:
    """A small step for each label of rollouts (below 0: none), recorded on the measured rollouts.

    Rollouts of one prompt and reward push with an advantage of 1; a label of several keeps their
    own advantages: see `PushRows`.
    """
    rollouts = rollouts.to("cpu")
    groups = rollouts.group_ids.long()
    facts = pd.DataFrame(
        {
            "block": labels.numpy(),
            "group": groups.numpy(),
            "reward": rollouts.rewards.numpy(),
            "rollouts": 1,
        }
    )
    facts["last"] = facts.groupby("group").cumcount()
    by_block = facts[facts["block"] >= 0].groupby("block")
    known = by_block.agg({"reward": "first", "last": "max", "rollouts": "sum", "group": "first"})
    of_one_reward = (by_block[["group", "reward"]].nunique() == 1).all(axis=1)
    known["reward"] = known["reward"].where(of_one_reward)

    unit_labels = torch.tensor(known.index[known["reward"].notna()].to_numpy())
    # rewards can then be permuted afterwards, by weighing the rows anew
    advantages = torch.where(torch.isin(labels, unit_labels), 1.0, rollouts.advantages)
    # a prompt's rollouts that are not measured are another group for this step
    lent_groups = torch.where(measured, groups, groups.max() + 1 + groups)
    lent = replace(rollouts, advantages=advantages, group_ids=lent_groups)
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
    """Rows for any number of prompts.

    Of the measured prompts each rollout is a row (by="sign": each sign), of the others each sign.
    The first `measured` prompts that push are measured; up to `alone` (all by default) push by
    themselves, the rest in whole bundles.  Raises ValueError where none pushes.
    """
    groups = rollouts.group_ids[rollouts.advantages != 0].unique().tolist()
    if alone is None:
        alone = len(groups)
    bundled = (len(groups) - alone) // bundle * bundle
    place_of = {group: k for k, group in enumerate(groups[: alone + bundled])}
    # (B,): of each rollout's prompt among those that push, -1 for the others
    place = torch.tensor([place_of.get(group, -1) for group in rollouts.group_ids.tolist()])

    unit = torch.where(place < alone, place, alone + (place - alone) // bundle)
    by_sign = len(rollouts) + 2 * unit + (rollouts.advantages > 0).cpu()
    own_row = place < (measured if by == "rollout" else 0)
    labels = torch.where(own_row, torch.arange(len(rollouts)), by_sign)
    labels = labels.masked_fill(place < 0, -1)
    return unit_rows(policy, rollouts, labels, (place >= 0) & (place < measured))


@in_batches
def rollout_rows(policy, rollouts: Rollouts, measured: int = 8, alone: int = 64) -> PushRows:
    """Rows for any power of 2 of one prompt's rollouts.

    The first `alone` rollouts are a row each, then doublings by sign.
    """
    n = torch.arange(len(rollouts))
    doubling = torch.log2((n + 0.5).clamp(min=1)).floor().long()
    # numbers beyond those of the single rollouts
    by_sign = len(rollouts) + 2 * doubling + (rollouts.advantages > 0).cpu()
    return unit_rows(policy, rollouts, torch.where(n < alone, n, by_sign), n < measured)


# --- what the whole gradient does


@in_batches
def sign_products(
    policy, rollouts: Rollouts, sizes: Sequence[int], chosen: Bool[Tensor, "B T"] | None = None
) -> pd.DataFrame:
    """Products of what one prompt's good and bad rollouts push, a row per number of rollouts.

    product, up2, down2: of the two signs' gradients; up_lengths, down_lengths: their squared
    lengths without noise, from the product of what came with this size and before.  chosen: (B, T),
    tokens that push.
    """
    along = Along(policy)
    pushing = rollouts.completion_mask.bool()
    if chosen is not None:
        pushing = pushing & chosen
    signs = {"up": 1, "down": -1}
    gradients = {name: torch.zeros(1) for name in signs}
    counts = dict.fromkeys(signs, 0)
    rows = []
    start = 0
    for size in sizes:
        # rollouts that this size adds to the one before
        part = rollouts.select(slice(start, size))
        row = {"rollouts": size}
        for name, sign in signs.items():
            own = sign * part.advantages > 0
            pushes = pushing[start:size] * own[:, None] * float(sign)
            added = torch.zeros(1)
            if pushes.any():
                gradient = along.gradient_of(part, pushes)
                added = torch.cat([slope.flatten() for slope in gradient.values()])

            # noise of added rollouts and of those before is independent
            before = counts[name]
            new = int(own.sum())
            scale = (before + new) ** 2 / max(before * new, 1)
            row[f"{name}_lengths"] = scale * float((gradients[name] * added).sum())
            gradients[name] = gradients[name] + added
            counts[name] = before + new
            row[f"{name}2"] = float(gradients[name].square().sum())
        row["product"] = float((gradients["up"] * gradients["down"]).sum())
        rows.append(row)
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
    """`PushRows.parts` of one prompt's tokens by real SGD steps in which pushes are left out.

    {(size, REMOVAL_ORDERS): table}. The step of everything (the prompt and those beside it), of the
    prompt alone, of the tokens' own sign alone: a removal changes a token by the part of those who
    were removed. rows: of these rollouts; their sum sets the rate, at which unsure tokens move by
    `nats` (mean |dlogp|) to first order, and is the first table. Column real: of everything.
    """
    own_prompt = rollouts.group_ids == group
    pushes = on_policy_pushes(rollouts)

    def gradient(chosen: Bool[Tensor, " B"]) -> Direction:
        return Along(policy).gradient_of(rollouts, pushes * chosen[:, None])

    whole = gradient(torch.isin(rollouts.group_ids, torch.tensor([group, *beside])))
    up = gradient(own_prompt & (rollouts.advantages > 0))
    down = gradient(own_prompt & (rollouts.advantages < 0))

    part = rollouts.select(own_prompt)
    alive = part.completion_mask.bool()
    before = logps(policy, part)[alive]
    mine = private_copy(policy)
    weights = trained_weights(mine)
    start = {name: p.detach().clone() for name, p in weights.items()}

    def moved(rate: float, *terms: tuple[int, Direction]) -> Float[np.ndarray, " M"]:
        """Change of the prompt's tokens by a step along a sum of signed gradients."""
        for name, p in weights.items():
            direction = sum(sign * gradient[name] for sign, gradient in terms)
            p.detach().copy_(start[name] + rate * direction)
        return (logps(mine, part)[alive] - before).double().cpu().numpy()

    # what the sum of small steps predicts, which also sets the size of the real ones
    by_sum = rows.split(rows.weights(), group, beside)
    parts = [*PUSHER_PARTS]
    unsure = rows.tokens["unsure"].to_numpy()[by_sum.index]
    positive = (by_sum["sign"] > 0).to_numpy()
    sum_of_rows, others_first, other_sign_first = REMOVAL_ORDERS
    tables = {}
    for size in nats:
        rate = size / by_sum.loc[unsure, parts].sum(axis=1).abs().mean()
        everything = moved(rate, (1, whole))
        prompt = moved(rate, (1, up), (1, down))
        own_sign = np.where(positive, moved(rate, (1, up)), moved(rate, (1, down)))
        without_other_sign = np.where(
            positive, moved(rate, (1, whole), (-1, down)), moved(rate, (1, whole), (-1, up))
        )

        # the same removals in either order; no step leaves others of the other sign alone
        real = by_sum.assign(same=own_sign, others_other=0.0, real=everything)
        tables[size, sum_of_rows] = by_sum.assign(**by_sum[parts] * rate, real=everything)
        tables[size, others_first] = real.assign(
            other=prompt - own_sign, others_same=everything - prompt
        )
        tables[size, other_sign_first] = real.assign(
            other=everything - without_other_sign, others_same=without_other_sign - own_sign
        )
    return tables
