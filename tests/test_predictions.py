"""Predictions: checked, recorded by a click alone, never lost, and counted only if they came before the answer."""

import json
import re

import numpy as np
import pandas as pd
import pytest

from workbook import __main__
from workbook.book.chapters import find_chapters
from workbook.places import predictions_file
from workbook.training.files import StorageError
from workbook.views import calibrated, predicting
from workbook.views.guesses import Choice, Curve, Number, make_kind
from workbook.views.predictions import read_predictions, record, record_answer

SHARE, WAY = Number(0, 1), Choice(("up", "down"))
CURVE = Curve((1, 4, 16), (0, 1), "prompts", "share")
GUESS = {"guess": 0.3, "low": 0.1, "high": 0.5}


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """An own file, and a kernel that has asked and shown nothing."""
    monkeypatch.setenv("WORKBOOK_PREDICTIONS", str(tmp_path / "mine" / "predictions.json"))
    monkeypatch.setattr(predicting, "_asked", {})
    monkeypatch.setattr(predicting, "_shown", set())
    return predictions_file()


@pytest.mark.parametrize(
    ("kind", "guess", "words"),
    [
        (SHARE, {"guess": 0.3}, "The lower end must be a number; nothing is there yet."),
        (SHARE, {"guess": "<b>", "low": 0, "high": 1}, "The best guess must be a number; '<b>' is no number."),
        (SHARE, GUESS | {"high": 0.2}, "Your best guess, 0.3, must lie in your range from 0.1 to 0.2."),
        (SHARE, GUESS | {"high": 2}, "The upper end, 2, must lie between 0 and 1."),
        (SHARE, dict.fromkeys(GUESS, 0.3), "Your range has no width: give two different ends."),
        (SHARE, None, "The best guess must be a number; nothing is there yet."),
        (WAY, {"option": "left", "sure": 0.7}, "Choose one of “up”, “down”."),
        (WAY, {"option": "up", "sure": 0.4}, "The confidence, 0.4, must lie between 0.5 and 1."),
        (CURVE, {"y": [0.1, 0.2]}, "Your curve needs 3 numbers, one at each of 1, 4, 16."),
        (CURVE, {"y": [0.1, None, 0.3]}, "The curve at 4 must be a number; nothing is there yet."),
        (CURVE, {"y": [0.1, 1.2, 0.3]}, "The height at 4, 1.2, must lie between 0 and 1."),
    ],
)
def test_a_guess_that_is_not_whole_is_answered_and_not_recorded(kind, guess, words, file):
    form = predicting.PredictionForm("05-a", "How?", kind)
    form.record(guess)
    assert form.message == words
    assert form.editing
    assert not file.exists()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: predicting.predict("5-a", "?", number=(0, 1)), "like '05-shares'"),
        (lambda: predicting.predict("05-a", "?"), "exactly one of number, choice and curve; here are none"),
        (lambda: predicting.predict("05-a", "?", number=(0, 1), choice=["a", "b"]), "here are number, choice"),
        (lambda: make_kind(number=(1, 0)), "two finite numbers, the smaller one first"),
        (lambda: make_kind(choice=["up", "up"]), "two or more different texts"),
        (lambda: make_kind(curve={"x": [4, 1], "y": (0, 1)}), "two or more rising numbers"),
        (lambda: predicting.reveal("05-nobody", 1), "'05-nobody' was not asked"),
    ],
)
def test_questions_and_answers_that_do_not_fit_are_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_running_cells_records_nothing(file, capsys):
    predicting.predict("05-a", "Which share?", number=(0, 1))
    predicting.reveal("05-a", np.float32(0.25))
    assert "No prediction is recorded; the answer is **0.25**." in capsys.readouterr().out
    assert not file.exists()
    with pytest.raises(ValueError, match="must be a number; 'nan' is no number"):
        predicting.reveal("05-a", float("nan"))


def test_the_first_guess_counts_and_later_ones_are_marked(file, capsys):
    form = predicting.PredictionForm("05-a", "Which share?", SHARE)
    form._answer(None, {"kind": "record", "guess": GUESS}, [])
    assert not form.editing
    form.record(GUESS | {"guess": 0.4})
    assert form.recorded.endswith("Changed to 0.4 (80 % sure: 0.1 to 0.5); the first one counts.")
    predicting._asked["05-a"] = ("Which share?", SHARE)
    predicting.reveal("05-a", 0.55)
    shown = capsys.readouterr().out
    assert "The answer is **0.55**: outside your range, 0.15 from your best guess." in shown
    assert "(Your first prediction, 0.3 (80 % sure: 0.1 to 0.5), is the one that counts.)" in shown
    again = predicting.PredictionForm("05-a", "Which share?", SHARE)
    assert again.draft["guess"] == 0.4
    row = calibrated.calibration_table(read_predictions(file)[0]).iloc[0]
    assert (row["held"], row["distance"]) == (False, pytest.approx(0.25))
    asked_otherwise = predicting.PredictionForm("05-a", "Which share?", Number(0, 2))
    assert asked_otherwise.editing, "a prediction for another question is none for this one"


def test_a_guess_after_the_answer_does_not_count(capsys):
    predicting._asked["05-a"] = ("Which way?", WAY)
    predicting.reveal("05-a", "up")
    form = predicting.PredictionForm("05-a", "Which way?", WAY)
    form.record({"option": "up", "sure": 1})
    assert "The answer had been shown before, so it does not count." in form.recorded
    predicting.reveal("05-a", "up")
    assert calibrated.calibration_table(read_predictions()[0]).empty


@pytest.mark.parametrize("content", ["{", "[]", '{"predictions": 3}', "\x00"])
def test_a_damaged_file_is_kept_aside(file, content):
    file.parent.mkdir()
    file.write_text(content)
    predictions, problem = read_predictions()
    assert predictions == {}
    assert problem.startswith(f"{file} is damaged")
    record("05-a", "?", SHARE, GUESS, False)
    assert (file.parent / "predictions.damaged-1.json").read_text() == content
    assert list(read_predictions()[0]) == ["05-a"]


def test_a_damaged_entry_costs_no_other(file):
    record("05-a", "?", SHARE, GUESS, False)
    entries = json.loads(file.read_text())
    entries["predictions"]["06-b"] = {"question": "?", "recorded": "now", "kind": "number", "about": {"lo": 1}}
    file.write_text(json.dumps(entries))
    predictions, problem = read_predictions()
    assert list(predictions) == ["05-a"]
    assert "damaged at '06-b'" in problem
    record("07-c", "?", WAY, {"option": "up", "sure": 0.9}, False)
    assert list(read_predictions()[0]) == ["05-a", "07-c"]
    assert "06-b" in (file.parent / "predictions.damaged-1.json").read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WORKBOOK_PREDICTIONS", str(tmp_path / "file" / "predictions.json"))
    form = predicting.PredictionForm("05-a", "?", SHARE)
    form.record(GUESS)
    assert form.message.startswith("Could not write")
    with pytest.raises(StorageError):
        record("05-a", "?", SHARE, GUESS, False)


def test_calibration_counts_what_held(capsys):
    for k, (sure, answer) in enumerate([(0.9, "up"), (0.9, "down"), (0.55, "up"), (0.9, "up")]):
        record_answer(record(f"06-way{k}", "?", WAY, {"option": "up", "sure": sure}, False), answer)
    record_answer(record("05-share", "?", SHARE, GUESS, False), 0.5)
    record_answer(record("07-curve", "?", CURVE, {"y": [0.1, 0.2, 0.3]}, False), [0.1, 0.4, 0.5])
    table = calibrated.calibration_table(read_predictions()[0])
    bands = calibrated.calibration_bands(table).set_index(["kind", "count"])
    assert bands.loc[("choices", 3), "mean"] == pytest.approx(2 / 3)
    assert bands.loc[("80 % ranges", 1), "held"] == 1
    assert (bands["low"] < bands["mean"]).all() | (bands["mean"] == 0).any()
    by_chapter = calibrated.chapter_distances(table)
    assert by_chapter.loc["06", "brier"] == pytest.approx((0.01 + 0.81 + 0.2025 + 0.01) / 4, abs=1e-3)
    assert by_chapter.loc["07", "distance"] == pytest.approx(0.4 / 3, abs=1e-3)
    assert pd.isna(by_chapter.loc["06", "distance"])
    assert __main__.main(["predictions"]) == 0
    out = capsys.readouterr().out
    assert "05-share  ?\n    0.3 (80 % sure: 0.1 to 0.5); the answer is 0.5: inside your range" in out
    assert "6 predictions that count. Of your 80 % ranges, 1 of 1 held" in out
    calibrated.calibration()
    assert "Your predictions, chapter by chapter" in capsys.readouterr().out


def test_without_predictions_the_page_says_how_to_make_one(capsys):
    assert __main__.main(["predictions"]) == 0
    assert capsys.readouterr().out.startswith("No prediction that counts is recorded yet: ")


@pytest.mark.parametrize("path", find_chapters(), ids=lambda path: path.stem)
def test_a_chapter_reveals_what_it_asks_in_order(path):
    """Two to five predictions, fewer in the last two chapters, each under a key of its chapter."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    calls = [(match[1], match[2], match.start()) for match in re.finditer(r'\b(predict|reveal)\(\s*"([^"]+)"', code)]
    asked = {key: place for name, key, place in calls if name == "predict"}
    shown = {key: place for name, key, place in calls if name == "reveal"}
    assert asked.keys() == shown.keys()
    assert all(key.startswith(f"{path.name[:2]}-") for key in asked)
    assert all(asked[key] < shown[key] for key in asked)
    assert len(asked) <= 5
    assert len(asked) >= {"13": 1, "14": 0}.get(path.name[:2], 2)
