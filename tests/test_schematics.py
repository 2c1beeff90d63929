"""The schematics: a message each, drawn within the canvas, no text on another."""

import itertools

import pytest

from workbook import views
from workbook.views import schematics
from workbook.views.canvas import Canvas, text_width
from workbook.views.style import WIDTH, to_spec

DRAWINGS = [name for name in vars(schematics) if name.startswith("draw_")]
# of a text's box, as a share of its type: letters without their line's leading
LETTER_HEIGHT = 0.8


def rows_of(spec: dict, mark: str) -> list[dict]:
    """The rows of the layers of one mark, a text's with its alignment and weight."""
    rows = []
    for layer in spec["layer"]:
        if layer["mark"]["type"] == mark:
            for row in spec["datasets"][layer["data"]["name"]]:
                rows.append({**layer["mark"], **row})
    return rows


def box_of(text: dict) -> tuple[float, float, float, float]:
    """A text's left, top, right and bottom, in pixels."""
    wide = text_width(text["text"], text["size"], text["bold"])
    left = text["x"] - {"left": 0, "center": wide / 2, "right": wide}[text["align"]]
    half = LETTER_HEIGHT * text["size"] / 2
    return left, text["y"] - half, left + wide, text["y"] + half


def overlap(a: tuple, b: tuple) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def contains(a: tuple, b: tuple) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and b[2] <= a[2] and b[3] <= a[3]


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_schematic_has_a_message_and_its_texts_stand_free(name):
    spec = to_spec(getattr(views, name)())
    title = " ".join(spec["title"]["text"])
    assert spec["description"].startswith(f"{title}. ")
    assert len(spec["description"]) > len(title) + 40
    canvas = 0, 0, WIDTH, spec["height"]
    texts = {row["text"]: box_of(row) for row in rows_of(spec, "text")}
    boxes = [box_of(row) for row in rows_of(spec, "text")]
    for text, box in texts.items():
        assert contains(canvas, box), text
    for one, other in itertools.combinations(boxes, 2):
        assert not overlap(one, other), [text for text, box in texts.items() if box in (one, other)]
    for rectangle in rows_of(spec, "rect"):
        edges = rectangle["x"], rectangle["y"], rectangle["x2"], rectangle["y2"]
        assert contains(canvas, edges)
        for text, box in texts.items():
            assert contains(edges, box) or not overlap(edges, box), text
    for point in [*rows_of(spec, "line"), *rows_of(spec, "point")]:
        assert 0 <= point["x"] <= WIDTH
        assert 0 <= point["y"] <= spec["height"]


def test_an_arrow_ends_where_it_points_and_a_chip_says_where_it_ends():
    canvas = Canvas(height=100)
    assert canvas.chip(10, 50, "word", width=60) == 70
    canvas.arrow((10, 50), (90, 50), width=3)
    canvas.text(50, 20, "two\nlines")
    spec = to_spec(canvas.chart("A title", "What is seen."))
    (head,) = (row for row in rows_of(spec, "point") if "angle" in row)
    assert head["angle"] == 90
    half_height = head["area"] ** 0.5 / 2 * 3**0.5 / 2
    assert head["x"] + half_height == pytest.approx(90)
    assert [row["text"] for row in rows_of(spec, "text")] == ["word", "two", "lines"]
