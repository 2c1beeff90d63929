"""Exact values of a task whose completions can all be walked through (`workbook.tasks.tree`).

    V(prefix) = sum_w p(w | prefix) V(prefix, w)        over the admitted words w

The value of an end is its reward. p is the policy's own, by token ids, at temperature 1. Each
prefix needs the policy's next-word probabilities once, and the prefixes of a prompt are a tree: so
they stand behind the prompt in one row, word by word, and each word sees the prompt and the words
before it in the tree. A prefix that many completions share is read once, and values add up from the
ends to the root.

Nothing is approximated, with one limit: words that are not admitted have value 0, padding, too,
which decoding leaves out and no verifier sees.

Letters: P prompts, N prefixes of all of them, M those that may be continued, n prefixes of one
prompt, B rollouts, T tokens, W admitted words, V vocabulary.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.messages import InvalidValue
from workbook.probes.chain_values import token_of_word
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import additive, packable, pad_rows, rows_at_once, tokenize_prompts
from workbook.tasks.tree import END, Tree

NO_PREFIX = -1


def tree_rewards(policy, task: Tree, prompts: Sequence[str]) -> Float[Tensor, " P"]:
    """Expected reward of each prompt: `workbook.probes.values.expected_reward` of a tree."""
    trees = Trees(policy, task, prompts)
    return trees.values()[trees.roots]


def tree_values(policy, task: Tree, rollouts: Rollouts) -> dict[str, Tensor]:
    """The fields of a `workbook.probes.values.TokenValues` of the rollouts.

    Raises ValueError as `Trees` does, and where a rollout was cut off although its completion could
    go on.
    """
    prompts = list(dict.fromkeys(rollouts.prompts))
    trees = Trees(policy, task, prompts)
    children = trees.children()
    roots = [int(trees.roots[prompts.index(prompt)]) for prompt in rollouts.prompts]
    lengths = rollouts.completion_mask.sum(1).tolist()

    # prefixes before each token, after it, and after each word that could have stood there
    B, T = rollouts.completion_ids.shape
    W = max(map(len, children.values()))
    before = np.full((B, T), NO_PREFIX)
    after = np.full((B, T), NO_PREFIX)
    after_each = np.full((B, T, W), NO_PREFIX)
    for b, tokens in enumerate(rollouts.completion_ids.tolist()):
        prefix = roots[b]
        for t in range(lengths[b]):
            # at an end, or off the grammar
            if prefix not in children:
                break
            followers = children[prefix]
            before[b, t] = prefix
            after_each[b, t, : len(followers)] = list(followers.values())
            prefix = followers.get(tokens[t], NO_PREFIX)
            after[b, t] = prefix
        if prefix in children:
            longest = trees.depths.max()
            raise InvalidValue(
                "max_new_tokens",
                lengths[b],
                f"{longest} or more",
                f"a rollout was cut off after {lengths[b]} tokens, but exact values need whole"
                f" completions: take a max_new_tokens of {longest} or more.",
            )

    # the last one is that of NO_PREFIX
    values = torch.nn.functional.pad(trees.values().detach(), (0, 1))
    word_ids = np.append(trees.tokens, -1)[after_each]
    return {
        "q": values[after_each],
        "before": values[before],
        "after": values[after],
        "prompt": values[roots],
        "word_ids": torch.as_tensor(word_ids).to(values.device),
        "inside": torch.as_tensor(before != NO_PREFIX).to(values.device),
        "elsewhere": torch.zeros_like(values[after]),
    }


class Trees:
    """Prefixes of some prompts, in one numbering, and their values under a policy.

    roots: (P,), the empty prefix of each prompt.  parents, depths, rewards, inner, tokens: (N,), of
    each prefix the one that it continues, its number of words, its reward if it is an end, whether
    it may be continued, and the token id of its last word.

    Raises ValueError for a prompt that is none of the task's, a word that is not one token, and a
    model whose attention takes no mask.
    """

    def __init__(self, policy, task: Tree, prompts: Sequence[str]):
        if not packable(policy.model):
            kind = policy.model.config.model_type
            raise ValueError(
                f"exact values of {task.name} read a tree, which {kind} can't; take a Llama or Qwen"
                " model."
            )
        self.policy = policy
        self.prompts = list(prompts)
        self.shapes = [_shape(task, prompt) for prompt in self.prompts]
        counts = np.array([len(shape.words) for shape in self.shapes])
        self.roots = np.cumsum(counts) - counts
        # a prompt's own numbers move behind those of the prompts before it
        parents = np.concatenate([shape.parents for shape in self.shapes])
        self.parents = parents + np.repeat(self.roots, counts)
        self.depths = np.concatenate([shape.depths for shape in self.shapes])
        self.rewards = np.concatenate([shape.rewards for shape in self.shapes])
        self.inner = np.concatenate([shape.inner for shape in self.shapes])
        words = np.concatenate([shape.words for shape in self.shapes]).tolist()
        ids = {END: policy.tokenizer.eos_token_id}
        for word in sorted(set(words) - {END}):
            ids[word] = token_of_word(policy.tokenizer, word)
        self.tokens = np.array([ids[word] for word in words])

    def children(self) -> dict[int, dict[int, int]]:
        """The prefixes that continue each prefix, by the token that follows it."""
        children: dict[int, dict[int, int]] = {}
        for prefix in np.flatnonzero(self.depths).tolist():
            followers = children.setdefault(int(self.parents[prefix]), {})
            followers[int(self.tokens[prefix])] = prefix
        return children

    def values(self) -> Float[Tensor, " N"]:
        """Expected reward of every prefix. Gradients flow if enabled."""
        logits = self._logits()  # (M, V)
        # at least 32 bits
        probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)
        row = np.cumsum(self.inner) - 1  # of each prefix that may be continued
        values = torch.as_tensor(self.rewards).to(probs)
        # from the deepest prefixes to the roots, each adds p V to the one that it continues
        for depth in range(self.depths.max(), 0, -1):
            prefixes = np.flatnonzero(self.depths == depth)
            parents = self.parents[prefixes]
            shares = probs[row[parents], self.tokens[prefixes]] * values[prefixes]
            values = values.index_add(0, torch.as_tensor(parents, device=values.device), shares)
        return values

    def _logits(self) -> Float[Tensor, "M V"]:
        """Logits of what follows each prefix that may be continued, in order."""
        prompts = tokenize_prompts(self.policy.tokenizer, self.prompts)
        most_inner = max(int(shape.inner.sum()) for shape in self.shapes)
        length = max(map(len, prompts)) + most_inner
        parts = torch.arange(len(prompts)).split(rows_at_once(self.policy.model, length))
        return torch.cat([self._logits_of(part.tolist(), prompts) for part in parts])

    def _logits_of(self, part: list[int], prompts: list[list[int]]) -> Float[Tensor, "m V"]:
        """Logits behind the prefixes of some prompts, by one pass over a row for each prompt."""
        model = self.policy.model
        padding = self.policy.tokenizer.pad_token_id
        shapes = [self.shapes[i] for i in part]
        # inner prefixes but the empty one, whose word is the prompt's last
        inner = [np.flatnonzero(shape.inner)[1:] for shape in shapes]
        words = [
            self.tokens[self.roots[i] + at].tolist() for i, at in zip(part, inner, strict=True)
        ]
        depths = [shape.depths[at].tolist() for shape, at in zip(shapes, inner, strict=True)]
        # (P, L) prompts and (P, n) prefixes of this part
        ids, mask = pad_rows([prompts[i] for i in part], padding, "left", model.device)
        behind, alive = pad_rows(words, 0, "right", model.device)
        depths, _ = pad_rows(depths, 0, "right", model.device)
        L = ids.shape[1]
        n = behind.shape[1]

        # all see the prompt up to themselves; a prefix's word also sees the words it begins with
        is_prompt = torch.arange(L + n) < L
        sees = torch.ones(len(part), L + n, L + n, dtype=torch.bool).tril() & is_prompt
        for row, (shape, at) in enumerate(zip(shapes, inner, strict=True)):
            end = L + len(at)
            sees[row, L:end, L:end] = torch.from_numpy(shape.sees[np.ix_(at, at)])
        keys = torch.cat([mask, alive], dim=1).bool()[:, None]

        # a prefix stands where its last word would in a completion
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        logits = model(
            input_ids=torch.cat([ids, behind], dim=1),
            attention_mask=additive(sees.to(model.device) & keys, next(model.parameters()).dtype),
            position_ids=torch.cat([positions, positions[:, -1:] + depths], dim=1),
            logits_to_keep=n + 1,
            use_cache=False,
        ).logits  # (P, 1 + n, V)
        # the prompt's last position is the empty prefix
        return logits[torch.nn.functional.pad(alive, (1, 0), value=1).bool()]


class _Shape(NamedTuple):
    """Prefixes of a prompt, each after the one that it continues; the first is empty."""

    words: np.ndarray  # (n,) the last one of each
    parents: Int[np.ndarray, " n"]
    depths: Int[np.ndarray, " n"]
    rewards: Float[np.ndarray, " n"]  # of ends; 0 elsewhere
    inner: Bool[np.ndarray, " n"]  # whether it may be continued
    sees: Bool[np.ndarray, "n n"]  # whether it begins with the other one


@lru_cache(maxsize=1024)
def _shape(task: Tree, prompt: str) -> _Shape:
    """The prefixes of a prompt, which no policy changes."""
    prefixes = task.prefixes(prompt)
    index = {prefix: i for i, prefix in enumerate(prefixes)}
    # the empty prefix is its own parent
    parents = np.array([index[prefix[:-1]] for prefix in prefixes])
    inner = np.isin(np.arange(len(prefixes)), parents)
    sees = np.eye(len(prefixes), dtype=bool)
    for i, parent in enumerate(parents):
        sees[i] |= sees[parent]
    # the demonstrator's value of an end is its reward
    values = np.array([task.value(prompt, prefix) for prefix in prefixes])
    return _Shape(
        # END stands for the word that the empty prefix lacks
        words=np.array([prefix[-1] if prefix else END for prefix in prefixes]),
        parents=parents,
        depths=np.array([len(prefix) for prefix in prefixes]),
        rewards=np.where(inner, 0.0, values),
        inner=inner,
        sees=sees,
    )
