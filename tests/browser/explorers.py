"""Every explorer of the theory chapters: right while and after a slider is dragged, unshaken by a storm of events."""

import numpy as np

from browser.chapter import THOROUGH

STORMED = ("03", "07")  # chapters whose explorers are stormed each time: quick ones, and one too slow to follow a mouse
EVENTS = 50 if THOROUGH else 20  # of a drag
STORM_EVENTS, STORM_SECONDS = (250, 2) if THOROUGH else (125, 1)
FIND = """
import gc, logging, math, traitlets
from workbook.views import Explorer
gc.unfreeze()  # `gc.get_objects` leaves out what was frozen, which all is that stood before a policy was loaded
explorers = {one.box.model_id: one for one in gc.get_objects() if issubclass(type(one), Explorer)}
complaints = []
class Complain(logging.Handler):
    def emit(self, record):
        complaints.append(record.getMessage() + str(record.exc_info))
for logger in (logging.getLogger(), logging.getLogger("Comm"), traitlets.log.get_logger()):
    logger.addHandler(Complain(logging.WARNING))
get_ipython().showtraceback = lambda *_, **__: complaints.append(repr(__import__("sys").exc_info()))
def track(explorer, name):
    seen = []
    scale = math.log10 if hasattr(explorer.controls[name], "base") else float
    explorer.chart.observe(lambda change: seen.append((change["new"], scale(explorer.controls[name].value))), "version")
    return seen
def stops(explorer):
    sliders = {name: one for name, one in explorer.controls.items() if hasattr(one, "readout_format")}
    return {name: round((one.max - one.min) / one.step) for name, one in sliders.items()}
def finest(explorer):
    return max(stops(explorer), key=stops(explorer).get)
def sound(explorer):
    try:
        expected = explorer.compute(*explorer.variables.values(), **explorer.settings)
    except ValueError as error:
        import html
        return html.escape(str(error)) in explorer.sentence.value
    expected = expected if isinstance(expected, dict) else {"table": expected}
    return all(expected[name].equals(explorer.tables[name]) for name in expected)
"""
SHOWN = """() => window.jupyterapp.shell.currentWidget.content.widgets
  .flatMap(cell => cell.model.outputs?.toJSON() ?? [])
  .map(output => output.data?.['application/vnd.jupyter.widget-view+json']?.model_id).filter(Boolean)"""
WATCH = r"""([explorer, slider]) => { const box = document.querySelectorAll('.workbook-explorer')[explorer];
  const target = box.querySelectorAll('.noUi-target')[slider], chart = box.querySelector('[data-drawn]');
  let last = Infinity;
  window.moves = []; window.draws = [];
  window.onmousemove = () => { const value = Number(target.noUiSlider.get(true));
    if (Math.abs(value - last) > 1e-6) window.moves.push([performance.now(), last = value]); };  // not by rounding
  new MutationObserver(() => { window.draws.push([performance.now(), Number(chart.dataset.drawn)]) })
    .observe(chart, { attributes: true, attributeFilter: ['data-drawn'] }); }
"""
STORM = """async ([events, milliseconds]) => {
  const boxes = [...document.querySelectorAll('.workbook-explorer')];
  const pick = list => list[Math.floor(Math.random() * list.length)], keys = ['ArrowLeft', 'ArrowRight', 'Home', 'End'];
  const handles = boxes.flatMap(b => [...b.querySelectorAll('.noUi-handle, select, input[type=checkbox], button')])
    .filter(node => !node.textContent.includes('Copy'));
  const start = performance.now();
  for (let k = 0; k < events; k++) {
    const node = pick(handles);
    const key = new KeyboardEvent('keydown', { key: pick(keys), bubbles: true });
    if (node.matches('.noUi-handle')) node.dispatchEvent(key);
    else if (node.matches('select')) { node.selectedIndex = Math.floor(Math.random() * node.options.length);
      node.dispatchEvent(new Event('change', { bubbles: true })); }
    else node.click();
    const wait = start + (k + 1) * milliseconds / events - performance.now();
    if (wait > 0) await new Promise(resolve => setTimeout(resolve, wait));
  } }"""


def try_explorers(chapter, capsys) -> None:
    """Drag each explorer of a chapter that has run, printing how long a redraw took, then storm all of them.

    Of chapters that are not `STORMED` the first explorer alone, unless `make browsers` asks for all. The first that has
    a slider is spoilt at the end, so let this be the last thing that a test does.
    """
    chapter.execute(FIND)
    known = chapter.python("list(explorers)")
    chapter.explorers = [model for model in chapter.page.evaluate(SHOWN) if model in known]
    assert chapter.explorers, "a theory chapter has something to drag"
    # menus have no stops
    dragged = [chapter.python(f"bool(stops(explorers[{model!r}]))") for model in chapter.explorers]
    whole = THOROUGH or chapter.name[:2] in STORMED
    tried = [nth for nth, moves in enumerate(dragged) if moves][: None if whole else 1]
    drags = [check_drag(chapter, nth, chapter.explorers[nth]) for nth in tried]
    with capsys.disabled():
        print("", *drags, sep="\n")
    if whole:
        check_storm(chapter, dragged.index(True))


def drag_latencies(chapter, nth: int, model: str) -> list[float]:
    """Milliseconds from each change of a slider under the mouse to the chart that shows it, or a later one."""
    name = chapter.python(f"finest(explorers[{model!r}])")
    chapter.execute(f"seen = track(explorers[{model!r}], {name!r})")
    sliders = chapter.python(f"[n for n, c in explorers[{model!r}].controls.items() if hasattr(c, 'readout_format')]")
    box = chapter.panel.locator(".workbook-explorer").nth(nth)
    box.scroll_into_view_if_needed()
    chapter.page.evaluate(WATCH, [nth, sliders.index(name)])
    track = box.locator(".noUi-base").nth(sliders.index(name)).bounding_box()
    handle = box.locator(".noUi-handle").nth(sliders.index(name)).bounding_box()
    y = track["y"] + track["height"] / 2
    mouse = chapter.page.mouse
    mouse.move(handle["x"] + handle["width"] / 2, y)
    mouse.down()
    mouse.move(track["x"], y)
    chapter.settle()
    chapter.page.evaluate("() => { window.moves.length = window.draws.length = 0 }")
    chapter.execute("seen.clear()")
    for k in range(1, EVENTS + 1):
        mouse.move(track["x"] + track["width"] * k / EVENTS, y)
        chapter.page.wait_for_timeout(16)
    mouse.up()
    chapter.settle()
    moves, draws = chapter.page.evaluate("[window.moves, window.draws]")
    seen = chapter.python("seen")
    latencies = []
    for at, value in moves:
        version = next((version for version, setting in seen if setting >= value - 1e-9), None)
        if version is None:  # refused, in a sentence that `sound` expects; what was drawn before stays
            continue
        latencies.append(next(time for time, drawn in draws if drawn >= version) - at)
    return latencies


def check_drag(chapter, nth: int, model: str) -> str:
    """A drag ends with what the slider says, draws in order and removes no drawing; says how long it took.

    An explorer that its machine computes too slowly for following is drawn once, when the mouse lets go.
    """
    explorer, quick = chapter.python(f"[explorers[{model!r}].compute.__name__, explorers[{model!r}].quick]")
    stops = chapter.python(f"max(stops(explorers[{model!r}]).values())")
    chapter.settle()  # a redraw that is still on its way would be taken for an answer to the first move
    with chapter.no_flicker():
        latencies = drag_latencies(chapter, nth, model)
    assert len(latencies) >= min(10, stops - 1)
    assert min(latencies) > 0, "a chart that shows a move is drawn after it"
    assert chapter.python(f"sound(explorers[{model!r}])"), "what is drawn is not what the slider says"
    box = chapter.panel.locator(".workbook-explorer").nth(nth)
    drawn = box.locator(".workbook-live").get_attribute("data-drawn")
    assert int(drawn) == chapter.python(f"explorers[{model!r}].chart.version")
    chapter.shot(f"{chapter.name[:2]}-explorer-{nth}", box)
    assert chapter.errors == []
    p50, p95 = np.percentile(latencies, [50, 95])
    follows = "" if quick else ", drawn once the mouse lets go"
    moves = f"{len(latencies)} moves to chart in {p50:.0f} ms, 95 % within {p95:.0f} ms{follows}"
    return f"{chapter.name} {explorer}: {moves}"


def come_to_rest(chapter) -> None:
    """Wait until no control moves any more: Reset goes from the page to the kernel, to the page and to the kernel."""
    before = None
    while (now := chapter.python("[str(one.settings) for one in explorers.values()]")) != before:
        before = now
        chapter.settle()


def check_storm(chapter, spoilt: int) -> None:
    """Events over all controls leave what the last settings say, and no exception."""
    with chapter.no_flicker():
        chapter.page.evaluate(STORM, [STORM_EVENTS, 1000 * STORM_SECONDS])
        come_to_rest(chapter)
    for nth, model in enumerate(chapter.explorers):
        assert chapter.python(f"sound(explorers[{model!r}])"), "what is drawn is not what the controls say"
        box = chapter.panel.locator(".workbook-explorer").nth(nth)
        drawn = box.locator(".workbook-live").get_attribute("data-drawn")
        assert int(drawn) == chapter.python(f"explorers[{model!r}].chart.version")
        for _ in range(20):  # the code's message comes after the chart's
            code, shown = chapter.python(f"explorers[{model!r}].code"), box.locator(".workbook-code pre").inner_text()
            if shown.split() == code.split():
                break
            chapter.settle()
        assert shown.split() == code.split()
    assert chapter.python("complaints") == []
    assert chapter.errors == []
    # the trap is set right: an exception in a callback would have been seen
    chapter.execute(f"explorers[{chapter.explorers[spoilt]!r}].compute = lambda *_, **__: 1 / 0")
    handle = chapter.panel.locator(".workbook-explorer").nth(spoilt).locator(".noUi-handle").first
    for key in ("ArrowRight", "ArrowLeft") * 10:  # one alone moves nothing at an end, both at once nothing at all
        handle.press(key)
        chapter.settle()
        if "ZeroDivisionError" in str(chapter.python("complaints")):
            return
    raise AssertionError(f"nobody heard of an exception: {chapter.python('complaints')}")
