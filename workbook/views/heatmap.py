"""TokenHeatmap: a group's rollouts, one cell a token, coloured by any column of its token table.

They stand aligned by position or as text to read (the buttons, or m). Hover over a token to see its
row below, click it (or walk there with the arrow keys and press Enter) to pin it. The same word
then lights up elsewhere, and the panel says who moved the token, and what the recorded steps of a
run did to its word. A second pane shows another column or another step in the same colours. Texts
are never parsed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import numpy as np
import pandas as pd
import traitlets

from workbook.messages import InvalidValue, Stopped, reporting
from workbook.rollouts import token_biography
from workbook.views.live import SCRIPTS, PageWidget, display_widget
from workbook.views.style import (
    apply_theme,
    figure_number,
    limit,
    picture,
    prefix_title,
    printable,
    require_columns,
    visible,
)
from workbook.views.token_look import (
    COLUMN_UNITS,
    MAX_CHARACTERS,
    PALETTE,
    PLACE_COLUMNS,
    ColorScale,
    is_number,
    legend_words,
    name_and_words,
    scale_of,
    to_drawable,
    wire,
)
from workbook.views.tokens import biography_table, describe_token, explanation_details, token_strip

# auto: aligned where whole answers are seen so, else as text to read
MODES = ("auto", "align", "read")
# the column of what each token does to the pinned one
MOVES = "moves pinned"
# rollouts in the picture for where no kernel runs
_PICTURE_ROLLOUTS = 8
# errors of a table that was removed or damaged since it was listed
_UNREADABLE = (ValueError, OSError, KeyError)
_NO_TOKENS = (
    "This run has recorded no tokens so far: wait for its first step, or train with"
    " record_tokens=10, which keeps a table of every tenth."
)


def page_script() -> str:
    """A script for a page without a kernel, which defines renderHeatmap({model, el})."""
    source = (SCRIPTS / "heatmap.js").read_text("utf-8").replace("export default { render };", "")
    palette = f"PALETTE = {json.dumps(PALETTE)};"
    return f"(() => {{\n{source}\n{palette}\nwindow.renderHeatmap = render;\n}})();"


class TokenHeatmap(PageWidget):
    """A widget over a token table, or over the recorded steps of a run.

    table: columns group, rollout, position, token, and whatever is known of each token, coloured as
    `token_strip` does. Or a run, which is anything with token_steps() and tokens(step): a slider
    then chooses among its steps.
    column: the one to begin with, else advantage; of a run dlogp, how far the step moved each
    log-probability.
    group: which one, else the first; of a run the first that the step pushed.
    step: of a run, the recorded step to begin with, else the newest.
    compare: what stands beside, in the same colours: another column, or another recorded step of
    the run.
    title: the result that the figure shows; it stands while the first group and step are shown.
    explain: explanation of a token by all weights, `workbook.probes.TokenExplainer(policy,
    rollouts, lr)` of the rollouts that the first table lists. Pinning then shows who moved the
    token, once a thread has computed it, with progress and Stop; `wait()` waits for it, and
    `explanation` holds it.

    Without a kernel it is a PNG of its first rollouts.
    Raises ValueError for what is missing: columns, places, the group, column or step, or all that a
    run has recorded.
    """

    kind = traitlets.Unicode("heatmap").tag(sync=True)
    palette = traitlets.Dict(PALETTE).tag(sync=True)
    title = traitlets.Unicode().tag(sync=True)
    # of `token_look.wire`
    main = traitlets.Dict().tag(sync=True)
    # the second pane: wire, name and note of another step's table
    other = traitlets.Dict().tag(sync=True)
    groups = traitlets.List().tag(sync=True)
    group = traitlets.Int().tag(sync=True)
    column = traitlets.Unicode().tag(sync=True)
    mode = traitlets.Enum(MODES, "auto").tag(sync=True)
    # what may be compared with, and the one that is; "": nothing
    choices = traitlets.List().tag(sync=True)
    compare = traitlets.Unicode().tag(sync=True)
    # a token's number in the group, -1: none
    pinned = traitlets.Int(-1).tag(sync=True)
    # float32: nats by which each token moved the pinned one
    moves = traitlets.Bytes().tag(sync=True)
    moves_limit = traitlets.Float(1.0).tag(sync=True)
    # lines, tables, and the tokens that are marked
    details = traitlets.Dict().tag(sync=True)
    # recorded steps; empty without a run
    steps = traitlets.List().tag(sync=True)
    step = traitlets.Int(-1).tag(sync=True)
    message = traitlets.Unicode().tag(sync=True)
    # text and share of an explanation under way; {} without one
    busy = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        table,
        column: str | None = None,
        group: int | None = None,
        step: int | None = None,
        compare: str | int | None = None,
        explain: Callable | None = None,
        title: str | None = None,
    ):
        self.run = None if isinstance(table, pd.DataFrame) else table
        steps = self._recorded_steps(step, compare)
        self.explain = explain
        self.explanation = None
        self._number = ""
        # the place whose explanation was asked for last, and the thread that makes it
        self._asked: tuple[int, int] | None = None
        self._worker: threading.Thread | None = None
        self._lock = threading.Lock()

        # the table of the step that is shown
        first_step = max(steps, default=-1) if step is None else step
        self._first_step = first_step
        self._shown_step = first_step
        self.table = to_drawable(table if self.run is None else self.run.tokens(first_step))
        if column is None:
            column = "advantage" if self.run is None else "dlogp"
        column = printable(column)
        require_columns(self.table, () if column == MOVES else (column,), "TokenHeatmap")
        # colours of one scale at all steps, so that they can be compared
        ends = dict.fromkeys((*steps[:1], *steps[-1:]))
        self._ends = [to_drawable(self.run.tokens(one)) for one in ends]

        beside = ""
        if isinstance(compare, str):
            require_columns(self.table, (compare,), "compare=")
            beside = f"column {compare}"
        elif compare is not None:
            beside = f"step {compare}"
        groups = self._groups()
        group = self._first_pushed(groups) if group is None else int(group)
        if group not in groups:
            raise InvalidValue("group", group, f"in the table: choose one of {groups[:8]}")
        # the result, and the group and step that it is of
        self._result = printable(title) if title else None
        self._first_shown = group, first_step
        super().__init__(
            groups=groups,
            group=group,
            steps=steps,
            step=first_step,
            column=column,
            compare=beside,
        )
        self._send_group()
        self.observe(self._regroup, "group")
        self.observe(self._send_group, "compare")
        self.observe(self._explain, "pinned")
        self.observe(self._restep, "step")
        self.on_msg(self._answer)

    def _recorded_steps(self, step, compare) -> list[int]:
        """The run's recorded steps; ValueError without any, and for one asked for that is none."""
        if self.run is None:
            steps = []
        else:
            steps = sorted(map(int, self.run.token_steps()))
            if not steps:
                raise ValueError(_NO_TOKENS)
        for one in (step, compare):
            if isinstance(one, int) and one not in steps:
                known = f"choose one of {steps[:8]}" if steps else _NO_TOKENS
                raise InvalidValue("step", one, f"a recorded step: {known}")
        return steps

    def _first_pushed(self, groups: list[int]) -> int:
        """The first group that the step of a run pushed; else the first."""
        if self.run is not None and "push" in self.table:
            pushed = self.table.loc[self.table["push"].abs() > 0, "group"]
            if len(pushed):
                return int(pushed.iloc[0])
        return groups[0]

    def _groups(self) -> list[int]:
        return [int(label) for label in pd.unique(self.table["group"])]

    @property
    def rows(self) -> pd.DataFrame:
        return self.table[self.table["group"] == self.group]

    def pin(self, rollout: int, position: int) -> None:
        """Pin a token as a click would; ValueError if the group shows no token there."""
        rows = self.rows
        places = np.flatnonzero((rows["rollout"] == rollout) & (rows["position"] == position))
        if not len(places):
            raise InvalidValue(
                "position",
                position,
                "that of a token of this group",
                f"rollout={rollout}, position={position} is no token of group {self.group}.",
            )
        self.pinned = int(places[0])

    def picture(self) -> tuple[dict, dict]:
        """The static half of its mime bundle: the first rollouts of the group, as text."""
        rows = self.rows
        column = self.column
        if column == MOVES:
            moves = np.frombuffer(self.moves, "<f4") if self.moves else np.nan
            rows = rows.assign(**{MOVES: moves})
        compared = [
            one[column]
            for one in self._ends or [self.table]
            if column in one and is_number(one[column])
        ]
        scale = scale_of(column, *compared) if compared else None
        first_rollouts = pd.unique(rows["rollout"])[:_PICTURE_ROLLOUTS]
        rows = rows[rows["rollout"].isin(first_rollouts)]
        spec = token_strip(
            rows, column, self.group, scale=scale, title=self._shown_result
        ).to_dict()
        return picture(prefix_title(apply_theme(spec), self._number))

    @property
    def _shown_result(self) -> str | None:
        """The title that was given, while the group and step that it is of are shown."""
        return self._result if (self.group, self.step) == self._first_shown else None

    def _ipython_display_(self, **_) -> None:
        if not self._number:
            self._number = figure_number(self.title)
            self.title = self._number + self.title
        display_widget(self, self)

    # --- what the page is sent

    def _send_group(self, _=None) -> None:
        """Send the page one group's tokens, and what stands beside them."""
        main = wire(self.rows, self.table, self._ends)
        if self.explain is not None and self.step == self._first_step:
            main["columns"].append(
                {
                    **name_and_words(MOVES),
                    "moves": True,
                    "center": 0,
                    "side": 0,
                    "unit": COLUMN_UNITS[MOVES],
                    "meaning": legend_words(MOVES, ColorScale(1.0)),
                }
            )
        other = {}
        if self.compare.startswith("step "):
            try:
                other = self._other_step(int(self.compare.removeprefix("step ")))
            except _UNREADABLE as error:
                self.message = printable(f"{self.compare} can't be shown: {error}")
        at = "" if self.run is None else f" at step {self.step}"
        columns = [
            name
            for name in self.table
            if is_number(self.table[name]) and name not in {*PLACE_COLUMNS, "reward"}
        ]
        with self.hold_sync():
            title = self._shown_result or f"Tokens of group {self.group}{at}, rollout by rollout"
            self.title = self._number + title
            self.main = main
            self.other = other
            steps = [f"step {step}" for step in self.steps if step != self.step]
            self.choices = steps + [f"column {name}" for name in columns]

    def _other_step(self, step: int) -> dict:
        """Another step's group of the same prompt, or its first group, as the page gets it."""
        table = to_drawable(self.run.tokens(step))
        is_same = table["prompt"].isin(self.rows["prompt"])
        group = table.loc[is_same if is_same.any() else table.index, "group"].iloc[0]
        prompt = "the same" if is_same.any() else "another"
        return {
            **wire(table[table["group"] == group], table, self._ends),
            "name": self.compare,
            "note": f"other rollouts, of {prompt} prompt",
        }

    def _regroup(self, _) -> None:
        with self.hold_sync():
            self.pinned = -1
            self._send_group()

    # --- the steps of a run

    def show_step(self, step: int) -> None:
        """Show the recorded step that is nearest to `step`, and say so if it is another.

        Raises ValueError without a run.
        """
        if self.run is None:
            raise ValueError(
                "This heatmap shows a table and no run, so it has no steps: TokenHeatmap(run) has."
            )
        self.look()
        nearest = min(self.steps, key=lambda known: (abs(known - step), known))
        self.step = nearest
        # it stays another where the nearest can't be read
        if self.step == nearest != step:
            self.message = (
                f"Step {step} has no token table; this is the nearest that was recorded, step"
                f" {nearest}."
            )

    def look(self) -> None:
        """Look for steps that were recorded since, and say so if there are none."""
        before = self.steps
        self.steps = sorted(map(int, self.run.token_steps())) or before
        self.message = ""
        if self.steps == before:
            self.message = f"The newest step that is recorded is step {max(before)}."

    def _restep(self, _) -> None:
        """Show another recorded step, the same word pinned; keep this one if it can't be read."""
        if self.step == self._shown_step:
            return
        pinned = self.rows.iloc[self.pinned] if self.pinned >= 0 else None
        try:
            self.table = to_drawable(self.run.tokens(self.step))
        except _UNREADABLE as error:
            self.message = printable(f"Step {self.step} can't be shown: {error}")
            self.step = self._shown_step
            return
        with self.hold_sync():
            self._shown_step = self.step
            self.message = ""
            self.groups = self._groups()
            if self.group in self.groups:
                self._regroup(None)
            else:
                self.group = self.groups[0]
            if pinned is not None:
                column = "token_id" if "token_id" in pinned else "token"
                rows = self.rows.reset_index(drop=True)
                same = rows[rows[column] == pinned[column]]
                # the one that is nearest to its place
                if len(same):
                    self.pinned = int((same["position"] - pinned["position"]).abs().idxmin())

    def _answer(self, _, content: dict, buffers) -> None:
        if content == {"kind": "stop"}:
            self.stop_explaining()
        if content == {"kind": "look"}:
            self.look()

    # --- the pinned token, and the thread that explains it

    def wait(self) -> TokenHeatmap:
        if self._worker is not None:
            self._worker.join()
        return self

    def stop_explaining(self) -> None:
        """End what is going on between two of its items."""
        self._asked = None

    def _explain(self, _) -> None:
        """Send the page what is known of the pinned token, and ask for who moved it."""
        self.stop_explaining()
        self.moves = b""
        self.details = {}
        self.explanation = None
        self.message = ""
        if not 0 <= self.pinned < len(self.rows):
            return
        row = self.rows.iloc[self.pinned]
        word = visible(row["token"], MAX_CHARACTERS)
        tables = []
        if self.run is not None:
            token = row["token_id"] if "token_id" in row else row["token"]
            tables.append(biography_table(token_biography(self.run, token), word))
        self.details = {"lines": [describe_token(row)], "tables": tables}
        if self.explain is None or self.step != self._first_step:
            return
        self._asked = int(row["rollout"]), int(row["position"])
        self.busy = {"text": "Explaining this token ...", "share": 0.0}
        self._worker = threading.Thread(
            target=self._explain_asked, args=(self._asked,), daemon=True
        )
        self._worker.start()

    def _explain_asked(self, place: tuple[int, int]) -> None:
        """Explain a token, unless another was asked for since; one at a time."""
        explanation = None
        message = ""
        with self._lock:
            try:
                with reporting(lambda *state: self._report(place, *state)):
                    self._report(place)
                    explanation = self.explain(*place)
            except Stopped:
                message = "Stopped: this token is not explained."
            # whatever it is, the page should say it
            except Exception as error:
                message = printable(f"This token can't be explained: {error}")
            if self._asked is place and explanation is not None:
                self._show_explanation(explanation)
            # unless a newer pin waits for the lock
            if self._asked is place or self._asked is None:
                self.busy = {}
                self.message = message or self.message

    def _report(
        self, place: tuple[int, int], done: int = -1, total: int = 0, what: str = ""
    ) -> None:
        if self._asked is not place:
            raise Stopped
        if done >= 0 and total:
            self.busy = {"text": f"{what}: {done} of {total}", "share": done / total}

    def _show_explanation(self, explanation) -> None:
        self.explanation = explanation
        rows = self.rows
        place = ["rollout", "position"]
        nats = explanation.tokens.set_index(place)["moved"]
        # a token that is not listed pushed nothing
        moved = nats.reindex(pd.MultiIndex.from_frame(rows[place])).fillna(0.0).to_numpy()
        known = explanation_details(rows, explanation)
        with self.hold_sync():
            self.moves_limit = limit(moved)
            self.moves = moved.astype("<f4").tobytes()
            self.details = {
                "lines": self.details["lines"] + known["lines"],
                "tables": known["tables"] + self.details["tables"],
                "marked": known["marked"],
            }
