"""The rendered book in the browser: offline, pictures everywhere, links that keys can follow, nothing cut off."""

import nbformat
import pytest

from workbook.book.chapters import find_chapters
from workbook.book.pages import render_book


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The committed chapters as pages."""
    folder = tmp_path_factory.mktemp("book")
    notebooks = {path.stem: nbformat.read(path, as_version=4) for path in find_chapters()}
    render_book(notebooks, dict.fromkeys(notebooks, 0.0), "teach", folder)
    return folder


def test_every_page_reads_offline_and_leads_on(browser, book):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto((book / "index.html").as_uri())
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    for path in find_chapters():
        page.wait_for_url(f"**/{path.stem}.html")
        assert page.locator("h1").first.inner_text()
        pictures = page.locator("main img")
        assert pictures.count() > 0
        assert pictures.evaluate_all(
            "all => all.every(i => i.naturalWidth > 0 && i.alt && !i.alt.startsWith('No desc'))"
        )
        assert page.locator("main math").count() > 0
        assert "\\" not in "".join(page.locator("main math").all_text_contents()), "a formula that was not understood"
        assert "$" not in "".join(page.locator("main .jp-MarkdownOutput p").all_inner_texts())
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, "wider than the window"
        following = page.locator("nav.book a[rel=next]").first
        if following.count():
            following.focus()
            page.keyboard.press("Enter")
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert errors == []
    page.close()
