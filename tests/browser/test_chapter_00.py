"""Chapter 00 in the browser: the first slider a reader drags."""

import pytest


def test_the_shared_token_follows_the_slider(open_chapter):
    chapter = open_chapter("00")
    chapter.run_all()
    live = chapter.panel.locator(".workbook-explorer svg.marks").first

    def net():
        bars = [mark for mark in chapter.marks(live, "bar") if mark["source"] == "net"]
        push = next(key for key in bars[0] if key.startswith("push"))
        return {bar["token"]: chapter.number(bar[push]) for bar in bars}

    assert net() == pytest.approx({"“so”, in A and in B": 0, "“7”, in A only": 1, "“4”, in B only": -1})
    with chapter.no_flicker():
        chapter.drag("advantage of B", 1.0)
    assert net()["“so”, in A and in B"] == pytest.approx(1.0)
    chapter.shot("00-explorer", chapter.panel.locator(".workbook-explorer").first)
    chapter.click("Reset")
    assert net()["“so”, in A and in B"] == pytest.approx(0)
    chapter.press("advantage of B", "ArrowRight", 4)
    assert net()["“so”, in A and in B"] == pytest.approx(0.1)
    chapter.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chapter.click("Copy as code")
    copied = chapter.page.evaluate("() => navigator.clipboard.readText()")
    chapter.execute(copied.replace("\n\ncompute", "\n\ntaken = compute"))
    taken = chapter.python("taken.set_index(['token', 'source'])['push'].unstack()['net'].to_dict()")
    assert taken == pytest.approx(net())
    assert chapter.errors == []
