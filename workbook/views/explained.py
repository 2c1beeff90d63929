"""What is known of a pinned token, as a panel shows it: sentences, tables whose bars have a sign, and a chart."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from workbook.views.figures import bars, by_sign, panels
from workbook.views.style import describe_rows, visible
from workbook.views.token_look import MAX_CHARACTERS, mark, number

KNOWN = ("advantage", "logp", "dlogp", "credit")  # numbers that describe a token
MAX_MOVERS = 10  # tokens that are listed
NEAR = 0.25  # of 1: how far the explained share may be off before the step is called long
HARDLY = 1e-4  # nats; a share of less says nothing


def signed(value) -> str:
    """A number with its sign and a true minus; "unknown" for what is none."""
    return number(value, signed=True)


def describe_token(row: pd.Series) -> str:
    """One sentence: a token, its place, and what its row knows of it."""
    values = [f"{name} {signed(row[name])}" for name in KNOWN if name in row and pd.api.types.is_number(row[name])]
    if mark(stopped := row.get("stopped", "")):
        values.append(f"stopped by {visible(stopped, MAX_CHARACTERS, space=' ')}")
    place = f"position {row['position']} of rollout {visible(row['rollout'])}"
    return f"{visible(row['token'], MAX_CHARACTERS)} at {place}: {', '.join(values)}"


def biography_table(lived: pd.DataFrame, word: str) -> dict:
    """What the recorded steps did to a word, as the panel shows it: columns step, places, logp, logp_after, push."""
    largest = lived["push"].abs().max() or 1.0
    bars = [{"value": push / largest} for push in lived["push"].fillna(0.0)]
    cells = [
        [*map(str, (int(row.step), int(row.places))), number(row.logp), number(row.logp_after), bar, signed(row.push)]
        for row, bar in zip(lived.itertuples(), bars, strict=True)
    ]
    title = f"What the recorded steps did to “{word}”: means over its places"
    return _table(title, ["step", "places", "logp before", "after", "", "push"], cells)


def _table(title: str, headings: list[str], cells: list[list], indices: list[int] | None = None) -> dict:
    """A table of the panel; indices: of the token to which each row leads, -1 for none."""
    indices = indices or [-1] * len(cells)
    rows = [{"cells": row, "index": index} for row, index in zip(cells, indices, strict=True)]
    return {"title": title, "headings": headings, "rows": rows}


def moved_by(rows: pd.DataFrame, explanation) -> np.ndarray:
    """Nats by which each row's own push moved the explained token; 0 where it pushed nothing."""
    keys = ["rollout", "position"]
    known = explanation.tokens.set_index(keys)["moved"]
    return known.reindex(pd.MultiIndex.from_frame(rows[keys])).fillna(0.0).to_numpy()


def explanation_details(rows: pd.DataFrame, explanation) -> dict:
    """Sentences and tables of an explanation, as the panel shows them; rows: of the group that is shown.

    The sentences: how much of the movement is explained, what same and other words did, the output layer's part.
    """
    e, name = explanation, visible(explanation.token, MAX_CHARACTERS)
    same, step = e.tokens["token"] == e.token, {"sgd": "SGD", "adamw": "AdamW"}.get(e.optimizer, e.optimizer)
    lines = [
        f"One step of {step} at lr = {e.lr:.3g} moved {name} by {signed(e.measured)} nats. To first order, through all "
        f"weights, the pushes of {len(e.tokens):,} tokens move it by {signed(e.predicted)}. {_share(e)}",
        f"From the same word, {name}: {signed(e.tokens.loc[same, 'moved'].sum())}; from other words: "
        f"{signed(e.tokens.loc[~same, 'moved'].sum())}.",
    ]
    if np.isfinite(e.output_layer):
        part = f", {_percent(e.output_layer / e.measured)} of the movement" if abs(e.measured) > HARDLY else ""
        lines.append(
            f"Through the output layer alone: {signed(e.output_layer)} nats{part}. That is a proxy: it leaves out what "
            "goes through every other weight."
        )
    parts, movers = e.parts(), e.movers(MAX_MOVERS)
    most, largest = parts["moved"].abs().max() or 1.0, movers["moved"].abs().max() or 1.0
    sources = [
        [one.source, f"{one.tokens:,}", {"value": one.moved / most}, signed(one.moved), _percent(share)]
        for one, share in zip(parts.itertuples(), parts["moved"] / e.predicted, strict=True)
    ]
    terms = []
    for one in movers.itertuples():
        term = [signed(one.advantage), signed(one.push), signed(one.product), {"value": one.moved / largest}]
        place = [visible(one.token, MAX_CHARACTERS), f"{one.rollout}", f"{one.position}", one.source]
        terms.append([*place, *term, signed(one.moved)])
    places = {place: i for i, place in enumerate(zip(rows["rollout"], rows["position"], strict=True))}
    at = [places.get((one.rollout, one.position), -1) for one in movers.itertuples()]
    headings = ["token", "rollout", "position", "source", "A", "w A", "⟨∇ᵢ, ∇ⱼ⟩", "", "nats"]
    title = "Tokens that moved it most: nats = lr · w A · ⟨∇log πᵢ, ∇log πⱼ⟩"
    tables = [
        _table("Who moved it", ["source", "tokens", "", "nats", "share"], sources),
        _table(title, headings, terms, at),
    ]
    return {"lines": lines, "tables": tables, "marked": [i for i in at if i >= 0]}


def _share(e) -> str:
    """The explained share, and what is missing."""
    if abs(e.measured) <= HARDLY:
        return "It hardly moved, so a share of it says little."
    if abs(e.explained - 1) > NEAR:
        return f"Explained: {_percent(e.explained)}; the step is too long to be a straight line at this token."
    off = _percent(abs(1 - e.explained))
    rest = f"the {off} too much are" if e.explained > 1 else f"the missing {off} are"
    return f"Explained: {_percent(e.explained)}; {rest} the step's curvature, of second order in lr."


def _percent(share: float) -> str:
    return f"{100 * share:{'.2g' if abs(share) < 0.1 else '.0f'}} %".replace("-", "−")


def explained_chart(explanations) -> alt.HConcatChart:
    """Who moved each of some tokens, a panel for each: nats by source, and by the output layer alone as a tick."""
    tables = []
    for e in explanations:
        title = f"{visible(e.token, MAX_CHARACTERS)}: {signed(e.measured)}, explained {_percent(e.explained)}"
        tables.append(e.parts().assign(pinned=title))
    table = pd.concat(tables, ignore_index=True)
    ends = [*table["moved"], *table["output_layer"].dropna(), 0.0]
    x = alt.X("moved:Q", title="nats").scale(domain=[min(ends), max(ends)]).axis(tickCount=4, format="~g")
    y = alt.Y("source:N", sort=list(dict.fromkeys(table["source"])), title=None).axis(labelLimit=180)
    charts = []
    for place, (title, part) in enumerate(table.groupby("pinned", sort=False)):
        base = alt.Chart(part.dropna(subset="output_layer"))
        tick = base.mark_tick(color="black", thickness=2.5, size=14).encode(x="output_layer:Q", y=y)
        look = {"color": by_sign("moved"), "form": "+.4f", "shown": ["tokens"], "over": [tick], "height": alt.Step(22)}
        charts.append(bars(part, y, x, width=160, labels=place == 0, title=title, intervals=False, **look))
    return panels(
        charts,
        "Who moved the pinned tokens",
        "nats to first order, by whose push; blue: up, orange: down; black tick: through the output layer alone",
        describe_rows(table, "pinned", "source", value="moved", form="+.3f"),
    )
