"""The thread that explains a heatmap's pinned tokens: asked by a pin, with progress and Stop; what it made is kept."""

from __future__ import annotations

import threading

import pandas as pd

from workbook.training.progress import Stopped, reporting
from workbook.views.explained import explanation_details, moved_by
from workbook.views.style import limit, printable

MAX_KEPT = 32  # explanations


class Explains:
    """Mixin of TokenHeatmap: the worker that explains pinned tokens. Its traits are `busy` and those of `_explain`.

    `_start_explaining(explain)` first.  explain(rollout, position) -> a `workbook.probes.explained.Explanation`.
    """

    def _start_explaining(self, explain) -> None:
        self.explain, self.explanation = explain, None
        self._asked, self._worker, self._lock = None, None, threading.Lock()
        self._explanations: dict[tuple[int, int], object] = {}

    def wait(self):
        """Wait until the pinned token is explained."""
        if self._worker is not None:
            self._worker.join()
        return self

    def stop_explaining(self) -> None:
        """End what is going on between two of its items."""
        with self._lock:
            self._asked = None

    def _ask(self, row: pd.Series) -> None:
        """Explain the token of a row: at once if it is known, else in the thread, in place of what it is doing."""
        place = int(row["rollout"]), int(row["position"])
        if place in self._explanations:
            self.stop_explaining()
            self._show_explanation(place)
            return
        with self._lock:
            self._asked = place
            self.busy = {"text": "Explaining this token ...", "share": 0.0}
            if self._worker is None or not self._worker.is_alive():
                self._worker = threading.Thread(target=self._explain_asked, daemon=True)
                self._worker.start()

    def _explain_asked(self) -> None:
        """Explain what is asked until nothing is: a newer pin takes the place of an older one."""
        while (place := self._asked) is not None:
            message = ""
            try:
                with reporting(lambda *state, place=place: self._report(place, *state)):
                    self._keep(place, self.explain(*place))
            except Stopped:
                message = "" if self._asked is not None else "Stopped: this token is not explained."
            except Exception as error:  # whatever it is, the page should say it
                message = printable(f"This token can't be explained: {error}")
            with self._lock:
                if self._asked != place and self._asked is not None:
                    continue
                known = self._asked == place and place in self._explanations
                self._asked, self._worker, self.busy = None, None, {}
            if known:
                self._show_explanation(place)
            elif message:
                self.message = message

    def _keep(self, place: tuple[int, int], explanation) -> None:
        while len(self._explanations) >= MAX_KEPT:
            self._explanations.pop(next(iter(self._explanations)))
        self._explanations[place] = explanation

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
        self.explanation = self._explanations[place]
        moved = moved_by(rows, self.explanation)
        with self.hold_sync():
            self.busy, self.message = {}, ""
            self.coupling_limit = limit(moved)
            self.coupling = moved.astype("<f4").tobytes()
            self.details = self.details | explanation_details(rows, self.explanation)
