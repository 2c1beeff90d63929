"""The chapters as a book of HTML pages that read without a kernel and without the net.

Pictures stand where charts and widgets were, formulas are MathML, and each page links to its neighbours and the index.
"""

from __future__ import annotations

import html
import re
from pathlib import Path

from jinja2 import pass_context
from latex2mathml.converter import convert
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from traitlets import default

from workbook.book import glossary
from workbook.book.chapters import covered, describe
from workbook.book.ledger_page import QUESTION as ASKED
from workbook.book.ledger_page import TITLE as LEDGER
from workbook.book.ledger_page import ledger_page
from workbook.book.scale_page import QUESTION as MACHINES_ASKED
from workbook.book.scale_page import TITLE as MACHINES
from workbook.book.scale_page import scale_page

TITLE = "Token-gradient cancellation: a workbook"
PREFERRED = ["image/png", "text/html", "text/markdown", "text/latex", "text/plain"]  # before what needs scripts


class MathMLRenderer(IPythonRenderer):
    """Markdown to HTML, formulas as MathML, which browsers draw themselves, and nothing fetched from elsewhere."""

    def inline_math(self, body: str) -> str:
        return convert(body)

    def block_math(self, body: str) -> str:
        return convert(body, display="block")

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """A picture; one from elsewhere, as a badge is, stands as its words."""
        return html.escape(text) if url.startswith("http") else super().image(text, url, title)


class BookExporter(HTMLExporter):
    """A notebook as a page of the book."""

    @default("display_data_priority")
    def _pictures_first(self):
        return PREFERRED

    @pass_context
    def markdown2html(self, context, source):
        """The filter that the template calls on each markdown cell."""
        return MarkdownWithMath(renderer=MathMLRenderer(escape=False)).render(source)


def render_book(notebooks: dict, seconds: dict[str, float], profile: str, folder: Path, ledger=None) -> None:
    """Write one HTML page per executed notebook, by name, and an index with title, question and seconds.

    ledger: of `workbook.claims.ledger`, for a page of its own after the chapters.
    """
    exporter = BookExporter(
        template_name="lab", require_js_url="", mathjax_url="", mermaid_js_url="", embed_images=True
    )
    folder.mkdir(parents=True, exist_ok=True)
    titles = {name: describe(notebook, name) for name, notebook in notebooks.items()}
    names = list(notebooks)
    for k, (name, notebook) in enumerate(notebooks.items()):
        page, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": titles[name][0]}})
        page = _describe_pictures(re.sub(r'<script src="">\s*</script>', "", page), notebook)
        page = re.sub(r'(href="[\w./-]*)\.ipynb', r"\1.html", page)
        before = names[k - 1] if k else None
        links = _links(before, names[k + 1] if k + 1 < len(names) else None, titles)
        page = re.sub(r"<body[^>]*>", lambda tag, links=links: tag[0] + STYLE + links, page, count=1)
        page = page.replace("</body>", f"{links}</body>")
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    entries = "\n".join(
        f'<li><a href="{name}.html">{html.escape(title)}</a> <small>{seconds[name]:.0f} s</small>'
        f"<p>{html.escape(question)}</p></li>"
        for name, (title, question) in titles.items()
    )
    if ledger is not None:
        of = {name: covered(notebook) for name, notebook in notebooks.items()}
        chapters = {c: [(n, titles[n][0]) for n in names if c in of[n]] for c in {c for cs in of.values() for c in cs}}
        page = ledger_page(ledger, _links(names[-1], None, titles), chapters)
        (folder / "ledger.html").write_text(page, encoding="utf-8")
        entries += f'\n<li><a href="ledger.html">{html.escape(LEDGER)}</a><p>{html.escape(ASKED)}</p></li>'
    (folder / "glossary.html").write_text(glossary.glossary_page(_links(None, None, titles), names), encoding="utf-8")
    entries += f'\n<li><a href="glossary.html">{glossary.TITLE}</a><p>{glossary.QUESTION}</p></li>'
    (folder / "scale.html").write_text(scale_page(_links(None, None, titles)), encoding="utf-8")
    entries += f'\n<li><a href="scale.html">{MACHINES}</a><p>{MACHINES_ASKED}</p></li>'
    index = INDEX.format(title=TITLE, entries=entries, profile=html.escape(profile))
    (folder / "index.html").write_text(index, encoding="utf-8")
    print(f"The book lies in {folder / 'index.html'}")


def _links(before: str | None, after: str | None, titles: dict) -> str:
    """Format a line of links to the chapter before, the index and the chapter after."""

    def link(name, text, rel):
        return f'<a rel="{rel}" href="{name}.html">{text}</a>' if name else "<span></span>"

    previous = link(before, f"← {html.escape(titles[before][0])}" if before else "", "prev")
    following = link(after, f"{html.escape(titles[after][0])} →" if after else "", "next")
    return f'<nav class="book" aria-label="Chapters">{previous}<a href="index.html">All chapters</a>{following}</nav>'


def _describe_pictures(page: str, notebook) -> str:
    """Give each output's picture its description, which this template of nbconvert leaves out."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = [output.metadata.get("image/png", {}) for output in outputs if "image/png" in output.get("data", ())]
    texts = (about.get("alt", "picture") for about in pictures)
    return re.sub('alt="No description[^"]*"', lambda _: f'alt="{html.escape(next(texts, "picture"))}"', page)


STYLE = """<style>
nav.book { display: flex; justify-content: space-between; gap: 1rem; max-width: 60rem; margin: 1rem auto;
  padding: 0 1rem; font: 0.95rem/1.4 system-ui, sans-serif }
nav.book a { color: #1f5f96 } nav.book a:focus-visible { outline: 2px solid #1f5f96; outline-offset: 2px }
.jp-InputPrompt, .jp-OutputPrompt { color: #595959; opacity: 1 }
main { max-width: 62rem; margin: 0 auto } .jp-OutputArea-output img { max-width: 100%; height: auto }
math { font-size: 1.08em }
math[display="block"] { margin: 0.8em 0; overflow-x: auto; overflow-y: hidden; padding: 0.25em 0 }
</style>"""
INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ max-width: 46rem; margin: 3rem auto; padding: 0 1rem; font: 1.05rem/1.5 system-ui, sans-serif; color: #222 }}
li {{ list-style: none; margin: 1.2rem 0 }} ul {{ padding: 0 }} a {{ font-weight: 600; color: #1f5f96 }}
p {{ margin: .2rem 0 }} small {{ color: #595959 }}
</style></head><body><main>
<h1>{title}</h1>
<p>Each page is a chapter as it ran, from top to bottom, in the {profile} profile, with the seconds it took.</p>
<ul>
{entries}
</ul></main></body></html>
"""
