"""Claims of chapter 05: which tokens flip (H1), under which optimizer (R5), at matched frequencies (R1), with signs
permuted (R3); whether cancellation holds shared tokens still (H5, the falsifier); where updates go (H6).

What decides was registered for the studies dose and dose_alphabets (data/results/<study>/registration.yaml): curves
over the number of prompts in a step, judged at `PAPER_DOSE`. The rows of the study flips, of one policy at one setting,
are described beside them; they were stated so before they were measured:

- Learning rates at which one step on all rollouts moves their tokens by 0.1 nats (root mean square).
- H1: total variation distance between the shares (boosted, suppressed, stable at eps = 0.01) of both signs' rollouts
  below `MAX_TV_DISTANCE`, after a generation batch of four AdamW steps.  R5: with SGD.  R1: over frequency-matched
  tokens.
- H5: unsure tokens of positive rollouts that both signs share move less than `MAX_SHARED_RATIO` as far as those that
  only positive rollouts hold (one SGD step).  And the coupled index predicts dlogp and credit better than the rollout's
  own advantage.
- R3: advantages permuted over the same token's occurrences in other rollouts move a token in their direction.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from workbook.statistics import Estimate, nested_estimate
from workbook.studies.claim import Claim, Measurement, Tables
from workbook.topics.flips.contrasts import contrasts
from workbook.topics.flips.language_models import LANGUAGE_MODELS

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


# --- curves over prompts per step: one number per unit

PAPER_DOSE = 256  # prompts per step: our guess of the paper's
FEW = 64  # where policies with private alphabets are compared


def rate(tables: Tables, column: str = "crossed", tokens: str = "all", prompts: int = PAPER_DOSE) -> pd.Series:
    """H1, R1: a column of `flip_rates` at a number of prompts per step."""
    table = tables["dose/rates"].query("tokens == @tokens and prompts == @prompts")
    return table.set_index("seed")[column]


CURVE_KEYS = ("seed", "alphabets", "dial", "level")  # what names a curve, as far as a table has it


def predicted_follows(table: pd.DataFrame) -> pd.DataFrame:
    """H1's prediction beside what was measured: rows of unsure tokens with the column predicted.

    1/2 + (follows of a prompt alone - 1/2) own / (own + others).  Columns that name a curve: `CURVE_KEYS`.
    """
    rows = table[table["tokens"] == "unsure"]
    keys = [name for name in CURVE_KEYS if name in rows]
    alone = rows.loc[rows["prompts"] == 1].set_index(keys)["follows"]
    at = pd.MultiIndex.from_frame(rows[keys]) if len(keys) > 1 else rows[keys[0]]
    first = pd.Series(alone.reindex(at).to_numpy(), rows.index)
    share = rows["own"] / (rows["own"] + rows["others"])
    return rows.assign(predicted=0.5 + (first - 0.5) * share, share=share)


def missed(tables: Tables, table: str = "dose/rates") -> pd.Series:
    """H1's mechanism: mean |measured - predicted| follows over the numbers of prompts above 1, then over the curves."""
    rows = predicted_follows(tables[table]).query("prompts > 1")
    curve = [rows[name] for name in CURVE_KEYS if name in rows]
    return (rows["follows"] - rows["predicted"]).abs().groupby(curve).mean().groupby("seed").mean()


def contrast(
    tables: Tables,
    identity: str = "sign-shared",
    prompts: int = PAPER_DOSE,
    kept: float = 0.5,
    matched: bool = False,
) -> pd.Series:
    """H5 at a number of prompts per step; the falsifier with kept=1."""
    table = contrasts(tables["dose/net"].query("identity == @identity and prompts == @prompts"), kept, matched)
    return table.set_index("seed")["contrast"]


def turning(tables: Tables) -> pd.Series:
    """H5: mean contrast where own exceeds others, minus the mean where others exceed own; NaN where one is missing."""
    rates = tables["dose/rates"].query("tokens == 'unsure'").set_index(["seed", "prompts"])
    table = contrasts(tables["dose/net"].query("identity == 'sign-shared'")).set_index(["seed", "prompts"])["contrast"]
    below = (rates["own"] > rates["others"]).reindex(table.index)
    return table[below].groupby("seed").mean() - table[~below].groupby("seed").mean()


def shift(tables: Tables, categories: tuple[str, ...], equal_energy: bool = False) -> pd.Series:
    """H6: shift of these categories' share of movement, both signs minus positive rollouts alone."""
    table = tables["dose/shift"].query("prompts == @PAPER_DOSE and equal_energy == @equal_energy")
    return table[table["category"].isin(categories)].groupby("seed")["shift"].sum()


def permuted(tables: Tables, rollouts: tuple[str, ...]) -> pd.Series:
    """R3: effect of a unit of advantage given to such a rollout, not to one without the word, as a share of own's."""
    table = tables["dose/signs"].assign(total=lambda rows: rows["effect"] * rows["pairs"])
    held = table[table["rollout"].isin(rollouts)].groupby("seed")[["total", "pairs"]].sum()
    without = table[table["rollout"] == "no such word"].set_index("seed")["effect"]
    return held["total"] / held["pairs"] - without


def optimizer_distance(tables: Tables, optimizer: str) -> pd.Series:
    """R5: H1's distance after one real step."""
    table = tables["dose/steps"].query("optimizer == @optimizer and tokens == 'all'")
    return table.set_index("seed")["crossed"]


def by_sharing(tables: Tables, table: pd.DataFrame, column: str) -> pd.Series:
    """A column at `FEW` prompts, with the most private alphabets minus with the fewest."""
    wide = table[table["prompts"] == FEW].pivot(index="seed", columns="alphabets", values=column)
    return wide[wide.columns.max()] - wide[wide.columns.min()]


def follows_by_sharing(tables: Tables) -> pd.Series:
    """H1 against what prompts share."""
    return by_sharing(tables, tables["dose_alphabets/rates"].query("tokens == 'unsure'"), "follows")


def contrast_by_sharing(tables: Tables) -> pd.Series:
    """H5 against what prompts share."""
    table = tables["dose_alphabets/net"].query("identity == 'sign- and place-shared'")
    return by_sharing(tables, contrasts(table), "contrast")


def follows_by_dial(tables: Tables, dial: str) -> pd.Series:
    """H1 at `FEW` prompts: chance to follow the own sign at the dial's highest level minus at its lowest."""
    rows = tables["dose_dials/rates"].query("tokens == 'unsure' and prompts == @FEW and dial == @dial")
    wide = rows.pivot(index="seed", columns="level", values="follows")
    return wide[wide.columns.max()] - wide[wide.columns.min()]


DEALT = "nats per unit of advantage dealt to the token elsewhere"
SAME_WORD = ("same word and place", "same word elsewhere")
FORMATTING = ("style", "template")
CURVES = {  # claim: {key of its outcome in the registration of dose: measure}
    "H1": {
        "H1": rate,
        "H1 control": partial(rate, tokens="unsure"),
        "H1 alone": partial(rate, prompts=1),
        "H1 follows": partial(rate, column="follows", tokens="moved"),
        "H1 prediction": missed,
        "H1 others": partial(rate, column="others_follow", tokens="unsure", prompts=512),
    },
    "H5": {
        "H5": contrast,
        "H5 alone": partial(contrast, prompts=1),
        "H5 place": partial(contrast, identity="sign- and place-shared"),
        "H5 place alone": partial(contrast, identity="sign- and place-shared", prompts=1),
        "H5 confidence": partial(contrast, matched=True),
        "H5 turning": turning,
    },
    "H6": {
        "H6": partial(shift, categories=("result",)),
        "H6 energy": partial(shift, categories=("result",), equal_energy=True),
        "H6 formatting": partial(shift, categories=FORMATTING),
    },
    "R1": {
        "R1": partial(rate, tokens="matched by word"),
        "R1 place": partial(rate, tokens="matched by word and place"),
    },
    "R3": {"R3": partial(permuted, rollouts=SAME_WORD), "R3 elsewhere": partial(permuted, rollouts=SAME_WORD[1:])},
    "R5": {
        "R5": partial(optimizer_distance, optimizer="sgd"),
        "R5 adamw": partial(optimizer_distance, optimizer="adamw"),
    },
    "H-falsifier": {
        "H-falsifier": partial(contrast, kept=1.0),
        "H-falsifier alone": partial(contrast, kept=1.0, prompts=1),
    },
}
SHARING = {
    "H1": {
        "H1 sharing": follows_by_sharing,
        "H1 sharing prediction": partial(missed, table="dose_alphabets/rates"),
    },
    "H5": {"H5 sharing": contrast_by_sharing},
}
MEMBERS = {
    "H1": {
        "H1 width": partial(follows_by_dial, dial="width"),
        "H1 length": partial(follows_by_dial, dial="operands"),
        "H1 training": partial(follows_by_dial, dial="sft_steps"),
        "H1 dials prediction": partial(missed, table="dose_dials/rates"),
    },
}


def curve_rows(claim: str) -> list[Measurement]:
    """A claim's measurements by the studies dose, dose_alphabets, dose_dials and dose_llm."""
    studies = {"dose": CURVES, "dose_alphabets": SHARING, "dose_dials": MEMBERS}
    rows = [Measurement(study, *row) for study, rows in studies.items() for row in rows.get(claim, {}).items()]
    return rows + LANGUAGE_MODELS.get(claim, [])


CLAIMS = [
    Claim(
        "H1",
        "shares of boosted, suppressed and stable tokens are alike in positive and negative rollouts",
        "Fig 1, 9",
        f"in a large step the shares of the two signs lie {MAX_TV_DISTANCE:g} or more apart (total variation)",
        [*curve_rows("H1"), distance_row(optimizer="adamw")],
    ),
    Claim(
        "H5",
        "opposing pushes cancel on tokens that both signs share",
        "sections 3-4",
        "in a large step shared words keep at least half of the net change that specific ones get",
        [
            *curve_rows("H5"),
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
        "with frequencies fixed, a unit of advantage moved from a rollout without the word to one with it moves the "
        "token",
        "review of H: sign composition alone",
        "it does not",
        [
            *curve_rows("R3"),
            Measurement("flips", DEALT, composition_effect, above=0),
        ],
    ),
    Claim(
        "R5",
        "H1 holds under SGD as under Adam",
        "review of H: optimizer artefacts",
        f"under SGD the shares of the two signs lie {MAX_TV_DISTANCE:g} or more apart",
        [*curve_rows("R5"), distance_row(optimizer="sgd")],
    ),
    *(Claim(name, "", "", "", curve_rows(name)) for name in ("H2", "H6", "R1", "H-falsifier")),  # and other chapters'
]
