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
    most = lived["push"].abs().max() or 1.0
    rows = [
        [
            f"{e.step:.0f}",
            f"{e.places:.0f}",
            number(e.logp),
            number(e.logp_after),
            {"value": e.push / most},
            signed(e.push),
        ]
        for e in lived.fillna({"push": 0.0}).itertuples()
    ]
    return {
        "title": f"What the recorded steps did to “{word}”: means over its places",
        "headings": ["step", "places", "logp before", "after", "", "push"],
        "rows": [{"cells": cells, "index": -1} for cells in rows],
    }


def moved_by(rows: pd.DataFrame, explanation) -> np.ndarray:
    """Nats by which each row's own push moved the explained token; 0 where it pushed nothing."""
    keys = ["rollout", "position"]
    known = explanation.tokens.set_index(keys)["moved"]
    return known.reindex(pd.MultiIndex.from_frame(rows[keys])).fillna(0.0).to_numpy()


def explanation_details(rows: pd.DataFrame, explanation) -> dict:
    """Sentences and tables of an explanation, as the panel shows them; rows: of the group that is shown."""
    places = {place: i for i, place in enumerate(zip(rows["rollout"], rows["position"], strict=True))}
    movers = explanation.movers(MAX_MOVERS)
    at = [places.get((row.rollout, row.position), -1) for row in movers.itertuples()]
    return {
        "lines": explained_sentences(explanation),
        "tables": [_parts_table(explanation), _movers_table(movers, at)],
        "marked": [i for i in at if i >= 0],
    }


def explained_sentences(explanation) -> list[str]:
    """The share that is explained, what is missing, and the output layer's part beside it."""
    e = explanation
    name, step = visible(e.token, MAX_CHARACTERS), {"sgd": "SGD", "adamw": "AdamW"}.get(e.optimizer, e.optimizer)
    lines = [
        f"One step of {step} at lr = {e.lr:.3g} moved {name} by {signed(e.measured)} nats. To first order, through all "
        f"weights, the pushes of {len(e.tokens):,} tokens move it by {signed(e.predicted)}. {_share(e)}"
    ]
    same = e.tokens["token"] == e.token
    lines.append(
        f"From the same word, {name}: {signed(e.tokens.loc[same, 'moved'].sum())}; from other words: "
        f"{signed(e.tokens.loc[~same, 'moved'].sum())}."
    )
    if np.isfinite(e.output_layer):
        part = f", {_percent(e.output_layer / e.measured)} of the movement" if abs(e.measured) > HARDLY else ""
        lines.append(
            f"Through the output layer alone: {signed(e.output_layer)} nats{part}. That is a proxy: it leaves out what "
            "goes through every other weight."
        )
    return lines


def _share(e) -> str:
    if abs(e.measured) <= HARDLY:
        return "It hardly moved, so a share of it says little."
    if abs(e.explained - 1) <= NEAR:
        off = _percent(abs(1 - e.explained))
        rest = f"the {off} too much are" if e.explained > 1 else f"the missing {off} are"
        return f"Explained: {_percent(e.explained)}; {rest} the step's curvature, of second order in lr."
    return (
        f"Explained: {_percent(e.explained)}; the step is too long to be a straight line at this token: what is "
        "missing is its curvature, and a smaller lr has less of it."
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2g} %".replace("-", "−") if abs(share) < 0.1 else f"{100 * share:.0f} %".replace("-", "−")


def _parts_table(explanation) -> dict:
    """Movement by source, its bar and its share."""
    parts, whole = explanation.parts(), explanation.predicted
    most = parts["moved"].abs().max() or 1.0
    rows = [
        [row.source, f"{row.tokens:,}", {"value": row.moved / most}, signed(row.moved), _percent(row.moved / whole)]
        for row in parts.itertuples()
    ]
    return {
        "title": "Who moved it",
        "headings": ["source", "tokens", "", "nats", "share"],
        "rows": [{"cells": cells, "index": -1} for cells in rows],
    }


def _movers_table(movers: pd.DataFrame, at: list[int]) -> dict:
    """The tokens that moved it most, each with the numbers of its term."""
    most = movers["moved"].abs().max() or 1.0
    rows = []
    for row, index in zip(movers.itertuples(), at, strict=True):
        cells = [visible(row.token, MAX_CHARACTERS), f"{row.rollout}", f"{row.position}", row.source]
        cells += [signed(row.advantage), signed(row.push), signed(row.product)]
        rows.append({"cells": [*cells, {"value": row.moved / most}, signed(row.moved)], "index": index})
    return {
        "title": "Tokens that moved it most: nats = lr · w A · ⟨∇log πᵢ, ∇log πⱼ⟩",
        "headings": ["token", "rollout", "position", "source", "A", "w A", "⟨∇ᵢ, ∇ⱼ⟩", "", "nats"],
        "rows": rows,
    }


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
