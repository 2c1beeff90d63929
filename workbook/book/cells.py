"""A notebook's cells as HTML that needs no scripts: MathML for formulas, pictures for charts, code that folds.

Outputs are taken as they stand in the notebook. A widget is what its last state was (`book.forms`), and the toys'
explorers move in the page itself (`book.explorers`).
"""

from __future__ import annotations

import html
import re
from typing import NamedTuple

from latex2mathml.converter import convert
from nbconvert.filters.ansi import strip_ansi
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from workbook.book.explorers import explorer_html, named_explorer
from workbook.book.forms import FORM, form_html
from workbook.book.parts import FORMULA, anchor, picture, plain_text, scrolling
from workbook.views.reading import READING

UNSTYLED = re.compile(r'<style.*?</style>| (?:border|style|class)="[^"]*"', re.DOTALL)  # pandas brings its own
NOTEBOOK = re.compile(r'(href="[\w./-]*)\.ipynb(?:#([^"]*))?"')
SETUP = "google.colab"  # in the first code cell, which the page folds


class Chapter(NamedTuple):
    """A chapter's HTML, the ids and titles of its sections, and whether explorers move in it."""

    body: str
    contents: list[tuple[str, str]]
    live: bool


class MathMLRenderer(IPythonRenderer):
    """Markdown to HTML, formulas as MathML, which browsers draw themselves, and nothing fetched from elsewhere."""

    def inline_math(self, body: str) -> str:
        return convert(body)

    def block_math(self, body: str) -> str:
        return FORMULA.format(convert(body, display="block"))

    def heading(self, text: str, level: int, **_) -> str:
        return f'<h{level} id="{anchor(text)}">{text}</h{level}>\n'

    def block_code(self, code: str, info: str | None = None) -> str:
        return f"<pre tabindex=0><code>{html.escape(code)}</code></pre>\n"

    def image(self, text: str, url: str, title: str | None = None) -> str:
        """A picture; one from elsewhere, as a badge is, stands as its words."""
        return html.escape(text) if url.startswith("http") else super().image(text, url, title)


def markdown(source: str) -> str:
    """Markdown as HTML; a wide table scrolls in its box, and a link to a notebook leads to its page."""
    page = MarkdownWithMath(renderer=MathMLRenderer(escape=False)).render(source)
    page = NOTEBOOK.sub(lambda link: f'{link[1]}.html{"#" + anchor(link[2]) if link[2] else ""}"', page)
    page = page.replace("<abbr ", '<abbr tabindex="0" ')  # a tooltip that keys and touch reach
    page = re.sub(r"(<thead>\s*<tr>(?:\s*<th[^>]*></th>)+\s*</tr>\s*</thead>)", "", page)  # a head without a word
    return re.sub(r"<table>.*?</table>", lambda table: scrolling("wide", "Table", table[0]), page, flags=re.DOTALL)


def chapter(notebook) -> Chapter:
    """The cells of a notebook as HTML."""
    parts = [
        markdown(cell.source) if cell.cell_type == "markdown" else _code_cell(cell, f"cell{k}")
        for k, cell in enumerate(notebook.cells)
    ]
    body = "\n".join(parts)
    headings = re.findall(r'<h2 id="([^"]*)">(.*?)</h2>', body, re.DOTALL)
    return Chapter(body, [(id, plain_text(title)) for id, title in headings], 'class="explorer"' in body)


def _code_cell(cell, id: str) -> str:
    source, lines = cell.source.strip("\n"), cell.source.strip().count("\n") + 1
    if not source:
        return ""
    colored = highlight(source, PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)).rstrip("\n")
    folded, what = SETUP in source, "Setup" if SETUP in source else "Code"
    summary = f"<summary>{what}, {lines} line{'s' * (lines != 1)}</summary>"
    code = f'<details class="code"{"" if folded else " open"}>{summary}<pre tabindex="0">{colored}</pre></details>'
    name = named_explorer(source)
    outputs = [_output(output, name, f"{id}-{k}") for k, output in enumerate(cell.get("outputs", ()))]
    return f'{code}\n<div class="output">{"".join(outputs)}</div>' if outputs else code


def _output(output, name: str | None, id: str) -> str:
    """One output of a cell; name: of the explorer that the cell shows, if it moves without a kernel."""
    if "text" in output:
        return _text(output.text)
    if output.output_type == "error":
        return _text("\n".join(output.traceback))
    data, about = output.get("data", {}), output.get("metadata", {}).get("image/png", {})
    image = picture(data["image/png"], **about) if "image/png" in data else ""
    if image and name:
        return explorer_html(name, image)
    if FORM in data:
        return form_html(data[FORM], image, id)
    if image and READING in data:
        return f'<div class="tokens-wide">{image}</div><div class="tokens-narrow">{data[READING]}</div>'
    if image:
        return image
    if "text/html" in data:
        return scrolling("wide", "Table", UNSTYLED.sub("", data["text/html"]).replace("<th></th>", "<td></td>"))
    if "text/markdown" in data:
        return markdown(data["text/markdown"])
    return _text(data.get("text/plain", ""))


def _text(text: str) -> str:
    return f'<pre tabindex="0">{html.escape(strip_ansi(text)).rstrip()}</pre>'
