"""Predictions in the browser: drawn by pointer, typed, chosen; recorded by the button; there again
when reopened.
"""

import json

import pytest
from playwright.sync_api import expect

ASK = """
from IPython.display import Markdown, display
from workbook.views import enable_charts, predict, reveal
enable_charts()
display(Markdown('A <abbr class="term" title="what it is">term</abbr> of the glossary.'))
predict("05-shares", "Which share moves?", number=(0, 1))
predict("05-way", "Which way does `so` go?", choice=["up", "down", "still"])
curve = {"x": [1, 4, 16], "y": (0, 1), "x_title": "prompts", "y_title": "share"}
predict("05-curve", "How does it grow?", curve=curve)
"""
REVEAL = """
reveal("05-shares", 0.42)
reveal("05-way", "down")
reveal("05-curve", [0.2, 0.4, 0.9])
"""


def press(chapter, form, across: float, up: float = 0.5) -> None:
    """Press the mouse on a form's drawing, at shares of its width and height."""
    form.scroll_into_view_if_needed()
    box = form.locator("svg").bounding_box()
    chapter.page.mouse.click(box["x"] + across * box["width"], box["y"] + up * box["height"])


def test_predictions_are_drawn_typed_recorded_and_revealed(run_cells, lab):
    chapter = run_cells(ASK, REVEAL)
    file = lab[1].parents[1] / "predictions.json"
    assert chapter.shown(6) == ["widget"] * 6
    forms = chapter.panel.locator(".workbook-predict")
    number, choice, curve, *answers = (forms.nth(k) for k in range(6))
    assert [answer.inner_text() for answer in answers] == ["Show the answer"] * 3
    assert choice.locator("code").inner_text() == "so"
    assert not file.exists(), "running cells records nothing"

    term = chapter.panel.locator("abbr.term")
    expect(term).to_have_attribute("tabindex", "0")
    term.focus()
    assert term.evaluate("node => getComputedStyle(node, '::after').content") == '"what it is"', (
        "reached by keys"
    )
    chapter.shot("predict-term")

    number.get_by_role("button").click()
    chapter.settle()
    assert (
        "The lower end must be a number from 0 to 1; nothing is there yet." in number.inner_text()
    )
    press(chapter, number, 0.5, 0.46)
    number.get_by_label("at most").fill("0.7")
    number.get_by_label("at most").press("Tab")
    number.get_by_role("button", name="Record my prediction").press("Enter")

    choice.get_by_label("how sure").press("End")
    choice.get_by_role("button", name="down").click()
    expect(answers[1]).to_contain_text("as you said")
    answers[2].get_by_role("button", name="Show the answer").click()
    expect(answers[2]).to_have_text("The answer is 0.2, 0.4, 0.9.")

    for across, up in ((0.14, 0.7), (0.56, 0.5), (0.95, 0.2)):
        press(chapter, curve, across, up)
    chapter.shot("predict-open", forms.nth(2))
    curve.get_by_label("16").fill("0.75")
    curve.get_by_role("button").click()
    chapter.settle()
    written = {
        key: entry["first"] for key, entry in json.loads(file.read_text())["predictions"].items()
    }
    assert written["05-shares"]["high"] == 0.7
    assert written["05-shares"]["guess"] == pytest.approx(0.5, abs=0.02)
    assert written["05-way"] == {"option": "down", "sure": 1}
    assert written["05-curve"]["y"][2] == 0.75
    assert number.inner_text().count("Recorded 20") == 1
    assert chapter.grave() == []

    assert "inside your range" in answers[0].inner_text()
    chapter.run_all()
    assert "inside your range" in chapter.panel.inner_text()
    assert "does not count" in curve.inner_text()
    expect(chapter.panel.locator(".vega-embed")).to_be_visible()
    assert forms.get_by_role("button").count() == 0, "a guess is recorded once"
    chapter.change_theme("Dark")
    forms.nth(0).scroll_into_view_if_needed()
    chapter.shot("predict-dark")
    assert chapter.grave() == []
    chapter.reopen()
    assert chapter.shown(3) == ["widget"] * 3, "the forms; no answer waits"
    assert forms.nth(1).inner_text().count("Recorded 20") == 1
    chapter.shot("predict-reopened")
    assert [error for error in chapter.errors if "Canceled future" not in error] == []
