"""Mistakes at the command line: a sharp sample of the campaign, and the commands that need no libraries."""

import random
import subprocess
import sys
from itertools import islice

import pytest
import yaml
from small_run import BASE
from soak import campaign, sample

from workbook import __main__
from workbook.commands import arena
from workbook.training import RunConfig, memory, plan

MISTAKES = campaign("bad_inputs")
SHARP = dict(sample("bad_inputs", 500))


@pytest.mark.parametrize("start", range(8))
def test_a_mistake_is_one_sentence_and_leaves_nothing(start, tmp_path, monkeypatch):
    monkeypatch.delenv("WORKBOOK_RUNS", raising=False)
    findings = {}
    for i, name in enumerate(list(SHARP)[start::8]):
        (tmp_path / str(i)).mkdir()
        findings[name] = MISTAKES.attempt(tmp_path / str(i), *SHARP[name])
    assert {name: finding for name, finding in findings.items() if finding} == {}


def test_the_campaigns_mutations_repeat_themselves():
    first, again, other = (list(islice(MISTAKES.mutations(random.Random(seed)), 12)) for seed in (1, 1, 2))
    assert first == again != other


def test_help_and_a_wrong_config_need_no_libraries(tmp_path):
    code = (
        "import sys; from workbook.training.run_config import RunConfig\n"
        "RunConfig.load({'trainer': {'max_steps': 1}})\n"
        "print({'torch', 'transformers', 'bitsandbytes'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
    code = "import sys; import workbook.__main__; print({'torch', 'numpy', 'bitsandbytes'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


def test_an_interrupt_is_no_traceback(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(arena, "_estimators", interrupted)
    assert __main__.main(["estimators"]) == 130
    assert capsys.readouterr().err == "Interrupted.\n"


@pytest.mark.parametrize("option", ["--set", "--folder"])
def test_two_dashes_are_no_value(option, capsys):
    with pytest.raises(SystemExit):
        __main__.main(["train", "c.yaml", f"{option}=--"])
    assert f"argument {option}: expected one argument" in capsys.readouterr().err


def test_a_forecast_counts_the_runs_at_a_time(monkeypatch):
    config = RunConfig.load(BASE)
    needed = memory.peak_mib(memory.forecast_run(config))
    monkeypatch.setattr(plan, "free_mib", lambda device: 2.5 * needed)
    assert plan.fits(config, at_once=2) is None
    assert plan.fits(config, at_once=3).endswith("at most 2 at a time would fit.")


def test_train_warns_of_what_does_not_fit_and_trains(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(plan, "free_mib", lambda device: 1.0)
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(BASE))
    assert __main__.main(["train", str(tmp_path / "c.yaml"), "--folder", str(tmp_path / "run")]) == 0
    warning = capsys.readouterr().err.split("\n")[0]
    assert warning.startswith("Warning: This run is forecast to need ")
    assert "1 MiB are free on cpu" in warning
