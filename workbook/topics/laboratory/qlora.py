"""A (Q)LoRA run by controls: what to train, a bar of the memory that it needs as they move, Start, Stop and Resume.

    form = QLoRAForm(RunConfig.load("../data/configs/smollm2_chain_sum.yaml"))
    form                                     # in a notebook, as a cell's last line

`qlora_config` is the run that the controls describe, `fit_sentence` what its forecast says. The form is a thin shell
over both: a slider's forecast takes milliseconds, since what must be looked up (the model's shape, the longest prompt)
is looked up in a thread, once for each model and task.
"""

from __future__ import annotations

import threading

import ipywidgets
import pandas as pd
import torch

from workbook.policies.devices import as_dtype
from workbook.topics.laboratory.settings import parse_options
from workbook.training.checks import check_run
from workbook.training.device_memory import MIB, free_memory
from workbook.training.memory import (
    CARDS,
    LESS,
    SHAPES,
    forecast_shape,
    parameter_counts,
    peak_mib,
    run_device,
    shape_and_prompt,
    steps_per_generation,
)
from workbook.training.run_config import RunConfig
from workbook.training.runs import start_run
from workbook.training.sweep_run import as_yaml
from workbook.views.explorer import Snippet, control_grid, log_slider, menu, power_slider, slider
from workbook.views.live import LiveChart, close, show
from workbook.views.memory import memory_fit_chart, memory_rows
from workbook.views.monitor import RunMonitor
from workbook.views.style import notice

MODELS = ["smollm2-135m", "bundled", *SHAPES]
TASKS = ["gym:chain_sum", "chain", "hub:", "own:"]
PRECISIONS = {"the device's own": "auto", "float32": "float32", "bfloat16": "bfloat16", "float16": "float16"}
WEIGHTS = {"as they are": "none", "NF4 (4 bits)": "nf4"}
HERE = "this machine"
LOOKING = "Looking up the model's shape and the task's longest prompt ..."
TOOLTIPS = {
    "model": "bundled, smollm2-135m, a folder with a model, or a hub's id; shapes of Qwen2.5 are known without a hub",
    "task": "chain, gym:<data set>, hub:<data set> or own:<file>.csv; python -m workbook tasks lists them",
    "task_options": "name: value pairs with commas between them, as for get_task",
    "quantization": "NF4 stores each frozen weight in 4 bits; it needs adapters",
    "rank": "r of the adapters B A on every linear layer; 0 trains all weights instead",
    "dtype": "of frozen weights; trained ones are float32 always",
    "learning_rate": "of AdamW, constant; adapters want ten times what all weights do",
    "group_size": "G completions of each prompt; an advantage compares them",
    "prompts": "in one generation batch, which is one optimizer step",
    "pieces": "backward passes in which a step's rollouts go through; the same step in less memory",
    "checkpointing": "keep one hidden state per layer and recompute the rest: less memory, a third more time",
    "max_tokens": "of a completion; longer ones are cut off there",
    "steps": "optimizer steps",
    "card": "a second machine to forecast for; nothing is started there",
}


def qlora_config(
    base: RunConfig,
    model: str = "smollm2-135m",
    task: str = "gym:chain_sum",
    task_options: dict | None = None,
    quantization: str | None = "nf4",
    rank: int | None = 8,
    dtype: str = "auto",
    learning_rate: float = 1e-3,
    group_size: int = 8,
    prompts: int = 4,
    pieces: int = 1,
    checkpointing: bool = False,
    max_tokens: int = 8,
    steps: int = 12,
) -> RunConfig:
    """The run of these choices; whatever they leave open is as in `base`.

    rank: of LoRA's adapters, 0 or None to train all weights.  pieces: micro-batches that a step's prompts x group_size
    rollouts are cut into.  Raises ValueError, in one sentence, where they can't be, or a field is invalid.
    """
    rollouts = prompts * group_size
    if rollouts % pieces:
        raise ValueError(
            f"prompts={prompts} x group_size={group_size} rollouts can't be cut into {pieces} equal micro-batches; "
            "choose powers of 2."
        )
    if quantization and not rank:
        raise ValueError(f'quantization="{quantization}" freezes all weights, so rank=0 leaves nothing to train.')
    return base.override(
        {
            "policy": model,
            "task": task,
            "task_options": task_options or {},
            "quantization": quantization,
            "lora": rank or None,
            "dtype": dtype,
            "learning_rate": learning_rate,
            "num_generations": group_size,
            "per_device_train_batch_size": rollouts // pieces,
            "gradient_accumulation_steps": pieces,
            "steps_per_generation": pieces,
            "gradient_checkpointing": checkpointing,
            "max_completion_length": max_tokens,
            "max_steps": steps,
        }
    )


def place_memory(config: RunConfig, shape, prompt_length: int, place: str) -> pd.DataFrame:
    """`memory_forecast`'s table of a run here, or on one of CARDS in half precision."""
    device = run_device(config)
    if place in CARDS:
        dtype = torch.float16 if config.quantization or config.lora else torch.float32
        return forecast_shape(config, shape, prompt_length, dtype, "cuda")
    dtype, _ = as_dtype(config.dtype, device, frozen=bool(config.quantization or config.lora))
    return forecast_shape(config, shape, prompt_length, dtype, device.type)


def fit_sentence(config: RunConfig, shape, prompt_length: int, place: str, free: float) -> tuple[str, bool]:
    """What a run needs at a place (HERE, or one of CARDS), beside what is free there (MiB), and whether that fits."""
    needed = peak_mib(place_memory(config, shape, prompt_length, place))
    numbers = f"{place}: {needed / 1024:.3g} GiB of {free / 1024:.3g} GiB"
    fits = needed <= free
    return f"{numbers}, it {'fits' if fits else f'does not fit; take {LESS}'}.", fits


class QLoRAForm:
    """Controls of a run over a config, its memory as they move, and a monitor with Start, Stop and Resume.

    base: the config that the controls begin with and change.  card: of CARDS, to forecast for beside this machine.
    Attributes: `controls`; `tables`, what the bar shows; `monitor`; `started`, the runs begun so far.
    """

    def __init__(self, base: RunConfig, card: str = "T4, 16 GB"):
        self.base, self.started, self._asked, self._anyway = base, [], 0, None
        self._known: dict[tuple, tuple] = {}
        self._problem: str | None = LOOKING
        self.controls = _controls(base, card)
        for name, control in self.controls.items():
            control.tooltip = control.description_tooltip = TOOLTIPS[name]
            control.observe(self._looked_up if name in ("model", "task", "task_options") else self._moved, "value")
        wide = {"max_width": "860px"}
        self.line, self.size_line = ipywidgets.HTML(layout=wide), ipywidgets.HTML(layout=wide)
        self.tables = memory_rows({HERE: (NOTHING, 0.0), card: (NOTHING, CARDS[card] * 1024)})
        self.bar = LiveChart.over(memory_fit_chart, **self.tables)
        self.snippet = Snippet()
        self.monitor = RunMonitor(start=self.start)
        file = ipywidgets.Accordion([self.snippet], selected_index=None)
        file.set_title(0, "The same as a file for python -m workbook train")
        grid = control_grid(*self.controls.values())
        self.box = ipywidgets.VBox([grid, self.line, self.bar, self.size_line, file, self.monitor.box])
        self.box.add_class("workbook-qlora")
        self._looked_up()

    def config(self) -> RunConfig:
        """The run that the controls describe; ValueError, in one sentence, if that can't be."""
        values = {name: control.value for name, control in self.controls.items() if name != "card"}
        values |= {"model": values["model"].strip(), "task": values["task"].strip()}
        values["task_options"] = parse_options(values["task_options"])
        values["learning_rate"] = float(f"{values['learning_rate']:.2g}")
        values["quantization"] = None if values["quantization"] == "none" else values["quantization"]
        return qlora_config(self.base, **values)

    def start(self):
        """Start the run; ValueError, in the sentences shown, if it can't be.

        Where it is forecast not to fit here, the first call says so, and the second one starts it.
        """
        config = self.config()
        check_run(config)
        if (known := self._known.get(_sources(config))) and self._anyway != config:
            sentence, fits = fit_sentence(config, *known, HERE, free_memory(run_device(config)) / MIB)
            if not fits:
                self._anyway, self.monitor.start_button.description = config, "Start anyway"
                raise ValueError(f"{sentence} Nothing was started; Start anyway would.")
        run = start_run(config)
        self.started.append(run)
        return run

    def display(self) -> None:
        """Put it on the page, with the bar of memory as its picture."""
        show(self.box, self.bar)

    def _ipython_display_(self, **_) -> None:
        self.display()

    def close(self) -> None:
        """Take it off the page and free it; a run goes on."""
        close(self.box)

    def _looked_up(self, _=None) -> None:
        """Look a new model or task up in a thread, then draw; the newest question alone is answered."""
        self._asked += 1
        try:
            config = self.config()
        except ValueError as error:
            self._refuse(str(error))
            return
        if _sources(config) in self._known:
            self._moved()
            return
        self._refuse(LOOKING, error=False)
        threading.Thread(target=self._look_up, args=(config, self._asked), daemon=True).start()

    def _look_up(self, config: RunConfig, asked: int) -> None:
        try:
            check_run(config)
            self._known[_sources(config)] = shape_and_prompt(config)
        except Exception as error:  # whatever it is, the page should say it
            if asked == self._asked:
                self._refuse(str(error))
            return
        if asked == self._asked:
            self._moved()

    def _moved(self, _=None) -> None:
        """Draw the forecast of what the controls say now."""
        self.monitor.start_button.description, self._anyway = "Start", None
        try:
            config = self.config()
            if (known := self._known.get(_sources(config))) is None:
                return
            card = self.controls["card"].value
            free = {HERE: free_memory(run_device(config)) / MIB, card: CARDS[card] * 1024}
            memory = {place: (place_memory(config, *known, place), free[place]) for place in free}
            sentences = [fit_sentence(config, *known, place, free[place]) for place in free]
        except ValueError as error:
            self._refuse(str(error))
            return
        self.tables = memory_rows(memory)
        self.bar.push(**self.tables)
        self.bar.layout.opacity = "1"
        self.line.value = "".join(notice(words, error=not fits) for words, fits in sentences)
        self.size_line.value = notice(describe_size(config, known[0]))
        self.snippet.text, self._problem = as_yaml(config, None), None

    def _refuse(self, sentence: str, error: bool = True) -> None:
        """Say why there is no forecast; the bar of the last setting is dimmed."""
        self._problem, self.bar.layout.opacity = sentence, "0.35"
        self.line.value = notice(sentence, error=error)


NOTHING = pd.DataFrame({"part": ["weights"], "mib": [0.0], "phase": ["always"]})


def describe_size(config: RunConfig, shape) -> str:
    """How many weights there are, and how many of them are trained."""
    linear, other, adapters, _ = parameter_counts(shape, config.lora)
    trained = adapters if config.lora else linear + other
    kept = "in 4 bits" if config.quantization else "in linear layers"
    rollouts = config.trainer["per_device_train_batch_size"] * steps_per_generation(config.trainer)
    return (
        f"{linear / 1e6:,.4g} M weights {kept}, {other / 1e6:,.3g} M others; {trained / 1e6:,.3g} M trained. A step "
        f"has {rollouts} rollouts, {config.trainer['per_device_train_batch_size']} in a backward pass."
    )


def _sources(config: RunConfig) -> tuple:
    """What `shape_and_prompt` depends on."""
    return config.policy, config.task, repr(config.task_options), config.num_prompts, config.seed


def _controls(base: RunConfig, card: str) -> dict[str, ipywidgets.ValueWidget]:
    trainer = base.trainer
    group_size, pieces = trainer.get("num_generations", 8), steps_per_generation(trainer)
    rollouts = trainer.get("per_device_train_batch_size", 8) * pieces
    options = ", ".join(f"{key}: {str(value).lower()}" for key, value in base.task_options.items())
    return {
        "model": _text(ipywidgets.Combobox, base.policy, "model", options=MODELS, ensure_option=False),
        "task": _text(ipywidgets.Combobox, base.task, "task", options=TASKS, ensure_option=False),
        "task_options": _text(ipywidgets.Text, options, "task options"),
        "quantization": menu(base.quantization or "none", list(WEIGHTS.items()), "weights"),
        "rank": power_slider(base.lora or 0, 64, "LoRA rank", zero="all weights"),
        "dtype": menu(base.dtype, list(PRECISIONS.items()), "precision of frozen weights"),
        "learning_rate": log_slider(trainer.get("learning_rate", 1e-3), -6, -1, "learning rate"),
        "group_size": power_slider(group_size, 64, "group size G", least=2),
        "prompts": power_slider(rollouts // group_size, 64, "prompts a batch"),
        "pieces": power_slider(pieces, 256, "micro-batches a step"),
        "checkpointing": ipywidgets.Checkbox(
            value=trainer.get("gradient_checkpointing", False), description="gradient checkpointing", indent=True
        ),
        "max_tokens": slider(trainer.get("max_completion_length", 256), 1, 1024, 1, "tokens at most"),
        "steps": slider(trainer.get("max_steps", 12), 1, 200, 1, "optimizer steps"),
        "card": menu(card, list(CARDS), "and on"),
    }


def _text(kind: type, value: str, label: str, **more) -> ipywidgets.ValueWidget:
    look = {"layout": {"width": "420px"}, "style": {"description_width": "170px"}, "continuous_update": False}
    return kind(value=value, description=label, **look, **more)
