"""The figure kit: what is drawn is the table, on one axis, in the names' order, live or not."""

import json

import altair as alt
import pandas as pd
import pytest
import vl_convert

from workbook.views import figures
from workbook.views.live import spec_over
from workbook.views.style import describe_rows, png, to_spec, tooltips, vegalite_version

KINDS = ["one", "two"]
ESTIMATES = pd.DataFrame(
    [
        {"kind": kind, "series": name, "mean": m, "low": m - 0.5, "high": m + 1, "n": 3}
        for kind in KINDS
        for name, m in (("b", 0.25), ("a", 2.0))
    ]
)
CURVES = pd.DataFrame(
    [
        {"step": step, "run": run, "mean": m / step, "low": 0.1, "high": 1.0}
        for run, m in (("r", 0.5), ("s", 0.75))
        for step in (1, 2, 4)
    ]
)
STEP = alt.X("step:Q", title="step").scale(type="log", base=2)
FIGURES = {
    "forest": lambda table: figures.forest(
        table, "kind", "nats", by="series", number=".2f", threshold=1.0
    ),
    "forest at the end": lambda table: figures.forest(
        table, "kind", "nats", by="series", number="g", number_at="end"
    ),
    "bars": lambda table: figures.bars(
        table, "kind", "nats", by="series", number=".2f", outlined="datum.n > 2"
    ),
    "columns": lambda table: figures.bars(
        table, "kind", "nats", by="series", vertical=True, number=".2f"
    ),
    "signed": lambda table: figures.bars(
        table, "kind", "nats", number="+.2f", color=figures.by_sign("mean")
    ),
    "cells": lambda table: figures.cells(
        table,
        "kind",
        "series",
        alt.Color("mean:Q"),
        "mean:Q",
        dark="datum.mean > 1",
        shown=["kind"],
    ),
}


def layers(spec):
    """The (mark, encoding) pairs of a layered spec."""
    return [(part["mark"], part.get("encoding", {})) for part in spec["layer"]]


@pytest.mark.parametrize("make", FIGURES.values(), ids=FIGURES)
def test_a_figure_draws_the_table_as_it_is(make):
    assert png(to_spec(make(ESTIMATES)), scale=1).startswith(b"\x89PNG")
    assert spec_over(make, {"table": ESTIMATES}) == spec_over(
        make, {"table": ESTIMATES.assign(mean=7.0)}
    )


def test_numbers_of_bars_without_intervals_stand_where_the_bar_points():
    spec = to_spec(
        FIGURES["signed"](ESTIMATES[["kind", "mean"]].assign(mean=[1.0, -1.0, 2.0, -2.0]))
    )
    assert png(spec, scale=1).startswith(b"\x89PNG")
    assert [mark.get("align") for mark, _ in layers(spec)] == [None, "left", "right", None]


@pytest.mark.parametrize("spread", ["band", "bars", None])
def test_a_series_draws_lines_with_their_intervals(spread):
    def make(table):
        return figures.series(table, STEP, "reward", by="run", spread=spread, dash="run")

    spec = to_spec(make(CURVES))
    assert png(spec, scale=1).startswith(b"\x89PNG")
    legends = vl_convert.vegalite_to_vega(spec, vl_version=vegalite_version())["legends"]
    assert not any("strokeDash" in legend for legend in legends), "a symbol's edge would be dashed"
    kinds = [mark["type"] for mark, _ in layers(spec)]
    assert kinds == [*{"band": ["area"], "bars": ["rule"], None: []}[spread], "line", "point"]
    assert spec_over(make, {"table": CURVES})["layer"]


def test_ends_of_intervals_lie_on_the_axis_of_the_middle():
    x = alt.X("mean:Q", title="nats").scale(type="log", domain=[0.1, 10])
    spec = figures.forest(ESTIMATES, "kind", x, by="series").to_dict()
    (rule,) = [encoding for mark, encoding in layers(spec) if mark["type"] == "rule"]
    (dots,) = [encoding for mark, encoding in layers(spec) if mark["type"] == "point"]
    assert (rule["x"]["field"], rule["x2"]["field"], dots["x"]["field"]) == ("low", "high", "mean")
    assert {key: rule["x"][key] for key in ("scale", "title")} == {
        key: dots["x"][key] for key in ("scale", "title")
    }
    assert x.shorthand == "mean:Q"


def test_names_keep_the_tables_order_their_colours_and_one_legend():
    spec = figures.forest(
        ESTIMATES, "kind", "nats", by="series", colors=["red", "blue"], legend={"columns": 2}
    ).to_dict()
    (dots,) = [encoding for mark, encoding in layers(spec) if mark["type"] == "point"]
    assert dots["color"]["scale"] == {"domain": ["b", "a"], "range": ["red", "blue"]}
    assert dots["color"]["legend"] == dots["shape"]["legend"]
    assert dots["color"]["legend"]["columns"] == 2
    named = figures.forest(
        ESTIMATES, "kind", "nats", by="series", names=["a", "b"], legend=None
    ).to_dict()
    assert '"domain": ["a", "b"]' in json.dumps(named)
    assert '"legend": null' in json.dumps(named)


def test_estimates_are_spelt_out():
    table = ESTIMATES[ESTIMATES["series"] == "a"]
    assert describe_rows(table, "kind", "series", form=".1f") == "one, a: 2.0; two, a: 2.0"
    assert describe_rows(table, "kind", form=".1f", interval=True).startswith(
        "one: 2.0 (1.5 to 3.0); "
    )
    hints = [
        hint.to_dict()
        for hint in tooltips(ESTIMATES, "kind", None, "n", "mean", "kind", form=".1f")
    ]
    assert [(hint["field"], hint["type"], hint.get("format")) for hint in hints] == [
        ("kind", "nominal", None),
        ("n", "quantitative", None),
        ("mean", "quantitative", ".1f"),
    ]
