"""Who follows when one token pushes (H3, H10): the other tokens of its group, by what they have in common with it.

`shared_token` finds a token to push, `followers` sums up the table of `masked_update`. Both are pure.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.rollouts.sample import Rollouts
from workbook.topics.coupling.probe import contexts

UNSURE = 0.5  # a token is unsure below this probability
KINDS = ("pushing", "same context", "same token, unsure", "same token, sure", "different, unsure", "different, sure")


def shared_token(rollouts: Rollouts, confidence: tuple[float, float]) -> int | None:
    """The token id that occurs most often on both sides of one prompt's rollouts, within bounds of its probability.

    Counted are occurrences with low < p <= high in positive and in negative rollouts; the smaller of both counts is
    what is made large, then their sum, then the smaller id wins. None if no token is on both sides.
    """
    table = rollouts.token_table()
    p = np.exp(table["logp"])
    inside = table[(p > confidence[0]) & (p <= confidence[1]) & (table["advantage"] != 0)]
    counts = inside.groupby(["token_id", inside["advantage"] > 0]).size().unstack(fill_value=0)
    counts = counts.reindex(columns=[False, True], fill_value=0)
    ranked = pd.DataFrame({"both": counts.min(axis=1), "all": counts.sum(axis=1)}).sort_index()
    ranked = ranked.sort_values(["both", "all"], ascending=False, kind="stable")
    return int(ranked.index[0]) if len(ranked) and ranked["both"].iloc[0] > 0 else None


def followers(rollouts: Rollouts, moved: pd.DataFrame) -> pd.DataFrame:
    """Mean movement of each kind of token: columns kind, tokens, dlogp, size, predicted, predicted_size (nats).

    moved: the table of `masked_update` on these rollouts of one prompt, whose chosen tokens are all the same token id.
    Kinds: pushing, the chosen tokens themselves; same context, others that stand behind the same tokens as one of them;
    the rest by token and by probability.  size: mean of |dlogp|.

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
