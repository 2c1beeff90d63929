"""ExperimentMonitor: a monitor of runs and of sweeps, whose Start is off while what it would start can't be."""

from __future__ import annotations

from collections.abc import Callable

from workbook.views.monitor import RunMonitor

START_TOOLTIP = "Train what the settings say, in a process of its own"


class ExperimentMonitor(RunMonitor):
    """A `RunMonitor` that also watches sweeps, whose steps are one curve.

    ended: called without arguments when a run has ended.  Attributes: `refusal`, why Start is off, "" where it is on.
    """

    refusal, _ended = "", None

    def __init__(self, *args, ended: Callable[[], None] | None = None, **kwargs):
        super().__init__(*args, **kwargs)
        self._ended = ended

    def answer(self, act: Callable) -> None:
        """Do what a button says, and show what an error says."""
        self._answer(act)

    def refuse(self, refusal: str) -> None:
        """Turn Start off and say why in its tooltip; "" turns it on again, unless a run is going on."""
        self.refusal = refusal
        running = self.run is not None and self.run.running
        self.start_button.disabled = bool(refusal) or running
        self.start_button.tooltip = refusal or START_TOOLTIP

    def _look(self) -> bool:
        ended = super()._look()
        self.start_button.disabled = self.start_button.disabled or bool(self.refusal)
        if ended and self.run is not None and self._ended is not None:
            self._ended()
        return ended
