"""Figure kit: estimates with intervals as forests, lines and bars; colour grids; several as panels.

A table has one row per estimate, with the columns mean, low and high beside its names. Every part
of the kit draws the table as it is, so that an explorer can push rows into it, and returns a bare
layered chart of fixed size. `titled` (in `workbook.views.style`) or `panels` adds title, subtitle
and the description for screen readers.

    forest(table, "kind", "nats", by="series", threshold=3)    dots with intervals, one row each
    bars(table, "class", alt.X("moved:Q", title="moved"))      bars from zero, with intervals
    series(table, alt.X("step:Q"), "reward", by="run")         lines with bands
    cells(table, "scale", "claim", alt.Color("K:Q"), "label")  coloured squares with a text

Arguments that all share:

    value           its title, or a ready-made alt.X or alt.Y of the middle value; the intervals are
                    drawn on the same axis
    by              a column whose names each get a colour, a shape, and one legend together
    names           the order of these names; colors= and shapes= are their looks
    legend          settings of alt.Legend, or None for no legend
    color           any alt.Color instead of that of `by`
    zero, threshold lines to compare with, solid and dashed; `rule(value, "x")` in under= or over=
                    draws any other
    number, form    d3 format of the printed middle values, and of those in the tooltip
    shown           further columns for the tooltip
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
_DASHES = [[1, 0], [6, 4], [2, 2], [8, 3, 2, 3], [3, 5], [10, 3]]


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
    """Dots with intervals, a line per row of a table; with `by`, several dots in each row.

    labels: whether rows are named.  number_at: "above" the dot, or at the "end" of its interval.
    """
    y = _category(row, alt.Y, labelLimit=340)
    if not labels:
        y = y.axis(None)
    x = _value(value, alt.X)
    hints = tooltips(table, _name(y), by, *shown, *INTERVAL, form=form)

    # several dots in a row stand one below the other
    several = by is not None and table[_name(y)].duplicated().any()
    offset = alt.YOffset if several else None
    base, dots = _colored(alt.Chart(table).encode(y=y), table, by, color, offset, **names)

    intervals = base.mark_rule(size=3, opacity=0.5)
    layers = [*under, *_reference(zero, threshold, "x")]
    layers.append(intervals.encode(x=_end(x, "low"), x2="high:Q", tooltip=hints))
    layers.append(dots.mark_point(size=70, opacity=1, filled=True).encode(x=x, tooltip=hints))
    layers += _numbers(base, x, number, end=number_at == "end", small=several)

    if height is None:
        height = alt.Step(_row_step(several, bool(number)))
    return _panel([*layers, *over], title, width, height)


def _row_step(several: bool, numbered: bool) -> int:
    """Pixels of a dot's row: less where several dots share one, more where numbers stand above."""
    if several:
        return 22 if numbered else 18
    return 32 if numbered else 26


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

    spread: intervals as a "band", as "bars", or None.
    dash: a column that tells lines apart by dashes.
    """
    y = _value(value, alt.Y)
    hints = tooltips(table, by, _name(x), *shown, *_spread_columns(table, y), form=form)
    base, dots = _colored(alt.Chart(table).encode(x=x), table, by, color, None, **names)
    lines = base.mark_line(strokeWidth=2.5, clip=clip)
    if dash:
        lines = lines.encode(strokeDash=_dashes(table, dash, by, points, names))
        # points and bands of a line belong together, as its dashes do
        base = base.encode(detail=f"{dash}:N")
        dots = dots.encode(detail=f"{dash}:N")

    layers = [*under, *_reference(zero, threshold, "y")]
    if spread:
        band = base.mark_area(opacity=0.2, clip=clip)
        if spread != "band":
            band = base.mark_rule(size=2, opacity=0.6, clip=clip)
        layers.append(band.encode(y=_end(y, "low"), y2="high:Q"))
    layers.append(lines.encode(y=y))
    if points:
        marks = dots.mark_point(filled=True, size=55, opacity=1, clip=clip)
        layers.append(marks.encode(y=y, tooltip=hints))
    return _panel([*layers, *over], title, width, height)


def _dashes(table, dash: str, by: str | None, points: bool, settings: dict) -> alt.StrokeDash:
    """Dashes by the names of a column; settings: names and legend, as of the colours."""
    names = table[dash].drop_duplicates().tolist()
    if dash == by and settings.get("names"):
        names = list(settings["names"])
    legend = settings.get("legend", ())
    # scales of one domain share a legend, whose symbols would be dashed points: another domain
    if points and dash == by and "symbolType" not in dict(legend or ()):
        names = [*names, ""]
        legend = None
    patterns = [_DASHES[k % len(_DASHES)] for k in range(len(names))]
    scale = alt.Scale(domain=names, range=patterns)
    return alt.StrokeDash(f"{dash}:N", sort=None, legend=_legend(legend, names), scale=scale)


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
    """Bars from zero, one for each category, with intervals if there are any.

    by: several bars beside one another in each category.  outlined: an expression of rows whose bar
    has a black outline.  mark: settings of the bars.
    """
    if vertical:
        side = "y"
        place = _category(category, alt.X, labelAngle=0)
        length = _value(value, alt.Y)
        base = alt.Chart(table).encode(x=place)
        offset = alt.XOffset
    else:
        side = "x"
        place = _category(category, alt.Y, labelLimit=340)
        length = _value(value, alt.X)
        base = alt.Chart(table).encode(y=place)
        offset = alt.YOffset
    base, _ = _colored(base, table, by, color, offset, shape=False, **names)
    columns = _spread_columns(table, length)
    hints = tooltips(table, _name(place), by, *shown, *columns, form=form)
    bodies = base.mark_bar(**(mark or {})).encode(**{side: length}, tooltip=hints)
    if outlined:
        line = alt.when(outlined).then(alt.value(1.5)).otherwise(alt.value(0))
        bodies = bodies.encode(stroke=alt.value("black"), strokeWidth=line)

    layers = [*under, bodies]
    black = base.encode(color=alt.value("black"))
    if "low" in columns:
        ends = {side: _end(length, "low"), f"{side}2": "high:Q"}
        layers.append(black.mark_rule(size=2).encode(**ends))
        # a number stands beyond the bar, too, where the interval ends within it
        beyond = black.transform_calculate(high="max(datum.high, 0)")
        layers += _numbers(beyond, length, number, end=True, small=vertical)
    else:
        layers += _signed_numbers(black, length, number)
    if zero:
        layers.append(rule(0, side, color="black"))
    return _panel([*layers, *over], title, width, height)


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

    text: an alt.Text or its field.  dark: an expression of rows whose text is white, not black.
    """
    x = _category(x, alt.X, labelAngle=0)
    y = _category(y, alt.Y, labelLimit=520)
    base = alt.Chart(table).encode(x=x, y=y)
    hints = tooltips(table, *shown, form=form)
    layers = [base.mark_rect(stroke=stroke).encode(color=color, tooltip=hints, **ends)]
    if text is not None:
        ink = alt.value("black")
        if dark:
            ink = alt.when(dark).then(alt.value("white")).otherwise(alt.value("black"))
        layers.append(base.mark_text(fontSize=size).encode(text=text, color=ink))
    return _panel(layers, title, width, height)


def panels(
    charts, title: str, subtitle: str, description: str, spacing: int = 14, vertical: bool = False
):
    """Charts beside one another, or vertically, under one title and with one description.

    Each chart says its own width; the row should fit into `WIDTH`.
    """
    join = alt.vconcat if vertical else alt.hconcat
    return titled(join(*charts, spacing=spacing), title, subtitle, description)


def rule(
    value: float, axis: str, dashed: bool = False, color: str = GRID_LINE, **mark
) -> alt.Chart:
    """A line across the whole panel at a value of the axis "x" or "y".

    mark: further settings of the line.
    """
    if dashed:
        mark = {"strokeDash": [5, 4], "size": 1.5, **mark}
    # Vega-Lite would take the grid away from all layers: a datum has none of its own accord
    grid = alt.Axis(grid=True)
    return alt.Chart().mark_rule(color=color, **mark).encode(**{axis: alt.datum(value, axis=grid)})


def by_sign(field: str):
    """Colour: blue where a column is at least 0, orange below."""
    return (
        alt.when(f"datum['{field}'] >= 0").then(alt.value(POSITIVE)).otherwise(alt.value(NEGATIVE))
    )


def _signed_numbers(base: alt.Chart, value, number: str | None) -> list[alt.Chart]:
    """The number beyond the end of each bar, on its side; none without a format."""
    if number is None:
        return []
    field = _name(value)
    text = alt.Text(f"{field}:Q", format=number)
    upward = base.transform_filter(f"datum['{field}'] >= 0")
    downward = base.transform_filter(f"datum['{field}'] < 0")
    if isinstance(value, alt.Y):
        return [
            upward.mark_text(dy=-7).encode(y=value, text=text),
            downward.mark_text(dy=9).encode(y=value, text=text),
        ]
    return [
        upward.mark_text(align="left", dx=4).encode(x=value, text=text),
        downward.mark_text(align="right", dx=-4).encode(x=value, text=text),
    ]


def _category(given, channel, **axis):
    """A channel of names, in the table's order; a ready-made channel as it is."""
    if not isinstance(given, str):
        return given
    return channel(f"{given}:N", sort=None, title=None).axis(**axis)


def _value(given, channel):
    """The channel of the middle value under a title; a ready-made channel as it is."""
    if given is None or isinstance(given, str):
        return channel("mean:Q", title=given)
    return given


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
    """A legend below the plot, in columns where its names side by side would be wider than `room`.

    settings: of alt.Legend, or None for no legend.
    """
    if settings is None:
        return None
    usual = {"title": None, "orient": "bottom", "labelLimit": 320, "symbolOpacity": 1}
    # pixels of an entry: its letters, and a symbol with space around it
    widths = [6.5 * len(str(name)) + 36 for name in names]
    if sum(widths) > room:
        usual["columns"] = max(1, int(room // max(widths)))
    return alt.Legend(**{**usual, **dict(settings)})


def _colored(
    base, table, by, color, offset, shape=True, names=None, colors=SERIES, shapes=None, legend=()
):
    """(base, dots): the chart with colours by name, and its dots with shapes as well.

    Both stand in one legend.
    """
    if by is None:
        base = base.encode(color=alt.value(ACCENT) if color is None else color)
        return base, base
    # names=(): whatever names the data come to have
    names = table[by].drop_duplicates().tolist() if names is None else list(names)
    order = names or None
    domain = {"domain": names} if names else {}
    # names of rows stand beside the plot, and the legend below it is narrower
    room = WIDTH / 2 if offset is alt.YOffset else WIDTH
    legend = _legend(legend, names, room)
    if offset:
        base = base.encode(offset(f"{by}:N", sort=order).scale(**domain))
    if color is None:
        count = len(names) or len(colors)
        range_ = [colors[k % len(colors)] for k in range(count)]
        color = alt.Color(f"{by}:N", sort=order, legend=legend).scale(**domain, range=range_)
    base = base.encode(color=color)
    if not shape:
        return base, base
    scale = alt.Scale(**domain) if shapes is None else alt.Scale(**domain, range=shapes)
    # two legends are one only where both list the same names
    legend = legend if names else None
    shape_channel = alt.Shape(f"{by}:N", sort=order, legend=legend, scale=scale)
    return base, base.encode(shape=shape_channel)


def _reference(zero: bool, threshold: float | None, axis: str) -> list[alt.Chart]:
    """Lines to compare with, below everything else."""
    lines = [rule(0, axis)] if zero else []
    if threshold is not None:
        lines.append(rule(threshold, axis, dashed=True, color=NEUTRAL))
    return lines


def _numbers(
    base, value, number: str | None, end: bool = False, small: bool = False
) -> list[alt.Chart]:
    """The middle value as a number, above its dot; none without a format.

    end: at the upper end of its interval instead.
    """
    if number is None:
        return []
    if isinstance(value, alt.Y):
        axis = "y"
        place = {"dy": -9 if end else -13}
    else:
        axis = "x"
        above = {"dy": -9 if small else -10}
        place = {"align": "left", "dx": 6} if end else above
    words = base.mark_text(fontWeight="normal" if small else "bold", **place)
    words = words.encode(text=alt.Text(f"{_name(value)}:Q", format=number))
    return [words.encode(**{axis: _end(value, "high") if end else value})]


def _panel(layers: list, title: str | None, width, height) -> alt.LayerChart:
    chart = alt.layer(*layers).properties(width=width, height=height)
    return chart if title is None else chart.properties(title=panel_title(title))
