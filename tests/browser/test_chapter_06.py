"""Chapter 06 in the browser: the map of this policy's couplings, and the mass of all pairs measured now."""

import pytest


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("06")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def test_the_map_and_the_mass_follow_their_controls(chapter):
    explorers = chapter.panel.locator(".workbook-explorer")
    assert explorers.count() == 1  # the map

    def same(**settings):
        marks = chapter.marks(explorers.nth(0).locator("svg.marks").first)
        drawn = sorted((m["token"], chapter.number(m["mean |K|"])) for m in marks if {"token", "mean |K|"} <= set(m))
        chapter.execute(
            "from workbook.topics.coupling.charts import FINE, compute_couplings\n"
            "from workbook.topics.coupling import coupling_by_confidence\n"
            "cells = coupling_by_confidence(policy, rollouts, FINE)"
        )
        call = ", ".join(["cells", *(f"{name}={value!r}" for name, value in settings.items())])
        expected = sorted(map(tuple, chapter.python(f"compute_couplings({call})[['token', 'size']].values.tolist()")))
        assert [token for token, _ in drawn] == [token for token, _ in expected]
        assert [size for _, size in drawn] == pytest.approx([size for _, size in expected], rel=1e-3)

    with chapter.no_flicker():
        same()
        chapter.drag("bins of confidence", 1.0)
        chapter.choose("pairs in", "the same context")
        same(bins=12, place="the same context")
        chapter.click("Reset", 0)
    chapter.choose("gradients of", "all weights")
    chapter.press("seed of prompts, rollouts", "ArrowRight")
    study = chapter.run_study()
    assert "weights='all weights'" in study.locator(".workbook-code pre").inner_text()
    assert "seed=1" in study.locator(".workbook-code pre").inner_text()
    chapter.shot("06-live", study)
