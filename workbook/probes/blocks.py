"""Block coupling: what one small real step per block of tokens does to every token.

A step of GRPO moves a token by what all other tokens push. To first order a step of SGD on several
blocks of tokens moves it by the sum of what each block does to it alone. So a row per prompt, or
per prompt and sign of the advantage, holds what every batch of these prompts does, from one prompt
to all of them:

    change_n(batch) = lr sum over blocks k in the batch of changes[k, n]

All steps have one length, so that none is lost in rounding and none is bent: float32 is needed.

    blocks = block_coupling(policy, rollouts, blocks="sign")
    print(blocks)                                # how far sums of rows are off a real step of all
    step_changes(blocks, prompts_per_step=32)    # what steps on so many prompts do, no pass more

The tables below are pure, `Blocks` -> a row per prompt. A batch is drawn as one measured prompt and
`prompts_per_step - 1` others; the changes of its tokens are the sum of the rows of all their
blocks.

Letters: B rollouts, T completion tokens, K blocks, N measured tokens, U prompts or bundles of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.messages import InvalidValue, progress
from workbook.policies.models import private_copy
from workbook.probes.step import logp_change, on_policy_pushes, require_pushes, update
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.theory.coupling import BELOW_HALF
from workbook.training.optimizers import trained_weights

BLOCK_KINDS = ("prompt", "sign", "rollout")
# nats, root mean square, by which a block's step moves its own tokens: sums of rows then miss a
# real step by less than 1 %; curvature grows above it, rounding below
SMALL_STEP_NATS = 0.002
_TRIAL_BLOCKS = 3  # whose movement sets the length of all steps
STEP_DRAWS = 8  # of the other prompts in a step
PAIR_KINDS = (
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
            when the block alone pushes, to first order.
        blocks: K rows: block, group (the first of its prompts) and sign (0 if mixed) of its
            advantages, tokens and prompts that push, norm of its gradient, rms of the change of its
            own measured tokens in the real step.
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
        """Inner products of the blocks' gradients: row k with column l.

        The gradient of l is the sum of its tokens' push times grad log pi; `changes` is what a
        gradient does to log pi. NaN where l's tokens were not all measured.
        """
        block = self.tokens["block"].to_numpy()
        pushes = block >= 0
        push_by_block = np.zeros((len(self.tokens), len(self.blocks)))  # (N, K)
        push_by_block[np.flatnonzero(pushes), block[pushes]] = self.tokens["push"].to_numpy()[
            pushes
        ]
        # a column counts only where the whole gradient of its block is known
        tokens_measured = np.bincount(block[pushes], minlength=len(self.blocks))
        whole = tokens_measured == self.blocks["tokens"].to_numpy()
        return np.where(whole[None], self.changes.astype(float) @ push_by_block, np.nan)


# --- steps


@in_batches
def block_coupling(
    policy,
    rollouts: Rollouts,
    blocks: str | Int[Tensor, "B T"] = "prompt",
    measured: Sequence[int] | None = None,
) -> Blocks:
    """Take a small step per block, each from the policy as it is, and record what every token does.

    blocks: "prompt"; "sign", a prompt's positive and negative rollouts apart; "rollout"; or labels
    (B, T), below 0 for tokens that do not push. Tokens of advantage 0 never do, and a block without
    any is left out.
    measured: group ids whose tokens are recorded, all by default.  Cost: a backward pass of each
    block, and as many forward passes of the measured rollouts as there are blocks.

    Raises ValueError for a policy below float32, unknown blocks or groups, and rollouts in which
    nothing pushes.
    """
    _require_float32(policy)
    rollouts = rollouts.to(policy.model.device)
    pushes = on_policy_pushes(rollouts)  # (B, T)
    labels = _block_labels(rollouts, blocks).masked_fill(pushes == 0, -1)
    require_pushes(rollouts, labels >= 0)
    # a place for each block, from 0, and -1 for tokens that do not push
    labels, names = _numbered(labels)
    rows = _measured_rows(rollouts, measured)

    length = _step_length(policy, rollouts, labels)
    steps = _StepsFrom(policy, rollouts, rows, length)
    norms = np.zeros(len(names))
    moved = np.zeros((len(names), len(steps.before)))  # (K, N), nats
    for k in progress(range(len(names)), "blocks"):
        norms[k], moved[k] = steps.take(labels == k)
    norm_of_all, moved_by_all = steps.take(labels >= 0)

    # a step of one length stands for lr x norm: back to nats per unit of learning rate
    changes = moved * (norms / length)[:, None]
    real = moved_by_all * (norm_of_all / length)
    error = np.sqrt(np.mean((changes.sum(0) - real) ** 2) / np.mean(real**2))

    alive = rollouts.completion_mask.bool()
    # a row per token, of all rollouts, then of the measured ones
    table = rollouts.token_table().assign(
        block=labels[alive].cpu().numpy(), push=pushes.double()[alive].cpu().numpy()
    )
    tokens = table[table["rollout"].isin(rows.tolist())].reset_index(drop=True)
    pushing = table.loc[table["block"] >= 0, ["block", "group", "token_id", "logp", "push"]]
    pushing = pushing.reset_index(drop=True)
    about = _block_table(pushing, tokens["block"].to_numpy(), moved)
    about = about.assign(norm=norms, block=names)
    return Blocks(changes.astype(np.float32), about, tokens, pushing, float(error))


def _require_float32(policy) -> None:
    """Raise InvalidValue for weights in which small steps would be rounded away."""
    for p in policy.model.parameters():
        if p.is_floating_point() and p.dtype.itemsize < 4:
            raise InvalidValue(
                "dtype",
                str(p.dtype).removeprefix("torch."),
                '"float32", in which small steps are not lost to rounding',
            )


def _block_labels(rollouts: Rollouts, blocks: str | Tensor) -> Int[Tensor, "B T"]:
    """A label of its block for each token: of BLOCK_KINDS, or as given."""
    shape = rollouts.completion_ids.shape
    device = rollouts.completion_ids.device
    if isinstance(blocks, Tensor):
        if blocks.shape != shape:
            raise InvalidValue(
                "blocks.shape", tuple(blocks.shape), f"{tuple(shape)}, one label per token"
            )
        return blocks.to(device).long()
    if blocks not in BLOCK_KINDS:
        raise InvalidValue("blocks", blocks, f"one of {', '.join(BLOCK_KINDS)}, or labels (B, T)")
    if blocks == "rollout":
        return torch.arange(len(rollouts), device=device)[:, None].expand(shape)
    groups = rollouts.group_ids.long()[:, None]  # (B, 1)
    if blocks == "sign":
        # (B, 1), or (B, T) of advantages per token
        positive = (rollouts.advantages > 0).long().view(len(rollouts), -1)
        return (2 * groups + positive).expand(shape)
    return groups.expand(shape)


def _numbered(labels: Int[Tensor, "B T"]) -> tuple[Int[Tensor, "B T"], list[int]]:
    """Labels from 0 to K - 1 in ascending order, -1 for those below 0, and what they were."""
    names, numbers = labels.unique(return_inverse=True)
    below = int((names < 0).sum())
    return (numbers - below).clamp(min=-1), names[below:].tolist()


def _measured_rows(rollouts: Rollouts, groups: Sequence[int] | None) -> Int[Tensor, " M"]:
    """The rollouts of these groups, all by default."""
    if groups is None:
        return torch.arange(len(rollouts))
    wanted = torch.as_tensor(list(groups), device=rollouts.group_ids.device)
    if not len(wanted) or not torch.isin(wanted, rollouts.group_ids).all():
        raise InvalidValue("measured", list(groups)[:8], "group ids of the rollouts, one or more")
    return torch.isin(rollouts.group_ids, wanted).nonzero().squeeze(1).cpu()


class _SGDOfLength(torch.optim.SGD):
    """SGD, all of whose steps have one length."""

    def __init__(self, policy, length: float):
        self.weights = list(trained_weights(policy).values())
        self.length = length
        super().__init__(self.weights, lr=1.0)

    def step(self, closure=None):
        norm = torch.stack([p.grad.norm() for p in self.weights if p.grad is not None]).norm()
        # SGD moves by lr times the gradient
        tiny = torch.finfo(torch.float32).tiny
        self.param_groups[0]["lr"] = self.length / max(float(norm), tiny)
        return super().step(closure)


class _StepsFrom:
    """Steps of one length from a policy, and what each does to the measured rollouts' tokens."""

    def __init__(self, policy, rollouts: Rollouts, measured: Int[Tensor, " M"], length: float):
        self.rollouts = rollouts
        self.measured = rollouts.select(measured)
        self.alive = self.measured.completion_mask.bool()
        self.before = logps(policy, self.measured)[self.alive]  # (N,)
        self.policy = private_copy(policy)
        self.stepper = _SGDOfLength(self.policy, length)
        self.start = [p.detach().clone() for p in self.stepper.weights]

    def take(self, chosen: Bool[Tensor, "B T"]) -> tuple[float, Float[np.ndarray, " N"]]:
        """Norm of the chosen tokens' gradient, and the change in nats by a step along it."""
        for weight, value in zip(self.stepper.weights, self.start, strict=True):
            weight.detach().copy_(value)
        (norm,) = update(self.policy, self.rollouts, self.stepper, chosen=chosen, clip=None)
        now = logps(self.policy, self.measured)[self.alive]
        return float(norm), (now - self.before).cpu().numpy()


def _step_length(policy, rollouts: Rollouts, labels: Int[Tensor, "B T"]) -> float:
    """The length of steps at which the median block moves its own tokens by SMALL_STEP_NATS."""
    norms = [p.detach().norm() for p in trained_weights(policy).values()]
    length = 1e-4 * float(torch.stack(norms).norm())
    last = int(labels.max())
    # blocks from the first to the last, evenly
    trials = sorted({round(i * last / (_TRIAL_BLOCKS - 1)) for i in range(_TRIAL_BLOCKS)})
    # the second time near the size that is wanted
    for _ in range(2):
        sizes = []
        for k in trials:
            rows = (labels == k).any(1).nonzero().squeeze(1)
            chosen = (labels == k)[rows]
            mine = private_copy(policy)
            stepper = _SGDOfLength(mine, length)
            moved = logp_change(mine, rollouts.select(rows), stepper, chosen=chosen, clip=None)
            sizes.append(float(moved[chosen].pow(2).mean().sqrt()))
        length *= SMALL_STEP_NATS / float(np.median(sizes))
    return length


def _block_table(
    pushing: pd.DataFrame, block: Int[np.ndarray, " N"], moved: Float[np.ndarray, "K N"]
) -> pd.DataFrame:
    """Facts of each block: group, sign, tokens, prompts and rms of its own tokens' change."""
    about = pushing.groupby("block").agg(
        group=("group", "first"),
        sign=("push", _common_sign),
        tokens=("push", "size"),
        prompts=("group", "nunique"),
    )
    own = block[None] == np.arange(len(moved))[:, None]  # (K, N)
    # NaN where none of a block's tokens is measured
    with np.errstate(invalid="ignore"):
        about["rms"] = np.sqrt(np.where(own, moved**2, 0).sum(1) / own.sum(1))
    return about.reset_index(drop=True)


def _common_sign(pushes: pd.Series) -> int:
    """The sign of a block's pushes, 0 if it has both."""
    low, high = pushes.min(), pushes.max()
    return int(np.sign(low)) if low * high > 0 else 0


# --- tables


def step_changes(
    blocks: Blocks,
    prompts_per_step: int,
    draws: int = STEP_DRAWS,
    seed: int = 0,
    positive_only: bool = False,
) -> pd.DataFrame:
    """Change of the measured tokens in steps with other prompts, which are drawn `draws` times.

    The tokens' table with change in nats, draw, and own, what the token's own prompt does.
    Blocks of several prompts (a bundle) join a step whole; the places that they leave are filled
    with single prompts.  positive_only: the blocks of positive advantage push alone. Raises
    ValueError for more prompts than push, and for a number that bundles and single prompts do not
    make.
    """
    sign = blocks.blocks["sign"].to_numpy()
    if positive_only and (sign == 0).any():
        raise InvalidValue(
            "positive_only",
            positive_only,
            'False, or blocks of one sign each: block_coupling(..., blocks="sign")',
        )
    # how many prompts each of U prompts or bundles stands for
    sizes = blocks.prompts_by_group()
    if not 1 <= prompts_per_step <= sizes.sum():
        raise InvalidValue(
            "prompts_per_step", prompts_per_step, f"from 1 to {sizes.sum()}, the prompts that push"
        )
    names = sizes.index.to_numpy()  # (U,) prompts or bundles
    of_name = blocks.blocks["group"].to_numpy()[None] == names[:, None]  # (U, K)
    active = sign > 0 if positive_only else np.ones(len(sign), dtype=bool)
    member = (of_name & active).astype(float)

    generator = np.random.default_rng(seed)
    parts = []
    for group, tokens in blocks.tokens.groupby("group"):
        # a bundle is not measured, and a prompt without a block does not push
        if group not in names or sizes[group] > 1:
            continue
        by_name = member @ blocks.changes[:, tokens.index]  # (U, tokens)
        own = by_name[names == group][0]
        beside = [
            _draw_others(sizes.drop(group), prompts_per_step - 1, generator) for _ in range(draws)
        ]
        joins = np.stack([np.isin(names, others) for others in beside])  # (draws, U)
        change = own + joins.astype(float) @ by_name  # (draws, tokens)
        repeated = tokens.loc[np.tile(tokens.index, draws)]
        parts.append(
            repeated.assign(
                own=np.tile(own, draws),
                change=change.ravel(),
                draw=np.repeat(np.arange(draws), len(own)),
            )
        )
    if not parts:
        raise ValueError("No measured prompt pushes; measure one with different rewards.")
    return pd.concat(parts, ignore_index=True)


def _draw_others(sizes: pd.Series, wanted: int, generator: np.random.Generator) -> np.ndarray:
    """Names of bundles, as many as fit, and of single prompts: `wanted` prompts together."""
    singles = sizes.index[sizes == 1].to_numpy()
    bundles = sizes.index[sizes > 1].to_numpy()
    chosen = bundles
    if len(bundles):
        # no bundle is larger than the largest, so that so many surely fit
        fitting = wanted // int(sizes[bundles].max())
        chosen = generator.permutation(bundles)[:fitting]
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

    Columns where (own prompt, other prompts), kind (of PAIR_KINDS), pairs and mass (shares of all
    pairs and of the sum of |change| in that place), net (sum of change in the block's own direction
    over the sum of |change|, of blocks of one sign, else 0). same token: the block pushes the
    token's id; both unsure: below one half, in the block, too.
    """
    tokens = blocks.tokens
    token_ids = tokens["token_id"].to_numpy()
    unsure = (tokens["logp"] < np.log(BELOW_HALF)).to_numpy()
    rows = []
    # what a block does outside itself, by what it shares with the token
    for k, pushing in blocks.pushing.groupby("block"):
        pushed = pushing["token_id"]
        pushed_unsure = pushed[pushing["logp"] < np.log(BELOW_HALF)]
        conditions = [
            np.isin(token_ids, pushed_unsure) & unsure,
            np.isin(token_ids, pushed),
            unsure,
        ]
        *kinds, otherwise = PAIR_KINDS
        about = blocks.blocks.iloc[k]
        change = blocks.changes[k].astype(float)
        cells = pd.DataFrame(
            {
                "where": np.where(tokens["group"] == about["group"], "own prompt", "other prompts"),
                "kind": np.select(conditions, kinds, otherwise),
                "size": np.abs(change),
                "net": about["sign"] * change,
                "pairs": 1,
            }
        )
        outside = (tokens["block"] != k).to_numpy()
        rows.append(cells[outside].groupby(["where", "kind"]).sum())

    # over all blocks, and as shares within each place
    sums = pd.concat(rows).groupby(["where", "kind"]).sum()
    total = sums.groupby("where").transform("sum")
    shares = pd.DataFrame(
        {
            "pairs": sums["pairs"] / total["pairs"],
            "mass": sums["size"] / total["size"],
            "net": sums["net"] / sums["size"],
        }
    )
    return shares.reset_index()


def equal_energy_prompts(blocks: Blocks, prompts_per_step: int) -> int:
    """Prompts of a step with both signs whose gradient is as long as a positive-only step's.

    On average, by squared length: with e the mean squared length of a prompt's own gradient and c
    the mean inner product of two prompts', a step on P prompts has P e + P (P - 1) c. At least 1,
    at most the prompts that push.
    """
    positive_energy = _step_energy(blocks, positive_only=True)
    energy = _step_energy(blocks, positive_only=False)
    sizes = np.arange(1, blocks.prompts + 1)
    distance = np.abs(energy(sizes) - positive_energy(prompts_per_step))
    return int(sizes[np.argmin(distance)])


def _step_energy(blocks: Blocks, positive_only: bool) -> Callable:
    """Mean squared length of a step's gradient as a function of its prompts."""
    gram = blocks.gram()  # (K, K)
    group = blocks.blocks["group"].to_numpy()
    sign = blocks.blocks["sign"].to_numpy()
    # blocks whose tokens were all measured have no NaN
    whole = ~np.isnan(gram[0])
    chosen = whole & (sign > 0) if positive_only else whole
    products = gram[np.ix_(chosen, chosen)]
    same_prompt = group[chosen][:, None] == group[chosen][None]

    # means over prompts, and over ordered pairs of two prompts
    n = blocks.blocks["group"][whole].nunique()
    own = products[same_prompt].sum() / n
    cross = products[~same_prompt].sum() / max(1, n * (n - 1))

    def energy(prompts):
        return prompts * own + prompts * (prompts - 1) * cross

    return energy


def category_shift(
    blocks: Blocks,
    prompts_per_step: int,
    draws: int = STEP_DRAWS,
    seed: int = 0,
    equal_energy: bool = False,
) -> pd.DataFrame:
    """H6: each category's share of movement with both signs, minus that with positive ones only.

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
    prompts = prompts_per_step
    if equal_energy:
        prompts = equal_energy_prompts(blocks, prompts_per_step)
    shares = {
        "both": _category_shares(step_changes(blocks, prompts, draws, seed)),
        "positive_only": _category_shares(
            step_changes(blocks, prompts_per_step, draws, seed, positive_only=True)
        ),
    }
    table = pd.DataFrame(shares).dropna().reset_index()
    return table.assign(shift=table["both"] - table["positive_only"], prompts=prompts)


def _category_shares(table: pd.DataFrame) -> pd.Series:
    """Each category's share of the sum of |change| over its prompt's tokens, by both."""
    sizes = table.assign(size=table["change"].abs())
    sums = sizes.groupby(["group", "category"])["size"].sum()
    return sums / sums.groupby("group").transform("sum")
