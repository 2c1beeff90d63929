"""Chapter 07 in the browser: a step split as the kernel does it, and live steps over the study."""

import pytest


@pytest.fixture
def chapter(open_chapter):
    chapter = open_chapter("07")
    chapter.run_all()
    yield chapter
    assert chapter.errors == []


def test_live_steps_are_drawn_over_the_study(chapter):
    assert chapter.panel.locator(".workbook-explorer").count() == 1  # credit recovered
    assert chapter.panel.locator(".th-cell").count() > 0
    chapter.press("seed of prompts, rollouts", "ArrowRight")
    chapter.choose("gap in", "credit")
    study = chapter.run_study()
    code = study.locator(".workbook-code pre").inner_text()
    assert "seed=1" in code
    assert 'of="credit"' in code or "of='credit'" in code
    chapter.shot("07-live-gap", study)
    chapter.choose("what grows", "prompts in the step")
    study = chapter.run_study(nth=1)
    chapter.shot("07-live-signal", study)
