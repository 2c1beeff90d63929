"""Toy rows in closed form: four words a rollout, as in `so is 7 2`, whose two results both decide
(chapter 02).

    style     so, then, thus: free choice, no influence on the reward
    template  is, rarely `makes`
    results   two steps; the reward is 1 if both are right, so that a right first one stands in failing rollouts, too

Each place is a softmax of its own; prompts differ in which number is right. The output layer W is
shared: a unit push of rollout k moves token i by sum over j in k of <h_i, h_j> <e_i - p_i, e_j -
p_j>, as `coupling_kernel` has it.
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
    """Hidden states, of prompts with a given cosine and at right angles between places, and logits
    in each context.
    """
    require_range(0, 1, closed=False, p_right=p_right)
    require_range(0, 1, cosine=cosine)
    own = torch.cat(
        [torch.full((prompts, 1), cosine**0.5), (1 - cosine) ** 0.5 * torch.eye(prompts)], 1
    ).double()
    hidden = torch.einsum("pd,st->pstd", own, torch.eye(len(PLACES)).double()).flatten(2)
    logits = torch.full((prompts, len(PLACES), len(_WORDS)), IMPOSSIBLE).double()
    logits[:, 0, :3] = torch.tensor([1, 1 / 2, 1 / 3]).double().log()
    logits[:, 1, 3:5] = torch.tensor([0.98, 0.02]).double().log()
    chances = torch.tensor([p_right, (1 - p_right) * 2 / 3, (1 - p_right) / 3]).double()
    for n, place in product(range(prompts), (2, 3)):
        # the right one, two wrong ones
        words = FIRST_NUMBER + (n + 4 * (place - 2) + torch.tensor([0, 3, 6])) % 10
        logits[n, place, words] = chances.log()
    return hidden, logits


def toy_tokens(logits: Float[Tensor, "P 4 V"], rollouts: int, seed: int) -> pd.DataFrame:
    """A token table of so many rollouts of each prompt, drawn from the softmaxes: a row per word,
    with its credit.
    """
    generator = torch.Generator().manual_seed(seed)
    logps = logits.log_softmax(-1).repeat_interleave(rollouts, 0)  # (B, 4, V)
    ids = torch.multinomial(logps.exp().flatten(0, 1), 1, generator=generator).view(-1, len(PLACES))
    right = (ids == logits.argmax(-1).repeat_interleave(rollouts, 0))[:, 2:]
    # (B, 2) of a right result
    chance = logits[:, 2:].softmax(-1).amax(-1).repeat_interleave(rollouts, 0)
    before = torch.stack([chance.prod(1), right[:, 0] * chance[:, 1]], 1)
    after = torch.stack([before[:, 1], right.all(1).double()], 1)
    credit = torch.cat([torch.zeros(len(ids), 2).double(), after - before], 1)
    columns = {"token_id": ids, "logp": logps.gather(2, ids[..., None])[..., 0], "credit": credit}
    table = pd.DataFrame({name: values.flatten().numpy() for name, values in columns.items()})
    rollout, position = np.divmod(np.arange(len(table)), len(PLACES))
    reward = right.all(1).double().numpy()[rollout]
    table = table.assign(
        rollout=rollout, group=rollout // rollouts, position=position, reward=reward, block=rollout
    )
    return table.assign(
        category=np.array(PLACES)[position], token=np.array(_WORDS)[table["token_id"]]
    )


def toy_rows(
    prompts: int = 8, rollouts: int = 16, p_right: float = 0.6, cosine: float = 0.2, seed: int = 0
) -> PushRows:
    """Rows of a toy policy, in closed form.

    p_right: of each step, so that both are right with its square.  cosine: of the hidden states of
    two prompts.
    """
    hidden, logits = toy_contexts(prompts, p_right, cosine)
    tokens = toy_tokens(logits, rollouts, seed)
    contexts = torch.tensor((tokens["group"] * len(PLACES) + tokens["position"]).to_numpy())
    ids = torch.tensor(tokens["token_id"].to_numpy())
    kernel = coupling_kernel(hidden.flatten(0, 1)[contexts], logits.flatten(0, 1)[contexts], ids)
    # (rollouts of all prompts, N)
    changes = kernel.view(-1, len(PLACES), len(tokens)).sum(1).numpy()
    rows = tokens.groupby("block").agg(
        group=("group", "first"), reward=("reward", "first"), tokens=("token_id", "size")
    )
    rows = rows.assign(sign=1, prompts=1, rollouts=1, last=rows.index % rollouts).reset_index()
    return PushRows(Blocks(changes, rows, tokens, tokens.assign(push=1.0), 0.0))


def ceiling(
    rollouts: Sequence[int] = (2, 4, 8, 16, 32), seeds: int = 6, prompts: int = 24
) -> pd.DataFrame:
    """Cancelled share in the toy, where pushes on one context cancel exactly, by the number of
    rollouts of a prompt.

    A word without credit has a push of mean zero under each sign separately: so its share tends to
    0 whatever cancels, with rewards permuted as well. A right result's lies below 0 where rewards
    give credit, and tends to 0 otherwise.

    Returns columns rollouts, kind (style, right result), rewards (by reward, permuted) and share, a
    ratio of sums over all draws.
    """
    rows = []
    for count, (rewards, permuted) in product(rollouts, {"by reward": None, "permuted": 0}.items()):
        drawn = [toy_rows(prompts, count, seed=seed) for seed in range(seeds)]
        sums = pd.concat([one.sums(one.weights(permuted=permuted)) for one in drawn]).query(
            "identity == 'word'"
        )
        share = cancelled_shares(sums.groupby("kind").sum(numeric_only=True))["within"]
        rows += [
            {"rollouts": count, "kind": kind, "rewards": rewards, "share": share[kind]}
            for kind in ("style", RIGHT_RESULT)
        ]
    return pd.DataFrame(rows)
