"""What all chapters get from the book's lists: tooltips of the glossary, and a last line with links to the literature.

The first use of each term in a chapter becomes an <abbr> that says what it is. Only running text is looked at: no
header cell, heading, table, code, formula, link, tag or folded part. What an earlier call
wrote is taken out first, so that a second one changes nothing and a changed glossary renews what is there.
"""

from __future__ import annotations

import html
import json
import re

from workbook.book.back_matter import Term, chapter_line, glossary
from workbook.book.chapters import find_chapters

OURS = re.compile(r'<abbr class="term" title="[^"]*">(.*?)</abbr>', re.DOTALL)
LITERATURE = re.compile(r"^\*\*Literature\.\*\* .*\n\n", re.MULTILINE)
PROTECTED = re.compile(  # what is no running text, in the order in which it is looked for
    r"```.*?```"
    r"|<details\b.*?</details>"
    r"|<abbr\b.*?</abbr>"
    r"|<a\b.*?</a>"
    r"|\$\$.*?\$\$"
    r"|(?<!\\)\$(?!\s)[^$\n]+?(?<!\s)\$"
    r"|`[^`\n]+`"
    r"|!?\[[^\]\n]*\]\([^)\n]*\)"
    r"|<[^>]+>"
    r"|^#{1,6} [^\n]*"
    r"|^[ \t]*\|[^\n]*",
    re.DOTALL | re.MULTILINE,
)


def tooltip(term: Term) -> str:
    """What the tooltip of a term says, in one line."""
    parts = f"{term.words} ({term.unit}).", term.meaning, term.advice
    return " ".join(filter(None, parts)).replace("'", "’").replace('"', "”")


def with_tooltips(cells: list[str], terms: list[Term] | None = None) -> list[str]:
    """The markdown cells of a chapter with a tooltip at the first use of each term; the header is not among them."""
    cells = [OURS.sub(r"\1", cell) for cell in cells]
    for term in glossary() if terms is None else terms:
        if not term.forms:
            continue
        forms = sorted(term.forms, key=len, reverse=True)
        use = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, forms))})(?![\w-])", re.IGNORECASE)
        title = html.escape(tooltip(term), quote=False)
        for k, cell in enumerate(cells):
            if (place := _first_use(cell, use)) is not None:
                start, end = place
                word = f'<abbr class="term" title="{title}">{cell[start:end]}</abbr>'
                cells[k] = cell[:start] + word + cell[end:]
                break
    return cells


def _first_use(cell: str, use: re.Pattern) -> tuple[int, int] | None:
    """Where the term is first used in running text; None for nowhere."""
    begin = 0
    for part in [*PROTECTED.finditer(cell), None]:
        end = len(cell) if part is None else part.start()
        if match := use.search(cell, begin, end):
            return match.span()
        begin = end if part is None else part.end()
    return None


def with_literature(cell: str, chapter: str) -> str:
    """The last cell of a chapter with the links to its literature above the line that leads to other chapters."""
    parts = LITERATURE.sub("", cell).rsplit("\n\n", 1)
    line = chapter_line(chapter)
    return "\n\n".join([parts[0], line, parts[1]] if line and len(parts) == 2 else parts)


def write_tooltips(names=None, check: bool = False) -> list[str]:
    """Bring tooltips and literature of chapters (`find_chapters`) up to date; returns the names of those that changed.

    check: write nothing.
    """
    changed = []
    for path in find_chapters(names):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "markdown"][1:]
        before = ["".join(cell["source"]) for cell in cells]
        after = with_tooltips(before)
        if after:
            after[-1] = with_literature(after[-1], path.name[:2])
        if before == after:
            continue
        changed.append(path.stem)
        for cell, text in zip(cells, after, strict=True):
            cell["source"] = text.splitlines(keepends=True)
        if not check:
            path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return changed
