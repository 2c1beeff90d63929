"""Claims about the cancelled share, ours: what each row measures stands in
data/results/pairs/registration.yaml.
"""

from functools import partial

import numpy as np
import pandas as pd

from workbook.probes.cancellation import MATCHED_STYLE, RIGHT_RESULT, WRONG_RESULT, cancelled_shares
from workbook.studies.cancelled.study import GROUP, LAID_OUT, REWARDS
from workbook.studies.record import Tables

_MOST = LAID_OUT * GROUP  # rollouts


def cancelled_share_at(
    tables: Tables,
    kind: str = "style",
    column: str = "within",
    size: int = 1,
    identity: str = "word",
    rewards: str = REWARDS[0],
    curve: str = "prompts",
) -> pd.Series:
    """A column of `cancelled_shares`, a number per unit; NaN where a unit has no such token."""
    rows = tables["cancelled/sums"].query(
        "kind == @kind and identity == @identity and rewards == @rewards and curve == @curve and"
        " size == @size"
    )
    return cancelled_shares(rows).set_index("seed")[column]


def beyond_permuted(tables: Tables, kind: str = "style") -> pd.Series:
    """The cancelled share within the prompt minus the same with rewards permuted."""
    return cancelled_share_at(tables, kind) - cancelled_share_at(tables, kind, rewards=REWARDS[1])


def cosine(tables: Tables, rollouts: int, tokens: str = "all") -> pd.Series:
    """Mean cosine of what good and bad rollouts of a prompt push; prompts where a sign pushes
    nothing are left out.
    """
    rows = tables["cancelled/products"].query(
        "tokens == @tokens and rollouts == @rollouts and up2 > 0 and down2 > 0"
    )
    return (rows["product"] / np.sqrt(rows["up2"] * rows["down2"])).groupby(rows["seed"]).mean()


def noise_free_cosine(tables: Tables) -> pd.Series:
    """The cosine of all tokens' expected pushes: lengths from products of halves, in which noise
    has no part.
    """
    rows = tables["cancelled/products"].query("tokens == 'all' and rollouts == @_MOST")
    sums = rows.groupby("seed")[["product", "up_lengths", "down_lengths"]].sum()
    return sums["product"] / np.sqrt(sums["up_lengths"] * sums["down_lengths"])


def follows_by_rollouts(tables: Tables) -> pd.Series:
    """Chance of unsure tokens to follow their own sign: one prompt x 512 rollouts minus 64 prompts
    x 8.
    """
    place = {"kind": "all", "column": "follows", "identity": "any word"}
    return cancelled_share_at(tables, size=_MOST, curve="rollouts", **place) - cancelled_share_at(
        tables, size=LAID_OUT, **place
    )


MEASURES = {
    "cancelled": {
        "C1": cancelled_share_at,
        "C1 matched": partial(cancelled_share_at, kind=MATCHED_STYLE),
        "C1 place": partial(cancelled_share_at, identity="word and place"),
        "C1 state": partial(cancelled_share_at, identity="word and state"),
        "C1 cosine": partial(cosine, rollouts=GROUP, tokens="shared words"),
        "C2": partial(cancelled_share_at, column="batch", size=LAID_OUT),
        "C2 rollouts": partial(cancelled_share_at, size=_MOST, curve="rollouts"),
        "C2 cosine": partial(cosine, rollouts=_MOST),
        "C2 cosine, 8 rollouts": partial(cosine, rollouts=GROUP),
        "C2 cosine, noise free": noise_free_cosine,
        "C2 follows": follows_by_rollouts,
        "C3": partial(cancelled_share_at, kind=RIGHT_RESULT),
        "C3 state": partial(cancelled_share_at, kind=RIGHT_RESULT, identity="word and state"),
        "C3 batch": partial(cancelled_share_at, kind=RIGHT_RESULT, column="batch", size=LAID_OUT),
        "C3 wrong": partial(cancelled_share_at, kind=WRONG_RESULT),
        "C4": beyond_permuted,
        "C4 right": partial(beyond_permuted, kind=RIGHT_RESULT),
        "C4 wrong": partial(beyond_permuted, kind=WRONG_RESULT),
    },
}
