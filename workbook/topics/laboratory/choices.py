"""Choices: menus, sliders and text fields for `experiment.plan`."""

from __future__ import annotations

from inspect import signature

import ipywidgets

from workbook.topics.laboratory.plan import MENUS, VARIABLE, experiment, parse_options, parse_values
from workbook.views.explorer import log_slider, menu, slider


class Choices:
    """Menus, sliders and text fields for `plan`; `values()` is what they say, `observe(f)` calls f at each change.

    start: choices to begin with, as for `experiment`.
    """

    def __init__(self, **start):
        began = {"task_options": {}} | _defaults() | start
        text = {"layout": {"width": "420px"}, "style": {"description_width": "170px"}, "continuous_update": False}
        names = ["bundled", "smollm2-135m"]
        self.model = ipywidgets.Combobox(
            value=began["model"], options=names, ensure_option=False, description="model", **text
        )
        self.task = ipywidgets.Combobox(
            value=began["task"],
            options=["chain", "gym:chain_sum", "hub:", "own:"],
            ensure_option=False,
            description="task",
            **text,
        )
        options = ", ".join(f"{key}: {value}" for key, value in began["task_options"].items())
        self.options = ipywidgets.Text(value=options, description="task options", **text)
        # by what is shown, since a menu whose value is None shows nothing; what one begins with may be no menu's option
        self.options_of = {
            key: options if began[key] in options.values() else options | {str(began[key]): began[key]}
            for key, (_, options) in MENUS.items()
        }
        self.menus = {
            key: menu(
                next(name for name, value in options.items() if value == began[key]), list(options), MENUS[key][0]
            )
            for key, options in self.options_of.items()
        }
        self.sliders = {
            "learning_rate": log_slider(began["learning_rate"], -6, 0, "learning rate"),
            "steps": slider(began["steps"], 1, max(200, began["steps"]), 1, "optimizer steps"),
            "max_tokens": slider(began["max_tokens"], 1, max(512, began["max_tokens"]), 1, "tokens at most"),
            "num_prompts": slider(began["num_prompts"], 1, max(2048, began["num_prompts"]), 1, "prompts of the task"),
            "eval_prompts": slider(began["eval_prompts"], 0, max(128, began["eval_prompts"]), 1, "held-out prompts"),
        }
        self.seeds = slider(1, 1, 6, 1, "seeds")
        varied = [("nothing but seeds", "")] + [(MENUS[k][0] if k in MENUS else "learning rate", k) for k in VARIABLE]
        self.vary = menu("", varied, "vary")
        self.swept = ipywidgets.Text(value="", description="its values", **text)
        self.vary.observe(lambda _: self._propose(), "value")
        for one in (*self.sliders.values(), self.seeds):
            one.continuous_update = False
        m, s = self.menus, self.sliders
        sections = {
            "Model": [self.model, m["quantization"], m["lora"]],
            "Task": [self.task, self.options, s["num_prompts"], s["max_tokens"], s["eval_prompts"]],
            "Objective": [m[k] for k in ("advantage_estimator", "ratio", "clipping", "group_transform", "loss_type")],
            "Batches": [m[k] for k in ("prompts", "group_size", "mini_batches", "batching", "reuse", "accumulation")],
            "Optimizer": [m["optimizer"], s["learning_rate"], m["max_grad_norm"], s["steps"]],
            "Once, or side by side": [self.seeds, self.vary, self.swept],
        }
        self.box = ipywidgets.VBox([_section(title, fields) for title, fields in sections.items()])
        self.fixed = {key: value for key, value in began.items() if key in ("seed", "name")}

    @property
    def widgets(self) -> list:
        """Every field that says something."""
        texts = [self.model, self.task, self.options, self.seeds, self.vary, self.swept]
        return [*texts, *self.menus.values(), *self.sliders.values()]

    def observe(self, changed) -> None:
        for one in self.widgets:
            one.observe(lambda _: changed(), "value")

    def values(self) -> dict:
        """Keywords for `plan`; ValueError, in one sentence, where a text can't be read."""
        said = {key: self.options_of[key][one.value] for key, one in self.menus.items()}
        said |= {key: one.value for key, one in self.sliders.items()}
        said["learning_rate"] = float(f"{said['learning_rate']:.2g}")
        first = self.fixed["seed"]
        swept = parse_values(self.vary.value, self.swept.value) if self.vary.value else []
        return said | {
            "model": self.model.value.strip(),
            "task": self.task.value.strip(),
            "task_options": parse_options(self.options.value),
            "name": self.fixed["name"],
            "seeds": list(range(first, first + self.seeds.value)),
            "vary": self.vary.value or None,
            "values": swept,
        }

    def _propose(self) -> None:
        """Two values to begin with: what is chosen now, and the next option."""
        key = self.vary.value
        if key in MENUS:
            shown = list(MENUS[key][1])
            now = self.menus[key].value if self.menus[key].value in shown else shown[0]
            self.swept.value = f"{now}; {next(name for name in shown if name != now)}"
        else:
            now = self.sliders["learning_rate"].value
            self.swept.value = f"{now:.2g}; {now / 2:.2g}" if key else ""


def _defaults() -> dict:
    """The defaults of `experiment`, by name."""
    return {key: one.default for key, one in signature(experiment).parameters.items() if key != "task_options"}


def _section(title: str, fields: list) -> ipywidgets.VBox:
    heading = ipywidgets.HTML(f"<b>{title}</b>")
    return ipywidgets.VBox([heading, ipywidgets.Box(fields, layout={"flex_flow": "row wrap", "max_width": "900px"})])
