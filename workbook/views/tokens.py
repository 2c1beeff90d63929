"""Token charts: a group's rollouts as text coloured by a column, and what is known of a pinned
token as a panel.
"""

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
    printable_table,
    require_columns,
    titled,
    tooltips,
    visible,
)
from workbook.views.token_look import (
    MAX_CHARACTERS,
    MEANINGS,
    PALETTE,
    WORDS,
    ColorScale,
    are_words,
    asked,
    is_number,
    legend_words,
    level_name,
    mark,
    number,
    rank_levels,
    readable,
    rollout_names,
    scale_of,
)

LINE_HEIGHT, CHARACTER = 29, 7.7  # pixels
MAX_TITLE = 60  # characters of a prompt that stands in one
MARGIN, SPACE = 5.0, 7.0  # pixels: within a cell beside its text, between two words


def token_strip(
    table: pd.DataFrame,
    column: str = "advantage",
    group: int | None = None,
    width: int = WIDTH,
    scale: ColorScale | None = None,
) -> alt.LayerChart:
    """Rollouts of one group as text, one cell a token, coloured by `column`; lines are broken at
    `width` pixels.

    table: a token table (columns group, rollout, position, token and `column`).  group: which one,
    else the first. A signed number is coloured around zero (a ratio around one), saturating at the
    98th percentile of |x|, with its sign in the cell's corner; a one-sided one from light at zero
    to dark; text (a category) takes one colour each. Where a column `stopped` says what took a
    token's gradient away, the other corner has a mark.
    scale: the colours of another chart, to compare with it.
    """
    require_columns(table, ("group", "rollout", "position", "token", column), "token_strip")
    table = printable_table(table)
    group = table["group"].iloc[0] if group is None else group
    if group not in set(table["group"]):
        raise InvalidValue(
            "group", group, f"in the table: choose one of {sorted(set(table['group']))[:8]}"
        )
    rows = table[table["group"] == group].reset_index(drop=True)
    scale = (scale or scale_of(column, table[column])) if is_number(table[column]) else None
    cells = _lines(rows, width).join(_looks(rows, column, table[column], scale))
    at = (
        f" at step {table['step'].iloc[0]}"
        if "step" in table and table["step"].nunique() == 1
        else ""
    )
    prompt, answer = asked(rows)
    head = prompt if 0 < len(prompt) <= MAX_TITLE else f"Group {group}{at}"
    marks = [f"{sign} {MEANINGS[sign]}" for sign in MEANINGS if (cells["mark"] == sign).any()]
    return finish(
        _layers(cells, column, scale, width),
        f"{head}: {WORDS.get(column, [column])[0]} by token",
        "; ".join(
            [
                *([f"the right answer is {answer}"] if answer else []),
                *_legend(rows[column], scale),
                *marks,
            ]
        ),
        f"{cells['rollout'].nunique()} rollouts with up to {rows['position'].max() + 1} tokens.",
        height=alt.Step(LINE_HEIGHT),
    )


def _legend(values: pd.Series, scale: ColorScale | None) -> list[str]:
    """Words for the colours, and for values beyond their ends."""
    if scale is None:
        return ["one cell a token"]
    low, high = scale.ends
    beyond = [
        *([values.min()] if values.min() < low else []),
        *([values.max()] if values.max() > high else []),
    ]
    ends = (
        f"±{scale.limit:.2g}"
        if not scale.side and not scale.center
        else f"{low:.2g} and {high:.2g}"
    )
    darkest = f"darkest from {ends} on; extreme {' and '.join(map(scale.format, beyond))}"
    return [legend_words(values.name, scale), *([darkest] if beyond else [])]


def _looks(
    rows: pd.DataFrame, column: str, everywhere: pd.Series, scale: ColorScale | None
) -> pd.DataFrame:
    """Value, its text, sign, ink and mark of each token; of a category, the number of its level in
    the whole table.
    """
    if scale is not None:
        values = rows[column]
        looks = {
            "shown": values.map(scale.format),
            "sign": scale.signs(values),
            "ink": scale.inks(values),
        }
    else:
        levels, ranks = rank_levels(rows[column], everywhere)
        values = [None if np.isnan(rank) else int(rank) for rank in ranks]
        inks = PALETTE["categories"]["inks"]
        shown = ["unknown" if k is None else level_name(column, levels[k]) for k in values]
        looks = {
            "shown": shown,
            "sign": "",
            "ink": ["#000000" if k is None else inks[k % len(inks)] for k in values],
        }
    looks |= {"value": values, "mark": ""}
    if "stopped" in rows:
        looks |= {"mark": rows["stopped"].map(mark), "stopped": rows["stopped"].astype(object)}
    return pd.DataFrame(looks, index=rows.index)


def _layers(
    cells: pd.DataFrame, column: str, scale: ColorScale | None, width: int
) -> alt.LayerChart:
    """Cells, their texts, signs and marks, and the name of each rollout above its lines."""
    cells = cells.assign(middle=(cells["left"] + cells["right"]) / 2)
    x = alt.X("left:Q", axis=None).scale(domain=[0, width], nice=False)
    y = alt.Y("row:N", sort=list(dict.fromkeys(cells["row"])), axis=None)
    stops = ["stopped:N"] if "stopped" in cells else []
    shown = ["text:N", "position:Q", "rollout:N", alt.Tooltip("shown:N", title=column), *stops]
    # half of a label at the ramp's end
    legend = alt.Legend(title=column, orient="top", offset=4, padding=14)
    if scale is not None:
        color = alt.Color("value:Q", legend=legend).scale(scale.vega())
    else:
        levels = cells.dropna(subset="value").drop_duplicates("shown").sort_values("value")
        fills = [SERIES[int(k) % len(SERIES)] for k in levels["value"]]
        color = alt.Color("shown:N", legend=legend).scale(
            domain=levels["shown"].tolist(), range=fills
        )
    base = alt.Chart(cells).encode(y=y)
    tokens = base.transform_filter("isValid(datum.position)").encode(tooltip=shown)
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
    """Cells (text, rollout, position, row, left, right) of text of that width; above each answer a
    row for its name.
    """
    gap, names, cells = SPACE if are_words(rows["token"]) else 0.0, rollout_names(rows), {}
    most = int(width // CHARACTER) - 1
    for rollout, answer in rows.groupby("rollout", sort=False):
        label, line, start = names[answer.index[0]], 0, 0.0
        cells[f"name {rollout}"] = (label, rollout, None, f"{label} ", 0.0, 0.0)
        for index, token, position in zip(
            answer.index, answer["token"], answer["position"], strict=True
        ):
            text = readable(token).replace("\n", "⏎").replace("\t", "⇥")
            text = text if len(text) <= most else text[: most - 1] + "…"
            size = len(text) * CHARACTER + MARGIN
            if start and start + size > width:
                line, start = line + 1, 0.0
            cells[index] = (text, rollout, position, f"{label} line {line}", start, start + size)
            start += size + gap
            if "⏎" in text:
                line, start = line + 1, 0.0
    names = ["text", "rollout", "position", "row", "left", "right"]
    return pd.DataFrame.from_dict(cells, orient="index", columns=names)


signed = partial(number, signed=True)
KNOWN = ("advantage", "logp", "dlogp", "credit")  # numbers that describe a token
MAX_MOVERS = 10  # tokens that are listed
HARDLY = 1e-4  # nats; a share of less says nothing


def describe_token(row: pd.Series) -> str:
    """One sentence: a token, its place, and what its row knows of it."""
    values = [
        f"{name} {signed(row[name])}"
        for name in KNOWN
        if name in row and pd.api.types.is_number(row[name])
    ]
    if mark(stopped := row.get("stopped", "")):
        values.append(f"stopped by {visible(stopped, MAX_CHARACTERS, space=' ')}")
    place = f"position {row['position']} of rollout {visible(row['rollout'])}"
    return f"{visible(row['token'], MAX_CHARACTERS)} at {place}: {', '.join(values)}"


def biography_table(lived: pd.DataFrame, word: str) -> dict:
    """What the recorded steps did to a word, as the panel shows it: columns step, places, logp,
    logp_after, push.
    """
    largest = lived["push"].abs().max() or 1.0
    lengths = [{"value": push / largest} for push in lived["push"].fillna(0.0)]
    cells = [
        [
            f"{row.step:.0f}",
            f"{row.places:.0f}",
            number(row.logp),
            number(row.logp_after),
            length,
            signed(row.push),
        ]
        for row, length in zip(lived.itertuples(), lengths, strict=True)
    ]
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
    """Sentences and tables of an explanation, as the panel shows them; rows: of the group that is
    shown.

    The sentences: how much of the movement is explained, what same and other words did, the output
    layer's part.
    """
    e, name = explanation, visible(explanation.token, MAX_CHARACTERS)
    same, step = (
        e.tokens["token"] == e.token,
        {"sgd": "SGD", "adamw": "AdamW"}.get(e.optimizer, e.optimizer),
    )
    share = (
        f"Explained: {_percent(e.explained)}; the rest is the step's curvature, of second order"
        " in lr."
    )
    if abs(e.measured) <= HARDLY:
        share = "It hardly moved, so a share of it says little."
    lines = [
        (
            f"One step of {step} at lr = {e.lr:.3g} moved {name} by {signed(e.measured)} nats. To"
            f" first order, through all weights, the pushes of {len(e.tokens):,} tokens move it by"
            f" {signed(e.predicted)}. {share}"
        ),
        (
            f"From the same word, {name}: {signed(e.tokens.loc[same, 'moved'].sum())}; from other"
            f" words: {signed(e.tokens.loc[~same, 'moved'].sum())}."
        ),
    ]
    if np.isfinite(e.output_layer):
        part = (
            f", {_percent(e.output_layer / e.measured)} of the movement"
            if abs(e.measured) > HARDLY
            else ""
        )
        lines.append(
            f"Through the output layer alone: {signed(e.output_layer)} nats{part}. That is a proxy:"
            " it leaves out what goes through every other weight."
        )
    parts, movers = e.parts(), e.movers(MAX_MOVERS)
    most, largest = parts["moved"].abs().max() or 1.0, movers["moved"].abs().max() or 1.0
    sources = [
        [
            one.source,
            f"{one.tokens:,}",
            {"value": one.moved / most},
            signed(one.moved),
            _percent(share),
        ]
        for one, share in zip(parts.itertuples(), parts["moved"] / e.predicted, strict=True)
    ]
    places = {
        place: i for i, place in enumerate(zip(rows["rollout"], rows["position"], strict=True))
    }
    terms, at = [], []
    for one in movers.itertuples():
        term = [
            signed(one.advantage),
            signed(one.push),
            signed(one.product),
            {"value": one.moved / largest},
        ]
        place = [
            visible(one.token, MAX_CHARACTERS),
            f"{one.rollout}",
            f"{one.position}",
            one.source,
        ]
        terms.append([*place, *term, signed(one.moved)])
        at.append(places.get((one.rollout, one.position), -1))
    headings = ["token", "rollout", "position", "source", "A", "w A", "⟨∇ᵢ, ∇ⱼ⟩", "", "nats"]
    title = "Tokens that moved it most: nats = lr · w A · ⟨∇log πᵢ, ∇log πⱼ⟩"
    who = _table("Who moved it", ["source", "tokens", "", "nats", "share"], sources)
    marked = [i for i in at if i >= 0]
    return {"lines": lines, "tables": [who, _table(title, headings, terms, at)], "marked": marked}


def _percent(share: float) -> str:
    return f"{100 * share:{'.2g' if abs(share) < 0.1 else '.0f'}} %".replace("-", "−")


def explained_chart(explanations) -> alt.FacetChart:
    """Who moved each of some tokens, a panel for each: nats by source, and by the output layer
    alone as a tick.
    """
    tables = []
    for e in explanations:
        title = (
            f"{visible(e.token, MAX_CHARACTERS)}: {signed(e.measured)}, explained"
            f" {_percent(e.explained)}"
        )
        tables.append(e.parts().assign(pinned=title))
    table = pd.concat(tables, ignore_index=True)
    x = alt.X("moved:Q", title="nats").axis(tickCount=4, format="~g")
    base = alt.Chart().encode(
        y=alt.Y("source:N", sort=table["source"].unique().tolist(), title=None).axis(labelLimit=180)
    )
    head = alt.Header(labelExpr="split(datum.label, ', ')")  # two lines: as wide as a panel
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
    return titled(
        chart.facet(
            column=alt.Column(
                "pinned:N", sort=table["pinned"].unique().tolist(), title=None, header=head
            )
        ),
        "Who moved the pinned tokens",
        "nats to first order, by whose push; blue: up, orange: down; black tick: through the output"
        " layer alone",
        describe_rows(table, "pinned", "source", value="moved", form="+.3f"),
    )
