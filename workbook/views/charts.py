"""Charts of many chapters: curves over a moderator, the parts of a movement, intervals, and a table
folded away.

    curve = unit_curve(table, "prompts", "follows")          # t intervals over policies x seeds
    curve_chart(curve, "prompts", x_title="prompts per step", y_title="share", title="...",
                paper=(256, 1024, "the paper"), reference=[(0.5, "own sign says nothing")])

Parts of what moves a class of tokens:

    signal     the push p (Q - V) that the policy gradient asks for: credit
    bias       what a rule adds to it on average: unequal weights, clips, a sampler that is not the model
    noise      what one reward per rollout adds by chance
    coupling   the part of signal, bias and noise that arrives from other contexts, through shared weights

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
    title = "Reward on held-out prompts, before and after training"
    return intervals_chart(summary, title, f"dot: mean; bar: {interval}", "mean reward (0 to 1)")


def intervals_chart(
    table: pd.DataFrame, title: str, subtitle: str, unit: str, threshold: float | None = None
) -> alt.LayerChart:
    """A line per row: dot, interval and number; columns label, mean, low, high, and scale (colour,
    shape) if there.

    threshold: what was stated beforehand, as a dashed line.  The axis reaches 0.
    """
    require_columns(table, ("label", "mean", "low", "high"), "intervals_chart")
    x = alt.X("mean:Q", title=unit).scale(zero=True, padding=30)
    ends = [*table["low"], *table["high"], *([] if threshold is None else [threshold])]
    if 0 <= min(ends) < max(ends):  # what can't be negative has no axis there
        x = x.scale(domain=[0, 1.08 * max(ends)])
    look = {"by": "scale"} if "scale" in table else {}
    return titled(
        forest(table, "label", x, number=".3~g", form=".4g", threshold=threshold, **look),
        title,
        subtitle,
        describe_rows(table, "label", *look.values(), interval=True),
    )


class fold:  # called as a function
    """A table under a line that opens it, its cells escaped; in a terminal, the table itself."""

    def __init__(self, table: pd.DataFrame, title: str):
        self.table, self.title = table, title

    def __repr__(self) -> str:
        return f"{self.title}\n{self.table}"

    def _repr_html_(self) -> str:
        title, count = (
            html.escape(self.title),
            f"{len(self.table)} row{'s' * (len(self.table) != 1)}",
        )
        body = self.table.to_html(border=0, escape=True, max_rows=None)
        scroll = f'<div style="overflow-x: auto" tabindex="0" role="region" aria-label="{title}">'
        return f"<details><summary>{title} ({count})</summary>{scroll}{body}</div></details>"


def checked(claim: str, errors, below: float) -> None:
    """Show a check that holds as one line that opens: what is so, of how many numbers, and the
    largest error.

    errors: a number, or several in any shape.  Raises AssertionError where one is as large as
    `below`, or NaN.
    """
    errors = getattr(errors, "tolist", lambda: errors)()  # a tensor may lie on a GPU
    errors = np.abs(np.asarray(errors, dtype=float)).ravel()
    compared = f"{len(errors):,} number{'s' * (len(errors) != 1)}"
    if not (errors < below).all():
        raise AssertionError(
            f"{claim}: not so; of {compared} one is off by {errors.max():.1e}, {below:g} or more."
        )
    line, rest = (
        f"{claim}: {compared}, error below {below:g}",
        f"largest error: {errors.max(initial=0):.1e}",
    )
    mark = '<b style="color: color-mix(in srgb, #1a7f37 70%, currentcolor)">✓</b>'
    page = f"<details><summary>{mark} {html.escape(line)}</summary>{rest}</details>"
    display({"text/plain": f"✓ {line}; {rest}", "text/html": page}, raw=True)


PAPER_COLOR = "#f2e3b3"
MAX_TICKS = 14  # values of x that are all named on the axis


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
    """Lines over x with points and interval bands; a shaded place on the axis, and dashed lines to
    compare with.

    curve: a row per point, as `workbook.statistics.unit_curve` gives it: x, the column `series`
    (one line each), mean, low and high, units.  log2: a logarithmic axis with a tick at every
    x.  paper: where on the axis the paper stands, and the words for it.  reference: values of y,
    each with or without a text.  look: scale, settings of y's axis; follows, that of x is of
    whatever rows are pushed; and more of `workbook.views.figures.series`, such as names.

    Raises ValueError for columns that the table lacks, an empty table, and x or paper at 0 and
    below on a log2 axis.
    """
    require_columns(curve, [x, "mean", "low", "high", *([series] if series else [])], "curve_chart")
    if curve.empty:
        raise ValueError("curve_chart needs a row or more; the table is empty.")
    ends = [float(curve[x].min()), float(curve[x].max()), *(paper[:2] if paper else ())]
    if log2 and min(ends) <= 0:
        raise InvalidValue(
            "log2",
            log2,
            f"False, since {x} reaches {min(ends):g}, which has no place on such an axis",
        )
    kind = {"type": "log", "base": 2} if log2 else {"zero": False}
    place = alt.X(f"{x}:Q", title=x_title or x)
    kind |= {} if (follows := look.pop("follows", False)) else {"domain": [min(ends), max(ends)]}
    place = place.scale(**kind, nice=False, padding=12)
    ticks = curve[x].unique().tolist()
    if len(ticks) <= MAX_TICKS and not follows:
        place = place.axis(
            values=sorted({*ticks, *(paper[:2] if paper else ())}), grid=False, labelOverlap=True
        )
    value = alt.Y("mean:Q", title=y_title or "mean").scale(
        **{"zero": False, **look.pop("scale", {})}
    )
    under = [*_paper(paper, ends, log2), *references(reference or (), min(ends))]
    look = {"shown": ["units"] if "units" in curve else [], "under": under, "dash": series, **look}
    names = [series] if series else []
    return titled(
        lines_over(curve, place, value, series, height=height, **look),
        title,
        _units(curve) if subtitle is None else subtitle,
        describe_rows(curve, *names, x, interval=True),
    )


def _paper(paper, ends: list[float], log2: bool) -> list[alt.Chart]:
    if paper is None:
        return []
    low, high, text = paper
    middle = np.sqrt(min(ends) * max(ends)) if log2 else (min(ends) + max(ends)) / 2
    right = (low * high) ** 0.5 > middle if log2 else (low + high) / 2 > middle
    base = _inline(low=low, high=high, text=text)
    area = base.mark_rect(color=PAPER_COLOR, opacity=0.7).encode(x="low:Q", x2="high:Q")
    place = {"align": "right", "dx": -4} if right else {"align": "left", "dx": 4}
    words = base.mark_text(fontStyle="italic", color="#6b5600", baseline="top", **place)
    return [area, words.encode(x="high:Q" if right else "low:Q", y=alt.value(4), text="text:N")]


def _inline(**row) -> alt.Chart:
    """A chart of one row that stands in the spec, so that the curve's own table can follow a
    slider.
    """
    return alt.Chart(alt.InlineData(values=[row]))


def references(values, start: float) -> list[alt.Chart]:
    """Dashed lines at values of y, each a number or a pair with its text, which begins at x =
    start.
    """
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
    low, high = int(curve["units"].min()), int(curve["units"].max())
    if high < 2:
        return "one unit (policy and seed): no interval"
    count = f"{low}" if low == high else f"{low} to {high}"
    return f"line: mean; band: 95 % t interval over {count} units (policy and seed)"


PART_NAMES = {  # column of a split: what it is called, in the order of the bars
    "own_signal": "signal (credit)",
    "coupled_signal": "signal, by coupling",
    "bias": "bias",
    "coupled_noise": "noise, by coupling",
    "own_noise": "noise (chance)",
}
PART_COLORS = ["#46700a", "#bcd986", "#3d3d3d", "#cbb4e2", "#5f3593"]  # of PART_NAMES, in order
# parts whose numbers are white
DARK = [PART_NAMES[name] for name in ("own_signal", "bias", "own_noise")]
CLASSES = ("all", "result", "style", "copy", "template", "eos", "token")
LEAST_MOVED = 0.01  # of the largest rms change: classes that move less are left out
MANY_ROWS = 40  # from which on bars are thinner
LEAST_NUMBER = 0.08  # of the axis that a segment covers before its number fits


def parts_table(shares: pd.DataFrame) -> pd.DataFrame:
    """Shares by part, a row each, of the classes that move at least a hundredth as far as the one
    that moves most.

    shares: as of `class_shares`.  Columns: category, change_rms, tokens, size (change_rms, largest
    = 1), order and part (of PART_NAMES), share.
    """
    largest = shares["change_rms"].max()
    shares = shares[shares["change_rms"] > LEAST_MOVED * largest]
    shares = shares.assign(
        bias=shares["own_bias"] + shares["coupled_bias"], size=shares["change_rms"] / largest
    )
    keys = ["category", "change_rms", "tokens", "size"]
    table = (
        shares[[*keys, *PART_NAMES]]
        .melt(keys, var_name="part", value_name="share")
        .dropna(subset="share")
    )
    return table.assign(
        order=table["part"].map(list(PART_NAMES).index), part=table["part"].map(PART_NAMES)
    )


def signal_noise_chart(
    table: pd.DataFrame, title: str = "What moves a token: signal, noise, bias and coupling"
) -> alt.LayerChart | alt.FacetChart:
    """Stacked parts of what moves each class of tokens, a bar for each.

    table: columns category, part, order and share, as `parts_table` makes them. Parts that point
    against the movement stand left of 0. With the column panel, a group of bars for each of its
    values; with size, how far its tokens move stands at the right.
    """
    require_columns(table, ["category", "part", "order", "share"], "signal_noise_chart")
    named, parts = list(table["category"].unique()), list(PART_NAMES.values())
    y = alt.Y("category:N", sort=list(CLASSES) if set(named) <= set(CLASSES) else named, title=None)
    x = alt.X("share:Q", title="share of the squared movement", stack="zero")
    x = x.axis(format=".0%", tickCount=6, labelOverlap=True)
    color = alt.Color("part:N", title=None, sort=parts).scale(domain=parts, range=PART_COLORS)
    color = color.legend(orient="bottom", columns=3, labelLimit=240)
    base, shown = (
        alt.Chart().encode(y=y, order="order:Q"),
        ["category", "part", alt.Tooltip("share:Q", format=".1%")],
    )
    bodies = base.mark_bar(stroke="white", strokeWidth=0.8).encode(x=x, color=color, tooltip=shown)
    is_dark, fits = alt.FieldOneOfPredicate("part", DARK), f"abs(datum.share) >= {LEAST_NUMBER}"
    numbers = base.mark_text().encode(
        x=alt.X("share:Q", stack="zero", bandPosition=0.5),
        detail="part:N",
        color=alt.when(is_dark).then(alt.value("white")).otherwise(alt.value("black")),
        text=alt.Text("share:Q", format=".0%"),
        opacity=alt.when(fits).then(alt.value(1)).otherwise(alt.value(0)),
    )
    layers = [bodies, numbers, rule(0, "x", color="black")]
    where = "dark: from the token's own context; light: from other contexts, by coupling"
    if "size" in table:  # once of a bar's five rows
        once = alt.when("datum.order === 0").then(alt.value(1)).otherwise(alt.value(0))
        sizes = alt.Chart().mark_text(align="left", dx=6, color=NEUTRAL)
        layers.append(
            sizes.encode(
                y=y, x=alt.value("width"), text=alt.Text("size:Q", format=".2f"), opacity=once
            )
        )
        where += "; right: rms change of a token, largest = 1"
    height = alt.Step(34 if len(table) <= MANY_ROWS else 25)
    chart = alt.layer(*layers, data=table).properties(height=height)
    names = ["category"]
    if "panel" in table:
        names = ["panel", "category"]
        # beside a bar stand the name of its class and, with size, a number
        beside = label_width(named) + (45 if "size" in table else 15)
        chart = chart.properties(width=WIDTH - beside)
        look = {
            "labelAngle": 0,
            "labelOrient": "top",
            "labelAnchor": "start",
            "labelFontWeight": "bold",
        }
        header = alt.Header(labelPadding=2, **look)
        row = alt.Row("panel:N", title=None, sort=list(table["panel"].unique()), header=header)
        chart = chart.facet(row=row, spacing=8).resolve_scale(y="independent")
    return titled(
        chart, title, where, describe_rows(table, *names, "part", value="share", form=".0%")
    )


def describe_parts(table: pd.DataFrame, name: str | None = None) -> str:
    """The parts of a category in a sentence: of all tokens, or of the first one where none is
    called "all".
    """
    categories = list(table["category"])
    name = name or ("all" if "all" in categories else categories[0])
    share = table[table["category"] == name].groupby("part")["share"].first()
    signal, coupled, bias, chance, noise = (share[part] + 0.0 for part in PART_NAMES.values())
    return typeset(
        f"{name.capitalize()}: {signal + coupled:.0%} signal ({coupled:.0%} by coupling),"
        f" {bias:.0%} bias, {noise + chance:.0%} noise ({chance:.0%} by coupling)."
    )
