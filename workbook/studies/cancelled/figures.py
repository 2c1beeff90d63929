"""Figures of the cancelled share: the family's curves, and who pushes what in SmolLM2-135M."""

import numpy as np
import pandas as pd

from workbook.probes.cancellation import cancelled_shares
from workbook.studies.cancelled.study import GROUP
from workbook.studies.record import FAMILY, Tables

_CURVES = {"rollouts": "one prompt, more rollouts", "prompts": "more prompts of 8 rollouts"}
_SETTING = ["seed", "series", "rollouts", "kind", "rewards"]
_READ = ["cancelled share", "follows", "cosine"]


def cancelled_curves(tables: Tables = FAMILY) -> pd.DataFrame:
    """A row per unit, curve, size, kind of shared word and rewards: `SETTING` and `READ`.

    rollouts: in the step, over all its prompts.  cancelled share: in the batch.  follows: of unsure
    tokens, shared or not (kind "all").  cosine: of good and bad rollouts' pushes (kind "all": of
    all tokens; "shared words"), mean over prompts.
    """
    sums = cancelled_shares(tables["cancelled/sums"].query("identity in ('word', 'any word')"))
    is_word = sums["identity"] == "word"
    sums["rollouts"] = sums["size"] * np.where(sums["curve"] == "prompts", GROUP, 1)
    sums["cancelled share"] = sums["batch"].where(is_word)
    sums["follows"] = sums["follows"].where(~is_word)
    # a sign that pushes nothing has no direction
    products = tables["cancelled/products"].query("up2 > 0 and down2 > 0")
    lengths = np.sqrt(products["up2"] * products["down2"])
    lines = products.assign(
        cosine=products["product"] / lengths,
        kind=products["tokens"],
        curve="rollouts",
        rewards="by reward",
    )
    rows = pd.concat([sums, lines])
    rows["series"] = rows["curve"].map(_CURVES)
    return rows.groupby(_SETTING, sort=False)[_READ].mean().reset_index()


def summed_pushes(tables: Tables | None = None) -> pd.DataFrame:
    """Sums over units of what pushes shared words, a row per rewards, prompts and kind of word.

    tables: SmolLM2-135M's, if not given.
    """
    sums = (tables or Tables("smollm2_plain"))["cancelled/sums"].query(
        "curve == 'prompts' and identity == 'word'"
    )
    keys = ["rewards", "size", "identity", "kind"]
    rows = sums.groupby(keys, sort=False).sum(numeric_only=True).drop(columns="seed")
    return rows.reset_index().rename(columns={"size": "prompts"})


FIGURES = {"cancelled": {"cancelled/curves": cancelled_curves, "cancelled/smollm2": summed_pushes}}
