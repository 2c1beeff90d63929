"""Tables and charts of coupling: mass, a push's spillover, the proxy against full gradients."""

import altair as alt
import numpy as np
import pandas as pd

from workbook.statistics import bootstrap_mean, unit_curve
from workbook.theory.coupling import BELOW_HALF
from workbook.views import figures
from workbook.views.charts import curve_chart
from workbook.views.live_study import NOW
from workbook.views.measured import measured_table
from workbook.views.style import ACCENT, describe_rows, require_columns, titled

# kinds outside the pushing contexts
FOLLOWERS = ("same token, unsure", "different, unsure", "different, sure")
AGREEMENT = ("agreement, all", "agreement, unsure", "agreement, moved")
WEIGHTS = ("output layer", "all weights")
SIGNS = {"any": None, "same": "same", "opposite": "opposite"}
BELOW_HALF_TEXT = {2: "both below one half", 1: "one below one half", 0: "none below one half"}
_SHARES = {
    "pairs": "share of the pairs",
    "size": "share of all coupling",
    "net": "the same with its sign",
}
DOMAINS = {"pairs": [0, 1.15], "size": [0, 0.65], "net": [-0.75, 0.75]}
# rows of a chart: two kinds of pair that hold nearly all coupling, and the rest
STRONGEST = ("same token, both below one half", "different, both below one half")
REST = "all other pairs"
THE_FAMILY = "ten policies"


# --- pairs by mass


def mass_shares(
    pairs: pd.DataFrame, weights: str, signs: str, same_context: bool
) -> dict[str, pd.DataFrame]:
    """Shares of pairs and of mass, and net coupling, by kind of pair: {of SHARES: kind, mean, low,
    high, units}.

    pairs: of `probes.pair_sums`, with a column seed.  weights: of WEIGHTS.  signs: of the pair's
    rollouts, of SIGNS.  same_context: whether pairs behind one and the same prefix count.
    """
    rows = pairs[pairs["weights"] == weights]
    if SIGNS[signs]:
        rows = rows[rows["signs"] == signs]
    if not same_context:
        rows = rows[rows["where"] != "same context"]
    kind = rows["same"].map({True: "same token, ", False: "different, "}) + rows["unsure"].map(
        BELOW_HALF_TEXT
    )
    sums = rows.groupby([rows["seed"], kind.rename("kind")])[["pairs", "size", "net"]].sum()
    whole = sums.groupby("seed").transform("sum").assign(net=lambda t: t["size"])
    shares = (sums / whole).unstack(fill_value=0.0).stack(future_stack=True).reset_index()
    kinds = [
        f"{same}, {text}"
        for text in BELOW_HALF_TEXT.values()
        for same in ("same token", "different")
    ]
    order = [name for name in kinds if name in set(shares["kind"])]
    curves = {
        column: unit_curve(shares, "kind", column).set_index("kind").loc[order]
        for column in _SHARES
    }
    return {column: curve.reset_index() for column, curve in curves.items()}


def compute_mass(
    weights: str = "output layer", signs: str = "any", same_context: bool = True
) -> dict[str, pd.DataFrame]:
    """The family's `mass_shares`, with the column series."""
    table = measured_table("coupling/mass")
    setting = ["weights", "signs", "same_context"]
    here = (table[setting] == [weights, signs, same_context]).all(axis=1)
    rows = table[here].drop(columns=setting)
    tables = {name: rows[rows["shown"] == name].drop(columns="shown") for name in _SHARES}
    return {name: strongest_and_rest(one).assign(series=THE_FAMILY) for name, one in tables.items()}


def strongest_and_rest(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of the STRONGEST kinds of a table of `mass_shares`, and one for the sum of all others.

    The sum is one of means, and has no interval.
    """
    strong = table["kind"].isin(STRONGEST)
    rest = {"kind": REST, "mean": table.loc[~strong, "mean"].sum(), "units": table["units"].min()}
    return pd.concat([table[strong], pd.DataFrame([rest])], ignore_index=True)


def mass_chart(pairs: pd.DataFrame, size: pd.DataFrame, net: pd.DataFrame) -> alt.HConcatChart:
    """Bars of the two strongest kinds of pair and the rest, a panel for each of SHARES.

    Tables of compute_mass.
    """
    tables = dict(zip(_SHARES, (pairs, size, net), strict=True))
    rows = [*STRONGEST, REST]
    panels = []
    for name, table in tables.items():
        require_columns(table, ["series", "kind", "mean", "low", "high"], "mass_chart")
        x = alt.X("mean:Q", title=None).scale(domain=DOMAINS[name], clamp=True)
        y = alt.Y("kind:N", sort=rows, title=None).axis(labels=name == "pairs", labelLimit=340)
        look = {"names": [THE_FAMILY, NOW], "number": ".1%", "form": ".3f"}
        panels.append(
            figures.bars(
                table,
                y,
                x.axis(format="%", tickCount=3),
                "series",
                title=_SHARES[name],
                width=158,
                height=alt.Step(24),
                **look,
            )
        )
    described = (
        f"{_SHARES[name]}: {describe_rows(t, 'series', 'kind', form='.2f')}"
        for name, t in tables.items()
    )
    return figures.panels(
        panels,
        "Pairs of one unlikely word are few and strong; other words take as much back",
        "coupling of a prompt's pairs of tokens; thin lines: 95 % t intervals over ten policies",
        "; ".join(described),
        spacing=10,
    )


def describe_mass(pairs: pd.DataFrame, size: pd.DataFrame, net: pd.DataFrame) -> str:
    """The two kinds that hold most coupling, in words."""
    shown = NOW if NOW in set(size["series"]) else THE_FAMILY
    mass = size[size["series"] == shown].nlargest(2, "mean")
    return (
        f"Of all coupling, {shown}: "
        + ", ".join(f"{row.mean:.0%} on {row.kind}" for row in mass.itertuples())
        + "."
    )


# --- one token pushes


def kind_name(name: str) -> str:
    """A kind of token as a chart shows it: tables call p < BELOW_HALF unsure.

    >>> kind_name("different, unsure")
    'different, below one half'
    """
    return name.replace("unsure", "below one half")


def training_chart(table: pd.DataFrame) -> alt.HConcatChart:
    """Spillover and agreement along training, a panel each: table "coupling/training".

    Columns panel (followers, agreement), series, step, mean, low, high.
    """
    titles = {
        "followers": ("movement / the pushing tokens'", "The same unlikely word follows fully"),
        "agreement": ("share that agrees", "The output layer predicts what moves"),
    }
    drawn = []
    for panel, names in {"followers": FOLLOWERS, "agreement": AGREEMENT}.items():
        rows = table[table["panel"] == panel]
        rows = rows.assign(series=rows["series"].map(kind_name))
        y_title, title = titles[panel]
        drawn.append(
            curve_chart(
                rows,
                "step",
                series="series",
                log2=False,
                x_title="optimizer steps of training",
                y_title=y_title,
                title=title,
                subtitle="below one half: p < 0.5; band: 95 % t interval over ten policies",
                names=[kind_name(name) for name in names],
                legend={"columns": 1},
                width=293,
            )
        )
    ends = table[table["step"] == table["step"].max()]
    chart = alt.hconcat(*drawn, spacing=14).properties(
        description=f"At the end: {describe_rows(ends, 'series')}."
    )
    return chart.resolve_scale(**dict.fromkeys(("color", "strokeDash", "shape"), "independent"))


def agreement_by_movement(table: pd.DataFrame, bins: int = 10) -> pd.DataFrame:
    """H4 by how far tokens move: share whose direction the output layer predicts, in equally many
    tokens a bin.

    table: of `masked_update`, with a column agree (bool).  Columns size (median |dlogp|, nats),
    mean, low, high (interval over prompts), tokens, below one half (share of them).  A change of
    exactly 0 has no direction.
    """
    moved = table.dropna(subset="agree").assign(size=lambda t: t["dlogp"].abs()).query("size > 0")
    rank = moved["size"].rank(method="first")
    place = np.minimum((rank - 1) * bins // len(moved), bins - 1)
    rows = []
    for _, part in moved.groupby(place):
        interval = bootstrap_mean(part["agree"].astype(float), part["group"])
        below_half = float((part["logp"] < np.log(BELOW_HALF)).mean())
        rows.append(
            {
                "size": part["size"].median(),
                **interval._asdict(),
                "tokens": len(part),
                "below one half": below_half,
            }
        )
    return pd.DataFrame(rows)


def agreement_by_movement_chart(table: pd.DataFrame, paper: float = 0.7) -> alt.LayerChart:
    """Points of `agreement_by_movement`, from tokens that hardly move to those that move most."""
    require_columns(
        table,
        ["size", "mean", "low", "high", "tokens", "below one half"],
        "agreement_by_movement_chart",
    )
    x = alt.X("size:Q", title="how far a token moves, |dlogp| (nats, log scale)").scale(type="log")
    y = alt.Y("mean:Q", title="share whose sign agrees").scale(domain=[0, 1])
    look = {"spread": "bars", "shown": ["tokens", "below one half"], "color": alt.value(ACCENT)}
    return titled(
        figures.series(
            table, x.axis(format="~e", tickCount=6, grid=False), y, threshold=paper, **look
        ),
        "The output layer predicts the direction of tokens that move far",
        f"a tenth of the tokens a point, 95 % intervals over prompts; dashed: {paper:g}, which"
        " arXiv 2605.08666 reports over all tokens",
        describe_rows(
            table.assign(name=table["size"].map("{:.1e} nats".format)),
            "name",
            form=".2f",
            interval=True,
        ),
    )
