"""Chapter 07's charts, what its sliders compute, the rule for small samples, and its exercises."""

import numpy as np
import pandas as pd
import pytest

from workbook.claims import CLAIMS, measurements
from workbook.studies import Tables
from workbook.topics.credit.charts import shares_chart, steps_chart, value_path
from workbook.topics.credit.claims import MIN_PROMPTS, category_shift, mean_gap
from workbook.topics.credit.exercises import check_continuations, check_gap
from workbook.topics.credit.settings import COLUMNS, POOLS, compute_budget, compute_gap
from workbook.views import explore_budget, explore_gap


def test_a_smaller_eps_counts_more_tokens_and_too_large_a_one_is_refused():
    tokens = [compute_gap(eps).query("sign == 'all' and band == 'all'")["tokens"].item() for eps in (1e-4, 1e-2, 1e-1)]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[0] > tokens[-1]
    with pytest.raises(ValueError, match="Fewer than 3 prompts have tokens beyond eps = 50"):
        compute_gap(50.0)


def test_budget_of_a_cell_is_the_mean_of_its_seeds():
    from workbook.studies import load_measured

    budget = load_measured("credit", "bundled", "budget")
    rows = budget.query("of == 'value' and band == 'all' and batch_size == 32 and group_size == 4")
    rows = rows.query("estimator == 'grpo' and pool == 'held-out'")
    seeds = rows.groupby("seed")["gap"].mean()
    tables = compute_budget(2, 32, "grpo", "held-out")
    cell = tables["lines"][tables["lines"]["chosen"]]
    np.testing.assert_allclose(
        cell[["mean", "low", "high"]].to_numpy()[0], [seeds.mean(), seeds.min(), seeds.max()], 1e-5
    )
    assert tables["bands"]["mean"].iloc[0] == pytest.approx(cell["mean"].item())
    with pytest.raises(ValueError, match="64 rollouts with 1 per prompt under grpo were not measured"):
        compute_budget(0, 64, "grpo")


def test_explorers_say_what_they_draw():
    explorer = explore_gap()
    row = explorer.tables["table"].query("sign == 'negative' and band == 'all'").iloc[0]
    assert f"negative rollouts {row['mean']:+.3f}" in explorer.sentence.value
    explorer = explore_budget()
    before = explorer.sentence.value
    explorer.set(estimator="grpo", doublings=0)
    assert "were not measured" in explorer.sentence.value
    explorer.set(doublings=2)
    assert "64 rollouts, 4 per prompt" in explorer.sentence.value != before


def test_charts_draw_their_tables_and_name_what_is_missing():
    steps = pd.DataFrame({"step": [1, 2], "series": "a", "mean": [0.1, 0.2], "low": 0.0, "high": 0.3})
    assert "after step 2: +0.200" in steps_chart(steps).to_dict()["description"]
    shares = pd.DataFrame({"category": ["x"], "estimator": ["grpo"], "mean": [0.5], "low": [0.4], "high": [0.6]})
    assert "x, grpo: 0.50" in shares_chart(shares).to_dict()["description"]
    path = pd.DataFrame({"position": [1, 0], "token": [" b", "a|"], "value": [0.2, 0.6], "value_se": 0.1})
    assert "From 0.60 after the first token to 0.20" in value_path(path).to_dict()["description"]
    with pytest.raises(ValueError, match=r"value_path needs the column\(s\) value_se"):
        value_path(path.drop(columns="value_se"))


def test_few_prompts_are_inconclusive_however_sure_the_bootstrap_is():
    tables = Tables("bundled")
    gap = {"of": "value", "band": "all", "sign": "positive", "pool": "training", "matched": False, "optimizer": "sgd"}
    tables._whole["credit/gaps"] = pd.DataFrame({"seed": 0, "group": range(MIN_PROMPTS), "gap": 1.0, **gap})
    assert mean_gap(tables, "training", "positive").doubt == ""
    assert measurements("H7", tables).query("measured.str.contains('positive')")["verdict"].item() == "replicates"
    tables._whole["credit/gaps"] = tables._whole["credit/gaps"].iloc[1:]
    row = measurements("H7", tables).query("measured.str.contains('positive')").iloc[0]
    assert (row["verdict"], row["reason"]) == ("inconclusive", f"fewer than {MIN_PROMPTS} prompts")


def test_every_stated_measurement_has_a_verdict():
    table = measurements([name for name in CLAIMS if CLAIMS[name].rows[-1].study == "credit"], Tables("bundled"))
    assert set(table["claim"]) == {"H6", "H7", "H8", "H9", "R1", "R4", "H-falsifier"}
    table = table[(table["claim"] != "H-falsifier") & (table["study"] == "credit")]
    assert set(table["verdict"]) <= {"replicates", "does not replicate", "inconclusive"}
    assert (table["low"] <= table["mean"]).all()
    assert (table["mean"] <= table["high"]).all()
    shares = pd.DataFrame(
        [(0, 0, "grpo", "a", 0.7), (0, 0, "grpo", "b", 0.3), (0, 0, "positive_only", "a", 0.4)],
        columns=["seed", "group", "estimator", "category", "share"],
    ).assign(measure="movement")
    assert category_shift(shares, ("a",))["shift"].tolist() == [pytest.approx(0.3)]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (96, "Right"),
        (95, "0.050"),
        (160, "takes the variance"),
        (500, "fewer do"),
        (0, "whole number"),
        (None, "Not answered"),
    ],
)
def test_continuations_are_checked(capsys, answer, message):
    check_continuations(answer)
    assert message in capsys.readouterr().out


def test_gaps_are_checked(capsys):
    def within(table, eps, sign=1):
        boosted, suppressed = table[table["dlogp"] > eps], table[table["dlogp"] < -eps]
        return sign * (boosted.groupby("group")["value"].mean() - suppressed.groupby("group")["value"].mean()).mean()

    def pooled(table, eps):
        return table["value"][table["dlogp"] > eps].mean() - table["value"][table["dlogp"] < -eps].mean()

    answers = {
        "Right": within,
        "turned round": lambda table, eps: within(table, eps, -1),
        "pools all prompts": pooled,
        "counts as stable": lambda table, eps: within(table.assign(dlogp=table["dlogp"] * 100), eps),
        "two prompts' gaps": lambda table, eps: 0.07,
        "Not answered": lambda table, eps: None,
        "raised KeyError": lambda table, eps: table["nothing"],
    }
    for message, function in answers.items():
        check_gap(function)
        assert message in capsys.readouterr().out


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("pool", POOLS)
def test_every_end_of_the_eps_slider_can_be_computed(optimizer, pool):
    slider = explore_gap().controls["eps"]
    for exponent in (slider.min, slider.max):
        for column in COLUMNS:
            table = compute_gap(slider.base**exponent, optimizer, pool, column)
            assert {"all", "positive", "negative"} <= set(table.query("band == 'all'")["sign"])
