"""Values of a policy's tokens: exact, where a task's worlds are known, else by sampling.

The value of a prefix is the reward that the policy expects from there on; the credit of a token is
the value after it minus the value before it. Sampling estimates both, with noise. In a task whose
completions are few or regular enough, they can be computed from the policy's own probabilities:

    V(prefix) = sum_w p(w | prefix) Q(prefix, w),        Q(prefix, w) = V(prefix followed by w)

- a `Tree`, whose completions can all be walked through: `workbook.probes.tree_values`, exactly;
- a `Chain`, as a Markov chain over slot and running value: `workbook.probes.chain_values`, to a
  close approximation that `value_error` measures.

`expected_reward` gives the value of prompts, `exact_values` that of every token of some rollouts
and of every word in its place, `exact_pool` the same as a table. `token_values` samples values for
any task, by continuing each prefix K times.

A completion may be as long as its world lets it. Rollouts truncated before their world's maximum
length are refused.

Letters: P prompts, B rollouts, T tokens, W admitted words, V vocabulary, N rows of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.messages import InvalidValue
from workbook.policies.models import reading
from workbook.probes.chain_values import chain_rewards, chain_values
from workbook.probes.tree_values import tree_rewards, tree_values
from workbook.rollouts.credit_batches import credit_batch
from workbook.rollouts.likelihood import FIELDS, context_logits
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.rollouts.scoring import in_batches, rows_at_once, unpadded
from workbook.tasks.chain import Chain
from workbook.tasks.task import Task
from workbook.tasks.tree import Tree


@dataclass(frozen=True)
class TokenValues:
    """Values around every completion token of B rollouts, in the reward's unit.

    All are 0 outside the mask and off the grammar. before is the sum of p q over all words, with
    the policy's own p in that context.
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
        of_rollouts = [field.name for field in fields(self) if field.name != "classes"]
        return replace(self, **{name: getattr(self, name)[rows] for name in of_rollouts})

    def dense(self, vocabulary: int) -> Float[Tensor, "B T V"]:
        """Value after every word of the vocabulary."""
        words = self.word_ids
        if self.classes is not None:
            words = self.classes[words.clamp(min=0)]
        # one more column takes what is no word
        columns = torch.where(self.word_ids < 0, vocabulary, words)
        values = self.elsewhere.unsqueeze(2).repeat(1, 1, vocabulary + 1)
        values = values.scatter(2, columns, self.q)[..., :vocabulary]
        return values if self.classes is None else values[..., self.classes]


@in_batches
def expected_reward(
    policy, task: Task, prompts: Sequence[str], differentiable: bool = False
) -> Float[Tensor, " P"]:
    """Expected reward of each prompt under the policy as it is now, without sampling.

    At temperature 1.  differentiable: keep the graph, so that the gradient of the mean is the
    policy gradient of these prompts. Raises ValueError for a task that does not know its values, a
    prompt that is none of the task's, and a tokenizer in which a word of the task is not one token.
    """
    _require_known_values(task)
    rewards_of = tree_rewards if isinstance(task, Tree) else chain_rewards
    with torch.enable_grad() if differentiable else torch.no_grad():
        return rewards_of(reading(policy), task, prompts)


@in_batches
def exact_values(policy, task: Task, rollouts: Rollouts) -> TokenValues:
    """Values before and after every token, and after every word that could have stood there.

    What a rollout has earned on its way counts. Raises ValueError as `expected_reward` does, and
    for rollouts without prompts.
    """
    _require_known_values(task)
    if rollouts.prompts is None:
        raise InvalidValue(
            "rollouts.prompts", None, "kept, for exact values, as sample_rollouts does"
        )
    policy = reading(policy)
    with torch.no_grad():
        if isinstance(task, Tree):
            return TokenValues(**tree_values(policy, task, rollouts))
        inputs = (getattr(rollouts, name) for name in FIELDS)
        probs = context_logits(policy.model, *inputs).softmax(-1)  # (B, T, V)
        vocabulary = probs.shape[-1]
        known = chain_values(policy, task, rollouts, vocabulary)

    # the chain knows q of every word, from which before and after are computed below: until then
    # another tensor of their shape is a placeholder for both
    placeholder = known["elsewhere"]  # (B, T)
    values = TokenValues(**known, before=placeholder, after=placeholder)
    q = values.dense(vocabulary)  # (B, T, V)
    before = (probs * q).sum(2)
    after = q.gather(2, rollouts.completion_ids.to(q.device).unsqueeze(2)).squeeze(2)
    return replace(values, before=before * values.inside, after=after * values.inside)


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
    """Error of `expected_reward` against the mean reward of sampled completions.

    All in the reward's unit.  bias: mean over the prompts of value minus mean reward.  square: mean
    square over the prompts of that difference, sampling noise taken out, so that it can be below 0;
    rms: its root, or 0.  noise: what sampling leaves of the bias, one standard error.

    prompts: drawn with `seed`.  continuations: completions of each.  Raises ValueError as
    `expected_reward` does.
    """
    sampled = sample_rollouts(policy, task, prompts, continuations, seed, task.longest)
    rewards = sampled.rewards.view(prompts, continuations).double()
    exact = expected_reward(policy, task, sampled.prompts[::continuations]).to(rewards)
    gap = exact - rewards.mean(1)  # (P,)
    noise = rewards.var(1) / continuations  # (P,) variance of a mean
    square = float((gap.square() - noise).mean())
    return {
        "bias": float(gap.mean()),
        "square": square,
        "rms": max(0.0, square) ** 0.5,
        "noise": float(noise.sum().sqrt() / prompts),
    }


def _require_known_values(task) -> None:
    if not isinstance(task, Chain | Tree):
        raise InvalidValue(
            "task", type(task).__name__, "a chain, a walk or any Tree, whose exact values are known"
        )


# rollouts, and rows of their token table with value, value_before and credit
ValuedTokens = tuple[Rollouts, pd.DataFrame]


@in_batches
def exact_pool(policy, task, rollouts: Rollouts) -> ValuedTokens:
    """Rollouts and their token table with columns value, value_before and credit, all exact.

    In the reward's unit; credit is value minus value_before. Tokens after a word that the grammar
    does not admit are left out: their value is 0, whatever they are.
    """
    values = exact_values(policy, task, rollouts)
    table = rollouts.token_table()
    place = torch.tensor(table[["rollout", "position"]].to_numpy(copy=True)).unbind(1)
    after = values.after.cpu()[place].double().numpy()  # (N,)
    before = values.before.cpu()[place].double().numpy()
    inside = values.inside.cpu()[place].numpy()
    table = table.assign(value=after, value_before=before, credit=after - before)
    return rollouts, table[inside].reset_index(drop=True)


# -- values of any task, by continuing


@in_batches
def token_values(
    policy,
    task,
    rollouts: Rollouts,
    continuations: int = 8,
    tokens: int | Sequence | pd.Series | None = 8,
    seed: int = 0,
    max_new_tokens: int | None = None,
    temperature: float = 1.0,
    credit: bool = True,
) -> pd.DataFrame:
    """Rows of the token table with values sampled by continuing each prefix K times.

        value = mean of K rewards        value_se = their standard deviation / sqrt(K)
        credit_mc = value - value_before        credit_se = its standard error

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
    table = _chosen_rows(rollouts.token_table(), tokens, seed)

    # the prefixes whose values are asked for: a rollout, and how many of its tokens; before a token
    # one fewer than after it
    after = list(zip(table["rollout"], table["position"] + 1, strict=True))
    before = list(zip(table["rollout"], table["position"], strict=True))
    places = after + before if credit else after
    prompts = unpadded(rollouts.prompt_ids, rollouts.prompt_mask)
    completions = unpadded(rollouts.completion_ids, rollouts.completion_mask)
    prompt_keys = [tuple(prompt) for prompt in prompts]
    keys = [(prompt_keys[row], tuple(completions[row][:length])) for row, length in places]
    # equal prefixes are continued once; going backwards leaves the first place that has one
    first_places = {}
    for key, place in zip(reversed(keys), reversed(places), strict=True):
        first_places[key] = place

    # K continuations of each
    repeated = [place for place in first_places.values() for _ in range(continuations)]
    rows = [row for row, _ in repeated]
    prefixes = [completions[row][:length] for row, length in repeated]
    at_once = rows_at_once(policy.model, rollouts.prompt_ids.shape[1] + limit, kind="sampling")
    batch = credit_batch(policy, rollouts, task, seed, 0, limit, temperature, at_once)
    rewards = batch.continue_from(rows, prefixes).double().cpu().view(-1, continuations)

    # mean and standard error of each place, (places, 2)
    errors = rewards.std(1) / continuations**0.5
    estimates = zip(rewards.mean(1).tolist(), errors.tolist(), strict=True)
    by_key = dict(zip(first_places, estimates, strict=True))
    of_places = np.array([by_key[key] for key in keys]).reshape(-1, 2)
    value, value_se = of_places[: len(table)].T
    table["value"] = value
    table["value_se"] = value_se
    if credit:
        value_before, before_se = of_places[len(table) :].T
        table["value_before"] = value_before
        table["credit_mc"] = value - value_before
        table["credit_se"] = np.hypot(value_se, before_se)
    return table


def _chosen_rows(table: pd.DataFrame, tokens, seed: int) -> pd.DataFrame:
    """The rows of a token table that `token_values` measures; tokens and seed as there."""
    if tokens is None:
        return table
    if isinstance(tokens, int):
        shuffled = table.sample(frac=1, random_state=seed)
        return shuffled.groupby("rollout").head(tokens).sort_index()
    labels = np.asarray(tokens)
    labels = table.index[labels] if labels.dtype == bool else np.sort(labels)
    known = np.isin(labels, table.index)
    if not known.all():
        raise InvalidValue("tokens", int(labels[~known][0]), "rows of completion tokens")
    return table.loc[labels].copy()
