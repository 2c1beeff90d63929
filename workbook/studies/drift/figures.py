"""What chapters 03, 04, 09 and 14 draw of the studies of exchangeable weights: a function for each
table of data/figures/drift and data/figures/exchange.
"""

import numpy as np
import pandas as pd

from workbook.chapters.drift.charts import CURVE_OUTCOMES
from workbook.statistics import t_interval, unit_curve
from workbook.studies.drift import claims
from workbook.studies.drift.study import COMPARED, CURVES, GROUPS, PAIRS
from workbook.studies.record import FAMILY, Tables, load_measured
from workbook.studies.registration import MIN_UNITS, read_registration
from workbook.views.figures import INTERVAL

# --- what a group shares, and what training pays (chapters 09 and 14)


def _energy() -> pd.DataFrame:
    """Share of gradient energy on tokens that whole groups share, by template confidence and group
    size.
    """
    rows = FAMILY["confidence/energy"].query("category == 'all'")
    return unit_curve(rows, "confidence", "shared_energy", by="group_size")


def _group_sizes() -> pd.DataFrame:
    """Exact held-out value at the end minus that in pairs, at 128 rollouts a batch, by arm and
    group size; 0 in pairs.
    """
    units, rows = claims.places_on(FAMILY, "group_size"), []

    def gain(arm: str):
        return lambda path, pairs: path(arm)["value"].iloc[-1] - pairs(arm)["value"].iloc[-1]

    for arm in COMPARED:
        for size, paths in units.items():
            for seed, path in paths.items():
                rows.append((seed, size, arm, claims.number_of(gain(arm), path, units[2][seed])))
    gaps = pd.DataFrame(rows, columns=["seed", "group_size", "arm", "gap"])
    return unit_curve(gaps, "group_size", "gap", by="arm")


def _curves() -> pd.DataFrame:
    """Means over units along training, in pairs and in groups of eight: a line an arm and outcome.

    Twins with permuted advantages are named so. A batch at which a unit was not read is left out.
    """
    rows, parts = FAMILY[f"{CURVES}/curves"], []
    rows = rows.assign(arm=rows["arm"] + np.where(rows["permuted"], ", permuted", ""))
    for size, confidence in (GROUPS, PAIRS):
        here = rows[(rows["group_size"] == size) & np.isclose(rows["confidence"], confidence)]
        for name in CURVE_OUTCOMES:
            curve = unit_curve(here.dropna(subset=[name]), "batch", name, by="arm")
            parts.append(curve.assign(outcome=name, group_size=size))
    return pd.concat(parts)


def _equal_weights() -> pd.DataFrame:
    """Tax and entropy of style words along training in pairs: GSPO's unequal weights, equal ones,
    and the twin of each.
    """
    rows = FAMILY["equal_weights/runs"].query(
        "objective == 'GSPO' and weights in @claims.BOTH and group_size == 2"
    )
    rows = rows.assign(arm=rows["weights"] + np.where(rows["permuted"], ", permuted", ""))
    parts = [
        unit_curve(rows, "batch", name, by="arm").assign(outcome=name)
        for name in ("tax", "style_entropy")
    ]
    return pd.concat(parts)


def _noise_by_group_size() -> pd.DataFrame:
    """Noise of one step on 128 rollouts, and its cosine with the exact gradient of its own and of
    other prompts, by group size.
    """
    steps = FAMILY["recovered/update"].query("axis == 'equal' and rule == 'grpo'")
    columns = {
        "noise": "noise, own prompts",
        "cosine": "cosine, own prompts",
        "cosine_held_out": "cosine, other prompts",
    }
    parts = [
        unit_curve(steps, "group_size", column).assign(part=name)
        for column, name in columns.items()
    ]
    return pd.concat(parts)


# --- the losses of TRL (chapters 03 and 04, and data/book/losses.md)

_POLICIES = {"bundled": "bundled policy", "smollm2_chat": "SmolLM2-135M"}  # by scale
REUSED = [2, 4, 8]  # step on the batch; before the first nothing has moved


def _loss_drift() -> pd.DataFrame:
    """Root mean square log-ratio of a batch (nats) by policy and step on it; shared: the mean of
    position-shared words alone (NaN: there are none).
    """
    rows = []
    for scale, policy in _POLICIES.items():
        moved = load_measured("loss_types", scale, "drift").query("reuse in @REUSED")
        for step, units in moved.groupby("reuse"):
            interval, shared = t_interval(units["drift"]), units["shared_drift"].mean()
            rows.append((policy, step, *interval, len(units), shared))
    return pd.DataFrame(rows, columns=["policy", "step", *INTERVAL, "units", "shared"])


def _loss_levels(tables: Tables, base: str | None = None) -> pd.DataFrame:
    """Residual over all places, for every arm and step on the batch, with 95 % t intervals over
    units (seeds).

    base: an arm whose residual in the same unit is subtracted.  Columns arm, kind, reuse, mean,
    low, high, units; mean and interval are NaN below 6 units, as where an arm lets nothing push.
    """
    keys = ["arm", "kind", "reuse"]
    residuals = tables["loss_types/residuals"].groupby([*keys, "seed"], sort=False)["every"]
    units = residuals.mean().astype(float).reset_index()
    if base:
        of_base = units[units["arm"] == base].set_index(["reuse", "seed"])["every"]
        same_unit = pd.MultiIndex.from_frame(units[["reuse", "seed"]])
        units["every"] -= of_base.reindex(same_unit).to_numpy()
    rows = []
    for names, part in units.groupby(keys, sort=False):
        values = part["every"].dropna()
        interval = t_interval(values) if len(values) >= MIN_UNITS else [np.nan] * 3
        rows.append((*names, *interval, len(values)))
    return pd.DataFrame(rows, columns=[*keys, *INTERVAL, "units"])


def loss_verdicts(tables: Tables) -> pd.DataFrame:
    """The registered primary outcome: each arm's residual minus dr_grpo's in the same unit.

    Columns of `loss_levels`, and verdict: "adds" (whole interval above the smallest effect of
    interest), "takes away" (below minus that), "no difference of interest" (within), "undecided",
    or "too few units".
    """
    table = _loss_levels(tables, "dr_grpo")
    least = read_registration("loss_types").notes["smallest_effect_of_interest"]
    within = (table["low"] > -least) & (table["high"] < least)
    cases = [table["mean"].isna(), table["low"] > least, table["high"] < -least, within]
    words = ["too few units", "adds", "takes away", "no difference of interest"]
    return table.assign(verdict=np.select(cases, words, "undecided"))


def losses() -> pd.DataFrame:
    """Residual of every loss at each step on a batch, and the verdict on it against dr_grpo's."""
    parts = []
    for scale, policy in {**_POLICIES, "smollm2_chat": "SmolLM2-135M, chat"}.items():
        tables = Tables(scale)
        verdicts = loss_verdicts(tables)["verdict"]  # of the same rows
        parts.append(_loss_levels(tables).assign(verdict=verdicts, policy=policy))
    return pd.concat(parts)


def _normalizers() -> pd.DataFrame:
    """Residual of three normalizers before the first step on SmolLM2, whose answers differ in
    length by length_sd tokens.
    """
    scale = "smollm2_chat"
    levels = _loss_levels(Tables(scale)).rename(columns={"arm": "loss_type"})
    named = levels["loss_type"].isin(["grpo", "dapo", "dr_grpo"])
    levels = levels[named & (levels["reuse"] == 1)]
    lengths = load_measured("loss_types", scale, "drift")["length_sd"]
    levels = levels.assign(length_sd=lengths.mean())
    return levels[["loss_type", *INTERVAL, "units", "length_sd"]]


FIGURES = {
    "confidence": {
        "drift/energy": _energy,
        "drift/group_sizes": _group_sizes,
    },
    "training_curves": {"drift/curves": _curves},
    "equal_weights": {"drift/equal_weights": _equal_weights},
    "recovered": {"drift/noise_by_group_size": _noise_by_group_size},
    "loss_types": {
        "exchange/drift": _loss_drift,
        "exchange/normalizers": _normalizers,
        "drift/losses": losses,
    },
}
