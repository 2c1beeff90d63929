"""Study of chapter 05: which tokens flip (H1), under which optimizer (R5), with frequencies matched (R1) and with signs
permuted (R3), and whether cancellation is what holds shared tokens still (H5).

What was stated before, and what is judged by it: `workbook.topics.flips.claims`.

Added after a first look at four bundled seeds, with thresholds unchanged: net movement, bands of confidence and classes
in the table `shared`, and changes relative to the token's own mean in `doses`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.probes.dose import BANDS
from workbook.probes.step import ONE_STEP_OPTIMIZERS, STEP_NATS, matched_lr
from workbook.studies.bench import Bench
from workbook.topics.flips.composition import NEARLY_CERTAIN, composition_effects, sign_composition
from workbook.topics.flips.index import cancellation_index, predictions
from workbook.topics.flips.probe import EPS, frequency_matched, shares_by_prompt, token_flips

MINI_BATCHES = 4
EPSILONS = (1e-3, 3e-3, EPS, 3e-2, 1e-1, 3e-1)
FAMILY = {"sgd": "sgd", "sgd_momentum": "sgd", "adam": "adamw", "adamw": "adamw", "adamw_no_momentum": "adamw"}
GENERATION_OPTIMIZERS = {"smollm2_chat": ("sgd", "adamw", "adamw_no_momentum")}  # elsewhere all of FAMILY
PERMUTATIONS = {"smollm2_chat": 3}  # elsewhere 8
PREDICTORS = ("coupled_index", "coupled_push", "type_index", "advantage", "confidence", "frequency")


def flips_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables shares, predictions, shared, effects, doses and rates of one seed; a row per prompt and condition."""
    policy, rollouts = bench.policy, bench.rollouts
    rates = {family: matched_lr(policy, rollouts, family, STEP_NATS) for family in ONE_STEP_OPTIMIZERS}
    steps = {family: token_flips(policy, rollouts, family, rate) for family, rate in rates.items()}
    shares = [_shares(table, optimizer=family, after="one step") for family, table in steps.items()]
    for optimizer in GENERATION_OPTIMIZERS.get(bench.scale.name, tuple(FAMILY)):
        lr = rates[FAMILY[optimizer]]
        for after in ("mini_batch", "generation") if optimizer in rates else ("generation",):
            table = token_flips(policy, rollouts, optimizer, lr, MINI_BATCHES, after, seed=bench.seed)
            shares.append(_shares(table, optimizer=optimizer, after=after))
    index = cancellation_index(policy, rollouts)[["type_index", "coupled_index", "coupled_push", "frequency"]]
    permuted = sign_composition(
        policy, rollouts, PERMUTATIONS.get(bench.scale.name, 8), lr=rates["sgd"], seed=bench.seed
    )
    shares += [
        _shares(table, controls=False, optimizer="sgd", after="one step, signs dealt anew")
        for _, table in permuted.groupby("permutation")
    ]
    return {
        "rates": pd.DataFrame({"optimizer": rates.keys(), "lr": rates.values()}),
        "shares": pd.concat(shares, ignore_index=True),
        "predictions": _predictions(steps["sgd"].join(index)),
        "shared": pd.concat([_shared(table, family) for family, table in steps.items()], ignore_index=True),
        "effects": composition_effects(permuted),
        "doses": _doses(permuted),
    }


def _shares(table: pd.DataFrame, controls: bool = True, **condition) -> pd.DataFrame:
    """shares_by_prompt at every eps, of all tokens and of matched ones; none where no prompt has both signs."""
    tables = {"all": table} | ({"matched": frequency_matched(table)} if controls else {})
    parts = [pd.DataFrame()]
    for name, rows in tables.items():
        if rows.groupby("group")["advantage"].agg(lambda advantages: advantages.min() < 0 < advantages.max()).any():
            parts += [shares_by_prompt(rows, eps).assign(eps=eps, tokens=name, **condition) for eps in EPSILONS]
    return pd.concat(parts)


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
    chosen = chosen[(chosen["advantage"] > 0) & (chosen["logp"] < np.log(NEARLY_CERTAIN))]
    keys = ["group", "kind", "band", "category"]
    means = chosen.groupby(keys).agg(tokens=("size", "size"), size=("size", "mean"), dlogp=("dlogp", "mean"))
    return means.reset_index().assign(optimizer=optimizer)


def _doses(permuted: pd.DataFrame) -> pd.DataFrame:
    """Changes of unsure tokens by the balance of signs over their occurrences, in bins of 0.25.

    dlogp and size (of |dlogp|) are means over tokens; own_dlogp and own_size are relative to the same token's mean over
    the permutations, so that bins do not differ in which tokens they hold.
    """
    pushed = permuted.groupby(["permutation", "group"])["advantage"].transform("any")
    unsure = permuted[(permuted["logp"] < np.log(NEARLY_CERTAIN)) & pushed].assign(
        size=lambda rows: rows["dlogp"].abs()
    )
    own = unsure[["dlogp", "size"]] - unsure.groupby(["rollout", "position"])[["dlogp", "size"]].transform("mean")
    bins = (unsure["balance"] * 4).round().div(4)
    return (
        unsure.assign(own_dlogp=own["dlogp"], own_size=own["size"], balance=bins, tokens=1)
        .groupby(["group", "category", "balance"])
        .agg({"dlogp": "mean", "size": "mean", "own_dlogp": "mean", "own_size": "mean", "tokens": "sum"})
        .reset_index()
    )
