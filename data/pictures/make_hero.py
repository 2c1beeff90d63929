"""Make hero.gif: the heatmap of a real language model, a click on a wrong number, and who moved it.

    python data/pictures/make_hero.py        needs chromium and SmolLM2-135M; about two minutes

The step is chapter 10's, by its own cells, and what draws it is the page code of JupyterLab. The
click goes to the wrong number of a wrong answer that the step moved farthest.
"""

import io
import json
import re
import sys
import tempfile
from base64 import b64encode
from pathlib import Path

from ipywidgets.widgets.widget import _remove_buffers
from PIL import Image
from playwright.sync_api import sync_playwright

import workbook
from workbook.book.forms import last_tokens
from workbook.probes import TokenExplainer
from workbook.views import TokenHeatmap, heatmap

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CHAPTER = ROOT / "notebooks" / "10_real_llm.ipynb"
STEPS = ("c10-03", "c10-13")  # its cells up to the one that takes the step
WIDTH, HEIGHT, COLOURS = 860, 560, 128
PAGE = """<!doctype html><meta charset="utf-8">
<style>{css} body {{ margin: 14px; font-family: system-ui; }}
.token-heatmap {{ font-size: 15px; }} .th-cell, .th-prompt code {{ font-size: 14px !important; }}
#hand {{ position: fixed; width: 22px; height: 22px; margin: -14px; border: 3px solid #8a5aa8;
  border-radius: 50%; pointer-events: none; }}
#hand.down {{ background: #8a5aa8aa; }}
</style>
<div class="tokens"><script type="application/json">{state}</script></div><div id="hand"></div>
<script>{module}</script><script>{book}</script>"""


def chapter_step() -> dict:
    """The chapter's names after its cells that sample rollouts and take one step."""
    cells = {
        cell["id"]: "".join(cell["source"])
        for cell in json.loads(CHAPTER.read_text(encoding="utf-8"))["cells"]
    }
    names = {"profile": workbook.setup(seed=0, profile="teach")}
    for step in STEPS:
        exec(cells[step], names)  # noqa: S102 (cells of this repository)
    return names


def wrong_number_pinned(policy, rollouts, table, lr: float) -> dict:
    """The saved state of the first mixed group's heatmap, with a wrong number of a wrong answer
    pinned.
    """
    group = int(table.loc[table["advantage"] != 0, "group"].iloc[0])
    tokens = table[table["group"] == group]
    first = int(tokens["rollout"].iloc[0])
    # numbers that are not wrong
    known = re.findall(r"\d+", f"{rollouts.prompts[first]} {rollouts.answers[first]}")
    words = tokens["token"].str.strip()
    wrong = tokens[(tokens["reward"] == 0) & words.str.fullmatch(r"\d+") & ~words.isin(known)]
    place = wrong.loc[wrong["dlogp"].abs().idxmax()]
    heatmap = TokenHeatmap(
        table, "dlogp", group, explain=TokenExplainer(policy, rollouts, lr, measured=table["dlogp"])
    )
    heatmap.pin(int(place["rollout"]), int(place["position"]))
    heatmap.wait()
    state, paths, parts = _remove_buffers(heatmap.get_state())
    encoded = [{"data": b64encode(part).decode()} for part in parts]
    return last_tokens(state, dict(zip(map(tuple, paths), encoded, strict=True)))


def page_of(saved: dict) -> str:
    """A page that shows the saved heatmap, nothing pinned yet."""
    book = (ROOT / "workbook" / "book" / "static" / "book.js").read_text(encoding="utf-8")
    state = json.dumps(saved).replace("<", "\\u003c")
    css = (heatmap.SCRIPTS / "heatmap.css").read_text(encoding="utf-8")
    return PAGE.format(css=css, state=state, module=heatmap.page_script(), book=book)


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
    put = (
        "([x, y]) => Object.assign(document.querySelector('#hand').style, {left: `${x}px`, top:"
        " `${y}px`})"
    )
    page.evaluate(put, [WIDTH - 90, HEIGHT - 70])
    stand(1600)
    for share in (0.35, 0.7, 1.0):
        at = [WIDTH - 90 + share * (x - WIDTH + 90), HEIGHT - 70 + share * (y - HEIGHT + 70)]
        page.evaluate(put, at)
        page.mouse.move(*at)
        page.wait_for_timeout(120)
        stand(110 if share < 1 else 1200)
    page.evaluate("document.querySelector('#hand').className = 'down'")
    stand(250)
    cell.click()
    page.evaluate("document.querySelector('#hand').className = ''")
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
    saved = wrong_number_pinned(*map(chapter_step().get, ("policy", "rollouts", "table", "lr")))
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "hero.html")
        path.write_text(page_of(saved), encoding="utf-8")
        browser = playwright.chromium.launch(
            executable_path=sys.argv[1] if len(sys.argv) > 1 else "/usr/bin/chromium"
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(path.as_uri())
        page.keyboard.press("Escape")
        page.locator(".th-cell").first.wait_for()
        page.locator(".th-grid").first.focus()
        page.keyboard.press("Escape")  # nothing is pinned
        page.wait_for_timeout(300)
        shots = frames(page, saved["state"]["pinned"])
        browser.close()
    pictures = [
        Image.open(io.BytesIO(shot)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
        for shot, _ in shots
    ]
    pictures[0].save(
        HERE / "hero.gif",
        save_all=True,
        append_images=pictures[1:],
        duration=[time for _, time in shots],
        loop=0,
    )


if __name__ == "__main__":
    main()
