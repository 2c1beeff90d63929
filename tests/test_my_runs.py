"""My runs: every run of a workspace is listed, damaged ones too; what is tidied up is said first, and is no more."""

import json
import shutil
from pathlib import Path

import pytest
from soak.run_folders import whole as made

from workbook.__main__ import main
from workbook.training.my_runs import list_runs, pair_settings, runs_text, select_runs
from workbook.training.runs import Run, training_lock
from workbook.training.tidy import plan_tidy, tidy_up
from workbook.views.my_runs import MyRuns


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()}


@pytest.fixture
def workspace(tmp_path):
    """A finished run, a stopped one, a sweep of one run, an export, and three folders in disorder."""
    root = tmp_path / "runs"
    shutil.copytree(made() / "whole", root / "whole")
    shutil.copytree(made() / "stopped", root / "stopped")
    shutil.copytree(made() / "whole", root / "a-sweep" / "seed=0")
    (root / "a-sweep" / "sweep.yaml").write_text("grid: {seed: [0]}\n")
    shutil.copytree(made() / "whole" / "final", root / "taken" / "model")
    shutil.copy(made() / "whole" / "config.yaml", root / "taken")
    (root / "half").mkdir()
    shutil.copy(made() / "whole" / "config.yaml", root / "half")
    (root / "torn").mkdir()
    (root / "torn" / "config.yaml").write_text("name: [\n")
    (root / "torn" / "status.json").write_text("{")
    (root / "lost").mkdir()
    (root / "lost" / "metrics.jsonl").write_text('{"step": 1, "rew')
    (root / "notes").mkdir()
    (root / "notes" / "mine.txt").write_text("mine")
    return root


def test_every_run_is_listed_and_damage_is_a_note(workspace):
    table = list_runs(workspace).set_index("run")
    assert set(table.index) == {"whole", "stopped", "a-sweep/seed=0", "half", "torn", "lost"}
    assert table["state"].to_dict() == {
        **{"whole": "finished", "stopped": "stopped", "a-sweep/seed=0": "finished"},
        **{"half": "interrupted", "torn": "damaged", "lost": "damaged"},
    }
    assert "status.json is missing" in table.loc["half", "note"]
    assert "config.yaml" in table.loc["lost", "note"]
    whole = table.loc["whole"]
    run = Run(workspace / "whole")
    assert (whole["steps"], whole["planned"], whole["task"], whole["model"]) == (6, 6, "chain", "bundled")
    assert whole["reward_first"] == run.metrics()["reward"].dropna().iloc[0]
    assert whole["bytes"] == sum(path.stat().st_size for path in run.folder.rglob("*") if path.is_file())
    assert whole["bytes"] == whole[["checkpoints", "tokens", "models", "others"]].sum()
    assert whole["models"] > 400_000
    assert whole["checkpoints"] > 1_000_000
    assert table.loc["a-sweep/seed=0", "sweep"] == "a-sweep"
    text = runs_text(table.reset_index())
    assert "6 runs, " in text
    assert "Traceback" not in text
    assert list_runs(workspace / "none").empty
    with pytest.raises(ValueError, match=r"is a file; give the folder"):
        list_runs(workspace / "notes" / "mine.txt")


def test_runs_are_found_by_words_and_state(workspace):
    table = list_runs(workspace)
    assert set(select_runs(table, "chain SWEEP")["run"]) == {"a-sweep/seed=0"}
    assert set(select_runs(table, state="damaged")["run"]) == {"torn", "lost"}
    assert select_runs(table, "nothing like it").empty
    assert select_runs(table.head(0), "x").empty
    with pytest.raises(ValueError, match="state='done' is unknown: choose one of stopped, finished"):
        select_runs(table, state="done")


def test_a_pair_differs_in_what_differs(workspace):
    pair = pair_settings(workspace / "whole", workspace / "stopped")
    assert pair.loc["state"].tolist() == ["finished", "stopped"]
    assert "trainer.learning_rate" not in pair.index
    with pytest.raises(ValueError, match="compared with itself"):
        pair_settings(workspace / "whole", workspace / "whole")


@pytest.mark.parametrize(
    ("kind", "going"),
    [
        ("checkpoints", {"whole/checkpoint-4", "whole/checkpoint-6", "stopped/checkpoint-2"}),
        ("tokens", {"whole/tokens", "stopped/tokens"}),
        ("models", {"whole/final"}),
    ],
)
def test_what_is_listed_goes_and_nothing_else(workspace, kind, going):
    table = select_runs(list_runs(workspace), state=None)
    plan = plan_tidy(table[table["run"].isin(["whole", "stopped", "half", "torn", "lost"])], kind)
    listed = {f"{row.run}/{row.path}" for row in plan.rows.itertuples()}
    assert listed == {path for path in going if (workspace / path).exists()}
    before = files(workspace)
    expected = {path for path in before if not path.startswith(tuple(f"{path}/" for path in listed))}
    size = sum((workspace / path).stat().st_size for path in before - expected)
    assert plan.bytes == size
    assert all(path in str(plan) for path in listed)
    tidied = tidy_up(plan)
    assert tidied.startswith("Freed ")
    assert files(workspace) - {"stopped/training.lock"} == expected - {"stopped/training.lock"}
    assert plan_tidy(list_runs(workspace).query("run == 'whole'"), kind).rows.empty
    assert "Nothing to delete" in plan_tidy(list_runs(workspace).query("run == 'whole'"), kind).summary


def test_a_readers_files_a_damaged_folder_and_links_stay(workspace):
    whole = workspace / "whole"
    (whole / "report.html").write_text("mine")
    (whole / "checkpoint-4" / "mine.txt").write_text("mine")
    (whole / "checkpoint-99").mkdir()
    (whole / "checkpoint-99" / "x").write_text("no checksums")
    shutil.rmtree(whole / "samples")
    (whole / "samples").symlink_to(workspace / "notes")
    plan = plan_tidy(select_runs(list_runs(workspace), "whole"), "runs")
    (kept,) = plan.kept
    assert all(name in kept for name in ("report.html", "checkpoint-4/mine.txt", "checkpoint-99/x", "samples"))
    tidy_up(plan)
    assert files(whole) == {"report.html", "checkpoint-4/mine.txt", "checkpoint-4/checksums.json", "checkpoint-99/x"}
    assert (whole / "samples").is_symlink()
    assert (workspace / "notes" / "mine.txt").read_text() == "mine"


def test_a_running_run_is_left_alone_even_if_it_starts_after_the_plan(workspace):
    table = list_runs(workspace)
    plan = plan_tidy(select_runs(table, "whole"), "runs")
    before = files(workspace)
    with training_lock(Run(workspace / "whole")):
        status = json.loads((workspace / "whole" / "status.json").read_text())
        (workspace / "whole" / "status.json").write_text(json.dumps(status | {"state": "running"}))
        assert "whole is running since, and was left alone" in tidy_up(plan)
        busy = plan_tidy(select_runs(list_runs(workspace), state="running"), "runs")
        assert busy.rows.empty
        assert busy.kept == ["whole is running, and stays as it is."]
    assert files(workspace) == before


def test_the_command_deletes_upon_yes_alone(workspace, monkeypatch, capsys):
    monkeypatch.setenv("WORKBOOK_RUNS", str(workspace))
    before = files(workspace)
    assert main(["runs", "--filter", "sweep", "--tidy", "runs"]) == 0
    printed = capsys.readouterr().out
    assert "a-sweep/seed=0/final" in printed
    assert "a-sweep/sweep.yaml" in printed
    assert printed.endswith("Nothing was deleted; --yes does it.\n")
    assert files(workspace) == before
    assert main(["runs", "--filter", "sweep", "--tidy", "runs", "--yes"]) == 0
    assert "Freed " in capsys.readouterr().out
    assert not (workspace / "a-sweep").exists()
    assert files(workspace) == {path for path in before if not path.startswith("a-sweep/")}
    assert main(["runs", "--state", "damaged"]) == 0
    assert "2 runs" in capsys.readouterr().out
    assert main(["runs", "--compare", "whole", "stopped"]) == 0
    assert "finished" in capsys.readouterr().out
    for wrong, words in {
        ("--tidy", "runs"): "say which by --filter or --state",
        ("--yes",): "--yes confirms --tidy",
        ("--compare", "whole", "nowhere"): "there is no such run",
        ("--compare", "whole", "stopped", "--tidy", "tokens"): "one at a time",
    }.items():
        assert main(["runs", *wrong]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1


def test_the_page_deletes_what_it_has_listed_and_no_more(workspace):
    page = MyRuns(workspace)
    assert len(page.list.options) == 6
    assert "6 runs, " in page.disk.value
    page.filter.value = "whole"
    assert page.open_button.disabled
    page.list.value = [str(workspace / "whole")]
    assert not page.open_button.disabled
    assert page.resume_button.disabled, "it has finished"
    before = files(workspace)
    page.delete_button.click()
    assert files(workspace) == before, "nothing was listed"
    page.ask_button.click()
    page._thread.join()
    assert "whole/checkpoint-6" in page.listing.value
    assert files(workspace) == before
    page.kind.value = "runs"
    assert page.plan is None
    assert page.delete_button.layout.display == "none"
    page.ask_button.click()
    page._thread.join()
    page.delete_button.click()
    page._thread.join()
    assert "Freed " in page.line.value
    assert files(workspace) == {path for path in before if not path.startswith("whole/")}
    assert page.list.options == ()
    page.filter.value = ""
    page.list.value = [str(workspace / "torn")]
    assert page.open_button.disabled
    assert "config.yaml" in page.line.value
    page.list.value = [str(workspace / "stopped"), str(workspace / "a-sweep" / "seed=0")]
    page.compare_button.click()
    assert "finished" in page.area.children[1].value
    page.list.value = [str(workspace / "stopped")]
    page.open_button.click()
    assert page.opened.run.folder == workspace / "stopped"
    page.opened._thread.join()
    page.close()
