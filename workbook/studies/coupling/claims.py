"""Claims of chapter 05: which tokens couple (H2, R2), what a masked update moves (H3), how well the
output layer stands for the whole network (H4), and what Adam's first step hides (H10); whether both
signs of a prompt oppose (H5).

What decides was registered for the study mass (data/results/dose/registration.yaml), thresholds
included. A token is counted below one half (p < 0.5), which its tables and sentences call unsure.
Every measure gives one number per unit.
"""

from functools import partial

import numpy as np
import pandas as pd

from workbook.statistics import logs
from workbook.studies.record import Tables


def _pairs(tables: Tables, weights: str, opposite: bool = False) -> pd.DataFrame:
    table = tables["mass/pairs"].query("weights == @weights")
    return (
        table[(table["signs"] == "opposite") & (table["where"] == "across rollouts")]
        if opposite
        else table
    )


def mass_share(tables: Tables, weights: str = "output layer", opposite: bool = False) -> pd.Series:
    """H2 by mass: share of the sum of |coupling| that pairs of the same token, both unsure, hold;
    R2 with opposite.
    """
    table = _pairs(tables, weights, opposite)
    top = table[table["same"] & (table["unsure"] == 2)]
    return top.groupby("seed")["size"].sum() / table.groupby("seed")["size"].sum()


def mass_elsewhere(tables: Tables) -> pd.Series:
    """H2 by mass in other prompts: the share that lands on the pushed token, both unsure."""
    rows = tables["mass/blocks"].query(
        "where == 'other prompts' and kind == 'same token, both unsure'"
    )
    return rows.groupby("seed")["mass"].sum()


def pair_ratio(tables: Tables, weights: str = "output layer", opposite: bool = False) -> pd.Series:
    """H2 per pair: mean |coupling| of the same token, both unsure, over the largest other kind's;
    no same context.
    """
    table = _pairs(tables, weights, opposite)
    kinds = (
        table[table["where"] != "same context"]
        .groupby(["seed", "same", "unsure"])[["size", "pairs"]]
        .sum()
    )
    sizes = (kinds["size"] / kinds["pairs"]).unstack(["same", "unsure"])
    return logs(sizes[True, 2] / sizes.drop(columns=[(True, 2)]).max(axis=1))


def offset(tables: Tables) -> pd.Series:
    """H2: net coupling of all pairs over that of the same token's alone: 0 where different tokens
    take it all away.
    """
    table = _pairs(tables, "output layer")
    return table.groupby("seed")["net"].sum() / table[table["same"]].groupby("seed")["net"].sum()


def _opposed(tables: Tables, column: str = "cosine_all") -> pd.Series:
    """H5: a column of the inner products of a prompt's positive and negative gradients, mean over
    prompts.
    """
    return tables["mass/opposed"].groupby("seed")[column].mean()


def spillover_ratio(tables: Tables) -> pd.Series:
    """H3: mean |change| of the same token, unsure, over the largest other kind's outside the
    pushing contexts.

    Geometric mean over the checkpoints of training.
    """
    table = tables["mass/training"]
    kinds = [
        kind for kind in table["quantity"].unique() if kind.startswith(("same token", "different"))
    ]
    sizes = table[table["quantity"].isin(kinds)].pivot(
        index=["seed", "step"], columns="quantity", values="size"
    )
    top = sizes.pop("same token, unsure")
    return logs(np.exp(np.log(top / sizes.max(axis=1)).groupby("seed").mean()))


def follows_pushing(tables: Tables) -> pd.Series:
    """H3: mean change of the same token, unsure, elsewhere, as a share of the pushing tokens', over
    checkpoints.
    """
    return (
        tables["mass/training"]
        .query("quantity == 'same token, unsure'")
        .groupby("seed")["net"]
        .mean()
    )


def least_agreement(tables: Tables, tokens: str = "all") -> pd.Series:
    """H4: share of tokens whose sign the output layer predicts, at the worst checkpoint."""
    return (
        tables["mass/training"]
        .query("quantity == 'agreement, ' + @tokens")
        .groupby("seed")["size"]
        .min()
    )


def hidden_fall(tables: Tables) -> pd.Series:
    """H10: fall of SGD's movement over that of AdamW's when a sure token pushes instead of an
    unsure one.
    """
    sizes = tables["mass/adam"].pivot(index="seed", columns=["optimizer", "pushing"], values="size")
    falls = {name: sizes[name, "unsure"] / sizes[name, "sure"] for name in ("sgd", "adamw")}
    return logs(falls["sgd"] / falls["adamw"])


MEASURES = {
    "mass": {
        "H2": mass_share,
        "H2 other prompts": mass_elsewhere,
        "H2 all weights": partial(mass_share, weights="all weights"),
        "H2 per pair": pair_ratio,
        "H2 per pair, all weights": partial(pair_ratio, weights="all weights"),
        "H2 offset": offset,
        "H3": spillover_ratio,
        "H3 follows": follows_pushing,
        "H4": least_agreement,
        "H4 moved": partial(least_agreement, tokens="moved"),
        "H4 unsure": partial(least_agreement, tokens="unsure"),
        "H5 cosine": _opposed,
        "H5 cosine, output layer": partial(_opposed, column="cosine"),
        "H10": hidden_fall,
        "R2": partial(pair_ratio, weights="all weights", opposite=True),
        "R2 mass": partial(mass_share, weights="all weights", opposite=True),
    }
}
