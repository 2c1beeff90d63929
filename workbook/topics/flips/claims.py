"""Claims of chapter 05: which tokens flip (H1), under which optimizer (R5), with signs permuted (R3), and whether
cancellation is what holds shared tokens still (H5).

Stated before anything was measured:

- Learning rates: those at which one step on all rollouts moves their tokens by 0.1 nats (root mean square), SGD's and
  AdamW's each; variants with and without momentum take their family's.
- H1 replicates if the total variation distance between the shares (boosted, suppressed, stable at eps = 0.01) of
  positive and of negative rollouts lies below `MAX_TV_DISTANCE`, after a generation batch of four AdamW steps.
- R5: the same with SGD.  R1: the same over frequency-matched tokens (`workbook.topics.credit.claims`).
- H5 replicates if unsure tokens of positive rollouts that both signs share move less than `MAX_SHARED_RATIO` as far as
  those that only positive rollouts hold (one SGD step).  And its index predicts: AUROC of the coupled index for the
  sign of dlogp, and of the known credit, above that of the rollout's own advantage.
- R3 replicates if advantages permuted over the same token's occurrences in other rollouts move a token at all in their
  direction: `others` above 0, with token frequencies fixed.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from workbook.statistics import Estimate, nested_estimate
from workbook.studies.claim import Claim, Measurement, Tables

EPS = 0.01  # nats: a probability that changed by less than about 1 % of itself counts as stable
MAX_TV_DISTANCE = 0.1  # total variation between the shares of the two signs
MAX_SHARED_RATIO = 0.5  # movement of shared tokens / of specific ones
SHARED = "movement of shared tokens / of those in positive rollouts alone"


def flip_distance_of(
    tables: Tables, optimizer: str = "adamw", after: str = "generation", tokens: str = "all", eps: float = EPS
) -> Estimate:
    """Total variation distance between the two signs' shares: H1; R1 with tokens="matched"."""
    shares = tables["flips/shares"]
    chosen = shares[
        (shares["optimizer"] == optimizer)
        & (shares["after"] == after)
        & (shares["tokens"] == tokens)
        & np.isclose(shares["eps"], eps)
    ]
    return distance(chosen, tables.resamples)


def distance(shares: pd.DataFrame, resamples: int | None = None) -> Estimate:
    """The distance of one condition's rows of the table `shares`, resampled over seeds and prompts."""
    difference = shares.assign(difference=shares["positive"] - shares["negative"])
    wide = difference.pivot_table(index=["seed", "group"], columns="change", values="difference").reset_index()
    changes = ["boosted", "suppressed", "stable"]
    return nested_estimate(wide, changes, lambda means: np.abs(means).sum(-1) / 2, resamples=resamples)


def shared_ratio(tables: Tables, optimizer: str = "sgd", what: str = "size", band: int | None = None) -> Estimate:
    """Movement of tokens that both signs share, relative to tokens that positive rollouts alone hold: H5.

    what: "size" (mean |dlogp|, as stated) or "dlogp" (net).  band: of confidence (BANDS of the study), all by default.
    """
    table = tables["flips/shared"].query("optimizer == @optimizer")
    if band is not None:
        table = table[table["band"] == band]
    sums = (
        table.assign(total=table[what] * table["tokens"]).groupby(["seed", "group", "kind"])[["total", "tokens"]].sum()
    )
    means = (sums["total"] / sums["tokens"]).unstack("kind").reset_index()
    return nested_estimate(
        means, ["shared", "specific"], lambda pair: pair[..., 0] / pair[..., 1], resamples=tables.resamples
    )


def index_advantage(tables: Tables, target: str = "dlogp", measure: str = "AUROC") -> Estimate:
    """How much better than the rollout's own advantage the coupled index predicts the target: H5."""
    table = tables["flips/predictions"].query("target == @target and measure == @measure")
    wide = table.pivot_table(index=["seed", "group"], columns="predictor", values="value").reset_index()
    gain = wide.assign(gain=wide["coupled_index"] - wide["advantage"])
    return nested_estimate(gain, "gain", resamples=tables.resamples)


def composition_effect(tables: Tables, cause: str = "others") -> Estimate:
    """Nats per unit of advantage that is permuted to the same token in other rollouts (or to its own): R3."""
    return nested_estimate(tables["flips/effects"], cause, resamples=tables.resamples)


def distance_row(**condition: str) -> Measurement:
    """H1's measurement under a condition of `flip_distance_of`."""
    label = "distance of the two signs' shares, " + ", ".join(condition.values())
    return Measurement("flips", label, partial(flip_distance_of, **condition), below=MAX_TV_DISTANCE)


CLAIMS = [
    Claim(
        "H1",
        "shares of boosted, suppressed and stable tokens are alike in positive and negative rollouts",
        "Fig 1, 9",
        f"the shares of the two signs lie {MAX_TV_DISTANCE:g} or more apart (total variation)",
        [distance_row(optimizer="adamw")],
    ),
    Claim(
        "H5",
        "opposing pushes cancel on tokens that both signs share",
        "sections 3-4",
        f"shared tokens move at least {MAX_SHARED_RATIO:g} times as far as specific ones, "
        "or the index foretells no better",
        [
            Measurement("flips", SHARED, shared_ratio, below=MAX_SHARED_RATIO),
            Measurement("flips", "AUROC for dlogp: coupled index less own advantage", index_advantage, above=0),
            Measurement(
                "flips",
                "AUROC for true credit: coupled index less own advantage",
                partial(index_advantage, target="credit"),
                above=0,
                scales=("tiny", "bundled"),  # true credit is known of the chain task alone
            ),
        ],
    ),
    Claim(
        "R3",
        "with frequencies fixed, signs dealt to other occurrences move a token",
        "review of H: sign composition alone",
        "the token does not move towards signs dealt to its other occurrences",
        [Measurement("flips", "nats per unit of advantage dealt to the token elsewhere", composition_effect, above=0)],
    ),
    Claim(
        "R5",
        "H1 holds under SGD as under Adam",
        "review of H: optimizer artefacts",
        f"under SGD the shares of the two signs lie {MAX_TV_DISTANCE:g} or more apart",
        [distance_row(optimizer="sgd")],
    ),
]
