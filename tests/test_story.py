"""What the chapters' stories share: the prompt that all follow, the path, claims in a word, a
reader's hypothesis.
"""

import random

import pytest
from refusals import refused

from workbook import example_group, example_policy, example_rollouts, running_values
from workbook.book import back_matter, show_claims
from workbook.book.chapters import NOTEBOOKS, find_chapters
from workbook.chapters.hypothesis import check_hypothesis
from workbook.ledger import OUTCOME_WORDS, registered
from workbook.places import data_path
from workbook.views import book_path, meeting_paths_chart
from workbook.views.chapter_map import STATIONS


def measure(seed, size=1, heat=1.0, noise=0.0, shape="flat"):
    if heat <= 0:
        raise ValueError(f"heat={heat} must be above 0.")
    return {"flat": 1}[shape] * size + noise * random.Random(f"{seed} {size}").gauss(0, 1)


def hypothesis(larger, smaller, pairs=6):
    return {"larger": larger, "smaller": smaller, "pairs": pairs}


@pytest.mark.parametrize(
    ("mine", "says"),
    [
        (None, "Not answered yet"),
        (3, "'3' is no hypothesis; write"),
        ({"larger": {"size": 2}, "smaller": {}}, "is no hypothesis; write"),
        (hypothesis(2, {}), "larger is '2', but must be a dict of settings, such as {'size': ...}"),
        (
            hypothesis({"sise": 2}, {}),
            "larger has no setting 'sise'; there are size, heat, noise, shape.",
        ),
        (hypothesis({}, {"seed": 2}), "smaller has no setting 'seed'"),
        (hypothesis({"size": 1}, {}), "the same settings"),
        (hypothesis({"size": 2}, {"heat": 2}), "they differ in size and heat"),
        (hypothesis({"size": 2}, {}, pairs=3), "pairs is '3', but must be a whole number from 6"),
        (hypothesis({"size": 2}, {}, pairs=True), "pairs is 'True'"),
        (hypothesis({"heat": -1}, {}), "Not quite: heat=-1 must be above 0."),
        (hypothesis({"size": "a"}, {}), "Not quite: "),
        (
            hypothesis({"shape": "round"}, {}),
            "Not quite: your function has no case for 'round'; read which it has.",
        ),
        (hypothesis({"size": 2}, {}), "Your hypothesis holds at these settings."),
        (hypothesis({}, {"size": 2}), "The opposite holds at these settings"),
        (hypothesis({"heat": 2}, {}), "does not depend on what you changed"),
        (
            hypothesis({"size": 2, "noise": 9}, {"noise": 9}),
            "Open at these settings: neither sign is excluded",
        ),
    ],
)
def test_a_hypothesis_is_tried_or_its_fault_is_named(mine, says, capsys):
    check_hypothesis(measure, mine)
    assert says in capsys.readouterr().out


def test_claims_are_sentences_with_a_word_that_opens_the_row():
    assert {row.outcome for row in registered().values()} <= set(OUTCOME_WORDS)
    shown = show_claims({"H1": "alike <b>"})
    word = registered()["H1"].outcome
    assert repr(shown).startswith(f"{word}: alike <b> (H1, primary)\n")
    assert f">{word}</b> alike &lt;b&gt; " in shown._repr_html_()
    assert registered()["H1"].measured[:20] in shown._repr_html_()
    for scale in ("family", "world:third"):
        with refused("key", "H99"):
            show_claims({"H99": "what"}, scale)
    assert "Q2" in registered("world:third"), "and not in the family"
    units = registered("world:third")["Q1 world"].units
    assert repr(show_claims({"Q1 world": "faster"}, "world:third")).count(f"; {units} of ") == 1


def test_a_and_b_are_rollouts_of_a_policy_that_answers_their_prompt():
    policy = example_policy()
    pair = example_rollouts(policy)
    assert pair.rewards.tolist() == [1, 0]
    assert pair.old_logps.min() > -5, "the policy might well have said both"
    group = example_group(policy, 8)
    assert 0 < group.rewards.mean() < 1
    values = running_values(pair)
    assert [part["value"].tolist() for _, part in values.groupby("rollout")] == [
        [5, 9, 2],
        [5, 8, 1],
    ]
    chart = meeting_paths_chart(values).to_dict()
    assert "step 0, value 5: 0.50 of 2" in chart["description"]


def test_the_path_has_every_chapter_and_says_where_one_is():
    assert [*STATIONS] == [path.name[:2] for path in find_chapters()]
    assert book_path("05").to_dict()["title"]["text"] == ["You are here: 05, who moves"]
    assert book_path().to_dict()["title"]["text"] == ["The way through the book"]
    with refused("here", "15"):
        book_path("15")
    for path in find_chapters():
        text = path.read_text(encoding="utf-8")
        assert 'book_path(\\"' not in text or f'book_path(\\"{path.name[:2]}\\")' in text, NOTEBOOKS


def test_the_page_of_losses_is_what_was_measured():
    page = data_path("book", "losses.md").read_text(encoding="utf-8")
    assert f"<!-- losses -->\n{back_matter.losses_table()}\n<!-- /losses -->" in page
