"""Every chapter runs offline in the smoke profile, and is fit to be read as it is committed.

The machinery that runs them is tested on small notebooks made here.
"""

import gzip
import os
import re
import subprocess
import sys
from base64 import b64decode

import nbformat
import pytest
from chapter_runs import run_smoke
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from refusals import refused

from workbook.book import chapters
from workbook.book.decoration import PLAIN_LINK
from workbook.book.forms import CONTROLS_TYPE
from workbook.book.pages import render_book
from workbook.colab import FOLDED, SETUP_CELL

CHAPTERS = chapters.find_chapters()
ADDRESS = "https://github.com/somebody/cancellation-workbook"
MAX_BYTES = 1_500_000  # a heavier one is slow to open, and makes the history heavy
MACHINE_PATHS = re.compile(
    r"(?<![\w.:/])/(?:home|root|work|tmp|Users|private|var|opt)/[\w.]|site-packages|[A-Z]:\\\\"
)
NOTEBOOKS = chapters.find_notebooks()  # with the forms that have one of their own
# toys alone, probes on the bundled policy, training in memory; all others are in tests/release
QUICK = ("00", "05", "08")
each_chapter = pytest.mark.parametrize("path", CHAPTERS, ids=[path.stem for path in CHAPTERS])
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def cells(path, kind):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == kind]


@pytest.mark.parametrize("name", QUICK)
def test_a_chapter_runs_in_the_smoke_profile(name, offline):
    run_smoke(next(path for path in CHAPTERS if path.stem.startswith(name)))


@each_notebook
def test_chapter_was_executed_top_to_bottom(path):
    code = cells(path, "code")
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell.outputs), (
        "no picture"
    )


@each_notebook
def test_chapter_carries_no_widget_state_and_no_trace_of_a_machine(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < MAX_BYTES
    assert "widgets" not in nbformat.read(path, as_version=4).metadata
    assert chapters.WIDGET_VIEW not in text
    words = re.sub(r'"image/png": "[^"]*"', "", text)
    assert not MACHINE_PATHS.findall(words)


@each_notebook
def test_a_cell_that_asserts_is_folded(path):
    for cell in cells(path, "code"):
        if re.search(r"^\s*assert\b|\bassert_\w+\(", cell.source, re.MULTILINE):
            assert cell.metadata.get("jupyter") == FOLDED["jupyter"], cell.id


@each_chapter
def test_chapter_begins_with_its_header_and_the_common_setup_cell(path):
    notebook = nbformat.read(path, as_version=4)
    title, question = chapters.describe(notebook, "")
    assert title
    assert question, "the first cell says **Question:** ..."
    set_it = "take the setup cell from another chapter"
    assert cells(path, "code")[0].source == SETUP_CELL, set_it
    assert cells(path, "code")[0].metadata == FOLDED, set_it


@pytest.mark.parametrize("path", NOTEBOOKS[len(CHAPTERS) :], ids=lambda path: path.stem)
def test_a_form_of_its_own_is_one_folded_cell_that_colab_can_run_too(path):
    (cell,) = cells(path, "code")
    assert cell.source.startswith(SETUP_CELL.partition("\nimport workbook")[0])
    assert cell.metadata == FOLDED
    assert any("it fits" in value for _, value in cell.outputs[0].data[CONTROLS_TYPE]), (
        "its forecast"
    )


def navigation(path):
    """The line of Markdown that leads from a chapter to those before and after it; in its first
    cell and its last.
    """
    place = CHAPTERS.index(path)
    links = [f"← {_link(CHAPTERS[place - 1])}"] if place else []
    links += [f"[all chapters]({CHAPTERS[0].name}#The-chapters)"] if place > 1 else []
    return " · ".join(links + [f"{_link(after)} →" for after in CHAPTERS[place + 1 : place + 2]])


def _link(path):
    title, _ = chapters.describe(nbformat.read(path, as_version=4), path.stem)
    return f"[{title.partition(':')[0]}]({path.name})"


@each_chapter
def test_chapter_leads_to_those_before_and_after_it(path):
    notebook, line = nbformat.read(path, as_version=4), navigation(path)
    assert notebook.cells[0].source.split("\n\n")[2] == line
    assert notebook.cells[-1].source.endswith(f"\n\n{line}")
    place = CHAPTERS.index(path)
    beside = [*CHAPTERS[max(place - 1, 0) : place], *CHAPTERS[place + 1 : place + 2]]
    assert re.findall(r"\((\w+\.ipynb)\)", line) == [one.name for one in beside]


@each_notebook
def test_chapter_is_clean(path):
    for command in (["check"], ["format", "--check"]):
        run = subprocess.run(
            [sys.executable, "-m", "ruff", *command, str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout


def test_machine_paths_are_recognized():
    for text in (
        "in /home/someone/x",
        '"/tmp/run',
        "File /opt/project",
        "/root/.cache",
        "lib/site-packages/torch",
    ):
        assert MACHINE_PATHS.findall(text), text
    for text in ("rewards/mean", "https://example.org/home/page", "./notebooks/runs", "and/or"):
        assert not MACHINE_PATHS.findall(text), text


# --- the machinery
# -----------------------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path, monkeypatch, offline):
    """A function that puts a chapter made of code cells on an otherwise empty shelf."""
    monkeypatch.setattr(chapters, "NOTEBOOKS", tmp_path / "notebooks")
    (tmp_path / "notebooks").mkdir()

    def put(
        name,
        *sources,
        header="# A title <b>\n\n**Question:** is *this* so?\n\nMore. [next](01_b.ipynb)",
        ending=None,
    ):
        notebook = new_notebook(cells=[new_markdown_cell(header), *map(new_code_cell, sources)])
        if ending is not None:
            notebook.cells.append(new_markdown_cell(ending))
        nbformat.write(notebook, path := chapters.NOTEBOOKS / f"{name}.ipynb")
        return path

    return put


WIDGETS = """import ipywidgets, pandas as pd, workbook, os
from workbook.views import LiveChart, curve_chart, enable_charts
from workbook.views.live import display_widget
enable_charts()
table = pd.DataFrame({"x": [1, 2], "mean": [0.1, 0.2], "low": 0.0, "high": 0.3})
chart = curve_chart(table, "x", title="Reward")
live = LiveChart(chart)
steps = ipywidgets.IntSlider(2, description="steps")
display(ipywidgets.IntSlider(), live)
display_widget(ipywidgets.VBox([steps, live]), live)
steps.value = 7
print(os.path.abspath("here"), workbook.__file__)
chart"""


def test_a_chapter_runs_in_its_folder_with_the_profile_and_stays_untouched(shelf):
    path = shelf("00_a", "import os; open('seen', 'w').write(os.environ['WORKBOOK_PROFILE'])")
    before = path.read_bytes()
    assert list(chapters.run_chapters("smoke")) == ["00_a"]
    assert (path.parent / "seen").read_text() == "smoke"
    assert path.read_bytes() == before


def test_in_place_writes_stable_outputs_with_pictures_for_widgets(shelf, capsys):
    path = shelf("00_a", "1", WIDGETS, "workbook.views.predict('00-a', 'How far?', number=(0, 1))")
    chapters.run_chapters("smoke", in_place=True)
    assert re.search(r"00_a: \d+\.\d s in the smoke profile", capsys.readouterr().out)
    first = path.read_bytes()
    text = first.decode()
    test_chapter_carries_no_widget_state_and_no_trace_of_a_machine(path)
    assert os.path.expanduser("~") not in text
    live, form, printed, chart = cells(path, "code")[1].outputs
    assert set(live.data) == {"image/png", "text/plain"}
    assert set(form.data) == {"image/png", "text/plain", CONTROLS_TYPE}
    assert form.data[CONTROLS_TYPE] == [["steps", "7"]], (
        "as it was at the end, not when it was shown"
    )
    assert "application/vnd.vegalite.v5+json" in chart.data
    assert "./workbook/__init__.py" in printed.text
    assert cells(path, "code")[2].outputs[0].data == {
        "text/markdown": "> **Predict.** How far? (a number from 0 to 1)",
        "text/plain": "Predict. How far? (a number from 0 to 1)",
    }, "a widget without a picture is its text"
    test_chapter_was_executed_top_to_bottom(path)
    chapters.run_chapters("smoke", in_place=True)
    assert path.read_bytes() == first


def test_a_failure_names_chapter_cell_and_error_and_writes_nothing(shelf):
    path, after = shelf("01_b", "1", "x = {}\nx['key']", "2"), shelf("02_c", "1")
    before = path.read_bytes()
    with pytest.raises(chapters.ChapterFailed, match=r"01_b\.ipynb failed in cell 2") as error:
        chapters.run_chapters("smoke", in_place=True)
    assert "x['key']" in str(error.value)
    assert path.read_bytes() == before
    assert cells(after, "code")[0].execution_count is None


def test_a_kernel_that_dies_is_named(shelf):
    shelf("01_b", "import os; os._exit(1)")
    with pytest.raises(chapters.ChapterFailed, match=r"01_b\.ipynb failed in cell 1"):
        chapters.run_chapters("smoke")


def test_names_choose_and_unknown_ones_are_refused(shelf):
    shelf("01_b", "1")
    shelf("04_c", "1")
    assert [path.stem for path in chapters.find_chapters(["04"])] == ["04_c"]
    assert [path.stem for path in chapters.find_chapters()] == ["01_b", "04_c"]
    with refused("chapter", "09"):
        chapters.run_chapters("smoke", ["09"])


def test_the_book_is_whole_without_a_kernel_and_without_the_net(shelf, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_REPOSITORY", ADDRESS)
    moves = (
        "from workbook.chapters.groups import explore_gradients_meet\n\nexplore_gradients_meet()"
    )
    shelf("00_a", WIDGETS, moves)
    path = shelf(
        "01_b",
        "1",
        header=f"# Next\n\n{PLAIN_LINK}\n\n**Question:** why $x_1^2$?\n\n$$\\frac{{a}}{{b}}$$",
        ending="Its jitter.\n\n[back](00_a.ipynb)",
    )
    render_book(chapters.run_chapters("smoke", in_place=True), tmp_path / "book")
    assert [cell.source for cell in cells(path, "markdown")][1:] == [
        "Its jitter.\n\n[back](00_a.ipynb)"
    ], "what pages add is never written into the source"
    page, last, index = (
        (tmp_path / "book" / name).read_text() for name in ("00_a.html", "01_b.html", "index.html")
    )
    pictures = re.findall(r'src="(_images/\w+\.png)"', page)
    assert len(pictures) == 4
    assert all((tmp_path / "book" / picture).exists() for picture in pictures)
    assert len(re.findall(r'alt="Fig\. 0\.\d\. Reward', page)) == 3
    spec = gzip.decompress(b64decode(re.search('application/gzip">([^<]+)', page)[1])).decode()
    assert re.search(r'alt="(Fig\. 0\.\d\. Opposite advantages)', page)[1] in spec, (
        "what moves has its picture's number"
    )
    assert ">steps</th><td>7</td>" in page
    assert page.count('class="moving"') == 1
    assert "now_advantage_a" in spec
    assert 'href="01_b.html"' in page
    assert not re.findall(
        r'<(?:script|img|link)[^>]+(?:src|href)="(?:https?:)?//', page + last + index
    )
    assert re.search(r'href="https://colab[^"]*/01_b.ipynb"[^>]*>Open in Colab</a>', last)
    assert 'class="term"' in last
    assert "Literature." in last
    assert "<mfrac>" in last
    assert "<msubsup>" in last
    assert "is this so?" in index
    assert {"glossary.html", "self-test.html", "search.html", ".nojekyll"} <= {
        p.name for p in (tmp_path / "book").iterdir()
    }
    download = nbformat.read(tmp_path / "book" / "_sources" / "01_b.ipynb", as_version=4).cells[1]
    assert (download.source, download.outputs, download.execution_count) == ("1", [], None)
    assert not list(tmp_path.rglob("*.map"))
