"""What cancels, what teaches: measures of the rows that pairs, masks, masks_sgd, opposition and
delta registered.
"""

from functools import partial

import pandas as pd

from workbook.statistics import pseudo_values
from workbook.studies.record import Tables
from workbook.studies.teaching.masks import BATCHES, CREDIT, PERMUTED, PLAIN, SIGNS, SURE, UNSURE
from workbook.studies.teaching.opposition import KNOWN


def excess_share(tables: Tables, credit: str = "exact", permuted: bool = False) -> pd.Series:
    """Pseudo-values of R: mean excess fall over mean correlation. permuted: excess of permuted
    rewards, mean of all.
    """
    rows = tables["pairs/falls"]
    known = rows[rows["permutation"] == -1]
    units = known[known["credit"] == credit].set_index("seed")[["correlation", "excess"]]
    if permuted:
        units["excess"] = rows[rows["permutation"] >= 0].groupby("seed")["excess"].mean()
    return pseudo_values(
        units.reset_index(),
        lambda table: float(table["excess"].mean() / table["correlation"].mean()),
    )


def correlation(tables: Tables) -> pd.Series:
    """Correlation of change and exact credit."""
    rows = tables["pairs/falls"].query("permutation == -1 and credit == 'exact'")
    return rows.set_index("seed")["correlation"]


def taken(tables: Tables, kind: str, minus_permuted: bool = True) -> pd.Series:
    """What the other sign's same word takes from a class of words, minus (or only) the same with
    permuted rewards.
    """
    rows = tables["pairs/shares"]
    rows = rows[rows["kind"] == kind]
    permuted = rows[rows["permutation"] >= 0].groupby("seed")[["cross", "own2"]].sum()
    permuted = permuted["cross"] / permuted["own2"]
    known = rows[rows["permutation"] == -1].set_index("seed")
    return known["cross"] / known["own2"] - permuted if minus_permuted else permuted


def end(
    tables: Tables, study: str, arm: str, share: float | None = None, batch: int = BATCHES
) -> pd.Series:
    """Exact held-out value of an arm after so many batches."""
    rows = tables[f"{study}/runs"]
    chosen = (rows["arm"] == arm) & (rows["batch"] == batch)
    if share is not None:
        chosen &= rows["share"] == share
    return rows[chosen].set_index("seed")["value"]


def end_difference(tables: Tables, study: str, arm: str, base: str) -> pd.Series:
    """Value at the end, one arm minus another."""
    return end(tables, study, arm) - end(tables, study, base)


def opposition_difference(tables: Tables, share: float, arm: str = "rewards") -> pd.Series:
    """Value at the end with a share of the baseline minus that with all of it."""
    own = None if arm == KNOWN else share
    return end(tables, "opposition", arm, own) - end(tables, "opposition", "rewards", 1.0)


def gain_share(tables: Tables, study: str, arm: tuple, base: tuple) -> pd.Series:
    """Pseudo-values of one arm's gain over another's, a ratio of means; arm, base: arguments of
    `end`.
    """
    gains = {
        name: end(tables, study, *given) - end(tables, study, *given, **({"batch": 0}))
        for name, given in (("arm", arm), ("base", base))
    }
    units = pd.DataFrame(gains).rename_axis("seed").reset_index()
    return pseudo_values(units, lambda rows: float(rows["arm"].mean() / rows["base"].mean()))


def rank(tables: Tables, column: str) -> pd.Series:
    """A rank correlation with true advantages minus that with permuted ones."""
    rows = tables["delta/ranks"].pivot(index="seed", columns="rewards", values=column)
    return rows["rewards"] - rows["permuted rewards"]


def _masks(study: str, suffix: str) -> dict:
    """The rows of a study of masks by place, their keys ending in a suffix."""
    difference, shared, specific = (
        partial(end_difference, study=study),
        "shared by place",
        "specific by place",
    )
    share = partial(gain_share, study=study, base=(PLAIN,))
    return {
        f"A2{suffix}": partial(difference, arm=specific, base=f"{specific}, {SIGNS}"),
        f"A3{suffix}": partial(difference, arm=shared, base=f"{shared}, {SIGNS}"),
        f"A2 fifth{', ' * bool(suffix)}{suffix.strip()}": partial(
            difference, arm=UNSURE, base=f"{shared}, {CREDIT}"
        ),
        f"A2 permuted{', ' * bool(suffix)}{suffix.strip()}": partial(share, arm=(PERMUTED,)),
    }


def _by_mask(claim: str, mask: str) -> dict:
    """The rows of a claim about a mask by place, beside its twins."""
    difference = partial(end_difference, study="masks")
    kind = mask.removesuffix(" by place")
    return {
        f"{claim} elsewhere": partial(difference, arm=mask, base=f"{mask}, {SIGNS}"),
        f"{claim} credit": partial(difference, arm=mask, base=f"{mask}, {CREDIT}"),
        f"{claim} word": partial(
            difference, arm=f"{kind} by word", base=f"{kind} by word, {SIGNS}"
        ),
    }


MEASURES = {
    "pairs": {
        "A1": excess_share,
        "A1 elsewhere": excess_share,
        "A1 made": partial(excess_share, credit="made by cancelling"),
        "A1 permuted": partial(excess_share, permuted=True),
        "A1 correlation": correlation,
        "A1 style": partial(taken, kind="style"),
        "A1 style permuted": partial(taken, kind="style", minus_permuted=False),
        "A1 right": partial(taken, kind="right result"),
        "A1 wrong": partial(taken, kind="wrong result"),
    },
    "masks": {
        **_masks("masks", ""),
        **_by_mask("A2", "specific by place"),
        **_by_mask("A3", "shared by place"),
        "A2 sure": partial(gain_share, study="masks", arm=(SURE,), base=(PLAIN,)),
    },
    "masks_sgd": _masks("masks_sgd", " sgd"),
    "opposition": {
        "A4": partial(opposition_difference, share=0.0),
        "A4 elsewhere": partial(opposition_difference, share=0.0),
        "A4 half": partial(opposition_difference, share=0.5),
        "A4 mixed groups": partial(opposition_difference, share=0.0, arm="without equal groups"),
        "A4 known credit": partial(opposition_difference, share=1.0, arm=KNOWN),
        "A4 permuted": partial(
            gain_share, study="opposition", arm=("permuted rewards", 0.0), base=("rewards", 1.0)
        ),
    },
    "delta": {
        "A5": partial(end_difference, study="delta", arm="top half", base="bottom half"),
        "A5 rule": partial(end_difference, study="delta", arm="delta", base=PLAIN),
        "A5 random": partial(end_difference, study="delta", arm="top half", base="random half"),
        "A5 size": partial(rank, column="by_size"),
        "A5 side": partial(rank, column="by_side"),
        "A5 learns": partial(end_difference, study="delta", arm=PLAIN, base=PERMUTED),
    },
}
