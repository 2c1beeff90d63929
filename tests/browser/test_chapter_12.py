"""Chapter 12 in the browser: refused and repaired by menu, forecast, started, stopped, compared; bad rows by line."""

import re

from playwright.sync_api import expect

SLOW = 120_000  # ms: new processes load their libraries, on a machine that others use, too


def test_an_experiment_by_hand(open_chapter):
    chapter = open_chapter("12")
    chapter.run_all()
    laboratory = chapter.panel.locator(".workbook-laboratory")
    monitor = laboratory.locator(".workbook-monitor")
    expect(laboratory).to_contain_text("64 prompts", timeout=SLOW)
    chapter.shot("12-laboratory", laboratory)

    chapter.choose("batching", "sign_partitioned")
    expect(laboratory).to_contain_text("batching='sign_partitioned' can't have an effect")
    chapter.shot("12-refused", laboratory)
    monitor.get_by_role("button", name="Start").click()
    expect(monitor).to_contain_text("can't have an effect")
    chapter.choose("mini-batches a batch", "2")
    expect(laboratory.get_by_role("status").filter(has_text="can't have an effect")).to_have_count(0)

    chapter.click("Forecast")
    expect(laboratory).to_contain_text(re.compile("Time about .* for one run: .* of this very setting"), timeout=SLOW)
    expect(laboratory).to_contain_text(re.compile("Peak memory about [1-9]"))
    expect(laboratory.locator("svg.marks", has_text="Where the memory goes")).to_be_visible()

    field, own = chapter.control("task").locator("input"), chapter.python("str(own)")
    field.fill(f"own:{own}/faulty.csv")
    field.press("Enter")
    expect(laboratory).to_contain_text("line 3: has 2 fields, but the first line names 3", timeout=SLOW)
    chapter.shot("12-bad-rows", laboratory)
    field.fill(f"own:{own}/sums.csv")
    field.press("Enter")
    expect(laboratory).to_contain_text("sums.csv: 64 prompts", timeout=SLOW)

    chapter.execute("s = laboratory.choices.sliders['steps']; s.max = 5000; s.value = 3000")
    chapter.settle()
    with chapter.no_flicker():
        monitor.get_by_role("button", name="Start").click()
        expect(monitor).to_contain_text(re.compile(r"running: step ([4-9]|\d\d+) of 3000"), timeout=SLOW)
    assert chapter.python("laboratory.started[0].config.trainer['batching']") == "sign_partitioned"
    monitor.get_by_role("button", name="Stop").click()
    expect(monitor).to_contain_text("stopped: Stopped at step", timeout=SLOW)
    expect(monitor.get_by_role("button", name="Resume")).to_be_enabled()
    chapter.shot("12-stopped", monitor)

    chart = chapter.panel.locator("[role='graphics-document'][aria-label*='Differences of the mean']").first
    expect(chart).to_be_visible()
    mean = chapter.python("float(compared['effects']['mean'][0])")
    expect(chart).to_have_attribute("aria-label", re.compile(re.escape(f"positive_only: {mean:+.3f} (")))
    chapter.shot("12-comparison", chart)
    assert chapter.errors == []
