"""LiveChart in the browser: a thousand updates leave one drawing, its newest rows, and no listener behind."""

import pytest

CHART = """
import altair as alt, pandas as pd
from workbook.views import LiveChart
def bars(table):
    drawn = alt.Chart(table).mark_bar().encode(x=alt.X("x:Q", scale={"domain": [0, 1000]}), y="name:N")
    return drawn + alt.Chart().mark_rule().encode(x=alt.datum(500))
def rows(k):
    return pd.DataFrame({"x": [k, 1000 - k], "name": ["up", "down"]})
live = LiveChart.over(bars, table=rows(0))
live
"""


def held(page) -> dict:
    """Event listeners and nodes that the page holds after collecting garbage."""
    tools = page.context.new_cdp_session(page)
    tools.send("HeapProfiler.collectGarbage")
    tools.send("Performance.enable")
    metrics = {one["name"]: one["value"] for one in tools.send("Performance.getMetrics")["metrics"]}
    return {name: metrics[name] for name in ("JSEventListeners", "Nodes")}


def push(chapter, start: int, end: int) -> None:
    chapter.execute(f"for k in range({start}, {end}): live.push(table=rows(k))")
    chapter.page.wait_for_selector(f"[data-drawn='{end}']", timeout=60_000)


def test_a_thousand_updates_neither_flicker_nor_leak(run_cells, capsys):
    chapter = run_cells(CHART)
    push(chapter, 0, 100)  # what is made once is there now
    before = held(chapter.page)
    with chapter.no_flicker():
        push(chapter, 100, 1_000)
    after = held(chapter.page)
    with capsys.disabled():
        print(f"\n900 updates of a live chart: {before} -> {after}")
    bars = chapter.marks(chapter.charts().first, "bar")
    assert {bar["name"]: chapter.number(bar["x"]) for bar in bars} == pytest.approx({"up": 999, "down": 1})
    assert chapter.charts().first.locator(".role-mark.mark-rule line").count() == 1
    assert chapter.charts().count() == 1
    for kind in before:  # JupyterLab itself comes and goes by some; a leak would be one or more an update
        assert after[kind] - before[kind] < 300, kind
    assert chapter.errors == []
