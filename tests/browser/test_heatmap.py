"""TokenHeatmap in the browser: pin and explanation, text and aligned cells, two panes, keys,
hostile text, steps.
"""

import re

from playwright.sync_api import expect

SLOW = 30_000  # ms on a machine that others use, too
HOSTILE = [
    "<script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    "\"'&<b>",
    "\u202eevil",
    "a\nb",
    " the",
]
SMALL = """
from workbook.policies.load import load_policy
from workbook.rollouts.sample import sample_rollouts
from workbook.probes import TokenExplainer
from workbook.tasks import get_task
from workbook.views import TokenHeatmap
policy = load_policy("bundled")
rollouts = sample_rollouts(policy, get_task("chain"), 4, 8, seed=0)
table = rollouts.token_table()
group = int((table.groupby("group")["reward"].mean() - 0.5).abs().idxmin())
explain = TokenExplainer(policy, rollouts, 0.1)
heatmap = TokenHeatmap(table, "advantage", group=group, explain=explain)
heatmap.mode = "align"
heatmap
"""
ENDLESS = """
import time
from workbook.messages import progress
heatmap.explain = lambda rollout, position: [
    time.sleep(0.05) for _ in progress(range(10**6), "explaining")
]
heatmap.pinned = 7
"""
LARGE = f"""
import numpy as np, pandas as pd
from workbook.views import TokenHeatmap
rng = np.random.default_rng(0)
texts = np.array({HOSTILE!r} + [f"w{{i}}" for i in range(500)])
rows = np.repeat(np.arange(16), 512)
ids = rng.integers(0, len(texts), len(rows))
ids[:{len(HOSTILE)}] = range({len(HOSTILE)})
table = pd.DataFrame({{
    "group": 0, "rollout": rows, "position": np.tile(np.arange(512), 16),
    "token": texts[ids], "token_id": ids, "advantage": rng.normal(size=len(rows)),
    "logp": -0.1, "logp_after": -0.2, "push": 1.0,
    "category": rng.choice(["style", "result"], len(rows)),
    "stopped": np.where(ids % 7, "", "clip high"), "prompt": texts[0],
}})
class Run:
    shown = [1, 2, 4]
    def token_steps(self):
        return self.shown
    def tokens(self, step):
        return table.assign(step=step, advantage=table["advantage"] * step)
run = Run()
heatmap = TokenHeatmap(run, "advantage")
heatmap.mode = "align"
heatmap
"""
SCROLL = """async () => { const grid = document.querySelector('.th-grid'), times = [];
  let last = performance.now();
  for (let k = 0; k < 20; k++) {
    grid.scrollLeft = (grid.scrollWidth - grid.clientWidth) * k / 20;
    grid.scrollTop = (grid.scrollHeight - grid.clientHeight) * ((k * 7) % 20) / 20;
    await new Promise(requestAnimationFrame); await new Promise(requestAnimationFrame);
    const now = performance.now(); times.push(now - last); last = now; }
  return times }"""


def cell(chapter, number):
    return chapter.panel.locator(f".th-grid >> nth=0 >> .th-cell[data-token='{number}']")


def numbers_with(chapter, name: str) -> set[int]:
    """The numbers of the tokens whose cells have a class."""
    script = "nodes => nodes.map(n => Number(n.dataset.token))"
    return set(chapter.panel.locator(f".th-cell.{name}").evaluate_all(script))


def test_tokens_are_read_pinned_explained_and_compared(run_cells):
    chapter = run_cells(SMALL)
    widget, grids = chapter.panel.locator(".token-heatmap"), chapter.panel.locator(".th-grid")
    cell(chapter, 4).click()  # a connective: it moves
    chapter.execute("heatmap.wait()")
    chapter.settle()
    assert chapter.python("heatmap.pinned") == 4
    details = widget.locator(".th-details").inner_text()
    assert all(line in details for line in chapter.python("heatmap.details['lines']"))
    assert "Explained: " in details
    bars = widget.locator(".th-region").first.locator(".th-signbar > span")
    colours = bars.evaluate_all("nodes => nodes.map(n => n.style.background)")
    signs = chapter.python("(heatmap.explanation.parts()['moved'] >= 0).tolist()")
    assert [colour == "rgb(47, 120, 179)" for colour in colours] == signs, "blue up, orange down"
    same = chapter.python("(heatmap.rows['token_id'] == heatmap.rows['token_id'].iloc[4]).tolist()")
    assert numbers_with(chapter, "same") == {i for i, one in enumerate(same) if one}
    assert numbers_with(chapter, "coupled") == set(chapter.python("heatmap.details['marked']"))
    widget.get_by_label("colour by").select_option("moves pinned")
    chapter.settle()
    cells = grids.first.locator(".th-cell")
    assert len(set(cells.evaluate_all("nodes => nodes.map(n => n.style.backgroundColor)"))) > 3
    chapter.shot("heatmap-moves-pinned", widget)
    assert chapter.grave() == []

    grids.first.focus()
    for key in ("Escape", "ArrowRight", "ArrowDown", "Enter"):
        chapter.page.keyboard.press(key)
    chapter.settle()
    where = chapter.python(
        "heatmap.rows.iloc[heatmap.pinned][['rollout', 'position']].astype(int).tolist()"
    )
    assert where == [chapter.python("int(heatmap.rows['rollout'].iloc[0])") + 1, 5]
    chapter.execute(ENDLESS)
    chapter.panel.get_by_role("button", name="Stop", exact=True).click()
    expect(widget.locator(".th-message")).to_have_text(
        "Stopped: this token is not explained.", timeout=SLOW
    )

    grids.first.focus()
    chapter.page.keyboard.press("m")
    chapter.settle()
    assert chapter.python("heatmap.mode") == "read"
    tokens = chapter.python(
        "[rows['token'].tolist() for _, rows in heatmap.rows.groupby('rollout', sort=False)]"
    )
    texts = chapter.panel.locator(".th-answer").evaluate_all(
        "nodes => nodes.map(n => n.textContent)"
    )
    assert texts == [" ".join(answer) for answer in tokens]
    assert grids.first.evaluate("n => n.scrollWidth <= n.clientWidth"), "no answer leaves the page"
    cell(chapter, 5).hover()
    row = chapter.python("heatmap.rows.iloc[5][['token', 'category']].tolist()")
    assert all(text.strip() in widget.locator(".th-tip").inner_text() for text in row)

    widget.get_by_label("compare with").select_option("column credit")
    widget.get_by_label("colour by").select_option("advantage")
    chapter.settle()
    mine, other = widget.locator(".th-heading").all_inner_texts()
    assert (mine, other.split("\n")[0]) == (
        "advantage of its rollout (advantage)",
        "true credit (credit)",
    )
    assert "blue (+): raises the expected reward" in other, "it has a scale of its own"
    grids.nth(1).locator(".th-cell").nth(4).click()
    chapter.settle()
    assert chapter.python("heatmap.pinned") == 4, "the same token of the first pane"
    chapter.change_theme("Dark")
    chapter.shot("heatmap-dark", widget)
    assert chapter.grave() == []
    assert chapter.errors == []


def test_a_large_group_of_hostile_text_scrolls_and_a_run_is_walked_step_by_step(run_cells, capsys):
    chapter = run_cells(LARGE)
    widget, slider = (
        chapter.panel.locator(".token-heatmap"),
        chapter.panel.get_by_role("slider", name="recorded step"),
    )
    assert [cell(chapter, k).inner_text() for k in range(6)] == chapter.python(
        "heatmap.main['shape']['texts'][:6]"
    )
    cell(chapter, 1).click()
    chapter.settle()
    assert "<script>" in widget.locator(".th-prompt").inner_text()
    assert "What the recorded steps did to “<img" in widget.locator(".th-details").inner_text()
    assert widget.locator("img, script, b").count() == 0
    for mode in ("align", "read"):
        chapter.execute(f"heatmap.mode = '{mode}'")
        chapter.settle()
        times = sorted(chapter.page.evaluate(SCROLL))
        with capsys.disabled():
            print(
                f"\n8,192 tokens, {mode}, 20 jumps: median {times[10]:.0f} ms, slowest"
                f" {times[-1]:.0f} ms"
            )
        chapter.shot(f"heatmap-large-{mode}", widget)
    read = [cell(chapter, k).evaluate("n => n.textContent") for k in range(len(HOSTILE))]
    assert read == ["\\u202eevil" if "evil" in text else text for text in HOSTILE], (
        "as it was written"
    )
    assert chapter.page.evaluate("window.owned") is None

    chapter.execute("heatmap.mode = 'align'")
    slider.focus()
    chapter.page.keyboard.press("ArrowLeft")
    chapter.page.keyboard.press("ArrowLeft")
    expect(widget.locator(".th-grid")).to_have_attribute(
        "aria-label", re.compile(r"at step 1\b"), timeout=SLOW
    )
    chapter.settle()
    assert chapter.python("[heatmap.step, heatmap.pinned]") == [1, 1], "the word stays pinned"
    assert "▲ clipped above" in widget.locator(".th-legend").inner_text()
    widget.get_by_label("compare with").select_option("step 4")
    chapter.settle()
    assert widget.locator(".th-heading").all_inner_texts() == [
        "step 1",
        "step 4: other rollouts, of the same prompt",
    ]
    chapter.execute("run.shown = [1, 2, 4, 6]")
    widget.get_by_role("button", name="Look for new steps").click()
    chapter.settle()
    assert slider.get_attribute("max") == "3"
    assert chapter.errors == []
