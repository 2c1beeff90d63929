"""Curves: a t interval over units at each x, and one look with the paper's place on the axis."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t

from workbook.statistics import unit_curve
from workbook.views import curve_chart


@pytest.fixture
def table():
    rows = [
        (seed, x, kind, seed + x + bias)
        for seed in range(4)
        for x in (1, 2)
        for kind, bias in (("a", 0), ("b", 1))
    ]
    return pd.DataFrame(rows, columns=["seed", "x", "kind", "y"]).astype({"y": float})


def test_a_curve_weighs_units_alike_whatever_their_rows(table):
    """Unit 3 has three rows at x = 1, of mean 5; units' values are then 1, 2, 3, 5: mean 11/4, s^2
    = 35/12.
    """
    more = pd.DataFrame({"seed": 3, "x": 1, "kind": "a", "y": [5.0, 6.0, np.nan]})
    curve = (
        unit_curve(pd.concat([table, more]), "x", "y", by="kind")
        .query("kind == 'a' and x == 1")
        .iloc[0]
    )
    half = t.ppf(0.975, 3) * (35 / 12 / 4) ** 0.5
    assert [curve["mean"], curve["low"], curve["high"]] == pytest.approx(
        [2.75, 2.75 - half, 2.75 + half]
    )
    assert curve["units"] == 4


def test_one_unit_has_no_interval_and_a_unit_without_numbers_is_left_out(table):
    alone = table[table["seed"] == 0]
    assert unit_curve(alone, "x", "y", by=["kind"])[["low", "high"]].isna().all(axis=None)
    without = table.assign(y=table["y"].where(table["seed"] != 0))
    assert (unit_curve(without, "x", "y")["units"] == 3).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda table: unit_curve(table, "x", "z"),
            "column.* z",
        ),
        (
            lambda table: unit_curve(table.assign(y=np.nan), "x", "y"),
            "none of the 16 rows",
        ),
        (lambda table: curve_chart(unit_curve(table, "x", "y")[:0], "x"), "empty"),
        (
            lambda table: curve_chart(unit_curve(table.assign(x=table["x"] - 1), "x", "y"), "x"),
            "log2",
        ),
        (
            lambda table: curve_chart(unit_curve(table, "x", "y"), "x", series="kind"),
            "column.* kind",
        ),
    ],
)
def test_what_makes_no_curve_is_refused(table, call, words):
    with pytest.raises(ValueError, match=words):
        call(table)


def test_the_paper_stands_on_the_axis_and_lines_to_compare_with_have_their_texts(table):
    curve = unit_curve(table, "x", "y", by="kind")
    titles = {"x_title": "x", "y_title": "y", "title": "T"}
    marks = {"paper": (4, 8, "the paper"), "reference": [(2, "two")]}
    spec = curve_chart(curve, "x", series="kind", **titles, **marks).to_dict()
    text = str(spec)
    assert (
        spec["title"]["subtitle"]
        == "line: mean; band: 95 % t interval over 4 units (policy and seed)"
    )
    assert "a, 1: 2.5 (0.446 to 4.55)" in spec["description"]
    assert all(
        words in text
        for words in ("'text': 'the paper'", "'text': 'two'", "'domain': [1.0, 8]", "strokeDash")
    )
    assert (
        "no interval"
        in curve_chart(unit_curve(table[:4], "x", "y"), "x", log2=False).to_dict()["title"][
            "subtitle"
        ]
    )


def test_a_curve_with_the_papers_place_can_follow_a_slider(table):
    from workbook.views.live import LiveChart

    def chart(curve):
        return curve_chart(curve, "x", paper=(1, 2, "the paper"), reference=[(2.0, "two")])

    curve = unit_curve(table, "x", "y")
    live = LiveChart(chart, curve=curve)
    live.push(curve=curve.assign(mean=7.0))
    assert {row["mean"] for row in live.data["curve"]} == {7.0}
