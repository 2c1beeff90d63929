"""Coupling by pair and by mass (chapter 06), and how far one sign of a prompt reaches; tables of the study mass."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from workbook.statistics import t_interval, unit_curve
from workbook.studies.claim import FAMILY, Tables
from workbook.views.figures import forest
from workbook.views.style import describe_rows, require, titled

WEIGHTS = ("output layer", "all weights")
SIGNS = {"any": None, "same": "same", "opposite": "opposite"}
UNSURE_TEXT = {2: "both unsure", 1: "one unsure", 0: "both sure"}
SHARES = {"pairs": "share of the pairs", "size": "share of the mass", "net": "net coupling / mass"}
DOMAINS = {"pairs": [0, 0.7], "size": [0, 0.7], "net": [-0.6, 0.6]}
FAMILY_NAME, NOW = "the family", "this policy, now"


def compute_mass(
    weights: str = "output layer", signs: str = "any", same_context: bool = True, tables: Tables | None = None
) -> dict[str, pd.DataFrame]:
    """Shares of pairs and of mass, and net coupling, by kind of pair: {of SHARES: series, kind, mean, low, high}.

    weights: of WEIGHTS.  signs: of the pair's rollouts, of SIGNS.  same_context: whether pairs behind one and the same
    prefix count.  Intervals are over units.  tables: the family's, if not given; those of one unit have no interval.
    Raises ValueError for other settings.
    """
    for name, value, known in (("weights", weights, WEIGHTS), ("signs", signs, SIGNS)):
        if value not in known:
            raise ValueError(f"{name}={value!r} is unknown: choose one of {', '.join(known)}.")
    rows = (tables or FAMILY)["mass/pairs"].query("weights == @weights")
    if SIGNS[signs]:
        rows = rows[rows["signs"] == signs]
    if not same_context:
        rows = rows[rows["where"] != "same context"]
    kind = rows["same"].map({True: "same token, ", False: "different, "}) + rows["unsure"].map(UNSURE_TEXT)
    sums = rows.groupby([rows["seed"], kind.rename("kind")])[["pairs", "size", "net"]].sum()
    whole = sums.groupby("seed").transform("sum").assign(net=lambda t: t["size"])
    shares = (sums / whole).unstack(fill_value=0.0).stack(future_stack=True)
    order = [f"{same}, {text}" for text in UNSURE_TEXT.values() for same in ("same token", "different")]
    known = [name for name in order if name in shares.index.get_level_values("kind")]
    return {
        column: pd.DataFrame(
            {"series": FAMILY_NAME, "kind": name, **_interval(shares.xs(name, level="kind")[column])} for name in known
        )
        for column in SHARES
    }


def _interval(values: pd.Series) -> dict[str, float]:
    if len(values) < 2:
        return {"mean": float(values.iloc[0]), "low": np.nan, "high": np.nan}
    return t_interval(values)._asdict()


def mass_chart(pairs: pd.DataFrame, size: pd.DataFrame, net: pd.DataFrame) -> alt.HConcatChart:
    """Dots with intervals, a line per kind of pair and a panel for each of SHARES; tables of compute_mass."""
    tables = dict(zip(SHARES, (pairs, size, net), strict=True))
    look = {"names": [FAMILY_NAME, NOW], "zero": True, "height": alt.Step(13), "form": ".3f", "width": 145}
    panels = []
    for name, table in tables.items():
        require(table, ["series", "kind", "mean", "low", "high"], "mass_chart")
        x = alt.X("mean:Q", title=None).scale(domain=DOMAINS[name], clamp=True).axis(format="%", tickCount=4)
        panels.append(forest(table, "kind", x, "series", labels=name == "pairs", title=SHARES[name], **look))
    return titled(
        alt.hconcat(*panels, spacing=10),
        "Few pairs hold the mass, and its two halves have opposite signs",
        "by kind of pair; bars: 95 % t intervals over ten policies; this policy: no interval",
        "; ".join(f"{SHARES[name]}: {describe_rows(t, 'series', 'kind', form='.2f')}" for name, t in tables.items()),
    )


def describe_mass(pairs: pd.DataFrame, size: pd.DataFrame, net: pd.DataFrame) -> str:
    """The two kinds that hold the mass, in words."""
    shown = NOW if NOW in set(size["series"]) else FAMILY_NAME
    mass = size[size["series"] == shown].nlargest(2, "mean")
    return f"Of the mass, {shown}: " + ", ".join(f"{row.mean:.0%} on {row.kind}" for row in mass.itertuples()) + "."


def reach_table(tables: Tables | None = None) -> pd.DataFrame:
    """Where the movement goes that a prompt's rollouts of one sign cause, in its own prompt and in others.

    Columns where, kind, pairs, mass, net: means over units, mass with its interval as text.
    """
    rows = (tables or FAMILY)["mass/blocks"]
    keys = ["where", "kind"]
    means = rows.groupby(keys)[["pairs", "net"]].mean()
    mass = unit_curve(rows.assign(x=0), "x", "mass", by=keys).set_index(keys)
    text = mass.apply(lambda row: f"{row['mean']:.2f} [{row['low']:.2f}, {row['high']:.2f}]", axis=1)
    return means.assign(mass=text)[["pairs", "mass", "net"]].round(2)
