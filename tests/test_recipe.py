"""examples/recipe.py: its settings are TRL's, each names a chapter, and the decisions agree."""

import re
import runpy
import sys
from dataclasses import fields

import pytest
from trl import GRPOConfig

from workbook.book.chapters import ROOT, find_chapters
from workbook.book.conclusions import read_findings

FILE = ROOT / "examples" / "recipe.py"
DOZEN = FILE.read_text(encoding="utf-8").partition("# --- the recipe\n")[2]
DOZEN = DOZEN.partition("# --- the run")[0]
LINE = re.compile(r"^ +(?P<name>\w+)=(?P<value>.+?),  # (?P<chapter>\d\d): \S", re.MULTILINE)
SETTINGS = {line["name"]: line for line in LINE.finditer(DOZEN)}


@pytest.fixture(scope="module")
def recipe():
    """The names that the file defines; importing it runs nothing."""
    return runpy.run_path(str(FILE))


def test_a_dozen_settings_each_name_a_chapter():
    assert len(SETTINGS) == 12
    assert DOZEN.count("=") - DOZEN.count("baseline_share=") == 12, "a setting without its chapter"
    assert set(SETTINGS) <= {field.name for field in fields(GRPOConfig)}
    assert all(find_chapters([line["chapter"]]) for line in SETTINGS.values())


def test_the_recipe_sets_what_the_decisions_name():
    known = {field.name for field in fields(GRPOConfig)}
    for one in read_findings()[1]:
        named = set(one.setting) & known
        text = FILE.read_text(encoding="utf-8")
        assert not named or any(f"{name}=" in text for name in named), one.setting
    values = {name: line["value"] for name, line in SETTINGS.items()}
    assert values["top_p"] == "1.0"
    assert values["num_iterations"] == "1"
    assert values["loss_type"] in ('"dr_grpo"', '"dapo"')
    assert values["scale_rewards"] == '"none"'


def row(reward=0.5, spread=0.0, cut=0.0, entropy=1.0):
    return {
        "reward": reward,
        "frac_reward_zero_std": spread,
        "completions/clipped_ratio": cut,
        "entropy": entropy,
    }


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ([row()] * 20 + [row(0.6)] * 20, "Nothing"),
        ([row()] * 40, "has not risen"),
        ([row(spread=0.6)] * 5, "equal rewards"),
        ([row(cut=0.2)] * 5, "cut off"),
        ([row()] * 10 + [row(0.9, entropy=0.05)] * 40, "Entropy"),
        ([row(cut=0.9)] * 2 + [row(0.6)] * 10, "Nothing"),
        ([row()] + [row(0.8, entropy=0.05)] * 10 + [row(0.9, entropy=0.05)] * 10, "Nothing"),
        ([row(spread=0.9)] * 4, "easier"),
        ([row(0.9, spread=0.9)] * 4, "harder"),
    ],
)
def test_its_advice_follows_the_log(recipe, log, words):
    said = " ".join(recipe["advice"]([*log, {"train_runtime": 1.0}]))
    assert words in said


def test_its_help_says_what_to_look_at(recipe, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["recipe", "--help"])
    with pytest.raises(SystemExit, match="0"):
        recipe["parse"]()
    said = capsys.readouterr().out
    for words in ("reward", "no spread", "entropy", "cut off", "stop", "--model", "smollm2-135m"):
        assert words in said
