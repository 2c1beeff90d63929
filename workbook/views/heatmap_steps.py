"""The steps of a run in a heatmap: walk from one to the next with a word pinned, and look for new ones."""

from __future__ import annotations

import pandas as pd

from workbook.views.pinned import word_of
from workbook.views.recorded_steps import UNREADABLE
from workbook.views.style import printable, visible
from workbook.views.token_cells import MAX_CHARACTERS


class StepWalk:
    """Mixin of TokenHeatmap, whose traits and tables it moves."""

    def show_step(self, step: int) -> None:
        """Show the recorded step that is nearest to `step`, and say so if it is another one.

        Raises ValueError for a heatmap of a table.
        """
        if self.source is None:
            raise ValueError("This heatmap shows a table and no run, so it has no steps: TokenHeatmap(run) has.")
        self.steps = self.source.refresh() or self.steps
        nearest = min(self.steps, key=lambda known: (abs(known - step), known))
        self.step = nearest
        if self.step == nearest != step:
            self.message = f"Step {step} has no token table; this is the nearest that was recorded, step {nearest}."

    def _restep(self, _) -> None:
        """Show another recorded step, the same word pinned; keep this one if it can't be read."""
        if self.step == self._shown_step:
            return
        word = self._word
        try:
            self._take(self.source.table(self.step), self.column)
        except UNREADABLE as error:
            self.message = printable(f"Step {self.step} can't be shown: {error}")
            self.step = self._shown_step
            return
        with self.hold_sync():
            self._shown_step, self.message, self.groups = self.step, "", self._groups()
            if self.group in self.groups:
                self._regroup(None)
            else:
                self.group = self.groups[0]
            if word is not None:
                self._pin_word(word)
                self._word = word  # also where this step's group has no place of it

    def _pin_word(self, pinned: pd.Series) -> None:
        """Pin the same word as before where it stands in the group, nearest to its position."""
        column, word = word_of(pinned)
        rows = self.rows.reset_index(drop=True)
        same = rows.index[rows[column] == word]
        if len(same):
            self.pinned = int((rows.loc[same, "position"] - pinned["position"]).abs().idxmin())
        else:
            self.message = f"{visible(pinned['token'], MAX_CHARACTERS)} is in no rollout of this group at this step."

    def look(self) -> list[int]:
        """Look which steps the run has recorded by now; with `follow`, show the newest."""
        if self.source is not None:
            new = len(self.source.refresh()) - len(self.steps)
            with self.hold_sync():
                self.steps = self.source.steps
                self.looked += 1
                if self.follow and self.steps:
                    self.step = self.steps[-1]
                elif not self.steps:
                    self.message = "No step is recorded any more: the run's token tables were removed."
                elif not new:
                    self.message = f"No new step is recorded; the newest is step {max(self.steps, default=0)}."
            if new and self.pinned >= 0:
                self._send_biography()
        return self.steps

    def _answer(self, _, content: dict, buffers) -> None:
        """The page asks for new steps, or to stop an explanation."""
        if content == {"kind": "stop"}:
            self.stop_explaining()
        if content == {"kind": "look"}:
            try:
                self.look()
            except UNREADABLE as error:
                self.message = printable(error)
