"""Block coupling: one small real step per block of tokens, and what it does to the log-probability
of every token.

    blocks = block_coupling(policy, rollouts, blocks="sign")
    print(blocks)                                        # by how much sums of rows miss a real step of all
    step_changes(blocks, prompts_per_step=32)            # what steps on so many prompts do, without another pass

To first order a step of SGD on several blocks moves a token by the sum of what each block does to
it alone. So a row per prompt, or per prompt and sign of the advantage, holds what every batch of
these prompts does, from one prompt to all of them. All steps have one length, so that none is lost
in rounding and none is bent: float32 is needed.

The tables below are pure, `Blocks` -> a row per prompt. A batch is drawn as one measured prompt and
`prompts_per_step - 1` others; the changes of its tokens are the sum of the rows of all their
blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.messages import InvalidValue, progress
from workbook.policies.models import private_copy
from workbook.probes.step import logp_change, on_policy_pushes, update
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.theory.coupling import BELOW_HALF
from workbook.training.optimizers import trained_weights

KINDS = ("prompt", "sign", "rollout")
# nats, root mean square, by which a block's step moves its own tokens: sums of rows then miss a
# real step by less than 1 %; curvature grows above it, rounding below
SMALL_STEP = 0.002
TRIALS = 3  # blocks by which the length of steps is found
DRAWS = 8
PAIRS = (
    "same token, both unsure",
    "same token, not both unsure",
    "different token, unsure",
    "different token, sure",
)


@dataclass(frozen=True)
class Blocks:
    """What each of K blocks does to each of N measured tokens.

    Attributes:
        changes: (K, N) float32, of the token's log-probability in nats per unit of learning rate
        when the block alone
            pushes, to first order.
        blocks: K rows: block, group (the first of its prompts) and sign (0 if mixed) of its
        advantages, tokens and
            prompts that push, norm of its gradient, rms of the change of its own measured tokens in
            the real step.
        tokens: N rows of the token table of the measured prompts, with block (-1: none) and push,
        weight x advantage.
        pushing: the same of all tokens that push, measured or not: block, group, token_id, logp,
        push.
        error: of the sum of all rows, against a real step of all blocks: rms of the difference over
        that of the step.
    """

    changes: Float[np.ndarray, "K N"]
    blocks: pd.DataFrame
    tokens: pd.DataFrame
    pushing: pd.DataFrame
    error: float

    def __str__(self) -> str:
        size = float(np.sqrt(np.nanmean(self.blocks["rms"] ** 2)))
        return (
            f"{len(self.blocks)} blocks x {len(self.tokens)} tokens, steps of {size:.2g} nats (rms"
            " of a block's own tokens); their sum differs from a real step of all by"
            f" {self.error:.2%} (rms)"
        )

    @property
    def prompts(self) -> int:
        """How many prompts push."""
        return int(self.prompts_by_group().sum())

    def prompts_by_group(self) -> pd.Series:
        """How many prompts push in the blocks of each prompt or bundle, by its (first) group."""
        return self.blocks.groupby("group")["prompts"].max()

    def gram(self) -> Float[np.ndarray, "K K"]:
        """Inner products of the blocks' gradients: row k with column l, NaN where l's tokens were
        not all measured.

        The gradient of l is the sum of its tokens' push times grad log pi; `changes` is what a
        gradient does to log pi.
        """
        known = np.zeros((len(self.tokens), len(self.blocks)))
        at = self.tokens["block"].to_numpy()
        known[np.arange(len(at))[at >= 0], at[at >= 0]] = self.tokens["push"].to_numpy()[at >= 0]
        measured = (
            np.bincount(at[at >= 0], minlength=len(self.blocks)) == self.blocks["tokens"].to_numpy()
        )
        return np.where(measured[None], self.changes.astype(float) @ known, np.nan)


@in_batches
def block_coupling(
    policy,
    rollouts: Rollouts,
    blocks: str | Int[Tensor, "B T"] = "prompt",
    measured: Sequence[int] | None = None,
) -> Blocks:
    """Take one small step per block, each from the policy as it is, and record what it does to
    every measured token.

    blocks: "prompt"; "sign", a prompt's positive and negative rollouts apart; "rollout"; or labels
    (B, T), below 0 for tokens that do not push. Tokens of advantage 0 never do, and a block without
    any is left out.
    measured: group ids whose tokens are recorded, all by default.  Cost: a backward pass of each
    block, and as many forward passes of the measured rollouts as there are blocks.

    Raises ValueError for a policy below float32, unknown blocks or groups, and rollouts in which
    nothing pushes.
    """
    low = {
        p.dtype for p in policy.model.parameters() if p.is_floating_point() and p.dtype.itemsize < 4
    }
    if low:
        raise InvalidValue(
            "dtype",
            str(low.pop()).removeprefix("torch."),
            '"float32", in which small steps are not lost to rounding',
        )
    rollouts = rollouts.to(policy.model.device)
    pushes = on_policy_pushes(rollouts)
    labels = _labels(rollouts, blocks).masked_fill(pushes == 0, -1)
    if not (labels >= 0).any():
        raise InvalidValue(
            "rollouts",
            rollouts,
            "groups with different rewards",
            "rollouts push nothing, all advantages are 0: take groups with different rewards.",
        )
    # labels become places in names, ascending, and -1
    names, labels = labels.unique(return_inverse=True)
    labels, names = (labels - int((names < 0).sum())).clamp(min=-1), names[names >= 0].tolist()
    rows = _measured(rollouts, measured)
    part, length = rollouts.select(rows), _length(policy, rollouts, labels)
    mine, alive = private_copy(policy), part.completion_mask.bool()
    stepper, before = _OfLength(mine, length), logps(policy, part)[alive]
    start = [p.detach().clone() for p in stepper.weights]

    def stepped(chosen: Bool[Tensor, "B T"]) -> tuple[float, np.ndarray]:
        """Norm of the chosen tokens' gradient, and what a step of `length` along it does to the
        measured tokens.
        """
        for weight, value in zip(stepper.weights, start, strict=True):
            weight.detach().copy_(value)
        norm = float(update(mine, rollouts, stepper, chosen=chosen, clip=None)[0])
        return norm, (logps(mine, part)[alive] - before).cpu().numpy()

    norms, moved = zip(
        *(stepped(labels == k) for k in progress(range(len(names)), "blocks")), strict=True
    )
    norms, moved = np.array(norms), np.stack(moved).astype(np.float64)
    norm, together = stepped(labels >= 0)
    changes, real = moved * (norms / length)[:, None], together * (norm / length)
    error = float(np.sqrt(np.mean((changes.sum(0) - real) ** 2) / np.mean(real**2)))
    columns = {"block": labels, "push": pushes.double()}
    there = rollouts.completion_mask.bool()
    whole = rollouts.token_table().assign(
        **{name: values[there].cpu().numpy() for name, values in columns.items()}
    )
    tokens = whole[whole["rollout"].isin(rows.tolist())].reset_index(drop=True)
    pushing = whole.loc[
        whole["block"] >= 0, ["block", "group", "token_id", "logp", "push"]
    ].reset_index(drop=True)
    own = tokens["block"].to_numpy()[None] == np.arange(len(names))[:, None]
    facts = {"group": ("group", "first"), "sign": ("push", _sign), "tokens": ("push", "size")}
    about = pushing.groupby("block").agg(**facts, prompts=("group", "nunique"))
    with np.errstate(invalid="ignore"):
        about["rms"] = np.sqrt(np.where(own, moved**2, 0).sum(1) / own.sum(1))
    about = about.assign(norm=norms, block=names).reset_index(drop=True)
    return Blocks(changes.astype(np.float32), about, tokens, pushing, error)


def _labels(rollouts: Rollouts, blocks) -> Int[Tensor, "B T"]:
    shape, device = rollouts.completion_ids.shape, rollouts.completion_ids.device
    if isinstance(blocks, Tensor):
        if blocks.shape != shape:
            raise InvalidValue(
                "blocks.shape", tuple(blocks.shape), f"{tuple(shape)}, one label per token"
            )
        return blocks.to(device).long()
    if blocks not in KINDS:
        raise InvalidValue("blocks", blocks, f"one of {', '.join(KINDS)}, or labels (B, T)")
    # (B, 1), or (B, T) of advantages per token
    positive = (rollouts.advantages > 0).long().view(len(rollouts), -1)
    groups = rollouts.group_ids.long()[:, None]
    rows = torch.arange(len(rollouts), device=device)[:, None]
    return {"prompt": groups, "sign": 2 * groups + positive, "rollout": rows}[blocks].expand(shape)


def _measured(rollouts: Rollouts, groups: Sequence[int] | None) -> Int[Tensor, " M"]:
    if groups is None:
        return torch.arange(len(rollouts))
    wanted = torch.as_tensor(list(groups), device=rollouts.group_ids.device)
    if not len(wanted) or not torch.isin(wanted, rollouts.group_ids).all():
        raise InvalidValue("measured", list(groups)[:8], "group ids of the rollouts, one or more")
    return torch.isin(rollouts.group_ids, wanted).nonzero().squeeze(1).cpu()


class _OfLength(torch.optim.SGD):
    """SGD, all of whose steps have one length."""

    def __init__(self, policy, length: float):
        self.weights, self.length = list(trained_weights(policy).values()), length
        super().__init__(self.weights, lr=1.0)

    def step(self, closure=None):
        norm = torch.stack([p.grad.norm() for p in self.weights if p.grad is not None]).norm()
        self.param_groups[0]["lr"] = self.length / max(float(norm), torch.finfo(torch.float32).tiny)
        return super().step(closure)


def _length(policy, rollouts: Rollouts, labels: Int[Tensor, "B T"]) -> float:
    """The length of steps at which blocks move their own tokens by SMALL_STEP: the median of some
    blocks.
    """
    last = int(labels.max())
    length = 1e-4 * float(
        torch.stack([p.detach().norm() for p in trained_weights(policy).values()]).norm()
    )
    for _ in range(2):  # the second time near the size that is wanted
        sizes = []
        for k in sorted({round(i * last / (TRIALS - 1)) for i in range(TRIALS)}):
            rows = (labels == k).any(1).nonzero().squeeze(1)
            chosen, mine = (labels == k)[rows], private_copy(policy)
            moved = logp_change(
                mine, rollouts.select(rows), _OfLength(mine, length), chosen=chosen, clip=None
            )
            sizes.append(float(moved[chosen].pow(2).mean().sqrt()))
        length *= SMALL_STEP / float(np.median(sizes))
    return length


def _sign(pushes: pd.Series) -> int:
    """The sign of a block's pushes, 0 if it has both."""
    return int(np.sign(pushes.min())) if pushes.min() * pushes.max() > 0 else 0


# --- tables


def step_changes(
    blocks: Blocks,
    prompts_per_step: int,
    draws: int = DRAWS,
    seed: int = 0,
    positive_only: bool = False,
) -> pd.DataFrame:
    """The measured tokens' table with `change` in nats, `draws` times (column draw), with other
    prompts in the step.

    own: of the change, what the token's own prompt does.  Blocks of several prompts (a bundle) join
    a step whole; what they leave open is filled with single prompts.  positive_only: the blocks of
    positive advantage push alone. Raises ValueError for more prompts than push, and for a number
    that bundles and single prompts do not make.
    """
    sign, groups = blocks.blocks["sign"].to_numpy(), blocks.blocks["group"].to_numpy()
    if positive_only and (sign == 0).any():
        raise InvalidValue(
            "positive_only",
            positive_only,
            'False, or blocks of one sign each: block_coupling(..., blocks="sign")',
        )
    active = sign > 0 if positive_only else np.ones(len(sign), dtype=bool)
    sizes = blocks.prompts_by_group()
    names = sizes.index.to_numpy()  # (U,) prompts or bundles
    if not 1 <= prompts_per_step <= sizes.sum():
        raise InvalidValue(
            "prompts_per_step", prompts_per_step, f"from 1 to {sizes.sum()}, the prompts that push"
        )
    member = ((groups[None] == names[:, None]) & active).astype(float)  # (U, K)
    generator, parts = np.random.default_rng(seed), []
    for group, tokens in blocks.tokens.groupby("group"):
        if group not in names or sizes[group] > 1:
            continue
        sums = member @ blocks.changes[:, tokens.index]  # (U, tokens)
        own = sums[names == group][0]
        beside = [_others(sizes.drop(group), prompts_per_step - 1, generator) for _ in range(draws)]
        joined = np.stack([np.isin(names, chosen) for chosen in beside]).astype(float)  # (draws, U)
        change = own + joined @ sums  # (draws, tokens)
        columns = {
            "own": np.tile(own, draws),
            "change": change.ravel(),
            "draw": np.repeat(np.arange(draws), len(own)),
        }
        parts.append(tokens.loc[np.tile(tokens.index, draws)].assign(**columns))
    if not parts:
        raise ValueError("No measured prompt pushes; measure one with different rewards.")
    return pd.concat(parts, ignore_index=True)


def _others(sizes: pd.Series, wanted: int, generator: np.random.Generator) -> np.ndarray:
    """Names of bundles, as many as fit, and of single prompts that together are `wanted` prompts."""
    singles, bundles = sizes.index[sizes == 1].to_numpy(), sizes.index[sizes > 1].to_numpy()
    chosen = (
        generator.permutation(bundles)[: wanted // int(sizes[bundles].max())]
        if len(bundles)
        else bundles
    )
    rest = wanted - int(sizes[chosen].sum())
    if rest > len(singles):
        raise InvalidValue(
            "prompts_per_step",
            wanted + 1,
            "smaller",
            f"prompts_per_step={wanted + 1} can't be made: {rest} single prompts would join and"
            f" {len(singles)} can.",
        )
    return np.concatenate([chosen, generator.choice(singles, rest, replace=False)])


def coupling_by_mass(blocks: Blocks) -> pd.DataFrame:
    """H2 by mass: where the movement goes that a block causes outside itself.

    Columns where (own prompt, other prompts), kind (of PAIRS), pairs and mass (shares of all pairs and of the sum of
    |change| in that place), net (sum of change in the block's own direction over the sum of |change|, of blocks of one
    sign, else 0). same token: the block pushes the token's id; both unsure: below one half, in the block, too.
    """
    tokens, ids = blocks.tokens, blocks.tokens["token_id"].to_numpy()
    unsure = (tokens["logp"] < np.log(BELOW_HALF)).to_numpy()
    rows = []
    for k, pushing in blocks.pushing.groupby("block"):
        there = np.isin(ids, pushing["token_id"])
        there_unsure = np.isin(ids, pushing.loc[pushing["logp"] < np.log(BELOW_HALF), "token_id"])
        kind = np.select([there_unsure & unsure, there, unsure], PAIRS[:3], PAIRS[3])
        about = blocks.blocks.iloc[k]
        where = np.where(tokens["group"] == about["group"], "own prompt", "other prompts")
        change = blocks.changes[k].astype(float)
        cells = pd.DataFrame(
            {
                "where": where,
                "kind": kind,
                "size": np.abs(change),
                "net": about["sign"] * change,
                "pairs": 1,
            }
        )
        rows.append(cells[(tokens["block"] != k).to_numpy()].groupby(["where", "kind"]).sum())
    sums = pd.concat(rows).groupby(["where", "kind"]).sum()
    whole = sums.groupby("where").transform("sum")
    shares = pd.DataFrame(
        {"pairs": sums["pairs"] / whole["pairs"], "mass": sums["size"] / whole["size"]}
    )
    return shares.assign(net=sums["net"] / sums["size"]).reset_index()


def equal_energy_prompts(blocks: Blocks, prompts_per_step: int) -> int:
    """Prompts of a step with both signs whose gradient has, on average, the squared length of a
    positive-only step's.

    With e the mean squared length of a prompt's own gradient and c the mean inner product of two
    prompts', a step on P prompts has P e + P (P - 1) c. At least 1, at most prompts_per_step or the
    prompts that push.
    """
    positive, both = (_energy(blocks, only) for only in (True, False))
    target = positive(prompts_per_step)
    sizes = np.arange(1, blocks.prompts + 1)
    return int(sizes[np.argmin(np.abs(both(sizes) - target))])


def _energy(blocks: Blocks, positive_only: bool):
    """Mean squared length of a step's gradient as a function of its prompts, from the measured
    blocks' gram matrix.
    """
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
    blocks: Blocks,
    prompts_per_step: int,
    draws: int = DRAWS,
    seed: int = 0,
    equal_energy: bool = False,
) -> pd.DataFrame:
    """H6: each category's share of movement in steps with both signs, minus that in steps of
    positive rollouts only.

    Columns group, category, both, positive_only (shares of the sum of |change| over the prompt's
    tokens), shift, prompts (of the steps with both signs).  equal_energy: these have fewer, so that
    both gradients are equally long. Raises ValueError for blocks that mix signs, and without
    categories.
    """
    if blocks.tokens["category"].isna().all():
        raise ValueError(
            "The tokens have no categories; sample from a task that annotates them, or use"
            " `categorized`."
        )
    prompts = equal_energy_prompts(blocks, prompts_per_step) if equal_energy else prompts_per_step
    shares = {}
    for name, size in (("both", prompts), ("positive_only", prompts_per_step)):
        table = step_changes(blocks, size, draws, seed, positive_only=name == "positive_only")
        sums = table.assign(size=table["change"].abs()).groupby(["group", "category"])["size"].sum()
        shares[name] = sums / sums.groupby("group").transform("sum")
    table = pd.DataFrame(shares).dropna().reset_index()
    return table.assign(shift=table["both"] - table["positive_only"], prompts=prompts)
