"""H5 as a number: what shared tokens keep of what specific ones get."""

from __future__ import annotations

import pandas as pd


def contrasts(table: pd.DataFrame, kept: float = 0.5, matched: bool = False) -> pd.DataFrame:
    """H5: (net of shared - kept x net of specific) / mean |change|: a row per unit, identity and number of prompts.

    table: `net_curve`'s, with a column seed.  matched: shared tokens weigh as specific ones do over confidence.
    Columns of the curve, contrast, ratio (of the nets), own (the contrast by the own prompt).
    """
    keys = [name for name in ("seed", "alphabets", "identity", "prompts") if name in table]
    wide = table.pivot(index=[*keys, "band"], columns="kind", values=["net", "own", "size", "tokens"])
    weights = wide["tokens"].fillna(0.0)
    if matched:
        wide = wide.dropna()
        weights = wide["tokens"].assign(shared=wide["tokens"]["specific"])
    sums = {name: (wide[name] * weights).groupby(keys).sum() / weights.groupby(keys).sum() for name in ("net", "own")}
    whole = (wide["size"] * weights).sum(axis=1).groupby(keys).sum() / weights.sum(axis=1).groupby(keys).sum()
    net, own = sums["net"], sums["own"]
    columns = {"contrast": (net["shared"] - kept * net["specific"]) / whole, "ratio": net["shared"] / net["specific"]}
    return pd.DataFrame(columns | {"own": (own["shared"] - kept * own["specific"]) / whole}).reset_index()
