"""Exact values of a task under the policy as it is now: expected rewards without sampling.

`chain_values` has those of chains, to a close approximation that `value_error` measures. Those of a
world whose completions can all be walked through (`workbook.tasks.tree`) are here:

    V(prefix) = sum_w p(w | prefix) V(prefix, w)        over the admitted words w; an end's is its reward

p is the policy's own, by token ids, at temperature 1. The prefixes of a prompt stand behind it in
one row, as a tree: each word sees the prompt and the words before it, so that a shared prefix is
read once. Nothing is approximated, with one limit: words that are not admitted have value 0,
padding, too, which decoding leaves out and no verifier sees. A completion may be as long as its
world lets it: of rollouts that were cut off before that, values are refused. `token_values` samples
them for any task, by continuing each prefix K times.

Letters: P prompts, N prefixes of all of them, M those that may be continued, B rollouts, T tokens,
W admitted words, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.messages import InvalidValue
from workbook.policies.models import reading
from workbook.probes.chain_values import chain_rewards, chain_values, context_logits
from workbook.probes.step import MOVED
from workbook.rollouts.credit import credit_batch
from workbook.rollouts.likelihood import FIELDS, logps
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.rollouts.scoring import (
    additive,
    in_batches,
    packable,
    pad_rows,
    rows_at_once,
    tokenize_prompts,
    unpadded,
)
from workbook.tasks.chain import Chain
from workbook.tasks.task import Task
from workbook.tasks.tree import END, Tree


@dataclass(frozen=True)
class TokenValues:
    """Values around every completion token of B rollouts, in the reward's unit; 0 outside the mask
    and off the grammar.

    before is the sum of p q over all words, with the policy's own p in that context.
    """

    q: Float[Tensor, "B T W"]  # after each admitted word
    word_ids: Int[Tensor, "B T W"]  # its token id, -1 for none
    elsewhere: Float[Tensor, "B T"]  # after every other word
    before: Float[Tensor, "B T"]
    after: Float[Tensor, "B T"]  # after the token that was sampled
    inside: Bool[Tensor, "B T"]  # whether all tokens before it kept to the grammar
    prompt: Float[Tensor, " B"]
    # the plain word whose value a word has; None: all words are their own
    classes: Int[Tensor, " V"] | None = None

    @property
    def credit(self) -> Float[Tensor, "B T"]:
        """Known credit of every token, Q - V."""
        return self.after - self.before

    def select(self, rows: Int[Tensor, " n"]) -> TokenValues:
        """The values of some of the rollouts."""
        return replace(
            self,
            **{f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "classes"},
        )

    def dense(self, vocabulary: int) -> Float[Tensor, "B T V"]:
        """Value after every word of the vocabulary."""
        values = self.elsewhere.unsqueeze(2).repeat(1, 1, vocabulary + 1)
        words = self.word_ids if self.classes is None else self.classes[self.word_ids.clamp(min=0)]
        # the last column takes what is no word
        places = torch.where(self.word_ids < 0, vocabulary, words)
        values = values.scatter(2, places, self.q)[..., :vocabulary]
        return values if self.classes is None else values[..., self.classes]


@in_batches
def expected_reward(
    policy, task: Task, prompts: Sequence[str], differentiable: bool = False
) -> Float[Tensor, " P"]:
    """Expected reward of each prompt under the policy as it is now, at temperature 1, without
    sampling.

    differentiable: keep the graph, so that the gradient of the mean is the policy gradient of these
    prompts. Raises ValueError for a task that does not know its values, a prompt that is none of
    the task's, and a tokenizer in which a word of the task is not one token.
    """
    _check(task)
    with torch.enable_grad() if differentiable else torch.no_grad():
        known = tree_rewards if isinstance(task, Tree) else chain_rewards
        return known(reading(policy), task, prompts)


@in_batches
def exact_values(policy, task: Task, rollouts: Rollouts) -> TokenValues:
    """Values before and after every token of the rollouts, and after every word that could have
    stood there.

    What a rollout has earned on its way counts. Raises ValueError as `expected_reward` does, and
    for rollouts without prompts.
    """
    _check(task)
    if rollouts.prompts is None:
        raise InvalidValue(
            "rollouts.prompts", None, "kept, for exact values, as sample_rollouts does"
        )
    policy = reading(policy)
    with torch.no_grad():
        if isinstance(task, Tree):
            return TokenValues(**tree_values(policy, task, rollouts))
        # (B, T, V)
        probs = context_logits(policy.model, *(getattr(rollouts, name) for name in FIELDS)).softmax(
            -1
        )
        known = chain_values(policy, task, rollouts, probs.shape[-1])
    # before and after: below
    values = TokenValues(**known, before=known["elsewhere"], after=known["elsewhere"])
    dense = values.dense(probs.shape[-1])
    after = dense.gather(2, rollouts.completion_ids.to(dense.device).unsqueeze(2)).squeeze(2)
    return replace(
        values, before=(probs * dense).sum(2) * values.inside, after=after * values.inside
    )


@in_batches
def exact_credit(policy, task: Task, rollouts: Rollouts) -> Float[Tensor, "B T"]:
    """Credit of every token of the rollouts under the policy as it is now: `exact_values`' own.

    A training loop asks for it where a rule is told of known credit.
    """
    return exact_values(policy, task, rollouts).credit


@in_batches
def value_error(
    policy, task: Task, prompts: int = 64, continuations: int = 320, seed: int = 0
) -> dict[str, float]:
    """What `expected_reward` is off by, against the mean reward of sampled completions, in the
    reward's unit.

    prompts: drawn with `seed`.  continuations: completions of each.  bias: mean over the prompts of
    value minus mean reward.  square: mean square over the prompts of that difference, sampling
    noise taken out, so that it can be below 0; rms: its root, or 0.  noise: what sampling leaves of
    the bias, one standard error.  Raises ValueError as `expected_reward` does.
    """
    sampled = sample_rollouts(policy, task, prompts, continuations, seed, task.longest)
    rewards = sampled.rewards.view(prompts, continuations).double()
    gap = expected_reward(policy, task, sampled.prompts[::continuations]).to(
        rewards
    ) - rewards.mean(1)
    noise = rewards.var(1) / continuations  # (P,) variance of a mean
    square, error = float((gap.square() - noise).mean()), float(noise.sum().sqrt() / prompts)
    return {
        "bias": float(gap.mean()),
        "square": square,
        "rms": max(0.0, square) ** 0.5,
        "noise": error,
    }


def _check(task) -> None:
    if not isinstance(task, Chain | Tree):
        raise InvalidValue(
            "task", type(task).__name__, "a chain, a walk or any Tree, whose exact values are known"
        )


# -- gaps in exact value between the tokens that a step boosts and those that it suppresses (H7, H8,
# H9) --------------

Pool = tuple[Rollouts, pd.DataFrame]  # rollouts, and rows of their token table with values


@in_batches
def exact_pool(policy, task, rollouts: Rollouts) -> Pool:
    """Rollouts and their token table with value, value_before (exact, in reward) and credit, the
    one less the other.

    Tokens after a word that the grammar does not admit are left out: their value is 0, whatever
    they are.
    """
    values, table = exact_values(policy, task, rollouts), rollouts.token_table()
    place = torch.tensor(table[["rollout", "position"]].to_numpy(copy=True)).unbind(1)
    after, before = (part.cpu()[place].double().numpy() for part in (values.after, values.before))
    table = table.assign(value=after, value_before=before, credit=after - before)
    return rollouts, table[values.inside.cpu()[place].numpy()].reset_index(drop=True)


def pool_change(policy, pool: Pool, before: torch.Tensor) -> pd.DataFrame:
    """The pool's table with dlogp: what its tokens' log-probabilities are now, less those in
    `before` (B, T).
    """
    rollouts, table = pool
    change = (logps(policy, rollouts) - before).double().cpu().numpy()
    return table.assign(dlogp=change[table["rollout"].to_numpy(), table["position"].to_numpy()])


def cell_gap(
    table: pd.DataFrame, cells: tuple[str, ...], column: str = "value", eps: float | None = None
) -> float:
    """Gap between boosted and suppressed tokens that are alike in the columns `cells`, in
    `column`'s unit.

        gap = sum_c w_c (mean of the boosted - mean of the suppressed) / sum_c w_c,   w_c = n+ n- / (n+ + n-)

    over the cells that hold both: the slope of a regression on "boosted" with a constant for each
    cell. NaN if none holds both.  eps: |dlogp| in nats that a token must exceed; by default `MOVED`
    times the table's root mean square.

    >>> rows = [(0, 1.0, 1.0), (0, -1.0, 0.25), (1, 1.0, 0.0), (1, 2.0, 0.5)]
    >>> cell_gap(pd.DataFrame(rows, columns=["position", "dlogp", "value"]), ("position",))
    0.75
    """
    eps = MOVED * float((table["dlogp"] ** 2).mean() ** 0.5) if eps is None else eps
    moved = table[table["dlogp"].abs() > eps]
    boosted, keys = moved["dlogp"] > 0, [moved[name] for name in cells]
    up, down = (moved[column].where(side, 0.0).groupby(keys).sum() for side in (boosted, ~boosted))
    n, m = (side.groupby(keys).sum() for side in (boosted, ~boosted))
    weight = n * m / (n + m)
    if not weight.any():
        return float("nan")
    gaps = up / n.clip(lower=1) - down / m.clip(lower=1)  # (cells,)
    return float((gaps * weight).sum() / weight.sum())


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
    children: dict[int, dict[int, int]] = {}  # of each prefix, by the token that follows
    for at in np.flatnonzero(trees.depths).tolist():
        children.setdefault(int(trees.parents[at]), {})[int(trees.tokens[at])] = at
    (B, T), W = rollouts.completion_ids.shape, max(map(len, children.values()))
    # prefixes, -1 for none
    before, after, onward = np.full((B, T), -1), np.full((B, T), -1), np.full((B, T, W), -1)
    roots = [int(trees.roots[prompts.index(prompt)]) for prompt in rollouts.prompts]
    lengths = rollouts.completion_mask.sum(1).tolist()
    for b, (at, tokens, length) in enumerate(
        zip(roots, rollouts.completion_ids.tolist(), lengths, strict=True)
    ):
        for t in range(length):
            if at not in children:
                break
            before[b, t], onward[b, t, : len(children[at])] = at, [*children[at].values()]
            at = after[b, t] = children[at].get(tokens[t], -1)
        if at in children:
            raise InvalidValue(
                "max_new_tokens",
                length,
                f"{trees.depths.max()} or more",
                f"a rollout was cut off after {length} tokens, but exact values need whole"
                f" completions: take a max_new_tokens of {trees.depths.max()} or more.",
            )
    # the last one of -1: no prefix has no value
    values = torch.nn.functional.pad(trees.values().detach(), (0, 1))
    fields = {
        "q": values[onward],
        "before": values[before],
        "after": values[after],
        "prompt": values[roots],
    }
    ids = np.append(trees.tokens, -1)[onward]
    places = {"word_ids": torch.as_tensor(ids), "inside": torch.as_tensor(before >= 0)}
    return (
        fields
        | {name: part.to(values.device) for name, part in places.items()}
        | {"elsewhere": 0 * fields["after"]}
    )


class Trees:
    """The prefixes of some prompts, in one numbering, and their values under a policy.

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
        self.policy, self.prompts = policy, list(prompts)
        self.shapes = [_shape(task, prompt) for prompt in self.prompts]
        counts = np.array([len(shape.words) for shape in self.shapes])
        self.roots = np.cumsum(counts) - counts  # (P,)
        columns = zip(*self.shapes, strict=True)
        words, parents, self.depths, self.rewards, self.inner = map(
            np.concatenate, list(columns)[:5]
        )
        self.parents = parents + np.repeat(self.roots, counts)
        ids = {word: _token(policy.tokenizer, word) for word in sorted(set(words.tolist()))}
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
            words = [
                self.tokens[self.roots[i] + at].tolist() for i, at in zip(part, inner, strict=True)
            ]
            depths = [shape.depths[at].tolist() for shape, at in zip(shapes, inner, strict=True)]
            ids, mask = pad_rows(
                [prompts[i] for i in part], tokenizer.pad_token_id, "left", model.device
            )
            (behind, alive), (depths, _) = (
                pad_rows(rows, 0, "right", model.device) for rows in (words, depths)
            )
            L, n = ids.shape[1], behind.shape[1]
            sees = torch.ones(len(part), L + n, L + n, dtype=torch.bool).tril() & (
                torch.arange(L + n) < L
            )
            for row, (shape, at) in enumerate(zip(shapes, inner, strict=True)):
                sees[row, L : L + len(at), L : L + len(at)] = torch.from_numpy(
                    shape.sees[np.ix_(at, at)]
                )
            keys = torch.cat([mask, alive], dim=1).bool()[:, None]
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            logits = model(
                input_ids=torch.cat([ids, behind], dim=1),
                attention_mask=additive(
                    sees.to(model.device) & keys, next(model.parameters()).dtype
                ),
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
        raise InvalidValue(
            "word", word, f"one known token of this tokenizer, for exact values; it is {len(ids)}"
        )
    return ids[0]


# -- values of any task, by continuing
# -------------------------------------------------------------------------------

PER_ROLLOUT = 8  # tokens drawn from each rollout unless told otherwise


@in_batches
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
    """Rows of the token table with value and value_se, and with value_before, credit_mc and
    credit_se.

        value = mean of K rewards, value_se = their standard deviation / sqrt(K), credit_mc = value
        - value_before

    in the reward's unit; value_se is 0 where all K rewards agree, and where nothing is left to
    sample.

    continuations: K >= 2.  tokens: how many of each rollout to draw at random, or labels of the
    token table's rows, or a boolean for each, or None for all.  max_new_tokens: what the rollouts
    were sampled with; by default the longest one's length.  credit: False leaves out the columns
    for the state before.  Prefixes of one prompt with the same tokens share their continuations.
    The policy and the global random state are left as they were.

    Raises ValueError for settings out of range, and for rollouts without prompts.
    """
    if continuations < 2:
        raise InvalidValue(
            "continuations", continuations, "2 or more: one says nothing of its own error"
        )
    longest = int(rollouts.completion_mask.sum(1).max())
    limit = longest if max_new_tokens is None else max_new_tokens
    if limit < longest:
        raise InvalidValue(
            "max_new_tokens", limit, f"at least the longest rollout's length, {longest}"
        )
    table = rollouts.token_table()
    if isinstance(tokens, int):
        table = table.sample(frac=1, random_state=seed).groupby("rollout").head(tokens).sort_index()
    elif tokens is not None:
        labels = np.asarray(tokens)
        labels = table.index[labels] if labels.dtype == bool else np.sort(labels)
        if not np.isin(labels, table.index).all():
            wrong = labels[~np.isin(labels, table.index)][0]
            raise InvalidValue("tokens", int(wrong), "rows of completion tokens")
        table = table.loc[labels].copy()

    prompts = unpadded(rollouts.prompt_ids, rollouts.prompt_mask)
    completions = unpadded(rollouts.completion_ids, rollouts.completion_mask)
    after, before = (
        list(zip(table["rollout"], table["position"] + more, strict=True)) for more in (1, 0)
    )
    places = after + before if credit else after
    # alike: the same prefix
    twins = [hash((*prompts[row], -1, *completions[row][:length])) for row, length in places]
    firsts = dict(zip(reversed(twins), reversed(places), strict=True))
    asked = [place for place in firsts.values() for _ in range(continuations)]
    at_once = rows_at_once(policy.model, rollouts.prompt_ids.shape[1] + limit, kind="sampling")
    batch = credit_batch(policy, rollouts, task, seed, 0, limit, temperature, at_once)
    rewards = batch.continue_from(
        [row for row, _ in asked], [completions[row][:length] for row, length in asked]
    )
    rewards = rewards.double().cpu().view(-1, continuations)
    values = rewards.mean(1).tolist(), (rewards.std(1) / continuations**0.5).tolist()
    known = dict(zip(firsts, zip(*values, strict=True), strict=True))
    # (1 or 2, N, 2): after, before
    found = np.array([known[twin] for twin in twins]).reshape(-1, len(table), 2)
    table["value"], table["value_se"] = found[0].T
    if credit:
        table["value_before"], table["credit_mc"] = found[1, :, 0], found[0, :, 0] - found[1, :, 0]
        table["credit_se"] = np.hypot(found[0, :, 1], found[1, :, 1])
    return table
