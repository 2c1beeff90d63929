"""Exact values of a world whose completions can all be walked through (`workbook.tasks.tree`), under the policy of now.

    V(prefix) = sum_w p(w | prefix) V(prefix, w)        over the admitted words w; an end's is its reward

p is the policy's own, by token ids, at temperature 1. The prefixes of a prompt stand behind it in one row, as a tree:
each word sees the prompt and the words before it, so that a shared prefix is read once. Nothing is approximated, with
one limit: words that are not admitted have value 0, padding, too, which decoding leaves out and no verifier sees.
A completion may be as long as its world lets it: of rollouts that were cut off before that, values are refused.

Letters: P prompts, N prefixes of all of them, M those that may be continued, B rollouts, T tokens, W admitted words.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import additive, packable, pad_rows, rows_at_once, tokenize_prompts
from workbook.tasks.tree import END, Tree


def tree_rewards(policy, task: Tree, prompts: Sequence[str]) -> Float[Tensor, " P"]:
    """Expected reward of each prompt: `workbook.probes.values.expected_reward` of a tree."""
    trees = Trees(policy, task, prompts)
    return trees.values()[trees.roots]


def tree_values(policy, task: Tree, rollouts: Rollouts) -> dict[str, Tensor]:
    """The fields of a `workbook.probes.values.TokenValues` of the rollouts.

    Raises ValueError as `Trees` does, and where a rollout was cut off although its completion could go on.
    """
    prompts = list(dict.fromkeys(rollouts.prompts))
    trees = Trees(policy, task, prompts)
    children: dict[int, dict[int, int]] = {}  # of each prefix, by the token that follows
    for at in np.flatnonzero(trees.depths).tolist():
        children.setdefault(int(trees.parents[at]), {})[int(trees.tokens[at])] = at
    (B, T), W = rollouts.completion_ids.shape, max(map(len, children.values()))
    before, after, onward = np.full((B, T), -1), np.full((B, T), -1), np.full((B, T, W), -1)  # prefixes, -1 for none
    roots = [int(trees.roots[prompts.index(prompt)]) for prompt in rollouts.prompts]
    lengths = rollouts.completion_mask.sum(1).tolist()
    for b, (at, tokens, length) in enumerate(zip(roots, rollouts.completion_ids.tolist(), lengths, strict=True)):
        for t in range(length):
            if at not in children:
                break
            before[b, t], onward[b, t, : len(children[at])] = at, [*children[at].values()]
            at = after[b, t] = children[at].get(tokens[t], -1)
        if at in children:
            raise ValueError(
                f"a rollout was cut off after {length} tokens, but exact values need whole completions: take a "
                f"max_new_tokens of {trees.depths.max()} or more."
            )
    values = torch.nn.functional.pad(trees.values().detach(), (0, 1))  # the last one of -1: no prefix has no value
    fields = {"q": values[onward], "before": values[before], "after": values[after], "prompt": values[roots]}
    ids = np.append(trees.tokens, -1)[onward]
    places = {"word_ids": torch.as_tensor(ids), "inside": torch.as_tensor(before >= 0)}
    return fields | {name: part.to(values.device) for name, part in places.items()} | {"elsewhere": 0 * fields["after"]}


class Trees:
    """The prefixes of some prompts, in one numbering, and their values under a policy.

    Raises ValueError for a prompt that is none of the task's, a word that is not one token, and a model whose attention
    takes no mask.
    """

    def __init__(self, policy, task: Tree, prompts: Sequence[str]):
        if not packable(policy.model):
            kind = policy.model.config.model_type
            raise ValueError(
                f"exact values of {task.name} read a tree, which {kind} can't; take a Llama or Qwen model."
            )
        self.policy, self.prompts = policy, list(prompts)
        self.shapes = [_shape(task, prompt) for prompt in self.prompts]
        counts = np.array([len(shape.words) for shape in self.shapes])
        self.roots = np.cumsum(counts) - counts  # (P,)
        columns = zip(*self.shapes, strict=True)
        words, parents, self.depths, self.rewards, self.inner = map(np.concatenate, list(columns)[:5])
        self.parents = parents + np.repeat(self.roots, counts)
        ids = {word: _token(policy.tokenizer, word) for word in set(words.tolist())}
        self.tokens = np.array([ids[word] for word in words.tolist()])  # (N,)

    def values(self) -> Float[Tensor, " N"]:
        """Expected reward of every prefix. Gradients flow if enabled."""
        logits = self._logits()  # (M, V)
        probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        row = np.cumsum(self.inner) - 1  # of each prefix that may be continued
        values = torch.as_tensor(self.rewards).to(probs)
        for depth in range(self.depths.max(), 0, -1):
            at = np.flatnonzero(self.depths == depth)
            onto = self.parents[at]
            shares = probs[row[onto], self.tokens[at]] * values[at]
            values = values.index_add(0, torch.as_tensor(onto, device=values.device), shares)
        return values

    def _logits(self) -> Float[Tensor, "M V"]:
        """Logits of what follows each prefix that may be continued, in order."""
        model, tokenizer, parts = self.policy.model, self.policy.tokenizer, []
        prompts = tokenize_prompts(tokenizer, self.prompts)
        length = max(map(len, prompts)) + max(int(shape.inner.sum()) for shape in self.shapes)
        for part in torch.arange(len(prompts)).split(rows_at_once(model, length)):
            shapes = [self.shapes[i] for i in part]
            inner = [np.flatnonzero(shape.inner)[1:] for shape in shapes]  # without the empty one
            words = [self.tokens[self.roots[i] + at].tolist() for i, at in zip(part, inner, strict=True)]
            depths = [shape.depths[at].tolist() for shape, at in zip(shapes, inner, strict=True)]
            ids, mask = pad_rows([prompts[i] for i in part], tokenizer.pad_token_id, "left", model.device)
            (behind, alive), (depths, _) = (pad_rows(rows, 0, "right", model.device) for rows in (words, depths))
            L, n = ids.shape[1], behind.shape[1]
            sees = torch.ones(len(part), L + n, L + n, dtype=torch.bool).tril() & (torch.arange(L + n) < L)
            for row, (shape, at) in enumerate(zip(shapes, inner, strict=True)):
                sees[row, L : L + len(at), L : L + len(at)] = torch.from_numpy(shape.sees[np.ix_(at, at)])
            keys = torch.cat([mask, alive], dim=1).bool()[:, None]
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            logits = model(
                input_ids=torch.cat([ids, behind], dim=1),
                attention_mask=additive(sees.to(model.device) & keys, next(model.parameters()).dtype),
                position_ids=torch.cat([positions, positions[:, -1:] + depths], dim=1),
                logits_to_keep=n + 1,
                use_cache=False,
            ).logits
            parts.append(logits[torch.nn.functional.pad(alive, (1, 0), value=1).bool()])
        return torch.cat(parts)


class Shape(NamedTuple):
    """The prefixes of a prompt, each after the one that it continues; the first is empty."""

    words: np.ndarray  # (n,) the last one of each
    parents: Int[np.ndarray, " n"]
    depths: Int[np.ndarray, " n"]
    rewards: Float[np.ndarray, " n"]  # of ends; 0 elsewhere
    inner: Bool[np.ndarray, " n"]  # whether it may be continued
    sees: Bool[np.ndarray, "n n"]  # whether it begins with the other one


@lru_cache(maxsize=1024)
def _shape(task: Tree, prompt: str) -> Shape:
    prefixes = task.prefixes(prompt)
    index = {prefix: i for i, prefix in enumerate(prefixes)}
    parents = np.array([index[prefix[:-1]] for prefix in prefixes])
    inner, sees = np.isin(np.arange(len(prefixes)), parents), np.eye(len(prefixes), dtype=bool)
    for i, parent in enumerate(parents):
        sees[i] |= sees[parent]
    values = np.array([task.value(prompt, prefix) for prefix in prefixes])  # of an end its reward
    words, depths = (
        np.array([[*prefix, END][len(prefix) - 1] for prefix in prefixes]),
        np.array(list(map(len, prefixes))),
    )
    return Shape(words, parents, depths, np.where(inner, 0.0, values), inner, sees)


def _token(tokenizer, word: str) -> int:
    """The token id of a word, of the end of sequence the tokenizer's own."""
    if word == END:
        return tokenizer.eos_token_id
    ids = tokenizer(word, add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise ValueError(f"word {word!r} is {len(ids)} tokens of this tokenizer; exact values need one known token.")
    return ids[0]
