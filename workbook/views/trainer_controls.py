"""Controls for a run: sliders and menus that say what to train, a Start button, and the same as a line of code.

`settings` and `as_code` are pure; the shell only calls the `start` it is given, which trains in a process of its own.
"""

from __future__ import annotations

import html
from collections.abc import Callable

import ipywidgets
import pandas as pd

from workbook.views.charts import learning_curve
from workbook.views.live import LiveChart, show
from workbook.views.panel import TrainingPanel

LOSSES = ("dr_grpo", "grpo", "dapo")
ESTIMATORS = ("grpo", "dr_grpo", "rloo", "reinforce", "positive_only", "negative_only")
BATCHINGS = (
    "shuffled",
    "query_preserved",
    "reward_balanced",
    "query_preserved_reward_balanced",
    "sign_partitioned",
)


def settings(
    learning_rate: float = 1e-3,
    group_size: int = 8,
    steps: int = 60,
    mini_batches: int = 1,
    loss_type: str = "dr_grpo",
    advantage_estimator: str = "grpo",
    batching: str = "shuffled",
    rollouts: int = 256,
) -> dict:
    """Overrides for `start_run`: `rollouts` per generation batch in groups, cut into optimizer mini-batches.

    Raises ValueError where the choice can't have the effect it names, or doesn't divide.

    >>> settings(mini_batches=4, batching="query_preserved")["per_device_train_batch_size"]
    64
    """
    if rollouts % (mini_batches * group_size):
        raise ValueError(
            f"{rollouts} rollouts can't be cut into mini_batches={mini_batches} of whole groups of {group_size}; "
            "choose powers of 2."
        )
    if batching != "shuffled" and mini_batches == 1:
        raise ValueError(
            f"batching={batching!r} decides what goes into which mini-batch, so it needs mini_batches of 2 or more."
        )
    return {
        "learning_rate": learning_rate,
        "num_generations": group_size,
        "max_steps": steps,
        "loss_type": loss_type,
        "advantage_estimator": advantage_estimator,
        "batching": batching,
        "per_device_train_batch_size": rollouts // mini_batches,
        "steps_per_generation": mini_batches,
    }


def as_code(config: str, overrides: dict) -> str:
    """The call that does the same.

    >>> as_code("chain.yaml", {"max_steps": 60, "loss_type": "grpo"})
    "start_run('chain.yaml', max_steps=60, loss_type='grpo')"
    """
    return f"start_run({', '.join([repr(config), *(f'{key}={value!r}' for key, value in overrides.items())])})"


class BesidePanel(TrainingPanel):
    """A TrainingPanel that draws its run beside the curves of others: `beside` has the columns step, reward, run."""

    def __init__(self, run, beside: pd.DataFrame, label: str, **kwargs):
        self.beside, self.label = beside, label
        super().__init__(run, **kwargs)

    def watch(self) -> ipywidgets.Widget:
        """Start watching, for a panel that stands inside another widget; returns what to put there."""
        self._thread.start()
        return self.box

    def curves(self) -> pd.DataFrame:
        """The others' curves and this run's so far."""
        mine = self.run.metrics().dropna(subset="reward")[["step", "reward"]].assign(run=self.label)
        return pd.concat([self.beside, mine], ignore_index=True) if len(mine) else self.beside

    def _curve(self, status):
        curves = self.curves()
        return learning_curve(curves, target=self.target, steps=max(status["total"], int(curves["step"].max())))


class TrainerControls:
    """Sliders and menus over `settings`, the equivalent code, and a Start whose run is drawn beside `beside`.

    start: a callable that takes the overrides and returns the run.  config: its first argument, to be shown.
    beside: columns step, reward, run of the curves to compare with.  steps, rollouts: sizes to begin with.
    """

    def __init__(
        self,
        start: Callable,
        config: str,
        beside: pd.DataFrame,
        steps: int = 60,
        rollouts: int = 256,
        target: float | None = None,
    ):
        self.start, self.config, self.beside = start, config, beside
        self.rollouts, self.target, self.panel, self.started = rollouts, target, None, 0
        wide = {"style": {"description_width": "150px"}, "layout": {"width": "430px"}}
        powers = [size for size in (2, 4, 8, 16) if rollouts % size == 0]
        self.fields = {
            "learning_rate": ipywidgets.FloatLogSlider(
                value=1e-3, base=10, min=-4, max=-2, step=0.1, readout_format=".1e", description="learning rate", **wide
            ),
            "group_size": ipywidgets.SelectionSlider(
                options=powers, value=8 if 8 in powers else powers[-1], description="group size G", **wide
            ),
            "steps": ipywidgets.IntSlider(value=steps, min=2, max=4 * steps, description="optimizer steps", **wide),
            "mini_batches": ipywidgets.Dropdown(options=(1, 2, 4), description="mini-batches a batch", **wide),
            "loss_type": ipywidgets.Dropdown(options=LOSSES, description="loss type", **wide),
            "advantage_estimator": ipywidgets.Dropdown(options=ESTIMATORS, description="advantage estimator", **wide),
            "batching": ipywidgets.Dropdown(options=BATCHINGS, description="batching", **wide),
        }
        self.button = ipywidgets.Button(description="Start", icon="play", button_style="primary")
        self.code = ipywidgets.HTML()
        self.chart = LiveChart(learning_curve(beside, target=target))
        self.place = ipywidgets.VBox([self.chart])
        self.box = ipywidgets.VBox([*self.fields.values(), self.code, self.button, self.place])
        self.button.on_click(lambda _: self.begin())
        for field in self.fields.values():
            field.observe(lambda _: self._say(), "value")
        self._say()

    def overrides(self) -> dict:
        """What the controls say now; ValueError if it can't be done."""
        values = {name: field.value for name, field in self.fields.items()}
        values["learning_rate"] = float(f"{values['learning_rate']:.2g}")
        return settings(**values, rollouts=self.rollouts)

    def display(self) -> None:
        """Put the controls on the page, with the curves to compare with as their picture."""
        show(self.box, self.chart)

    def begin(self) -> None:
        """Start a run with what the controls say, in place of the picture; the run before becomes a curve beside it."""
        overrides = self.overrides()
        if self.panel is not None:
            if self.panel.run.running:
                self.panel.stop()
            self.beside = self.panel.curves()
        self.started += 1
        run = self.start(**overrides)
        self.panel = BesidePanel(run, self.beside, f"your run {self.started}", target=self.target)
        self.place.children = (self.panel.watch(),)

    def _say(self) -> None:
        try:
            text, possible = as_code(self.config, self.overrides()), True
        except ValueError as error:
            text, possible = str(error), False
        wrapped = "white-space: pre-wrap; word-break: normal; width: 700px"
        self.code.value = f'<pre style="{wrapped}">{html.escape(text)}</pre>'
        self.button.disabled = not possible
