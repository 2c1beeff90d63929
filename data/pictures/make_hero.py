"""Make hero.gif: the heatmap of a real language model, a click on a wrong number, and who moved it.

    python data/pictures/make_hero.py        needs chromium; some seconds

What is drawn is the heatmap of chapter 10 as it was last run and saved, by the same page code as in JupyterLab.
"""

import io
import json
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from workbook.book.forms import TOKENS
from workbook.views.heatmap import TokenHeatmap

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CHAPTER = ROOT / "notebooks" / "10_real_llm.ipynb"
WIDTH, HEIGHT, COLOURS = 860, 520, 96
PAGE = """<!doctype html><meta charset="utf-8"><style>{css} body {{ margin: 14px; font-family: system-ui; }}
.token-heatmap {{ font-size: 15px; }} .th-cell, .th-prompt code {{ font-size: 14px !important; }}
#hand {{ position: fixed; width: 22px; height: 22px; margin: -13px; border: 3px solid #8a5aa8; border-radius: 50%; }}
</style><div class="tokens"><script type="application/json">{state}</script></div><div id="hand"></div>
<script>{module}</script><script>{book}</script>"""


def page_of(saved: dict) -> str:
    """A page that shows the saved heatmap, nothing pinned yet."""
    module = TokenHeatmap._esm.replace("export default { render };", "window.renderHeatmap = render;")
    book = (ROOT / "workbook" / "book" / "static" / "book.js").read_text(encoding="utf-8")
    state = json.dumps(saved).replace("<", "\\u003c")
    return PAGE.format(css=TokenHeatmap._css, state=state, module=f"(() => {{{module}}})();", book=book)


def frames(page, pinned: int) -> list[tuple[bytes, int]]:
    """Pictures, and for how many milliseconds each stands."""
    shots = []

    def stand(milliseconds: int) -> None:
        shots.append((page.screenshot(), milliseconds))

    cell = page.locator(f".th-cell[data-token='{pinned}']")
    cell.evaluate("node => node.scrollIntoView({block: 'center'})")
    page.evaluate("window.scrollTo(0, 0)")
    box = cell.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    put = "([x, y]) => Object.assign(document.querySelector('#hand').style, {left: `${x}px`, top: `${y}px`})"
    page.evaluate(put, [WIDTH - 90, HEIGHT - 70])
    stand(1600)
    for share in (0.35, 0.7, 1.0):
        at = [WIDTH - 90 + share * (x - WIDTH + 90), HEIGHT - 70 + share * (y - HEIGHT + 70)]
        page.evaluate(put, at)
        page.mouse.move(*at)
        page.wait_for_timeout(120)
        stand(110 if share < 1 else 1200)
    cell.click()
    page.wait_for_timeout(300)
    stand(1200)
    page.locator(".th-details").evaluate("node => node.scrollIntoView({block: 'start'})")
    page.evaluate(put, [-50, -50])
    page.mouse.move(2, 2)
    page.wait_for_timeout(200)
    stand(3600)
    page.evaluate("window.scrollTo(0, 0)")
    page.get_by_label("colour by").select_option("moves pinned")
    page.wait_for_timeout(300)
    stand(2600)
    return shots


def main() -> None:
    outputs = [output for cell in json.loads(CHAPTER.read_text())["cells"] for output in cell.get("outputs", ())]
    saved = next(output["data"][TOKENS] for output in outputs if TOKENS in output.get("data", {}))
    pinned = saved["state"]["pinned"]
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "hero.html")
        path.write_text(page_of(saved), encoding="utf-8")
        browser = playwright.chromium.launch(executable_path=sys.argv[1] if len(sys.argv) > 1 else "/usr/bin/chromium")
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(path.as_uri())
        page.keyboard.press("Escape")
        page.locator(".th-cell").first.wait_for()
        page.locator(".th-grid").first.focus()
        page.keyboard.press("Escape")  # nothing is pinned
        page.wait_for_timeout(300)
        shots = frames(page, pinned)
        browser.close()
    pictures = [
        Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE) for shot, _ in shots
    ]
    pictures[0].save(
        HERE / "hero.gif", save_all=True, append_images=pictures[1:], duration=[time for _, time in shots], loop=0
    )


if __name__ == "__main__":
    main()
