"""What the book found, and what to do: sentences of data/book/findings.yaml that stand while the
ledger's words do.

A sentence names the rows that it rests on and the words under which it holds. Where one has changed
it is not printed; the rows' words as they are stand in its place. It loads no table of a study: the
kept ledger has all of it.
"""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pandas as pd

from workbook.ledger import OPEN, format_effect, read_book, registered, row_of

NUMBER = re.compile(r"\{([^{}:]+)(:%)?\}")
FOLD = "<details><summary>{number}. {says}</summary>\n\n{more}\n\n</details>"
GRID = (
    "display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); gap:"
    " 12px"
)
CARD = (
    "border: 1px solid #8886; border-radius: 6px; padding: 10px 14px; line-height: 1.4;"
    " overflow-wrap: break-word"
)
PART = '<p style="margin: 0 0 6px">{}</p>'
BLOCK = re.compile(r"(<!-- findings -->\n).*?(<!-- /findings -->)", re.DOTALL)  # of README


@dataclass(frozen=True)
class Finding:
    """A sentence and the rows that it rests on. when: {row: the word under which it holds}; none
    where it is proved.
    """

    says: str
    when: Mapping[str, str] = field(default_factory=dict)

    def holds(self) -> bool:
        """Whether all rows have the words that the sentence was written for."""
        return all(row_of(key).outcome == outcome for key, outcome in self.when.items())

    def sentence(self) -> str:
        """The sentence with its numbers, or the rows' words as they are."""
        if self.holds():
            return NUMBER.sub(lambda match: _number(match[1], percent=bool(match[2])), self.says)
        words = (f"{row_of(key).measured}: {row_of(key).outcome}" for key in self.when)
        return f"Outcomes have changed since this was written. {'; '.join(words)}."


@dataclass(frozen=True)
class Shown(Finding):
    """A finding. figure: of the chart that shows it, in a chapter.  experiment: of evidence.yaml;
    "" if proved.
    """

    figure: str = ""
    chapter: str = ""
    experiment: str = ""

    def more(self, chapters: str, evidence: str) -> str:
        """What stands behind a click: the figure and the experiment, if any. Arguments: where they
        lie.
        """
        link = f"[{self.figure}]({chapters}{self.chapter}.ipynb)"
        return f"{link} · " + (
            f"[experiment]({evidence}#{self.experiment})" if self.experiment else "proved there"
        )


@dataclass(frozen=True)
class Decision(Finding):
    """What to do about settings of the trainer, why, and where that stops."""

    setting: Sequence[str] = ()
    do: str = ""
    stops: str = ""

    def words(self) -> str:
        """The rows that it rests on with their words, word by word."""
        words = dict.fromkeys(row_of(key).outcome for key in self.when)
        return "; ".join(
            f"{word}: {', '.join(k for k in self.when if row_of(k).outcome == word)}"
            for word in words
        )


@cache
def read_findings() -> tuple[list[Shown], list[Decision]]:
    """The findings, and the decisions."""
    records = read_book("findings")
    return [Shown(**row) for row in records["findings"]], [
        Decision(**row) for row in records["decisions"]
    ]


def findings_markdown(chapters: str = "notebooks/", evidence: str = "data/book/evidence.md") -> str:
    """The findings, a line each; a click opens its figure and its experiment. Arguments: where they
    lie, for links.
    """
    return "\n".join(
        FOLD.format(number=i, says=one.sentence(), more=one.more(chapters, evidence))
        for i, one in enumerate(read_findings()[0], 1)
    )


def findings_text() -> str:
    """The findings as text, each with the chapter and the experiment behind it."""
    lines = []
    for i, one in enumerate(read_findings()[0], 1):
        lines += [
            f"{i}. {one.sentence()}",
            f"   chapter {one.chapter[:2]}, {one.experiment or 'proved there'}",
        ]
    return "\n".join(
        [*lines, "", "The experiments, with numbers and controls: data/book/evidence.md"]
    )


def findings():
    """Show what the book found, in a notebook."""
    from IPython.display import Markdown

    return Markdown(findings_markdown("", "../data/book/evidence.md"))


def decisions_text() -> str:
    """What to do, setting of TRL or of the trainer by setting: what we would do, why, where it
    stops, and its rows.
    """
    parts = []
    for one in read_findings()[1]:
        parts += [
            ", ".join(f"`{name}`" for name in one.setting),
            f"  **{one.do}**",
            f"  Why: {one.sentence()}",
        ]
        parts += [
            f"  Where it stops: {one.stops}",
            *([f"  *{one.words()}*"] if one.when else []),
            "",
        ]
    return "\n".join(parts[:-1])


class Decisions:
    """What to do about it, computed from the ledger: a card a setting on a page, text in a
    terminal.
    """

    def __repr__(self) -> str:
        from workbook.book.terminal import laid_out

        return laid_out(decisions_text())

    def _repr_html_(self) -> str:
        return f'<div class="cards" style="{GRID}">{"".join(map(_card, read_findings()[1]))}</div>'


def decisions() -> Decisions:
    """Show what to do about it, in a notebook."""
    return Decisions()


def _card(one: Decision) -> str:
    """A decision as a card: what to do first and in bold, then why, and where that stops."""
    parts = [
        ", ".join(f"<code>{html.escape(name)}</code>" for name in one.setting),
        f"<b>{_inline(one.do)}</b>",
    ]
    parts += [f"Why: {_inline(one.sentence())}", f"Where it stops: {_inline(one.stops)}"]
    parts += [f"<i>{_inline(one.words())}</i>"] if one.when else []
    return f'<div style="{CARD}">{"".join(map(PART.format, parts))}</div>'


def _inline(text: str) -> str:
    """A sentence as HTML, its `code` as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def undecided() -> pd.DataFrame:
    """Primary rows that are open, with the units at which the detectable effect would be the one of
    interest.

    The detectable effect (80 % power) goes as 1 / sqrt(units).
    """
    rows = [row for row in registered().values() if row.role == "primary" and row.outcome == OPEN]
    names = ["claim", "statement", "mean", "low", "high", "smallest_effect", "detectable", "units"]
    table = pd.DataFrame([[getattr(row, name) for name in names] for row in rows], columns=names)
    table["claim"] = [f"{row.claim} {row.words}" for row in rows]
    return table.assign(
        **{
            "units needed": np.ceil(
                table["units"] * (table["detectable"] / table["smallest_effect"]) ** 2
            )
        }
    )


def write_readme(path) -> bool:
    """Write the findings between a file's marks; whether it changed."""
    text = path.read_text(encoding="utf-8")
    new = BLOCK.sub(lambda match: f"{match[1]}{findings_markdown()}\n{match[2]}", text)
    if new != text:
        path.write_text(new, encoding="utf-8")
    return new != text


def _number(key: str, percent: bool) -> str:
    """A row's mean as text."""
    row = row_of(key)
    return f"{100 * row.mean:.0f} %" if percent else format_effect(row._replace(low=np.nan), 2)
