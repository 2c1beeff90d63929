"""Charts of chapter 06: coupling by pair and by mass, and H3, H4 along training; tables of the study mass."""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.statistics import t_interval, unit_curve
from workbook.studies.claim import FAMILY, Tables
from workbook.topics.coupling.claims import MIN_AGREEMENT, MIN_RATIO
from workbook.views.curves import curve_chart
from workbook.views.explorer import Explorer, menu, switch
from workbook.views.figures import forest
from workbook.views.style import describe_rows, titled

WEIGHTS = ("output layer", "all weights")
SIGNS = {"any": None, "same": "same", "opposite": "opposite"}
UNSURE_TEXT = {2: "both unsure", 1: "one unsure", 0: "both sure"}
SHARES = {"pairs": "share of the pairs", "size": "share of the mass, sum of |coupling|", "net": "net coupling / mass"}
FOLLOWERS = ("same token, unsure", "different, unsure", "different, sure")


def compute_mass(
    weights: str = "output layer", signs: str = "any", same_context: bool = True, tables: Tables | None = None
) -> dict[str, pd.DataFrame]:
    """Shares of pairs and of mass, and net coupling, by kind of pair: columns kind, quantity, mean, low, high.

    weights: of WEIGHTS.  signs: of the pair's rollouts, of SIGNS.  same_context: whether pairs behind one and the same
    prefix count.  Intervals are over units.  Raises ValueError for other settings.
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
    cells = [
        {"kind": name, "quantity": text, **t_interval(shares.xs(name, level="kind")[column])._asdict()}
        for name in order
        for column, text in SHARES.items()
        if name in shares.index.get_level_values("kind")
    ]
    return {"table": pd.DataFrame(cells)}


def mass_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Dots with intervals, a line per kind of pair; table of compute_mass."""
    share = alt.X("mean:Q", title="share").scale(domain=[-0.7, 1.0], clamp=True)
    look = {"names": list(SHARES.values()), "zero": True, "height": alt.Step(16), "form": ".3f"}
    return titled(
        forest(table, "kind", share, "quantity", **look),
        "Few pairs hold all the mass, and its two halves have opposite signs",
        "by kind of pair; bar: 95 % t interval over units (policy and prompts)",
        describe_rows(table, "kind", "quantity", form=".2f"),
    )


def describe_mass(table: pd.DataFrame) -> str:
    """The two kinds that hold the mass, in words."""
    mass = table[table["quantity"] == SHARES["size"]].nlargest(2, "mean")
    return "Of the mass, " + ", ".join(f"{row.mean:.0%} on {row.kind}" for row in mass.itertuples()) + "."


def explore_mass() -> Explorer:
    """Menus over weights, signs and contexts: which pairs of tokens carry the coupling?"""
    controls = {
        "weights": menu("output layer", list(WEIGHTS), "gradients of"),
        "signs": menu("any", list(SIGNS), "signs of the rollouts"),
        "same_context": switch(True, "pairs in the same context, too"),
    }
    return Explorer(compute_mass, mass_chart, controls, describe_mass)


def spillover_curves(tables: Tables | None = None) -> alt.LayerChart:
    """H3 along training: how far other tokens move when one token pushes, by kind."""
    rows = (tables or FAMILY)["mass/training"]
    rows = rows[rows["quantity"].isin(FOLLOWERS)]
    return curve_chart(
        unit_curve(rows, "step", "size", by="quantity"),
        "step",
        series="quantity",
        x_title="optimizer steps of training",
        y_title="mean |change| / the pushing tokens'",
        title="All along training the same unsure token moves as if it had pushed itself",
        log2=False,
        reference=[(1 / MIN_RATIO, f"1/{MIN_RATIO:g}, our threshold for the others")],
        names=list(FOLLOWERS),
    )


def agreement_curves(tables: Tables | None = None) -> alt.LayerChart:
    """H4 along training: share of tokens whose direction the output layer predicts, and the reward."""
    rows = (tables or FAMILY)["mass/training"]
    signs = rows[rows["quantity"].str.startswith("agreement")]
    reward = rows.drop_duplicates(["seed", "step"]).assign(quantity="mean reward", size=lambda t: t["reward"])
    rows = pd.concat([signs.assign(quantity=signs["quantity"].str.replace("agreement, ", "tokens: ")), reward])
    return curve_chart(
        unit_curve(rows, "step", "size", by="quantity"),
        "step",
        series="quantity",
        x_title="optimizer steps of training",
        y_title="share that agrees in sign; reward",
        title="The output layer predicts which way a token goes that moves",
        log2=False,
        reference=[(MIN_AGREEMENT, "our threshold"), (0.7, "the paper, all tokens")],
    )


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
