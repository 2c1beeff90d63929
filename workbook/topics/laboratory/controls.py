"""Controls for a run: sliders and menus that say what to train, the same as a line of code, and a monitor's Start.

`settings` and `as_code` are pure; the shell only calls the `start` it is given, which trains in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets
import pandas as pd

from workbook.theory.choices import ESTIMATORS, STRATEGIES
from workbook.views.explorer import log_slider, menu, slider
from workbook.views.live import close, show
from workbook.views.monitor import RunMonitor
from workbook.views.snippet import Snippet
from workbook.views.style import escape

LOSSES = ("dr_grpo", "grpo", "dapo")
BATCHINGS = STRATEGIES


def settings(
    learning_rate: float = 1e-3,
    group_size: int = 8,
    steps: int = 60,
    mini_batches: int = 1,
    loss_type: str = "dr_grpo",
    advantage_estimator: str = "grpo",
    batching: str = "shuffled",
    rollouts: int = 256,
    optim: str | None = None,
) -> dict:
    """Overrides for `start_run`: `rollouts` per generation batch in groups, cut into optimizer mini-batches.

    optim: None leaves the optimizer to the config.

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
    } | ({"optim": optim} if optim else {})


def as_code(config: str, overrides: dict) -> str:
    """The call that does the same.

    >>> as_code("chain.yaml", {"max_steps": 60, "loss_type": "grpo"})
    "start_run('chain.yaml', max_steps=60, loss_type='grpo')"
    """
    return f"start_run({', '.join([repr(config), *(f'{key}={value!r}' for key, value in overrides.items())])})"


class TrainerControls:
    """Sliders and menus over `settings`, the same as code, and a `RunMonitor` whose Start trains what they say.

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
        self.fields = {
            "learning_rate": log_slider(1e-3, -4, -2, "learning rate"),
            "group_size": menu(8 if 8 in powers else powers[-1], powers, "group size G"),
            "steps": slider(steps, 2, 4 * steps, 1, "optimizer steps"),
            "mini_batches": menu(1, (1, 2, 4), "mini-batches a batch"),
            "loss_type": menu(LOSSES[0], LOSSES, "loss type"),
            "advantage_estimator": menu(ESTIMATORS[0], ESTIMATORS, "advantage estimator"),
            "batching": menu(BATCHINGS[0], BATCHINGS, "batching"),
        }
        if optimizers:
            self.fields["optim"] = menu(optimizers[0], optimizers, "optimizer")
        self.monitor = RunMonitor(start=lambda: start(**self.overrides()), target=target, beside=beside)
        self.problem, self.snippet = ipywidgets.HTML(), Snippet()
        grid = ipywidgets.Box(list(self.fields.values()), layout={"flex_flow": "row wrap", "max_width": "900px"})
        self.box = ipywidgets.VBox([grid, self.problem, self.snippet, self.monitor.box])
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
        show(self.box, self.monitor.chart)

    def _ipython_display_(self, **_) -> None:
        self.display()

    def close(self) -> None:
        """Take it off the page and free it; a run goes on."""
        close(self.box)

    def _say(self) -> None:
        """The code for what the controls say, or why it can't be done; Start would say the same."""
        try:
            self.snippet.text, self.problem.value = as_code(self.config, self.overrides()), ""
        except ValueError as error:
            self.problem.value = f'<div role="status" style="color: #a94400">{escape(error)}</div>'
