"""The tables that chapter 07 draws of what teaches (`workbook.studies.figures`)."""

import pandas as pd

from workbook.chapters.teaching.charts import COMPUTED, MASK, NETWORK
from workbook.probes.agreement import falls
from workbook.statistics import pseudo_values, t_interval, unit_curve
from workbook.studies.record import Tables
from workbook.studies.teaching import by_hand
from workbook.studies.teaching.claims import excess_share
from workbook.studies.teaching.masks import BATCHES, CREDIT, MASKS, PLAIN, SIGNS, UNSURE

_WORLDS = {
    "world:plain": "chains",
    "world:third": "a third wrong",
    "world:ramble": "wrong answers ramble",
}
DIALLED = {"world:plain": "chains", "world:third": "a third wrong", "world:low": "a low start"}
SPREAD, _STEPS, _ROLLOUTS = by_hand.SPREADS["known credit"], 100, 8
KINDS = {"": MASK, f", {SIGNS}": "twin: permuted signs", f", {CREDIT}": "twin: as much |credit|"}


def _ratio_interval(values: pd.Series) -> dict[str, float]:
    """A ratio of means with the jackknife's t interval: mean, low, high."""
    return t_interval(values)._asdict() | {"mean": values.attrs["estimate"]}


def _pairs() -> pd.DataFrame:
    """R of `pairs` in networks, by world, and where it can be computed, in one context: label,
    scale, mean, low, high.
    """
    rows = []
    for world, label in _WORLDS.items():
        shares = excess_share(Tables(world))
        rows.append({"label": label, "scale": NETWORK, **_ratio_interval(shares)})
    for words in (10, 50):
        blocks = [
            falls(by_hand.bandit_pairs(words, _ROLLOUTS, SPREAD, _STEPS, block))
            for block in range(by_hand.BLOCKS)
        ]
        units = pd.DataFrame(blocks).assign(seed=range(len(blocks)))
        shares = pseudo_values(units, by_hand.excess_over_correlation)
        rows.append({"label": f"{words} words", "scale": COMPUTED, **_ratio_interval(shares)})
    return pd.DataFrame(rows)


def _masks(world: str = "world:third") -> pd.DataFrame:
    """A row per mask and twin: label, kind, credit (share of the unsure tokens' |credit| at the
    start), the value at the end minus plain's on the same policy (mean, low, high), and after how
    many batches that is.
    """
    tables = Tables(world)
    runs, shares = tables["masks/runs"], tables["masks/shares"]
    ends = runs[runs["batch"] == BATCHES].pivot(index="seed", columns="arm", values="value")
    held = shares.groupby(["arm", "seed"])["credit"].sum().unstack("arm")
    held = held.div(held[UNSURE], axis=0).mean()
    rows = []
    for label in (*MASKS, UNSURE):
        for suffix, kind in KINDS.items():
            name = f"{label}{suffix}"
            if name in ends:
                interval = t_interval(ends[name] - ends[PLAIN])._asdict()
                rows.append({"label": label, "kind": kind, "credit": held[name], **interval})
    return pd.DataFrame(rows).assign(batches=BATCHES)


def _opposition() -> pd.DataFrame:
    """Value at the end by the share of the baseline that is subtracted, minus that with all of it:
    world, share, mean, low, high, units.
    """
    parts = []
    for world, label in DIALLED.items():
        runs = Tables(world)["opposition/runs"]
        ends = runs[(runs["batch"] == BATCHES) & (runs["arm"] == "rewards")]
        full = ends[ends["share"] == 1].set_index("seed")["value"]
        lead = ends["value"].to_numpy() - full.loc[ends["seed"]].to_numpy()
        ends = ends.assign(lead=lead, world=label)
        parts.append(ends[ends["share"] < 1])
    return unit_curve(pd.concat(parts), "share", "lead", by="world")


FIGURES = {
    "pairs": {"teaching/pairs": _pairs},
    "masks": {"teaching/masks": _masks},
    "opposition": {"teaching/opposition": _opposition},
}
