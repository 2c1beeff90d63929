"""TokenHeatmap: the rollouts of a group, one cell a token, coloured by any column of the token table.

They stand aligned by position or as text to read (the buttons, or m). Hover over a token to see its row below, click it
(or walk there with the arrow keys and press Enter) to pin it. The same token lights up in the other rollouts, and the
panel explains the pinned one: with an objective in the table by the loss's own formula, over a run's recorded steps by
what each did to that word, and with `states` by the tokens that move it, always with the numbers put in. A second pane
shows another column, step or table in the same colours. The page draws only what is in sight; texts are never parsed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import anywidget
import numpy as np
import pandas as pd
import torch
import traitlets

from workbook.rollouts.states import OutputStates
from workbook.views.explained import objectives_details
from workbook.views.explaining import Explains
from workbook.views.heatmap_steps import StepWalk
from workbook.views.live import OpenedWhenShown, show
from workbook.views.loss_objectives import objective_table
from workbook.views.loss_term import describe_push
from workbook.views.pinned import describe_token, explain_pinned, page_biography, word_of
from workbook.views.reading import READING, Pane, is_cut, reading_html, strips
from workbook.views.recorded_steps import UNREADABLE, RecordedSteps
from workbook.views.renderer import picture
from workbook.views.style import limit, printable, require, visible
from workbook.views.token_cells import MAX_CHARACTERS, prepare
from workbook.views.token_compare import Beside, beside, choices, label_of
from workbook.views.token_panes import Panes
from workbook.views.token_scale import MOVES, PALETTE

HERE = Path(__file__).parent
PARTS = (
    "heatmap_table.js",
    "heatmap_biography.js",
    "heatmap_panel.js",
    "heatmap_steps.js",
    "heatmap_pane.js",
    "heatmap.js",
)  # one module
MODES = ("auto", "align", "read")  # auto: aligned where whole answers are seen so, else as text to read
PICTURE_WIDTH, PICTURE_ROLLOUTS = 720, 8  # of the fallback picture: pixels, rollouts


class TokenHeatmap(StepWalk, Explains, OpenedWhenShown, anywidget.AnyWidget):
    """A widget over a token table, or over the recorded steps of a run; a PNG of its first rollouts without a kernel.

    table: columns group, rollout, position, token, and whatever is known of each token. Signed numbers are coloured
    around zero (ratios around one), saturating at the 98th percentile of |x|, one-sided ones (an entropy, a
    log-probability) from light at zero to dark, and texts (a category) take one colour each. An objective in
    `table.attrs` gives a pinned token the loss's formula. Or a run, which is anything with token_steps() and
    tokens(step): a slider then chooses among its steps, and a pinned word shows what each of them did to it.
    column: the one to begin with, else advantage; of a run dlogp, how far the step moved each log-probability.
    group: which one, else the first; of a run the first that the step pushed.
    explain: explanation of a token by all weights, `workbook.probes.TokenExplainer(policy, rollouts, lr)` of the
    rollouts that the first table lists: pinning then shows who moved the token, as soon as that is computed (in a
    thread, with progress and Stop; `wait()` waits for it, and `explanation` holds it).
    states: `output_states` of the rollouts that the first table lists, row by row: without explain, pinning then shows
    what couples through the output layer.  lr: learning rate of the step that this predicts.
    step: of a run, the recorded step to begin with, else the newest.
    compare: what stands beside, in the same colours: another column, another recorded step of the run,
    another token table, or the pushes of the same rollouts under another objective, a dict of what changes.
    mode: "align" by position, "read" as text, or "auto": aligned where whole answers fit the page, else as text.

    Raises ValueError for missing columns, rows without a place, a group or a step that is not there, states of another
    length, or a run that has recorded nothing.

    `close()` frees the table and the states (100 MB for 512 tokens of SmolLM2); so does running its cell again, and
    dropping one that was never shown.
    """

    # texts: of a Path anywidget keeps every widget, closed or not
    _esm = f"const PALETTE = {json.dumps(PALETTE)};\n" + "".join((HERE / name).read_text("utf-8") for name in PARTS)
    _css = (HERE / "heatmap.css").read_text(encoding="utf-8")
    title = traitlets.Unicode().tag(sync=True)
    prompt = traitlets.Unicode().tag(sync=True)
    groups = traitlets.List().tag(sync=True)
    group = traitlets.Int().tag(sync=True)
    shape = traitlets.Dict().tag(sync=True)
    columns = traitlets.List().tag(sync=True)  # of `token_cells.wire`, as are shape, values and places
    values = traitlets.Bytes().tag(sync=True)
    places = traitlets.Bytes().tag(sync=True)
    column = traitlets.Unicode().tag(sync=True)
    mode = traitlets.Enum(MODES, "auto").tag(sync=True)
    choices = traitlets.List().tag(sync=True)  # what may be compared with
    compare = traitlets.Unicode().tag(sync=True)  # one of them, "": nothing
    other = traitlets.Dict().tag(sync=True)  # the second pane's wire, title, names, column, note, same; {} without one
    filter = traitlets.Dict().tag(sync=True)  # {} or column and value
    pinned = traitlets.Int(-1).tag(sync=True)  # a token's number in the group, -1: none
    coupling = traitlets.Bytes().tag(sync=True)  # float32: of each token with the pinned one, K or what it moves it by
    coupling_limit = traitlets.Float(1.0).tag(sync=True)
    details = traitlets.Dict().tag(sync=True)
    steps = traitlets.List().tag(sync=True)  # recorded ones; empty without a run
    step = traitlets.Int(-1).tag(sync=True)
    follow = traitlets.Bool(False).tag(sync=True)  # whether to show each new step when there is one
    looked = traitlets.Int(0).tag(sync=True)  # how often the page's question for new steps was answered
    message = traitlets.Unicode().tag(sync=True)
    busy = traitlets.Dict().tag(sync=True)  # text and share of an explanation that is made; {} without one
    biography = traitlets.Dict().tag(sync=True)  # of the pinned word, in columns; {} without one

    def __init__(
        self,
        table,
        column: str | None = None,
        group: int | None = None,
        states: OutputStates | None = None,
        lr: float = 1.0,
        step: int | None = None,
        compare: str | int | dict | pd.DataFrame | None = None,
        mode: str = "auto",
        explain: Callable | None = None,
    ):
        if mode not in MODES:
            raise ValueError(f"mode={mode!r} is none of {', '.join(MODES)}.")
        self.source = None if isinstance(table, pd.DataFrame) else RecordedSteps(table)
        steps = [] if self.source is None else self.source.steps
        if step is not None and step not in steps:
            valid = f"choose one of {steps[:8]}" if steps else "it is a table and no run"
            raise ValueError(f"step={step!r} is not recorded: {valid}.")
        step = step if step is not None else max(steps, default=-1)
        column = printable(column or ("advantage" if self.source is None else "dlogp"))
        self.states, self.lr, self._first_step = states, lr, step
        self._start_explaining(explain)
        self._take(table if self.source is None else self.source.table(step), column)
        if states is not None and len(states.tokens) != len(self.table):
            raise ValueError(
                f"states has {len(states.tokens)} tokens and the table {len(self.table)} rows; "
                "both must come from the same rollouts."
            )
        # colours of one scale at all steps, so that they can be compared
        self._ends = [] if self.source is None else list(map(prepare, self.source.ends()))
        label, make = label_of(compare, self.table, self.objective, steps)
        self._given = (label, make) if make else None
        groups = self._groups()
        group = self._pushed_group(groups) if group is None else int(group)
        _check_group(group, groups)
        self._shown_step, self._word = step, None  # the row of the word that stays pinned from step to step
        super().__init__(groups=groups, group=group, column=column, steps=steps, step=step, compare=label, mode=mode)
        self._send_group()
        self.observe(self._regroup, "group")
        self.observe(self._send_group, "compare")
        self.observe(self._explain, "pinned")
        self.observe(self._restep, "step")
        self.on_msg(self._answer)

    # -- tables and groups ---------------------------------------------------------------------------------------------

    def _take(self, table: pd.DataFrame, column: str) -> None:
        """Make a table the one that is shown; ValueError if it can't be."""
        require(table, ("group", "rollout", "position", "token"), "TokenHeatmap")
        objective, table = table.attrs.get("objective"), prepare(table)
        needed = ["advantage"] if self.states is not None else []
        require(table, [column, *needed] if column not in ("coupling", MOVES) else needed, "TokenHeatmap")
        self.table, self.objective = table, objective if isinstance(objective, dict) else None

    def _groups(self) -> list[int]:
        return [int(label) for label in pd.unique(self.table["group"])]

    def _pushed_group(self, groups: list[int]) -> int:
        """The first group, of a run the first that its step pushed."""
        if self.source is None or "push" not in self.table:
            return groups[0]
        pushed = self.table.loc[self.table["push"].abs() > 0, "group"]
        return int(pushed.iloc[0]) if len(pushed) else groups[0]

    @property
    def rows(self) -> pd.DataFrame:
        """The rows of the table that are shown; `pinned` counts in them."""
        return self.table[self.table["group"] == self.group]

    def pin(self, rollout: int, position: int) -> None:
        """Pin a token as a click would; ValueError if the group shows no token there."""
        rows = self.rows
        places = np.flatnonzero((rows["rollout"] == rollout) & (rows["position"] == position))
        if not len(places):
            raise ValueError(f"rollout={rollout}, position={position} is no token of group {self.group}.")
        self.pinned = int(places[0])

    def picture(self) -> tuple[dict, dict]:
        """The static half of its mime bundle: the first rollouts of the group, as far as a page is wide.

        Beside the picture stands the same as HTML to read, which the book shows on narrow pages.
        """
        panes = self._drawn(PICTURE_ROLLOUTS)
        wrap = self.mode == "read" or (self.mode == "auto" and is_cut(panes, PICTURE_WIDTH))
        data, about = picture(strips(panes, PICTURE_WIDTH, wrap).to_dict())
        return data | {READING: reading_html(panes, self.title)}, about

    def to_html(self) -> str:
        """The whole group as HTML to read that needs no script: wrapped text, escaped, the value as sign and title."""
        return reading_html(self._drawn(), self.title)

    def _drawn(self, rollouts: int | None = None) -> list[Pane]:
        coupling = np.frombuffer(self.coupling, "<f4") if self.coupling else None
        return self._panes.drawn(self.column, rollouts, coupling, self.coupling_limit)

    def _ipython_display_(self, **_) -> None:
        show(self, self)

    # -- what the page is sent -----------------------------------------------------------------------------------------

    def _send_group(self, _=None) -> None:
        """Send the page one group's tokens, and what stands beside them."""
        at = "" if self.source is None else f" at step {self.step}"
        self._panes = Panes(self.table, self.group, self._ends, self._read_beside())
        sent = self._panes.traits(f"Tokens of group {self.group}{at}, rollout by rollout")
        if column := self._pinned_column():
            sent["columns"].append({"name": column, "slot": -1})
        steps = [step for step in self.steps if step != self.step]
        with self.hold_sync():
            for name, value in sent.items():
                setattr(self, name, value)
            self.choices = choices(self.table, steps, self._given and self._given[0])

    def _read_beside(self) -> Beside | None:
        """What the menu asks for; None, and a message, where it can't be read."""
        if not self.compare:
            return None
        make = self._given[1] if self._given and self._given[0] == self.compare else None
        try:
            given = prepare(make(self.table.copy(), self.objective)) if make else None
            return beside(self.compare, self.table, self.step, getattr(self.source, "table", None), given)
        except UNREADABLE as error:
            self.message = printable(f"{self.compare} can't be shown: {error}")
            return None

    def _pinned_column(self) -> str:
        """What the column is called whose numbers belong to the pinned token; "" where there is none."""
        if self.explain is not None and self.step == self._first_step:
            return MOVES
        return "" if self._states_of(self.step) is None else "coupling"

    def _states_of(self, step: int) -> OutputStates | None:
        """The output states of the rows that are shown: they were given for one step's."""
        return self.states if step == self._first_step else None

    def _regroup(self, _) -> None:
        _check_group(self.group, self.groups)
        with self.hold_sync():
            self.pinned, self.details, self.coupling, self.biography = -1, {}, b"", {}
            self.stop_explaining()
            self._send_group()

    def _explain(self, _) -> None:
        """Send the page what is known of the pinned token and what moves it."""
        if not 0 <= self.pinned < len(self.rows):
            self.coupling, self.details, self.biography, self._word = b"", {}, {}, None
            self.stop_explaining()
            return
        rows = self.rows.reset_index(drop=True)
        self._word = rows.iloc[self.pinned]
        loss = describe_push(rows, self.pinned, self.objective) if self.objective else []
        states, self.explanation = self._states_of(self.step), None
        if states is not None and self.explain is None:
            self._explain_coupling(rows, states, loss)
        else:
            self.coupling = b""
            self.details = {"lines": [describe_token(rows.iloc[self.pinned])], "loss": loss}
        if objectives := self._objectives(rows):
            self.details = self.details | {"objectives": objectives}
        self._send_biography()
        if self._pinned_column() == MOVES:
            self._ask(rows.iloc[self.pinned])

    def _objectives(self, rows: pd.DataFrame) -> dict:
        """The pinned token's push under several objectives; {} where the table does not have the numbers."""
        if "advantage" not in rows:
            return {}
        self.table.attrs["objective"] = self.objective
        try:
            return objectives_details(objective_table(self.table, self.group, self.pinned))
        except UNREADABLE:
            return {}

    def _explain_coupling(self, rows: pd.DataFrame, states: OutputStates, loss: list[str]) -> None:
        here = torch.from_numpy(np.flatnonzero((self.table["group"] == self.group).to_numpy()))
        advantages = torch.as_tensor(rows["advantage"].to_numpy(copy=True))
        coupled = states.select(here).coupled(self.pinned, advantages, self.lr)
        with self.hold_sync(), np.errstate(invalid="ignore"):  # inf - inf
            self.coupling_limit = limit(coupled["coupling"])
            self.coupling = coupled["coupling"].to_numpy().astype("<f4").tobytes()
            self.details = explain_pinned(rows, coupled, self.pinned, self.lr) | {"loss": loss}

    def _send_biography(self) -> None:
        """Send the page what each recorded step did to the pinned word."""
        if self.source is None:
            return
        row = self.rows.iloc[self.pinned]
        column, word = word_of(row)
        lived = self.source.biography(word, column)
        self.biography = page_biography(lived, visible(row["token"], MAX_CHARACTERS))


def _check_group(group: int, groups: list[int]) -> None:
    if group not in groups:
        raise ValueError(f"group={group!r} is not in the table: choose one of {groups[:8]}.")
