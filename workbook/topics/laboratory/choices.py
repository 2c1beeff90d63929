"""Choices: a form for all settings of an experiment, of which a few are enough to begin with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from math import log10

import ipywidgets

from workbook.topics.laboratory.examine import CHAT_FAMILIES
from workbook.topics.laboratory.explanations import EXPLAINED
from workbook.topics.laboratory.own_files import FilePicker
from workbook.topics.laboratory.settings import LABELS, MENUS, VARIABLE, experiment, parse_options, parse_values
from workbook.views.explorer import control_grid, log_slider, menu, slider, switch
from workbook.views.style import notice

SECTIONS = {
    "Model": ("model", "lora", "quantization"),
    "Task": ("task", "task_options", "chat", "num_prompts", "eval_prompts", "max_tokens"),
    "Batches": ("prompts", "group_size", "mini_batches", "batching", "reuse", "accumulation"),
    "Optimizer": ("learning_rate", "steps", "optimizer", "max_grad_norm"),
    "Objective": ("advantage_estimator", "ratio", "clipping", "group_transform", "loss_type"),
    "Once, or side by side": ("name", "seeds", "vary", "values"),
}
BASIC = {  # what a first experiment needs
    *("model", "lora", "task", "task_options", "chat", "num_prompts", "eval_prompts", "max_tokens"),
    *("prompts", "group_size", "learning_rate", "steps"),
}
RANGES = {  # of sliders over integers: the least, the most where an experiment does not begin beyond it, and the label
    "steps": (1, 200, "optimizer steps"),
    "max_tokens": (1, 512, "tokens at most"),
    "num_prompts": (1, 2048, "prompts of the task"),
    "eval_prompts": (0, 128, "held-out prompts"),
    "seeds": (1, 6, "seeds"),
}
TEXT = {"layout": {"width": "420px"}, "style": {"description_width": "170px"}, "continuous_update": False}
MODELS = ("bundled", "smollm2-135m")
TASKS = ("chain", "gym:chain_sum", "hub:", "own:")


class Choices:
    """Menus, sliders and text fields for `plan`; `values()` is what they say, `observe(f)` calls f at each change.

    start: choices to begin with, as for `experiment`.  Attributes: `fields`, each by its choice's name; `picker`, the
    menus of files; `scope`, the switch between the basic settings and all.
    """

    def __init__(self, **start):
        self._observers: list[Callable] = []
        self._busy, self._family, self.seed = False, "", 0
        self.defaults = {key: parameter.default for key, parameter in signature(experiment).parameters.items()}
        self.options_of = {key: dict(options) for key, (_, options) in MENUS.items()}
        estimators = list(self.options_of.pop("advantage_estimator"))  # or own:<file.py>:<function>
        self.menus = {
            key: menu(next(iter(options)), list(options), LABELS[key]) for key, options in self.options_of.items()
        }
        self.sliders = {"learning_rate": log_slider(self.defaults["learning_rate"], -6, 0, LABELS["learning_rate"])}
        self.sliders |= {key: slider(low, low, high, 1, label) for key, (low, high, label) in RANGES.items()}
        self.model = combobox("bundled", list(MODELS), "model")
        self.task = combobox("chain", list(TASKS), "task")
        self.options = ipywidgets.Text(description="task options", **TEXT)
        self.estimator = combobox(estimators[0], estimators, LABELS["advantage_estimator"])
        self.chat = switch(False, "prompts as chat")
        self.vary = menu("", [("nothing but seeds", ""), *((LABELS[key], key) for key in VARIABLE)], "vary")
        self.swept = ipywidgets.Text(value="", description="its values", **TEXT)
        self.name = ipywidgets.Text(description="name", **TEXT)
        texts = {"model": self.model, "task": self.task, "task_options": self.options, "chat": self.chat}
        texts |= {"advantage_estimator": self.estimator, "name": self.name, "vary": self.vary, "values": self.swept}
        self.fields = texts | self.menus | self.sliders
        for key, field in self.fields.items():
            field.tooltip = EXPLAINED[key]
        self.picker = FilePicker(lambda path: self._put(task=f"own:{path}"), self._choose_reward)
        self._lay_out()
        self.set(**start)
        for field in self.sliders.values():
            field.continuous_update = False
        self._watch()

    # --- what it says

    def values(self) -> dict:
        """Keywords for `plan`; ValueError, in one sentence, where a text can't be read."""
        choices = {key: self.options_of[key][field.value] for key, field in self.menus.items()}
        choices |= {key: field.value for key, field in self.sliders.items() if key != "seeds"}
        choices["learning_rate"] = two_figures(choices["learning_rate"])
        swept = parse_values(self.vary.value, self.swept.value) if self.vary.value else []
        return choices | {
            "model": self.model.value.strip(),
            "advantage_estimator": self.estimator.value.strip(),
            "task": self.task.value.strip(),
            "task_options": parse_options(self.options.value) | self._chat_option(),
            "name": self.name.value.strip(),
            "seeds": list(range(self.seed, self.seed + self.sliders["seeds"].value)),
            "vary": self.vary.value or None,
            "values": swept,
        }

    def set(self, **choices) -> None:
        """Show these choices, and the defaults of all others; what no menu has becomes an option of it.

        As for `experiment`; seeds is their number, vary and values as for `plan`.  Observers are called once.
        """
        values = self.defaults | {"task_options": {}, "seeds": 1, "vary": None, "values": []}
        if unknown := [key for key in choices if key not in values]:
            raise ValueError(f"{unknown[0]!r} is no setting of an experiment; its settings are {', '.join(values)}.")
        values |= choices
        options = dict(values["task_options"] or {})
        with self._at_once():
            chat = options.pop("chat", CHAT_FAMILIES.get(values["task"].partition(":")[0], False))
            self.seed = values["seed"]
            for key, field in (("model", self.model), ("task", self.task), ("name", self.name)):
                field.value = values[key]
            self.estimator.value = values["advantage_estimator"]
            self.options.value = _as_text(options)
            self.chat.value = bool(chat)
            for key, field in self.menus.items():
                self._set_menu(key, field, values[key])
            for key, field in self.sliders.items():
                limit = log10(values[key]) if key == "learning_rate" else values[key]
                field.max, field.min = max(field.max, limit), min(field.min, limit)
                field.value = values[key]
            self.vary.value = values["vary"] or ""
            named = {value: name for name, value in self.options_of.get(values["vary"], {}).items()}
            self.swept.value = "; ".join(str(named.get(value, value)) for value in values["values"])
            self._family = values["task"].partition(":")[0]

    def observe(self, changed: Callable) -> None:
        """Call `changed()` whenever a field says something else."""
        self._observers.append(changed)

    # --- how it looks

    def _lay_out(self) -> None:
        self.scope = ipywidgets.ToggleButtons(
            options=["basic", "all settings"],
            tooltips=["What a first experiment needs", "Every setting that this book is about"],
        )
        self.hidden_line = ipywidgets.HTML(layout={"max_width": "860px"})
        self.sections = {}
        for title, keys in SECTIONS.items():
            inside = [control_grid(*(self.fields[key] for key in keys))]
            if title == "Task":
                buttons = ipywidgets.HBox([self.picker.upload, self.picker.again])
                own = control_grid(self.picker.data, self.picker.reward, buttons)
                inside = [own, self.picker.line, *inside]
            self.sections[title] = ipywidgets.VBox([ipywidgets.HTML(f"<b>{title}</b>"), *inside])
        self.box = ipywidgets.VBox([self.scope, *self.sections.values(), self.hidden_line])

    def _show_scope(self) -> None:
        """Show the fields of the scope, and name what is set otherwise than by default among the others."""
        basic = self.scope.value == "basic"
        for title, keys in SECTIONS.items():
            shown = [key for key in keys if not basic or key in BASIC]
            for key in keys:
                self.fields[key].layout.display = "" if key in shown else "none"
            self.sections[title].layout.display = "" if shown else "none"
        self.hidden_line.value = notice(*self._hidden_settings() if basic else ())

    def _hidden_settings(self) -> Iterator[str]:
        """One sentence on settings that the basic form hides, where they differ from their defaults."""
        first = {"vary": "", "values": "", "seeds": 1} | self.defaults
        for key in self.menus:
            first[key] = next(name for name, value in self.options_of[key].items() if value == self.defaults[key])
        hidden = [key for keys in SECTIONS.values() for key in keys if key not in BASIC and key != "values"]
        fields = [self.fields[key] for key in hidden if self.fields[key].value != first[key]]
        if fields:
            yield f"Set among all settings: {'; '.join(f'{field.description} {field.value}' for field in fields)}."

    # --- how it answers

    def _watch(self) -> None:
        self.scope.observe(lambda _: self._show_scope(), "value")
        self.vary.observe(lambda _: self._propose(), "value")
        self.task.observe(lambda _: self._follow_family(), "value")
        self.options.observe(lambda _: self._take_chat(), "value")
        for field in self.fields.values():
            field.observe(lambda _: self._changed(), "value")
        self._show_scope()

    def _changed(self) -> None:
        if self._busy:
            return
        self._follow_task()
        self._show_scope()
        for observer in self._observers:
            observer()

    @contextmanager
    def _at_once(self) -> Iterator[None]:
        """Several fields change; observers are called once, at the end."""
        outer, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = outer
        self._changed()

    def _put(self, **texts: str) -> None:
        with self._at_once():
            for key, text in texts.items():
                self.fields[key].value = text
            self._follow_family()

    def _choose_reward(self, function: str) -> None:
        try:
            options = parse_options(self.options.value)
        except ValueError:
            options = {}
        self._put(task_options=_as_text(options | {"reward": function}))

    def _set_menu(self, key: str, field, value) -> None:
        options = self.options_of[key]
        if value not in options.values():
            options[str(value)] = value
            field.options = list(options)
        field.value = next(name for name, option in options.items() if option == value)

    def _follow_task(self) -> None:
        """The switch of chats is there for tasks that have it; the menus of files show the task's own."""
        task = self.task.value.strip()
        self.chat.disabled = task.partition(":")[0] not in CHAT_FAMILIES
        try:
            reward = str(parse_options(self.options.value).get("reward", ""))
        except ValueError:
            reward = ""
        self.picker.show(task.removeprefix("own:") if task.startswith("own:") else "", reward)

    def _follow_family(self) -> None:
        """Another kind of task has another default of its switch."""
        family = self.task.value.strip().partition(":")[0]
        if family != self._family:
            self.chat.value = CHAT_FAMILIES.get(family, False)
        self._family = family

    def _take_chat(self) -> None:
        """What the options say of chat moves to its switch, so that the two can't differ."""
        try:
            options = parse_options(self.options.value)
        except ValueError:
            return
        if isinstance(chat := options.pop("chat", None), bool):
            with self._at_once():
                self.chat.value, self.options.value = chat, _as_text(options)

    def _chat_option(self) -> dict[str, bool]:
        family = self.task.value.strip().partition(":")[0]
        return {"chat": self.chat.value} if self.chat.value != CHAT_FAMILIES.get(family, self.chat.value) else {}

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


def two_figures(learning_rate: float) -> float:
    """A slider's learning rate as it is shown."""
    return float(f"{learning_rate:.2g}")


def combobox(value: str, options: list[str], label: str) -> ipywidgets.Combobox:
    """A text field with proposals."""
    return ipywidgets.Combobox(value=value, options=options, ensure_option=False, description=label, **TEXT)


def _as_text(options: dict) -> str:
    return ", ".join(f"{key}: {_plain(value)}" for key, value in options.items())


def _plain(value) -> str:
    """A value as one would type it, in quotes where it would be read as another."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    try:
        same = parse_options(f"value: {text}") == {"value": value}
    except ValueError:
        same = False
    return text if same else json.dumps(value, default=str)
