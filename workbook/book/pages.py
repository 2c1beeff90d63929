"""The chapters as HTML pages, rendered by Sphinx: they read without a kernel and without the net.

Formulas are MathML. Explorers of the toys move: `views.frozen` computes each over a grid of two
controls, and Vega, shipped with the pages, draws what is chosen. Every other chart and form is a
picture of its last state.
"""

import copy
import gzip
import hashlib
import html
import json
import re
import shutil
import tempfile
from base64 import b64decode, b64encode
from importlib import import_module
from pathlib import Path

import vl_convert
from docutils.nodes import SkipNode

from workbook.book.back_matter import glossary_page, references_page, self_test_page
from workbook.book.chapters import FORMER_NAMES, ROOT, describe, without_outputs
from workbook.book.decoration import decorate
from workbook.book.forms import CONTROLS_TYPE, TOKENS_TYPE, form_html
from workbook.colab import repository
from workbook.places import data_path
from workbook.views import heatmap
from workbook.views.explorer import frozen
from workbook.views.style import FIGURE_NUMBER, prefix_title, vegalite_version

TITLE = "Token-gradient cancellation: a workbook"
_STATIC = Path(__file__).with_name("static")
_HEADER_NOTE = (
    "*A static copy of a notebook that was run from top to bottom. Run it yourself with `make lab`"
    " in a clone.*"
)
# sentences of a header that ask for what nobody can do in a page
_RUN_THE_CELLS = r"(?m)^Run the cells .*\n\n|^Run the one cell below \(Shift \+ Enter\)\. "
# rooms whose explorers move in a page
_MOVING_ROOMS = ("softmax", "groups", "exchange")
# values of a slider in a page, at most
_MAX_STEPS = 9
_EXPLORER_HTML = """<div class="moving"><div class="chart">{image}</div>
<p>This one moves: computed beforehand over a grid of two of its controls. In the notebook all of
them answer.</p>
<script type="application/gzip">{spec}</script></div>
<script defer src="_static/vega.js"></script>"""
_HEATMAP_HTML = """<div class="tokens">{image}<script type="application/json">{state}</script></div>
<script defer src="_static/heatmap.js"></script>"""
# texts of data/book that get a page
_BOOK_TEXTS = ("evidence", "worlds", "using", "claims", "losses", "scale", "arena", "elsewhere")
# how data/book/ leads to chapters and pictures, which lie beside its pages here
_PAGE_LINK = re.compile(r"\(\.\./(?:\.\./notebooks|pictures)/")
# where the cards stand on the first page
_CARDS_MARK = "<!-- chapters -->"
_SPHINX_CONFIG = {
    "project": TITLE,
    "html_title": TITLE,
    "extensions": ["myst_nb", "sphinx_design", "sphinx.ext.githubpages", __name__],
    "html_theme": "sphinx_book_theme",
    "html_theme_options": {
        "show_navbar_depth": 1,
        "home_page_in_toc": True,
        "footer_content_items": [],
    },
    "html_static_path": [str(_STATIC)],
    "html_css_files": ["heatmap.css", "book.css"],
    "html_js_files": [("book.js", {"defer": "defer"})],
    "html_math_renderer": "mathml",
    # it would be fetched, which a page opened from a file may not do
    "html_show_search_summary": False,
    "nb_execution_mode": "off",
    # a page asks nothing of the net
    "nb_ipywidgets_js": {},
    "myst_enable_extensions": ["dollarmath", "amsmath", "html_image"],
    "myst_heading_anchors": 4,
    "myst_heading_slug_func": f"{__name__}.anchor",
    "suppress_warnings": [
        "myst.header",
        "myst.xref_missing",
        "misc.highlighting_failure",
        "mystnb.unknown_mime_type",
    ],
}
_PAGES_README = (
    f"---\ntitle: {TITLE}\nsdk: static\napp_file: index.html\n---\n\nThe rendered book: open"
    " index.html.\n"
)
# the page of a chapter's former name
_MOVED = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={name}.html">'
    '<title>Moved</title><p>This chapter is now <a href="{name}.html">{name}</a>.</p>\n'
)


def render_book(notebooks: dict, folder: Path) -> None:
    """Write a page for each executed notebook, an index and the book's lists to a folder.

    notebooks: {name: notebook}. They are decorated for their pages, and stay as they are.
    """
    # of the extra `lab`
    from sphinx.application import Sphinx

    address = repository()
    decorated = {name: decorate(one, name, address) for name, one in notebooks.items()}
    lists = _list_pages()
    # those of an earlier rendering
    pictures = folder / "_images"
    shutil.rmtree(pictures, ignore_errors=True)
    pictures.mkdir(parents=True)

    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, "source")
        source.mkdir()
        for name, notebook in decorated.items():
            page = json.dumps(page_source(notebook, pictures))
            (source / f"{name}.ipynb").write_text(page, encoding="utf-8")
        texts = {"index": _index(notebooks, lists, source), **lists}
        for name, text in texts.items():
            (source / f"{name}.md").write_text(text, encoding="utf-8")
        doctrees = Path(temporary, "doctrees")
        Sphinx(source, None, folder, doctrees, "html", _SPHINX_CONFIG, status=None).build()

    # what a page's button downloads
    for name, notebook in decorated.items():
        blank = json.dumps(without_outputs(notebook), indent=1, ensure_ascii=False)
        (folder / "_sources" / f"{name}.ipynb").write_text(blank, encoding="utf-8")
    _write_scripts(folder)
    for former, name in FORMER_NAMES.items():
        if name in notebooks:
            (folder / f"{former}.html").write_text(_MOVED.format(name=name), encoding="utf-8")
    (folder / "README.md").write_text(_PAGES_README, encoding="utf-8")
    print(f"The book lies in {folder / 'index.html'}")


def _list_pages() -> dict[str, str]:
    """{name: Markdown} of the pages that are no chapters, with links to chapters' pages."""
    lists = {
        "self-test": self_test_page(),
        "glossary": glossary_page(),
        "literature": references_page(),
    }
    for name in _BOOK_TEXTS:
        lists[name] = data_path("book", f"{name}.md").read_text(encoding="utf-8")
    return {name: _PAGE_LINK.sub("(", text) for name, text in lists.items()}


def _write_scripts(folder: Path) -> None:
    """Add Vega and the heatmap to rendered pages, and drop what no page asks for."""
    static = folder / "_static"
    # the theme's words in languages of no page
    shutil.rmtree(static / "locales", ignore_errors=True)
    for source_map in folder.rglob("*.map"):
        source_map.unlink()
    vega = vl_convert.javascript_bundle(
        "window.vegaEmbed = vegaEmbed;", vl_version=vegalite_version()
    )
    # in a scope of its own, as Sphinx's scripts have names of one letter, too
    (static / "vega.js").write_text(f"(() => {{\n{vega}\n}})();", encoding="utf-8")
    (static / "heatmap.js").write_text(heatmap.page_script(), encoding="utf-8")
    shutil.copy(Path(heatmap.__file__).with_suffix(".css"), static)


def page_source(notebook: dict, pictures: Path) -> dict:
    """Prepare a notebook for its page: folded cells stay folded, outputs become HTML.

    pictures: the folder in which the outputs' pictures are written.
    """
    page = copy.deepcopy(notebook)
    # {explorer: the room from which a cell has imported it}
    rooms: dict[str, str] = {}
    for k, cell in enumerate(page["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            cell["source"] = _page_markdown(text, is_header=k == 0)
            continue
        # of a chapter's set-up the page folds all, of other folded cells the code
        if cell["metadata"].get("jupyter", {}).get("source_hidden"):
            is_setup = text.rstrip().endswith("setup(seed=0)")
            cell["metadata"] = {"tags": ["hide-cell" if is_setup else "hide-input"]}
        imports = rf"^from workbook\.chapters\.({'|'.join(_MOVING_ROOMS)}) import (.+)$"
        for room, names in re.findall(imports, text, re.MULTILINE):
            rooms.update(dict.fromkeys(names.split(", "), room))
        explorer = _moving_explorer(text, rooms)
        for output in cell["outputs"]:
            _as_html(output, pictures, explorer)
    return page


def _page_markdown(text: str, is_header: bool) -> str:
    """A cell's Markdown for its page: local links, and tooltips that the keyboard reaches."""
    # a picture from the net, such as a badge, becomes its text
    text = re.sub(r"!\[([^\]]*)\]\((?:http|data:)[^)]*\)", r"\1", text)
    text = text.replace("<abbr ", '<abbr tabindex="0" ')
    text = re.sub(rf"\(\.\./data/book/({'|'.join(_BOOK_TEXTS)})\.md", r"(\1.md", text)
    text = text.replace("(../data/pictures/", "(")
    if is_header:
        text = f"{re.sub(_RUN_THE_CELLS, '', text)}\n\n{_HEADER_NOTE}"
    return text


def _moving_explorer(text: str, rooms: dict[str, str]):
    """The function `explore_...` that a cell's last line calls, if its room moves in a page."""
    last_line = text.strip().rsplit("\n", 1)[-1]
    call = re.search(r"^(explore_\w+)\(\)$", last_line)
    if call is None or call[1] not in rooms:
        return None
    return getattr(import_module(f"workbook.chapters.{rooms[call[1]]}"), call[1])


def _as_html(output: dict, pictures: Path, explorer=None) -> None:
    """Turn an output's picture into HTML that says what it shows.

    explorer: makes what moves in the picture's place.
    """
    data = output.get("data", {})
    if "image/png" not in data:
        _lead_to_pages(data)
        return
    metadata = output.get("metadata", {}).get("image/png", {})
    alt_text = metadata.get("alt", "chart")
    size = "".join(
        f' {name}="{metadata[name]}"' for name in ("width", "height") if name in metadata
    )
    # in a file: base64 within the page would be heavier by a third
    png = b64decode("".join(data["image/png"]))
    name = f"{hashlib.sha256(png).hexdigest()[:16]}.png"
    (pictures / name).write_bytes(png)
    shown = f'<img src="_images/{name}" alt="{html.escape(alt_text)}"{size}>'
    if explorer is not None:
        spec = _frozen_spec(explorer(), FIGURE_NUMBER.match(metadata.get("alt", "")))
        # gzipped, since it holds thousands of rows
        packed = gzip.compress(json.dumps(spec).encode(), mtime=0)
        shown = _EXPLORER_HTML.format(image=shown, spec=b64encode(packed).decode())
    elif TOKENS_TYPE in data:
        state = json.dumps(data[TOKENS_TYPE]).replace("<", "\\u003c")
        shown = _HEATMAP_HTML.format(image=shown, state=state)
    elif CONTROLS_TYPE in data:
        shown += form_html(data[CONTROLS_TYPE])
    output["data"] = {"text/html": shown}


def _lead_to_pages(data: dict) -> None:
    """Let the links of an output's text lead to pages: Sphinx resolves none in outputs."""
    if "text/markdown" in data:
        text = "".join(data["text/markdown"])
        text = re.sub(r"\(\.\./data/book/(\w+)\.md", r"(\1.html", text)
        data["text/markdown"] = text.replace(".ipynb)", ".html)")
    if "text/html" in data:
        text = "".join(data["text/html"])
        data["text/html"] = re.sub(r'(href="[\w-]+)\.ipynb"', r'\1.html"', text)


def _frozen_spec(explorer, number: re.Match | None) -> dict:
    """The spec of an explorer that moves with its first two controls, under its figure's number."""
    first_two = list(explorer.controls)[:2]
    grid = {name: _grid_values(explorer.controls[name]) for name in first_two}
    spec = frozen(explorer, **grid)
    explorer.close()
    return prefix_title(spec, number[0]) if number else spec


def _grid_values(control) -> list:
    """The values that a control can take in a page: all options, or some of a slider's."""
    if hasattr(control, "options"):
        return [pair[1] if isinstance(pair, tuple) else pair for pair in control.options]
    if isinstance(control.value, bool):
        return [False, True]
    span = control.max - control.min
    stride = max(1, round(span / control.step / (_MAX_STEPS - 1)))
    count = int(span / (control.step * stride) + 1e-9) + 1
    points = [round(control.min + k * control.step * stride, 9) for k in range(count)]
    # a logarithmic slider's points are exponents
    return [control.base**point for point in points] if hasattr(control, "base") else points


def _index(notebooks: dict, lists: dict, source: Path) -> str:
    """The first page: data/book/front.md, and a card a chapter with its own picture."""
    for picture in (ROOT / "data" / "pictures").glob("*.[gps][inv][fg]"):
        shutil.copy(picture, source)
    cards = [_chapter_card(name, notebook, source) for name, notebook in notebooks.items()]
    grid = "\n".join(["````{grid} 1 2 2 3", ":gutter: 3", "", *cards, "````"])
    names = "\n".join([*notebooks, *lists])
    contents = f"```{{toctree}}\n:hidden:\n\n{names}\n```"
    front = data_path("book", "front.md").read_text(encoding="utf-8")
    return front.replace(_CARDS_MARK, f"{grid}\n\n{contents}")


def _chapter_card(name: str, notebook, source: Path) -> str:
    """A chapter's card: its first picture, title, question, and how long it takes."""
    title, question = describe(notebook, name)
    lines = [f"```{{grid-item-card}} {title}", f":link: {name}", ":link-type: doc"]
    image = first_picture(notebook)
    if image is not None:
        (source / f"{name}.png").write_bytes(image)
        lines += [f":img-top: {name}.png", f":img-alt: the first picture of {title}"]
    lines += ["", question]
    takes = re.search(r"\| It takes \| (.*?)(?: to run| on |,|;|\|)", notebook.cells[0].source)
    if takes:
        lines += ["", f"*{takes[1].strip()}*"]
    return "\n".join([*lines, "```"])


def first_picture(notebook: dict) -> bytes | None:
    """The first picture among a notebook's outputs, as PNG, the path of all chapters aside."""
    for cell in notebook["cells"]:
        if "book_path(" in "".join(cell["source"]):
            continue
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                return b64decode("".join(output["data"]["image/png"]))
    return None


def anchor(heading: str) -> str:
    """The anchor of a heading, as JupyterLab has it."""
    return heading.replace(" ", "-")


def add_mathml(app) -> dict:
    """Let Sphinx write formulas as MathML."""
    from latex2mathml.converter import convert

    def inline(writer, node):
        writer.body.append(convert(node.astext()))
        raise SkipNode

    def display(writer, node):
        formula = convert(node.astext(), display="block")
        writer.body.append(f'<div class="math" tabindex="0">{formula}</div>')
        raise SkipNode

    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True}


# the name by which Sphinx calls what an extension, here this module, adds to it
setup = add_mathml
