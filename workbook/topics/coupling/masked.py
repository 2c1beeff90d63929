"""Masked updates (H3, H10), the spillover of a single-token update, and the output layer as a proxy (H4).

Claims (arXiv 2605.08666): an update on a chosen set of tokens moves identical low-confidence tokens together and others
hardly (figure 3, table 1: plain SGD, lr 0.1, no momentum); the sign of dlogp after a full update and after one of the
output layer alone agree on about 0.7 of tokens (figure 10).
"""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from workbook.policies.copies import private_copy
from workbook.probes.output_layer import output_layer_step
from workbook.probes.step import logp_change
from workbook.rollouts.sample import Rollouts
from workbook.statistics import Interval, bootstrap_mean
from workbook.theory.coupling import UNSURE
from workbook.topics.coupling.probe import contexts

KINDS = ("pushing", "same context", "same token, unsure", "same token, sure", "different, unsure", "different, sure")


def choose_tokens(
    rollouts: Rollouts,
    token_id: int | None = None,
    category: str | None = None,
    confidence: tuple[float, float] | None = None,
    sign: int | None = None,
) -> Bool[Tensor, "B T"]:
    """The completion tokens that fit every condition given: (B, T), false outside the mask.

    confidence: bounds (low, high) of the probability under the sampling policy, low < p <= high.  sign: of the
    rollout's advantage, +1 or -1.  Raises ValueError where no token fits.
    """
    chosen = rollouts.completion_mask.bool().clone()
    if token_id is not None:
        chosen &= rollouts.completion_ids == token_id
    if category is not None:
        known = torch.zeros_like(chosen)
        for row, names in enumerate(rollouts.categories or ()):
            known[row, : len(names)] = torch.tensor([name == category for name in names])
        chosen &= known
    if confidence is not None:
        p = rollouts.old_logps.exp()
        chosen &= (p > confidence[0]) & (p <= confidence[1])
    if sign is not None:
        chosen &= (rollouts.advantages.sign() == sign).view(len(rollouts), -1)
    if not chosen.any():
        given = {"token_id": token_id, "category": category, "confidence": confidence, "sign": sign}
        raise ValueError(f"No token fits {', '.join(f'{k}={v!r}' for k, v in given.items() if v is not None)}.")
    return chosen


def shared_token(rollouts: Rollouts, confidence: tuple[float, float]) -> int | None:
    """The token id that occurs most often under both signs of the advantage; None if none occurs under both.

    Ranked by the smaller of both signs' counts of occurrences with low < p <= high, then by their sum, then by id.
    """
    table = rollouts.token_table()
    p = np.exp(table["logp"])
    inside = table[(p > confidence[0]) & (p <= confidence[1]) & (table["advantage"] != 0)]
    counts = inside.groupby(["token_id", inside["advantage"] > 0]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=[False, True], fill_value=0)
    ranked = pd.DataFrame({"both": counts.min(axis=1), "all": counts.sum(axis=1)}).sort_index()
    ranked = ranked.sort_values(["both", "all"], ascending=False, kind="stable")
    return int(ranked.index[0]) if len(ranked) and ranked["both"].iloc[0] > 0 else None


def masked_update(
    policy,
    rollouts: Rollouts,
    chosen: Bool[Tensor, "B T"],
    optimizer: str = "sgd",
    lr: float = 0.1,
    **settings,
) -> pd.DataFrame:
    """The token table with columns chosen, dlogp (a real step in which the chosen tokens alone push) and predicted.

    predicted: what a step of SGD with this lr on the output layer alone would do, by `predicted_delta_logp` in closed
    form, exact.  settings: more of `update`.  The policy is left as it was.
    """
    mine = private_copy(policy)
    moved = logp_change(mine, rollouts, optimizer, lr, chosen=chosen, **settings)
    alive = rollouts.completion_mask.bool()
    predicted = output_layer_step(policy, rollouts, lr, chosen, settings.get("aggregate", "dr_grpo"))
    columns = {"chosen": chosen[alive], "dlogp": moved.cpu()[alive.cpu()], "predicted": predicted}
    return rollouts.token_table().assign(**{name: values.cpu().numpy() for name, values in columns.items()})


def followers(rollouts: Rollouts, moved: pd.DataFrame) -> pd.DataFrame:
    """Spillover of a single-token update: columns kind, tokens, dlogp, size, predicted, predicted_size (nats).

    moved: the table of `masked_update` on one prompt's rollouts, whose chosen tokens all are the same token id.
    KINDS: pushing, the chosen tokens; same context, others behind the same prefix as one of them; the rest by token and
    by probability.  size: mean of |dlogp|.

    Raises ValueError for rollouts of several prompts, and if the chosen tokens are not one token.
    """
    ids = moved.loc[moved["chosen"], "token_id"].unique()
    if len(ids) != 1 or moved["group"].nunique() != 1:
        raise ValueError(f"followers needs one prompt and one pushing token; {len(ids)} tokens push here.")
    context = np.array(contexts(rollouts))
    same, unsure = moved["token_id"] == ids[0], moved["logp"] < np.log(UNSURE)
    conditions = [moved["chosen"], np.isin(context, context[moved["chosen"]]), same & unsure, same, unsure]
    kind = np.select(conditions, KINDS[:5], KINDS[5])
    columns = moved[["dlogp", "predicted"]].assign(
        kind=kind, tokens=1, size=moved["dlogp"].abs(), predicted_size=moved["predicted"].abs()
    )
    means = dict.fromkeys(("dlogp", "size", "predicted", "predicted_size"), "mean")
    return columns.groupby("kind").agg({"tokens": "sum", **means}).reset_index()


def proxy_agreement(
    policy, rollouts: Rollouts, optimizer: str = "sgd", lr: float = 0.1, least: float = 0.0, **settings
) -> tuple[pd.DataFrame, Interval]:
    """H4: how often the sign of dlogp after a full update is that of the output layer's alone.

    Returns the token table with dlogp, predicted and agree (None where |dlogp| <= least), and the share that agrees,
    with its interval over prompts.  Where the full update moves nothing beyond `least`, ValueError.
    """
    everything = rollouts.completion_mask.bool()
    table = masked_update(policy, rollouts, everything, optimizer, lr, **settings).drop(columns="chosen")
    moved = table["dlogp"].abs() > least
    if not moved.any():
        raise ValueError(f"No token moved by more than least={least} nats; take a larger lr or a smaller least.")
    agree = np.sign(table["dlogp"]) == np.sign(table["predicted"])
    table["agree"] = agree.where(moved)
    return table, bootstrap_mean(agree[moved], table.loc[moved, "group"])
