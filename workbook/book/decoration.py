"""What a chapter shows beyond its source: tooltips of terms, its literature, a badge for Colab.

The notebooks in notebooks/ are plain Markdown and code, which code hosts show as it is. `decorate`
adds the rest where a chapter becomes a page (`book.pages`) and where a reader gets a working copy
of it (`book.copies`).
"""

import html
import re
from base64 import b64encode
from collections.abc import Sequence

from workbook.book.back_matter import Term, chapter_line, glossary

TOOLTIP = re.compile(r'<abbr class="term" title="[^"]*">(.*?)</abbr>', re.DOTALL)
LITERATURE = re.compile(r"^\*\*Literature\.\*\* .*\n\n", re.MULTILINE)
_COLAB_LINE = re.compile(r"^\[!?\[?Open in Colab\].*$", re.MULTILINE)
_COLAB = "https://colab.research.google.com/github/"
# the line of every notebook's source; it names no repository, so that a fork has nothing to change.
PLAIN_LINK = f"[Open in Colab]({_COLAB}), where you enter this repository's address"
_COLAB_BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="117" height="20"
 role="img" aria-label="Open in Colab">
<rect width="117" height="20" rx="3" fill="#555"/>
<g fill="none" stroke-width="2.4">
<circle cx="10" cy="10" r="4.2" stroke="#f9ab00"/>
<circle cx="18" cy="10" r="4.2" stroke="#e8710a"/></g>
<text x="28" y="14" fill="#fff" font-family="Verdana,sans-serif"
 font-size="11">Open in Colab</text></svg>"""
# what is no running text, in the order in which it is looked for
PROTECTED = re.compile(
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


def decorate(notebook: dict, chapter: str, address: str = "") -> dict:
    """Return a notebook with tooltips, literature and badge; the one that is given stays as it is.

    chapter: the name of its file without .ipynb.  address: of the repository on GitHub; without one
    the plain link to Colab stays.  Code cells are never touched, and a notebook that was decorated
    before comes out the same.
    """
    cells = notebook["cells"]
    places = [k for k, cell in enumerate(cells) if cell["cell_type"] == "markdown"]
    if not places:
        return notebook
    header, *texts = ("".join(cells[k]["source"]) for k in places)

    texts = with_tooltips(texts)
    if texts:
        texts[-1] = with_literature(texts[-1], chapter[:2])
    texts = [with_badge(header, chapter, address), *texts]

    decorated = list(cells)
    for k, text in zip(places, texts, strict=True):
        decorated[k] = {**cells[k], "source": text}
    return {**notebook, "cells": decorated}


def with_tooltips(texts: list[str], terms: Sequence[Term] | None = None) -> list[str]:
    """Return a chapter's texts with a tooltip at the first use of each term in running text.

    terms: those of the glossary by default.
    """
    texts = [TOOLTIP.sub(r"\1", text) for text in texts]
    for term in glossary() if terms is None else terms:
        if not term.forms:
            continue
        forms = sorted(term.forms, key=len, reverse=True)
        use = re.compile(rf"(?<![\w-])({'|'.join(map(re.escape, forms))})(?![\w-])", re.IGNORECASE)
        for k, text in enumerate(texts):
            # what is protected gives way to as many characters that match nothing
            running = PROTECTED.sub(lambda part: "\0" * len(part[0]), text)
            match = use.search(running)
            if match:
                start, end = match.span()
                texts[k] = text[:start] + tooltip(term, text[start:end]) + text[end:]
                break
    return texts


def tooltip(term: Term, word: str) -> str:
    """Return a word as HTML whose tooltip says what the term is."""
    title = html.escape(tooltip_text(term), quote=False)
    return f'<abbr class="term" title="{title}">{word}</abbr>'


def tooltip_text(term: Term) -> str:
    """Return what a term is in one line, with quotation marks that an attribute can hold."""
    parts = [f"{term.words} ({term.unit}).", term.meaning, term.advice]
    return " ".join(filter(None, parts)).replace("'", "’").replace('"', "”")


def with_literature(text: str, chapter: str) -> str:
    """Return a chapter's last text with links to its literature above the line that leads on."""
    parts = LITERATURE.sub("", text).rsplit("\n\n", 1)
    line = chapter_line(chapter)
    if line and len(parts) == 2:
        parts.insert(1, line)
    return "\n\n".join(parts)


def with_badge(header: str, chapter: str, address: str) -> str:
    """Return a chapter's header, its line on Colab a badge that opens this chapter there."""
    if not address:
        return header
    picture = b64encode(_COLAB_BADGE.encode()).decode()
    name = address.removeprefix("https://github.com/")
    place = f"{_COLAB}{name}/blob/main/notebooks/{chapter}.ipynb"
    line = f"[![Open in Colab](data:image/svg+xml;base64,{picture})]({place})"
    return _COLAB_LINE.sub(lambda _: line, header)
