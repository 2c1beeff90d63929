"""One look: what controls say of themselves, settings that can't be, numbers, and marks without a name."""

import ipywidgets

from workbook.topics.groups.charts import gradients_meet_chart
from workbook.topics.groups.toy import compute_gradients_meet
from workbook.views.explorer import REFUSED, Explorer, control_grid, log_slider, slider
from workbook.views.style import hushed, typeset


def test_what_is_drawn_is_dimmed_while_the_settings_can_not_be():
    explorer = Explorer(compute_gradients_meet, gradients_meet_chart, {"p_shared": slider(0.5, 0.0, 1.0, 0.1, "p")})
    explorer.set(p_shared=1.0)
    assert REFUSED in explorer.box._dom_classes
    explorer.reset()
    assert REFUSED not in explorer.box._dom_classes


def test_sliders_show_numbers_as_code_does():
    assert slider(60.0, 0.0, 90.0, 5.0, "angle").readout_format == ".0f"
    assert slider(0.5, 0.05, 0.95, 0.05, "p").readout_format == ".2f"
    assert log_slider(0.01, -4, -1, "eps").readout_format == ".2~g"
    assert typeset("-0.04 of 1e-5, -0.00") == "−0.04 of 1e-5, 0.00"


def test_marks_that_show_no_column_are_hidden_from_screen_readers_and_others_are_not():
    line = {"mark": "rule", "encoding": {"x": {"datum": 0}}}
    bars = {"mark": "bar", "encoding": {"x": {"field": "a", "type": "quantitative"}}}
    drawn = hushed({"hconcat": [{"layer": [bars, line]}, {"encoding": bars["encoding"], "layer": [{"mark": "bar"}]}]})
    assert drawn["hconcat"][0]["layer"] == [bars, {**line, "mark": {"type": "rule", "aria": False}}]
    assert drawn["hconcat"][1]["layer"] == [{"mark": "bar"}]


def test_a_grid_of_controls_keeps_its_order():
    controls = ipywidgets.IntSlider(), ipywidgets.Button()
    assert control_grid(*controls).children == controls
