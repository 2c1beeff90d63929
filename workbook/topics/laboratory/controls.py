"""TrainerControls: a few settings over a config, the same as code, and a monitor whose Start trains them."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets
import pandas as pd

from workbook.theory.choices import ESTIMATORS, STRATEGIES
from workbook.topics.laboratory.choices import RANGES, two_figures
from workbook.topics.laboratory.explanations import EXPLAINED
from workbook.topics.laboratory.monitor import ExperimentMonitor
from workbook.topics.laboratory.settings import LABELS, LOSSES, overrides
from workbook.views.explorer import Snippet, control_grid, log_slider, menu, slider
from workbook.views.live import close, show
from workbook.views.style import notice


class TrainerControls:
    """Sliders and menus over `overrides`, the same as code, and an `ExperimentMonitor` that trains what they say.

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
        self.monitor = ExperimentMonitor(start=lambda: start(**self.overrides()), target=target, beside=beside)
        self.problem, self.snippet = ipywidgets.HTML(), Snippet()
        grid = control_grid(*self.fields.values())
        self.box = ipywidgets.VBox([grid, self.problem, self.snippet, self.monitor.box])
        for key, field in self.fields.items():
            field.tooltip = EXPLAINED["optimizer" if key == "optim" else key]
            field.observe(lambda _: self._show_code(), "value")
        self._show_code()

    def overrides(self) -> dict:
        """The settings of the controls as they are now; ValueError if they can't be trained."""
        values = {name: field.value for name, field in self.fields.items()}
        return overrides(self.rollouts, **values | {"learning_rate": two_figures(values["learning_rate"])})

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
            self.snippet.text, refusal = as_code(self.config, self.overrides()), ""
        except ValueError as error:
            self.snippet.text, refusal = "", str(error)
        self.problem.value = notice(*[refusal] if refusal else [], error=True)
        self.monitor.refuse(refusal)


def as_code(config: str, settings: dict) -> str:
    """The call that trains a config with some settings.

    >>> as_code("chain.yaml", {"max_steps": 60, "loss_type": "grpo"})
    "start_run('chain.yaml', max_steps=60, loss_type='grpo')"
    """
    return f"start_run({', '.join([repr(config), *(f'{key}={value!r}' for key, value in settings.items())])})"
