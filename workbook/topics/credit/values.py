"""Token values (H7): what reward to expect once a token is written, and what the token changed about that.

    value(prefix) = E[ final reward | the policy continues the prefix, at temperature 1, up to the same length ]
    credit(token) = value(prefix with the token) - value(prefix without it)

`token_values` estimates them by sampling, with a standard error; `exact_values` bounds them by going through every
continuation that is not too unlikely. After an end token, and at the length limit, the value is the rollout's own
reward. The paper (arXiv 2605.08666, figure 5) calls the first of the two a token's value; the second is the change of
value that the token makes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbook.policies.copies import evaluating
from workbook.probes.step import progress
from workbook.rollouts.sample import Rollouts, end_tokens, task_rewards
from workbook.rollouts.scoring import unpadded
from workbook.topics.credit.prefixes import Branches, batch_limit, prefill

PER_ROLLOUT = 8  # tokens drawn from each rollout unless told otherwise
BLOCK = 64  # rollouts whose cache is held at once
STILL_GOING = 0.9  # a batch is cut down once less than this share of it goes on: to copy a cache has its price

Prefix = tuple[int, int]  # rollout, number of its completion tokens


def token_values(
    policy,
    task,
    rollouts: Rollouts,
    continuations: int = 8,
    tokens: int | Sequence | pd.Series | None = PER_ROLLOUT,
    seed: int = 0,
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    credit: bool = True,
    batch_size: int | None = None,
) -> pd.DataFrame:
    """Rows of the token table with value and value_se, and with value_before, credit_mc and credit_se.

        value = mean of K rewards, value_se = their standard deviation / sqrt(K), credit_mc = value - value_before

    in the reward's unit; value_se is 0 where all K rewards agree, and where nothing is left to sample.

    continuations: K >= 2.  tokens: how many of each rollout to draw at random, or labels of the token table's rows, or
    a boolean for each, or None for all.  max_new_tokens: what the rollouts were sampled with; by default the longest
    one's length.  credit: False leaves out the columns for the state before, and half of the work.  batch_size:
    continuations at once, by default as many as fit 256 MiB of cache. Prefixes of one prompt with the same tokens share
    their continuations. The policy and the global random state are left as they were.

    Raises ValueError for settings out of range, for rollouts without prompts, and for models whose caches can't be cut.
    """
    if continuations < 2:
        raise ValueError(f"continuations={continuations!r} must be 2 or more: one says nothing of its own error.")
    limit = _limit(rollouts, max_new_tokens)
    table = _chosen(rollouts.token_table(), tokens, seed)
    after = list(zip(table["rollout"], table["position"] + 1, strict=True))
    before = list(zip(table["rollout"], table["position"], strict=True)) if credit else []
    sampler = _Sampler(policy, task, rollouts, continuations, limit, temperature, batch_size, seed)
    known = sampler.values([*after, *before])
    table["value"], table["value_se"] = np.array([known[prefix] for prefix in after]).reshape(-1, 2).T
    if credit:
        table["value_before"], se = np.array([known[prefix] for prefix in before]).reshape(-1, 2).T
        table["credit_mc"] = table["value"] - table["value_before"]
        table["credit_se"] = np.hypot(table["value_se"], se)
    return table


class _Sampler:
    """Continues prefixes K times each: one cache per block of rollouts, prefixes of like length in one batch."""

    def __init__(self, policy, task, rollouts, continuations, limit, temperature, batch_size, seed):
        self.policy, self.task, self.rollouts, self.limit = policy, task, rollouts, limit
        self.continuations, self.temperature = continuations, temperature
        model = policy.model
        width = rollouts.prompt_ids.shape[1] + limit
        self.at_once = max(1, (batch_size or batch_limit(model, width)) // continuations)
        self.ends = torch.tensor(end_tokens(policy), device=model.device)
        self.generator = torch.Generator(device=model.device).manual_seed(seed)
        self.completions = unpadded(rollouts.completion_ids, rollouts.completion_mask)
        self.prompts = unpadded(rollouts.prompt_ids, rollouts.prompt_mask)

    def values(self, prefixes: list[Prefix]) -> dict[Prefix, tuple[float, float]]:
        """{prefix: (value, standard error)}."""
        twins: dict[tuple, list[Prefix]] = {}
        known = {}
        for rollout, length in dict.fromkeys(prefixes):
            ids = self.completions[rollout][:length]
            if length == self.limit or (ids and ids[-1] in self.ends):
                known[rollout, length] = (float(self.rollouts.rewards[rollout]), 0.0)
            else:
                twins.setdefault((*self.prompts[rollout], -1, *ids), []).append((rollout, length))
        firsts = [group[0] for group in twins.values()]
        model = self.policy.model
        with torch.no_grad(), evaluating(model):
            for batch, rewards in self._batches(firsts):
                se = rewards.std(axis=1, ddof=1) / self.continuations**0.5
                known.update(zip(batch, zip(rewards.mean(1), se, strict=True), strict=True))
        return known | {twin: known[group[0]] for group in twins.values() for twin in group}

    def _batches(self, prefixes: list[Prefix]) -> Iterator[tuple[list[Prefix], np.ndarray]]:
        """Batches of prefixes with their rewards (n, K)."""
        plan = []
        for start in range(0, len(self.rollouts), BLOCK):
            block = sorted((p for p in prefixes if start <= p[0] < start + BLOCK), key=lambda p: -p[1])
            plan += [(start, block[i : i + self.at_once]) for i in range(0, len(block), self.at_once)]
        held = None
        for start, batch in progress(plan, "values"):
            if held != start:
                held = start
                cache = prefill(self.policy.model, self.rollouts.select(slice(start, start + BLOCK)))
            rollout, length = torch.tensor(batch).T
            longest = self.limit - int(length.min())
            branches, last = cache.cut(rollout - start, length, room=longest)
            new = self._continue(branches, last, self.limit - length.to(last.device))
            yield batch, self._rewards(batch, new)

    def _continue(self, branches: Branches, last: Int[Tensor, " n"], room: Int[Tensor, " n"]) -> list[list[int]]:
        """K continuations of each prefix, of at most `room` tokens each: n * K ragged rows."""
        probs = self._probs(branches.advance(last))
        tokens = torch.multinomial(probs, self.continuations, replacement=True, generator=self.generator).flatten()
        room = room.repeat_interleave(self.continuations)  # (n * K,)
        rows = torch.arange(len(tokens), device=tokens.device)
        branches = branches.copy(rows // self.continuations)
        going = torch.ones_like(rows, dtype=torch.bool)
        out = torch.full((len(rows), int(room.max())), -1, device=tokens.device)
        for step in range(out.shape[1]):
            out[rows[going], step] = tokens[going]
            going &= ~torch.isin(tokens, self.ends) & (room > step + 1)
            count = int(going.sum())
            if count == 0:
                break
            if count < STILL_GOING * len(rows):  # what has ended leaves the batch
                branches = branches.copy(going.nonzero().squeeze(1))
                rows, room, tokens, going = (values[going] for values in (rows, room, tokens, going))
            probs = self._probs(branches.advance(tokens))
            tokens = torch.multinomial(probs, 1, generator=self.generator).squeeze(1)
        return unpadded(out, out >= 0)

    def _probs(self, logits: Float[Tensor, "n V"]) -> Float[Tensor, "n V"]:
        return (logits / self.temperature).softmax(-1)

    def _rewards(self, batch: list[Prefix], new: list[list[int]]) -> np.ndarray:
        """Rewards (n, K) of the prefixes' continuations."""
        whole = [(r, self.completions[r][:n]) for r, n in batch for _ in range(self.continuations)]
        completions = [(r, old + more) for (r, old), more in zip(whole, new, strict=True)]
        return np.array(_rewards(self.policy, self.task, self.rollouts, completions)).reshape(len(batch), -1)


def exact_values(
    policy,
    task,
    rollouts: Rollouts,
    rows: Sequence,
    least: float = 1e-4,
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    batch_size: int | None = None,
) -> pd.DataFrame:
    """Rows of the token table with value, a lower bound, and unexplored: value <= true value <= value + unexplored.

    The policy's tree of continuations is gone through from each prefix; a branch whose probability given the prefix
    is below `least` is left, and its probability added to unexplored. The upper bound holds for rewards in [0, 1].
    rows: labels of the token table.  With least=0 the value is exact, at a cost of V to the power of the tokens left:
    take prefixes near their end.

    Raises ValueError as `token_values` does, and for `least` outside [0, 1).
    """
    if not 0 <= least < 1:
        raise ValueError(f"least={least!r} must be a probability in [0, 1).")
    limit = _limit(rollouts, max_new_tokens)
    table = _chosen(rollouts.token_table(), list(rows), 0)
    tree = _Tree(policy, task, rollouts, limit, least, temperature, batch_size)
    prefixes = list(zip(table["rollout"], table["position"] + 1, strict=True))
    batches = [prefixes[start : start + BLOCK] for start in range(0, len(prefixes), BLOCK)]
    values = [value for batch in progress(batches, "exact values") for value in tree.values(batch)]
    table["value"], table["unexplored"] = np.array(values).reshape(-1, 2).T
    return table


class _Tree:
    """The tree of a prefix's continuations, explored in batches of branches, the deepest first."""

    def __init__(self, policy, task, rollouts, limit, least, temperature, batch_size):
        self.policy, self.task, self.rollouts, self.limit, self.least = policy, task, rollouts, limit, least
        self.temperature = temperature
        self.at_once = batch_size or batch_limit(policy.model, rollouts.prompt_ids.shape[1] + limit)
        self.ends = torch.tensor(end_tokens(policy), device=policy.model.device)

    def values(self, prefixes: list[Prefix]) -> np.ndarray:
        """(n, 2): the expected reward of what was explored after each prefix, the probability of what was not."""
        self.prefixes = prefixes
        rollout, length = torch.tensor(prefixes).T
        parts = self.rollouts.select(rollout)
        self.completions = [
            ids[:n] for ids, n in zip(unpadded(parts.completion_ids, parts.completion_mask), length, strict=True)
        ]
        ended = torch.tensor([len(ids) == self.limit or ids[-1] in self.ends for ids in self.completions])
        self.estimates = np.zeros((len(prefixes), 2))
        self.estimates[ended.numpy(), 0] = parts.rewards[ended.to(parts.rewards.device)].cpu()
        owner = (~ended).nonzero().squeeze(1)
        if len(owner):
            with torch.no_grad(), evaluating(self.policy.model):
                room = self.limit - int(length[owner].min())
                branches, last = prefill(self.policy.model, parts).cut(owner, length[owner], room)
                owner = owner.to(last.device)
                empty = torch.empty(len(owner), 0, dtype=torch.long, device=last.device)
                self._explore(branches, last, owner, torch.ones_like(owner, dtype=torch.float64), empty)
        return self.estimates

    def _explore(
        self, branches: Branches, last, owner, mass: Float[Tensor, " n"], path: Int[Tensor, "n steps"]
    ) -> None:
        """Add up the rewards under n branches of probability `mass`, which wrote `path` after prefix number `owner`."""
        logits = branches.advance(last)
        masses = mass[:, None] * (logits.double() / self.temperature).softmax(-1)  # (n, V)
        kept = (masses >= self.least) & (masses > 0)  # (n, V); what is too unlikely only bounds the value
        np.add.at(self.estimates[:, 1], owner.cpu().numpy(), masses.masked_fill(kept, 0.0).sum(1).cpu().numpy())
        parent, token = kept.nonzero(as_tuple=True)  # (m,) each: a child per kept token
        owner, mass = owner[parent], masses[parent, token]
        path = torch.cat([path[parent], token[:, None]], dim=1)
        full = torch.tensor([len(ids) + path.shape[1] == self.limit for ids in self.completions], device=owner.device)
        ended = torch.isin(token, self.ends) | full[owner]
        if ended.any():
            owners = owner[ended].tolist()
            pairs = zip(owners, path[ended].tolist(), strict=True)
            written = [(self.prefixes[i][0], self.completions[i] + more) for i, more in pairs]
            rewards = np.array(_rewards(self.policy, self.task, self.rollouts, written))
            np.add.at(self.estimates[:, 0], owners, mass[ended].cpu().numpy() * rewards)
        for rows in (~ended).nonzero().squeeze(1).split(self.at_once):
            if len(rows):
                self._explore(branches.copy(parent[rows]), token[rows], owner[rows], mass[rows], path[rows])


def _rewards(policy, task, rollouts: Rollouts, completions: list[tuple[int, list[int]]]) -> list[float]:
    """The task's rewards of completions (rollout whose prompt it answers, token ids)."""
    if rollouts.prompts is None:
        raise ValueError("rollouts have no prompts, and a reward needs them: sample_rollouts keeps them.")
    answers, extras = rollouts.answers or (None,) * len(rollouts), rollouts.extras or ({},) * len(rollouts)
    rows = [{"prompt": rollouts.prompts[r], "answer": answers[r], **extras[r]} for r, _ in completions]
    ids = [tokens for _, tokens in completions]
    return task_rewards(task, rows, tuple(policy.tokenizer.batch_decode(ids, skip_special_tokens=True)), ids)


def _limit(rollouts: Rollouts, max_new_tokens: int | None) -> int:
    longest = int(rollouts.completion_mask.sum(1).max())
    if max_new_tokens is None:
        return longest
    if max_new_tokens < longest:
        raise ValueError(f"max_new_tokens={max_new_tokens!r} must be at least the longest rollout's length, {longest}.")
    return max_new_tokens


def _chosen(table: pd.DataFrame, tokens, seed: int) -> pd.DataFrame:
    """The rows of the token table that `tokens` means (see `token_values`), in the table's order."""
    if tokens is None:
        return table
    if isinstance(tokens, int):
        if tokens < 1:
            raise ValueError(f"tokens={tokens} must be 1 or more, or name rows of the token table.")
        return table.sample(frac=1, random_state=seed).groupby("rollout").head(tokens).sort_index()
    labels = np.asarray(tokens)
    if labels.dtype == bool:
        if len(labels) != len(table):
            raise ValueError(f"tokens has {len(labels)} booleans; it needs one for each of {len(table)} tokens.")
        return table[labels].copy()
    if not np.isin(labels, table.index).all():
        raise ValueError(f"tokens names row {labels[~np.isin(labels, table.index)][0]}, which is no completion token.")
    return table.loc[np.sort(labels)].copy()
