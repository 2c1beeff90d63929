"""Chapter: a notebook open in JupyterLab, with hands (mouse, keyboard) and eyes (marks of a chart,
screenshots).
"""

import ast
import json
import os
import re
import time
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import TimeoutError, expect

SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},  # every cell is in the page
    "apputils-extension/notification": {"fetchNews": "false", "doNotDisturbMode": True},
}
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
FAILED = ".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.stderr']:has(.ansi-red-fg)"
DONE = f"""() => {{
  const cells = '{PANEL} .jp-CodeCell .jp-InputArea-prompt';
  const prompts = [...document.querySelectorAll(cells)];
  if (document.querySelector("{PANEL} {FAILED}")) return true;
  return prompts.length > 0 && prompts.every(e => /^\\[\\d+\\]:$/.test(e.textContent.trim())) }}"""
ASK = """async code => {
  const kernel =
    window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const request = {code: '', silent: true, store_history: false, user_expressions: {value: code}};
  const future = kernel.requestExecute(request);
  return (await future.done).content.user_expressions.value }"""
EXECUTE = """async code => {
  const kernel =
    window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  return (await kernel.requestExecute({code, silent: true, store_history: false}).done).content }"""
# Whether the notebook is open and its kernel idle, answered within a second: a page that is loading
# has no application yet. The idle marker alone races with the kernel's start, so the kernel itself
# is asked.
OPEN = """async path => { const open = async () => {
    await window.jupyterapp.restored;
    const place = { path, factory: 'Notebook' };
    const panel = await window.jupyterapp.commands.execute('docmanager:open', place);
    await panel.context.ready; await panel.sessionContext.ready;
    const kernel = panel.sessionContext.session?.kernel; if (!kernel) return false;
    await kernel.info;
    const cell = document.querySelector('.jp-NotebookPanel .jp-CodeCell');
    return kernel.status === 'idle' && cell !== null };
  const late = new Promise(resolve => setTimeout(resolve, 1000, false));
  return Promise.race([window.jupyterapp ? open() : false, late]) }"""
SAVE = "async () => { await window.jupyterapp.shell.currentWidget.context.save() }"
CLOSE = """async () => {
  const panels = [...window.jupyterapp.shell.widgets('main')].filter(one => one.context);
  for (const panel of panels) { await panel.sessionContext.shutdown(); panel.dispose(); } }"""
# of each output that is a widget what it shows; null while one of them, or what our modules draw in
# it, is on its way
SHOWN = """() => { const shown = [];
  for (const { model, outputArea } of window.jupyterapp.shell.currentWidget.content.widgets)
    for (let k = 0; k < (outputArea ? model.outputs.length : 0); k++) {
      if (!model.outputs.get(k).data['application/vnd.jupyter.widget-view+json']) continue;
      const output = outputArea.widgets[k].node.querySelector('.jp-OutputArea-output');
      const text = output.innerText.trim();
      const empty = '.workbook-live:not(:has(svg.marks)), .workbook-heatmap:empty,'
        + ' .workbook-predict:empty';
      if (text === 'Loading widget...' || output.querySelector(empty)) return null;
      const nothing = `nothing: ${model.sharedModel.source.slice(-60)}`;
      shown.push(output.firstElementChild ? 'widget' : text || nothing); }
  return shown }"""
WIDGETS_BACK = f"widgets => ({SHOWN})()?.filter(one => one === 'widget').length >= widgets"
OUTPUTS, CONTRAST = f"{PANEL} .jp-OutputArea", "color-contrast"
AXE_RUNS = (  # where axe looks, and for what
    ({"include": [OUTPUTS]}, {"rules": {CONTRAST: {"enabled": False}}}),
    ({"include": [OUTPUTS], "exclude": ["svg.marks"]}, {"runOnly": [CONTRAST]}),
)
# as `make release` sets it: every explorer dragged and stormed
THOROUGH = bool(os.environ.get("WORKBOOK_THOROUGH"))
WINDOW = {"width": 1280, "height": 1000}
HUNG = 600  # seconds after which a chapter is not slow but stuck
POLL = 200  # ms between two looks: a look at every frame makes the browser draw all the while
# What each chart has drawn, once the kernel has answered everything: messages of one kind are
# handled in order, and those of widgets have a thread of their own. What is still being drawn never
# looks the same twice.
ANSWERED = """async () => {
  const kernel =
    window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  await kernel.requestExecute({code: '', silent: true, store_history: false}).done;
  const comm = [...kernel._comms.values()].find(one => one.targetName === 'jupyter.widget');
  if (comm) await comm.send({method: 'custom', content: {}}).done;
  return [...document.querySelectorAll('[data-drawn]')].map(({ dataset: { drawn, pushed } }) =>
    pushed === undefined || Number(drawn) >= Number(pushed)
      ? drawn : `${drawn} at ${performance.now()}`).join() }"""
WATCH_REMOVALS = """selector => { window.removedDrawings = 0; const seen = n => n.nodeType === 1 &&
    (n.matches('svg, .vega-embed') || n.querySelector('svg.marks'));
  window.removals?.disconnect();
  window.removals = new MutationObserver(list => {
    for (const m of list) for (const n of m.removedNodes)
      if (seen(n)) window.removedDrawings += 1; });
  window.removals.observe(document.querySelector(selector), { childList: true, subtree: true }) }"""


class Chapter:
    """A chapter in JupyterLab's page; `errors` holds what the browser's console complained of while
    it was open.
    """

    def __init__(self, page, name: str, screenshots: Path):
        self.page, self.name, self.screenshots = page, name, screenshots
        self.errors: list[str] = []
        self.has_run = False
        self.panel = page.locator(PANEL)

    def _listen(self, message) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _fail(self, error) -> None:
        self.errors.append(str(error))

    # --- the notebook

    def open(self) -> None:
        """Open it in the page and wait for its kernel."""
        self.page.on("console", self._listen)
        self.page.on("pageerror", self._fail)
        self.page.set_viewport_size(WINDOW)
        self._open()

    def _open(self) -> None:
        end = time.monotonic() + 120
        while not self.page.evaluate(
            OPEN, f"notebooks/{self.name}"
        ):  # `wait_for_function` asks what is async once only
            assert time.monotonic() < end, f"{self.name} did not open within two minutes"
            self.page.wait_for_timeout(POLL)

    def reload(self) -> None:
        """What the browser's reload does; the kernel goes on."""
        self.page.reload()
        self._open()

    def run_all(self) -> None:
        """Run every cell and wait for the last; AssertionError with the text of one that failed."""
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
        self.page.wait_for_function(DONE, timeout=1000 * HUNG, polling=POLL)
        errors = self.panel.locator(FAILED)
        assert errors.count() == 0, errors.first.inner_text()
        self.has_run = True

    def save(self) -> None:
        self.command("docmanager:save")

    def command(self, name: str) -> None:
        """A command of JupyterLab, awaited."""
        self.page.evaluate("async name => { await window.jupyterapp.commands.execute(name) }", name)

    def change_theme(self, name: str) -> None:
        """JupyterLab's theme, "Light" or "Dark": a setting of all pages."""
        script = "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"
        self.page.evaluate(script, f"JupyterLab {name}")
        self.page.wait_for_function(
            f"document.body.dataset.jpThemeLight === '{str(name == 'Light').lower()}'"
        )
        self.settle()

    def reopen(self) -> None:
        """Save, shut the kernel down, close the notebook and open it again, as on the next day."""
        self.page.evaluate(SAVE)
        self.page.evaluate(CLOSE)
        self._open()

    def shown(self, widgets: int = 0) -> list[str]:
        """What the outputs that are widgets show, once all are drawn: "widget", or what stands in
        its place.

        So many widgets are waited for: what is not there at first may come with what the file
        brought.
        """
        with suppress(TimeoutError):
            self.page.wait_for_function(WIDGETS_BACK, arg=widgets, timeout=30_000, polling=POLL)
        return self.page.wait_for_function(SHOWN, timeout=120_000, polling=POLL).json_value()

    def grave(self) -> list[tuple[str, str]]:
        """What axe calls critical or serious in the outputs of the cells, in either theme: (rule,
        one of its places).

        JupyterLab's own parts around the outputs are not looked at, nor contrast within charts,
        which takes long.
        """
        problems = []
        for theme, (context, rules) in product(("Dark", "Light"), AXE_RUNS):
            self.change_theme(theme)
            options = {"resultTypes": ["violations"], "preload": False} | rules
            problems += (
                Axe().run(self.page, context=context, options=options).response["violations"]
            )
        return [
            (one["id"], one["nodes"][0]["html"])
            for one in problems
            if one["impact"] in ("serious", "critical")
        ]

    def close(self) -> None:
        """Shut the kernel down and close the notebook."""
        self.page.evaluate(CLOSE)
        self.page.remove_listener("console", self._listen)
        self.page.remove_listener("pageerror", self._fail)

    def leave(self) -> None:
        """Close the notebook; its kernel goes on, emptied but for what it imported, for the next
        one of this name.
        """
        self.execute("import ipywidgets; ipywidgets.Widget.close_all(); get_ipython().reset()")
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.dispose()")

    # --- its kernel

    def python(self, expression: str):
        """The value of an expression in the chapter's kernel, through JSON."""
        answer = self.page.evaluate(ASK, f"__import__('json').dumps({expression})")
        assert answer["status"] == "ok", (
            f"{expression}: {answer.get('ename')}: {answer.get('evalue')}"
        )
        return json.loads(ast.literal_eval(answer["data"]["text/plain"]))

    def execute(self, code: str) -> None:
        """Run statements in the chapter's kernel."""
        answer = self.page.evaluate(EXECUTE, code)
        assert answer["status"] == "ok", f"{code}: {answer.get('ename')}: {answer.get('evalue')}"

    # --- hands

    def control(self, label: str, nth: int = 0):
        """The widget with this description (the nth of them in the page)."""
        named = self.page.locator(
            ".widget-label", has_text=re.compile(rf"^\s*{re.escape(label)}\s*$")
        )
        return self.panel.locator(".widget-inline-hbox", has=named).nth(nth)

    def press(self, label: str, key: str, times: int = 1, nth: int = 0) -> None:
        """Focus a slider's handle and press a key some times."""
        handle = self.control(label, nth).locator(".noUi-handle")
        handle.focus()
        for _ in range(times):
            handle.press(key)
        self.settle()

    def choose(self, label: str, option: str, nth: int = 0) -> None:
        """Choose from a menu."""
        self.control(label, nth).locator("select").select_option(label=option)
        self.settle()

    def click(self, text: str, nth: int = 0) -> None:
        """Click the nth button with this text."""
        self.button(text, nth).click()
        self.settle()
        # the kernel asks the page, which moves the controls, which the kernel answers
        if text == "Reset":
            self.settle()

    def button(self, text: str, nth: int = 0):
        return self.panel.locator(f"button.jupyter-button:has-text('{text}')").nth(nth)

    def settle(self) -> None:
        """Wait until nothing moves any more: the kernel has answered everything, every live chart
        has drawn it.
        """
        self.page.wait_for_timeout(100)
        before = None
        for _ in range(10 * HUNG):
            now = self.page.evaluate(ANSWERED)
            if now == before:
                return
            before = now
            self.page.wait_for_timeout(100)
        raise AssertionError(f"the page is still moving after {HUNG} s")

    def run_study(self, stop: bool = False, nth: int = 0):
        """Press Run of the chapter's nth live study and wait for its end, or press Stop on the way;
        its box.
        """
        study = self.panel.locator(".workbook-live-study").nth(nth)
        run = study.get_by_role("button", name="Run")
        run.click()
        if stop:
            study.get_by_role("button", name="Stop").click()
        self.settle()  # the kernel has seen the click: what is said of an earlier run is gone
        expect(run).to_be_enabled(timeout=1000 * HUNG)
        said = re.compile("Stopped|Done") if stop else "Done."
        expect(study).to_contain_text(said, timeout=1000 * HUNG)
        return study

    # --- eyes

    def charts(self):
        """Every drawn chart, in the page's order: renderings of outputs and of widgets alike."""
        return self.panel.locator("svg.marks")

    def chart(self, title: str):
        """The chart that has this text in it, its title say."""
        return self.panel.locator("svg.marks", has=self.page.locator(f"text={title}")).first

    def marks(self, chart, kind: str = "") -> list[dict]:
        """What a chart's marks say of themselves: {axis or field title: text}; kind: bar, point,
        rect mark ...
        """
        labels = chart.locator("[role='graphics-symbol'][aria-label]").evaluate_all(
            "nodes => nodes.map(n => [n.getAttribute('aria-roledescription') || '',"
            " n.getAttribute('aria-label')])"
        )
        return [
            dict(part.rsplit(": ", 1) for part in text.split("; ") if ": " in part)
            for role, text in labels
            if kind in role
        ]

    @staticmethod
    def number(text: str) -> float:
        """A number as Vega writes it, with a minus sign of its own."""
        return float(text.replace("−", "-").replace(",", ""))

    @contextmanager
    def no_flicker(self):
        """Fail if a drawing is taken out of the page meanwhile."""
        self.page.evaluate(WATCH_REMOVALS, PANEL)
        yield
        assert self.page.evaluate("window.removedDrawings") == 0, (
            "a chart was removed and drawn anew"
        )

    def shot(self, name: str, element=None) -> None:
        """Bring an element into view; where `make release` asks for it a screenshot of it, or of
        the window.
        """
        if element:
            element.scroll_into_view_if_needed()
        if THOROUGH:
            self.take_screenshot(name, element)

    def take_screenshot(self, name: str, element=None) -> None:
        """A screenshot of an element, or of the window, in build/screenshots/."""
        self.screenshots.mkdir(parents=True, exist_ok=True)
        (element or self.page).screenshot(path=self.screenshots / f"{name}.png")


def write_settings(folder: Path) -> None:
    """JupyterLab's settings for tests, below `folder`."""
    for plugin, value in SETTINGS.items():
        path = folder / "@jupyterlab" / f"{plugin}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value))
