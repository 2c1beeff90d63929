"""The thread that explains a heatmap's pinned tokens: asked by a pin, with progress and Stop; what it made is kept."""

from __future__ import annotations

import threading

import pandas as pd

from workbook.training.progress import Stopped, reporting
from workbook.views.explained import explanation_details, moved_by
from workbook.views.style import limit, printable


class Explains:
    """Mixin of TokenHeatmap: the worker that explains pinned tokens. Its traits are `busy` and those of `_explain`.

    `_start_explaining(explain)` first.  explain(rollout, position) -> a `workbook.probes.explained.Explanation`.
    """

    def _start_explaining(self, explain) -> None:
        self.explain, self.explanation = explain, None
        self._asked, self._latest = None, {}  # a place; the latest explanation by its place
        self._worker, self._working, self._lock = None, False, threading.Lock()

    def wait(self):
        """Wait until the pinned token is explained."""
        while self._worker is not None and self._worker.is_alive():
            self._worker.join()
        return self

    def stop_explaining(self) -> None:
        """End what is going on between two of its items."""
        with self._lock:
            self._asked = None

    def _ask(self, row: pd.Series) -> None:
        """Explain the token of a row: at once if it was the latest, else in the thread, in place of any other."""
        place = int(row["rollout"]), int(row["position"])
        if place in self._latest:
            self.stop_explaining()
            self._show_explanation(place)
            return
        with self._lock:
            self._asked = place
            self.busy = {"text": "Explaining this token ...", "share": 0.0}
            if not self._working:
                self._working = True
                self._worker = threading.Thread(target=self._explain_asked, daemon=True)
                self._worker.start()

    def _explain_asked(self) -> None:
        """Explain what is asked until nothing is: a newer pin takes the place of an older one."""
        message = ""
        while (place := self._next(message)) is not None:
            message = self._explain_place(place)

    def _next(self, message: str) -> tuple[int, int] | None:
        """The place to explain next; None, and the message on the page, where none is asked for."""
        with self._lock:
            if self._asked is not None:
                return self._asked
            self._working, self.busy = False, {}
        if message and self.pinned >= 0:
            self.message = message
        return None

    def _explain_place(self, place: tuple[int, int]) -> str:
        """Explain a token and show it, unless another is asked for meanwhile; returns why it was not explained."""
        try:
            with reporting(lambda *state: self._report(place, *state)):
                self._latest = {place: self.explain(*place)}
        except Stopped:
            return "Stopped: this token is not explained."
        except Exception as error:  # whatever it is, the page should say it
            self._done(place)
            return printable(f"This token can't be explained: {error}")
        if self._done(place):
            self._show_explanation(place)
        return ""

    def _done(self, place: tuple[int, int]) -> bool:
        """Take a place off what is asked for; False where another is asked for by now."""
        with self._lock:
            still = self._asked == place
            self._asked = None if still else self._asked
        return still

    def _report(self, place, done: int, total: int, what: str) -> None:
        if self._asked != place:
            raise Stopped
        if done >= 0 and total:
            self.busy = {"text": f"{what}: {done} of {total}", "share": done / total}

    def _show_explanation(self, place: tuple[int, int]) -> None:
        """Send the page an explanation, if its token is still the pinned one."""
        rows = self.rows.reset_index(drop=True)
        if not 0 <= self.pinned < len(rows) or tuple(rows.loc[self.pinned, ["rollout", "position"]]) != place:
            return
        self.explanation = self._latest[place]
        moved = moved_by(rows, self.explanation)
        with self.hold_sync():
            self.busy, self.message = {}, ""
            self.coupling_limit = limit(moved)
            self.coupling = moved.astype("<f4").tobytes()
            self.details = self.details | explanation_details(rows, self.explanation)
