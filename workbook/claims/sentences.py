"""A claim in a chapter's story: its sentence and a coloured word, which opens the row of the ledger behind it."""

import html
from collections.abc import Mapping

from workbook.claims.ledger import format_effect, registered

BLUE, ORANGE, GREY = "#1f5fa8", "#a8480c", "#555555"
PLAIN = {  # outcome: the word that a story has for it, and the word's colour
    "supported": ("holds", BLUE),
    "contradicted": ("does not hold", ORANGE),
    "equivalent to none": ("too small to matter here", GREY),
    "not zero, too small to matter here": ("too small to matter here", GREY),
    "at its threshold": ("just at the line", GREY),
    "inconclusive": ("open", GREY),
    "not testable here": ("cannot be tested here", GREY),
}
LINE = (
    '<details><summary><b style="background: {color}; color: white; padding: 0 0.4em; border-radius: 0.3em">{word}</b> '
    "{sentence}</summary><p>{row}</p></details>"
)


class ClaimLines:
    """Sentences that state claims, each with the outcome of its row of the ledger."""

    def __init__(self, sentences: Mapping[str, str]):
        if unknown := [key for key in sentences if key not in registered()]:
            raise ValueError(f"key={unknown[0]!r} is no registered row of the ledger; `workbook claims` lists them.")
        rows = {key: registered()[key] for key in sentences}
        looks = {key: PLAIN.get(row.outcome, (row.outcome, GREY)) for key, row in rows.items()}
        self.lines = [(*looks[key], sentences[key], rows[key]) for key in sentences]

    def __repr__(self) -> str:
        return "\n".join(f"{word}: {text} ({_row(row)})" for word, _, text, row in self.lines)

    def _repr_html_(self) -> str:
        return "".join(
            LINE.format(color=color, word=word, sentence=html.escape(text, quote=False), row=html.escape(_row(row)))
            for word, color, text, row in self.lines
        )


def _row(row) -> str:
    number = f"{format_effect(row)} {row.unit}".rstrip()
    return f"{row.key}, {row.outcome}: {row.measured.rstrip('.')}: {number}; {row.units} units"


def show_claims(sentences: Mapping[str, str]) -> ClaimLines:
    """Show sentences, each of which states the claim of a row {key: sentence}, and whether it holds; a click opens it.

    >>> show_claims({"H3": "Identical unsure tokens move together."})  # doctest: +ELLIPSIS
    holds: Identical unsure tokens move together. (H3, supported: one token pushes: ...
    """
    return ClaimLines(sentences)
