"""Charts of many chapters: curves, intervals, the parts of a movement, and folded tables.

    # t intervals over policies x seeds
    curve = unit_curve(table, "prompts", "follows")
    curve_chart(curve, "prompts", x_title="prompts per step", y_title="share", title="...",
                paper=(256, 1024, "the paper"), reference=[(0.5, "own sign says nothing")])

Parts of what moves a class of tokens:

    signal     the push p (Q - V) that the policy gradient asks for: credit
    bias       what a rule adds to it on average: unequal weights, clips, a sampler that is not
               the model
    noise      what one reward per rollout adds by chance
    coupling   the part of signal, bias and noise that comes from other contexts, through shared
               weights

Green is signal, charcoal is bias, violet is noise; light shades came by coupling. No other chart
uses these colours, and none of them is the blue or orange of a sign.
"""

import html
from collections.abc import Sequence

import altair as alt
import numpy as np
import pandas as pd
from IPython.display import display

from workbook.messages import InvalidValue
from workbook.views.figures import forest, rule
from workbook.views.figures import series as lines_over
from workbook.views.style import (
    NEUTRAL,
    WIDTH,
    describe_rows,
    label_width,
    require_columns,
    titled,
    typeset,
)


def reward_before_after(summary: pd.DataFrame, interval: str = "95 % interval") -> alt.LayerChart:
    """Mean rewards with their intervals: columns label, mean, low, high."""
    means = [f"{row.mean:.2f} {row.label}" for row in summary.itertuples()]
    title = f"Reward on held-out prompts: {', '.join(means)}"
    return intervals_chart(summary, title, f"dot: mean; bar: {interval}", "mean reward (0 to 1)")


def intervals_chart(
    table: pd.DataFrame, title: str, subtitle: str, unit: str, threshold: float | None = None
) -> alt.LayerChart:
    """A line per row: dot, interval and number; the axis reaches 0.

    table: columns label, mean, low, high, and scale where rows have colours and shapes by it.
    threshold: what was stated beforehand, as a dashed line.
    """
    require_columns(table, ("label", "mean", "low", "high"), "intervals_chart")
    x = alt.X("mean:Q", title=unit).scale(zero=True, padding=30)
    ends = [*table["low"], *table["high"]]
    if threshold is not None:
        ends.append(threshold)
    # where nothing is negative, the axis has no negative part
    if 0 <= min(ends) < max(ends):
        x = x.scale(domain=[0, 1.08 * max(ends)])
    by = "scale" if "scale" in table else None
    names = ["label", by] if by else ["label"]
    chart = forest(table, "label", x, by, number=".3~g", form=".4g", threshold=threshold)
    return titled(chart, title, subtitle, describe_rows(table, *names, interval=True))


def _counted(count: int, noun: str) -> str:
    """A count with its noun: "1 row", "2,000 rows"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


class fold:
    """A table under a line that opens it, its cells escaped; in a terminal, the table itself."""

    def __init__(self, table: pd.DataFrame, title: str):
        self.table = table
        self.title = title

    def __repr__(self) -> str:
        return f"{self.title}\n{self.table}"

    def _repr_html_(self) -> str:
        title = html.escape(self.title)
        count = _counted(len(self.table), "row")
        body = self.table.to_html(border=0, escape=True, max_rows=None)
        scroll = f'<div style="overflow-x: auto" tabindex="0" role="region" aria-label="{title}">'
        return f"<details><summary>{title} ({count})</summary>{scroll}{body}</div></details>"


def checked(claim: str, errors, below: float) -> None:
    """Show a check that holds as one line, which opens to the largest error.

    errors: a number, or several in any shape.  Raises AssertionError where one is as large as
    `below`, or NaN.
    """
    # a tensor may lie on a GPU, where NumPy does not read it
    if hasattr(errors, "tolist"):
        errors = errors.tolist()
    errors = np.abs(np.asarray(errors, dtype=float)).ravel()
    compared = _counted(len(errors), "number")
    if not (errors < below).all():
        raise AssertionError(
            f"{claim}: not so; of {compared} one is off by {errors.max():.1e}, {below:g} or more."
        )
    line = f"{claim}: {compared}, error below {below:g}"
    rest = f"largest error: {errors.max(initial=0):.1e}"
    mark = '<b style="color: color-mix(in srgb, #1a7f37 70%, currentcolor)">✓</b>'
    page = f"<details><summary>{mark} {html.escape(line)}</summary>{rest}</details>"
    display({"text/plain": f"✓ {line}; {rest}", "text/html": page}, raw=True)


_PAPER_COLOR = "#f2e3b3"
# so many values of x, or fewer, are all named on the axis
_MAX_TICKS = 14


def curve_chart(
    curve: pd.DataFrame,
    x: str,
    series: str | None = None,
    x_title: str = "",
    y_title: str = "",
    title: str = "",
    log2: bool = True,
    paper: tuple[float, float, str] | None = None,
    reference: Sequence[float | tuple[float, str]] | None = None,
    subtitle: str | None = None,
    height: int = 240,
    **look,
) -> alt.LayerChart:
    """Lines over x with points and interval bands.

    curve: a row per point, as `workbook.statistics.unit_curve` gives it: x, the column `series`
    (one line each), mean, low and high, units.  log2: a logarithmic axis with a tick at every x.
    paper: where on the axis the paper stands (low, high), and the words for it.  reference: values
    of y as dashed lines, each with or without a text.
    look: scale, settings of y's axis; follows=True, so that the axis of x is that of whatever rows
    are pushed; and more of `workbook.views.figures.series`, such as names.

    Raises ValueError for columns that the table lacks, an empty table, and x or paper at 0 and
    below on a log2 axis.
    """
    names = [series] if series else []
    require_columns(curve, [x, "mean", "low", "high", *names], "curve_chart")
    if curve.empty:
        raise ValueError("curve_chart needs a row or more; the table is empty.")
    paper_ends = list(paper[:2]) if paper else []
    ends = [float(curve[x].min()), float(curve[x].max()), *paper_ends]
    start = min(ends)
    if log2 and start <= 0:
        raise InvalidValue(
            "log2", log2, f"False, since {x} reaches {start:g}, which has no place on such an axis"
        )

    follows = look.pop("follows", False)
    scale = {"type": "log", "base": 2} if log2 else {"zero": False}
    if not follows:
        scale["domain"] = [start, max(ends)]
    x_axis = alt.X(f"{x}:Q", title=x_title or x).scale(**scale, nice=False, padding=12)
    ticks = curve[x].unique().tolist()
    if len(ticks) <= _MAX_TICKS and not follows:
        values = sorted({*ticks, *paper_ends})
        x_axis = x_axis.axis(values=values, grid=False, labelOverlap=True)
    y_scale = {"zero": False, **look.pop("scale", {})}
    y_axis = alt.Y("mean:Q", title=y_title or "mean").scale(**y_scale)

    drawing = {
        "shown": ["units"] if "units" in curve else [],
        "under": [*_paper(paper, ends, log2), *references(reference or (), start)],
        "dash": series,
        **look,
    }
    return titled(
        lines_over(curve, x_axis, y_axis, series, height=height, **drawing),
        title,
        _units(curve) if subtitle is None else subtitle,
        describe_rows(curve, *names, x, interval=True),
    )


def _paper(paper, ends: list[float], log2: bool) -> list[alt.Chart]:
    """A shaded place on the axis with its words, on the side where they have room."""
    if paper is None:
        return []
    low, high, text = paper
    if log2:
        middle = np.sqrt(min(ends) * max(ends))
        is_right = (low * high) ** 0.5 > middle
    else:
        middle = (min(ends) + max(ends)) / 2
        is_right = (low + high) / 2 > middle
    base = _inline(low=low, high=high, text=text)
    area = base.mark_rect(color=_PAPER_COLOR, opacity=0.7).encode(x="low:Q", x2="high:Q")
    place = {"align": "right", "dx": -4} if is_right else {"align": "left", "dx": 4}
    words = base.mark_text(fontStyle="italic", color="#6b5600", baseline="top", **place)
    edge = "high:Q" if is_right else "low:Q"
    return [area, words.encode(x=edge, y=alt.value(4), text="text:N")]


def _inline(**row) -> alt.Chart:
    """A chart of one row within the spec, so that the curve's own table can follow a slider."""
    return alt.Chart(alt.InlineData(values=[row]))


def references(values, start: float) -> list[alt.Chart]:
    """Dashed lines at values of y; a pair (value, text) has its text at x = start."""
    layers = []
    for entry in values:
        number, text = entry if isinstance(entry, tuple) else (entry, "")
        layers.append(rule(number, "y", dashed=True, color=NEUTRAL))
        if text:
            base = _inline(x=start, y=number, text=text)
            words = base.mark_text(align="left", baseline="bottom", dy=-2, color=NEUTRAL)
            layers.append(words.encode(x="x:Q", y="y:Q", text="text:N"))
    return layers


def _units(curve: pd.DataFrame) -> str:
    if "units" not in curve:
        return "line: mean; band: interval"
    low = int(curve["units"].min())
    high = int(curve["units"].max())
    if high < 2:
        return "one unit (policy and seed): no interval"
    count = f"{low}" if low == high else f"{low} to {high}"
    return f"line: mean; band: 95 % t interval over {count} units (policy and seed)"


# {column of a split: what it is called}, in the order of the bars
PART_NAMES = {
    "own_signal": "signal (credit)",
    "coupled_signal": "signal, by coupling",
    "bias": "bias",
    "coupled_noise": "noise, by coupling",
    "own_noise": "noise (chance)",
}
# of PART_NAMES, in order
PART_COLORS = ["#46700a", "#bcd986", "#3d3d3d", "#cbb4e2", "#5f3593"]
# parts on which numbers are white
_DARK_PARTS = [PART_NAMES[name] for name in ("own_signal", "bias", "own_noise")]
_CLASS_ORDER = ("all", "result", "style", "copy", "template", "eos", "token")
# of the largest rms change: classes that move less are left out
_LEAST_MOVED = 0.01
# from so many rows on, bars are thinner
_MANY_ROWS = 40
# of the axis: a shorter segment has no room for its number
_LEAST_LABELLED = 0.08


def parts_table(shares: pd.DataFrame) -> pd.DataFrame:
    """Shares by part, a row each, of the classes of tokens that move.

    shares: as of `class_shares`.  Classes that move less than a hundredth of the one that moves
    most are left out.
    Columns: category, change_rms, tokens, size (change_rms, largest = 1), order and part (of
    PART_NAMES), share.
    """
    largest = shares["change_rms"].max()
    shares = shares[shares["change_rms"] > _LEAST_MOVED * largest]
    shares = shares.assign(
        bias=shares["own_bias"] + shares["coupled_bias"], size=shares["change_rms"] / largest
    )
    # a row per class and part
    keys = ["category", "change_rms", "tokens", "size"]
    table = shares[[*keys, *PART_NAMES]].melt(keys, var_name="part", value_name="share")
    table = table.dropna(subset="share")
    order = table["part"].map(list(PART_NAMES).index)
    return table.assign(order=order, part=table["part"].map(PART_NAMES))


def signal_noise_chart(
    table: pd.DataFrame,
    title: str = "What moves a token: signal, noise, bias and coupling",
    named: Sequence[str] | None = None,
    x_title: str = "share of the squared movement",
) -> alt.LayerChart | alt.FacetChart:
    """Stacked parts of what moves each class of tokens, a bar for each.

    table: columns category, part, order and share, as `parts_table` makes them. Parts that point
    against the movement stand left of 0. With the column panel, a group of bars for each of its
    values; with size, how far its tokens move stands at the right.

    named: parts in the legend, by default all.
    """
    require_columns(table, ["category", "part", "order", "share"], "signal_noise_chart")
    classes = list(table["category"].unique())
    parts = list(PART_NAMES.values())
    class_order = list(_CLASS_ORDER) if set(classes) <= set(_CLASS_ORDER) else classes
    y = alt.Y("category:N", sort=class_order, title=None)
    x = alt.X("share:Q", title=x_title, stack="zero")
    x = x.axis(format=".0%", tickCount=6, labelOverlap=True)
    color = alt.Color("part:N", title=None, sort=parts).scale(domain=parts, range=PART_COLORS)
    color = color.legend(orient="bottom", columns=3, labelLimit=240, values=list(named or parts))
    base = alt.Chart().encode(y=y, order="order:Q")
    hints = ["category", "part", alt.Tooltip("share:Q", format=".1%")]
    bodies = base.mark_bar(stroke="white", strokeWidth=0.8).encode(x=x, color=color, tooltip=hints)
    is_dark = alt.FieldOneOfPredicate("part", _DARK_PARTS)
    fits = f"abs(datum.share) >= {_LEAST_LABELLED}"
    numbers = base.mark_text().encode(
        x=alt.X("share:Q", stack="zero", bandPosition=0.5),
        detail="part:N",
        color=alt.when(is_dark).then(alt.value("white")).otherwise(alt.value("black")),
        text=alt.Text("share:Q", format=".0%"),
        opacity=alt.when(fits).then(alt.value(1)).otherwise(alt.value(0)),
    )
    layers = [bodies, numbers, rule(0, "x", color="black")]
    subtitle = "dark: from the token's own context; light: from other contexts, by coupling"
    if "size" in table:
        layers.append(_sizes(y))
        subtitle += "; right: rms change of a token, largest = 1"
    height = alt.Step(34 if len(table) <= _MANY_ROWS else 25)
    chart = alt.layer(*layers, data=table).properties(height=height)
    names = ["category", "part"]
    if "panel" in table:
        names = ["panel", *names]
        # beside a bar stand the name of its class and, with size, a number
        beside = label_width(classes) + (45 if "size" in table else 15)
        chart = _by_panel(chart.properties(width=WIDTH - beside), table)
    words = describe_rows(table, *names, value="share", form=".0%")
    return titled(chart, title, subtitle, words)


def _sizes(y: alt.Y) -> alt.Chart:
    """How far each class moves, as a number at the right of its bar."""
    # once of a bar's five rows
    once = alt.when("datum.order === 0").then(alt.value(1)).otherwise(alt.value(0))
    text = alt.Text("size:Q", format=".2f")
    numbers = alt.Chart().mark_text(align="left", dx=6, color=NEUTRAL)
    return numbers.encode(y=y, x=alt.value("width"), text=text, opacity=once)


def _by_panel(chart: alt.LayerChart, table: pd.DataFrame) -> alt.FacetChart:
    """A group of bars for each value of the column panel, under its name."""
    header = alt.Header(
        labelPadding=2,
        labelAngle=0,
        labelOrient="top",
        labelAnchor="start",
        labelFontWeight="bold",
    )
    row = alt.Row("panel:N", title=None, sort=list(table["panel"].unique()), header=header)
    return chart.facet(row=row, spacing=8).resolve_scale(y="independent")


def describe_parts(table: pd.DataFrame, name: str | None = None) -> str:
    """The parts of a category in a sentence; by default of all tokens.

    Where no category is called "all", it is the first.
    """
    categories = list(table["category"])
    if name is None:
        name = "all" if "all" in categories else categories[0]
    share = table[table["category"] == name].groupby("part")["share"].first()
    # + 0.0 turns -0.0 into 0.0
    signal, coupled, bias, chance, noise = (share[part] + 0.0 for part in PART_NAMES.values())
    return typeset(
        f"{name.capitalize()}: {signal + coupled:.0%} signal ({coupled:.0%} by coupling),"
        f" {bias:.0%} bias, {noise + chance:.0%} noise ({chance:.0%} by coupling)."
    )
