"""Explorer: controls, settings, code, reset, refusals, and the contract between a chart and its
tables.
"""

import json
import threading
from functools import partial
from itertools import product

import altair as alt
import pandas as pd
import pytest

from workbook.chapters import (
    coupling,
    credit,
    exchange,
    flips,
    groups,
    softmax,
)
from workbook.statistics import unit_curve
from workbook.views import Explorer, LiveChart, browse, frozen
from workbook.views.explorer import REFUSED_CLASS, log_slider, menu, slider
from workbook.views.live import rows, spec_over
from workbook.views.style import hide_from_screen_readers, png, typeset


def compute_line(slope: float = 1.0, points: int = 3, shape: str = "line") -> pd.DataFrame:
    if slope > 4:
        raise ValueError(f"slope={slope:g} is too <steep>: take at most 4.")
    return pd.DataFrame(
        {"x": range(points), "y": [slope * x for x in range(points)], "shape": shape}
    )


def line_chart(table) -> alt.LayerChart:
    base = alt.Chart(table).encode(x="x:Q", y="y:Q")
    return base.mark_line() + base.transform_filter("datum.x > 0").mark_point()


def explorer(**kwargs) -> Explorer:
    controls = {
        "slope": slider(1.0, 0.0, 5.0, 0.1, "slope"),
        "points": slider(3, 1, 9, 1, "points"),
    }
    controls["shape"] = menu("line", ["line", "curve"], "shape")
    return Explorer(compute_line, line_chart, controls, **kwargs)


def test_moving_a_control_pushes_rows_and_leaves_the_spec():
    one = explorer(describe=lambda table: f"ends at {table['y'].iloc[-1]:g} <b>")
    spec, version = one.chart.spec, one.chart.version
    one.set(slope=2.0)
    assert one.chart.data["table"] == rows(compute_line(2.0))
    assert (one.chart.version, one.chart.spec) == (version + 1, spec)
    assert "ends at 4 &lt;b&gt;" in one.sentence.value
    assert one.settings == {"slope": 2.0, "points": 3, "shape": "line"}


def test_the_code_computes_what_is_drawn():
    one = explorer()
    one.set(slope=0.1 + 0.2, points=5, shape="curve")
    line, call = one.code.split("\n\n")
    assert line == f"from {__name__} import compute_line"
    assert call == "compute_line(slope=0.3, points=5, shape='curve')"
    assert one.snippet.text == one.code
    pd.testing.assert_frame_equal(
        compute_line(slope=0.3, points=5, shape="curve"), one.tables["table"]
    )


def test_a_setting_that_there_is_not_moves_no_control():
    one = explorer()
    one.set(slope=3.0, points=7, shape="curve")
    with pytest.raises(KeyError, match="steepness"):
        one.set(points=8, steepness=1.0)
    assert one.settings == {"slope": 3.0, "points": 7, "shape": "curve"}
    pd.testing.assert_frame_equal(one.tables["table"], compute_line(3.0, 7, "curve"))


def test_the_reset_button_has_the_page_move_every_control():
    """What a slider of the page has yet to send is replaced there; a value set from here could be
    overtaken by it.
    """
    one = explorer()
    asked = []
    one.snippet.send = asked.append
    one.set(slope=3.0, shape="curve")
    one.reset_button.click()
    ids = {name: control.model_id for name, control in one.controls.items()}
    assert asked == [
        {
            "moves": [
                [ids["slope"], "value", 1.0],
                [ids["points"], "value", 3],
                [ids["shape"], "index", 0],
            ]
        }
    ]


def test_a_preset_moves_its_controls_and_the_others_back():
    one = explorer(presets={"steep": {"slope": 4.0}})
    asked = []
    one.snippet.send = asked.append
    one.set(points=9)
    one.presets["steep"].click()
    ids = {name: control.model_id for name, control in one.controls.items()}
    assert asked == [
        {
            "moves": [
                [ids["slope"], "value", 4.0],
                [ids["points"], "value", 3],
                [ids["shape"], "index", 0],
            ]
        }
    ]
    assert one.presets["steep"] in one.box.children[1].children


PRESETS = [
    softmax.explore_pair,
    groups.explore_gradients_meet,
    groups.explore_growing,
    groups.explore_parts,
    exchange.explore_exchange,
    exchange.explore_reference_pull,
    exchange.explore_solutions,
    credit.explore_repeated,
]
PRESETS += [
    partial(make, None, None) for make in (flips.live_flips, coupling.live_push, coupling.live_mass)
]


@pytest.mark.parametrize("make", PRESETS)
def test_each_preset_is_a_setting_that_its_controls_take_and_that_can_be(make):
    one, asked = make(), []
    one.snippet.send, controls = (
        asked.append,
        {control.model_id: control for control in one.controls.values()},
    )
    for button in one.presets.values():
        button.click()
        for control, trait, value in asked.pop()["moves"]:
            setattr(controls[control], trait, value)
            assert getattr(controls[control], trait) == value
        assert REFUSED_CLASS not in one.box._dom_classes, one.sentence.value


def test_what_is_drawn_is_the_newest_of_two_threads(monkeypatch):
    one = explorer()
    begun, go_on = threading.Event(), threading.Event()

    def compute(**settings):
        if settings["slope"] == 2.0:
            begun.set()
            assert go_on.wait(10)
        return compute_line(**settings)

    monkeypatch.setattr(one, "compute", compute)
    threads = [threading.Thread(target=one.set, kwargs={"slope": slope}) for slope in (2.0, 3.0)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    threads[1].join(0.2)  # were they not in turn, it would be done by now, and then be overtaken
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert one.settings["slope"] == 3.0
    pd.testing.assert_frame_equal(one.tables["table"], compute_line(3.0))


def test_settings_that_can_not_be_are_told_and_the_chart_stays():
    one = explorer()
    drawn = one.chart.data
    one.set(slope=4.5)
    assert "slope=4.5 is too &lt;steep&gt;: take at most 4." in one.sentence.value
    assert one.chart.data == drawn
    assert one.snippet.text == one.code
    assert "slope=1.0" in one.code
    assert REFUSED_CLASS in one.box._dom_classes, "which dims the chart"
    one.set(slope=4.0)
    assert REFUSED_CLASS not in one.box._dom_classes
    assert "slope=4.0" in one.code
    assert "steep" not in one.sentence.value


@pytest.mark.parametrize(("limit", "follows"), [(60.0, True), (0.0, False)])  # seconds
def test_what_is_slow_is_computed_when_the_slider_is_let_go(monkeypatch, limit, follows):
    monkeypatch.setattr("workbook.views.explorer.MAX_DRAG_SECONDS", limit)
    assert explorer().controls["slope"].continuous_update is follows


def test_a_chart_that_changes_its_table_is_refused():
    with pytest.raises(ValueError, match="line_of_a_copy"):
        spec_over(line_of_a_copy, {"table": compute_line()})


def line_of_a_copy(table):
    return line_chart(table.assign(y=0))


def test_the_description_is_of_what_is_drawn_now():
    def described(table):
        return line_chart(table).properties(description=f"up to {table['y'].max():g}")

    live = LiveChart(described, table=compute_line())
    live.spec = live.spec | {"description": f"Fig. 1.2. {live.spec['description']}"}
    for slope in (2.0, 3.0):
        live.push(table=compute_line(slope))
        live.describe()
        assert live.spec["description"] == f"Fig. 1.2. up to {compute_line(slope)['y'].max():g}"


def test_marks_without_a_table_keep_their_row():
    def ruled(table):
        return alt.Chart(table).mark_line().encode(
            x="x:Q", y="y:Q"
        ) + alt.Chart().mark_rule().encode(y=alt.datum(1))

    live = LiveChart(ruled, table=compute_line())
    assert "datasets" not in live.spec
    (other,) = set(live.data) - {"table"}
    assert live.data[other] == [{}]
    live.push(table=compute_line(2.0))
    assert live.data[other] == [{}]


def test_a_table_that_the_chart_does_not_draw_stays_in_the_kernel():
    live = LiveChart(
        lambda line, words: line_chart(line).properties(description=words["text"].iloc[0]),
        line=compute_line(),
        words=pd.DataFrame({"text": ["one"]}),
    )
    live.push(line=compute_line(2.0), words=pd.DataFrame({"text": ["two"]}))
    assert set(live.data) == {"line"}, "the page refuses a data set that its spec does not name"
    live.describe()
    assert live.spec["description"] == "two"


def committed_table():
    seeds = range(3)
    return pd.DataFrame(
        [
            {
                "seed": seed,
                "rule": rule,
                "line": line,
                "prompts": prompts,
                "gap": prompts + seed + (rule == "b"),
            }
            for seed, rule, line, prompts in product(seeds, ["a", "b"], ["x", "y"], [1, 2, 4])
        ]
    ).assign(other=lambda table: -table["gap"])


def test_browse_draws_the_rows_that_its_menus_choose_and_refuses_those_that_are_not_there():
    table = committed_table()
    table = table[~((table["rule"] == "b") & (table["prompts"] > 2))]
    explorer = browse(table, "prompts", ["gap", "other"], {"rule": "a"}, series="line", title="gap")
    expected = unit_curve(table[table["rule"] == "a"], "prompts", "gap", by="line")
    pd.testing.assert_frame_equal(explorer.tables["curve"], expected)
    explorer.set(rule="b", value="other")
    assert sorted(explorer.tables["curve"]["mean"].unique()) == [-4, -3]
    call = "unit_curve(table[(table['rule'] == 'b')], 'prompts', 'other', by='line')"
    assert explorer.code == f"from workbook.statistics import unit_curve\n\n{call}"
    lacking = browse(table, "prompts", "gap", {"rule": "a", "prompts": 4}, series="line")
    lacking.set(rule="b")
    assert "no row with rule = b, prompts = 4" in lacking.sentence.value
    for one in (explorer, lacking):
        one.close()


def test_a_frozen_explorer_carries_its_own_tables_for_every_setting_of_the_grid():
    explorer = browse(
        committed_table(), "prompts", "gap", {"rule": "a"}, series="line", title="gap"
    )
    spec = frozen(explorer, rule=["a", "b"])
    rows = pd.DataFrame(spec["datasets"]["curve"])
    for rule, part in rows.groupby("at_rule"):
        explorer.set(rule=rule)
        assert part["mean"].tolist() == pytest.approx(
            explorer.tables["curve"]["mean"].tolist(), rel=1e-4
        )
    (param,) = [one for one in spec["params"] if one["name"] == "now_rule"]
    assert param["bind"]["options"] == ["a", "b"]
    assert "datum.at_rule === now_rule" in json.dumps(spec)
    alt.Chart.from_dict(spec).to_json()  # Vega-Lite's schema takes it
    assert len(png(spec)) > 1000
    explorer.close()


def test_sliders_show_numbers_as_code_does():
    assert slider(60.0, 0.0, 90.0, 5.0, "angle").readout_format == ".0f"
    assert slider(0.5, 0.05, 0.95, 0.05, "p").readout_format == ".2f"
    assert log_slider(0.01, -4, -1, "eps").readout_format == ".2~g"
    assert typeset("-0.04 of 1e-5, -0.00") == "−0.04 of 1e-5, 0.00"


def test_marks_that_show_no_column_are_hidden_from_screen_readers_and_others_are_not():
    line = {"mark": "rule", "encoding": {"x": {"datum": 0}}}
    bars = {"mark": "bar", "encoding": {"x": {"field": "a", "type": "quantitative"}}}
    drawn = hide_from_screen_readers(
        {
            "hconcat": [
                {"layer": [bars, line]},
                {"encoding": bars["encoding"], "layer": [{"mark": "bar"}]},
            ]
        }
    )
    assert drawn["hconcat"][0]["layer"] == [bars, {**line, "mark": {"type": "rule", "aria": False}}]
    assert drawn["hconcat"][1]["layer"] == [{"mark": "bar"}]
