"""Live studies: the shell (a stop in the middle, a refused setting, two clicks), and what each
chapter computes.
"""

import re
import threading

import altair as alt
import numpy as np
import pandas as pd
import pytest
from IPython.utils.capture import capture_output

from workbook.messages import Stopped, progress, reporting, show_partial
from workbook.views.explorer import menu, slider
from workbook.views.live_study import NOW, LiveStudy, live_curve, live_tables

START = pd.DataFrame({"x": [0.0], "y": [0.0]})


def dots(table):
    return alt.Chart(table).mark_point().encode(x="x:Q", y="y:Q")


def study_of(compute, **kwargs):
    controls = {"steps": slider(3, 1, 9, 1, "steps")}
    return LiveStudy(
        compute, dots, controls, {"table": START}, lambda table: f"{len(table)} rows", **kwargs
    )


def test_run_computes_the_settings_and_draws_on_the_way():
    partial, lines = [], []

    def compute(steps):
        for k in progress(range(steps), "counting"):
            lines.append(study.line.value)
            show_partial(table=pd.DataFrame({"x": [float(k)], "y": [1.0]}))
            partial.append((len(study.chart.data["table"]), study.bar.value))
        return {"table": pd.DataFrame({"x": np.arange(steps, dtype=float), "y": 0.0})}

    study = study_of(compute)
    assert study.chart.data["table"] == [{"x": 0.0, "y": 0.0}]
    study.set(steps=4)
    assert "steps=4" in study.snippet.text
    study.run().wait()
    assert [value for _, value in partial] == [0.0, 0.25, 0.5, 0.75]
    assert "counting: 0 of 4; the first will tell how long all take" in lines[0]
    assert re.search(r"counting: 1 of 4, .+ s so far, about .+ s left", lines[1])
    assert len(study.chart.data["table"]) == 4
    assert study.drawn == {"steps": 4}
    assert "4 rows" in study.sentence.value
    assert (study.run_button.disabled, study.stop_button.disabled) == (False, True)
    study.close()


@pytest.mark.usefixtures("shell")
def test_one_that_runs_is_on_the_page_before_it_is_done_and_its_picture_is_of_the_end():
    go = threading.Event()

    def compute(steps):
        assert go.wait(20)
        return {"table": START.assign(y=5.0)}

    study = study_of(compute)
    with capture_output() as page:
        threading.Timer(0.5, go.set).start()
        study.run().display()
    first, last = [output.data["image/png"] for output in page.outputs]
    assert study.drawn == {"steps": 3}
    assert first != last
    study.close()


def test_stop_ends_it_between_two_items_and_the_chart_goes_back_to_what_was_whole():
    second, stopped = threading.Event(), threading.Event()

    def compute(steps):
        for k in progress(range(steps), "counting"):
            if k == 1:
                show_partial(table=pd.DataFrame({"x": [9.0], "y": [9.0]}))
                second.set()
                assert stopped.wait(20)
        raise AssertionError("it went on")

    study = study_of(compute)
    study.run()
    assert second.wait(20)
    study.stop_button.click()
    assert "Stopping" in study.line.value
    assert study.stop_button.disabled
    stopped.set()
    study.wait()
    assert "Stopped" in study.line.value
    assert study.drawn is None
    assert study.chart.data["table"] == [{"x": 0.0, "y": 0.0}]
    assert not study.run_button.disabled
    study.close()


def test_a_second_click_does_nothing_while_one_is_going_on():
    go, inside = threading.Event(), []

    def compute(steps):
        inside.append(steps)
        assert go.wait(20)
        return {"table": START}

    study = study_of(compute)
    for _ in range(2):
        study.run_button.click()
        study.run()
    go.set()
    study.wait()
    assert inside == [3]
    study.close()


def test_a_refused_setting_is_told_and_nothing_is_drawn():
    def compute(steps):
        raise ValueError(f"steps={steps} must be 1; <b>take that</b>.")

    study = study_of(compute)
    study.run().wait()
    assert "steps=3 must be 1; &lt;b&gt;" in study.line.value
    assert study.chart.data["table"] == [{"x": 0.0, "y": 0.0}]
    assert not study.run_button.disabled
    study.close()


def test_the_outermost_progress_reports_and_any_may_be_stopped():
    calls = []
    with reporting(lambda *call: calls.append(call)):
        for _ in progress(range(2), "outer"):
            list(progress([1], "inner"))
    assert [call for call in calls if call[0] >= 0] == [
        (0, 2, "outer"),
        (1, 2, "outer"),
        (2, 2, "outer"),
    ]
    assert calls.count((-1, 0, "inner")) == 2

    def stop(done, total, what):
        if what == "inner":
            raise Stopped

    with pytest.raises(Stopped), reporting(stop):
        [inner for _ in progress(range(2), "outer") for inner in progress([1], "inner")]
    assert list(progress([1, 2], "outside")) == [1, 2]


def family(kind="a"):
    return pd.DataFrame(
        {
            "series": "ten policies",
            "size": [1, 2],
            "mean": 0.5,
            "low": 0.4,
            "high": 0.6,
            "units": 10,
        }
    )


def measure_line(policy, task, most=2, kind="a", seed=0):
    for size in progress(range(1, most + 1), "sizes"):
        if kind == "a":
            yield size, NOW, 1.0 / size


def test_a_live_curve_draws_its_points_over_the_committed_lines(policy, task):
    controls = {"most": slider(2, 1, 4, 1, "most"), "kind": menu("a", ["a", "b"], "kind")}
    study = live_curve(
        measure_line, family, controls, policy, task, x="size", y_title="share", title="Shares"
    )
    assert study.tables["curve"]["series"].unique().tolist() == ["ten policies"]
    study.run().wait()
    now = study.tables["curve"].query("series == @NOW")
    assert now[["size", "mean"]].values.tolist() == [[1, 1.0], [2, 0.5]]
    assert len(study.chart.data["curve"]) == 4
    assert "this policy, now: 1 at 1, 0.5 at 2." in study.sentence.value
    assert "list(measure_line(policy, task, most=2, kind='a'))" in study.snippet.text
    assert study.variables["policy"].model is not policy.model
    study.set(kind="b")
    study.run().wait()
    assert "nothing to measure" in study.line.value
    assert len(study.chart.data["curve"]) == 4, "what was whole stays"
    study.close()


def test_live_tables_add_measured_rows_to_an_explorers_own_chart(policy, task):
    def compute_bars(scale=1.0, of=2.0):
        return {
            "bars": pd.DataFrame(
                {"series": "family", "class": ["x", "y"], "mean": [scale, of * scale]}
            )
        }

    def measure_bars(policy, task, scale=1.0, seed=0):
        yield compute_bars(scale, of=3.0)

    def bars(bars):
        return alt.Chart(bars).mark_bar().encode(x="mean:Q", y="class:N", color="series:N")

    controls = {"scale": slider(1.0, 0.0, 4.0, 0.5, "scale"), "seed": slider(0, 0, 3, 1, "seed")}
    study = live_tables(measure_bars, compute_bars, bars, controls, policy, task)
    study.set(scale=2.0)
    study.run().wait()
    rows = study.tables["bars"].pivot(index="class", columns="series", values="mean")
    assert rows.loc["y"].to_dict() == {"family": 4.0, NOW: 6.0}
    study.close()
