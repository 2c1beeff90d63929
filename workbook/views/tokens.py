"""Token charts: a group's rollouts as coloured text, and what is known of a pinned token."""

from functools import partial

import altair as alt
import numpy as np
import pandas as pd

from workbook.messages import InvalidValue
from workbook.views.figures import by_sign, rule
from workbook.views.style import (
    NEUTRAL,
    SERIES,
    WIDTH,
    describe_rows,
    finish,
    printable,
    printable_table,
    require_columns,
    titled,
    tooltips,
    visible,
)
from workbook.views.token_look import (
    COLUMN_UNITS,
    COLUMN_WORDS,
    MARK_MEANINGS,
    MAX_CHARACTERS,
    PALETTE,
    ColorScale,
    are_words,
    is_number,
    legend_words,
    level_name,
    mark,
    number,
    prompt_and_answer,
    rank_levels,
    readable,
    rollout_names,
    scale_of,
)

# pixels of a line, of a character, beside the text in its cell, and between two words
_LINE_HEIGHT = 29
_CHARACTER_WIDTH = 7.7
_CELL_MARGIN = 5.0
_WORD_SPACE = 7.0
# characters of a prompt that is the chart's title; a longer one is named by its group
_MAX_TITLE = 60


def token_strip(
    table: pd.DataFrame,
    column: str = "advantage",
    group: int | None = None,
    width: int = WIDTH,
    scale: ColorScale | None = None,
    title: str | None = None,
) -> alt.LayerChart:
    """Rollouts of one group as text, one cell a token, coloured by `column`.

    table: a token table (columns group, rollout, position, token and `column`).  group: which one,
    else the first.  width: pixels at which lines are broken.  scale: the colours of another chart,
    to compare with it.  title: the result that it shows; else its prompt and `column` stand there.

    A signed number is coloured around zero (a ratio around one), saturating at the 98th percentile
    of |x|, with its sign in the cell's corner. A one-sided number goes from light at zero to dark.
    A text (a category) takes one colour each. Where a column `stopped` says what took a token's
    gradient away, the other corner has a mark.
    """
    require_columns(table, ("group", "rollout", "position", "token", column), "token_strip")
    table = printable_table(table)
    group = table["group"].iloc[0] if group is None else group
    groups = sorted(set(table["group"]))
    if group not in groups:
        raise InvalidValue("group", group, f"in the table: choose one of {groups[:8]}")
    rows = table[table["group"] == group].reset_index(drop=True)
    if not is_number(table[column]):
        scale = None
    elif scale is None:
        scale = scale_of(column, table[column])
    cells = _lines(rows, width).join(_looks(rows, column, table[column], scale))

    prompt, answer = prompt_and_answer(rows)
    head = prompt
    if not 0 < len(prompt) <= _MAX_TITLE:
        head = f"Group {group}"
        if "step" in table and table["step"].nunique() == 1:
            head += f" at step {table['step'].iloc[0]}"
    head = f"{head}: {COLUMN_WORDS.get(column, [column])[0]} by token"
    notes = [head] if title else []
    notes += [f"the right answer is {answer}"] if answer else []
    notes += _legend(rows[column], scale)
    notes += [
        f"{sign} {meaning}"
        for sign, meaning in MARK_MEANINGS.items()
        if (cells["mark"] == sign).any()
    ]
    return finish(
        _layers(cells, column, scale, width),
        printable(title) if title else head,
        "; ".join(notes),
        f"{cells['rollout'].nunique()} rollouts with up to {rows['position'].max() + 1} tokens.",
        height=alt.Step(_LINE_HEIGHT),
    )


def _legend(values: pd.Series, scale: ColorScale | None) -> list[str]:
    """Words for the colours, and for values beyond their ends."""
    if scale is None:
        return ["one cell a token"]
    words = [legend_words(values.name, scale)]
    low, high = scale.ends
    beyond = []
    if values.min() < low:
        beyond.append(values.min())
    if values.max() > high:
        beyond.append(values.max())
    if beyond:
        is_around_zero = not scale.side and not scale.center
        ends = f"±{scale.limit:.2g}" if is_around_zero else f"{low:.2g} and {high:.2g}"
        extremes = " and ".join(map(scale.format, beyond))
        words.append(f"darkest from {ends} on; extreme {extremes}")
    return words


def _looks(
    rows: pd.DataFrame, column: str, everywhere: pd.Series, scale: ColorScale | None
) -> pd.DataFrame:
    """Value, its text, sign, ink and mark of each token.

    The value of a category is the number of its level in the whole table.
    """
    if scale is not None:
        values = rows[column]
        shown = values.map(scale.format)
        signs = scale.signs(values)
        inks = scale.inks(values)
    else:
        levels, ranks = rank_levels(rows[column], everywhere)
        values = [None if np.isnan(rank) else int(rank) for rank in ranks]
        shown = ["unknown" if k is None else level_name(column, levels[k]) for k in values]
        signs = ""
        palette = PALETTE["categories"]["inks"]
        inks = ["#000000" if k is None else palette[k % len(palette)] for k in values]
    looks = {"shown": shown, "sign": signs, "ink": inks, "value": values, "mark": ""}
    if "stopped" in rows:
        looks["mark"] = rows["stopped"].map(mark)
        looks["stopped"] = rows["stopped"].astype(object)
    return pd.DataFrame(looks, index=rows.index)


def _layers(
    cells: pd.DataFrame, column: str, scale: ColorScale | None, width: int
) -> alt.LayerChart:
    """Cells, their texts, signs and marks, and the name of each rollout above its lines."""
    cells = cells.assign(middle=(cells["left"] + cells["right"]) / 2)
    x = alt.X("left:Q", axis=None).scale(domain=[0, width], nice=False)
    y = alt.Y("row:N", sort=list(dict.fromkeys(cells["row"])), axis=None)
    hints = ["text:N", "position:Q", "rollout:N", alt.Tooltip("shown:N", title=column)]
    if "stopped" in cells:
        hints.append("stopped:N")
    # the padding holds half of the label at the ramp's end
    unit = f" ({COLUMN_UNITS[column]})" if column in COLUMN_UNITS else ""
    legend = alt.Legend(title=column + unit, orient="top", offset=4, padding=14)
    if scale is not None:
        color = alt.Color("value:Q", legend=legend).scale(scale.vega())
    else:
        levels = cells.dropna(subset="value").drop_duplicates("shown").sort_values("value")
        fills = [SERIES[int(k) % len(SERIES)] for k in levels["value"]]
        color = alt.Color("shown:N", legend=legend).scale(
            domain=levels["shown"].tolist(), range=fills
        )
    base = alt.Chart(cells).encode(y=y)
    tokens = base.transform_filter("isValid(datum.position)").encode(tooltip=hints)
    inks = alt.Color("ink:N", scale=None)
    fill = alt.condition("isValid(datum.value)", color, alt.value("#ffffff"))
    corner = {"fontWeight": "bold", "dy": -8}
    layers = [
        tokens.mark_rect(stroke="white", strokeWidth=1).encode(x=x, x2="right:Q", color=fill),
        tokens.mark_text(font="monospace", dy=3).encode(x="middle:Q", text="text:N", color=inks),
        tokens.mark_text(align="right", dx=-1, **corner).encode(
            x="right:Q", text="sign:N", color=inks
        ),
    ]
    if (cells["mark"] != "").any():
        marks = tokens.mark_text(align="left", dx=1, dy=-8)
        layers.append(marks.encode(x="left:Q", text="mark:N", color=inks))
    names = base.transform_filter("!isValid(datum.position)").mark_text(
        align="left", color=NEUTRAL, dy=5
    )
    return alt.layer(
        *layers, names.encode(x="left:Q", text="text:N"), view=alt.ViewConfig(stroke=None)
    )


def _lines(rows: pd.DataFrame, width: float) -> pd.DataFrame:
    """Cells of text in lines of a width; above each rollout stands a line for its name.

    Columns text, rollout, position, row (the line), left and right (pixels).
    """
    gap = _WORD_SPACE if are_words(rows["token"]) else 0.0
    labels = rollout_names(rows)
    longest = int(width // _CHARACTER_WIDTH) - 1
    cells = {}
    for rollout, answer in rows.groupby("rollout", sort=False):
        label = labels[answer.index[0]]
        # rows are told apart by their text: the space makes the name's another than any line's
        cells[f"name {rollout}"] = (label, rollout, None, f"{label} ", 0.0, 0.0)
        line = 0
        left = 0.0
        for index, token, position in zip(
            answer.index, answer["token"], answer["position"], strict=True
        ):
            text = readable(token).replace("\n", "⏎").replace("\t", "⇥")
            if len(text) > longest:
                text = text[: longest - 1] + "…"
            size = len(text) * _CHARACTER_WIDTH + _CELL_MARGIN
            # a full line ends before the token, a line of the text behind it
            if left and left + size > width:
                line += 1
                left = 0.0
            cells[index] = (text, rollout, position, f"{label} line {line}", left, left + size)
            left += size + gap
            if "⏎" in text:
                line += 1
                left = 0.0
    columns = ["text", "rollout", "position", "row", "left", "right"]
    return pd.DataFrame.from_dict(cells, orient="index", columns=columns)


# --- the panel of a pinned token


_signed = partial(number, signed=True)
# columns of numbers that describe a token
_DESCRIBED_COLUMNS = ("advantage", "logp", "dlogp", "credit")
# tokens that are listed
_MAX_MOVERS = 10
# nats; a share of a smaller movement says nothing
_LEAST_MOVEMENT = 1e-4


def describe_token(row: pd.Series) -> str:
    """One sentence: a token, its place, and what its row knows of it."""
    values = [
        f"{name} {_signed(row[name])}"
        for name in _DESCRIBED_COLUMNS
        if name in row and pd.api.types.is_number(row[name])
    ]
    stopped = row.get("stopped", "")
    if mark(stopped):
        values.append(f"stopped by {visible(stopped, MAX_CHARACTERS, space=' ')}")
    place = f"position {row['position']} of rollout {visible(row['rollout'])}"
    return f"{visible(row['token'], MAX_CHARACTERS)} at {place}: {', '.join(values)}"


def biography_table(lived: pd.DataFrame, word: str) -> dict:
    """What the recorded steps did to a word, as the panel shows it.

    lived: columns step, places, logp, logp_after, push.
    """
    largest = lived["push"].abs().max() or 1.0
    cells = []
    for row in lived.itertuples():
        push = 0.0 if np.isnan(row.push) else row.push
        logps = [number(row.logp), number(row.logp_after)]
        bar = {"value": push / largest}
        cells.append([f"{row.step:.0f}", f"{row.places:.0f}", *logps, bar, _signed(row.push)])
    title = f"What the recorded steps did to “{word}”: means over its places"
    return _table(title, ["step", "places", "logp before", "after", "", "push"], cells)


def _table(
    title: str, headings: list[str], cells: list[list], indices: list[int] | None = None
) -> dict:
    """A table of the panel; indices: of the token to which each row leads, -1 for none."""
    indices = indices or [-1] * len(cells)
    rows = [{"cells": row, "index": index} for row, index in zip(cells, indices, strict=True)]
    return {"title": title, "headings": headings, "rows": rows}


def explanation_details(rows: pd.DataFrame, explanation) -> dict:
    """An explanation as the panel shows it: sentences, tables, and the tokens that it marks.

    rows: of the group that is shown.
    The sentences: how much of the movement is explained, what same and other words did, and the
    output layer's part.
    """
    # where in the group a token stands, by rollout and position
    places = zip(rows["rollout"], rows["position"], strict=True)
    index_of = {place: index for index, place in enumerate(places)}
    movers = explanation.movers(_MAX_MOVERS)
    indices = [index_of.get((one.rollout, one.position), -1) for one in movers.itertuples()]
    return {
        "lines": _explanation_lines(explanation),
        "tables": [_sources_table(explanation), _movers_table(movers, indices)],
        "marked": [index for index in indices if index >= 0],
    }


def _explanation_lines(e) -> list[str]:
    """An explanation in sentences."""
    name = visible(e.token, MAX_CHARACTERS)
    step = {"sgd": "SGD", "adamw": "AdamW"}.get(e.optimizer, e.optimizer)
    has_moved = abs(e.measured) > _LEAST_MOVEMENT
    share = "It hardly moved, so a share of it says little."
    if has_moved:
        share = (
            f"Explained: {_percent(e.explained)}; the rest is the step's curvature, of second order"
            " in lr."
        )
    is_same = e.tokens["token"] == e.token
    same = e.tokens.loc[is_same, "moved"].sum()
    other = e.tokens.loc[~is_same, "moved"].sum()
    lines = [
        (
            f"One step of {step} at lr = {e.lr:.3g} moved {name} by {_signed(e.measured)} nats. To"
            f" first order, through all weights, the pushes of {len(e.tokens):,} tokens move it by"
            f" {_signed(e.predicted)}. {share}"
        ),
        f"From the same word, {name}: {_signed(same)}; from other words: {_signed(other)}.",
    ]
    if np.isfinite(e.output_layer):
        part = ""
        if has_moved:
            part = f", {_percent(e.output_layer / e.measured)} of the movement"
        lines.append(
            f"Through the output layer alone: {_signed(e.output_layer)} nats{part}. That is a"
            " proxy: it leaves out what goes through every other weight."
        )
    return lines


def _sources_table(e) -> dict:
    """Who moved the token: a row a source, with its bar, nats and share."""
    parts = e.parts()
    largest = parts["moved"].abs().max() or 1.0
    shares = parts["moved"] / e.predicted
    cells = []
    for one, share in zip(parts.itertuples(), shares, strict=True):
        bar = {"value": one.moved / largest}
        moved = [bar, _signed(one.moved), _percent(share)]
        cells.append([one.source, f"{one.tokens:,}", *moved])
    return _table("Who moved it", ["source", "tokens", "", "nats", "share"], cells)


def _movers_table(movers: pd.DataFrame, indices: list[int]) -> dict:
    """The tokens that moved it most, a row each, with the terms of the product."""
    largest = movers["moved"].abs().max() or 1.0
    cells = []
    for one in movers.itertuples():
        token = visible(one.token, MAX_CHARACTERS)
        place = [token, f"{one.rollout}", f"{one.position}", one.source]
        terms = [_signed(one.advantage), _signed(one.push), _signed(one.product)]
        bar = {"value": one.moved / largest}
        cells.append([*place, *terms, bar, _signed(one.moved)])
    headings = ["token", "rollout", "position", "source", "A", "w A", "⟨∇ᵢ, ∇ⱼ⟩", "", "nats"]
    title = "Tokens that moved it most: nats = lr · w A · ⟨∇log πᵢ, ∇log πⱼ⟩"
    return _table(title, headings, cells, indices)


def _percent(share: float) -> str:
    form = ".2g" if abs(share) < 0.1 else ".0f"
    return f"{100 * share:{form}} %".replace("-", "−")


def explained_chart(explanations) -> alt.FacetChart:
    """Who moved each of some tokens, a panel for each: nats by source.

    A tick shows what goes through the output layer alone.  explanations: a sequence of
    `Explanation`.
    """
    tables = []
    for e in explanations:
        token = visible(e.token, MAX_CHARACTERS)
        title = f"{token}: {_signed(e.measured)}, explained {_percent(e.explained)}"
        tables.append(e.parts().assign(pinned=title))
    table = pd.concat(tables, ignore_index=True)
    present = set(table["source"])
    sources = [source for source in explanations[0].sources if source in present]
    x = alt.X("moved:Q", title="nats").axis(tickCount=4, format="~g")
    y = alt.Y("source:N", sort=sources, title=None)
    base = alt.Chart().encode(y=y.axis(labelLimit=180))
    # a title in two lines is no wider than its panel
    head = alt.Header(labelExpr="split(datum.label, ', ')")
    hints = tooltips(table, "source", "pinned", "tokens", "moved", "output_layer", form="+.4f")
    ticks = base.transform_filter("isValid(datum.output_layer)").mark_tick(
        color="black", thickness=2.5, size=14
    )
    layers = [
        base.mark_bar().encode(x=x, color=by_sign("moved"), tooltip=hints),
        rule(0, "x", color="black"),
        ticks.encode(x="output_layer:Q"),
    ]
    chart = alt.layer(*layers, data=table).properties(width=168, height=alt.Step(22))
    pinned = table["pinned"].unique().tolist()
    column = alt.Column("pinned:N", sort=pinned, title=None, header=head)
    return titled(
        chart.facet(column=column),
        "A token is moved by its own push and by others'",
        "nats to first order, by whose push; blue: up, orange: down; black tick: through the output"
        " layer alone",
        describe_rows(table, "pinned", "source", value="moved", form="+.3f"),
    )
