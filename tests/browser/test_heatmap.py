"""TokenHeatmap in the browser: what is pinned, lit and told; hostile text; a large group that scrolls."""

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
from workbook.rollouts.states import output_states
from workbook.tasks import get_task
from workbook.views import TokenHeatmap
policy = load_policy("bundled")
rollouts = sample_rollouts(policy, get_task("chain"), 4, 8, seed=0)
table = rollouts.token_table()
group = int((table.groupby("group")["reward"].mean() - 0.5).abs().idxmin())
heatmap = TokenHeatmap(table, "advantage", group=group, states=output_states(policy, rollouts), lr=0.1)
heatmap
"""
LARGE = f"""
import numpy as np, pandas as pd
from workbook.views import TokenHeatmap
rng = np.random.default_rng(0)
texts = np.array({HOSTILE!r} + [f"w{{i}}" for i in range(500)])
rows = np.repeat(np.arange(64), 512)
ids = rng.integers(0, len(texts), len(rows))
ids[:{len(HOSTILE)}] = range({len(HOSTILE)})
table = pd.DataFrame({{"group": 0, "rollout": rows, "position": np.tile(np.arange(512), 64), "token": texts[ids],
                      "token_id": ids, "advantage": rng.normal(size=len(rows)),
                      "category": rng.choice(["style", "result"], len(rows))}})
heatmap = TokenHeatmap(table)
heatmap
"""
SCROLL = """async () => { const grid = document.querySelector('.th-grid'), times = [];
  let last = performance.now();
  for (let k = 0; k < 120; k++) {
    grid.scrollLeft = (grid.scrollWidth - grid.clientWidth) * k / 120;
    grid.scrollTop = (grid.scrollHeight - grid.clientHeight) * ((k * 7) % 120) / 120;
    await new Promise(requestAnimationFrame); await new Promise(requestAnimationFrame);
    const now = performance.now(); times.push(now - last); last = now; }
  return times }"""


def cell(chapter, number):
    return chapter.panel.locator(f".th-cell[data-token='{number}']")


def classes(chapter):
    """The classes of each cell in the page, by the token's number; cells out of sight are not in it."""
    script = "nodes => nodes.map(n => [Number(n.dataset.token), [...n.classList]])"
    return dict(chapter.panel.locator(".th-cell").evaluate_all(script))


def test_a_pinned_token_is_explained_with_its_numbers(run_cells):
    chapter = run_cells(SMALL)
    cell(chapter, 3).click()
    chapter.settle()
    assert chapter.python("heatmap.pinned") == 3
    details = chapter.panel.locator(".th-details").inner_text()
    lines = chapter.python("heatmap.details['lines']")
    assert all(line in details for line in lines)
    same = chapter.python("(heatmap.rows['token_id'] == heatmap.rows['token_id'].iloc[3]).tolist()")
    coupled = {one["index"] for one in chapter.python("heatmap.details['coupled']")}
    cells = classes(chapter)
    assert {i for i in cells if "same" in cells[i]} == {i for i in cells if same[i]} > {3}
    assert {i for i in cells if "coupled" in cells[i]} == coupled & set(cells) != set()
    chapter.shot("heatmap-pinned", chapter.panel.locator(".token-heatmap"))
    chapter.panel.locator(".token-heatmap select").nth(1).select_option("coupling")
    chapter.settle()
    chapter.shot("heatmap-coupling", chapter.panel.locator(".token-heatmap"))
    assert chapter.python("heatmap.column") == "coupling"
    chapter.panel.locator(".th-grid").focus()
    for key in ("Escape", "ArrowRight", "ArrowDown", "Enter"):
        chapter.page.keyboard.press(key)
    chapter.settle()
    where = chapter.python("heatmap.rows.iloc[heatmap.pinned][['rollout', 'position']].astype(int).tolist()")
    first = chapter.python("int(heatmap.rows['rollout'].iloc[0])")
    assert where == [first + 1, 4]
    assert chapter.errors == []


def test_hovering_and_filtering(run_cells):
    chapter = run_cells(SMALL)
    cell(chapter, 5).hover()
    tip = chapter.panel.locator(".th-tip.visible")
    row = chapter.python("heatmap.rows.iloc[5][['token', 'category']].tolist()")
    assert all(text.strip() in tip.inner_text() for text in row)
    chapter.panel.locator(".token-heatmap select").nth(2).select_option("category: result")
    chapter.settle()
    results = chapter.python("(heatmap.rows['category'] == 'result').tolist()")
    cells = classes(chapter)
    assert {i for i in cells if "out" not in cells[i]} == {i for i in cells if results[i]} != set()
    chapter.shot("heatmap-filtered", chapter.panel.locator(".token-heatmap"))
    chapter.panel.locator(".token-heatmap select").nth(0).select_option("0")
    chapter.settle()
    assert chapter.python("heatmap.group") == 0
    assert cell(chapter, 0).inner_text() == chapter.python("heatmap.shape['texts'][0]")


def test_a_large_group_of_hostile_text_scrolls_and_stays_text(run_cells, capsys):
    chapter = run_cells(LARGE)
    shown = [cell(chapter, k).inner_text() for k in range(len(HOSTILE))]
    assert shown == chapter.python("[heatmap.shape['texts'][k] for k in range(6)]")
    assert shown[0].startswith("<script")
    assert "\u202e" not in "".join(shown)
    assert "⏎" in shown[4]
    assert chapter.page.evaluate("window.owned") is None
    assert chapter.panel.locator(".token-heatmap img, .token-heatmap script").count() == 0
    times = sorted(chapter.page.evaluate(SCROLL))
    with capsys.disabled():
        print(f"\n32,768 tokens, 120 jumps: median {times[60]:.0f} ms, 95th percentile {times[114]:.0f} ms a jump")
    assert chapter.panel.locator(".th-cell").count() < 2_000
    chapter.shot("heatmap-large", chapter.panel.locator(".token-heatmap"))
    assert chapter.errors == []
