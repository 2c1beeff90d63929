"""What the book says it found is what the ledger holds."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest

from workbook.book import outcomes
from workbook.book.outcomes import (
    Finding,
    decisions_markdown,
    findings_markdown,
    read_findings,
    undecided,
    write_readme,
)
from workbook.claims.show import registered
from workbook.training import CancellationConfig

ROOT = Path(__file__).resolve().parents[1]
EVERY = [one for kind in read_findings().values() for one in kind]


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.question[:40])
def test_a_sentence_rests_on_registered_rows_and_their_outcomes_are_as_it_says(one):
    assert one.when
    assert set(one.when) <= set(registered())
    assert one.holds(), {key: registered()[key].outcome for key in one.when}
    sentence = one.sentence()
    assert "{" not in sentence
    assert all(key in one.certainty() for key in one.when)


def test_a_sentence_falls_with_an_outcome(monkeypatch):
    one = read_findings()["findings"][0]
    key = next(iter(one.when))
    rows = registered() | {key: registered()[key]._replace(outcome="contradicted")}
    monkeypatch.setattr(outcomes, "registered", lambda: rows)
    assert not one.holds()
    assert one.sentence().startswith(f"**{one.question}**")
    assert "contradicted" in one.sentence()
    assert "contradicted" in one.certainty()


def test_numbers_are_the_rows(monkeypatch):
    row = registered()["H1"]._replace(mean=0.25, low=0.125, high=0.5)
    monkeypatch.setattr(outcomes, "registered", lambda: {"H1": row})
    one = Finding("Is it?", {"H1": row.outcome}, "It is {H1}, or {H1:%}.")
    assert one.sentence() == "It is 0.25 [0.12, 0.5], or 25 % [12, 50]."


def test_rules_that_are_named_beside_registered_ones_did_gain():
    for name in re.findall(r"\{arena (\w+)\}", "".join(one.says for one in EVERY)):
        assert outcomes._arena().loc[name, "over_plain_low"] > 0


def test_settings_that_a_decision_names_are_the_trainers():
    valid = {field.name for field in fields(CancellationConfig)}
    assert [name for one in read_findings()["decisions"] for name in one.setting if name not in valid] == []
    assert decisions_markdown().count("\n") == 1 + len(read_findings()["decisions"])


def test_readme_opens_with_the_findings(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert findings_markdown() in readme, "python -m workbook findings --readme README.md writes them"
    assert readme.index("<!-- findings -->") < readme.index("## Start")
    copy = tmp_path / "README.md"
    copy.write_text("before\n<!-- findings -->\nold\n<!-- /findings -->\nafter\n", encoding="utf-8")
    assert write_readme(copy)
    assert not write_readme(copy)
    assert copy.read_text().startswith("before\n<!-- findings -->\n1. ")
    with pytest.raises(ValueError, match="<!-- findings -->"):
        write_readme(tmp_path / "none.md")


def test_what_is_undecided_is_in_no_sentence_as_decided():
    table = undecided()
    assert set(table["outcome"]) <= {"inconclusive", "not testable here", "not comparable"}
    assert len(table) == sum(
        row.role == "primary" and row.outcome in set(table["outcome"]) for row in registered().values()
    )
    assert replace(EVERY[0], when={table["claim"][0]: "supported"}).holds() is False
