"""RunForm: a run by controls, with samples before it, the memory that it needs as they move, Start,
Stop and Compare.

    RunForm()                           # in a notebook, as a cell's last line
    RunForm("../data/configs/smollm2_chain_sum.yaml", QLORA)   # a config's settings, other controls

What the controls say is a config, which is checked, forecast and started as any other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import ipywidgets
import pandas as pd

from workbook.app import compare
from workbook.app.choices import (
    BASIC,
    FIELDS,
    TASKS,
    experiment,
    field_labels,
    files_here,
    first_config,
    first_values,
    in_form_words,
    parse_options,
    rewards_here,
)
from workbook.app.forecast import (
    HERE,
    MAX_OVER,
    Forecast,
    Trial,
    disk_sentence,
    doubts,
    forecast_at,
)
from workbook.app.memory import shape_and_prompt
from workbook.app.monitor import RunMonitor
from workbook.app.runs import load_run, start_run
from workbook.app.try_it import Sampling
from workbook.messages import reworded
from workbook.tasks import get_task, own_task
from workbook.training.checks import check_run, validate
from workbook.training.config import RunConfig, dump_settings
from workbook.views.explorer import Snippet, control_grid, value_of
from workbook.views.live import LiveChart, close, display_widget
from workbook.views.memory import memory_fit_chart, memory_rows
from workbook.views.style import notice

NOTHING = pd.DataFrame({"part": ["weights"], "mib": [0.0], "phase": ["always"]})
WIDE = {"max_width": "860px"}
# endings of files of prompts; of adapters, of a language model
ROWS, RANK = (".csv", ".jsonl", ".json", ".parquet"), 8
START = "Train in a process of its own"


class Asked:
    """A button that asks something of the settings in a process of its own, and the answer below,
    greyed once they are others.

    job: config -> an object with ended(), progress(), answer() -> (sentence, HTML, whether it
    failed), close().
    config: says what the settings are now, or raises a ValueError.
    """

    def __init__(self, name: str, icon: str, tooltip: str, job: Callable, config: Callable):
        self._name, self._icon, self._make, self._config = name, icon, job, config
        self._job, self._of, self._said, self._lock = None, None, ("", False), threading.Lock()
        self.line, self.more = ipywidgets.HTML(layout=WIDE), ipywidgets.HTML(layout=WIDE)
        self.button = _button(name, icon, tooltip, self.ask, self._say)
        self.box = ipywidgets.VBox([self.line, self.more])

    def ask(self) -> None:
        """Ask, or end what is going on."""
        with self._lock:
            if self._job is not None:
                self.close()
                return
            self._of = self._config()
            job = self._job = self._make(self._of)
        self.more.value, self.box.layout.opacity = "", "1"
        self.button.description, self.button.icon = "Stop", "stop"
        threading.Thread(target=self._follow, args=(job,), daemon=True).start()

    def close(self) -> None:
        """End what is going on."""
        if (job := self._job) is not None:
            self._job = None
            job.close()

    def look(self, config: RunConfig | None) -> None:
        """Grey the answer if it is of other settings than these."""
        stale = self._of is not None and config != self._of
        self.box.layout.opacity = "0.45" if stale else "1"
        if self._job is None:
            self._say(*self._said, stale=stale)

    def _follow(self, job) -> None:
        while self._job is job and not job.ended():
            self.line.value = notice(job.progress(), announced=False)
            time.sleep(0.2)
        if self._job is job:
            sentence, more, failed = job.answer()
            self.close()
            self.more.value = more
            self._say(sentence, failed)
            self.look(_or_none(self._config))
        elif self._job is None:
            self._say("Stopped.", failed=False)
        if self._job is None:
            self.button.description, self.button.icon = self._name, self._icon

    def _say(self, sentence: str, failed: bool = True, stale: bool = False) -> None:
        self._said = sentence, failed
        shown = f"Of other settings: {sentence}" if stale and sentence else sentence
        self.line.value = notice(shown, error=failed and not stale)


class RunForm:
    """Controls over a config, with the file they make, samples, memory, and a monitor with Start,
    Stop and Resume.

    config: what the controls begin with and change; by default an experiment on the chain task.
    fields: names of FIELDS to show; by default BASIC ones, and all others folded below them.
    whole: False leaves samples, memory and comparison out.  card: of CARDS, to forecast for beside
    this machine. target, beside: as of `RunMonitor`.

    It corrects what follows from a choice: a file of prompts sets how many there are, a language
    model adapters.

    Attributes: `controls`, by name; `monitor`; `started`, the runs begun so far.
    """

    def __init__(
        self,
        config=None,
        fields=None,
        whole: bool = True,
        card: str = "T4, 16 GB",
        target=None,
        beside=None,
    ):
        self.base = first_config() if config is None else RunConfig.load(config)
        self.card, self.started, self._anyway = card, [], None
        self._known: dict[tuple, tuple] = {}
        self._asked, self._rows, self._looking = 0, "", None
        shown = BASIC if fields is None else fields
        names = [*shown, *(name for name in FIELDS if fields is None and name not in shown)]
        first = first_values(self.base, names)
        self.controls = {name: FIELDS[name].make(first[name]) for name in names}
        self._labels, self._most = (
            field_labels(self.controls),
            getattr(self.controls.get("num_prompts"), "max", 0),
        )
        for name, control in self.controls.items():
            control.tooltip = FIELDS[name].help
            control.observe(self._changed, "value")
        if "model" in self.controls:
            self.controls["model"].observe(self._fit_to_model, "value")
        self.line, self.file_line, self.effect_line = (
            ipywidgets.HTML(layout=WIDE) for _ in range(3)
        )
        self.bar = LiveChart(
            memory_fit_chart, **memory_rows({HERE: (NOTHING, 0.0), card: (NOTHING, 0.0)})
        )
        self.snippet, self.effects = (
            Snippet(title="The same as a file for python -m workbook train"),
            ipywidgets.VBox(),
        )
        self.monitor = RunMonitor(start=self.start, target=target, beside=beside)
        samples = (
            "Two prompts, four completions of each and their rewards; of a reward of yours, what"
            " else it pays"
        )
        self.sampled = Asked("Try it", "eye", samples, Sampling, self._checked)
        trial = "Train three batches, and tell how long all of them will take"
        self.timed = Asked("Time it", "clock-o", trial, Trial, self._checked)
        for asked in (self.sampled, self.timed):  # a file may have been edited since
            asked.button.on_click(self._changed)
        pairs = "Compare what was started here, and the runs chosen beside, by seed"
        self.compare_button = _button("Compare", "bar-chart", pairs, self.compare, self._say_effect)
        look = {"layout": {"flex": "1 1 auto"}, "style": {"description_width": "initial"}}
        self.earlier = ipywidgets.SelectMultiple(description="and earlier runs", rows=4, **look)
        self.upload = ipywidgets.FileUpload(
            accept=",".join((*ROWS, ".py")), multiple=True, description="Upload"
        )
        self.upload.tooltip = (
            "Copy your own prompts or reward to beside this notebook, and take them"
        )
        self.upload.observe(self._uploaded, "value")
        self.box = ipywidgets.VBox(self._parts(shown, whole)).add_class("workbook-form")
        self._offer()
        self._changed()

    def _parts(self, shown, whole: bool) -> list[ipywidgets.Widget]:
        parts = [control_grid(*(self.controls[name] for name in shown))]
        if folded := [control for name, control in self.controls.items() if name not in shown]:
            more = ipywidgets.Accordion([control_grid(*folded)], selected_index=None)
            more.set_title(0, "All settings")
            parts.append(more)
        if not whole:
            return [*parts, self.line, self.snippet, self.monitor.box]
        tried = [
            ipywidgets.HBox([self.upload, self.sampled.button, self.timed.button]),
            self.file_line,
        ]
        tried += [self.timed.box, self.sampled.box]
        compared = [
            ipywidgets.HBox([self.compare_button, self.earlier]),
            self.effect_line,
            self.effects,
        ]
        return [*parts, self.line, *tried, self.monitor.box, *compared, self.bar, self.snippet]

    # --- what it says

    def config(self) -> RunConfig:
        """The run that the controls describe; ValueError, in one sentence, if that can't be."""
        values = {name: value_of(control) for name, control in self.controls.items()}
        values |= {name: value.strip() for name, value in values.items() if isinstance(value, str)}
        if "task_options" in values:
            values["task_options"] = parse_options(values["task_options"])
        return experiment(self.base, **values)

    def start(self):
        """Start the run; ValueError, in a sentence, if it can't be, and once where it would not
        fit.
        """
        config = self._checked()
        forecasts = self._forecasts(config)
        if forecasts and forecasts[0].over > MAX_OVER:
            raise ValueError(forecasts[0].sentence)
        if forecasts and not forecasts[0].fits and self._anyway != config:
            self._anyway, self.monitor.start_button.description = config, "Start anyway"
            raise ValueError(f"{forecasts[0].sentence} Nothing was started; Start anyway would.")
        self.timed.close()  # a trial would share the machine with it
        run = start_run(config)
        self.started.append(run)
        return run

    def _checked(self) -> RunConfig:
        """The run that the controls describe, checked wholly; ValueError in the form's words."""
        try:
            config = self.config()
            check_run(config)
        except ValueError as error:
            raise reworded(error, in_form_words(str(error), self._labels)) from None
        return config

    def _changed(self, _=None) -> None:
        """Check what the controls say now, and forecast it; what must be looked up first is looked
        up in a thread.
        """
        self._asked += 1
        self.monitor.start_button.description, self._anyway = "Start", None
        config = _or_none(self.config)
        for asked in (self.sampled, self.timed):
            asked.look(config)
        try:
            config = self.config()
            wrong = [
                problem.sentence for problem in validate(config) if problem.severity == "error"
            ]
        except ValueError as error:
            wrong = [str(error)]
        if wrong:
            self._refuse(*wrong)
            return
        self.snippet.text = dump_settings(asdict(config))
        if _sources(config) in self._known:
            self._show_forecasts(config)
        else:
            self._refuse(
                "Looking up the model's shape and the task's longest prompt ...", error=False
            )
            self._looking = threading.Thread(
                target=self._look_up, args=(config, self._asked), daemon=True
            )
            self._looking.start()

    def wait(self) -> None:
        """Wait until what the forecast needs was looked up."""
        while (looking := self._looking) is not None and looking.is_alive():
            looking.join()

    def _look_up(self, config: RunConfig, asked: int) -> None:
        """Look up what the forecast needs of a model and a task; the newest question alone is
        answered.
        """
        try:
            self._fit_to_rows(config)
            check_run(config)
            try_reward(config)
            self._known[_sources(config)] = shape_and_prompt(config)
        except Exception as error:  # whatever it is, the page should say it
            if asked == self._asked:
                self._refuse(str(error))
            return
        if asked == self._asked:
            self._show_forecasts(config)

    def _refuse(self, *sentences: str, error: bool = True) -> None:
        sentences = [in_form_words(sentence, self._labels) for sentence in sentences]
        self.line.value, self.bar.layout.opacity = notice(*sentences, error=error), "0.35"
        if error:
            self.snippet.text = ""
        self._allow_start(not error, sentences[0])

    def _allow_start(self, may: bool, why_not: str = "") -> None:
        running = self.monitor.run is not None and self.monitor.run.running
        self.monitor.start_button.disabled = running or not may
        self.monitor.start_button.tooltip = START if may else why_not

    def _forecasts(self, config: RunConfig) -> list[Forecast]:
        """What the run needs here and on a card; nothing where that isn't known, of a model of
        another kind say.
        """
        try:
            return [
                forecast_at(place, config, *self._known[_sources(config)])
                for place in (HERE, self.card)
            ]
        except (KeyError, ValueError):
            return []

    def _show_forecasts(self, config: RunConfig) -> None:
        """Say what the run needs, and what is doubtful."""
        forecasts = self._forecasts(config)
        lines = [
            notice(self._rows),
            *(notice(one.sentence, error=not one.fits) for one in forecasts),
        ]
        if forecasts:
            lines.append(notice(disk_sentence(config, forecasts[0].table)))
            self.bar.push(**memory_rows({one.place: (one.table, one.free) for one in forecasts}))
        else:
            lines.append(
                notice(
                    f"{config.policy} is of a kind whose memory can't be forecast; it can be"
                    " trained."
                )
            )
        self.bar.layout.opacity = "1" if forecasts else "0.35"
        self.line.value = "".join(
            [*lines, notice(*doubts(config, *self._known[_sources(config)]), error=True)]
        )
        self._allow_start(
            not forecasts or forecasts[0].over <= MAX_OVER, "It needs more than twice what is free."
        )

    # --- what it corrects

    def _fit_to_rows(self, config: RunConfig) -> None:
        """Let the number of prompts end at what a file of prompts has, and a batch at that."""
        if (count := self.controls.get("num_prompts")) is None:
            return
        most = trainable_rows(config)
        self._rows = (
            f"{config.task.removeprefix('own:')}: {most} prompts to train on." if most else ""
        )
        count.max = most or self._most
        if most and "prompts" in self.controls and (batch := self.controls["prompts"]).value > most:
            batch.value = max(value for _, value in batch.options if value <= most)

    def _fit_to_model(self, change) -> None:
        """Train adapters of a language model, all weights of the toy; it has no chat template."""
        toy = change["new"].strip() == "bundled"
        if (lora := self.controls.get("lora")) is not None and (toy or not lora.value):
            lora.value = 0 if toy else RANK
        if toy and "chat" in self.controls:
            self.controls["chat"].value = False

    def _uploaded(self, change) -> None:
        """Put files beside the notebook, and take them as prompts and reward."""
        sentences = []
        for file in change["new"]:
            path = Path(Path(file["name"]).name)
            if path.exists():  # none is overwritten
                sentences.append(f"{path} is here already and was left as it is; rename yours.")
                continue
            path.write_bytes(bytes(file["content"]))
            sentences.append(f"{path} was saved beside this notebook.")
            functions = [name for name in rewards_here() if name.startswith(f"{path}:")]
            if path.suffix == ".py" and not functions:
                sentences.append("It has no function that begins with def f(completion, answer).")
            elif path.suffix == ".py" and "reward" in self.controls:
                self.controls["reward"].value = functions[0]
            elif "task" in self.controls:
                self.controls["task"].value = f"own:{path}"
        self._offer()
        self.file_line.value = notice(*sentences)

    def _offer(self) -> None:
        """Offer the files beside the notebook, and the runs that have finished."""
        offered = {
            "task": [*TASKS, *map("own:{}".format, files_here(*ROWS))],
            "reward": rewards_here(),
        }
        for name in offered.keys() & self.controls.keys():
            self.controls[name].options = offered[name]
        chosen, mine = self.earlier.value, {run.folder.resolve() for run in self.started}
        self.earlier.options = [
            (label, run) for label, run in compare.finished_runs() if run not in mine
        ]
        self.earlier.value = [run for _, run in self.earlier.options if run in chosen]
        self.earlier.layout.display = "" if self.earlier.options else "none"

    # --- comparison

    def compare(self) -> None:
        """Compare finished runs, those started here and those chosen; the first one's setting is
        the baseline.
        """
        self._offer()
        runs = [*self.started, *map(load_run, self.earlier.value)]
        if not runs:
            raise ValueError("Nothing was started here; choose earlier runs, beside the button.")
        tables = compare.run_tables(runs)
        curves, lines, chart = (
            tables["curves"],
            ["One setting: change one, start again, and compare."],
            None,
        )
        if tables["outcomes"]["setting"].nunique() > 1:
            compared = compare.compare_settings(tables["outcomes"])
            lines, chart = (
                compare.effect_lines(compared["effects"]),
                compare.comparison_chart(curves, **compared),
            )
        for old in self.effects.children:
            close(old)
        self.effects.children = (LiveChart(chart or compare.reward_curves_chart(curves)),)
        self.effect_line.value = notice(*lines)

    def _say_effect(self, sentence: str) -> None:
        self.effect_line.value = notice(in_form_words(sentence, self._labels), error=True)

    # --- on the page

    def _ipython_display_(self, **_) -> None:
        # the picture that stays
        display_widget(self.box, self.bar if self.bar in self.box.children else self.monitor.chart)

    def close(self) -> None:
        """Take it off the page and free it; a run goes on."""
        self.sampled.close()
        self.timed.close()
        close(self.box)


def trainable_rows(config: RunConfig) -> int:
    """How many rows of a task's own file are left to train on; 0 for a task without one."""
    if not config.task.startswith("own:"):
        return 0
    task = own_task(config.task.removeprefix("own:"), lambda completion, answer: 0.0)
    return task.most(config.eval_prompts, config.seed)


def try_reward(config: RunConfig) -> None:
    """Call a reward of one's own on the first row's answer and on nothing; ValueError, in its
    sentence, if it fails.
    """
    if config.task.startswith("own:"):
        task = get_task(config.task, **config.task_options)
        row = task.dataset(1, config.seed)[0]
        columns = {name: [value] * 2 for name, value in row.items() if name != "prompt"}
        task.reward([row["prompt"]] * 2, [row["answer"], ""], **columns)


def _or_none(config: Callable) -> RunConfig | None:
    try:
        return config()
    except ValueError:
        return None


def _button(
    name: str, icon: str, tooltip: str, act: Callable[[], None], say: Callable[[str], None]
):
    """A button that does something, and says why it could not."""
    button = ipywidgets.Button(description=name, icon=icon, tooltip=tooltip)

    def answer(_) -> None:
        try:
            act()
        except ValueError as error:
            say(str(error))

    button.on_click(answer)
    return button


def _sources(config: RunConfig) -> tuple:
    """What `shape_and_prompt` depends on."""
    return config.policy, config.task, repr(config.task_options), config.num_prompts, config.seed
