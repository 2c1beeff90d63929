"""The chapters as HTML pages, rendered by Sphinx from executed notebooks: they read without kernel
or net.

Formulas are MathML. Explorers of the toys move: `views.frozen` computes each on a grid of two
controls, and Vega, shipped with the pages, chooses. Every other chart and form is a picture of its
last state.
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
from workbook.book.chapters import ROOT, describe, without_outputs
from workbook.book.decoration import decorate
from workbook.book.forms import FORM, TOKENS, form_html
from workbook.colab import repository
from workbook.places import data_path
from workbook.views import heatmap
from workbook.views.explorer import frozen
from workbook.views.style import FIGURE_NUMBER, prefix_title, vegalite_version

TITLE = "Token-gradient cancellation: a workbook"
STATIC = Path(__file__).with_name("static")
NOTE = (
    "*A static copy of a notebook that was run from top to bottom. Run it yourself with `make lab`"
    " in a clone.*"
)
# which nobody can in a page
RUN = r"(?m)^Run the cells .*\n\n|^Run the one cell below \(Shift \+ Enter\)\. "
TOYS = ("softmax", "groups", "exchange")  # topics whose explorers move in a page
STEPS = 9  # values of a slider in a page, at most
EXPLORER = """<div class="moving"><div class="chart">{image}</div>
<p>This one moves: computed beforehand over a grid of two of its controls. In the notebook all of
them answer.</p>
<script type="application/gzip">{spec}</script></div>
<script defer src="_static/vega.js"></script>"""
HEATMAP = """<div class="tokens">{image}<script type="application/json">{state}</script></div>
<script defer src="_static/heatmap.js"></script>"""
TEXTS = ("evidence", "claims", "losses", "scale")  # pages of data/book
CARDS = "<!-- chapters -->"  # where they stand on the first page
CONFIG = {
    "project": TITLE,
    "html_title": TITLE,
    "extensions": ["myst_nb", "sphinx_design", "sphinx.ext.githubpages", __name__],
    "html_theme": "sphinx_book_theme",
    "html_theme_options": {
        "show_navbar_depth": 1,
        "home_page_in_toc": True,
        "footer_content_items": [],
    },
    "html_static_path": [str(STATIC)],
    "html_css_files": ["heatmap.css", "book.css"],
    "html_js_files": [("book.js", {"defer": "defer"})],
    "html_math_renderer": "mathml",
    # it would be fetched, which a page opened from a file may not do
    "html_show_search_summary": False,
    "nb_execution_mode": "off",
    "nb_ipywidgets_js": {},  # a page asks nothing of the net
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
README = (
    f"---\ntitle: {TITLE}\nsdk: static\napp_file: index.html\n---\n\nThe rendered book: open"
    " index.html.\n"
)


def render_book(notebooks: dict, folder: Path) -> None:
    """Write a page for each executed notebook, by name, an index and the book's lists to a folder.

    The notebooks are decorated for their pages, and stay as they are.
    """
    from sphinx.application import Sphinx  # of the extra `lab`

    address = repository()
    decorated = {name: decorate(one, name, address) for name, one in notebooks.items()}
    lists = {
        "self-test": self_test_page(),
        "glossary": glossary_page(),
        "literature": references_page(),
    }
    lists |= {name: data_path("book", f"{name}.md").read_text(encoding="utf-8") for name in TEXTS}
    lists = {name: text.replace("(../../notebooks/", "(") for name, text in lists.items()}
    # those of an earlier rendering
    shutil.rmtree(pictures := folder / "_images", ignore_errors=True)
    pictures.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        source = Path(temporary, "source")
        source.mkdir()
        for name, notebook in decorated.items():
            (source / f"{name}.ipynb").write_text(
                json.dumps(page_source(notebook, pictures)), encoding="utf-8"
            )
        for name, text in ({"index": _index(notebooks, lists, source)} | lists).items():
            (source / f"{name}.md").write_text(text, encoding="utf-8")
        Sphinx(
            source, None, folder, Path(temporary, "doctrees"), "html", CONFIG, status=None
        ).build()
    for name, notebook in decorated.items():
        # what a page's button downloads
        blank = json.dumps(without_outputs(notebook), indent=1, ensure_ascii=False)
        (folder / "_sources" / f"{name}.ipynb").write_text(blank, encoding="utf-8")
    # the theme's words in languages of no page
    shutil.rmtree(folder / "_static" / "locales", ignore_errors=True)
    for source_map in folder.rglob("*.map"):
        source_map.unlink()
    vega = vl_convert.javascript_bundle(
        "window.vegaEmbed = vegaEmbed;", vl_version=vegalite_version()
    )
    # in a scope of its own, as Sphinx's scripts have names of one letter, too
    (folder / "_static" / "vega.js").write_text(f"(() => {{\n{vega}\n}})();", encoding="utf-8")
    (folder / "_static" / "heatmap.js").write_text(heatmap.page_script(), encoding="utf-8")
    shutil.copy(Path(heatmap.__file__).with_suffix(".css"), folder / "_static")
    (folder / "README.md").write_text(README, encoding="utf-8")
    print(f"The book lies in {folder / 'index.html'}")


def page_source(notebook: dict, pictures: Path) -> dict:
    """Prepare a notebook for its page: cells fold as in JupyterLab, outputs are HTML, with pictures
    in that folder.
    """
    page = copy.deepcopy(notebook)
    imports = {}  # explorer: the topic that a cell imports it from
    for k, cell in enumerate(page["cells"]):
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = re.sub(r"!\[([^\]]*)\]\((?:http|data:)[^)]*\)", r"\1", text).replace(
                "<abbr ", '<abbr tabindex="0" '
            )
            text = _own_links(text)
            cell["source"] = f"{re.sub(RUN, '', text)}\n\n{NOTE}" if k == 0 else text
            continue
        # of a chapter's set-up the page folds all
        if cell["metadata"].get("jupyter", {}).get("source_hidden"):
            cell["metadata"] = {
                "tags": ["hide-cell" if text.rstrip().endswith("setup(seed=0)") else "hide-input"]
            }
        for topic, names in re.findall(
            rf"^from workbook\.chapters\.({'|'.join(TOYS)}) import (.+)$", text, re.MULTILINE
        ):
            imports |= dict.fromkeys(names.split(", "), topic)
        last = re.search(r"^(explore_\w+)\(\)$", text.strip().rsplit("\n", 1)[-1])
        topic = imports.get(last[1]) if last else None
        explorer = getattr(import_module(f"workbook.chapters.{topic}"), last[1]) if topic else None
        for output in cell["outputs"]:
            _as_html(output, pictures, explorer)
    return page


def _own_links(text: str) -> str:
    """Markdown whose links to pages of data/book and to pictures lead to the rendered ones."""
    text = re.sub(rf"\(\.\./data/book/({'|'.join(TEXTS)})\.md", r"(\1.md", text)
    return text.replace("(../data/pictures/", "(")


def _as_html(output: dict, pictures: Path, explorer=None) -> None:
    """Turn an output's picture into HTML that says what it shows; explorer: makes what moves in its
    place.
    """
    data, about = output.get("data", {}), output.get("metadata", {}).get("image/png", {})
    if "image/png" not in data:
        if "text/markdown" in data:
            links = re.sub(
                r"\(\.\./data/book/(\w+)\.md", r"(\1.html", "".join(data["text/markdown"])
            )
            # of outputs Sphinx resolves none
            data["text/markdown"] = links.replace(".ipynb)", ".html)")
        if "text/html" in data:
            data["text/html"] = re.sub(
                r'(href="[\w-]+)\.ipynb"', r'\1.html"', "".join(data["text/html"])
            )
        return
    number = FIGURE_NUMBER.match(about.get("alt", ""))
    size = "".join(f' {name}="{about[name]}"' for name in ("width", "height") if name in about)
    png = b64decode("".join(data["image/png"]))
    name = f"{hashlib.sha256(png).hexdigest()[:16]}.png"
    # a page that held it in base64 would be heavier by a third of it
    (pictures / name).write_bytes(png)
    shown = f'<img src="_images/{name}" alt="{html.escape(about.get("alt", "chart"))}"{size}>'
    if explorer is not None:
        # of thousands of rows
        spec = gzip.compress(json.dumps(_frozen(explorer(), number)).encode(), mtime=0)
        shown = EXPLORER.format(image=shown, spec=b64encode(spec).decode())
    elif TOKENS in data:
        shown = HEATMAP.format(image=shown, state=json.dumps(data[TOKENS]).replace("<", "\\u003c"))
    elif FORM in data:
        shown += form_html(data[FORM])
    output["data"] = {"text/html": shown}


def _frozen(explorer, number: re.Match | None) -> dict:
    """The spec of an explorer that moves with its first two controls, under its figure's number."""

    def values(control) -> list:
        if hasattr(control, "options"):
            return [pair[1] if isinstance(pair, tuple) else pair for pair in control.options]
        if isinstance(control.value, bool):
            return [False, True]
        stride = max(1, round((control.max - control.min) / control.step / (STEPS - 1)))
        count = int((control.max - control.min) / (control.step * stride) + 1e-9) + 1
        points = [round(control.min + k * control.step * stride, 9) for k in range(count)]
        return [control.base**point for point in points] if hasattr(control, "base") else points

    spec = frozen(
        explorer, **{key: values(explorer.controls[key]) for key in list(explorer.controls)[:2]}
    )
    explorer.close()
    return prefix_title(spec, number[0]) if number else spec


def _index(notebooks: dict, lists: dict, source: Path) -> str:
    """The first page: data/book/front.md, and a card a chapter with its own picture."""
    shutil.copy(ROOT / "data" / "pictures" / "hero.gif", source / "hero.gif")
    cards = []
    for name, notebook in notebooks.items():
        title, question = describe(notebook, name)
        takes = re.search(r"\| It takes \| (.*?)(?: to run| on |,|;|\|)", notebook.cells[0].source)
        card = [f"```{{grid-item-card}} {title}", f":link: {name}", ":link-type: doc"]
        if (image := first_picture(notebook)) is not None:
            (source / f"{name}.png").write_bytes(image)
            card += [f":img-top: {name}.png", f":img-alt: the first picture of {title}"]
        cards.append(
            "\n".join(
                [*card, "", question, *(["", f"*{takes[1].strip()}*"] if takes else []), "```"]
            )
        )
    contents = f"```{{toctree}}\n:hidden:\n\n{chr(10).join([*notebooks, *lists])}\n```"
    grid = "\n".join(["````{grid} 1 2 2 3", ":gutter: 3", "", *cards, "````"])
    return (
        data_path("book", "front.md")
        .read_text(encoding="utf-8")
        .replace(CARDS, f"{grid}\n\n{contents}")
    )


def first_picture(notebook: dict) -> bytes | None:
    """The first picture among a notebook's outputs, as PNG, the path of all chapters aside."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}) and "book_path(" not in "".join(
                cell["source"]
            ):
                return b64decode("".join(output["data"]["image/png"]))
    return None


def anchor(heading: str) -> str:
    """The anchor of a heading, as JupyterLab has it."""
    return heading.replace(" ", "-")


def setup(app) -> dict:
    """Let Sphinx write formulas as MathML."""
    from latex2mathml.converter import convert

    def inline(writer, node):
        writer.body.append(convert(node.astext()))
        raise SkipNode

    def display(writer, node):
        writer.body.append(
            f'<div class="math" tabindex="0">{convert(node.astext(), display="block")}</div>'
        )
        raise SkipNode

    app.add_html_math_renderer("mathml", (inline, None), (display, None))
    return {"parallel_read_safe": True}
