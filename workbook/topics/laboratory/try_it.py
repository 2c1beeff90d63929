"""TryIt: a button that samples two prompts before anything is trained, and shows them as the model gets them."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import ipywidgets

from workbook.topics.laboratory.preview import Preview, preview_html, preview_sentence, start_preview
from workbook.topics.laboratory.settings import Plan
from workbook.training.processes import kill
from workbook.training.run_config import RunConfig
from workbook.views.style import notice

BUTTONS = {
    "Try it": ("eye", "Two prompts as the model gets them, four completions each, their rewards; nothing is trained")
}
BUTTONS["Stop"] = ("stop", "End its process now; nothing is lost")


class TryIt:
    """A button, a line and what was sampled; `plan` gives the settings of now.

    Sampling is a process of its own, which Stop ends at once.
    """

    def __init__(self, plan: Callable[[], Plan]):
        self._plan, self._preview, self._thread, self._shown_for = plan, None, None, None
        self._lock, self._stopped = threading.Lock(), False
        self.button = ipywidgets.Button()
        self._look("Try it")
        self.button.on_click(lambda _: self.press())
        self.line = ipywidgets.HTML(layout={"max_width": "860px"})
        self.samples = ipywidgets.HTML(layout={"max_width": "860px", "max_height": "420px", "overflow": "auto"})
        self.samples.layout.display, self.samples.tabbable = "none", True  # what scrolls is reached by keys
        self.box = ipywidgets.VBox([self.line, self.samples])

    def press(self) -> None:
        """Begin, or end what has begun."""
        with self._lock:
            if self._thread is not None:
                self.stop()
                return
            planned = self._plan()
            if planned.config is None:
                sentences = (problem.sentence for problem in planned.problems if problem.severity == "error")
                self.line.value = notice(*sentences, error=True)
                return
            self._stopped, self.samples.layout.display = False, "none"
            self._look("Stop")
            self.line.value = notice("Starting ...")
            self._thread = threading.Thread(target=self._sample, args=(planned.config,), daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the process that samples, if there is one."""
        self._stopped = True
        if self._preview is not None:
            kill(self._preview.status())

    def changed(self, config: RunConfig | None) -> None:
        """Take samples off the page that are not those of the settings of now."""
        if self._shown_for is not None and (config is None or _sampled(config) != self._shown_for):
            self.samples.layout.display, self._shown_for = "none", None
            self.line.value = ""

    def _sample(self, config: RunConfig) -> None:
        folder = Path(tempfile.mkdtemp(prefix="workbook-preview-"))
        try:
            self._preview = start_preview(config, folder / "preview")
            self._show(self._follow(self._preview), config)
        except Exception as error:  # whatever it is, the page should say it
            self.line.value = notice(str(error), error=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            with self._lock:  # a click is a Stop before, and a new beginning afterwards
                self._preview = self._thread = None
                self._look("Try it")

    def _follow(self, preview: Preview) -> Preview:
        """Wait for the end; what it does meanwhile stands in the line."""
        began = time.monotonic()
        while preview.running:
            if self._stopped:  # before there was a process to end
                kill(preview.status())
            status = preview.status()
            self.line.value = notice(f"{status['message']} {time.monotonic() - began:.0f} s so far.", announced=False)
            time.sleep(0.2)
        return preview

    def _show(self, preview: Preview, config: RunConfig) -> None:
        status = preview.status()
        if status["state"] != "finished":
            message = "Stopped." if self._stopped else status["message"]
            self.line.value = notice(message, error=status["state"] == "failed")
            return
        result = preview.result()
        self.samples.value, self.line.value = preview_html(result), notice(preview_sentence(result))
        self.samples.layout.display, self._shown_for = "", _sampled(config)
        now = self._plan().config  # it may have changed while this was sampled
        self.changed(now)

    def _look(self, name: str) -> None:
        self.button.description, (self.button.icon, self.button.tooltip) = name, BUTTONS[name]


def _sampled(config: RunConfig) -> tuple:
    """What the samples of a config depend on."""
    where = (config.policy, config.quantization, config.lora, config.dtype, config.seed)
    what = (config.task, str(config.task_options), config.num_prompts, config.eval_prompts)
    return (*where, *what, config.trainer.get("max_completion_length"))
