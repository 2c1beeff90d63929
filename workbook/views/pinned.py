"""What is known of a pinned token, as sentences with their numbers: its row, what moves it, its word's biography."""

from __future__ import annotations

import numpy as np
import pandas as pd

from workbook.views.style import printable, visible
from workbook.views.token_cells import MAX_CHARACTERS, mark
from workbook.views.token_scale import number

KNOWN = ("advantage", "logp", "dlogp", "credit")  # numbers that describe a token
MAX_COUPLED = 10  # tokens listed below the cells


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
    same_token, others = (signed(amount[which].sum()) for which in (same, ~same))
    lines = [
        describe_token(rows.iloc[pinned]),
        f"Δ log π({name}) ≈ lr · Σⱼ Aⱼ ⟨hᵢ,hⱼ⟩ ⟨eᵢ−pᵢ, eⱼ−pⱼ⟩ = {signed(amount.sum(min_count=1))} nats at lr = {lr:g}, "
        "one step on the output layer.",
        f"From rollouts with A > 0: {signed(up)}; with A < 0: {signed(down)}. "
        f"From the same token: {same_token}; from other tokens: {others}.",
        f"Largest term, j = {other} in rollout {printable(rows['rollout'].iloc[j])}: {lr:g} · "
        f"({signed(k['weight'])}) · {number(k['hidden'])} · ({signed(k['residual'])}) = {signed(k['contribution'])}.",
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


def signed(value) -> str:
    """A number with its sign and a true minus; "unknown" for what is none."""
    return number(value, signed=True)


def describe_token(row: pd.Series) -> str:
    """One sentence: a token, its place, and what its row knows of it."""
    known = [name for name in KNOWN if name in row and pd.api.types.is_number(row[name])]
    values = [f"{name} {signed(row[name])}" for name in known]
    place = f"position {row['position']} of rollout {printable(row['rollout'])}"
    if mark(stopped := row.get("stopped", "")):
        values.append(f"stopped by {visible(stopped, MAX_CHARACTERS, space=' ')}")
    return f"{visible(row['token'], MAX_CHARACTERS)} at {place}: {', '.join(values)}"


def word_of(row: pd.Series) -> tuple[str, object]:
    """The column by which a token is known as a word, and its value there."""
    column = "token_id" if "token_id" in row else "token"
    return column, row[column]


def page_biography(table: pd.DataFrame, word: str) -> dict:
    """A word's biography as the page draws it: columns as lists, what is unknown as None, and a sentence.

    table: `RecordedSteps.biography`.
    """
    columns = {name: [x if np.isfinite(x) else None for x in table[name].tolist()] for name in table}
    return columns | {"word": word, "sentence": _biography_sentence(table, word)}


def _biography_sentence(table: pd.DataFrame, word: str) -> str:
    met, scored = int((table["places"] > 0).sum()), table[table["logp"].notna() & table["logp_after"].notna()]
    total = f"“{word}” stood {table['places'].sum():,.0f} times in {met} of {len(table)} recorded steps"
    if not len(scored):
        return f"{total}."
    first, last = scored.iloc[0], scored.iloc[-1]
    return (
        f"{total}. Mean log-probability where it stood: {first['logp']:.3g} before step {first['step']:.0f}, "
        f"{last['logp_after']:.3g} after step {last['step']:.0f}."
    )
