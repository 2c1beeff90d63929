"""Block coupling: one small real step per block of tokens, and what it does to the log-probability of every token.

    blocks = block_coupling(policy, rollouts, blocks="sign")
    print(blocks)                                        # by how much sums of rows miss a real step of all
    follows_own_sign(blocks, prompts_per_step=32)        # H1 for any size of step, without another pass

To first order a step of SGD on several blocks moves a token by the sum of what each block does to it alone. So a row
per prompt, or per prompt and sign of the advantage, holds what every batch of these prompts does, from one prompt to
all of them (`workbook.probes.block_tables` draws such batches). All steps have one length, so that none is lost in
rounding and none is bent: float32 is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.policies.restoring import no_gradients
from workbook.probes.block_rows import BlockRows
from workbook.probes.step import logp_change, logps, progress, untouched, update
from workbook.rollouts.sample import Rollouts
from workbook.theory.weights import update_weights

KINDS = ("prompt", "sign", "rollout", "category", "token")
# nats, root mean square, by which a block's step moves its own tokens: sums of rows then miss a real step by less than
# 1 %; curvature grows above it, rounding below
SMALL_STEP = 0.002
TRIALS = 3  # blocks by which the length of steps is found


@dataclass(frozen=True)
class Blocks:
    """What each of K blocks does to each of N measured tokens.

    Attributes:
        changes: (K, N) float32, of the token's log-probability in nats when the block alone pushes at rate lr, to first
            order in lr.
        blocks: K rows: block, group (the first of its prompts) and sign (0 if mixed) of its advantages, tokens and
            prompts that push, norm of its gradient, rms of the change of its own measured tokens in the real step.
        tokens: N rows of the token table of the measured prompts, with block (-1: none) and push, weight x advantage.
        pushing: the same of all tokens that push, measured or not: block, group, token_id, logp, push.
        lr: the rate that changes are for.
        error: of the sum of all rows, against a real step of all blocks: root mean square of the difference over that
            of the step.
    """

    changes: Float[np.ndarray, "K N"]
    blocks: pd.DataFrame
    tokens: pd.DataFrame
    pushing: pd.DataFrame
    lr: float
    error: float

    def __str__(self) -> str:
        size = float(np.sqrt(np.nanmean(self.blocks["rms"] ** 2)))
        return (
            f"{len(self.blocks)} blocks x {len(self.tokens)} tokens, steps of {size:.2g} nats (rms of a block's own "
            f"tokens); their sum differs from a real step of all by {self.error:.2%} (rms)"
        )

    @property
    def prompts(self) -> int:
        """How many prompts push."""
        return int(self.prompts_by_group().sum())

    def prompts_by_group(self) -> pd.Series:
        """How many prompts push in the blocks of each prompt or bundle, by its (first) group."""
        return self.blocks.groupby("group")["prompts"].max()

    def gram(self) -> Float[np.ndarray, "K K"]:
        """Inner products of the blocks' gradients: row k with column l, NaN where l's tokens were not all measured.

        The gradient of l is the sum of its tokens' push times grad log pi; `changes` is what a gradient does to log pi.
        """
        known = np.zeros((len(self.tokens), len(self.blocks)))
        at = self.tokens["block"].to_numpy()
        known[np.arange(len(at))[at >= 0], at[at >= 0]] = self.tokens["push"].to_numpy()[at >= 0]
        measured = np.bincount(at[at >= 0], minlength=len(self.blocks)) == self.blocks["tokens"].to_numpy()
        return np.where(measured[None], self.changes.astype(float) @ known / self.lr, np.nan)


def block_coupling(
    policy,
    rollouts: Rollouts,
    lr: float = 1.0,
    blocks: str | Int[Tensor, "B T"] = "prompt",
    batch_size: int = 32,
    measured: Sequence[int] | None = None,
    folder: str | Path | None = None,
    nats: float = SMALL_STEP,
    aggregate: str = "dr_grpo",
) -> Blocks:
    """Take one small step per block, each from the policy as it is, and record what it does to every measured token.

    blocks: "prompt"; "sign", a prompt's positive and negative rollouts apart; "rollout"; "category", a class of token
    each, in alphabetical order; "token"; or labels (B, T), below 0 for tokens that do not push. Tokens of advantage 0
    never do, and a block without any is left out.
    lr: the rate of SGD that the changes are for; any other is a factor.  measured: group ids whose tokens are recorded,
    all by default.  batch_size: rollouts of one pass.  nats: of a real step (root mean square, a block's own tokens).
    folder: where rows are kept as they are made; a call that was broken off goes on from there, one that had finished
    is read.  aggregate: as in `update_weights`.  The policy is left as it was.

    Cost: a backward pass of each block, and as many forward passes of the measured rollouts as there are blocks.

    Raises ValueError for a policy below float32, unknown blocks or groups, rollouts in which nothing pushes, and a
    folder that holds the blocks of another policy, other rollouts or other settings.
    """
    _check_precision(policy)
    rollouts = rollouts.to(policy.model.device)
    labels, pushes = _labels(rollouts, blocks), token_pushes(rollouts, aggregate)
    labels = labels.masked_fill(pushes == 0, -1)
    if not (labels >= 0).any():
        raise ValueError("rollouts push nothing, all advantages are 0: take groups with different rewards.")
    names, labels = _numbered(labels)
    part = rollouts.select(_measured(rollouts, measured))
    rows = BlockRows(folder, len(names), _fingerprint(policy, rollouts, part, labels, aggregate, nats))
    length = rows.length or _length(policy, rollouts, labels, nats, batch_size)
    rows.start(length)
    stepper = _OfLength(policy, length)
    alive = part.completion_mask.bool()
    with untouched(policy), no_gradients():
        start = [p.detach().clone() for p in stepper.weights]
        before = logps(policy, part, batch_size)[alive]

        def stepped(chosen: Bool[Tensor, "B T"]) -> tuple[float, np.ndarray]:
            """Norm of the chosen tokens' gradient, and what a step of `length` along it does to the measured tokens."""
            try:
                norm = stepper.step_along(policy, rollouts, chosen, batch_size, aggregate)
                return norm, (logps(policy, part, batch_size)[alive] - before).cpu().numpy()
            finally:
                for weight, value in zip(stepper.weights, start, strict=True):
                    weight.copy_(value)

        for k in progress(rows.missing(), "blocks"):
            rows.add(k, *stepped(labels == k))
        norms, moved = rows.whole()
        norm, together = stepped(labels >= 0) if rows.error is None else (0.0, None)
    changes = moved * (lr * norms / length)[:, None]
    if together is not None:
        real = together * (lr * norm / length)
        rows.finish(float(np.sqrt(np.mean((changes.sum(0) - real) ** 2) / np.mean(real**2))))
    tokens, pushing = _token_tables(rollouts, part, labels, pushes, measured)
    own = tokens["block"].to_numpy()[None] == np.arange(len(names))[:, None]
    facts = {"group": ("group", "first"), "sign": ("push", _sign), "tokens": ("push", "size")}
    about = pushing.groupby("block").agg(**facts, prompts=("group", "nunique"))
    with np.errstate(invalid="ignore"):
        about["rms"] = np.sqrt(np.where(own, moved**2, 0).sum(1) / own.sum(1))
    about = about.assign(norm=norms, block=names).reset_index(drop=True)
    return Blocks(changes.astype(np.float32), about, tokens, pushing, lr, rows.error)


def _check_precision(policy) -> None:
    dtypes = {p.dtype for p in policy.model.parameters() if p.is_floating_point() and p.dtype.itemsize < 4}
    if dtypes:
        raise ValueError(
            f"policy holds weights in {str(dtypes.pop()).removeprefix('torch.')}, in which small steps are lost to "
            'rounding; load it with dtype="float32".'
        )


def _labels(rollouts: Rollouts, blocks) -> Int[Tensor, "B T"]:
    shape, device = rollouts.completion_ids.shape, rollouts.completion_ids.device
    if isinstance(blocks, Tensor):
        if blocks.shape != shape:
            raise ValueError(f"blocks has shape {tuple(blocks.shape)}; labels must be {tuple(shape)}, one per token.")
        return blocks.to(device).long()
    if blocks not in KINDS:
        raise ValueError(f"blocks={blocks!r} is unknown: choose one of {', '.join(KINDS)}, or give labels (B, T).")
    if blocks == "category":
        return _category_labels(rollouts).to(device)
    if blocks == "token":
        return torch.arange(shape.numel(), device=device).view(shape)
    positive = (rollouts.advantages > 0).long().view(len(rollouts), -1)  # (B, 1), or (B, T) of advantages per token
    groups = rollouts.group_ids.long()[:, None]
    rows = torch.arange(len(rollouts), device=device)[:, None]
    return {"prompt": groups, "sign": 2 * groups + positive, "rollout": rows}[blocks].expand(shape)


def _category_labels(rollouts: Rollouts) -> Int[Tensor, "B T"]:
    if rollouts.categories is None:
        raise ValueError('blocks="category" needs classes of token; sample from a task that has them.')
    known = sorted({name for names in rollouts.categories for name in names if name is not None})
    labels = torch.full(rollouts.completion_ids.shape, -1)
    for row, names in enumerate(rollouts.categories):
        labels[row, : len(names)] = torch.tensor([-1 if name is None else known.index(name) for name in names])
    return labels


def token_pushes(rollouts: Rollouts, aggregate: str) -> Float[Tensor, "B T"]:
    """Weight x advantage of every token in a step on fresh rollouts, 0 outside the mask."""
    alive, ones = rollouts.completion_mask.bool(), torch.zeros_like(rollouts.old_logps)
    weights = update_weights(ones, ones, alive, rollouts.advantages, clip=None, aggregate=aggregate)
    return (weights * rollouts.advantages.view(len(rollouts), -1)).masked_fill(~alive, 0.0)


def _numbered(labels: Int[Tensor, "B T"]) -> tuple[list[int], Int[Tensor, "B T"]]:
    """The labels that push, ascending, and each token's place among them, -1 for those that do not."""
    names, numbers = labels.unique(return_inverse=True)
    below = int((names < 0).sum())
    return names[below:].tolist(), (numbers - below).clamp(min=-1)


def _measured(rollouts: Rollouts, groups: Sequence[int] | None) -> Int[Tensor, " M"]:
    if groups is None:
        return torch.arange(len(rollouts))
    wanted = torch.as_tensor(list(groups), device=rollouts.group_ids.device)
    if not len(wanted) or not torch.isin(wanted, rollouts.group_ids).all():
        raise ValueError(f"measured={list(groups)[:8]} must be group ids of the rollouts, one or more.")
    return torch.isin(rollouts.group_ids, wanted).nonzero().squeeze(1).cpu()


class _OfLength(torch.optim.SGD):
    """SGD whose steps all have one length."""

    def __init__(self, policy, length: float):
        self.weights, self.length = [p for p in policy.model.parameters() if p.requires_grad], length
        super().__init__(self.weights, lr=1.0)

    def step(self, closure=None):
        norm = torch.stack([p.grad.norm() for p in self.weights if p.grad is not None]).norm()
        self.param_groups[0]["lr"] = self.length / max(float(norm), torch.finfo(torch.float32).tiny)
        return super().step(closure)

    def step_along(self, policy, rollouts: Rollouts, chosen, batch_size: int, aggregate: str) -> float:
        """Take one step on the chosen tokens; returns the norm of their gradient."""
        with torch.enable_grad():
            settings = {"chosen": chosen, "batch_size": batch_size, "aggregate": aggregate, "clip": None}
            return float(update(policy, rollouts, self, **settings)[0])


def _length(policy, rollouts: Rollouts, labels: Int[Tensor, "B T"], nats: float, batch_size: int) -> float:
    """The length of steps at which blocks move their own tokens by `nats`: the median of some blocks."""
    if not nats > 0:
        raise ValueError(f"nats={nats!r} must be above 0.")
    last = int(labels.max())
    length = 1e-4 * float(torch.stack([p.detach().norm() for p in _OfLength(policy, 1.0).weights]).norm())
    for _ in range(2):  # the second time near the size that is wanted
        sizes = []
        for k in sorted({round(i * last / (TRIALS - 1)) for i in range(TRIALS)}):
            rows = (labels == k).any(1).nonzero().squeeze(1)
            chosen = (labels == k)[rows]
            with untouched(policy):
                taken = {"chosen": chosen, "batch_size": batch_size, "clip": None}
                moved = logp_change(policy, rollouts.select(rows), _OfLength(policy, length), **taken)
            sizes.append(float(moved[chosen].pow(2).mean().sqrt()))
        length *= nats / float(np.median(sizes))
    return length


def _token_tables(rollouts: Rollouts, part: Rollouts, labels, pushes, measured) -> tuple[pd.DataFrame, pd.DataFrame]:
    alive = rollouts.completion_mask.bool()
    columns = {"block": labels[alive].cpu().numpy(), "push": pushes[alive].double().cpu().numpy()}
    whole = rollouts.token_table().assign(**columns)
    kept = whole["rollout"].isin(_measured(rollouts, measured).tolist())
    pushing = whole.loc[whole["block"] >= 0, ["block", "group", "token_id", "logp", "push"]]
    assert int(kept.sum()) == int(part.completion_mask.sum())
    return whole[kept].reset_index(drop=True), pushing.reset_index(drop=True)


def _sign(pushes: pd.Series) -> int:
    """The sign of a block's pushes, 0 if it has both."""
    return int(np.sign(pushes.min())) if pushes.min() * pushes.max() > 0 else 0


def _fingerprint(policy, rollouts: Rollouts, part: Rollouts, labels, aggregate: str, nats: float) -> dict:
    """What a folder's rows belong to."""
    tensors = {"labels": labels, "completions": rollouts.completion_ids, "prompts": rollouts.prompt_ids}
    tensors |= {"advantages": rollouts.advantages, "measured": part.completion_ids}
    sums = {name: hashlib.sha256(t.cpu().numpy().tobytes()).hexdigest()[:16] for name, t in tensors.items()}
    return {"policy": policy.provenance.get("sha256"), "aggregate": aggregate, "nats": nats, **sums}
