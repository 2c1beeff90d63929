"""What the book found, and what to do about it: sentences that stand while the ledger's words do.

A sentence of data/book/findings.yaml names the rows that it rests on and the words under which it
holds. Where a word has changed, the sentence is not printed, and the rows' words as they are stand
in its place. All numbers come from the kept ledger.
"""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from workbook.ledger import format_effect, read_book, row_of

_ROW_NUMBER = re.compile(r"\{([^{}:]+)(:%)?\}")
_CARD_GRID = (
    "display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); gap:"
    " 12px"
)
_CARD_STYLE = (
    "border: 1px solid #8886; border-radius: 6px; padding: 10px 14px; line-height: 1.4;"
    " overflow-wrap: break-word"
)
_CARD_PART = '<p style="margin: 0 0 6px">{}</p>'
# in README
_FINDINGS_BLOCK = re.compile(r"(<!-- findings -->\n).*?(<!-- /findings -->)", re.DOTALL)


@dataclass(frozen=True)
class Finding:
    """A sentence and the rows that it rests on.

    when: {row: the word under which it holds}; none where it is proved.
    """

    says: str
    when: Mapping[str, str] = field(default_factory=dict)

    def holds(self) -> bool:
        """Whether all rows have the words that the sentence was written for."""
        return all(row_of(key).outcome == outcome for key, outcome in self.when.items())

    def sentence(self) -> str:
        """The sentence with its numbers, or the rows' words as they are."""
        if self.holds():
            return _ROW_NUMBER.sub(
                lambda match: _number(match[1], percent=bool(match[2])), self.says
            )
        words = (f"{row_of(key).measured}: {row_of(key).outcome}" for key in self.when)
        return f"Outcomes have changed since this was written. {'; '.join(words)}."


@dataclass(frozen=True)
class Shown(Finding):
    """A finding, with the figure of a chapter that shows it.

    experiment: its name in evidence.yaml; "" where the finding is proved.
    """

    figure: str = ""
    chapter: str = ""
    experiment: str = ""

    def more(self, chapters: str, evidence: str) -> str:
        """Links to the chapter that shows it and, if it was measured, to its experiment.

        chapters, evidence: where they lie.
        """
        shown = f"[chapter {self.chapter[:2]}]({chapters}{self.chapter}.ipynb)"
        if not self.experiment:
            return f"{shown}, proved"
        return f"{shown}, [evidence]({evidence}#{self.experiment})"


@dataclass(frozen=True)
class Decision(Finding):
    """What to do about settings of the trainer, why, and where that stops."""

    setting: Sequence[str] = ()
    do: str = ""
    stops: str = ""

    def words(self) -> str:
        """The rows that it rests on with their words, word by word."""
        keys_of: dict[str, list[str]] = {}
        for key in self.when:
            keys_of.setdefault(row_of(key).outcome, []).append(key)
        return "; ".join(f"{word}: {', '.join(keys)}" for word, keys in keys_of.items())


@cache
def read_findings() -> tuple[list[Shown], list[Decision]]:
    """The findings, and the decisions."""
    records = read_book("findings")
    shown = [Shown(**record) for record in records["findings"]]
    decided = [Decision(**record) for record in records["decisions"]]
    return shown, decided


def findings_markdown(chapters: str = "notebooks/", evidence: str = "data/book/evidence.md") -> str:
    """The findings as a numbered list, each with links to its chapter and its experiment.

    chapters, evidence: where these lie, for links.
    """
    lines = []
    for number, one in enumerate(read_findings()[0], 1):
        more = one.more(chapters, evidence)
        lines.append(f"{number}. {one.sentence()} ({more})")
    return "\n".join(lines)


def findings_text() -> str:
    """The findings as text, each with the chapter and the experiment behind it."""
    lines = []
    for number, one in enumerate(read_findings()[0], 1):
        lines.append(f"{number}. {one.sentence()}")
        lines.append(f"   chapter {one.chapter[:2]}, {one.experiment or 'proved there'}")
    lines += ["", "The experiments, with numbers and controls: data/book/evidence.md"]
    return "\n".join(lines)


def findings():
    """Show what the book found, in a notebook."""
    from IPython.display import Markdown

    return Markdown(findings_markdown("", "../data/book/evidence.md"))


def decisions_text() -> str:
    """What we would do, setting by setting: why, where it stops, and the rows behind it."""
    paragraphs = []
    for one in read_findings()[1]:
        lines = [
            ", ".join(f"`{name}`" for name in one.setting),
            f"  **{one.do}**",
            f"  Why: {one.sentence()}",
            f"  Where it stops: {one.stops}",
        ]
        if one.when:
            lines.append(f"  *{one.words()}*")
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


class Decisions:
    """What to do about it: a card a setting on a page, text in a terminal."""

    def __repr__(self) -> str:
        from workbook.book.terminal import laid_out

        return laid_out(decisions_text())

    def _repr_html_(self) -> str:
        cards = "".join(map(_card, read_findings()[1]))
        return f'<div class="cards" style="{_CARD_GRID}">{cards}</div>'


def decisions() -> Decisions:
    """Show what to do about it, in a notebook."""
    return Decisions()


def _card(one: Decision) -> str:
    """A decision as a card: what to do first and in bold, then why, and where that stops."""
    parts = [
        ", ".join(f"<code>{html.escape(name)}</code>" for name in one.setting),
        f"<b>{_inline(one.do)}</b>",
        f"Why: {_inline(one.sentence())}",
        f"Where it stops: {_inline(one.stops)}",
    ]
    return f'<div style="{_CARD_STYLE}">{"".join(map(_CARD_PART.format, parts))}</div>'


def _inline(text: str) -> str:
    """A sentence as HTML, its `code` as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def write_readme(path) -> bool:
    """Write the findings between a file's marks; whether it changed."""
    text = path.read_text(encoding="utf-8")
    new = _FINDINGS_BLOCK.sub(lambda match: f"{match[1]}{findings_markdown()}\n{match[2]}", text)
    if new != text:
        path.write_text(new, encoding="utf-8")
    return new != text


def _number(key: str, percent: bool) -> str:
    """A row's mean as text."""
    row = row_of(key)
    return f"{100 * row.mean:.0f} %" if percent else format_effect(row._replace(low=np.nan), 2)
