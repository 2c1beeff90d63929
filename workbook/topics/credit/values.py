"""Token values by sampling (H7): the policy continues rollouts' prefixes, whose key-value caches are cut from one pass.

    value(prefix) = E[ final reward | the policy continues the prefix, at temperature 1, up to the same length ]
    credit(token) = value(prefix with the token) - value(prefix without it)

After an end token, and at the length limit, the value is the rollout's own reward. A prefix is a prompt with the first
tokens of its completion. A causal cache depends on what came before alone, so one forward pass over B rollouts holds
the cache of each of their prefixes:

    branches, last = prefill(policy.model, rollouts).cut(rollout, length)   n prefixes, the last token not cached
    logits = branches.advance(last)                                         (n, V), of the next token

Letters: n prefixes, K continuations of each, W columns of the cache, V vocabulary, B rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from workbook.policies.copies import evaluating
from workbook.policies.devices import padding_error
from workbook.probes.step import progress
from workbook.rollouts.sample import Rollouts, end_tokens, task_rewards
from workbook.rollouts.scoring import unpadded

PER_ROLLOUT = 8  # tokens drawn from each rollout unless told otherwise
BLOCK = 64  # rollouts whose cache is held at once
STILL_GOING = 0.9  # a batch is cut down once less than this share of it goes on: to copy a cache has its price
CACHE_NUMBERS = 2**26  # numbers held in one batch's cache (256 MiB in float32)

Prefix = tuple[int, int]  # rollout, number of its completion tokens


# --- sampled values


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
) -> pd.DataFrame:
    """Rows of the token table with value and value_se, and with value_before, credit_mc and credit_se.

        value = mean of K rewards, value_se = their standard deviation / sqrt(K), credit_mc = value - value_before

    in the reward's unit; value_se is 0 where all K rewards agree, and where nothing is left to sample.

    continuations: K >= 2.  tokens: how many of each rollout to draw at random, or labels of the token table's rows, or
    a boolean for each, or None for all.  max_new_tokens: what the rollouts were sampled with; by default the longest
    one's length.  credit: False leaves out the columns for the state before, and half of the work.  Prefixes
    of one prompt with the same tokens share their continuations. The policy and the global random state are left as
    they were.

    Raises ValueError for settings out of range, for rollouts without prompts, and for models whose caches can't be cut.
    """
    if continuations < 2:
        raise ValueError(f"continuations={continuations!r} must be 2 or more: one says nothing of its own error.")
    longest = int(rollouts.completion_mask.sum(1).max())
    limit = longest if max_new_tokens is None else max_new_tokens
    if limit < longest:
        raise ValueError(f"max_new_tokens={limit!r} must be at least the longest rollout's length, {longest}.")
    table = _chosen(rollouts.token_table(), tokens, seed)
    after = list(zip(table["rollout"], table["position"] + 1, strict=True))
    before = list(zip(table["rollout"], table["position"], strict=True)) if credit else []
    sampler = _Sampler(policy, task, rollouts, continuations, limit, temperature, seed)
    known = sampler.values([*after, *before])
    table["value"], table["value_se"] = np.array([known[prefix] for prefix in after]).reshape(-1, 2).T
    if credit:
        table["value_before"], se = np.array([known[prefix] for prefix in before]).reshape(-1, 2).T
        table["credit_mc"] = table["value"] - table["value_before"]
        table["credit_se"] = np.hypot(table["value_se"], se)
    return table


def _chosen(table: pd.DataFrame, tokens, seed: int) -> pd.DataFrame:
    """The rows of the token table that `tokens` means (see `token_values`), in the table's order."""
    if tokens is None:
        return table
    if isinstance(tokens, int):
        return table.sample(frac=1, random_state=seed).groupby("rollout").head(tokens).sort_index()
    labels = np.asarray(tokens)
    if labels.dtype == bool:
        return table[labels].copy()
    if not np.isin(labels, table.index).all():
        raise ValueError(f"tokens names row {labels[~np.isin(labels, table.index)][0]}, which is no completion token.")
    return table.loc[np.sort(labels)].copy()


class _Sampler:
    """Continues prefixes K times each: one cache per block of rollouts, prefixes of like length in one batch."""

    def __init__(self, policy, task, rollouts, continuations, limit, temperature, seed):
        self.policy, self.task, self.rollouts, self.limit = policy, task, rollouts, limit
        self.continuations, self.temperature = continuations, temperature
        model = policy.model
        width = rollouts.prompt_ids.shape[1] + limit
        self.at_once = max(1, batch_limit(model, width) // continuations)
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
        with torch.no_grad(), evaluating(self.policy.model):
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
            branches, last = cache.cut(rollout - start, length)
            new = self._continue(branches, last, self.limit - length.to(last.device))
            yield batch, self._rewards(batch, new)

    def _continue(self, branches: Branches, last: Int[Tensor, " n"], room: Int[Tensor, " n"]) -> list[list[int]]:
        """K continuations of each prefix, of at most `room` tokens each: n * K ragged rows."""
        probs = (branches.advance(last) / self.temperature).softmax(-1)
        tokens = torch.multinomial(probs, self.continuations, replacement=True, generator=self.generator).flatten()
        room = room.repeat_interleave(self.continuations)  # (n * K,)
        rows = torch.arange(len(tokens), device=tokens.device)
        branches.select(rows // self.continuations)
        going = torch.ones_like(rows, dtype=torch.bool)
        out = torch.full((len(rows), int(room.max())), -1, device=tokens.device)
        for step in range(out.shape[1]):
            out[rows[going], step] = tokens[going]
            going &= ~torch.isin(tokens, self.ends) & (room > step + 1)
            count = int(going.sum())
            if count == 0:
                break
            if count < STILL_GOING * len(rows):  # what has ended leaves the batch
                branches.select(going.nonzero().squeeze(1))
                rows, room, tokens, going = (values[going] for values in (rows, room, tokens, going))
            probs = (branches.advance(tokens) / self.temperature).softmax(-1)
            tokens = torch.multinomial(probs, 1, generator=self.generator).squeeze(1)
        return unpadded(out, out >= 0)

    def _rewards(self, batch: list[Prefix], new: list[list[int]]) -> np.ndarray:
        """The task's rewards (n, K) of the prefixes' continuations."""
        rollouts = self.rollouts
        if rollouts.prompts is None:
            raise ValueError("rollouts have no prompts, and a reward needs them: sample_rollouts keeps them.")
        answers, extras = rollouts.answers or (None,) * len(rollouts), rollouts.extras or ({},) * len(rollouts)
        owners = [(r, n) for r, n in batch for _ in range(self.continuations)]
        rows = [{"prompt": rollouts.prompts[r], "answer": answers[r], **extras[r]} for r, _ in owners]
        ids = [self.completions[r][:n] + more for (r, n), more in zip(owners, new, strict=True)]
        texts = tuple(self.policy.tokenizer.batch_decode(ids, skip_special_tokens=True))
        return np.array(task_rewards(self.task, rows, texts, ids)).reshape(len(batch), -1)


# --- caches of prefixes


def prefill(model: nn.Module, rollouts: Rollouts) -> Prefilled:
    """One pass over prompts and completions of the rollouts, on the model's device.

    Raises ValueError for a model whose cache is not plain keys and values of every token (recurrent states, sliding
    windows kept short): there, a prefix's state can't be cut from the whole's; and for one that ignores padding.
    """
    error = padding_error(model)
    if error > 1 or (error != error and not rollouts.prompt_mask.all()):
        raise ValueError(f"{type(model).__name__} ignores padding, so that prefixes can't be continued in one batch.")
    rollouts = rollouts.to(model.device)
    order = rollouts.prompt_mask.long().argsort(dim=1, stable=True)  # padding first: left-padded whatever it was
    ids = torch.cat([rollouts.prompt_ids.gather(1, order), rollouts.completion_ids], dim=1)
    mask = torch.cat([rollouts.prompt_mask.gather(1, order), rollouts.completion_mask], dim=1).long()
    places, cache = (mask.cumsum(1) - 1).clamp(min=0), DynamicCache()
    try:
        inputs = {"input_ids": ids, "attention_mask": mask, "position_ids": places, "past_key_values": cache}
        model(**inputs, use_cache=True, logits_to_keep=1)
        plain = bool(cache.layers) and all(
            type(layer) is DynamicLayer and layer.get_seq_length() == ids.shape[1] for layer in cache.layers
        )
    except (AttributeError, TypeError, ValueError, IndexError):
        plain = False
    if not plain:
        raise ValueError(
            f"{type(model).__name__} does not keep plain keys and values of every token, from which the caches of a "
            "rollout's prefixes could be cut; values need a causal transformer with a DynamicCache."
        )
    prompts = rollouts.prompt_ids.shape[1]
    starts = prompts - rollouts.prompt_mask.long().sum(1)
    return Prefilled(model, ids, starts, prompts, [(layer.keys, layer.values) for layer in cache.layers])


def batch_limit(model: nn.Module, tokens: int) -> int:
    """How many sequences of so many tokens fit into CACHE_NUMBERS, from 1 to 1,024."""
    config = model.config.get_text_config()
    queries = getattr(config, "num_attention_heads", 1)
    heads = getattr(config, "num_key_value_heads", None) or queries
    width = getattr(config, "head_dim", None) or config.hidden_size // queries
    return max(1, min(1024, CACHE_NUMBERS // (2 * config.num_hidden_layers * heads * width * tokens)))


@dataclass
class Prefilled:
    """The cache of B whole rollouts, left-aligned prompts followed by completions, of which prefixes are cut."""

    model: nn.Module
    ids: Int[Tensor, "B L"]
    starts: Int[Tensor, " B"]  # the first column that holds a token
    prompts: int  # columns of the prompt
    layers: list[tuple[Tensor, Tensor]]

    def cut(self, rollout: Int[Tensor, " n"], length: Int[Tensor, " n"]) -> tuple[Branches, Tensor]:
        """The prefixes with `length` completion tokens of the rollouts, and the last token of each.

        That token is in no cache yet: `advance` by it gives the logits of the first token to be sampled.
        """
        rollout, length = rollout.to(self.ids.device), length.to(self.ids.device)
        starts, ends = self.starts[rollout], self.prompts + length - 1  # columns kept: starts <= column < ends
        width = int((ends - starts).max())
        columns = ends[:, None] - width + torch.arange(width, device=ends.device)  # (n, W), right-aligned
        mask = columns >= starts[:, None]
        rows, columns = rollout[:, None], columns.clamp(min=0)
        cache = DynamicCache()
        for number, pair in enumerate(self.layers):
            cache.update(*(held.transpose(1, 2)[rows, columns].transpose(1, 2) for held in pair), number)
        return Branches(self.model, cache, mask.long(), ends - starts), self.ids[rollout, ends]


@dataclass
class Branches:
    """n sequences in one batch, right-aligned: their cache, which columns of it hold tokens, and how many."""

    model: nn.Module
    cache: DynamicCache
    mask: Int[Tensor, "n W"]
    lengths: Int[Tensor, " n"]

    def advance(self, tokens: Int[Tensor, " n"]) -> Float[Tensor, "n V"]:
        """Append one token to each sequence; returns the logits of what follows, float32 or wider."""
        self.mask = nn.functional.pad(self.mask, (0, 1), value=1)
        logits = self.model(
            input_ids=tokens[:, None],
            attention_mask=self.mask,
            position_ids=self.lengths[:, None],
            past_key_values=self.cache,
            use_cache=True,
        ).logits[:, -1]
        self.lengths = self.lengths + 1
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def select(self, rows: Int[Tensor, " m"]) -> None:
        """Keep these rows, in this order; a row may be named several times."""
        self.cache.batch_select_indices(rows)
        self.mask, self.lengths = self.mask[rows], self.lengths[rows]
