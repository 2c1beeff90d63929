"""Predictions: checked, recorded by a click alone, counted only if before the answer."""

import json
import re

import numpy as np
import pytest
from refusals import refused

from workbook.book.chapters import find_chapters
from workbook.places import predictions_file
from workbook.views import predicting
from workbook.views.predicting import (
    PredictionForm,
    calibration,
    predict,
    question_of,
    read_predictions,
    reveal,
)

SHARE, WAY = question_of(number=(0, 1)), question_of(choice=["up", "down"])
CURVE = question_of(curve={"x": (1, 4, 16), "y": (0, 1), "x_title": "prompts", "y_title": "share"})
GUESS = {"guess": 0.3, "low": 0.1, "high": 0.5}


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """An own file, and a kernel that has asked and shown nothing."""
    monkeypatch.setenv("WORKBOOK_PREDICTIONS", str(tmp_path / "mine" / "predictions.json"))
    monkeypatch.setattr(predicting, "_asked", {})
    monkeypatch.setattr(predicting, "_shown", set())
    monkeypatch.setattr(predicting, "_hidden", {})
    return predictions_file()


def record(key, about, guess, question="?"):
    form = PredictionForm(key, question, about)
    form.record(guess)
    assert form.message == ""
    predicting._asked[key] = question, about
    return form


@pytest.mark.parametrize(
    ("about", "guess", "words"),
    [
        (SHARE, {"guess": 0.3}, "The lower end must be a number"),
        (SHARE, GUESS | {"high": 0.2}, "must lie in your range"),
        (SHARE, GUESS | {"high": 2}, "The upper end must be a number from 0 to 1; there is '2'."),
        (SHARE, None, "must be a number"),
        (WAY, {"option": "left", "sure": 0.7}, "Choose one of up, down."),
        (WAY, {"option": "up", "sure": 0.4}, "The confidence must be a number from 0.5 to 1"),
        (CURVE, {"y": [0.1, 0.2]}, "Your curve needs 3 numbers, one at each of 1, 4, 16."),
        (
            CURVE,
            {"y": [0.1, None, 0.3]},
            "The height at 4 must be a number from 0 to 1; nothing is there yet.",
        ),
    ],
)
def test_a_guess_that_is_not_whole_is_answered_and_not_recorded(about, guess, words, file):
    form = PredictionForm("05-a", "How?", about)
    form.record(guess)
    assert words in form.message
    assert form.recorded == ""
    assert not file.exists()


def test_an_answer_without_its_question_is_refused():
    with refused("key", "05-nobody"):
        reveal("05-nobody", 1)


def test_running_cells_records_nothing_and_shows_no_answer(file):
    predict("05-a", "Which share?", number=(0, 1))
    reveal("05-a", np.float32(0.25))
    answer = predicting._hidden["05-a"]
    assert (answer.text, answer.shown) == ("The answer is **0.25**.", False)
    assert answer.picture()[0]["text/html"].startswith(
        "<details><summary>Show the answer</summary>"
    )
    assert not file.exists()


def test_a_prediction_opens_the_answer_that_waits_for_it():
    predict("05-a", "Which share?", number=(0, 1))
    reveal("05-a", 0.55)
    answer, form = predicting._hidden["05-a"], PredictionForm("05-a", "Which share?", SHARE)
    form.record({"guess": 2})
    assert not answer.shown
    form.record(GUESS)
    assert answer.shown
    assert "outside your range" in answer.text
    assert (read_predictions()["05-a"]["late"], read_predictions()["05-a"]["answer"]) == (
        False,
        0.55,
    )


def test_a_guess_is_recorded_once(file, capsys):
    form = record("05-a", SHARE, GUESS)
    form.record(GUESS | {"guess": 0.4})
    assert form.recorded.endswith(": 0.3 (80 % sure: 0.1 to 0.5).")
    reveal("05-a", 0.55)
    assert (
        "The answer is **0.55**: outside your range, 0.25 from your best guess."
        in capsys.readouterr().out
    )
    assert PredictionForm("05-a", "?", SHARE).recorded == form.recorded
    assert PredictionForm("05-a", "?", question_of(number=(0, 2))).recorded == "", (
        "of another question it is none"
    )
    calibration()
    assert "1 80 % ranges: mean distance 0.25; 0 held" in capsys.readouterr().out


def test_a_guess_after_the_answer_does_not_count(capsys):
    predict("05-a", "Which way?", choice=["up", "down"])
    reveal("05-a", "up")
    predicting._hidden["05-a"].shown = True  # a click
    form = record("05-a", WAY, {"option": "up", "sure": 1})
    assert "The answer had been shown before, so it does not count." in form.recorded
    reveal("05-a", "up")
    calibration()
    assert "No prediction counts so far" in capsys.readouterr().out


def test_predictions_are_scored_by_kind(file, capsys):
    for k, (sure, answer) in enumerate([(0.9, "up"), (0.9, "down"), (0.55, "up")]):
        record(f"06-way{k}", WAY, {"option": "up", "sure": sure})
        reveal(f"06-way{k}", answer)
    record("07-curve", CURVE, {"y": [0.1, 0.2, 0.3]})
    reveal("07-curve", [0.1, 0.5, 0.3])
    capsys.readouterr()
    calibration()
    shown = capsys.readouterr().out
    assert "3 choices: mean distance 0.34; 2 held, at 78% confidence" in shown
    assert "1 curves: mean distance 0.10." in shown


def test_a_damaged_file_is_named(file):
    file.parent.mkdir()
    file.write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        read_predictions()


def test_every_chapter_reveals_what_it_asks():
    for chapter in find_chapters():
        cells = ["".join(cell["source"]) for cell in json.loads(chapter.read_text())["cells"]]
        code = "\n".join(cells)
        asked = set(re.findall(r"\bpredict\(\s*\"([^\"]+)", code))
        assert asked == set(re.findall(r"\breveal\(\s*\"([^\"]+)", code)), chapter.name
        assert all(key[:2] == chapter.name[:2] for key in asked)
