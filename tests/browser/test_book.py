"""The rendered book in the browser: offline, readable on a phone and in the dark, its explorers moving alone."""

import json
import math
import random
import re

import ipywidgets
import nbformat
import pytest
from axe_playwright_python.sync_playwright import Axe

from workbook.book.chapters import find_chapters
from workbook.book.explorers import EXPLORERS, make_explorer
from workbook.book.pages import render_book
from workbook.claims import ledger
from workbook.views.live import rows
from workbook.views.style import typeset

SCREENS = [(1440, "light"), (390, "dark")]
COLORS = ("00_start_here", "12_your_own_experiment", "ledger", "index")  # pages that have every kind of thing
IS_DRAWN = "box => box.dataset.drawn"
# what a reader's hand does to all controls, at once
SET = """(box, values) => { for (const [name, value] of Object.entries(values)) {
    const control = box.querySelector(`[name=${name}]`);
    if (control.type === 'checkbox') control.checked = value; else control.value = value; }
  box.dataset.drawn = ''; box.dispatchEvent(new Event('input')) }"""


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    """The committed chapters as pages, with a ledger of one claim."""
    folder = tmp_path_factory.mktemp("book")
    notebooks = {path.stem: nbformat.read(path, as_version=4) for path in find_chapters()}
    render_book(notebooks, {}, "teach", folder, ledger(claims=["D1"]))
    return folder


@pytest.fixture
def open_page(browser, book):
    """A function: width, color scheme -> a page that notes what it asks for, and its errors."""
    pages = []

    def open_(width: int, scheme: str):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.asked, page.errors = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("console", lambda message: page.errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        pages.append(page)
        return page

    yield open_
    for page in pages:
        assert [url for url in page.asked if not url.startswith(("file:", "data:", "blob:"))] == []
        assert page.errors == []
        page.close()


@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_every_page_reads_offline_and_leads_on(open_page, book, width, scheme):
    page = open_page(width, scheme)
    page.goto((book / "index.html").as_uri())
    _check(page, "index", scheme)
    page.locator("main a").first.focus()
    page.keyboard.press("Enter")
    for path in find_chapters():
        page.wait_for_url(f"**/{path.stem}.html")
        assert page.locator("h1").first.inner_text()
        pictures = page.locator("main img")
        assert pictures.count() > 0
        assert pictures.evaluate_all(
            "all => all.every(i => i.naturalWidth > 0 && i.alt && !i.alt.startsWith('No desc'))"
        )
        assert (page.locator("main math").count() > 0) == ("$" in written(path))
        assert "\\" not in "".join(page.locator("main math").all_text_contents()), "a formula that was not understood"
        assert "$" not in "".join(page.locator("main > p").all_inner_texts())
        assert page.locator(".contents details").evaluate("d => d.open") == (width > 1200)
        contents = page.locator(".contents a")
        assert contents.count() > 3
        assert contents.evaluate_all(
            "all => all.every(a => document.getElementById(decodeURIComponent(a.hash.slice(1))))"
        )
        assert page.locator(".static").inner_text().startswith("A static copy")
        _check(page, path.stem, scheme)
        following = page.locator("footer a[rel=next]")
        if following.count():
            following.focus()
            page.keyboard.press("Enter")
    page.wait_for_url("**/ledger.html")  # what follows the last chapter
    _check(page, "ledger", scheme)
    for name in ("self-test", "glossary", "literature", "scale"):
        page.goto((book / f"{name}.html").as_uri())
        _check(page, name, scheme)


def written(path) -> str:
    """The text of a chapter."""
    cells = nbformat.read(path, as_version=4).cells
    return "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def _check(page, name: str, scheme: str) -> None:
    """No sideways scrolling, and nothing that axe calls serious; colours are checked where all kinds of things are."""
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, f"{name} is too wide"
    rules = {} if name in COLORS else {"rules": {"color-contrast": {"enabled": False}}}  # the one rule that takes long
    problems = Axe().run(page, options=rules | {"resultTypes": ["violations"], "preload": False}).response["violations"]
    grave = [(rule["id"], rule["nodes"][0]["html"]) for rule in problems if rule["impact"] in ("serious", "critical")]
    assert grave == [], f"{name}, {scheme}"


def test_search_leads_to_sections_of_the_whole_book(open_page, book):
    page = open_page(390, "light")
    page.goto((book / "index.html").as_uri())
    page.keyboard.press("/")
    page.keyboard.type("min-replace residual")
    page.locator("#found a").first.wait_for()
    assert re.fullmatch(r"\d+ sections?(, the best 12 shown)?", page.locator("#hits").inner_text())
    assert {"min-replace", "residual"} <= {text.lower() for text in page.locator("#found mark").all_inner_texts()}
    link = page.locator("#found a").first
    target = link.get_attribute("href")
    link.click()
    page.wait_for_url(f"**/{target}")
    name, _, id = target.partition("#")
    assert (book / name).exists()
    assert page.locator(f"[id='{id}']").count() == 1
    page.locator("#search").fill("xyzzy plugh")
    page.get_by_text("Nothing found.").wait_for()
    page.keyboard.press("Escape")
    assert page.locator("#found").is_hidden()


def test_code_folds_and_scrolls_in_its_box(open_page, book):
    page = open_page(390, "light")
    page.goto((book / "01_softmax_coupling.html").as_uri())
    cells = page.locator("details.code")
    assert not cells.first.evaluate("d => d.open"), "the setup cell"
    assert cells.nth(1).evaluate("d => d.open")
    wide = page.locator("details.code[open] pre").evaluate_all("all => all.filter(p => p.scrollWidth > p.clientWidth)")
    assert wide
    page.get_by_text("Fold all code").click()
    assert not cells.evaluate_all("all => all.some(d => d.open)")
    page.get_by_text("Unfold all code").click()
    assert cells.evaluate_all("all => all.every(d => d.open)")


def test_explorers_move_without_a_kernel_and_say_what_compute_says(open_page, book):
    """Four settings of each: the tables that are drawn, the sentence and the code are those of the notebook."""
    page, rng = open_page(390, "dark"), random.Random(390)
    names = []
    for path in find_chapters(["00", "01", "02", "03"]):
        page.goto((book / f"{path.stem}.html").as_uri())
        for box in page.locator(".explorer").all():
            names.append(name := box.get_attribute("data-toy"))
            explorer = make_explorer(name)
            box.scroll_into_view_if_needed()
            _compare(page, box, explorer, explorer.settings)
            for _ in range(3):
                shown, settings = _drawn_settings(explorer, rng)
                box.evaluate(SET, shown)
                _compare(page, box, explorer, settings)
            box.get_by_text("Reset").click()
            _compare(page, box, explorer, explorer.settings)
    assert sorted(names) == sorted(EXPLORERS)


def test_an_explorer_answers_to_keys_and_refuses_in_a_sentence(open_page, book):
    page = open_page(390, "light")
    page.goto((book / "02_cancellation_in_a_group.html").as_uri())
    box = page.locator("[data-toy=explore_intervention]")
    box.scroll_into_view_if_needed()
    page.wait_for_function(IS_DRAWN, arg=box.element_handle())
    sentence = box.locator(".sentence").element_handle()
    before, bars = sentence.inner_text(), box.locator(".mark-rect path").first.get_attribute("d")
    box.get_by_label("verifier's error rate").press("ArrowRight")
    page.wait_for_function("([p, text]) => p.innerText !== text", arg=[sentence, before])
    page.wait_for_function(
        "([box, d]) => box.querySelector('.mark-rect path').getAttribute('d') !== d", arg=[box.element_handle(), bars]
    )
    assert box.locator("output").last.inner_text() == "0.15"
    box.get_by_label("match frequencies (R1)").check()
    box.get_by_label("signs (R3)").select_option(label="all positive")
    page.get_by_text("here all are positive").wait_for()
    assert "refused" in box.get_attribute("class")
    box.get_by_text("Reset").click()
    page.wait_for_function("([p, text]) => p.innerText === text", arg=[sentence, before])


def _drawn_settings(explorer, rng) -> tuple[dict, dict]:
    """Random settings: as the page's controls take them, and as compute does."""
    while True:
        shown, settings = {}, {}
        for name, control in explorer.controls.items():
            shown[name], settings[name] = _drawn_value(control, rng)
        try:
            explorer.compute(**settings)
        except ValueError:
            continue
        return shown, settings


def _drawn_value(control, rng) -> tuple:
    if isinstance(control, ipywidgets.Checkbox):
        return (on := rng.random() < 0.5), on
    if isinstance(control, ipywidgets.Dropdown):
        value = rng.choice([option[1] if isinstance(option, tuple) else option for option in control.options])
        return json.dumps(value), value
    place = round(control.min + control.step * rng.randint(0, round((control.max - control.min) / control.step)), 6)
    if isinstance(control, ipywidgets.FloatLogSlider):
        return str(place), float(f"{10**place:.2g}")
    return str(place), place if isinstance(control, ipywidgets.IntSlider) else float(place)


def _compare(page, box, explorer, settings: dict) -> None:
    """Wait until the settings are drawn; then the page's tables, sentence and code are those of the explorer."""
    tables = explorer.compute(**settings)
    tables = tables if isinstance(tables, dict) else {"table": tables}
    page.wait_for_function(
        "([box, code]) => box.dataset.drawn && box.querySelector('pre').innerText.endsWith(code)",
        arg=[box.element_handle(), _call(explorer, settings)],
    )
    for name, table in tables.items():
        drawn = box.evaluate("(box, name) => box.view.data(name)", name)
        assert len(drawn) == len(table), f"{explorer.compute.__name__}, {name}"
        for row, wanted in zip(drawn, rows(table), strict=True):
            others = {key: (row[key], wanted[key]) for key in wanted if not _same(row[key], wanted[key])}
            assert others == {}, f"{explorer.compute.__name__}({settings}), {name}"
    sentence = box.locator(".sentence").inner_text()
    assert sentence == typeset(" ".join(explorer._describe(**tables).split()))


def _same(drawn, wanted) -> bool:
    if isinstance(wanted, bool) or not isinstance(wanted, int | float):
        return drawn == wanted
    return math.isclose(drawn, wanted, rel_tol=1e-8, abs_tol=1e-9)


def _call(explorer, settings: dict) -> str:
    arguments = ", ".join(f"{name}={value!r}" for name, value in settings.items())
    return f"{explorer.compute.__name__}({arguments})"
