"""Working copies of the chapters: nothing of theirs is given away, nothing of the reader's is
written over.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from workbook import __main__
from workbook.book import chapters, copies, decoration
from workbook.book.decoration import decorate


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A shelf of two executed chapters, and the folder of their copies."""
    monkeypatch.setattr(chapters, "NOTEBOOKS", tmp_path / "notebooks")
    monkeypatch.setattr(copies, "COPIES", tmp_path / "my_chapters")
    (tmp_path / "notebooks").mkdir()
    for name in ("04_one", "05_two"):
        write_chapter(name, "6 * 7")
    return tmp_path / "my_chapters"


def write_chapter(name: str, source: str) -> None:
    cells = [
        new_markdown_cell(f"# {name}"),
        new_code_cell(source, execution_count=1, outputs=[new_output("stream", text="42")]),
        new_markdown_cell("Its jitter.\n\n[on](b)"),
    ]
    nbformat.write(new_notebook(cells=cells), chapters.NOTEBOOKS / f"{name}.ipynb")


def edit(path, source: str | None = None, **cell) -> None:
    """What a reader does to the code cell of a copy: other source, or outputs."""
    notebook = json.loads(path.read_text())
    notebook["cells"][1] |= {"source": [source]} if source else cell
    path.write_text(json.dumps(notebook))


def test_copies_hold_the_decorated_text_and_no_outputs(desk):
    assert copies.update_copies(desk) == []
    for chapter in chapters.find_chapters():
        copy, original = (
            nbformat.read(path, as_version=4) for path in (desk / chapter.name, chapter)
        )
        nbformat.validate(copy)
        decorated = decorate(original, chapter.stem)["cells"]
        assert [cell.source for cell in copy.cells] == [cell["source"] for cell in decorated]
        assert "<abbr" in copy.cells[-1].source
        assert "<abbr" not in original.cells[-1].source
        assert copy.cells[1].outputs == []
        assert copy.cells[1].execution_count is None
        assert original.cells[1].outputs


def test_only_an_untouched_copy_is_renewed(desk):
    copies.update_copies(desk)
    edit(desk / "04_one.ipynb", execution_count=1, outputs=[new_output("stream", text="42")])
    before = {path: path.read_bytes() for path in desk.iterdir()}
    assert copies.update_copies(desk) == []
    write_chapter("05_two", "6 * 7")  # its outputs are others, its text is the same
    assert copies.update_copies(desk) == []
    assert (desk / "04_one.ipynb").read_bytes() == before[desk / "04_one.ipynb"]
    for name in ("04_one", "05_two"):
        write_chapter(name, "7 * 8")
    (sentence,) = copies.update_copies(desk)
    assert sentence.startswith("04_one has changed since your copy ")
    assert sentence.endswith("python -m workbook lab --fresh 04_one")
    assert (desk / "04_one.ipynb").read_bytes() == before[desk / "04_one.ipynb"]
    assert "7 * 8" in (desk / "05_two.ipynb").read_text()


def test_a_new_sentence_in_the_glossary_renews_copies_and_is_no_change_of_a_chapter(
    desk, monkeypatch
):
    copies.update_copies(desk)
    edit(desk / "04_one.ipynb", "mine = 1")
    before = (desk / "04_one.ipynb").read_bytes()
    monkeypatch.setattr(decoration, "tooltip_text", lambda term: "another sentence")
    assert copies.update_copies(desk) == []
    assert (desk / "04_one.ipynb").read_bytes() == before
    assert "another sentence" in (desk / "05_two.ipynb").read_text()


def test_a_fresh_copy_keeps_the_old_one_beside_it(desk, capsys):
    assert __main__.main(["lab", "--fresh", "05"]) == 0
    assert capsys.readouterr().out == "05_two.ipynb is a fresh copy.\n"
    edit(desk / "05_two.ipynb", "mine = 1")
    assert __main__.main(["lab", "--fresh", "05"]) == 0
    assert "The one that you had is " in capsys.readouterr().out
    assert "mine" not in (desk / "05_two.ipynb").read_text()
    (kept,) = desk.glob("05_two.*-*.ipynb")
    assert "mine = 1" in kept.read_text()
    copies.update_copies(desk)
    assert len(list(desk.iterdir())) == 3, "an untouched copy is not kept"


def test_a_former_name_leads_on_and_what_a_reader_wrote_under_it_stays(desk, monkeypatch):
    former = {"04_then": "04_one", "05_then": "05_two"}
    for name in former:
        write_chapter(name, "6 * 7")
    copies.update_copies(desk)
    edit(desk / "04_then.ipynb", "mine = 1")
    for name in former:
        (chapters.NOTEBOOKS / f"{name}.ipynb").unlink()
    for module in (chapters, copies):
        monkeypatch.setattr(module, "FORMER_NAMES", former)

    (sentence,) = copies.update_copies(desk)
    assert sentence == "04_then.ipynb is yours and stays. Its chapter is now 04_one."
    assert "mine = 1" in (desk / "04_then.ipynb").read_text()
    signpost = nbformat.read(desk / "05_then.ipynb", as_version=4)
    nbformat.validate(signpost)
    assert [cell.source for cell in signpost.cells] == [
        "# Moved\n\nThis chapter is now [05_two](05_two.ipynb)."
    ]
    assert copies.update_copies(desk) == [sentence], "a signpost counts as untouched"
    assert [path.stem for path in chapters.find_chapters(["05_then"])] == ["05_two"]


def test_what_replaces_a_former_chapter_is_there():
    stems = {path.stem for path in chapters.find_chapters()}
    assert set(chapters.FORMER_NAMES.values()) <= stems
    assert not set(chapters.FORMER_NAMES) & stems


@pytest.mark.parametrize("asked", [["--fresh", "05", "77"], ["--open", "77"]])
def test_a_chapter_that_is_none_is_refused(desk, capsys, asked):
    assert __main__.main(["lab", *asked]) == 2
    assert re.fullmatch(
        r"chapter='77' must be the beginning of one of .*\n", capsys.readouterr().err
    )
    assert not desk.exists()


def test_the_server_opens_a_copy_with_the_books_defaults_and_says_last_what_to_open(tmp_path):
    """From another folder; settings come from data/jupyter, beside those of the reader."""
    places = {
        name: str(tmp_path / name)
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
    }
    options = [
        "--no-browser",
        "--ip=127.0.0.1",
        "--port=0",
        "--IdentityProvider.token=",
        f"--LabApp.workspaces_dir={tmp_path}",
    ]
    with open(tmp_path / "log.txt", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "workbook", "lab", "--open", "experiment", "--", *options],
            cwd=tmp_path,
            env=os.environ | places,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        address, place = wait_for_address(server, tmp_path / "log.txt")
        assert place == "/lab/tree/my_chapters/try_your_own.ipynb"
        last = (tmp_path / "log.txt").read_text().splitlines()[-1]
        assert (
            last == f"The form for an experiment of your own: {address}{place}  (Ctrl + C, twice,"
            " ends it)"
        )
        setting = "/lab/api/settings/@jupyterlab/apputils-extension:notification"
        with urllib.request.urlopen(address + setting, timeout=30) as answer:
            assert json.load(answer)["schema"]["properties"]["fetchNews"]["default"] == "false"
    finally:
        server.terminate()
        server.wait(30)


def wait_for_address(server, log) -> tuple[str, str]:
    """The address that the server says it listens at, and the place that it opens."""
    end = time.monotonic() + 90
    while time.monotonic() < end and server.poll() is None:
        if match := re.search(r"(http://127\.0\.0\.1:\d+)(/\S+)", log.read_text()):
            return match.groups()
        time.sleep(0.2)
    pytest.fail(log.read_text()[-2000:])
