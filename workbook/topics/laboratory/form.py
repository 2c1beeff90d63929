"""RunForm: a run by controls, with samples before it, the memory that it needs as they move, Start, Stop and Compare.

    RunForm()                                                    # in a notebook, as a cell's last line
    RunForm("../data/configs/smollm2_chain_sum.yaml", QLORA)     # a config's own settings, other controls

What the controls say is a config, which is checked, forecast and started as any other.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import ipywidgets
import pandas as pd

from workbook.policies.models import free_mib
from workbook.topics.laboratory import compare
from workbook.topics.laboratory.choices import BASIC, FIELDS, experiment, first_config, first_values, parse_options
from workbook.topics.laboratory.try_it import read_samples, samples_html, samples_sentence, start_sampling
from workbook.training.checks import check_run, validate
from workbook.training.config import RunConfig, dump_yaml
from workbook.training.memory import CARDS, forecast_shape, peak_mib, run_device, shape_and_prompt
from workbook.training.runs import start_run
from workbook.views.explorer import Snippet, control_grid, value_of
from workbook.views.live import LiveChart, close, show
from workbook.views.memory import memory_fit_chart, memory_rows
from workbook.views.monitor import RunMonitor
from workbook.views.style import notice

HERE, GIB = "this machine", 1024.0
NOTHING = pd.DataFrame({"part": ["weights"], "mib": [0.0], "phase": ["always"]})
WIDE = {"max_width": "860px"}


class RunForm:
    """Controls over a config, with the file they make, samples, memory, and a monitor with Start, Stop and Resume.

    config: what the controls begin with and change; by default an experiment on the chain task.
    fields: names of FIELDS to show; by default BASIC ones, and all others folded below them.
    whole: False leaves samples, memory and comparison out.  card: of CARDS, to forecast for beside this machine.
    target, beside: as of `RunMonitor`.

    Attributes: `controls`, by name; `monitor`; `started`, the runs begun so far.
    """

    def __init__(self, config=None, fields=None, whole: bool = True, card: str = "T4, 16 GB", target=None, beside=None):
        self.base = first_config() if config is None else RunConfig.load(config)
        self.card, self.started, self._anyway = card, [], None
        self._known: dict[tuple, tuple] = {}
        self._asked, self._sampling, self._lock = 0, None, threading.Lock()
        shown = BASIC if fields is None else fields
        first = first_values(self.base)
        names = [*shown, *(name for name in FIELDS if fields is None and name not in shown)]
        self.controls = {name: FIELDS[name].make(first[name]) for name in names}
        for name, control in self.controls.items():
            control.tooltip = FIELDS[name].help
            control.observe(self._changed, "value")
        self.line, self.samples_line, self.effect_line = (ipywidgets.HTML(layout=WIDE) for _ in range(3))
        self.samples = ipywidgets.HTML(layout=WIDE | {"max_height": "420px", "overflow": "auto", "display": "none"})
        self.samples.tabbable = True  # what scrolls is reached by keys
        self.bar = LiveChart(memory_fit_chart, **memory_rows({HERE: (NOTHING, 0.0), card: (NOTHING, 0.0)}))
        self.snippet, self.effects = Snippet(), ipywidgets.VBox()
        self.monitor = RunMonitor(start=self.start, target=target, beside=beside)
        self.try_button = _button(
            "Try it", "eye", "Two prompts, four completions of each and their rewards", self.try_it
        )
        self.compare_button = _button("Compare", "bar-chart", "Compare what was started here, by seed", self.compare)
        self.upload = ipywidgets.FileUpload(accept=".csv,.jsonl,.py", multiple=True, description="Upload")
        self.upload.tooltip = "Copy your own prompts or reward to beside this notebook"
        self.upload.observe(self._uploaded, "value")
        self.box = ipywidgets.VBox(self._parts(shown, whole)).add_class("workbook-form")
        self._changed()

    def _parts(self, shown, whole: bool) -> list[ipywidgets.Widget]:
        def fold(title: str, inside) -> ipywidgets.Accordion:
            folded = ipywidgets.Accordion([inside], selected_index=None)
            folded.set_title(0, title)
            return folded

        file = fold("The same as a file for python -m workbook train", self.snippet)
        parts = [control_grid(*(self.controls[name] for name in shown))]
        if folded := [control for name, control in self.controls.items() if name not in shown]:
            parts.append(fold("All settings", control_grid(*folded)))
        if not whole:
            return [*parts, self.line, file, self.monitor.box]
        tried = [ipywidgets.HBox([self.try_button, self.upload]), self.samples_line, self.samples]
        return [*parts, self.line, self.bar, file, *tried, self.monitor.box, self.compare_button, self.effect_line,
                self.effects]  # fmt: skip

    # --- what it says

    def config(self) -> RunConfig:
        """The run that the controls describe; ValueError, in one sentence, if that can't be."""
        values = {name: value_of(control) for name, control in self.controls.items()}
        values |= {name: value.strip() for name, value in values.items() if isinstance(value, str)}
        if "task_options" in values:
            values["task_options"] = parse_options(values["task_options"])
        return experiment(self.base, **values)

    def start(self):
        """Start the run; ValueError, in a sentence, if it can't be, and once where it would not fit."""
        config = self.config()
        check_run(config)
        known = self._known.get(_sources(config))
        if known and self._anyway != config and not (forecast := self._forecast(config, HERE, *known)).fits:
            self._anyway, self.monitor.start_button.description = config, "Start anyway"
            raise ValueError(f"{forecast.sentence} Nothing was started; Start anyway would.")
        run = start_run(config)
        self.started.append(run)
        return run

    def _changed(self, _=None) -> None:
        """Check what the controls say now, and forecast it; what must be looked up first is looked up in a thread."""
        self._asked += 1
        self.monitor.start_button.description, self._anyway = "Start", None
        self.samples.layout.display, self.samples_line.value = "none", ""  # they are of other settings
        try:
            config = self.config()
            wrong = [problem.sentence for problem in validate(config) if problem.severity == "error"]
        except ValueError as error:
            wrong = [str(error)]
        if wrong:
            self._refuse(*wrong)
            return
        self.snippet.text = dump_yaml(asdict(config))
        if _sources(config) in self._known:
            self._show_memory(config)
        else:
            self._refuse("Looking up the model's shape and the task's longest prompt ...", error=False)
            threading.Thread(target=self._look_up, args=(config, self._asked), daemon=True).start()

    def _look_up(self, config: RunConfig, asked: int) -> None:
        """Look up what the forecast needs of a model and a task; the newest question alone is answered."""
        try:
            check_run(config)
            self._known[_sources(config)] = shape_and_prompt(config)
        except Exception as error:  # whatever it is, the page should say it
            if asked == self._asked:
                self._refuse(str(error))
            return
        if asked == self._asked:
            self._show_memory(config)

    def _refuse(self, *sentences: str, error: bool = True) -> None:
        self.line.value, self.bar.layout.opacity = notice(*sentences, error=error), "0.35"
        if error:
            self.snippet.text = ""
        self.monitor.start_button.disabled = error
        self.monitor.start_button.tooltip = sentences[0] if error else "Train in a process of its own"

    # --- memory

    def _forecast(self, config: RunConfig, place: str, shape, prompt_length: int) -> Forecast:
        """What a run needs at a place, beside what is free there."""
        device = run_device(config).type if place == HERE else "cuda"
        free = free_mib(device) if place == HERE else CARDS[place] * GIB
        return Forecast(place, forecast_shape(config, shape, prompt_length, frozen_dtype(config, place), device), free)

    def _show_memory(self, config: RunConfig) -> None:
        try:
            forecasts = [self._forecast(config, place, *self._known[_sources(config)]) for place in (HERE, self.card)]
        except ValueError as error:  # a model of another kind: it can be trained, but not forecast
            self._refuse(str(error), error=False)
            return
        self.bar.push(**memory_rows({one.place: (one.table, one.free) for one in forecasts}))
        self.bar.layout.opacity = "1"
        self.line.value = "".join(notice(one.sentence, error=not one.fits) for one in forecasts)
        running = self.monitor.run is not None and self.monitor.run.running
        self.monitor.start_button.disabled, self.monitor.start_button.tooltip = running, "Train in a process of its own"

    # --- samples

    def try_it(self) -> None:
        with self._lock:
            if self._sampling is not None:
                self._sampling.kill()
                return
            folder = Path(tempfile.mkdtemp(prefix="workbook-try-"))
            config = self.config()
            self._sampling = start_sampling(config, folder / "samples")
        self.samples.layout.display = "none"
        self.try_button.description, self.try_button.icon = "Stop", "stop"
        threading.Thread(target=self._follow, args=(self._sampling, folder, self._asked), daemon=True).start()

    def _follow(self, process, folder: Path, asked: int) -> None:
        began = time.monotonic()
        while process.poll() is None:
            self.samples_line.value = notice(f"Sampling, {time.monotonic() - began:.0f} s so far.", announced=False)
            time.sleep(0.2)
        result = read_samples(folder / "samples")
        shutil.rmtree(folder, ignore_errors=True)
        self._sampling = None
        self.try_button.description, self.try_button.icon = "Try it", "eye"
        if process.returncode < 0:
            self.samples_line.value = notice("Stopped.")
        elif "error" in result:
            self.samples_line.value = notice(result["error"], error=True)
        elif asked == self._asked:  # else the settings have changed since
            self.samples_line.value, self.samples.value = notice(samples_sentence(result)), samples_html(result)
            self.samples.layout.display = ""
        else:
            self.samples_line.value = ""

    def _uploaded(self, change) -> None:
        sentences = []
        for file in change["new"]:
            path = Path(Path(file["name"]).name)
            if path.exists():  # none is overwritten
                sentences.append(f"{path} is here already and was left as it is; rename yours.")
                continue
            path.write_bytes(bytes(file["content"]))
            use = f"reward: {path}:score among the task options" if path.suffix == ".py" else f"own:{path} as the task"
            sentences.append(f"{path} was saved; put {use}.")
        self.samples_line.value = notice(*sentences)

    # --- comparison

    def compare(self) -> None:
        """Compare the finished runs that were started here; the first one's setting is the baseline."""
        tables = compare.run_tables(self.started)
        curves, lines, chart = tables["curves"], ["One setting: change one, start again, and compare."], None
        if tables["outcomes"]["setting"].nunique() > 1:
            compared = compare.compare_settings(tables["outcomes"])
            lines, chart = compare.effect_lines(compared["effects"]), compare.comparison_chart(curves, **compared)
        for old in self.effects.children:
            close(old)
        self.effects.children = (LiveChart(chart or compare.curves_chart(curves)),)
        self.effect_line.value = notice(*lines)

    # --- on the page

    def _ipython_display_(self, **_) -> None:
        show(self.box, self.bar if self.bar in self.box.children else self.monitor.chart)  # the picture that stays

    def close(self) -> None:
        """Take it off the page and free it; a run goes on."""
        if self._sampling is not None:
            self._sampling.kill()
        close(self.box)


class Forecast(NamedTuple):
    """Memory of a run at a place: the table of `memory_forecast`, and MiB that are free there."""

    place: str
    table: pd.DataFrame
    free: float

    @property
    def fits(self) -> bool:
        return peak_mib(self.table) <= self.free

    @property
    def sentence(self) -> str:
        cure = "it does not fit; take more micro-batches a step, gradient checkpointing, LoRA with NF4, or fewer tokens"
        needs = f"{self.place}: {peak_mib(self.table) / GIB:.3g} GiB of {self.free / GIB:.3g} GiB"
        return f"{needs}, {'it fits' if self.fits else cure}."


def frozen_dtype(config: RunConfig, place: str):
    """The dtype of weights at a place: on a T4-class card half precision, as the loader chooses there."""
    import torch

    from workbook.policies.models import as_dtype

    frozen = bool(config.quantization or config.lora)
    if place == HERE:
        return as_dtype(config.dtype, run_device(config), frozen=frozen)[0]
    if config.dtype != "auto":
        return getattr(torch, config.dtype)
    return (torch.float16 if place.startswith("T4") else torch.bfloat16) if frozen else torch.float32


def _button(name: str, icon: str, tooltip: str, act: Callable[[], None]) -> ipywidgets.Button:
    """A button that does something, and shows in its tooltip why it could not."""
    button = ipywidgets.Button(description=name, icon=icon, tooltip=tooltip)

    def answer(_) -> None:
        try:
            act()
            button.tooltip = tooltip
        except ValueError as error:
            button.tooltip = str(error)

    button.on_click(answer)
    return button


def _sources(config: RunConfig) -> tuple:
    """What `shape_and_prompt` depends on."""
    return config.policy, config.task, repr(config.task_options), config.num_prompts, config.seed
