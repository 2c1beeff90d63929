"""The chapters as a book of HTML pages that read without a kernel and without the net: one folder, served by anything.

Every page links to its neighbours and the index, searches the book, and fits a phone and a dark room. Explorers of the
toys move in their page; pictures stand for all else that moves in a notebook, and each page says so.
"""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path

from jinja2 import Environment

from workbook.book import glossary, references, self_test
from workbook.book.cells import chapter
from workbook.book.chapters import covered, describe
from workbook.book.explorers import SCRIPTS, STATIC, scripts
from workbook.book.ledger_page import QUESTION as ASKED
from workbook.book.ledger_page import TITLE as LEDGER
from workbook.book.ledger_page import ledger_body
from workbook.book.parts import plain_text

TITLE = "Token-gradient cancellation: a workbook"
PAGE = Path(__file__).with_name("page.html")  # the template
STATIC_NOTE = """<p class="static">A static copy of a notebook that was run from top to bottom. {moves} Run it yourself
with <code>make lab</code> in a clone, or by the link to Colab.
<button type="button" id="fold">Fold all code</button></p>"""
MOVES = "The explorers in it move here, too; every other chart and form shows how it looked."
STANDS = "Its charts and forms show how they looked: no kernel answers here."
README = """---
title: {title}
sdk: static
app_file: index.html
pinned: false
---

The rendered book: open index.html, or serve this folder by anything that serves files. It asks nothing of the net.
Made by `python -m workbook chapters --no-run --book FOLDER` from the executed notebooks of the repository.
The header above is what a static Space reads; code hosts' pages serve the folder as it is.
"""


class Book:
    """Pages that are written to a folder one by one; the sections of all of them are what its search looks through."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.sections = folder, []
        self.template = Environment(autoescape=True, trim_blocks=True).from_string(PAGE.read_text(encoding="utf-8"))

    def add(self, name: str, title: str, body: str, **about) -> None:
        """Write a page and take its sections into the index; about: what else its template shows."""
        page = self.template.render(title=title, body=body, **({"index": True, "styles": [], "scripts": []} | about))
        self._write(f"{name}.html", page)
        if about.get("index", True):
            self.sections += sections(f"{name}.html", title, body)

    def finish(self) -> None:
        """Write what the pages share: styles, scripts, the search's index, and how to serve it all."""
        for name in ("book.css", "ledger.css", "book.js"):
            shutil.copyfile(STATIC / name, self.folder / name)
        for name, text in scripts().items():
            self._write(name, text)
        self._write("search.js", f"window.bookIndex = {json.dumps(self.sections, ensure_ascii=False)};\n")
        self._write("README.md", README.format(title=TITLE))
        self._write(".nojekyll", "")  # pages of a code host: serve every file as it is

    def _write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text, encoding="utf-8")


def render_book(notebooks: dict, seconds: dict[str, float], profile: str, folder: Path, ledger=None) -> None:
    """Write one HTML page per executed notebook, by name, and an index with title, question and seconds.

    seconds: that each took, of those that were just run.  ledger: of `workbook.claims.ledger`, for a page of its own.
    """
    book = Book(folder)
    titles = {name: describe(notebook, name) for name, notebook in notebooks.items()}
    names, entries = list(notebooks), []
    places = [(name, titles[name][0]) for name in names]
    following = [*places[1:], None if ledger is None else ("ledger", LEDGER)]
    for k, (name, notebook) in enumerate(notebooks.items()):
        title, question = titles[name]
        page = chapter(notebook)
        body = page.body.replace("</h1>", "</h1>" + STATIC_NOTE.format(moves=MOVES if page.live else STANDS), 1)
        book.add(
            name,
            title,
            body,
            contents=page.contents,
            scripts=list(SCRIPTS) if page.live else [],
            before=places[k - 1] if k else None,
            after=following[k],
        )
        entries.append((name, title, question, f"{seconds[name]:.0f} s" if name in seconds else ""))
    if ledger is not None:
        of = {name: covered(notebook) for name, notebook in notebooks.items()}
        chapters = {c: [(n, titles[n][0]) for n in names if c in of[n]] for c in {c for cs in of.values() for c in cs}}
        before = places[-1] if places else None
        book.add("ledger", LEDGER, ledger_body(ledger, chapters), styles=["ledger.css"], before=before)
        entries.append(("ledger", LEDGER, ASKED, ""))
    bodies = {
        "self-test": (self_test, self_test.self_test_body(names)),
        "glossary": (glossary, glossary.glossary_body(names)),
        "literature": (references, references.references_body(names)),
    }
    for name, (page, body) in bodies.items():
        book.add(name, page.TITLE, body)
        entries.append((name, page.TITLE, page.QUESTION, ""))
    book.add("index", TITLE, _index(entries, profile if seconds else None), index=False)
    book.finish()
    print(f"The book lies in {folder / 'index.html'}")


def _index(entries: list[tuple[str, str, str, str]], profile: str | None) -> str:
    """The list of pages, each with its question; profile: in which the chapters were run just now."""
    how = (
        f"as it ran just now, from top to bottom, in the {html.escape(profile)} profile"
        if profile
        else "as it was run once"
    )
    items = "\n".join(
        f'<li><a href="{name}.html">{html.escape(title)}</a> <small>{took}</small><p>{html.escape(question)}</p></li>'
        for name, title, question, took in entries
    )
    return (
        f"<h1>{html.escape(TITLE)}</h1>\n<p>Each page is a chapter {how}. Sliders "
        "of chapters 00 to 03 move in the page; the others want a kernel: <code>make lab</code> in a clone.</p>\n"
        f'<ul class="chapters">{items}</ul>'
    )


def sections(page: str, chapter: str, body: str) -> list[dict]:
    """What search finds in a page: {page, chapter, id, title, text} of each part that has an id of its own.

    >>> [s["id"] + ": " + s["text"] for s in sections("p.html", "P", '<p>a</p><h2 id="b">B</h2>c <pre>x</pre>')]
    [': a', 'b: c']
    """
    body = re.sub(r"<(pre|script|math|form|select)\b.*?</\1>", " ", body, flags=re.DOTALL)
    parts = re.split(r'<(?:h[1-3]|section) id="([^"]*)"', body)
    rows = []
    for id, part in zip(["", *parts[1::2]], parts[::2], strict=True):
        head = re.match(r"[^>]*>(?:<header>)?(?:<h2[^>]*>)?(.*?)</h\d>", part, re.DOTALL) if id else None
        text = plain_text(part[head.end() :] if head else part)
        if text:
            title = plain_text(head[1]) if head else chapter
            rows.append({"page": page, "chapter": chapter, "id": id, "title": title, "text": text})
    return rows
