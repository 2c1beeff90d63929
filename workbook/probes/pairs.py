"""Who pushes a token, pair by pair: each token's first-order change, split by kind of pusher.

A step of plain SGD moves the log-probability of token i by a sum over all tokens j that push,

    change_i = lr sum_j K_ij A_j        K_ij = <grad log pi_i, grad log pi_j>

with A_j the advantage of j's rollout and gradients by all trained weights. Each pair is of the same
or of the other sign of advantage, of the same or of another word, in the same context (the same
tokens before it under the same prompt) or in another, of the same prompt or of another.
Cancellation in the sense of the hypothesis is one kind of pair: *other sign, same word*.

    table = cancellation_by_pair(policy, rollouts)   # a row per unsure token, a column per kind
    table[OWN_KINDS].sum(axis=1)                     # what its own prompt does to it

What such pairs take from a word follows from how often it occurs, whether or not it has credit:
compare with permuted rewards of the same rollouts (`PromptPairs.split` takes any advantages) before
reading anything into it.

Letters: B rollouts, T completion tokens, N tokens of one prompt, D trained weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from workbook.messages import InvalidValue
from workbook.policies.models import evaluating
from workbook.probes.coupling import token_contexts
from workbook.probes.directions import Along
from workbook.probes.step import require_pushes
from workbook.rollouts.likelihood import scores
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.theory.coupling import NEARLY_CERTAIN
from workbook.training.optimizers import trained_weights

SAME_OTHER = ("same", "other")
_SIGN_WORD_CONTEXT = list(product(SAME_OTHER, repeat=3))
OWN_KINDS = [
    "self",
    *(f"{sign}_sign_{word}_word_{context}_context" for sign, word, context in _SIGN_WORD_CONTEXT),
]
OTHER_PROMPT_KINDS = [
    f"others_{sign}_sign_{word}_word" for sign, word in product(SAME_OTHER, repeat=2)
]
# of one prompt's gradients by token, above which they are taken one at a time
GRADIENT_BYTES = 2**30


@dataclass(frozen=True)
class PromptPairs:
    """All pairs of one prompt's tokens.

    tokens: N rows of the token table, with context (a number per distinct prefix).  gram: K (N, N),
    nats per learning rate for a push of 1.
    """

    tokens: pd.DataFrame
    gram: Float[np.ndarray, "N N"]

    def split(self, advantages: Float[np.ndarray, " N"]) -> pd.DataFrame:
        """What pairs of each of OWN_KINDS do to each token, (N, 9), nats per learning rate.

        advantages: of each token's rollout. Tokens of advantage 0 do not push, and pairs with them
        are of the other sign. Rows are summed over pushers; their sum over all columns is the whole
        change by the prompt.
        """
        pushes = self.gram * advantages  # (N, N): what token j does to token i
        itself = np.eye(len(pushes), dtype=bool)
        # (N, N) masks: pairs of tokens that agree
        same_sign = _equal_pairs(np.sign(advantages))
        same_word = _equal_pairs(self.tokens["token_id"].to_numpy())
        same_context = _equal_pairs(self.tokens["context"].to_numpy())

        columns = {"self": np.where(itself, pushes, 0.0).sum(1)}
        for sign, word, context in _SIGN_WORD_CONTEXT:
            pairs = ~itself
            pairs &= same_sign if sign == "same" else ~same_sign
            pairs &= same_word if word == "same" else ~same_word
            pairs &= same_context if context == "same" else ~same_context
            name = f"{sign}_sign_{word}_word_{context}_context"
            columns[name] = np.where(pairs, pushes, 0.0).sum(1)
        return pd.DataFrame(columns, index=self.tokens.index)


def _equal_pairs(values: np.ndarray) -> Bool[np.ndarray, "N N"]:
    """Which pairs of tokens have the same value."""
    return values[:, None] == values[None]


def prompt_pairs(
    policy, rollouts: Rollouts, one_at_a_time: bool | None = None
) -> Iterator[PromptPairs]:
    """The pairs of each prompt, one prompt after another, so that only one Gram matrix is held.

    one_at_a_time: False takes the gradients of a prompt's tokens together (N x D numbers) and
    multiplies them; True takes one gradient at a time and a forward-mode derivative of all tokens
    along it, in the memory of two models; None the former up to a gigabyte.
    """
    rollouts = rollouts.to(policy.model.device)
    table = rollouts.token_table()
    # numbered as they first appear
    table["context"] = pd.factorize(token_contexts(rollouts).cpu().numpy())[0]
    # four bytes a number: what the gradients of all tokens would take
    weights = sum(p.numel() for p in trained_weights(policy).values())
    for group, tokens in table.groupby("group", sort=False):
        part = rollouts.select((rollouts.group_ids == group).nonzero().squeeze(1))
        streamed = one_at_a_time
        if streamed is None:
            streamed = 4 * weights * len(tokens) > GRADIENT_BYTES
        gram = _gram_by_columns(policy, part) if streamed else _gram_of_gradients(policy, part)
        yield PromptPairs(tokens.reset_index(drop=True), gram)


def _gram_of_gradients(policy, rollouts: Rollouts) -> Float[np.ndarray, "N N"]:
    """The Gram matrix from the gradients of all tokens, (N, D)."""
    weights = list(trained_weights(policy).values())
    gradients = []
    with evaluating(policy.model), torch.enable_grad():
        for row in range(len(rollouts)):
            one = rollouts.select([row])
            alive = one.completion_mask[0].bool()
            logps = scores(policy.model, one)[0][alive]  # (T,)
            # a gradient for each token, by one batched backward pass
            each_token = torch.eye(len(logps), dtype=logps.dtype, device=logps.device)
            slopes = torch.autograd.grad(
                logps, weights, each_token, is_grads_batched=True, allow_unused=True
            )
            flat = [slope.flatten(1) for slope in slopes if slope is not None]
            gradients.append(torch.cat(flat, dim=1))  # (T, D)
    gradient = torch.cat(gradients)  # (N, D)
    return (gradient @ gradient.T).double().cpu().numpy()


def _gram_by_columns(policy, rollouts: Rollouts) -> Float[np.ndarray, "N N"]:
    """The Gram matrix column by column: one backward pass and one forward-mode pass per token."""
    along = Along(policy)
    alive = rollouts.completion_mask.bool()
    # what a step along one token's gradient does to all tokens is a column
    columns = []
    for rollout, position in alive.nonzero().tolist():
        gradient = along.gradient(rollouts.select([rollout]), (0, position))
        columns.append(along.change(rollouts, gradient)[alive].double().cpu())
    return torch.stack(columns, dim=1).numpy()


@in_batches
def cancellation_by_pair(
    policy, rollouts: Rollouts, one_at_a_time: bool | None = None
) -> pd.DataFrame:
    """What each kind of pair does to every unsure token, to first order in one step of plain SGD.

    change_i = sum over kinds, nats per unit of learning rate, of the objective sum_it A_i log
    pi_it.

    Returns the rows of the token table with probability below .9 and an advantage, with context,
    OWN_KINDS (of the token's own prompt), OTHER_PROMPT_KINDS (of the other prompts in the step) and
    change, their sum.
    one_at_a_time: as in `prompt_pairs`.  Memory: one prompt's pairs, and two directions of the
    weights.

    Raises ValueError where all advantages are 0, and for advantages per token, which have no sign
    of their rollout.
    """
    if rollouts.advantages.dim() != 1:
        raise InvalidValue(
            "rollouts.advantages.shape",
            tuple(rollouts.advantages.shape),
            "(B,): pairs are told apart by the sign of a rollout's own",
        )
    require_pushes(rollouts)
    parts = []
    for pairs in prompt_pairs(policy, rollouts, one_at_a_time):
        by_kind = pairs.split(pairs.tokens["advantage"].to_numpy(dtype=float))
        table = pd.concat([pairs.tokens, by_kind], axis=1)
        # a token that is nearly certain hardly moves, whoever pushes
        unsure = table["logp"] < np.log(NEARLY_CERTAIN)
        parts.append(table[unsure & (table["advantage"] != 0)])
    table = pd.concat(parts, ignore_index=True)
    table = pd.concat([table, _by_other_prompts(policy, rollouts, table)], axis=1)
    return table.assign(change=table[[*OWN_KINDS, *OTHER_PROMPT_KINDS]].sum(axis=1))


def _by_other_prompts(policy, rollouts: Rollouts, table: pd.DataFrame) -> pd.DataFrame:
    """What the other prompts do to each token, by sign and word of the pushers.

    What the whole step does, by one derivative along its gradient, minus what the own prompt does.
    """
    rollouts = rollouts.to(policy.model.device)
    along = Along(policy)
    alive = rollouts.completion_mask.bool()
    pushes = torch.where(alive, rollouts.advantages.unsqueeze(1), 0.0)  # (B, T)
    places = torch.tensor(table[["rollout", "position"]].to_numpy())
    rows, positions = places.T
    words = table["token_id"].to_numpy()
    signs = np.sign(table["advantage"].to_numpy())

    def change_by(pushing: Bool[Tensor, "B T"]) -> np.ndarray:
        """Change of the table's tokens by the pushing tokens' gradient."""
        gradient = along.gradient_of(rollouts, torch.where(pushing, pushes, 0.0))
        return along.change(rollouts, gradient)[rows, positions].double().cpu().numpy()

    columns = {name: np.zeros(len(table)) for name in OTHER_PROMPT_KINDS}
    for sign in (1, -1):
        of_sign = pushes.sign() == sign
        by_all_words = change_by(of_sign) if of_sign.any() else np.zeros(len(table))
        # by the pushes on the token's own word alone
        by_own_word = np.zeros(len(table))
        for word in np.unique(words):
            is_word = words == word
            pushing = of_sign & (rollouts.completion_ids == int(word))
            by_own_word[is_word] = change_by(pushing)[is_word]

        # a derivative is linear: other words did what the own word did not
        by_word = {"same": by_own_word, "other": by_all_words - by_own_word}
        relation = np.where(signs == sign, "same", "other")
        for which, word in product(SAME_OTHER, repeat=2):
            own_kinds = [name for name in OWN_KINDS if f"{which}_sign_{word}_word" in name]
            by_own_prompt = table[own_kinds].sum(axis=1)
            if which == "same" and word == "same":
                by_own_prompt += table["self"]
            # of the tokens to which the pushers have this relation
            chosen = relation == which
            by_others = (by_word[word] - by_own_prompt)[chosen]
            columns[f"others_{which}_sign_{word}_word"][chosen] = by_others
    return pd.DataFrame(columns, index=table.index)
