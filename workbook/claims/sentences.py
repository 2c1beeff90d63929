"""A claim in a chapter's story: its sentence and a coloured word, which opens the row of the ledger behind it."""

import html
from collections.abc import Mapping

from workbook.claims.ledger import measured_of, registered, stated_of

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
BADGE = '<b style="background: {}; color: white; padding: 0 0.4em; border-radius: 0.3em">{}</b>'


def plain_outcome(outcome: str) -> tuple[str, str]:
    """A story's word for an outcome of the ledger, and the word's colour."""
    return PLAIN.get(outcome, (outcome, GREY))


def outcome_badge(outcome: str) -> str:
    """The word on its colour, as HTML."""
    word, color = plain_outcome(outcome)
    return BADGE.format(color, word)


class ClaimLines:
    """Sentences that state claims, each with the outcome of its row of the ledger."""

    def __init__(self, sentences: Mapping[str, str], scale: str):
        known = registered(scale)
        if unknown := [key for key in sentences if key not in known]:
            raise ValueError(f"key={unknown[0]!r} is no registered row of the ledger; `workbook claims` lists them.")
        self.lines = [(text, known[key]) for key, text in sentences.items()]

    def __repr__(self) -> str:
        return "\n".join(f"{plain_outcome(row.outcome)[0]}: {text} ({_row(row)})" for text, row in self.lines)

    def _repr_html_(self) -> str:
        return "".join(
            f"<details><summary>{outcome_badge(row.outcome)} {html.escape(text, quote=False)}</summary>"
            f"<p>{html.escape(_row(row))}</p></details>"
            for text, row in self.lines
        )


def _row(row) -> str:
    return f"{row.key}, {row.outcome}: {measured_of(row)}: {stated_of(row)}"


def show_claims(sentences: Mapping[str, str], scale: str = "family") -> ClaimLines:
    """Show sentences, each of which states the claim of a row {key: sentence}, and whether it holds; a click opens it.

    scale: of the rows, such as "world:third".

    >>> show_claims({"H3": "Identical unsure tokens move together."})  # doctest: +ELLIPSIS
    holds: Identical unsure tokens move together. (H3, supported: one token pushes: ...
    """
    return ClaimLines(sentences, scale)
