"""My runs in the browser: filtered, opened with what is wrong, compared with a legend to click, and tidied up."""

import json
import os
import re
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from workbook.training.files import atomic_folder, write_json
from workbook.training.runs import create_run

SLOW = 60_000  # ms, on a machine that others use, too
CELL = """
from workbook import MyRuns
my_runs = MyRuns()
my_runs
"""
TRAINER = {"num_generations": 4, "per_device_train_batch_size": 4, "steps_per_generation": 4, "max_steps": 12}


def make_run(folder: Path, learning_rate: float, rewards: list[float]) -> Path:
    """A finished run as a trainer leaves it: its log and two checkpoints, whose weights are a few bytes here."""
    config = {"name": folder.name, "trainer": TRAINER | {"learning_rate": learning_rate}}
    run = create_run(config, folder)
    equal = float(len(set(rewards)) == 1)
    rows = [
        {"step": step, "time": 1.0 * step, "reward": reward, "frac_reward_zero_std": equal, "entropy": 0.3}
        for step, reward in enumerate(rewards, start=1)
    ]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("checkpoint-8", "checkpoint-12", "final"):
        with atomic_folder(run.folder / name) as made:
            (made / "weights").write_bytes(os.urandom(300_000))
    status = {"state": "finished", "message": "done", "pid": 0, "born": 0.0, "total": 12, "notes": []}
    write_json(run.folder / "status.json", status)
    return run.folder


def test_runs_are_opened_compared_and_tidied_up(run_cells, lab):
    root = lab[1].parents[1] / "runs"
    well = make_run(root / "my-runs" / "well", 0.001, [0.1 + 0.05 * step for step in range(12)])
    sick = make_run(root / "my-runs" / "sick", 0.5, [0.0] * 12)
    chapter = run_cells(CELL)
    page = chapter.panel.locator(".workbook-my-runs")
    status = page.get_by_role("status")
    page.get_by_label("filter").fill("my-runs")
    page.get_by_label("filter").press("Tab")
    runs = page.get_by_label("runs", exact=True)
    expect(runs.locator("option")).to_have_count(2, timeout=SLOW)
    expect(status.first).to_contain_text("2 runs, 1.8 MB: checkpoints 1.2 MB, models 0.6 MB", timeout=SLOW)
    chapter.shot("my-runs", page)

    option = {name: runs.locator("option", has_text=name).inner_text() for name in ("well", "sick")}
    runs.select_option(label=option["sick"])
    page.get_by_role("button", name="Open").click()
    wrong = page.get_by_text(re.compile("No group held two different rewards in 12 steps: nothing could be learned"))
    expect(wrong).to_be_visible(timeout=SLOW)
    chapter.settle()
    chapter.execute("clicked = []; my_runs.opened.on_step(clicked.append)")
    page.locator("svg.marks .mark-symbol path[aria-label*='step: 3;']").first.click()
    chapter.settle()
    assert chapter.python("clicked") == [3]
    chapter.shot("my-runs-opened", page)

    runs.select_option(label=list(option.values()))
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("row", name="trainer.learning_rate")).to_contain_text("0.001", timeout=SLOW)
    chapter.settle()
    faint = page.locator("svg.marks .mark-line path[opacity='0.06']")
    expect(faint).to_have_count(0)
    page.locator("svg.marks .role-legend-label text", has_text="sick").click()
    expect(faint).not_to_have_count(0, timeout=SLOW)
    chapter.shot("my-runs-compared", page)

    runs.select_option(label=option["sick"])
    page.get_by_text("Tidy up").click()
    page.get_by_role("button", name="List what would go").click()
    expect(page.locator("pre")).to_contain_text("my-runs/sick/checkpoint-12", timeout=SLOW)
    expect(page.locator("pre")).not_to_contain_text("well", timeout=SLOW)
    delete = page.get_by_role("button", name=re.compile("Delete 4 files, 0.6 MB"))
    expect(delete).to_be_visible(timeout=SLOW)
    chapter.shot("my-runs-tidy", page)
    violations = Axe().run(chapter.page, context=".workbook-my-runs").response["violations"]
    serious = [(v["id"], v["nodes"][0]["html"]) for v in violations if v["impact"] in ("critical", "serious")]
    assert serious == []
    runs.select_option(label=option["well"])
    expect(delete).to_be_hidden(timeout=SLOW)  # what was listed was of another choice
    runs.select_option(label=option["sick"])
    page.get_by_role("button", name="List what would go").click()
    assert (sick / "checkpoint-12").exists()
    delete.click()
    expect(page.get_by_text(re.compile(r"Freed 0\.6 MB"))).to_be_visible(timeout=SLOW)
    assert sorted(path.name for path in sick.glob("*/")) == ["final"]
    assert sorted(path.name for path in well.glob("*/")) == ["checkpoint-12", "checkpoint-8", "final"]
    expect(status.first).to_contain_text("2 runs, 1.2 MB", timeout=SLOW)
    assert chapter.errors == []
