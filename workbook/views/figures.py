"""Figure kit: estimates with intervals as `forest`, `series` and `bars`; colour grids as `cells`;
several as `panels`.

A table has one row per estimate, with the columns mean, low and high beside its names. Every part
of the kit draws the table as it is (so an explorer can push rows into it) and returns a bare
layered chart of fixed size, to which `titled` (in `workbook.views.style`) or `panels` adds title,
subtitle and the description for screen readers:

    forest(table, "kind", "nats", by="series", threshold=3)       dots with intervals, a line per row
    bars(table, "class", alt.X("moved:Q", title="moved"))         bars from zero, with intervals where there are any
    series(table, alt.X("step:Q"), "reward", by="run")            lines with bands, or `spread="bars"`
    cells(table, "scale", "claim", alt.Color("K:Q"), "label:N")   squares with a text

Value axis: its title, or a ready-made alt.X / alt.Y of the middle value; the intervals are drawn on
the same axis.
Names: `by` gives each name of a column its colour and shape and one legend; `names` fixes their
order, colors= and shapes= their looks; legend= takes settings of alt.Legend, or None for no legend;
color= replaces it by any alt.Color. Lines to compare with: `zero=True` (solid), `threshold=`
(dashed), or `rule(value, "x")` in `under=` or `over=`.
Numbers: `number=` is the d3 format of the printed middle values, `form=` of those in the tooltip;
`shown=` names further columns for the tooltip.
"""

import altair as alt
import pandas as pd

from workbook.views.style import (
    ACCENT,
    NEGATIVE,
    NEUTRAL,
    POSITIVE,
    SERIES,
    WIDTH,
    panel_title,
    titled,
    tooltips,
)

INTERVAL = ("mean", "low", "high")
GRID_LINE = "#999999"
DASHES = [[1, 0], [6, 4], [2, 2], [8, 3, 2, 3], [3, 5], [10, 3]]


def forest(
    table: pd.DataFrame,
    row: str | alt.Y,
    value: str | alt.X,
    by: str | None = None,
    *,
    number: str | None = None,
    number_at: str = "above",
    zero: bool = False,
    threshold: float | None = None,
    color=None,
    hollow: str | None = None,
    labels: bool = True,
    form: str = ".3g",
    shown=(),
    under=(),
    over=(),
    title: str | None = None,
    width: int = WIDTH,
    height: int | alt.Step | None = None,
    **names,
) -> alt.LayerChart:
    """Dots with intervals, a line per row of a table; with `by`, several dots in each row; labels:
    of the rows.

    number_at: "above" the dot, or at the "end" of its interval.  hollow: an expression of rows
    whose dot is hollow.
    """
    y, x = _category(row, alt.Y, labelLimit=340), _value(value, alt.X)
    y = y if labels else y.axis(None)
    several = by is not None and table[_name(y)].duplicated().any()
    base, dots = _colored(
        alt.Chart(table).encode(y=y), table, by, color, alt.YOffset if several else None, **names
    )
    hints = tooltips(table, _name(y), by, *shown, *INTERVAL, form=form)
    parts = [(dots, True)]
    if hollow:
        parts = [
            (dots.transform_filter(f"!({hollow})"), True),
            (dots.transform_filter(hollow), False),
        ]
    return _panel(
        [
            *under,
            *_reference(zero, threshold, "x"),
            base.mark_rule(size=3, opacity=0.5).encode(
                x=_end(x, "low"), x2="high:Q", tooltip=hints
            ),
            *(
                part.mark_point(size=70, opacity=1, filled=full).encode(x=x, tooltip=hints)
                for part, full in parts
            ),
            *_numbers(base, x, number, end=number_at == "end", small=several),
            *over,
        ],
        title,
        width,
        height or alt.Step(26 if not several else 22 if number else 18),
    )


def series(
    table: pd.DataFrame,
    x: alt.X,
    value: str | alt.Y,
    by: str | None = None,
    *,
    spread: str | None = "band",
    points: bool = True,
    dash: str | None = None,
    zero: bool = False,
    threshold: float | None = None,
    color=None,
    clip: bool = False,
    form: str = ".3g",
    shown=(),
    under=(),
    over=(),
    title: str | None = None,
    width: int = WIDTH,
    height: int = 240,
    **names,
) -> alt.LayerChart:
    """Lines over x, one for each name of `by`, with their intervals.

    spread: intervals as a "band", as "bars", or None.  dash: a column that tells lines apart by
    dashes.
    """
    y = _value(value, alt.Y)
    hints = tooltips(table, by, _name(x), *shown, *_spread_columns(table, y), form=form)
    base = alt.Chart(table).encode(x=x)
    base, dots = _colored(base, table, by, color, None, **names)
    lines = base.mark_line(strokeWidth=2.5, clip=clip)
    if dash:
        dashes = (names.get("names") if dash == by else None) or table[
            dash
        ].drop_duplicates().tolist()
        settings = names.get("legend", ())
        if points and dash == by and "symbolType" not in dict(settings or ()):
            # scales of one domain have one legend, whose symbols were dashed
            dashes, settings = [*dashes, ""], None
        scale = alt.Scale(
            domain=dashes, range=[DASHES[k % len(DASHES)] for k in range(len(dashes))]
        )
        legend = _legend(settings, dashes)
        lines = lines.encode(
            strokeDash=alt.StrokeDash(f"{dash}:N", sort=None, legend=legend, scale=scale)
        )
        base, dots = (part.encode(detail=f"{dash}:N") for part in (base, dots))
    layers = [*under, *_reference(zero, threshold, "y")]
    if spread:
        band, ends = (
            base.mark_area(opacity=0.2, clip=clip),
            base.mark_rule(size=2, opacity=0.6, clip=clip),
        )
        layers.append((band if spread == "band" else ends).encode(y=_end(y, "low"), y2="high:Q"))
    layers.append(lines.encode(y=y))
    if points:
        layers.append(
            dots.mark_point(filled=True, size=55, opacity=1, clip=clip).encode(y=y, tooltip=hints)
        )
    return _panel([*layers, *over], title, width, height)


def bars(
    table: pd.DataFrame,
    category: str | alt.X | alt.Y,
    value: str | alt.X | alt.Y,
    by: str | None = None,
    *,
    vertical: bool = False,
    number: str | None = None,
    color=None,
    outlined: str | None = None,
    mark: dict | None = None,
    form: str = ".3g",
    shown=(),
    zero: bool = True,
    under=(),
    over=(),
    title: str | None = None,
    width: int = WIDTH,
    height: int | alt.Step = 220,
    **names,
) -> alt.LayerChart:
    """Bars from zero, one for each category, or with `by` several beside one another; intervals if
    there are any.

    outlined: an expression of rows whose bar has a black outline.  mark: settings of the bars.
    """
    along, across, offset = (alt.Y, alt.X, alt.XOffset) if vertical else (alt.X, alt.Y, alt.YOffset)
    side, angle = ("y", {"labelAngle": 0}) if vertical else ("x", {"labelLimit": 340})
    place, length = _category(category, across, **angle), _value(value, along)
    base = alt.Chart(table).encode(**{"x" if vertical else "y": place})
    base, _ = _colored(base, table, by, color, offset, shape=False, **names)
    columns = _spread_columns(table, length)
    hints = tooltips(table, _name(place), by, *shown, *columns, form=form)
    bodies = base.mark_bar(**(mark or {})).encode(**{side: length}, tooltip=hints)
    if outlined:
        line = alt.when(outlined).then(alt.value(1.5)).otherwise(alt.value(0))
        bodies = bodies.encode(stroke=alt.value("black"), strokeWidth=line)
    black, layers = base.encode(color=alt.value("black")), [*under, bodies]
    if "low" in columns:
        layers.append(
            black.mark_rule(size=2).encode(**{side: _end(length, "low"), f"{side}2": "high:Q"})
        )
        layers += _numbers(
            black.transform_calculate(high="max(datum.high, 0)"),
            length,
            number,
            True,
            small=vertical,
        )
    else:
        layers += _signed_numbers(black, length, number)
    return _panel(
        [*layers, *([rule(0, side, color="black")] if zero else []), *over], title, width, height
    )


def cells(
    table: pd.DataFrame,
    x: alt.X | str,
    y: alt.Y | str,
    color: alt.Color,
    text=None,
    *,
    dark: str | None = None,
    size: int = 12,
    stroke: str = "white",
    form: str = ".4g",
    shown=(),
    title: str | None = None,
    width: int | alt.Step = WIDTH,
    height: int | alt.Step = 200,
    **ends,
) -> alt.LayerChart:
    """Coloured cells with a text in each: names on both axes, or intervals with x2= and y2=.

    text: an alt.Text or its field.  dark: an expression of rows whose text is white, the others'
    being black.
    """
    x = _category(x, alt.X, labelAngle=0) if isinstance(x, str) else x
    y = _category(y, alt.Y, labelLimit=520) if isinstance(y, str) else y
    base = alt.Chart(table).encode(x=x, y=y)
    ink = (
        alt.when(dark).then(alt.value("white")).otherwise(alt.value("black"))
        if dark
        else alt.value("black")
    )
    rect = base.mark_rect(stroke=stroke).encode(
        color=color, tooltip=tooltips(table, *shown, form=form), **ends
    )
    texts = [base.mark_text(fontSize=size).encode(text=text, color=ink)] if text is not None else []
    return _panel([rect, *texts], title, width, height)


def panels(
    charts, title: str, subtitle: str, description: str, spacing: int = 14, vertical: bool = False
):
    """Charts beside one another (vertical: below one another) under one title, with one
    description.
    """
    return titled(
        (alt.vconcat if vertical else alt.hconcat)(*charts, spacing=spacing),
        title,
        subtitle,
        description,
    )


def rule(
    value: float, axis: str, dashed: bool = False, color: str = GRID_LINE, **mark
) -> alt.Chart:
    """A line across the whole panel at a value of the axis "x" or "y"; mark: further settings of
    the line.
    """
    mark = ({"strokeDash": [5, 4], "size": 1.5} if dashed else {}) | mark
    # Vega-Lite would take the grid away from all layers: a datum has none of its own accord
    grid = alt.Axis(grid=True)
    return alt.Chart().mark_rule(color=color, **mark).encode(**{axis: alt.datum(value, axis=grid)})


def by_sign(field: str):
    """Colour: blue where a column is at least 0, orange below."""
    return (
        alt.when(f"datum['{field}'] >= 0").then(alt.value(POSITIVE)).otherwise(alt.value(NEGATIVE))
    )


def clear_of_zero():
    """Colour: blue where the whole interval lies above 0, orange where it lies below, else grey."""
    up = alt.when("datum.low > 0").then(alt.value(POSITIVE))
    return up.when("datum.high < 0").then(alt.value(NEGATIVE)).otherwise(alt.value(NEUTRAL))


def _signed_numbers(base: alt.Chart, value, number: str | None) -> list[alt.Chart]:
    """The number at the end of each bar, on the side to which the bar points; none without a
    format.
    """
    if number is None:
        return []
    field, text = _name(value), alt.Text(f"{_name(value)}:Q", format=number)
    above, below = (
        base.transform_filter(f"datum['{field}'] >= 0"),
        base.transform_filter(f"datum['{field}'] < 0"),
    )
    if isinstance(value, alt.Y):
        return [
            part.mark_text(dy=dy).encode(y=value, text=text)
            for part, dy in ((above, -7), (below, 9))
        ]
    sides = ((above, "left", 4), (below, "right", -4))
    return [
        part.mark_text(align=align, dx=dx).encode(x=value, text=text) for part, align, dx in sides
    ]


def _category(given, channel, **axis):
    return (
        channel(f"{given}:N", sort=None, title=None).axis(**axis)
        if isinstance(given, str)
        else given
    )


def _value(given, channel):
    return channel("mean:Q", title=given) if given is None or isinstance(given, str) else given


def _name(channel) -> str:
    return channel.shorthand.rsplit(":", 1)[0]


def _end(channel, column: str):
    """The same axis for another column, such as the interval's low end."""
    other = channel.copy()
    other.shorthand = f"{column}:Q"
    return other


def _spread_columns(table: pd.DataFrame, value) -> list[str]:
    return [_name(value), *(end for end in ("low", "high") if end in table)]


def _legend(settings, names, room: float = WIDTH) -> alt.Legend | None:
    """A legend below the plot, in columns where its names side by side would be wider than the room
    that there is.
    """
    usual = {"title": None, "orient": "bottom", "labelLimit": 320, "symbolOpacity": 1}
    widths = [6.5 * len(str(name)) + 36 for name in names]  # pixels of an entry
    usual |= {"columns": max(1, int(room // max(widths)))} if sum(widths) > room else {}
    return None if settings is None else alt.Legend(**usual | dict(settings))


def _colored(
    base, table, by, color, offset, shape=True, names=None, colors=SERIES, shapes=None, legend=()
):
    """(base, dots): the chart with colours by name, and its dots with shapes as well; both in one
    legend.
    """
    if by is None:
        base = base.encode(color=alt.value(ACCENT) if color is None else color)
        return base, base
    # (): those that data come to have
    names = table[by].drop_duplicates().tolist() if names is None else list(names)
    room = WIDTH / 2 if offset is alt.YOffset else WIDTH  # beside the names of rows
    known, order, legend = (
        {"domain": names} if names else {},
        names or None,
        _legend(legend, names, room),
    )
    if offset:
        base = base.encode(offset(f"{by}:N", sort=order).scale(**known))
    if color is None:
        ends = [colors[k % len(colors)] for k in range(len(names) or len(colors))]
        color = alt.Color(f"{by}:N", sort=order, legend=legend).scale(**known, range=ends)
    base = base.encode(color=color)
    if not shape:
        return base, base
    scale = alt.Scale(**known) if shapes is None else alt.Scale(**known, range=shapes)
    legend = legend if names else None  # two legends are one only where both list the same names
    return base, base.encode(shape=alt.Shape(f"{by}:N", sort=order, legend=legend, scale=scale))


def _reference(zero: bool, threshold: float | None, axis: str) -> list[alt.Chart]:
    """Lines to compare with, below everything else."""
    lines = [rule(0, axis)] if zero else []
    return (
        lines if threshold is None else [*lines, rule(threshold, axis, dashed=True, color=NEUTRAL)]
    )


def _numbers(
    base, value, number: str | None, end: bool = False, small: bool = False
) -> list[alt.Chart]:
    """The middle value as a number: above its dot, or at the upper end of its interval; none
    without a format.
    """
    if number is None:
        return []
    if isinstance(value, alt.Y):
        axis, place = "y", {"dy": -9 if end else -13}
    else:
        axis, place = "x", {"align": "left", "dx": 6} if end else {"dy": -9 if small else -10}
    weight = "normal" if small else "bold"
    text = base.mark_text(fontWeight=weight, **place).encode(
        text=alt.Text(f"{_name(value)}:Q", format=number)
    )
    return [text.encode(**{axis: _end(value, "high") if end else value})]


def _panel(layers: list, title: str | None, width, height) -> alt.LayerChart:
    named = {} if title is None else {"title": panel_title(title)}
    return alt.layer(*layers).properties(width=width, height=height, **named)
