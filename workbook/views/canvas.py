"""A tiny drawing kit: boxes, chips, dots, arrows and texts on a canvas of pixels.

A drawing is made of layered Altair charts, so that it has what every chart has: a picture where no
kernel runs, a description for screen readers, a dark page, a figure's number. Coordinates are
pixels from the canvas's top left corner. Boxes lie below lines, lines below dots and chips, and
texts on top.
"""

import itertools
import math
import textwrap

import altair as alt
import pandas as pd

from workbook.views.style import NEUTRAL, WIDTH, titled

# sizes of type: pages that are half as wide show them half as large
BIG, NORMAL, SMALL = 24, 20, 18
# characters of a title's line, with room for a figure's number
_TITLE_CHARACTERS = 54
_TITLE_SIZE = 20
# width of a character, as a share of the type's size: that of the widest sans-serif in use
_NARROW, _WIDE = set("iljtfrI.,:;'|!() "), set("mwMW%@—")
_CHARACTER_WIDTHS = {"narrow": 0.38, "wide": 0.9, "other": 0.62}
_BOLD = 1.08
# of a line's type
_LINE_HEIGHT = 1.2
_CORNER = 6


def text_width(text: str, size: float, bold: bool = False) -> float:
    """About how many pixels a line of text takes, rather more than less."""
    kinds = ("narrow" if one in _NARROW else "wide" if one in _WIDE else "other" for one in text)
    return sum(_CHARACTER_WIDTHS[kind] for kind in kinds) * size * (_BOLD if bold else 1)


class Canvas:
    """A canvas, `width` x `height` pixels, with what was drawn on it."""

    def __init__(self, height: float, width: float = WIDTH) -> None:
        self.width, self.height = width, height
        self._boxes: list[dict] = []
        self._chips: list[dict] = []
        self._dots: list[dict] = []
        self._heads: list[dict] = []
        self._lines: list[dict] = []
        self._texts: list[dict] = []
        self._ids = itertools.count()

    def text(
        self,
        x: float,
        y: float,
        text: str,
        size: float = NORMAL,
        color: str = "black",
        bold: bool = False,
        align: str = "center",
    ) -> None:
        """Lines of text, whose middle stands at height `y`."""
        lines = text.split("\n")
        for place, line in enumerate(lines):
            shift = (place - (len(lines) - 1) / 2) * size * _LINE_HEIGHT
            self._texts.append(
                {
                    "text": line,
                    "x": x,
                    "y": y + shift,
                    "size": size,
                    "color": color,
                    "bold": bold,
                    "align": align,
                }
            )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        text: str = "",
        fill: str = "white",
        edge: str = NEUTRAL,
        on_top: bool = False,
        **type_of_text,
    ) -> None:
        """A rectangle by its top left corner, with a text in its middle.  on_top: above lines."""
        rectangle = {"x": x, "y": y, "x2": x + width, "y2": y + height, "fill": fill, "edge": edge}
        (self._chips if on_top else self._boxes).append(rectangle)
        if text:
            self.text(x + width / 2, y + height / 2, text, **type_of_text)

    def chip(
        self,
        x: float,
        y: float,
        word: str,
        fill: str = "#f1f1f1",
        edge: str = NEUTRAL,
        width: float | None = None,
        size: float = NORMAL,
        **type_of_text,
    ) -> float:
        """A token, by the middle of its left edge; returns its right edge."""
        width = width or text_width(word, size) + 12
        height = size * 1.7
        self.box(
            x,
            y - height / 2,
            width,
            height,
            word,
            fill,
            edge,
            on_top=True,
            size=size,
            **type_of_text,
        )
        return x + width

    def dot(
        self,
        x: float,
        y: float,
        radius: float = 6,
        fill: str = "black",
        edge: str = "black",
        text: str = "",
        **type_of_text,
    ) -> None:
        """A circle, with a text in its middle."""
        area = math.pi * radius**2
        self._dots.append({"x": x, "y": y, "area": area, "fill": fill, "edge": edge})
        if text:
            self.text(x, y, text, **type_of_text)

    def line(
        self,
        *points: tuple[float, float],
        color: str = NEUTRAL,
        width: float = 2,
        dashed: bool = False,
    ) -> None:
        """A line through points."""
        name = next(self._ids)
        for place, (x, y) in enumerate(points):
            point = {"x": x, "y": y, "place": place, "line": name}
            self._lines.append({**point, "color": color, "width": width, "dashed": dashed})

    def arrow(
        self,
        *points: tuple[float, float],
        color: str = NEUTRAL,
        width: float = 3,
        dashed: bool = False,
        bend: float = 0,
    ) -> None:
        """A line through points with a head at the last.

        bend: of two points only, by how many pixels the line's middle leaves the straight one, to
        the right of its direction on the page where positive.
        """
        if bend:
            points = _bent(*points, bend)
        (x1, y1), (x2, y2) = points[-2:]
        length = math.hypot(x2 - x1, y2 - y1)
        direction = (x2 - x1) / length, (y2 - y1) / length
        # half the side of the triangle, and half its height, which is where its middle lies
        half_side = 4 + 1.6 * width
        half_height = half_side * math.sqrt(3) / 2
        x = x2 - direction[0] * half_height
        y = y2 - direction[1] * half_height
        angle = math.degrees(math.atan2(direction[0], -direction[1]))
        area = (2 * half_side) ** 2
        self._heads.append({"x": x, "y": y, "angle": angle, "area": area, "fill": color})
        self.line(*points[:-1], (x, y), color=color, width=width, dashed=dashed)

    def chart(self, title: str, description: str) -> alt.LayerChart:
        """The drawing as a chart, its message as the title."""
        layers = [
            self._rectangles(self._boxes),
            self._ways(dashed=False),
            self._ways(dashed=True),
            self._points(self._heads, shape="triangle"),
            self._rectangles(self._chips),
            self._points(self._dots, shape="circle"),
            *self._words(),
        ]
        chart = alt.layer(*filter(None, layers)).configure_view(strokeOpacity=0)
        chart = titled(chart.properties(height=self.height), title, "", description)
        chart.title = alt.TitleParams(
            textwrap.wrap(title, _TITLE_CHARACTERS), anchor="start", fontSize=_TITLE_SIZE, offset=14
        )
        return chart

    def _place(self, column: str, size: float) -> dict:
        scale = alt.Scale(domain=[0, size], nice=False, zero=False, reverse=column == "y")
        return {"shorthand": f"{column}:Q", "axis": None, "scale": scale}

    def _base(self, rows: list[dict]) -> alt.Chart:
        return alt.Chart(pd.DataFrame(rows)).encode(
            x=alt.X(**self._place("x", self.width)), y=alt.Y(**self._place("y", self.height))
        )

    def _rectangles(self, rows: list[dict]) -> alt.Chart | None:
        if not rows:
            return None
        mark = self._base(rows).mark_rect(cornerRadius=_CORNER, aria=False, strokeWidth=1.5)
        return mark.encode(
            x2="x2:Q",
            y2="y2:Q",
            fill=alt.Fill("fill:N", scale=None),
            stroke=alt.Stroke("edge:N", scale=None),
        )

    def _ways(self, dashed: bool) -> alt.Chart | None:
        rows = [row for row in self._lines if row["dashed"] is dashed]
        if not rows:
            return None
        style = {"strokeDash": [7, 5]} if dashed else {}
        mark = self._base(rows).mark_line(aria=False, strokeJoin="round", **style)
        return mark.encode(
            detail="line:N",
            order="place:Q",
            stroke=alt.Stroke("color:N", scale=None),
            strokeWidth=alt.StrokeWidth("width:Q", scale=None),
        )

    def _points(self, rows: list[dict], shape: str) -> alt.Chart | None:
        if not rows:
            return None
        mark = self._base(rows).mark_point(shape=shape, aria=False, opacity=1, strokeWidth=2)
        mark = mark.encode(size=alt.Size("area:Q", scale=None), fill=alt.Fill("fill:N", scale=None))
        if shape == "triangle":
            return mark.encode(angle=alt.Angle("angle:Q", scale=None), strokeOpacity=alt.value(0))
        return mark.encode(stroke=alt.Stroke("edge:N", scale=None))

    def _words(self) -> list[alt.Chart]:
        layers = []
        for align, bold in sorted({(row["align"], row["bold"]) for row in self._texts}):
            rows = [row for row in self._texts if (row["align"], row["bold"]) == (align, bold)]
            weight = "bold" if bold else "normal"
            mark = self._base(rows).mark_text(
                align=align, baseline="middle", fontWeight=weight, aria=False
            )
            layers.append(
                mark.encode(
                    text="text:N",
                    size=alt.Size("size:Q", scale=None),
                    color=alt.Color("color:N", scale=None),
                )
            )
        return layers


def _bent(start: tuple[float, float], end: tuple[float, float], bend: float) -> list[tuple]:
    """Points of a quadratic curve from start to end."""
    (x1, y1), (x2, y2) = start, end
    length = math.hypot(x2 - x1, y2 - y1)
    # the curve's middle lies half as far off as its control point
    control_x = (x1 + x2) / 2 - 2 * bend * (y2 - y1) / length
    control_y = (y1 + y2) / 2 + 2 * bend * (x2 - x1) / length
    points = []
    for step in range(25):
        t = step / 24
        weights = (1 - t) ** 2, 2 * t * (1 - t), t**2
        x = weights[0] * x1 + weights[1] * control_x + weights[2] * x2
        y = weights[0] * y1 + weights[1] * control_y + weights[2] * y2
        points.append((x, y))
    return points
