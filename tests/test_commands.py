"""The command line: a mistake is one sentence and leaves nothing; help needs no libraries."""

import argparse
import os
import re
import subprocess
import sys

import pandas as pd
import pytest
import yaml

from workbook import __main__
from workbook.app import memory
from workbook.book.terminal import frame_table, laid_out
from workbook.commands import training

CONFIG = {
    **{"name": "mine", "num_prompts": 8, "threads": 1},
    "trainer": {
        **{
            "max_steps": 1,
            "num_generations": 2,
            "per_device_train_batch_size": 2,
            "steps_per_generation": 1,
        },
        "max_completion_length": 4,
    },
}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump(CONFIG | {"grid": {"seed": [0, 1]}}))
    return tmp_path


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("train none.yaml", "can't be read"),
        ("train list.yaml", "mapping"),
        ("train config.yaml --set max_steps", "key=value"),
        ("train config.yaml --set max_steps=1 --set max_steps=2", "given once"),
        ("train config.yaml --set max_steps=[", "not valid YAML"),
        ("train config.yaml --set max_steps=1 learning_rat=1", "did you mean learning_rate"),
        ("train config.yaml max_steps=1", "unrecognized arguments: max_steps=1"),
        ("train config.yaml --set learning_rat=1", "did you mean learning_rate"),
        ("train config.yaml --set max_steps=-1", "max_steps=-1"),
        ("train config.yaml --set policy=5", "policy=5"),
        ("train config.yaml --folder .", "already holds a run"),
        ("resume .", "holds no run"),
        ("sweep config.yaml", "needs a grid"),
        ("sweep sweep.yaml --set seed=3", "would be overridden by the grid"),
        ("runs --folder  ", "expected one argument"),
        ("measure none", "none"),
        ("claims --claim H99", "--claim='H99'"),
        ("claims --json none/out.json", "--json="),
        ("arena --units 3", "name a rule"),
        ("report none.jsonl", "none.jsonl"),
        ("chapters 77", "chapter='77'"),
        ("sweep sweep.yaml --jobs 0", "at least 1"),
        ("nothing", "invalid choice"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(config, command, words, capsys):
    before = sorted(os.listdir(config))
    try:
        status = __main__.main(command.split())
    except SystemExit as refusal:  # argparse's
        status = refusal.code
    error = capsys.readouterr().err.strip().split("\n")[-1]
    assert status == 2
    assert words in error
    assert len(error) < 600
    assert sorted(os.listdir(config)) == before


def test_help_needs_no_libraries():
    code = (
        "import sys; import workbook.__main__; print({'torch', 'numpy', 'bitsandbytes'} &"
        " set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_without_a_command_the_help_names_each_in_its_group(capsys):
    assert __main__.main([]) == 0
    text = capsys.readouterr().out
    parser = __main__.make_parser()
    (action,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    assert sorted(name for names in __main__.COMMAND_GROUPS.values() for name in names) == sorted(
        action.choices
    )
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("rich", [False, True])
def test_every_text_fits_its_width_and_colours_take_none(width, rich, monkeypatch):
    frame = pd.DataFrame(
        {"run": ["a*b*c", "`x|y`" * 30], "text": ["one two " * 20, ""], "value": [0.123456, None]}
    )
    text = (
        f"1. **Bold over many words**, *aside* and `code`: {'word ' * 40}\n\n{frame_table(frame)}\n"
        "  ✓ supported"
    )
    lines = laid_out(text, width, rich).split("\n")
    plain = [re.sub("\x1b\\[[\\d;]*m", "", line).rstrip() for line in lines]
    assert max(map(len, plain)) <= width
    assert plain == laid_out(text, width).split("\n")
    assert (lines != plain) == rich
    assert plain[1].startswith("   "), "below the number's text"
    assert "a*b*c" in "".join(plain), "what somebody else wrote is no mark"
    assert "`x|y``x" in "".join(plain)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    assert laid_out(text, width, rich).split("\n") == lines, (
        "a notebook gets a text, too, and nothing is displayed"
    )


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("findings", "chapter"),
        ("glossary push", "weight times advantage"),
        ("claims", "primary rows"),
        ("claims --claim H1", "registered units"),
    ],
)
def test_reading_the_book_loads_nothing_that_trains_or_measures(command, words):
    code = (
        "import sys; from workbook.__main__ import main; main(sys.argv[1:]);"
        " print({'torch', 'transformers', 'altair', 'workbook.studies'} & set(sys.modules))"
    )
    text = subprocess.check_output([sys.executable, "-c", code, *command.split()], text=True)
    *_, loaded = text.strip().split("\n")
    assert loaded == "set()"
    assert words in text.replace("\n", " ")


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "_runs", interrupted)
    assert __main__.main(["runs"]) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


def test_train_warns_of_what_does_not_fit_and_trains(config, monkeypatch, capsys):
    monkeypatch.setattr(memory, "free_mib", lambda device: 1.0)
    assert __main__.main(["train", "config.yaml", "--folder", "run"]) == 0
    warning = capsys.readouterr().err.split("\n")[0]
    assert warning.startswith("Warning: ")
    assert "1 MiB" in warning
