"""The arena: updates against the exact gradient, budgets, scores by hand, contests that go on where they were."""

import functools
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.__main__ import main
from workbook.claims import ledger
from workbook.places import data_path
from workbook.probes.recovered import exact_gradient
from workbook.probes.values import exact_values, expected_reward
from workbook.rollouts import credit_batch
from workbook.statistics import t_interval
from workbook.studies.bench import Bench
from workbook.studies.loop import Loop, advantaged
from workbook.studies.record import load_measured
from workbook.studies.registration import read_registration
from workbook.tasks import get_task
from workbook.topics.arena import (
    arena_chart,
    arena_table,
    contender,
    contest,
    measured_table,
    outcomes,
    place,
    rule_marks,
    table_markdown,
)
from workbook.topics.arena.charts import table_text
from workbook.topics.arena.claims import START, score_units
from workbook.topics.arena.study import ALL, BOUNDS, SMALL, auroc, exact_oracle

TINY = replace(SMALL, name="tiny", prompts=2, batches=2, held_out=2, marked=1, redraws=2, group_size=4)


@pytest.fixture(scope="module")
def marks(policy):
    rules = [contender(name) for name in ("dr_grpo", "rloo", "oracle", "coin_reward")]
    return rule_marks(policy, get_task("chain"), rules, 2, 8, 3, 5).set_index("rule")


def test_the_ideal_update_is_the_slope_of_the_exact_value(policy):
    """Along its own direction a small step raises the expected reward by the gradient's length times the step."""
    task = get_task("chain")
    prompts = task.dataset(2, 3)["prompt"]
    gradient = exact_gradient(policy, task, prompts)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    start, direction = [p.detach().clone() for p in trained], gradient / gradient.norm()
    values = []
    for step in (1e-3, -1e-3):
        moves = direction.split([p.numel() for p in trained])
        for p, before, move in zip(trained, start, moves, strict=True):
            p.data.copy_(before + step * move.view_as(p))
        values.append(float(expected_reward(policy, task, prompts).double().mean()))
    for p, before in zip(trained, start, strict=True):
        p.data.copy_(before)
    assert (values[0] - values[1]) / 2e-3 == pytest.approx(float(gradient.norm()), rel=1e-2)


def test_marks_of_rules_that_are_one_another_times_a_number(marks):
    """In groups of eight rloo is dr_grpo times 8/7: its update is longer, and as near to the ideal one."""
    longer = marks.loc["rloo", ["along", "mean2", "total2"]] / marks.loc["dr_grpo", ["along", "mean2", "total2"]]
    assert longer.tolist() == pytest.approx([8 / 7, (8 / 7) ** 2, (8 / 7) ** 2], rel=1e-4)
    for column in ("correlation", "auroc", "where"):
        assert marks.loc["rloo", column] == pytest.approx(marks.loc["dr_grpo", column], rel=1e-6)


def test_the_oracle_is_the_exact_credit(policy):
    """A loop's, under the policy of now; the study's, which tokenizes prompts anew, under the policy it is given."""
    task, loop = get_task("chain"), Loop(prompts=2, group_size=4, rule="oracle")
    given, _ = advantaged(policy, task, loop, task.dataset(2, 1), seed=1, batch=1)
    exact = exact_values(policy, task, given).credit * given.completion_mask
    assert torch.allclose(given.advantages, exact, atol=1e-6)
    assert torch.allclose(exact_oracle(policy, task).advantages(credit_batch(policy, given, task)), exact, atol=1e-6)
    assert exact.abs().max() > 0.1
    assert not torch.allclose(given.advantages, credit_batch(policy, given, task).known_credit, atol=0.01)


def test_what_the_study_trained_is_what_its_tables_hold():
    marks = load_measured("arena", "family", "marks")
    assert set(ALL) == set(marks["rule"])


def test_auroc_counts_pairs():
    assert auroc(np.array([1.0, 2.0, 2.0]), np.array([False, True, False])) == 0.75
    assert np.isnan(auroc(np.ones(3), np.ones(3, dtype=bool)))


def _runs(ends: dict[str, list[float]], start: float = 0.4, tokens: int = 100) -> pd.DataFrame:
    rows = []
    for rule, values in ends.items():
        for seed, value in enumerate(values):
            common = {"rule": rule, "seed": seed, "match": "grad_norm", "budget": 100, "moved": 0.1, "tax": value}
            rows.append({"batch": 0, "value": start, "sampled_tokens": 0, "seconds": 0.0, **common})
            rows.append({"batch": 2, "value": value, "sampled_tokens": tokens, "seconds": 3.0, **common})
    return pd.DataFrame(rows)


ENDS = {"permuted": [0.4, 0.3, 0.4], "oracle": [0.8, 0.9, 0.7], "dr_grpo": [0.7, 0.8, 0.7]}


def test_a_score_is_a_ratio_of_means_with_a_jackknife_interval():
    ends = outcomes(_runs(ENDS))
    low, top, own = (np.array(ENDS[rule]) for rule in ("permuted", "oracle", "dr_grpo"))
    ratio = lambda keep: (own - low)[keep].sum() / (top - low)[keep].sum()  # noqa: E731
    leave = [ratio(np.arange(3) != k) for k in range(3)]
    expected = [3 * ratio(slice(None)) - 2 * without for without in leave]
    assert score_units(ends, "dr_grpo").tolist() == pytest.approx(expected)
    gained = score_units(ends, "dr_grpo", floor=START)
    assert gained.mean() == pytest.approx(1.0 / 1.2, abs=0.02)
    table = _table(_runs(ENDS)).set_index("rule")
    row = table.loc["dr_grpo"]
    assert (row["score"], row["score_low"], row["score_high"]) == pytest.approx(t_interval(expected))
    assert table.loc[["permuted", "oracle"], "score"].tolist() == [0, 1]
    assert row["step_s"] == 1.5
    logs = np.log(np.array(ENDS["oracle"]) / ENDS["dr_grpo"])  # here a run's tax is its value
    assert table.loc["oracle", ["tax", "tax_low", "tax_high"]].tolist() == pytest.approx(np.exp(t_interval(logs)))
    assert table["tax"]["dr_grpo"] == 1


def test_a_rule_that_samples_more_is_read_at_the_budget():
    """At twice the tokens per batch, half of what it has at its end counts."""
    run = outcomes(_runs({"ibpo": [0.8]}, tokens=200)).iloc[0]
    assert run["value"] == pytest.approx(0.6)
    assert run["area"] == pytest.approx(0.5)
    short = outcomes(_runs({"ibpo": [0.8]}, tokens=50)).iloc[0]
    assert short["value"] == 0.8, "a run that ended early keeps its last value"


def _marks(rules, seeds=3) -> pd.DataFrame:
    columns = {"along": 0.9, "mean2": 0.81, "total2": 1.62, "correlation": 0.2, "auroc": 0.8, "where": 0.5}
    return pd.DataFrame([{"rule": rule, "seed": seed, **columns} for rule in rules for seed in range(seeds)])


def _table(runs) -> pd.DataFrame:
    return arena_table(_marks(runs["rule"].unique()), runs)


def test_a_row_of_ones_own_takes_its_place():
    runs = _runs(ENDS | {"own:f": [0.75, 0.85, 0.7]})
    measured, own = _table(_runs(ENDS)).assign(source="measured"), _table(runs)
    table = place(measured, own, "own:f")
    assert table["rule"].tolist() == ["oracle", "own:f", "dr_grpo", "dr_grpo", "permuted"]
    text = table_text(table)
    assert [name in text for name in ("f (yours)", "dr_grpo (yours)")] == [True, True]
    spec = arena_chart(table).to_dict()
    assert len(spec["hconcat"]) == 4
    kinds = {row["name"]: row["kind"] for rows in spec["datasets"].values() for row in rows if "kind" in row}
    assert (kinds["f (yours)"], kinds["oracle"]) == ("yours", "bound")


@pytest.fixture
def on_bundled(monkeypatch):
    """Contests on the bundled policy: the family's members take a minute each to make."""
    bench = functools.cache(lambda unit: Bench("tiny", unit))
    monkeypatch.setattr("workbook.topics.arena.study.Bench", lambda scale, unit: bench(unit))


def test_a_contest_goes_on_where_it_was(tmp_path, on_bundled):
    file = tmp_path / "credit.py"
    file.write_text("def f(batch):\n    return batch.group_advantages('dr_grpo')\n")
    lines, rule = [], f"own:{file}:f"
    table = contest(rule, TINY, 2, tmp_path / "arena", lines.append).set_index("rule")
    assert len(lines) == 2 * 4
    assert set(table.index) == {*BOUNDS, rule}
    assert (
        table.loc[rule, ["score", "value", "one"]].tolist() == table.loc["dr_grpo", ["score", "value", "one"]].tolist()
    )
    again = contest(rule, TINY, 2, tmp_path / "arena", lines.append).set_index("rule")
    assert len(lines) == 8
    pd.testing.assert_frame_equal(again, table)
    file.write_text("def f(batch):\n    return -batch.group_advantages('dr_grpo')\n")
    changed = contest(rule, TINY, 2, tmp_path / "arena", lines.append).set_index("rule")
    assert len(lines) == 10, "the edited rule is measured anew, the bounds are not"
    assert changed.loc[rule, "correlation"] == pytest.approx(-table.loc[rule, "correlation"])
    contest(rule, replace(TINY, batches=3), 2, tmp_path / "arena", lines.append)
    assert len(lines) == 18, "another setting"


@pytest.mark.parametrize(
    ("rule", "units", "folder", "sentence"),
    [
        ("grpo", 1, "new", "units=1 must be 2 or more"),
        ("nix", 2, "new", "advantage_estimator='nix' is unknown"),
        ("grpo", 2, "file", "is no folder"),
    ],
)
def test_contests_that_can_not_be(rule, units, folder, sentence, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=sentence):
        contest(rule, TINY, units, tmp_path / folder)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rule", "own:nowhere.py:f"], "is no Python file"),
        (["--small"], "of a contest; name a rule with --rule"),
        (["--chart", "table.txt"], "must end in .png, .svg or .html"),
    ],
)
def test_the_command_refuses_in_a_sentence(words, sentence, capsys):
    assert main(["arena", *words]) == 2
    sentence_on_stderr = capsys.readouterr().err.strip()
    assert sentence in sentence_on_stderr
    assert "\n" not in sentence_on_stderr


def test_the_page_holds_the_measured_table():
    """The table, the sentence above it and the numbers beside it are those of the command and of the ledger."""
    page = data_path("book", "arena.md").read_text(encoding="utf-8")
    assert table_markdown(measured_table()) in page
    assert load_measured("arena", "family", "runs")["seed"].nunique() == read_registration("arena").units["family"]
    rows = ledger("family", claims=["A1", "P1", "P3"], described=False).set_index("key")
    score = rows.loc["A1"]
    assert set(rows.loc[["P1", "P3"], "outcome"]) == {"not testable here"}, "as the page says"
    assert f"its score is {score['mean']:.3f} [{score['low']:.2f}, {score['high']:.3f}] (A1)" in page
