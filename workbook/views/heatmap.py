"""TokenHeatmap: the rollouts of a group under one another, one cell a token, coloured by any column of the token table.

Hover over a token to see its row, click it (or walk there with the arrow keys and press Enter) to pin it. The same
token lights up in the other rollouts, and with `states` the panel below shows which tokens move the pinned one, with
the numbers put into the formula. The page draws only the cells in sight; texts are shown, never parsed.
"""

from __future__ import annotations

import html
from pathlib import Path

import anywidget
import numpy as np
import pandas as pd
import torch
import traitlets

from workbook.rollouts.states import OutputStates
from workbook.views.live import OpenedWhenShown, show
from workbook.views.renderer import picture
from workbook.views.style import limit, printable, printable_table, require, visible
from workbook.views.tokens import token_strip

HERE = Path(__file__).parent
KNOWN = ("advantage", "logp", "dlogp", "credit")  # numbers that describe a token
PLACES = ("group", "rollout", "position", "token", "token_id")  # where a token stands: not something to colour by
MAX_CHARACTERS = 14  # of a token's text in its cell
MAX_COUPLED = 10  # tokens listed below the cells
MAX_POSITIONS = 1_000_000  # of a rollout: the page keeps the place of each
PICTURE_WIDTH, PICTURE_ROLLOUTS = 760, 12  # of the fallback picture: pixels, rows


class TokenHeatmap(OpenedWhenShown, anywidget.AnyWidget):
    """A widget over a token table; a PNG of its first rollouts where no kernel runs.

    table: columns group, rollout, position, token, and whatever is known of each token; numbers are coloured around
    zero, saturating at the 98th percentile of |x|, texts (a category) take one colour each.
    column: the one to begin with.  group: which one, else the first.
    states: `output_states` of the rollouts that the table lists, row by row: pinning then shows what couples.
    lr: learning rate of the step that the pinned token's formula predicts.

    Raises ValueError for missing columns, rows without a place, a group that is not in the table, or states of another
    length.

    `close()` frees the table and the states (100 MB for 512 tokens of SmolLM2); so does running its cell again, and
    dropping one that was never shown.
    """

    _esm = (HERE / "heatmap.js").read_text(encoding="utf-8")  # of a Path anywidget keeps every widget, closed or not
    _css = (HERE / "heatmap.css").read_text(encoding="utf-8")
    title = traitlets.Unicode().tag(sync=True)
    groups = traitlets.List().tag(sync=True)
    group = traitlets.Int().tag(sync=True)
    shape = traitlets.Dict().tag(sync=True)  # tokens, positions, row labels, texts
    columns = traitlets.List().tag(sync=True)  # name, slot in values, limit or levels
    values = traitlets.Bytes().tag(sync=True)  # float32, columns x tokens; a text is the number of its level
    places = traitlets.Bytes().tag(sync=True)  # int32: index into texts, row, position, each of every token
    column = traitlets.Unicode().tag(sync=True)
    filter = traitlets.Dict().tag(sync=True)  # {} or column and value
    pinned = traitlets.Int(-1).tag(sync=True)  # a token's number in the group, -1: none
    coupling = traitlets.Bytes().tag(sync=True)  # float32: K of each token with the pinned one
    coupling_limit = traitlets.Float(1.0).tag(sync=True)
    details = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        table: pd.DataFrame,
        column: str = "advantage",
        group: int | None = None,
        states: OutputStates | None = None,
        lr: float = 1.0,
    ):
        needed = ("group", "rollout", "position", "token", column, *(["advantage"] if states is not None else []))
        require(table, needed, "TokenHeatmap")
        _check_places(table)
        table, column = printable_table(table), printable(column)
        if states is not None and len(states.tokens) != len(table):
            raise ValueError(
                f"states has {len(states.tokens)} tokens and the table {len(table)} rows; "
                "both must come from the same rollouts."
            )
        groups = [int(label) for label in pd.unique(table["group"])]
        group = groups[0] if group is None else int(group)
        _check_group(group, groups)
        self.table, self.states, self.lr = table, states, lr
        super().__init__(groups=groups, group=group, column=column, **self._of_group(group))
        self.observe(self._regroup, "group")
        self.observe(self._explain, "pinned")

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
        """The static half of its mime bundle: the first rollouts of the group, as far as a page is wide."""
        rows = self._drawn_rows()
        few = rows[rows["rollout"].isin(pd.unique(rows["rollout"])[:PICTURE_ROLLOUTS])]
        return picture(token_strip(few, self.column, group=self.group, width=PICTURE_WIDTH).to_dict())

    def to_html(self) -> str:
        """The whole group as an HTML table that needs no script: text escaped, the value as sign and title."""
        rows, column = self._drawn_rows(), self.column
        require(rows, (column,), "TokenHeatmap")
        numeric = _is_number(rows[column])
        body = []
        for rollout, cells in rows.groupby("rollout", sort=False):
            body.append(f"<tr><th>{html.escape(str(rollout))}</th>")
            for token, value in zip(cells["token"], cells[column], strict=True):
                sign = "+" if numeric and value > 0 else "−" if numeric and value < 0 else ""
                hint = html.escape(f"{column} {value:+.4g}" if numeric else f"{column} {value}", quote=True)
                body.append(f'<td title="{hint}">{html.escape(visible(token, MAX_CHARACTERS))}<sup>{sign}</sup></td>')
            body.append("</tr>")
        return f"<table><caption>{html.escape(self.title)}</caption>{''.join(body)}</table>"

    def _drawn_rows(self) -> pd.DataFrame:
        """The rows that are shown, with the coupling of the pinned token as a column where they are coloured by it."""
        rows = self.rows
        if self.column != "coupling" or "coupling" in rows:
            return rows
        return rows.assign(coupling=np.frombuffer(self.coupling, "<f4") if self.coupling else np.nan)

    def _ipython_display_(self, **_) -> None:
        show(self, self)

    def _of_group(self, group: int) -> dict:
        """The traits that hold one group's tokens."""
        rows = self.table[self.table["group"] == group]
        kinds, texts = pd.factorize(rows["token_id"] if "token_id" in rows else rows["token"])
        first = rows["token"].groupby(kinds).first()
        rollouts, labels = pd.factorize(rows["rollout"])
        names = [printable(label) for label in labels]
        if "reward" in rows and _is_number(rows["reward"]):
            rewards = rows["reward"].groupby(rollouts).first()
            names = [f"{name}  reward {rewards[k]:.2f}" for k, name in enumerate(names)]
        columns, values = _encode(rows, self.table)
        if self.states is not None:
            columns.append({"name": "coupling", "slot": -1})
        with np.errstate(over="ignore"):  # beyond float32 is infinite
            values = values.astype("<f4")
        return {
            "title": f"Tokens of group {group}, rollout by rollout",
            "shape": {
                "tokens": len(rows),
                "positions": int(rows["position"].max()) + 1,
                "rows": names,
                "texts": [visible(first[k], MAX_CHARACTERS) for k in range(len(texts))],
            },
            "columns": columns,
            "values": values.tobytes(),
            "places": np.stack([kinds, rollouts, rows["position"]]).astype("<i4").tobytes(),
        }

    def _regroup(self, _) -> None:
        _check_group(self.group, self.groups)
        with self.hold_sync():
            self.pinned, self.details, self.coupling = -1, {}, b""
            for name, value in self._of_group(self.group).items():
                setattr(self, name, value)

    def _explain(self, _) -> None:
        """Send the page what is known of the pinned token and what moves it."""
        if not 0 <= self.pinned < len(self.rows):
            self.coupling, self.details = b"", {}
            return
        rows = self.rows.reset_index(drop=True)
        if self.states is None:
            self.details = {"lines": [_describe(rows.iloc[self.pinned])]}
            return
        here = torch.from_numpy(np.flatnonzero((self.table["group"] == self.group).to_numpy()))
        advantages = torch.as_tensor(rows["advantage"].to_numpy(copy=True))
        coupled = self.states.select(here).coupled(self.pinned, advantages, self.lr)
        with self.hold_sync(), np.errstate(invalid="ignore"):  # inf - inf
            self.coupling_limit = limit(coupled["coupling"])
            self.coupling = coupled["coupling"].to_numpy().astype("<f4").tobytes()
            self.details = explain_pinned(rows, coupled, self.pinned, self.lr)


def explain_pinned(rows: pd.DataFrame, coupled: pd.DataFrame, pinned: int, lr: float) -> dict:
    """A pinned token's explanation: sentences with the formula's numbers, and the tokens that move it most.

    rows: token table of one group.  coupled: `OutputStates.coupled` of the pinned token, row by row.
    """
    amount, token = coupled["contribution"], rows["token"].iloc[pinned]
    same = (rows["token"] == token) if "token_id" not in rows else rows["token_id"] == rows["token_id"].iloc[pinned]
    up, down = amount[rows["advantage"] > 0].sum(), amount[rows["advantage"] < 0].sum()
    top = amount.abs().sort_values(ascending=False, kind="stable").index[:MAX_COUPLED]
    j = int(top[0])
    name, other = (visible(text, MAX_CHARACTERS) for text in (token, rows["token"].iloc[j]))
    k = coupled.iloc[j]
    lines = [
        _describe(rows.iloc[pinned]),
        f"Δ log π({name}) ≈ lr · Σⱼ Aⱼ ⟨hᵢ,hⱼ⟩ ⟨eᵢ−pᵢ, eⱼ−pⱼ⟩ = {amount.sum():+.4g} nats at lr = {lr:g}, "
        "one step on the output layer.",
        f"From rollouts with A > 0: {up:+.4g}; with A < 0: {down:+.4g}. "
        f"From the same token: {amount[same].sum():+.4g}; from other tokens: {amount[~same].sum():+.4g}.",
        f"Largest term, j = {other} in rollout {printable(rows['rollout'].iloc[j])}: "
        f"{lr:g} · ({k['weight']:+.3g}) · {k['hidden']:.4g} · ({k['residual']:+.4g}) = {k['contribution']:+.4g}.",
    ]
    listed = coupled.loc[top, ["weight", "coupling", "contribution"]]
    return {
        "lines": lines,
        "headings": ["A", "K", "moves it by"],
        "coupled": [
            {"index": int(i), "numbers": [x if np.isfinite(x) else None for x in row]}
            for i, row in zip(top, listed.to_numpy().tolist(), strict=True)
        ],
    }


def _describe(row: pd.Series) -> str:
    known = [name for name in KNOWN if name in row and pd.api.types.is_number(row[name])]
    values = ", ".join(f"{name} {row[name]:+.4g}" for name in known)
    place = f"position {row['position']} of rollout {printable(row['rollout'])}"
    return f"{visible(row['token'], MAX_CHARACTERS)} at {place}: {values}"


def _check_group(group: int, groups: list[int]) -> None:
    if group not in groups:
        raise ValueError(f"group={group!r} is not in the table: choose one of {groups[:8]}.")


def _check_places(table: pd.DataFrame) -> None:
    """Raise a ValueError unless there are tokens, each in a group and at a position that are whole numbers."""
    if not len(table):
        raise ValueError("TokenHeatmap needs a token to show; the table has no rows.")
    for name, least, most in (("group", -(2**31), 2**31 - 1), ("position", 0, MAX_POSITIONS - 1)):
        values = pd.to_numeric(table[name], errors="coerce")
        wrong = np.flatnonzero(~((values % 1 == 0) & values.between(least, most)))
        if len(wrong):
            raise ValueError(
                f"{name} must be a whole number from {least} to {most}; row {wrong[0]} of the table has "
                f"{str(table[name].iloc[wrong[0]])[:40]!r}."
            )


def _is_number(column: pd.Series) -> bool:
    return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)


def _encode(rows: pd.DataFrame, table: pd.DataFrame) -> tuple[list[dict], np.ndarray]:
    """Columns to colour by, and their values as numbers (columns, tokens); levels and limits are of the whole table."""
    columns, values = [], []
    for name in rows.columns:
        if name in PLACES:
            continue
        if _is_number(rows[name]):
            columns.append({"name": name, "slot": len(values), "limit": limit(table[name].to_numpy(dtype=float))})
            values.append(rows[name].to_numpy(dtype=float))
        else:
            levels = sorted(map(str, table[name].dropna().unique()))
            ranks = {level: rank for rank, level in enumerate(levels)}
            columns.append({"name": name, "slot": len(values), "levels": [visible(level, 24) for level in levels]})
            values.append(np.array([ranks[str(v)] if pd.notna(v) else np.nan for v in rows[name]], dtype=float))
    return columns, np.array(values)
