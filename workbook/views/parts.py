"""What moves a class of tokens: signal, bias, noise and coupling, in one chart; and the book as a map of them.

    signal     the push p (Q - V) that the policy gradient asks for: credit
    bias       what a rule adds to it on average: unequal weights, clips, a sampler that is not the model
    noise      what one reward per rollout adds by chance
    coupling   the part of signal, bias and noise that arrives from other contexts, through shared weights

Green is signal, charcoal is bias, violet is noise; light shades came by coupling. No other chart uses these colours,
and none of them is the blue or orange of a sign.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from workbook.views.figures import rule
from workbook.views.style import NEUTRAL, WIDTH, describe_rows, require, titled, typeset

PART_NAMES = {  # column of a split: what it is called, in the order of the bars
    "own_signal": "signal (credit)",
    "coupled_signal": "signal, by coupling",
    "bias": "bias",
    "coupled_noise": "noise, by coupling",
    "own_noise": "noise (chance)",
}
PART_COLORS = ["#46700a", "#bcd986", "#3d3d3d", "#cbb4e2", "#5f3593"]  # of PART_NAMES, in order
DARK = [PART_NAMES[name] for name in ("own_signal", "bias", "own_noise")]  # parts whose numbers are white
CLASSES = ("all", "result", "style", "copy", "template", "eos", "token")
LEAST_MOVED = 0.01  # of the largest rms change: classes that move less are left out
MANY_ROWS = 40  # from which on bars are thinner
LEAST_NUMBER = 0.08  # of the axis that a segment covers before its number fits
ROADS = [  # part, its colour, the colour of the text on it, what it is, and where it is treated
    (
        "signal",
        PART_COLORS[0],
        "white",
        "credit that the\nstep delivers",
        "02 the theorem\n04 a known policy\n07 credit",
    ),
    ("noise", PART_COLORS[4], "white", "chance of one\nbatch", "02 group size\n05 flips\n07 rollouts, prompts"),
    ("bias", PART_COLORS[2], "white", "weights, clips,\nlengths, sampler", "03 exchangeability\n09 drift"),
    (
        "coupling",
        "#dddddd",
        "black",
        "pushes of other\ncontexts",
        "01 softmax\n05 prompts · 06 tokens\n08 mini-batches",
    ),
]
ROAD_END = "the same on language models: 10, 11 · your own runs: 12 · what to believe: 13 · the papers: 14"


def parts_table(shares: pd.DataFrame) -> pd.DataFrame:
    """Shares by part, a row each, of the classes that move at least a hundredth as far as the one that moves most.

    shares: as of `class_shares`.  Columns: category, change_rms, tokens, size (change_rms, largest = 1), order and part
    (of PART_NAMES), share.
    """
    largest = shares["change_rms"].max()
    shares = shares[shares["change_rms"] > LEAST_MOVED * largest]
    shares = shares.assign(bias=shares["own_bias"] + shares["coupled_bias"], size=shares["change_rms"] / largest)
    keys = ["category", "change_rms", "tokens", "size"]
    table = shares[[*keys, *PART_NAMES]].melt(keys, var_name="part", value_name="share").dropna(subset="share")
    return table.assign(order=table["part"].map(list(PART_NAMES).index), part=table["part"].map(PART_NAMES))


def signal_noise_chart(
    table: pd.DataFrame, title: str = "What moves a token: signal, noise, bias and coupling", width: int = WIDTH
) -> alt.LayerChart | alt.FacetChart:
    """Stacked parts of what moves each class of tokens, a bar for each.

    table: columns category, part, order and share, as `parts_table` makes them. Parts that point against the movement
    stand left of 0. With the column panel, a group of bars for each of its values; with size, how far each class moves
    stands at the right.
    """
    require(table, ["category", "part", "order", "share"], "signal_noise_chart")
    named, parts = list(table["category"].unique()), list(PART_NAMES.values())
    y = alt.Y("category:N", sort=list(CLASSES) if set(named) <= set(CLASSES) else named, title=None)
    x = alt.X("share:Q", title="share of the squared movement", stack="zero")
    x = x.axis(format=".0%", tickCount=6, labelOverlap=True)
    color = alt.Color("part:N", title=None, sort=parts).scale(domain=parts, range=PART_COLORS)
    color = color.legend(orient="bottom", columns=3, labelLimit=240)
    base = alt.Chart().encode(y=y, order="order:Q")
    bars = base.mark_bar(stroke="white", strokeWidth=0.8)
    is_dark, fits = alt.FieldOneOfPredicate("part", DARK), f"abs(datum.share) >= {LEAST_NUMBER}"
    numbers = base.mark_text(fontSize=11).encode(
        x=alt.X("share:Q", stack="zero", bandPosition=0.5),
        detail="part:N",
        color=alt.when(is_dark).then(alt.value("white")).otherwise(alt.value("black")),
        text=alt.Text("share:Q", format=".0%"),
        opacity=alt.when(fits).then(alt.value(1)).otherwise(alt.value(0)),
    )
    shown = ["category", "part", alt.Tooltip("share:Q", format=".1%")]
    layers = [bars.encode(x=x, color=color, tooltip=shown), numbers, rule(0, "x", color="black")]
    where = "dark: from the token's own context; light: from other contexts, by coupling"
    if "size" in table:  # once of a bar's five rows
        once = alt.when("datum.order === 0").then(alt.value(1)).otherwise(alt.value(0))
        sizes = alt.Chart().mark_text(align="left", dx=6, color=NEUTRAL, fontSize=11)
        layers.append(sizes.encode(y=y, x=alt.value(width), text=alt.Text("size:Q", format=".2f"), opacity=once))
        where += "; right: how far a class moves, largest = 1"
    height = alt.Step(34 if len(table) <= MANY_ROWS else 25)
    chart, names = alt.layer(*layers, data=table).properties(width=width, height=height), ["category"]
    if "panel" in table:
        names = ["panel", "category"]
        look = {"labelAngle": 0, "labelOrient": "top", "labelAnchor": "start", "labelFontWeight": "bold"}
        header = alt.Header(labelPadding=2, **look)
        row = alt.Row("panel:N", title=None, sort=list(table["panel"].unique()), header=header)
        chart = chart.facet(row=row, spacing=8).resolve_scale(y="independent")
    return titled(chart, title, where, describe_rows(table, *names, "part", value="share", form=".0%"))


def describe_parts(table: pd.DataFrame, name: str | None = None) -> str:
    """The parts of a category in a sentence: of all tokens, or of the first one where none is called "all".

    >>> rows = [{"category": "all", "part": part, "share": 0.2} for part in PART_NAMES.values()]
    >>> describe_parts(pd.DataFrame(rows))
    'All: 40% signal (20% by coupling), 20% bias, 40% noise (20% by coupling).'
    """
    categories = list(table["category"])
    name = name or ("all" if "all" in categories else categories[0])
    share = table[table["category"] == name].groupby("part")["share"].first()
    signal, coupled, bias, chance, noise = (share[part] + 0.0 for part in PART_NAMES.values())
    return typeset(
        f"{name.capitalize()}: {signal + coupled:.0%} signal ({coupled:.0%} by coupling), {bias:.0%} bias, "
        f"{noise + chance:.0%} noise ({chance:.0%} by coupling)."
    )


def road_map(width: int = WIDTH) -> alt.LayerChart:
    """The book as four boxes: the parts of a step, and the chapters that treat each."""
    table = pd.DataFrame(ROADS, columns=["part", "color", "ink", "meaning", "chapters"]).assign(place=range(len(ROADS)))
    x = alt.X("place:O", axis=None, scale=alt.Scale(paddingInner=0.06, paddingOuter=0))
    base = alt.Chart(table).encode(x=x)
    color, ink = (alt.Color(f"{name}:N", scale=None) for name in ("color", "ink"))
    boxes = base.mark_rect(cornerRadius=6).encode(y=alt.value(0), y2=alt.value(150), color=color)
    look = {"align": "center", "baseline": "top", "lineBreak": "\n", "lineHeight": 16}
    sizes = {"part": (10, 16, "bold"), "meaning": (36, 12, "normal"), "chapters": (88, 12, "normal")}
    words = [
        base.mark_text(**look, fontSize=size, fontWeight=weight).encode(y=alt.value(y), text=f"{name}:N", color=ink)
        for name, (y, size, weight) in sizes.items()
    ]
    end = alt.Chart(pd.DataFrame({"text": [ROAD_END]})).mark_text(fontSize=12, color=NEUTRAL)
    end = end.encode(x=alt.value(width / 2), y=alt.value(168), text="text:N")
    described = "; ".join(f"{row.part}: chapters {row.chapters}".replace("\n", ", ") for row in table.itertuples())
    return titled(
        alt.layer(boxes, *words, end).properties(width=width, height=180).configure_view(strokeOpacity=0),
        "What one step does to a token: signal + noise + bias + coupling",
        "and the chapters that treat each",
        described,
    )
