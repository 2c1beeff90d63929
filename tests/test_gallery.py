"""The gallery of figures: every record names what there is, the chapter has a section of each, and cards are safe."""

import importlib
import inspect
import json
import re

import pytest

from workbook.book import gallery
from workbook.book.chapters import ROOT
from workbook.claims.show import registered
from workbook.policies.load import load_policy
from workbook.tasks import get_task

FIGURES = gallery.figures()
CHAPTER = json.loads((ROOT / "notebooks" / "14_the_papers.ipynb").read_text(encoding="utf-8"))["cells"]
SOURCES = {
    kind: ["".join(cell["source"]) for cell in CHAPTER if cell["cell_type"] == kind] for kind in ("markdown", "code")
}


def function_of(name: str):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(f"workbook.{module}"), attribute)


def test_every_figure_of_both_papers_that_is_known_of_has_a_record():
    names = ["H " + str(k) for k in range(1, 12)] + ["D 1", "D curves", "D Tables 1 and 2", "D Table 4"]
    assert list(FIGURES) == names
    assert [one.figure for one in FIGURES.values() if one.reading] == ["D 1", "D curves"]


@pytest.mark.parametrize("one", FIGURES.values(), ids=list(FIGURES))
def test_what_a_record_names_is_there(one):
    assert one.functions
    assert set(one.keys) <= set(registered())
    assert (ROOT / "notebooks" / f"{one.chapter}.ipynb").exists()
    code = "\n".join(SOURCES["code"])
    for name in one.functions:
        assert callable(function_of(name))
        assert re.search(rf"\b{name.rpartition('.')[2]}\(", code), f"{name} is not called in the chapter"
    headings = re.findall(r"^## (.+)$", "\n".join(SOURCES["markdown"]), re.MULTILINE)
    assert [text for text in headings if text.split(" · ")[0].split(" and ")[0] == one.figure.split(" and ")[0]]
    assert f'show_figure("{one.figure}")' in SOURCES["code"]


def test_knobs_are_labels_of_the_controls():
    policy, task = load_policy("bundled"), get_task("chain")
    rollouts = None
    for one in FIGURES.values():
        labels = set()
        for make in map(function_of, one.live):
            wanted = list(inspect.signature(make).parameters)
            if wanted[:2] == ["policy", "rollouts"]:
                rollouts = rollouts or task_rollouts(policy, task)
            arguments = {"policy": policy, "task": task, "rollouts": rollouts}
            widget = make(**{name: arguments[name] for name in wanted if name in arguments})
            labels |= {control.description for control in widget.controls.values()}
            widget.close()
        assert set(one.knobs) <= labels, one.figure


def task_rollouts(policy, task):
    from workbook.rollouts.sample import sample_rollouts

    return sample_rollouts(policy, task, 2, 4, 0, 48)


def test_a_card_says_what_is_shown_what_differs_and_the_outcomes():
    card = gallery.show_figure("D curves")
    assert gallery.READING in repr(card)
    assert all(registered()[key].outcome in repr(card) for key in FIGURES["D curves"].keys)
    assert 'href="09_drift_fixing.ipynb"' in card._repr_html_()
    table = gallery.gallery_table()
    assert table.loc["H 1", "outcome"] == registered()["H1"].outcome
    assert (table["computed live"] == "yes").sum() >= 14


def test_a_card_escapes_what_it_shows():
    record = vars(FIGURES["H 1"]) | {"shows": "<script>alert(1)</script>"}
    assert "<script>" not in gallery.FigureCard(gallery.Figure(**record))._repr_html_()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"keys": "H1"}, r"the record 'H 1': keys is 'H1'; it must be a list of texts\."),
        ({"figure": "X 1"}, r"the record 'X 1': its name must begin with one of H, D"),
        ({"colour": "red"}, r"has the field 'colour'; it may have figure, names"),
        ({"shows": ""}, r"the record 'H 1' lacks shows\."),
        ({"reading": "yes"}, r"reading is 'yes'; it must be true or false\."),
    ],
)
def test_a_faulty_record_is_one_sentence(tmp_path, change, sentence):
    record = {"figure": "H 1", "names": "Figure 1", "shows": "a", "here": "b", "differs": "c", "keys": ["H1"]}
    path = tmp_path / "figures.yaml"
    path.write_text(json.dumps([record | {"chapter": "05_token_flipping"} | change]))
    with pytest.raises(ValueError, match=sentence):
        gallery.figures(path)


def test_an_unknown_figure_names_its_neighbours():
    with pytest.raises(ValueError, match=r"figure='H 12' is not in the gallery; there are H 2, H 1"):
        gallery.show_figure("H 12")
