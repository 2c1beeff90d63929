"""Rows of a toy policy in closed form, for the share of pushes that cancels (chapter 02).

A rollout has four words, as in `so is 7 2`, and its two results both decide:

    style     so, then, thus: a free choice, without influence on the reward
    template  is, rarely `makes`
    results   two steps; the reward is 1 if both are right, so a right first one also stands in
              failing rollouts

At p_right = .6 both results are right in .36 of the rollouts, and .24 fail after a right first one:
their negative advantages push a right result down, against the push of the successful rollouts.

Each place is a softmax of its own; prompts differ in which number is right. The output layer W is
shared: a unit push of rollout k moves token i by

    sum over j in k of <h_i, h_j> <e_i - p_i, e_j - p_j>

as `coupling_kernel` has it.

P prompts, V words, D width of a hidden state, B rollouts of all prompts, N tokens of all rollouts.
"""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbook.messages import require_range
from workbook.probes.blocks import Blocks
from workbook.probes.cancellation import RIGHT_RESULT, PushRows, cancelled_shares
from workbook.theory.coupling import coupling_kernel

_WORDS = ("so", "then", "thus", "is", "makes", *map(str, range(10)))
PLACES = ("style", "template", "result", "result")
IMPOSSIBLE = -40.0  # logit of a word that its place does not have
FIRST_NUMBER = _WORDS.index("0")


def toy_contexts(
    prompts: int, p_right: float, cosine: float
) -> tuple[Float[Tensor, "P 4 D"], Float[Tensor, "P 4 V"]]:
    """Hidden states and logits of each context, a context being a prompt and a place.

    Hidden states have length 1, the given cosine between prompts, and right angles between places.
    """
    require_range(0, 1, closed=False, p_right=p_right)
    require_range(0, 1, cosine=cosine)
    # a prompt is a common part and one of its own, (P, P + 1); each place has its own block of axes
    common = torch.full((prompts, 1), cosine**0.5)
    own = (1 - cosine) ** 0.5 * torch.eye(prompts)
    of_prompt = torch.cat([common, own], 1).double()
    of_place = torch.eye(len(PLACES)).double()
    hidden = torch.einsum("pd,st->pstd", of_prompt, of_place).flatten(2)

    logits = torch.full((prompts, len(PLACES), len(_WORDS)), IMPOSSIBLE).double()
    logits[:, 0, :3] = torch.tensor([1, 1 / 2, 1 / 3]).double().log()
    logits[:, 1, 3:5] = torch.tensor([0.98, 0.02]).double().log()
    chances = torch.tensor([p_right, (1 - p_right) * 2 / 3, (1 - p_right) / 3]).double()
    for n, place in product(range(prompts), (2, 3)):
        # the right number, and two wrong ones
        words = FIRST_NUMBER + (n + 4 * (place - 2) + torch.tensor([0, 3, 6])) % 10
        logits[n, place, words] = chances.log()
    return hidden, logits


def toy_tokens(logits: Float[Tensor, "P 4 V"], rollouts: int, seed: int) -> pd.DataFrame:
    """Token table of rollouts drawn from the softmaxes: a row per word, with its credit.

    rollouts: of each prompt.

    Credit is what a word changes about the chance that both results are right.
    """
    generator = torch.Generator().manual_seed(seed)
    logps = logits.log_softmax(-1).repeat_interleave(rollouts, 0)  # (B, 4, V)
    ids = torch.multinomial(logps.exp().flatten(0, 1), 1, generator=generator).view(-1, len(PLACES))
    right_words = logits.argmax(-1).repeat_interleave(rollouts, 0)  # (B, 4)
    right = (ids == right_words)[:, 2:]  # (B, 2), of both results

    # the chance of reward 1 before and after each result, (B, 2)
    chance = logits[:, 2:].softmax(-1).amax(-1).repeat_interleave(rollouts, 0)
    before = torch.stack([chance.prod(1), right[:, 0] * chance[:, 1]], 1)
    after = torch.stack([before[:, 1], right.all(1).double()], 1)
    # style and template words have no credit
    credit = torch.cat([torch.zeros(len(ids), 2).double(), after - before], 1)

    token_id = ids.flatten().numpy()
    rollout, position = np.divmod(np.arange(len(token_id)), len(PLACES))
    return pd.DataFrame(
        {
            "token_id": token_id,
            "logp": logps.gather(2, ids[..., None])[..., 0].flatten().numpy(),
            "credit": credit.flatten().numpy(),
            "rollout": rollout,
            "group": rollout // rollouts,
            "position": position,
            "reward": right.all(1).double().numpy()[rollout],
            "block": rollout,
            "category": np.array(PLACES)[position],
            "token": np.array(_WORDS)[token_id],
        }
    )


def toy_rows(
    prompts: int = 8, rollouts: int = 16, p_right: float = 0.6, cosine: float = 0.2, seed: int = 0
) -> PushRows:
    """Rows of a toy policy, in closed form: what each rollout does to each token.

    rollouts: of each prompt.
    p_right: of each step, so that both are right with its square.
    cosine: of the hidden states of two prompts.
    """
    hidden, logits = toy_contexts(prompts, p_right, cosine)
    tokens = toy_tokens(logits, rollouts, seed)
    # every token in its context, (N,)
    contexts = torch.tensor((tokens["group"] * len(PLACES) + tokens["position"]).to_numpy())
    ids = torch.tensor(tokens["token_id"].to_numpy())
    kernel = coupling_kernel(hidden.flatten(0, 1)[contexts], logits.flatten(0, 1)[contexts], ids)
    # the tokens of a rollout push together, (B, N)
    changes = kernel.view(-1, len(PLACES), len(tokens)).sum(1).numpy()

    rows = tokens.groupby("block").agg(
        group=("group", "first"), reward=("reward", "first"), tokens=("token_id", "size")
    )
    rows = rows.assign(sign=1, prompts=1, rollouts=1, last=rows.index % rollouts).reset_index()
    return PushRows(Blocks(changes, rows, tokens, tokens.assign(push=1.0), 0.0))


def ceiling(
    rollouts: Sequence[int] = (2, 4, 8, 16, 32), seeds: int = 6, prompts: int = 24
) -> pd.DataFrame:
    """Cancelled share by rollouts per prompt, in the toy, where pushes on a context cancel exactly.

    A word without credit has a push of mean zero under each sign separately: so its share tends to
    0 whatever cancels, with rewards permuted as well. A right result's share lies below 0 where
    rewards give credit, and tends to 0 otherwise.

    Columns rollouts, kind (style, right result), rewards (by reward, permuted) and share, which is
    a ratio of sums over all draws.
    """
    rows = []
    for count in rollouts:
        for rewards, permuted in {"by reward": None, "permuted": 0}.items():
            drawn = [toy_rows(prompts, count, seed=seed) for seed in range(seeds)]
            sums = pd.concat([one.sums(one.weights(permuted=permuted)) for one in drawn])
            by_kind = sums.query("identity == 'word'").groupby("kind").sum(numeric_only=True)
            share = cancelled_shares(by_kind)["within"]
            for kind in ("style", RIGHT_RESULT):
                rows.append(
                    {"rollouts": count, "kind": kind, "rewards": rewards, "share": share[kind]}
                )
    return pd.DataFrame(rows)
