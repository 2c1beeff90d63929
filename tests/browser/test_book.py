"""The rendered book in the browser: offline, formulas drawn, toys moving, search, and the width of
a phone.
"""

from base64 import b64encode

import nbformat
import pandas as pd
import pytest
from ipywidgets.widgets.widget import _remove_buffers
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from workbook.book.chapters import find_chapters
from workbook.book.forms import TOKENS_TYPE, last_tokens
from workbook.book.pages import render_book
from workbook.views import TokenHeatmap

SCREENS = [(1440, "light"), (390, "dark")]
PAGES = (
    "index",
    "00_start_here",
    "02_cancellation_in_a_group",
    "13_what_to_believe",
    "glossary",
    "self-test",
)


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The committed chapters as pages."""
    folder = tmp_path_factory.mktemp("book")
    render_book({path.stem: nbformat.read(path, as_version=4) for path in find_chapters()}, folder)
    return folder


@pytest.fixture
def open_page(browser, book):
    """A function: page's name, width, colour scheme -> the page; it asks for nothing elsewhere and
    has no error.
    """
    pages = []

    def open_(name: str, width: int = 1440, scheme: str = "light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.asked, page.errors = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        pages.append(page)
        page.goto((book / f"{name}.html").as_uri())
        return page

    yield open_
    for page in pages:
        assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert page.errors == []
        page.close()


def test_the_book_is_light(book):
    assert sum(path.stat().st_size for path in book.rglob("*") if path.is_file()) < 15e6
    assert not list(book.rglob("*.map"))
    for path in book.glob("_sources/*.ipynb"):
        assert not [cell for cell in nbformat.read(path, as_version=4).cells if cell.get("outputs")]


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_its_screen(open_page, name, width, scheme):
    page = open_page(name, width, scheme)
    assert page.locator("h1").first.inner_text()
    page.locator(".moving svg, .moving canvas").count()
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, (
        f"{name} is too wide"
    )
    assert page.locator("main img").evaluate_all(
        "all => all.every(i => i.naturalWidth > 0 && i.alt)"
    )


def test_formulas_are_drawn_by_the_browser(open_page):
    page = open_page("02_cancellation_in_a_group")
    formulas = page.locator("main math")
    assert formulas.count() > 10
    assert formulas.evaluate_all("all => all.every(m => m.getBoundingClientRect().width > 0)")
    assert "\\" not in "".join(formulas.all_text_contents()), "a formula that was not understood"
    assert "$" not in "".join(page.locator("main section > p").all_inner_texts())


def test_a_frozen_chart_moves(open_page):
    page = open_page("00_start_here")
    box = page.locator(".moving").first
    box.locator("svg").wait_for()
    before = box.locator("svg").inner_html()
    control = box.locator(".vega-bindings input, .vega-bindings select").first
    control.evaluate(
        "c => { c.value = c.options ? c.options[0].value : c.min; c.dispatchEvent(new"
        " Event('input')); c.dispatchEvent(new Event('change')) }"
    )
    page.wait_for_function(
        "before => document.querySelector('.moving svg').innerHTML !== before", arg=before
    )


def test_search_finds_sections_from_a_file(open_page):
    page = open_page("search")
    page.goto(page.url + "?q=jitter")
    results = page.locator("#search-results li a")
    results.first.wait_for()
    assert "glossary" in " ".join(results.evaluate_all("all => all.map(a => a.href)"))


def test_set_up_and_answers_are_folded_and_pages_lead_on(open_page):
    page = open_page("00_start_here")
    setup = page.locator("div.cell.tag_hide-cell").first
    assert setup.count() == 1
    assert not setup.locator("pre").first.is_visible()
    assert not page.locator("details", has_text="Solution").first.evaluate("d => d.open")
    page.locator("a.right-next").first.click()
    page.wait_for_url("**/01_softmax_coupling.html")


def test_a_heatmap_answers_in_a_page_without_a_kernel(browser, tmp_path):
    table = {
        "group": 0,
        "rollout": [0, 0, 1, 1],
        "position": [0, 1, 0, 1],
        "token": ["so", "<b>7", "so", "8"],
    }
    table = pd.DataFrame(
        table
        | {
            "reward": [1, 1, 0, 0],
            "dlogp": [0.1, 0.3, -0.1, -0.2],
            "credit": [0, 0.5, 0, -0.5],
        }
    )
    heatmap = TokenHeatmap(table, "dlogp", explain=lambda rollout, position: 1 / 0)
    heatmap.pinned = 1
    heatmap.wait()
    state, paths, parts = _remove_buffers(heatmap.get_state())
    parts = {
        tuple(path): {"data": b64encode(part).decode()}
        for path, part in zip(paths, parts, strict=True)
    }
    data = dict(
        zip(
            ("text/plain", "image/png"),
            ("a heatmap", heatmap.picture()[0]["image/png"]),
            strict=True,
        )
    )
    data[TOKENS_TYPE] = last_tokens(state, parts)
    cell = new_code_cell("heatmap", outputs=[new_output("display_data", data)], execution_count=1)
    render_book(
        {"00_tokens": new_notebook(cells=[new_markdown_cell("# 00 · Tokens"), cell])}, tmp_path
    )
    page = browser.new_page()
    page.goto((tmp_path / "00_tokens.html").as_uri())
    widget, cells = page.locator(".token-heatmap"), page.locator(".th-cell")
    assert cells.all_text_contents() == ["so", "<b>7", "so", "8"]
    assert widget.locator(".th-label").all_inner_texts() == ["✓ rollout 0", "✗ rollout 1"]
    assert "blue (+): the token became more likely" in widget.inner_text()
    assert widget.locator(".th-cell.pinned").inner_text() == "<b>7"
    cells.nth(3).hover()
    assert "−0.2" in widget.locator(".th-tip").inner_text()
    cells.nth(0).click()
    page.wait_for_function("document.querySelectorAll('.th-cell.same').length === 2")
    widget.get_by_label("compare with").select_option(label="true credit (credit)")
    page.wait_for_function("document.querySelectorAll('.th-cell').length === 8")
    page.close()
