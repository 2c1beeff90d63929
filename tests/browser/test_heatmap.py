"""TokenHeatmap in the browser: aligned and as text, two panes, keys alone; hostile text; a large group that scrolls."""

import re

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

SLOW, FIRST_STEP = 30_000, re.compile(r"at step 1\b")  # ms on a machine that others use, too
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
heatmap = TokenHeatmap(table, "advantage", group=group, explain=TokenExplainer(policy, rollouts, 0.1), mode="align")
heatmap
"""
ENDLESS = """
import time
from workbook.training.progress import progress
heatmap.explain = lambda rollout, position: [time.sleep(0.05) for _ in progress(range(10**6), "explaining")]
heatmap.pinned = 7
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
                      "category": rng.choice(["style", "result"], len(rows)),
                      "stopped": texts[ids % {len(HOSTILE)}], "prompt": texts[0], "ratio": 1.0}})
table.attrs["objective"] = {{"loss_type": texts[0], "level": texts[1], "normalizer": texts[2]}}
class Run:
    def token_steps(self):
        return [1, 2]
    def tokens(self, step):
        return table
heatmap = TokenHeatmap(Run(), "advantage", mode="align")
heatmap
"""
SCROLL = """async () => { const grid = document.querySelector('.th-grid'), times = [];
  let last = performance.now();
  for (let k = 0; k < 40; k++) {
    grid.scrollLeft = (grid.scrollWidth - grid.clientWidth) * k / 40;
    grid.scrollTop = (grid.scrollHeight - grid.clientHeight) * ((k * 7) % 40) / 40;
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
    assert not chapter.panel.locator(".th-steps").is_visible(), "a table has no steps"
    cell(chapter, 4).click()  # a connective: it moves
    chapter.settle()
    assert chapter.python("heatmap.pinned") == 4
    chapter.execute("heatmap.wait()")
    chapter.settle()
    details = chapter.panel.locator(".th-details").inner_text()
    lines = chapter.python("heatmap.details['lines'] + heatmap.details['explained']")
    assert all(line in details for line in lines)
    assert "Explained: " in details
    sources = chapter.python("heatmap.explanation.parts()['source'].tolist()")
    assert all(source in details for source in sources)
    bars = chapter.panel.locator(".th-region").first.locator(".th-signbar > span")
    colours = bars.evaluate_all("nodes => nodes.map(n => n.style.background)")
    signs = chapter.python("(heatmap.explanation.parts()['moved'] >= 0).tolist()")
    assert [colour == "rgb(47, 120, 179)" for colour in colours] == signs, "blue up, orange down"
    same = chapter.python("(heatmap.rows['token_id'] == heatmap.rows['token_id'].iloc[4]).tolist()")
    cells = classes(chapter)
    assert {i for i in cells if "same" in cells[i]} == {i for i in cells if same[i]} > {4}
    chapter.execute("heatmap.pinned = 9; heatmap.wait()")  # a result: its own prompt's results move it
    chapter.settle()
    coupled, cells = {one["index"] for one in chapter.python("heatmap.details['coupled']")}, classes(chapter)
    assert {i for i in cells if "coupled" in cells[i]} == coupled & set(cells) != set()
    chapter.shot("heatmap-pinned", chapter.panel.locator(".token-heatmap"))
    chapter.panel.locator(".token-heatmap select").nth(1).select_option("moves pinned")
    chapter.settle()
    chapter.shot("heatmap-moves-pinned", chapter.panel.locator(".token-heatmap"))
    assert chapter.python("heatmap.column") == "moves pinned"
    chapter.panel.locator(".th-grid").focus()
    for key in ("Escape", "ArrowRight", "ArrowDown", "Enter"):
        chapter.page.keyboard.press(key)
    chapter.settle()
    where = chapter.python("heatmap.rows.iloc[heatmap.pinned][['rollout', 'position']].astype(int).tolist()")
    first = chapter.python("int(heatmap.rows['rollout'].iloc[0])")
    assert where == [first + 1, 5]
    chapter.execute(ENDLESS)
    chapter.panel.get_by_role("button", name="Stop", exact=True).click()
    message = chapter.panel.locator(".th-message")
    expect(message).to_have_text("Stopped: this token is not explained.", timeout=SLOW)
    expect(chapter.panel.locator(".th-busy progress")).to_have_count(0)
    assert chapter.errors == []


def assert_accessible(chapter, where):
    """Axe finds nothing critical or serious in the widget."""
    violations = Axe().run(chapter.page, context=".token-heatmap").response["violations"]
    wrong = [
        (v["id"], len(v["nodes"]), v["nodes"][0]["html"]) for v in violations if v["impact"] in ("critical", "serious")
    ]
    assert wrong == [], where


def tip_text(chapter):
    return chapter.panel.locator(".th-tip").inner_text().replace("\n", " ")


def test_tokens_read_as_text_and_are_reached_by_keys(run_cells):
    chapter = run_cells(SMALL)
    widget, grid = chapter.panel.locator(".token-heatmap"), chapter.panel.locator(".th-grid").first
    cell(chapter, 5).hover()
    row = chapter.python("heatmap.rows.iloc[5][['token', 'category']].tolist()")
    assert all(text.strip() in tip_text(chapter) for text in row)
    bottom = grid.bounding_box()["y"] + grid.bounding_box()["height"]
    assert chapter.panel.locator(".th-tip").bounding_box()["y"] >= bottom - 1, "it covers no cell"
    chapter.execute("heatmap.group = 0")  # the mouse rests
    chapter.settle()
    assert chapter.python("heatmap.shape['rows'][0].split()[0]") in tip_text(chapter), "it is of the new group"
    assert cell(chapter, 0).inner_text() == chapter.python("heatmap.shape['texts'][0]")
    widget.get_by_label("show", exact=True).select_option("category: result")
    chapter.settle()
    results = chapter.python("(heatmap.rows['category'] == 'result').tolist()")
    cells = classes(chapter)
    assert {i for i in cells if "out" not in cells[i]} == {i for i in cells if results[i]} != set()
    chapter.shot("heatmap-filtered", widget)
    assert_accessible(chapter, "aligned and filtered")
    widget.get_by_label("show", exact=True).select_option("all tokens")

    grid.focus()
    for key in ("Escape", "ArrowRight", "m"):
        chapter.page.keyboard.press(key)
    chapter.settle()
    assert chapter.python("heatmap.mode") == "read"
    assert widget.get_by_role("button", name="as text").get_attribute("aria-pressed") == "true"
    assert chapter.panel.locator(".jp-MarkdownCell").count() == 0, "m is no key of the notebook's here"
    tokens = chapter.python("[rows['token'].tolist() for _, rows in heatmap.rows.groupby('rollout', sort=False)]")
    texts = chapter.panel.locator(".th-answer").evaluate_all("nodes => nodes.map(n => n.textContent)")
    assert texts[0] == " ".join(tokens[0])
    assert grid.evaluate("n => n.scrollWidth <= n.clientWidth"), "no answer leaves the page"
    chapter.page.keyboard.press("End")
    last = len(tokens[0]) - 1
    assert grid.get_attribute("aria-activedescendant").endswith(f"-{last}")
    assert f"position {last}" in tip_text(chapter)
    chapter.page.keyboard.press("ArrowDown")
    chapter.page.keyboard.press("Home")
    chapter.page.keyboard.press("Enter")
    chapter.settle()
    assert chapter.python("heatmap.pinned") == len(tokens[0]), "the first token of the second answer"
    chapter.page.keyboard.press("Escape")
    chapter.settle()
    assert chapter.python("heatmap.pinned") == -1
    assert "Point at a token" in tip_text(chapter)
    assert_accessible(chapter, "as text")
    compare(chapter)


def compare(chapter):
    """Two panes on the same rollouts in one scale, that scroll together; a narrow page; the dark theme."""
    widget, grids = chapter.panel.locator(".token-heatmap"), chapter.panel.locator(".th-grid")
    widget.get_by_label("compare with").select_option("column credit")
    chapter.settle()
    assert chapter.panel.locator(".th-title").all_inner_texts() == ["advantage", "credit"]
    assert chapter.panel.locator(".th-scale").count() == 1, "one scale for both"
    grids.nth(1).evaluate("n => { n.scrollTop = 60 }")
    chapter.settle()
    one, two = (grid.evaluate("n => n.scrollTop") for grid in grids.all())
    assert one == two
    grids.nth(1).locator(".th-cell").nth(4).click()
    chapter.settle()
    assert chapter.python("heatmap.pinned") == 4, "the same token of the first pane"
    chapter.shot("heatmap-compared", widget)
    chapter.execute("heatmap.mode = 'auto'; heatmap.column = 'entropy'")
    chapter.settle()
    assert widget.get_attribute("data-mode") == "read", "whole answers do not fit the page side by side"
    chapter.execute("heatmap.mode = 'align'")
    chapter.settle()
    assert chapter.panel.locator(".th-scale").count() == 2, "a credit and an entropy have no common scale"
    of_entropy = grids.first.locator(".th-cell").evaluate_all("nodes => nodes.map(n => n.dataset.sign).join('')")
    assert of_entropy == "", "one-sided values have no sign"
    chapter.shot("heatmap-compared-aligned", widget)
    cells = chapter.panel.locator(".th-cell").count()
    chapter.change_theme("Dark")
    expect(chapter.panel.locator(".th-cell")).to_have_count(cells)  # JupyterLab hides the page meanwhile
    assert_accessible(chapter, "dark")
    chapter.shot("heatmap-dark", widget)
    chapter.command("application:toggle-left-area")
    chapter.execute("heatmap.mode = 'auto'")
    chapter.page.set_viewport_size({"width": 390, "height": 844})
    chapter.page.wait_for_function("document.querySelector('.token-heatmap').dataset.mode === 'read'")
    chapter.settle()
    assert widget.evaluate("n => n.scrollWidth <= n.clientWidth")
    chapter.shot("heatmap-390", widget)
    chapter.command("application:toggle-left-area")  # the page is that of all tests
    chapter.change_theme("Light")
    assert chapter.errors == []


def test_a_large_group_of_hostile_text_scrolls_and_stays_text(run_cells, capsys):
    chapter = run_cells(LARGE)
    shown = [cell(chapter, k).inner_text() for k in range(len(HOSTILE))]
    assert shown == chapter.python("[heatmap.shape['texts'][k] for k in range(6)]")
    assert shown[0].startswith("<script")
    assert "\u202e" not in "".join(shown)
    assert "⏎" in shown[4]
    cell(chapter, 1).hover()
    cell(chapter, 1).click()
    chapter.settle()
    assert "<script>" in chapter.panel.locator(".th-prompt").inner_text()
    details = chapter.panel.locator(".th-details")
    assert "No formula: loss_type='<script>" in details.inner_text()
    assert "<img" in details.locator("svg").get_attribute("aria-label")
    assert chapter.page.evaluate("window.owned") is None
    for tag in ("img", "script", "b"):
        assert chapter.panel.locator(f".token-heatmap {tag}").count() == 0
    chapter.shot("heatmap-hostile", chapter.panel.locator(".token-heatmap"))
    chapter.page.keyboard.press("Escape")
    for mode, most in (("align", 2_000), ("read", 4_000)):
        chapter.execute(f"heatmap.mode = '{mode}'")
        chapter.settle()
        times = sorted(chapter.page.evaluate(SCROLL))
        with capsys.disabled():
            median, slow = times[20], times[38]
            print(f"\n32,768 tokens, {mode}, 40 jumps: median {median:.0f} ms, 95th percentile {slow:.0f} ms a jump")
        assert 0 < chapter.panel.locator(".th-cell").count() < most
        chapter.shot(f"heatmap-large-{mode}", chapter.panel.locator(".token-heatmap"))
    chapter.panel.locator(".th-grid").evaluate("n => { n.scrollTop = 0 }")
    chapter.settle()
    assert chapter.page.evaluate("window.owned") is None
    read = [cell(chapter, k).evaluate("n => n.textContent") for k in range(len(HOSTILE))]
    assert read == ["\\u202eevil" if "evil" in text else text for text in HOSTILE], "as it was written"
    assert chapter.panel.locator(".token-heatmap").locator("img, script, b").count() == 0
    assert chapter.errors == []


RUN = """
import tempfile, warnings
import pandas as pd
from workbook.policies.load import load_policy
from workbook.tasks import get_task
from workbook.training import CancellationConfig, CancellationTrainer
from workbook.training.runs import Run
from workbook.views import TokenHeatmap
warnings.simplefilter("ignore")
policy, task, folder = load_policy("bundled"), get_task("chain"), tempfile.mkdtemp()
config = CancellationConfig(
    output_dir=folder, record_tokens=2, max_steps=8, num_generations=4, per_device_train_batch_size=8,
    steps_per_generation=2, num_iterations=2, batching="query_preserved", max_completion_length=48, learning_rate=5e-3,
    loss_type="dr_grpo", epsilon=0.1, use_cpu=True, bf16=False, report_to="none", save_strategy="no", seed=3,
    gradient_checkpointing=False, disable_tqdm=True)
data = task.dataset(16, seed=0)
CancellationTrainer(policy.model, task.reward, config, train_dataset=data, processing_class=policy.tokenizer).train()
class Growing:
    shown = 3
    def token_steps(self):
        return Run(folder).token_steps()[: self.shown]
    def tokens(self, step):
        if step not in self.token_steps():
            raise ValueError(f"step={step} has no table.")
        return Run(folder).tokens(step)
run = Growing()
heatmap = TokenHeatmap(run)
heatmap
"""


def clipped_place(chapter) -> int:
    """A clipped token of the group that is shown; chooses another group if none is."""
    script = (
        "int(next((g for g, rows in heatmap.table.groupby('group') if rows['stopped'].str.startswith('clip').any())))"
    )
    chapter.execute(f"heatmap.group = {script}")
    chapter.settle()
    return chapter.python("heatmap.rows['stopped'].astype(str).str.startswith('clip').tolist().index(True)")


def test_a_run_is_walked_step_by_step_and_followed(run_cells):
    chapter = run_cells(RUN)
    widget, slider = chapter.panel.locator(".token-heatmap"), chapter.panel.get_by_role("slider", name="recorded step")
    steps = chapter.python("heatmap.steps")
    assert steps == [1, 2, 4]
    assert slider.get_attribute("aria-valuetext") == "step 4, 3 of 3 recorded"
    assert chapter.python("heatmap.prompt") in widget.locator(".th-prompt").inner_text()
    number = clipped_place(chapter)
    here = cell(chapter, number)
    here.scroll_into_view_if_needed()
    assert here.get_attribute("data-mark") in ("▲", "▼")
    reason = chapter.python(f"heatmap.rows['stopped'].iloc[{number}]")
    assert here.get_attribute("aria-label").endswith(f", {reason}")
    assert "clipped" in widget.locator(".th-legend").inner_text()
    here.click()
    chapter.settle()
    details = widget.locator(".th-details")
    lines = chapter.python("heatmap.details['loss']")
    assert len(lines) == 3
    assert all(line in details.inner_text() for line in lines)
    assert reason in lines[0]
    drawing = details.locator("svg")
    assert drawing.get_attribute("aria-label") == chapter.python("heatmap.biography['sentence']")
    assert drawing.locator("rect title").count() == 3
    chapter.shot("heatmap-run", widget)
    word = chapter.python("heatmap.rows['token'].iloc[heatmap.pinned]")

    slider.focus()
    chapter.page.keyboard.press("ArrowLeft")
    chapter.page.keyboard.press("ArrowLeft")
    expect(widget.locator(".th-grid")).to_have_attribute("aria-label", FIRST_STEP, timeout=SLOW)
    chapter.settle()
    assert chapter.python("heatmap.step") == 1
    assert chapter.page.evaluate("document.activeElement.getAttribute('aria-label')") == "recorded step"
    pinned = chapter.python("heatmap.pinned")
    if pinned >= 0:
        assert chapter.python("heatmap.rows['token'].iloc[heatmap.pinned]") == word
    else:
        assert "is in no rollout of this group" in widget.locator(".th-message").inner_text()
    chapter.execute("heatmap.pin(*heatmap.rows.iloc[3][['rollout', 'position']])")
    chapter.settle()
    details.locator("svg rect[cursor]").nth(1).click()
    chapter.settle()
    assert chapter.python("heatmap.step") == 2
    assert slider.input_value() == "1"
    details.locator("summary").click()
    assert details.locator("details table tr").count() == 4
    chapter.page.keyboard.press("Escape")
    chapter.settle()
    assert chapter.python("heatmap.pinned") == -1
    assert details.inner_text() == ""

    follow(chapter)


def follow(chapter):
    """A run that trains on: new steps when asked for, and by themselves where they are followed."""
    widget, slider = chapter.panel.locator(".token-heatmap"), chapter.panel.get_by_role("slider", name="recorded step")
    widget.get_by_role("button", name="Look for new steps").click()
    chapter.settle()
    assert "No new step is recorded; the newest is step 4" in widget.locator(".th-message").inner_text()
    chapter.execute("run.shown = 4")
    widget.get_by_role("button", name="Look for new steps").click()
    chapter.settle()
    assert chapter.python("[heatmap.steps, heatmap.step]") == [[1, 2, 4, 6], 2]
    assert slider.get_attribute("max") == "3"
    chapter.execute("run.shown = 5")
    widget.get_by_label("follow").check()
    chapter.page.wait_for_function("document.querySelector('.th-steps output').textContent === '8'", timeout=SLOW)
    assert chapter.python("[heatmap.steps, heatmap.step]") == [[1, 2, 4, 6, 8], 8]
    chapter.settle()
    assert "at step 8" in widget.locator(".th-grid").get_attribute("aria-label")
    handle = slider.bounding_box()
    chapter.page.mouse.move(handle["x"] + handle["width"] - 5, handle["y"] + handle["height"] / 2)
    chapter.page.mouse.down()
    chapter.page.mouse.move(handle["x"] + 4, handle["y"] + handle["height"] / 2, steps=15)
    chapter.page.mouse.up()
    widget.get_by_label("follow").uncheck()
    expect(widget.locator(".th-grid")).to_have_attribute("aria-label", FIRST_STEP, timeout=SLOW)
    assert chapter.python("heatmap.step") == 1
    chapter.shot("heatmap-step-1", widget)
    assert chapter.errors == []
