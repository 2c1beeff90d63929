"""Every chapter in the browser: run whole, nothing grave to axe, its widgets back when opened again
(`make release`).

The usual tests run chapters without a browser, and each kind of widget once in one.
"""

import pytest

from browser.chapter import THOROUGH
from workbook.book.chapters import find_chapters

MOST_BYTES = 2_000_000  # of a saved notebook with its outputs and widgets


@pytest.mark.skipif(not THOROUGH, reason="make release runs every chapter in the browser")
@pytest.mark.parametrize("name", [path.name for path in find_chapters()])
def test_a_chapter_runs_and_comes_back(open_notebook, lab, name):
    chapter = open_notebook(name)
    chapter.run_all()
    widgets = chapter.shown().count("widget")  # a bar of progress that has gone shows nothing
    chapter.settle()
    chapter.shot(name.removesuffix(".ipynb"))
    assert chapter.grave() == []
    assert chapter.errors == []
    chapter.reopen()
    assert chapter.shown(widgets).count("widget") >= widgets
    assert (lab[1] / name).stat().st_size < MOST_BYTES
