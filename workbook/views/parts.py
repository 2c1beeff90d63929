"""The chart that returns: what moves a class of tokens, or one token, as signal, bias, noise and coupling.

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
from workbook.views.style import NEUTRAL, WIDTH, describe_rows, require, titled, typeset, visible

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
ONCE = alt.when("datum.order === 0").then(alt.value(1)).otherwise(alt.value(0))  # of a bar's five rows
MEASURES = {"share": ("share of the squared movement", ".0%"), "change": ("change of log-probability", "+.2~g")}


def parts_table(shares: pd.DataFrame) -> pd.DataFrame:
    """Shares by part, a row each, of the classes that move at least a hundredth as far as the one that moves most.

    shares: as of `class_shares`.  Columns: category, change_rms, tokens, size (change_rms, largest = 1), order and part
    (of PART_NAMES), share.
    """
    largest = shares["change_rms"].max()
    shares = shares[shares["change_rms"] > LEAST_MOVED * largest]
    shares = shares.assign(bias=shares["own_bias"] + shares["coupled_bias"], size=shares["change_rms"] / largest)
    return _by_part(shares, ["category", "change_rms", "tokens", "size"], "share")


def token_parts_table(tokens: pd.DataFrame) -> pd.DataFrame:
    """Parts of single tokens' changes, a row each: columns category (position and word), net,
    order, part, change.

    tokens: rows of `CreditRecovered.tokens`, of one rollout: position, token, the six parts, change.
    """
    require(tokens, ["position", "token", "own_signal"], "token_parts_table")
    words = [f"{place} {visible(word)}" for place, word in zip(tokens["position"], tokens["token"], strict=True)]
    tokens = tokens.assign(category=words, bias=tokens["own_bias"] + tokens["coupled_bias"])
    tokens = tokens.assign(net=tokens["change"]).sort_values("position")
    return _by_part(tokens, ["category", "net"], "change")


def _by_part(table: pd.DataFrame, keys: list[str], value: str) -> pd.DataFrame:
    table = table[[*keys, *PART_NAMES]].melt(keys, var_name="part", value_name=value).dropna(subset=value)
    return table.assign(order=table["part"].map(list(PART_NAMES).index), part=table["part"].map(PART_NAMES))


def signal_noise_chart(
    table: pd.DataFrame, title: str = "What moves a token: signal, noise, bias and coupling", width: int = WIDTH
) -> alt.LayerChart | alt.FacetChart:
    """Stacked parts of what moves each class of tokens, or each token, a bar for each.

    table: columns category, part, order and share, as `parts_table` makes them; or change in place of share, as
    `token_parts_table` does. Parts that point against the movement stand left of 0. With the column panel, a group of
    bars for each of its values; with size, how far each class moves stands at the right.
    """
    value = "change" if "change" in table and "share" not in table else "share"
    require(table, ["category", "part", "order", value], "signal_noise_chart")
    y = _categories(table)
    layers = [*_bars(y, value), rule(0, "x", color="black")]
    where = "dark: from the token's own context; light: from other contexts, by coupling"
    if "size" in table:
        layers.append(_sizes(y, width))
        where += "; right: how far a class moves, largest = 1"
    if value == "change":
        layers.append(_net(y))
        where += "; black mark: the sum"
    chart = alt.layer(*layers, data=table).properties(
        width=width, height=alt.Step(34 if len(table) <= MANY_ROWS else 25)
    )
    names = ["category"]
    if "panel" in table:
        names.insert(0, "panel")
        header = alt.Header(
            labelAngle=0, labelOrient="top", labelAnchor="start", labelFontWeight="bold", labelPadding=2
        )
        row = alt.Row("panel:N", title=None, sort=list(table["panel"].unique()), header=header)
        chart = chart.facet(row=row, spacing=8).resolve_scale(y="independent")
    return titled(
        chart, title, where, describe_rows(table, *names, "part", value=value, form=MEASURES[value][1].replace("~", ""))
    )


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


def _categories(table: pd.DataFrame) -> alt.Y:
    """The axis of classes in their usual order, or of whatever the table has, in the table's."""
    named = list(table["category"].unique())
    return alt.Y("category:N", sort=list(CLASSES) if set(named) <= set(CLASSES) else named, title=None)


def _bars(y: alt.Y, value: str) -> list[alt.Chart]:
    """The stacked bars, and a number on each segment that is wide enough for one."""
    words, form = MEASURES[value]
    names = list(PART_NAMES.values())
    base = alt.Chart().encode(y=y, order="order:Q")
    x = alt.X(f"{value}:Q", title=words, stack="zero").axis(format=form, tickCount=6, labelOverlap=True)
    color = alt.Color("part:N", title=None, sort=names).scale(domain=names, range=PART_COLORS)
    legend = color.legend(orient="bottom", columns=3, labelLimit=240)
    shown = ["category", "part", alt.Tooltip(f"{value}:Q", format=form.replace(".0", ".1"))]
    bars = base.mark_bar(stroke="white", strokeWidth=0.8).encode(x=x, color=legend, tooltip=shown)
    if value == "change":
        return [bars]
    numbers = base.mark_text(fontSize=11).encode(
        x=alt.X("share:Q", stack="zero", bandPosition=0.5),
        detail="part:N",
        color=alt.when(alt.FieldOneOfPredicate("part", DARK)).then(alt.value("white")).otherwise(alt.value("black")),
        text=alt.Text("share:Q", format=form),
        opacity=alt.when(f"abs(datum.share) >= {LEAST_NUMBER}").then(alt.value(1)).otherwise(alt.value(0)),
    )
    return [bars, numbers]


def _sizes(y: alt.Y, width: int) -> alt.Chart:
    """How far each class moves, at the right of its bar."""
    sizes = alt.Chart().mark_text(align="left", dx=6, color=NEUTRAL, fontSize=11)
    return sizes.encode(y=y, x=alt.value(width), text=alt.Text("size:Q", format=".2f"), opacity=ONCE)


def _net(y: alt.Y) -> alt.Chart:
    """A black mark at the sum of a token's parts."""
    marks = alt.Chart().mark_tick(color="black", thickness=3, size=24)
    return marks.encode(y=y, x="net:Q", opacity=ONCE, tooltip=["category:N", alt.Tooltip("net:Q", format="+.3g")])


ROADS = [  # part, its colour, the colour of the text on it, what it is, and where it is treated
    (
        "signal",
        PART_COLORS[0],
        "white",
        "credit that the\nstep delivers",
        "02 the theorem\n04 a known policy\n07 hidden credit",
    ),
    ("noise", PART_COLORS[4], "white", "chance of one\nbatch", "02 group size\n05 flips\n07 rollouts, prompts"),
    ("bias", PART_COLORS[2], "white", "weights, clips,\nlengths, sampler", "03 exchangeability\n09 drift"),
    (
        "coupling",
        "#dddddd",
        "black",
        "pushes of other\ncontexts",
        "01 one softmax\n05 prompts · 06 tokens\n08 mini-batches",
    ),
]
ROAD_END = "the same on language models: 10, 11 · your own runs: 12 · what to believe: 13 · the papers: 14"


def road_map(width: int = WIDTH) -> alt.LayerChart:
    """The book as four boxes: the parts of a step, and the chapters that treat each."""
    columns = ["part", "color", "ink", "meaning", "chapters"]
    table = pd.DataFrame(ROADS, columns=columns).assign(place=range(len(ROADS)))
    x = alt.X("place:O", axis=None, scale=alt.Scale(paddingInner=0.06, paddingOuter=0))
    base = alt.Chart(table).encode(x=x)
    colors = alt.Color("part:N", legend=None, scale=alt.Scale(domain=list(table["part"]), range=list(table["color"])))
    boxes = base.mark_rect(cornerRadius=6).encode(y=alt.value(0), y2=alt.value(150), color=colors)
    ink = alt.when(alt.datum.ink == "white").then(alt.value("white")).otherwise(alt.value("black"))
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
