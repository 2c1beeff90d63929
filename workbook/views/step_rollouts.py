"""The rollouts of a step that was clicked on a run's curve, in a heatmap that opens at the first click."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets

from workbook.views.live import close


class StepRollouts:
    """A box that is empty until a step is asked for, and then holds that step's rollouts.

    run: a function that returns the run whose curve is shown now, None before there is one.
    """

    def __init__(self, run: Callable):
        self.run, self.heatmap = run, None
        self.box = ipywidgets.VBox(layout={"max_width": "860px"})

    def show_step(self, step: int) -> None:
        """Show a step's rollouts, or the nearest step's that was recorded.

        Raises ValueError for a run that has recorded no tokens.
        """
        from workbook.views.heatmap import TokenHeatmap  # it brings what explains a token, which a curve needs not

        run = self.run()
        if self.heatmap is None or self.heatmap.source.run is not run:
            heatmap = TokenHeatmap(run)
            self.close()
            self.heatmap, self.box.children = heatmap, (heatmap,)
        self.heatmap.show_step(step)

    def close(self) -> None:
        """Take the heatmap off the page and free it."""
        self.box.children = ()
        if self.heatmap is not None:
            close(self.heatmap)
            self.heatmap = None
