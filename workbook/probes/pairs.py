"""Who pushes a token, pair by pair: the first-order change of each token, split by what it shares
with its pushers.

A step of plain SGD moves the log-probability of token i by a sum over all tokens j that push,

    change_i = lr sum_j K_ij A_j        K_ij = <grad log pi_i, grad log pi_j>, gradients by all trained weights

with A_j the advantage of j's rollout. Each pair is of the same or of the other sign of advantage,
of the same or of another word, in the same context (the same tokens before it under the same
prompt) or in another, of the same prompt or of another. Cancellation in the sense of the hypothesis
is one kind of pair: *other sign, same word*.

    table = cancellation_by_pair(policy, rollouts)          # a row per unsure token, a column per kind of pair
    table[OWN_KINDS].sum(axis=1)                            # what its own prompt does to it

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
from jaxtyping import Float
from torch import Tensor

from workbook.messages import InvalidValue
from workbook.policies.models import evaluating
from workbook.probes.directions import Along
from workbook.probes.step import require_pushes
from workbook.rollouts.likelihood import scores
from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import in_batches
from workbook.theory.coupling import NEARLY_CERTAIN
from workbook.training.optimizers import trained_weights

SAME_OTHER = ("same", "other")
OWN_KINDS = [
    "self",
    *(
        f"{sign}_sign_{word}_word_{context}_context"
        for sign, word, context in product(SAME_OTHER, repeat=3)
    ),
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
        """What pairs of each of OWN_KINDS do to each token, (N, 9), nats per unit of learning rate.

        advantages: of each token's rollout. Tokens of advantage 0 do not push, and pairs with them
        are of the other sign. Rows are summed over pushers; their sum over all columns is the whole
        change by the prompt.
        """
        words, contexts, signs = (
            self.tokens["token_id"],
            self.tokens["context"],
            np.sign(advantages),
        )
        pushes = self.gram * advantages  # (N, N): what token j does to token i
        same = {
            name: values[:, None] == values[None]
            for name, values in (
                ("sign", signs),
                ("word", words.to_numpy()),
                ("context", contexts.to_numpy()),
            )
        }
        itself = np.eye(len(pushes), dtype=bool)
        columns = {"self": np.where(itself, pushes, 0.0).sum(1)}
        for sign, word, context in product(SAME_OTHER, repeat=3):
            pairs = ~itself
            for name, which in (("sign", sign), ("word", word), ("context", context)):
                pairs = pairs & (same[name] == (which == "same"))
            columns[f"{sign}_sign_{word}_word_{context}_context"] = np.where(
                pairs, pushes, 0.0
            ).sum(1)
        return pd.DataFrame(columns, index=self.tokens.index)


def contexts(rollouts: Rollouts, table: pd.DataFrame) -> pd.Series:
    """A number per token for the prompt and the tokens before it: equal where two tokens were drawn
    in one context.
    """
    groups, ids = rollouts.group_ids.tolist(), rollouts.completion_ids.tolist()
    prefixes = [
        (groups[rollout], *ids[rollout][:position])
        for rollout, position in zip(table["rollout"], table["position"], strict=True)
    ]
    return pd.Series(
        pd.factorize(pd.Series(prefixes, dtype=object))[0], index=table.index, name="context"
    )


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
    table["context"] = contexts(rollouts, table)
    weights = sum(p.numel() for p in trained_weights(policy).values())
    for group, tokens in table.groupby("group", sort=False):
        rows = (rollouts.group_ids == group).nonzero().squeeze(1)
        streamed = (
            4 * weights * len(tokens) > GRADIENT_BYTES if one_at_a_time is None else one_at_a_time
        )
        gram = (_by_columns if streamed else _by_gradients)(policy, rollouts.select(rows))
        yield PromptPairs(tokens.reset_index(drop=True), gram)


def _by_gradients(policy, rollouts: Rollouts) -> Float[np.ndarray, "N N"]:
    """The Gram matrix from the gradients of all tokens, (N, D)."""
    weights = list(trained_weights(policy).values())
    gradients = []
    with evaluating(policy.model), torch.enable_grad():
        for row in range(len(rollouts)):
            one = rollouts.select([row])
            scored = scores(policy.model, one)[0][one.completion_mask[0].bool()]  # (T,)
            chosen = torch.eye(len(scored), dtype=scored.dtype, device=scored.device)
            slopes = torch.autograd.grad(
                scored, weights, chosen, is_grads_batched=True, allow_unused=True
            )
            known = (slope for slope in slopes if slope is not None)
            gradients.append(torch.cat([slope.flatten(1) for slope in known], dim=1))
    whole = torch.cat(gradients)
    return (whole @ whole.T).double().cpu().numpy()


def _by_columns(policy, rollouts: Rollouts) -> Float[np.ndarray, "N N"]:
    """The Gram matrix column by column: one backward pass and one forward-mode pass per token."""
    along, alive = Along(policy), rollouts.completion_mask.bool()
    columns = []
    for rollout, position in alive.nonzero().tolist():
        own = along.gradient(rollouts.select([rollout]), (0, position))
        columns.append(along.change(rollouts, own)[alive].double().cpu())
    return torch.stack(columns, dim=1).numpy()


@in_batches
def cancellation_by_pair(
    policy, rollouts: Rollouts, one_at_a_time: bool | None = None
) -> pd.DataFrame:
    """What each kind of pair does to every unsure token, to first order in one step of plain SGD on
    the rollouts.

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
        kinds = pairs.split(pairs.tokens["advantage"].to_numpy(dtype=float))
        table = pd.concat([pairs.tokens, kinds], axis=1)
        unsure = table["logp"] < np.log(NEARLY_CERTAIN)
        parts.append(table[unsure & (table["advantage"] != 0)])
    table = pd.concat(parts, ignore_index=True)
    table = pd.concat([table, _by_other_prompts(policy, rollouts, table)], axis=1)
    return table.assign(change=table[[*OWN_KINDS, *OTHER_PROMPT_KINDS]].sum(axis=1))


def _by_other_prompts(policy, rollouts: Rollouts, table: pd.DataFrame) -> pd.DataFrame:
    """What the step does to each token, by sign and word of the pushers, minus what its own prompt
    does.
    """
    rollouts = rollouts.to(policy.model.device)
    along, place = Along(policy), tuple(torch.tensor(table[["rollout", "position"]].to_numpy()).T)
    alive, ids = rollouts.completion_mask.bool(), rollouts.completion_ids
    pushes = torch.where(alive, rollouts.advantages.unsqueeze(1), 0.0)
    words, signs = table["token_id"].to_numpy(), np.sign(table["advantage"].to_numpy())
    out = {name: np.zeros(len(table)) for name in OTHER_PROMPT_KINDS}

    def moved(chosen: Tensor) -> np.ndarray:
        """Change of the table's tokens by the chosen pushes."""
        direction = along.gradient_of(rollouts, torch.where(chosen, pushes, 0.0))
        return along.change(rollouts, direction)[place].double().cpu().numpy()

    for sign in (1, -1):
        agree = np.where(signs == sign, "same", "other")
        by_sign, whole = pushes.sign() == sign, np.zeros(len(table))
        own_word = np.zeros(len(table))
        for word in np.unique(words):
            here = words == word
            own_word[here] = moved(by_sign & (ids == int(word)))[here]
        if by_sign.any():
            whole = moved(by_sign)
        for which in SAME_OTHER:
            rows = agree == which
            for word, values in (("same", own_word), ("other", whole - own_word)):
                own = table[
                    [name for name in OWN_KINDS if f"{which}_sign_{word}_word" in name]
                ].sum(axis=1)
                own += table["self"] if (which, word) == ("same", "same") else 0.0
                out[f"others_{which}_sign_{word}_word"][rows] = (values - own)[rows]
    return pd.DataFrame(out, index=table.index)
