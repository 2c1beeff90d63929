"""Widgets that ipywidgets keeps only while a page shows them: it keeps every open one, and with it all of its data."""

from __future__ import annotations

import weakref

from IPython import get_ipython

_in_cells: dict[str, tuple[str, weakref.WeakSet]] = {}  # cell -> its latest execution, and the widgets it showed


class OpenedWhenShown:
    """Mixin of a widget with large data: it is opened when it is first shown, and freed if it is dropped before.

    When a cell is run again, what its earlier execution showed is closed, since its output has left the page.
    """

    _shown = False

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        weakref.finalize(self, self.layout.close).atexit = False

    def open(self) -> None:
        """Open it if it is shown."""
        if self._shown:
            super().open()

    @property
    def model_id(self) -> str | None:
        """What a page knows it by: asking for it shows it. None once it is closed."""
        if not self._shown:
            self._shown = True
            self.open()
            _replace_in_cell(self)
        return None if self.comm is None else super().model_id

    def close(self) -> None:
        """Take it off the page and free it."""
        self._shown = True  # it is not opened again
        super().close()
        self.layout.close()


def _replace_in_cell(widget) -> None:
    """Close what an earlier execution of the running cell showed, and note that this one shows `widget`."""
    parent = getattr(get_ipython(), "get_parent", dict)()
    cell, execution = (parent.get(part, {}).get(key) for part, key in (("metadata", "cellId"), ("header", "msg_id")))
    if not cell or not execution:  # no notebook, or one that doesn't name its cells
        return
    before, widgets = _in_cells.get(cell, (execution, weakref.WeakSet()))
    if before != execution:
        for old in list(widgets):
            old.close()
        widgets = weakref.WeakSet()
    widgets.add(widget)
    _in_cells[cell] = execution, widgets
