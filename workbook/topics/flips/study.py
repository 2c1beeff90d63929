"""Study of chapter 05: which tokens flip (H1), under which optimizer (R5), with frequencies matched (R1) and with signs
dealt anew (R3), and whether cancellation is what holds shared tokens still (H5).

Stated before anything was measured:

- Learning rates: those at which one step on all rollouts moves their tokens by 0.1 nats (root mean square), SGD's and
  AdamW's each; variants with and without momentum take their family's.
- H1 replicates if the total variation distance between the shares (boosted, suppressed, stable at eps = 0.01) of
  positive and of negative rollouts lies below `ALIKE`, after a generation batch of four AdamW steps.
- R5: the same with SGD.  R1: the same over frequency-matched tokens.
- H5 replicates if unsure tokens of positive rollouts that both signs share move less than `HALF` as far as those that
  only positive rollouts hold (one SGD step).  And its index foretells: AUROC of the coupled index for the sign of
  dlogp, and of the known credit, above that of the rollout's own advantage.
- R3 replicates if advantages dealt to the same token in other rollouts move a token at all in their direction:
  `others` above 0, with token frequencies fixed.

Added after a first look at four bundled seeds, thresholds as they were: net movement, bands of confidence and classes
in the table `shared`, and changes relative to the token's own mean in `doses`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.probes.step import matched_lr
from workbook.statistics import Interval, nested_mean, nested_statistic
from workbook.studies.bench import Bench
from workbook.studies.record import load_measured
from workbook.topics.flips.composition import UNSURE, composition_effects, sign_composition
from workbook.topics.flips.index import cancellation_index, predictions
from workbook.topics.flips.probe import EPS, frequency_matched, shares_by_prompt, token_flips

ALIKE, HALF = 0.1, 0.5
MOVED = 0.1  # nats, root mean square
MINI_BATCHES = 4
BANDS = (0.0, 0.3, 0.6, UNSURE)  # of confidence, the token's probability
EPSILONS = (1e-3, 3e-3, EPS, 3e-2, 1e-1, 3e-1)
FAMILY = {"sgd": "sgd", "sgd_momentum": "sgd", "adam": "adamw", "adamw": "adamw", "adamw_no_momentum": "adamw"}
OPTIMIZERS = {"smollm2": ("sgd", "adamw", "adamw_no_momentum")}  # of the generation batch; elsewhere all
DEALS = {"smollm2": 3}  # elsewhere 8
PREDICTORS = ("coupled_index", "coupled_push", "type_index", "advantage", "confidence", "frequency")


def flips_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables shares, predictions, shared, effects, doses and rates of one seed; a row per prompt and condition."""
    policy, rollouts = bench.policy, bench.rollouts
    rates = {family: matched_lr(policy, rollouts, family, MOVED) for family in ("sgd", "adamw")}
    steps = {family: token_flips(policy, rollouts, family, rate) for family, rate in rates.items()}
    shares = [_shares(table, optimizer=family, after="one step") for family, table in steps.items()]
    for optimizer in OPTIMIZERS.get(bench.scale.name, tuple(FAMILY)):
        lr = rates[FAMILY[optimizer]]
        for after in ("mini_batch", "generation") if optimizer in rates else ("generation",):
            table = token_flips(policy, rollouts, optimizer, lr, MINI_BATCHES, after, seed=bench.seed)
            shares.append(_shares(table, optimizer=optimizer, after=after))
    index = cancellation_index(policy, rollouts)[["type_index", "coupled_index", "coupled_push", "frequency"]]
    dealt = sign_composition(policy, rollouts, DEALS.get(bench.scale.name, 8), lr=rates["sgd"], seed=bench.seed)
    shares += [
        _shares(table, controls=False, optimizer="sgd", after="one step, signs dealt anew")
        for _, table in dealt.groupby("deal")
    ]
    return {
        "rates": pd.DataFrame({"optimizer": rates.keys(), "lr": rates.values()}),
        "shares": pd.concat(shares, ignore_index=True),
        "predictions": _predictions(steps["sgd"].join(index)),
        "shared": pd.concat([_shared(table, family) for family, table in steps.items()], ignore_index=True),
        "effects": composition_effects(dealt),
        "doses": _doses(dealt),
    }


def _shares(table: pd.DataFrame, controls: bool = True, **condition) -> pd.DataFrame:
    """shares_by_prompt at every eps, of all tokens and of matched ones; none where no prompt has both signs."""
    tables = {"all": table} | ({"matched": frequency_matched(table)} if controls else {})
    found = [pd.DataFrame()]
    for name, rows in tables.items():
        if rows.groupby("group")["advantage"].agg(lambda each: each.min() < 0 < each.max()).any():
            found += [shares_by_prompt(rows, eps).assign(eps=eps, tokens=name, **condition) for eps in EPSILONS]
    return pd.concat(found)


def _predictions(table: pd.DataFrame) -> pd.DataFrame:
    table = table.assign(confidence=np.exp(table["logp"]))
    targets = [name for name in ("dlogp", "credit") if table[name].notna().any()]
    return pd.concat([predictions(table, PREDICTORS, target).assign(target=target) for target in targets])


def _shared(table: pd.DataFrame, optimizer: str) -> pd.DataFrame:
    """Movement of unsure tokens in positive rollouts, by whether negative rollouts of the prompt hold them, too.

    Columns group, kind (shared, specific), band of confidence, category, tokens, size = mean |dlogp|, dlogp = mean.
    """
    signs = table["advantage"].groupby([table["group"], table["token_id"]])
    kind = np.where(signs.transform("min") < 0, "shared", "specific")
    chosen = table.assign(kind=kind, size=table["dlogp"].abs(), band=pd.cut(np.exp(table["logp"]), BANDS, labels=False))
    chosen = chosen[(chosen["advantage"] > 0) & (chosen["logp"] < np.log(UNSURE))]
    keys = ["group", "kind", "band", "category"]
    means = chosen.groupby(keys).agg(tokens=("size", "size"), size=("size", "mean"), dlogp=("dlogp", "mean"))
    return means.reset_index().assign(optimizer=optimizer)


def _doses(dealt: pd.DataFrame) -> pd.DataFrame:
    """Changes of unsure tokens by the balance of signs over their occurrences, in bins of 0.25.

    dlogp and size (of |dlogp|) are means over tokens; own_dlogp and own_size are relative to the same token's mean over
    the deals, so that bins do not differ in which tokens they hold.
    """
    pushed = dealt.groupby(["deal", "group"])["advantage"].transform("any")
    unsure = dealt[(dealt["logp"] < np.log(UNSURE)) & pushed].assign(size=lambda rows: rows["dlogp"].abs())
    own = unsure[["dlogp", "size"]] - unsure.groupby(["rollout", "position"])[["dlogp", "size"]].transform("mean")
    bins = (unsure["balance"] * 4).round().div(4)
    return (
        unsure.assign(own_dlogp=own["dlogp"], own_size=own["size"], balance=bins, tokens=1)
        .groupby(["group", "category", "balance"])
        .agg({"dlogp": "mean", "size": "mean", "own_dlogp": "mean", "own_size": "mean", "tokens": "sum"})
        .reset_index()
    )


# --- what the claims are judged by


def flip_distance_of(
    scale: str, optimizer: str = "adamw", after: str = "generation", tokens: str = "all", eps: float = EPS
) -> Interval:
    """Total variation distance between the two signs' shares: H1; R1 with tokens="matched"."""
    shares = load_measured("flips", scale, "shares")
    chosen = shares[
        (shares["optimizer"] == optimizer)
        & (shares["after"] == after)
        & (shares["tokens"] == tokens)
        & np.isclose(shares["eps"], eps)
    ]
    return distance(chosen)


def distance(shares: pd.DataFrame) -> Interval:
    """The distance of one condition's rows of the table `shares`, resampled over seeds and prompts."""
    difference = shares.assign(difference=shares["positive"] - shares["negative"])
    wide = difference.pivot_table(index=["seed", "group"], columns="change", values="difference").reset_index()
    return nested_statistic(wide, ["boosted", "suppressed", "stable"], lambda means: np.abs(means).sum(-1) / 2)


def shared_ratio(scale: str, optimizer: str = "sgd", what: str = "size", band: int | None = None) -> Interval:
    """Movement of tokens that both signs share, relative to tokens that positive rollouts alone hold: H5.

    what: "size" (mean |dlogp|, as stated) or "dlogp" (net).  band: of confidence (see BANDS), all by default.
    """
    table = load_measured("flips", scale, "shared").query("optimizer == @optimizer")
    if band is not None:
        table = table[table["band"] == band]
    sums = (
        table.assign(total=table[what] * table["tokens"]).groupby(["seed", "group", "kind"])[["total", "tokens"]].sum()
    )
    means = (sums["total"] / sums["tokens"]).unstack("kind").reset_index()
    return nested_statistic(means, ["shared", "specific"], lambda pair: pair[..., 0] / pair[..., 1])


def index_advantage(scale: str, target: str = "dlogp", measure: str = "AUROC") -> Interval:
    """How much better than the rollout's own advantage the coupled index foretells the target: H5."""
    table = load_measured("flips", scale, "predictions").query("target == @target and measure == @measure")
    wide = table.pivot_table(index=["seed", "group"], columns="predictor", values="value").reset_index()
    return nested_mean(wide.assign(gain=wide["coupled_index"] - wide["advantage"]), "gain")


def composition_effect(scale: str, cause: str = "others") -> Interval:
    """Nats per unit of advantage that is dealt to the same token in other rollouts (or to its own): R3."""
    return nested_mean(load_measured("flips", scale, "effects"), cause)
