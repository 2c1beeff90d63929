"""Controls that say what to train: all choices of an experiment, or a few over a config, with a monitor's Start.

The shells only call the `start` that they are given; what is chosen becomes settings in `settings`.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature

import ipywidgets
import pandas as pd

from workbook.theory.choices import ESTIMATORS, STRATEGIES
from workbook.topics.laboratory.settings import (
    LABELS,
    LOSSES,
    MENUS,
    VARIABLE,
    experiment,
    overrides,
    parse_options,
    parse_values,
)
from workbook.views.explorer import Snippet, log_slider, menu, slider
from workbook.views.live import close, show
from workbook.views.monitor import RunMonitor
from workbook.views.style import notice

SECTIONS = {
    "Model": ("model", "quantization", "lora"),
    "Task": ("task", "task_options", "num_prompts", "max_tokens", "eval_prompts"),
    "Objective": ("advantage_estimator", "ratio", "clipping", "group_transform", "loss_type"),
    "Batches": ("prompts", "group_size", "mini_batches", "batching", "reuse", "accumulation"),
    "Optimizer": ("optimizer", "learning_rate", "max_grad_norm", "steps"),
    "Once, or side by side": ("seeds", "vary", "values"),
}
RANGES = {  # of sliders over integers: the least, the most where an experiment does not begin beyond it, and the label
    "steps": (1, 200, "optimizer steps"),
    "max_tokens": (1, 512, "tokens at most"),
    "num_prompts": (1, 2048, "prompts of the task"),
    "eval_prompts": (0, 128, "held-out prompts"),
}
TEXT = {"layout": {"width": "420px"}, "style": {"description_width": "170px"}, "continuous_update": False}


class Choices:
    """Menus, sliders and text fields for `plan`; `values()` is what they say, `observe(f)` calls f at each change.

    start: choices to begin with, as for `experiment`.
    """

    def __init__(self, **start):
        defaults = {key: parameter.default for key, parameter in signature(experiment).parameters.items()}
        first = defaults | {"task_options": {}} | start
        self.model = _combobox(first["model"], ["bundled", "smollm2-135m"], "model")
        self.task = _combobox(first["task"], ["chain", "gym:chain_sum", "hub:", "own:"], "task")
        options = ", ".join(f"{key}: {value}" for key, value in first["task_options"].items())
        self.options = ipywidgets.Text(value=options, description="task options", **TEXT)
        # by what is shown, since a menu whose value is None shows nothing; what one begins with may be no menu's option
        self.options_of = {
            key: options if first[key] in options.values() else options | {str(first[key]): first[key]}
            for key, (_, options) in MENUS.items()
        }
        self.menus = {
            key: menu(next(name for name, value in options.items() if value == first[key]), list(options), LABELS[key])
            for key, options in self.options_of.items()
            if key != "advantage_estimator"
        }
        estimators = list(self.options_of.pop("advantage_estimator"))  # or own:<file.py>:<function>
        self.estimator = _combobox(first["advantage_estimator"], estimators, LABELS["advantage_estimator"])
        self.sliders = {"learning_rate": log_slider(first["learning_rate"], -6, 0, LABELS["learning_rate"])}
        for key, (least, most, label) in RANGES.items():
            self.sliders[key] = slider(first[key], least, max(most, first[key]), 1, label)
        self.seeds = slider(1, 1, 6, 1, "seeds")
        self.vary = menu("", [("nothing but seeds", ""), *((LABELS[key], key) for key in VARIABLE)], "vary")
        self.swept = ipywidgets.Text(value="", description="its values", **TEXT)
        self.vary.observe(lambda _: self._propose(), "value")
        for field in (*self.sliders.values(), self.seeds):
            field.continuous_update = False
        texts = {"model": self.model, "task": self.task, "task_options": self.options}
        texts |= {"advantage_estimator": self.estimator}
        sweep = {"seeds": self.seeds, "vary": self.vary, "values": self.swept}
        self.fields = texts | self.menus | self.sliders | sweep
        self.box = ipywidgets.VBox(
            [_section(title, [self.fields[key] for key in keys]) for title, keys in SECTIONS.items()]
        )
        self.fixed = {key: first[key] for key in ("seed", "name")}

    def observe(self, changed: Callable) -> None:
        """Call `changed()` whenever a field says something else."""
        for field in self.fields.values():
            field.observe(lambda _: changed(), "value")

    def values(self) -> dict:
        """Keywords for `plan`; ValueError, in one sentence, where a text can't be read."""
        choices = {key: self.options_of[key][field.value] for key, field in self.menus.items()}
        choices |= {key: field.value for key, field in self.sliders.items()}
        choices["learning_rate"] = _two_figures(choices["learning_rate"])
        seed = self.fixed["seed"]
        swept = parse_values(self.vary.value, self.swept.value) if self.vary.value else []
        return choices | {
            "model": self.model.value.strip(),
            "advantage_estimator": self.estimator.value.strip(),
            "task": self.task.value.strip(),
            "task_options": parse_options(self.options.value),
            "name": self.fixed["name"],
            "seeds": list(range(seed, seed + self.seeds.value)),
            "vary": self.vary.value or None,
            "values": swept,
        }

    def _propose(self) -> None:
        """Put two values to begin with: what is chosen now, and the next option."""
        key = self.vary.value
        if key in MENUS:
            shown = list(MENUS[key][1])
            now = self.fields[key].value if self.fields[key].value in shown else shown[0]
            self.swept.value = f"{now}; {next(name for name in shown if name != now)}"
        else:
            now = self.sliders["learning_rate"].value
            self.swept.value = f"{now:.2g}; {now / 2:.2g}" if key else ""


class TrainerControls:
    """Sliders and menus over `overrides`, the same as code, and a `RunMonitor` whose Start trains what they say.

    start: a callable that takes the overrides and returns the run.  config: its first argument, to be shown.
    beside: metrics of the runs to compare with, and a column run, their names.  steps, rollouts: sizes to begin with.
    optimizers: a menu of these, the first one chosen; none leaves the optimizer to the config.
    """

    def __init__(
        self,
        start: Callable,
        config: str,
        beside: pd.DataFrame,
        steps: int = 60,
        rollouts: int = 256,
        target: float | None = None,
        optimizers: tuple[str, ...] = (),
    ):
        self.config, self.rollouts = config, rollouts
        powers = [size for size in (2, 4, 8, 16) if rollouts % size == 0]
        menus = {
            "group_size": (8 if 8 in powers else powers[-1], powers),
            "mini_batches": (1, (1, 2, 4)),
            "loss_type": (LOSSES[0], LOSSES),
            "advantage_estimator": (ESTIMATORS[0], ESTIMATORS),
            "batching": (STRATEGIES[0], STRATEGIES),
        }
        menus = {key: menu(chosen, options, LABELS[key]) for key, (chosen, options) in menus.items()}
        self.fields = {
            "learning_rate": log_slider(1e-3, -4, -2, LABELS["learning_rate"]),
            "group_size": menus.pop("group_size"),
            "steps": slider(steps, 2, 4 * steps, 1, RANGES["steps"][-1]),
            **menus,
        }
        if optimizers:
            self.fields["optim"] = menu(optimizers[0], optimizers, LABELS["optimizer"])
        self.monitor = RunMonitor(start=lambda: start(**self.overrides()), target=target, beside=beside)
        self.problem, self.snippet = ipywidgets.HTML(), Snippet()
        grid = ipywidgets.Box(list(self.fields.values()), layout={"flex_flow": "row wrap", "max_width": "900px"})
        self.box = ipywidgets.VBox([grid, self.problem, self.snippet, self.monitor.box])
        for field in self.fields.values():
            field.observe(lambda _: self._show_code(), "value")
        self._show_code()

    def overrides(self) -> dict:
        """The settings of the controls as they are now; ValueError if they can't be trained."""
        values = {name: field.value for name, field in self.fields.items()}
        return overrides(self.rollouts, **values | {"learning_rate": _two_figures(values["learning_rate"])})

    def display(self) -> None:
        """Put the controls on the page, with the curves to compare with as their picture."""
        show(self.box, self.monitor.chart)

    def _ipython_display_(self, **_) -> None:
        self.display()

    def close(self) -> None:
        """Take it off the page and free it; a run goes on."""
        close(self.box)

    def _show_code(self) -> None:
        """Show the call that trains the same, or why it can't be done; Start would say the same."""
        try:
            self.snippet.text, self.problem.value = as_code(self.config, self.overrides()), ""
        except ValueError as error:
            self.problem.value = notice(str(error), error=True)


def as_code(config: str, settings: dict) -> str:
    """The call that trains a config with some settings.

    >>> as_code("chain.yaml", {"max_steps": 60, "loss_type": "grpo"})
    "start_run('chain.yaml', max_steps=60, loss_type='grpo')"
    """
    return f"start_run({', '.join([repr(config), *(f'{key}={value!r}' for key, value in settings.items())])})"


def _two_figures(learning_rate: float) -> float:
    return float(f"{learning_rate:.2g}")


def _combobox(value: str, options: list[str], label: str) -> ipywidgets.Combobox:
    return ipywidgets.Combobox(value=value, options=options, ensure_option=False, description=label, **TEXT)


def _section(title: str, fields: list) -> ipywidgets.VBox:
    heading = ipywidgets.HTML(f"<b>{title}</b>")
    return ipywidgets.VBox([heading, ipywidgets.Box(fields, layout={"flex_flow": "row wrap", "max_width": "900px"})])
