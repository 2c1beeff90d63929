"""Figures of the experiments on what cancels and what teaches, drawn from their tables."""

import altair as alt
import pandas as pd

from workbook.statistics import pseudo_values, t_interval, unit_curve
from workbook.studies.record import Tables
from workbook.studies.teaching import by_hand
from workbook.studies.teaching.claims import excess_share
from workbook.studies.teaching.masks import BATCHES, CREDIT, MASKS, PLAIN, SIGNS, UNSURE
from workbook.studies.teaching.pairs import falls
from workbook.views.charts import curve_chart, intervals_chart
from workbook.views.figures import rule
from workbook.views.style import NEUTRAL, SERIES, describe_rows, titled, tooltips

WORLDS = {
    "world:plain": "chains",
    "world:third": "a third wrong",
    "world:ramble": "wrong answers ramble",
}
MASK = "the mask"
NETWORK, COMPUTED = "networks, measured", "one context, computed"
SPREAD = by_hand.SPREADS["known credit"]
DIALLED = ("world:plain", "world:third", "world:low")


def excess_rows() -> pd.DataFrame:
    """R of `pairs` in networks, by world, and where it can be computed, in one context: label,
    scale, interval.
    """
    rows = []
    for world, label in WORLDS.items():
        rows.append(
            {"label": label, "scale": NETWORK, **ratio_interval(excess_share(Tables(world)))}
        )
    for words in (10, 50):
        blocks = [
            by_hand.bandit_pairs(words, 8, SPREAD, 100, block) for block in range(by_hand.BLOCKS)
        ]
        units = pd.DataFrame([falls(block) for block in blocks]).assign(seed=range(len(blocks)))
        shares = pseudo_values(units, by_hand.excess_over_correlation)
        rows.append({"label": f"{words} words", "scale": COMPUTED, **ratio_interval(shares)})
    return pd.DataFrame(rows)


def ratio_interval(values: pd.Series) -> dict[str, float]:
    """A ratio of means with the jackknife's t interval: mean, low, high."""
    return t_interval(values)._asdict() | {"mean": values.attrs["estimate"]}


def pairs_chart():
    """How much more the agreement with credit loses without the pairs that cancel than without
    other pairs.
    """
    return intervals_chart(
        excess_rows(),
        "Pairs that cancel add to agreement in one context, and hardly in a network",
        "what the agreement of a step with exact credit loses without them, beyond other pairs; 95"
        " % t intervals",
        "share of the correlation of change and credit",
        threshold=0.25,
    )


def mask_rows(world: str = "world:third") -> pd.DataFrame:
    """A row per mask and twin: label, kind, credit (share of the unsure tokens' |credit| at the
    start) and the value at the end minus plain's on the same policy (mean, low, high)."""
    tables = Tables(world)
    runs, shares = tables["masks/runs"], tables["masks/shares"]
    ends = runs[runs["batch"] == BATCHES].pivot(index="seed", columns="arm", values="value")
    held = shares.groupby(["arm", "seed"])["credit"].sum().unstack("arm")
    held = held.div(held[UNSURE], axis=0).mean()
    kinds = {
        "": MASK,
        f", {SIGNS}": "twin: permuted signs",
        f", {CREDIT}": "twin: as much |credit|",
    }
    rows = []
    for label in (*MASKS, UNSURE):
        for suffix, kind in kinds.items():
            if (name := f"{label}{suffix}") in ends:
                interval = t_interval(ends[name] - ends[PLAIN])
                rows.append(
                    {"label": label, "kind": kind, "credit": held[name], **interval._asdict()}
                )
    return pd.DataFrame(rows)


def masks_chart(world: str = "world:third"):
    """What training on some tokens alone ends at, over how much of the exact credit they hold."""
    table = mask_rows(world)
    x = alt.X("credit:Q", title="share of the unsure tokens' exact |credit| that is pushed").scale(
        domain=[0, 1.2], nice=False
    )
    y = alt.Y("mean:Q", title="value at the end minus plain's")
    base = alt.Chart(table).encode(x=x)
    names = table["kind"].drop_duplicates().tolist()
    color = alt.Color("kind:N", sort=names, title=None).scale(
        domain=names, range=list(SERIES[: len(names)])
    )
    shape = alt.Shape("kind:N", sort=names, title=None).scale(domain=names)
    hints = tooltips(table, "label", "kind", "credit", "mean", "low", "high")
    layers = [
        rule(0, "y", dashed=True, color=NEUTRAL),
        base.mark_rule(size=3, opacity=0.4).encode(y=alt.Y("low:Q"), y2="high:Q", color=color),
        base.mark_point(size=90, filled=True, opacity=1).encode(
            y=y, color=color, shape=shape, tooltip=hints
        ),
        base.transform_filter(f"datum.kind == '{MASK}'")
        .mark_text(align="left", dx=8, dy=17, fontSize=12)
        .encode(y=y, text="label:N", color=color),
    ]
    return titled(
        alt.layer(*layers).properties(width=520, height=280),
        "What a mask teaches goes with how much credit it holds",
        f"exact held-out value after {BATCHES} batches on these tokens alone; 95 % t intervals over"
        " ten policies",
        describe_rows(table, "label", "kind", interval=True),
    )


def opposition_chart():
    """Value at the end by the share of the baseline that is subtracted, minus that with all of it."""
    parts = []
    for world in DIALLED:
        runs = Tables(world)["opposition/runs"]
        ends = runs[(runs["batch"] == BATCHES) & (runs["arm"] == "rewards")]
        full = ends[ends["share"] == 1].set_index("seed")["value"]
        ends = ends.assign(
            lead=ends["value"].to_numpy() - full.loc[ends["seed"]].to_numpy(), world=world
        )
        parts.append(ends[ends["share"] < 1])
    curve = unit_curve(pd.concat(parts), "share", "lead", by="world")
    curve["world"] = curve["world"].map(WORLDS | {"world:low": "a low start"})
    return curve_chart(
        curve,
        "share",
        "world",
        x_title="share of the group's mean reward that is subtracted",
        y_title="value at the end minus GRPO's",
        title="Training without a baseline ends higher than with all of GRPO's",
        log2=False,
        reference=[(0.0, "all of it: GRPO without scaling")],
    )
