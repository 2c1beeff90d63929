"""Exact values of a task under the policy as it is now: expected rewards without sampling.

`tree_values` has those of walks, `chain_values` those of chains, to a close approximation. `value_error` measures it.

Letters: P prompts, T tokens, W admitted words, B rollouts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from workbook.policies.models import reading
from workbook.probes.chain_values import chain_rewards, chain_values, context_logits
from workbook.probes.step import FIELDS, MOVED, logps
from workbook.probes.tree_values import tree_rewards, tree_values
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.tasks.chain import Chain
from workbook.tasks.task import Task
from workbook.tasks.tree import Tree


@dataclass(frozen=True)
class TokenValues:
    """Values around every completion token of B rollouts, in the reward's unit; 0 outside the mask and off the grammar.

    before is the sum of p q over all words, with the policy's own p in that context.
    """

    q: Float[Tensor, "B T W"]  # after each admitted word
    word_ids: Int[Tensor, "B T W"]  # its token id, -1 for none
    elsewhere: Float[Tensor, "B T"]  # after every other word
    before: Float[Tensor, "B T"]
    after: Float[Tensor, "B T"]  # after the token that was sampled
    inside: Bool[Tensor, "B T"]  # whether all tokens before it kept to the grammar
    prompt: Float[Tensor, " B"]
    classes: Int[Tensor, " V"] | None = None  # the plain word whose value a word has; None: all words are their own

    @property
    def credit(self) -> Float[Tensor, "B T"]:
        """Known credit of every token, Q - V."""
        return self.after - self.before

    def select(self, rows: Int[Tensor, " n"]) -> TokenValues:
        """The values of some of the rollouts."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "classes"})

    def dense(self, vocabulary: int) -> Float[Tensor, "B T V"]:
        """Value after every word of the vocabulary."""
        values = self.elsewhere.unsqueeze(2).repeat(1, 1, vocabulary + 1)
        words = self.word_ids if self.classes is None else self.classes[self.word_ids.clamp(min=0)]
        places = torch.where(self.word_ids < 0, vocabulary, words)  # the last column takes what is no word
        values = values.scatter(2, places, self.q)[..., :vocabulary]
        return values if self.classes is None else values[..., self.classes]


def expected_reward(policy, task: Task, prompts: Sequence[str], differentiable: bool = False) -> Float[Tensor, " P"]:
    """Expected reward of each prompt under the policy as it is now, at temperature 1, without sampling.

    differentiable: keep the graph, so that the gradient of the mean is the policy gradient of these prompts.
    Raises ValueError for a task that does not know its values, a prompt that is none of the task's, and a tokenizer in
    which a word of the task is not one token.
    """
    _check(task)
    with torch.enable_grad() if differentiable else torch.no_grad():
        known = tree_rewards if isinstance(task, Tree) else chain_rewards
        return known(reading(policy), task, prompts)


def exact_values(policy, task: Task, rollouts: Rollouts) -> TokenValues:
    """Values before and after every token of the rollouts, and after every word that could have stood there.

    What a rollout has earned on its way counts. Raises ValueError as `expected_reward` does, and for rollouts without
    prompts.
    """
    _check(task)
    if rollouts.prompts is None:
        raise ValueError("rollouts have no prompts, and exact values need them: sample_rollouts keeps them.")
    policy = reading(policy)
    with torch.no_grad():
        if isinstance(task, Tree):
            return TokenValues(**tree_values(policy, task, rollouts))
        probs = context_logits(policy.model, *(getattr(rollouts, name) for name in FIELDS)).softmax(-1)  # (B, T, V)
        known = chain_values(policy, task, rollouts, probs.shape[-1])
    values = TokenValues(**known, before=known["elsewhere"], after=known["elsewhere"])  # before and after: below
    dense = values.dense(probs.shape[-1])
    after = dense.gather(2, rollouts.completion_ids.to(dense.device).unsqueeze(2)).squeeze(2)
    return replace(values, before=(probs * dense).sum(2) * values.inside, after=after * values.inside)


def value_error(policy, task: Task, prompts: int = 64, continuations: int = 320, seed: int = 0) -> dict[str, float]:
    """What `expected_reward` is off by, against the mean reward of sampled completions, in the reward's unit.

    prompts: drawn with `seed`.  continuations: completions of each.  bias: mean over the prompts of value minus mean
    reward.  rms: root mean square over the prompts of that difference, sampling noise taken out.  noise: what sampling
    leaves of the bias, one standard error.  Raises ValueError as `expected_reward` does.
    """
    sampled = sample_rollouts(policy, task, prompts, continuations, seed, task.longest)
    rewards = sampled.rewards.view(prompts, continuations).double()
    gap = expected_reward(policy, task, sampled.prompts[::continuations]).to(rewards) - rewards.mean(1)
    noise = rewards.var(1) / continuations  # (P,) variance of a mean
    rms = (gap.square() - noise).mean().clamp(min=0).sqrt()
    return {"bias": float(gap.mean()), "rms": float(rms), "noise": float(noise.sum().sqrt() / prompts)}


def _check(task) -> None:
    if not isinstance(task, Chain | Tree):
        raise ValueError(f"task is {type(task).__name__}; exact values are known for chain and walk.")


# -- gaps in exact value between the tokens that a step boosts and those that it suppresses (H7, H8, H9) --------------

Pool = tuple[Rollouts, pd.DataFrame]  # rollouts, and rows of their token table with values


def exact_pool(policy, task, rollouts: Rollouts) -> Pool:
    """Rollouts and their token table with value, value_before (exact, in reward) and credit, the one less the other.

    Tokens after a word that the grammar does not admit are left out: their value is 0, whatever they are.
    """
    values, table = exact_values(policy, task, rollouts), rollouts.token_table()
    place = torch.tensor(table[["rollout", "position"]].to_numpy(copy=True)).unbind(1)
    after, before = (part.cpu()[place].double().numpy() for part in (values.after, values.before))
    table = table.assign(value=after, value_before=before, credit=after - before)
    return rollouts, table[values.inside.cpu()[place].numpy()].reset_index(drop=True)


def pool_change(policy, pool: Pool, before: torch.Tensor) -> pd.DataFrame:
    """The pool's table with dlogp: what its tokens' log-probabilities are now, less those in `before` (B, T)."""
    rollouts, table = pool
    change = (logps(policy, rollouts) - before).double().cpu().numpy()
    return table.assign(dlogp=change[table["rollout"].to_numpy(), table["position"].to_numpy()])


def cell_gap(table: pd.DataFrame, cells: tuple[str, ...], column: str = "value", eps: float | None = None) -> float:
    """Gap between boosted and suppressed tokens that are alike in the columns `cells`, in `column`'s unit.

        gap = sum_c w_c (mean of the boosted - mean of the suppressed) / sum_c w_c,   w_c = n+ n- / (n+ + n-)

    over the cells that hold both: the slope of a regression on "boosted" with a constant for each cell. NaN if none
    holds both.  eps: |dlogp| in nats that a token must exceed; by default `MOVED` times the table's root mean square.

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
