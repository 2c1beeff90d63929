"""Chapter 07's charts, what its sliders compute, the rule for small samples, and its exercises."""

import pandas as pd
import pytest

from workbook.claims import measurements
from workbook.studies import Tables
from workbook.studies.registration import read_registration
from workbook.topics.credit.charts import repeated_chart, shares_chart, value_path
from workbook.topics.credit.claims import EXACT, category_shift, exact_slope, widening
from workbook.topics.credit.exact_gaps import FIXED, GROWING, MORE_PROMPTS
from workbook.topics.credit.exercises import check_continuations, check_gap
from workbook.topics.credit.settings import COLUMNS, POOLS, compute_budget, compute_gap, measured_tokens
from workbook.views import explore_budget, explore_gap


def test_a_smaller_eps_counts_more_tokens_and_too_large_a_one_is_refused():
    tokens = [
        compute_gap(measured_tokens(), eps).query("sign == 'all' and band == 'all'")["tokens"].item()
        for eps in (1e-4, 1e-2, 1e-1)
    ]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[0] > tokens[-1]
    with pytest.raises(ValueError, match="Fewer than 3 prompts have tokens beyond eps = 50"):
        compute_gap(measured_tokens(), 50.0)


def test_a_budget_is_the_mean_over_policies():
    from workbook.statistics import t_interval
    from workbook.studies import load_measured

    table = load_measured("value_gap", "family", "budget")
    rows = table.query("axis == @FIXED and group_size == 4 and pool == 'held-out' and matched == 'position'")
    curve = compute_budget(FIXED, "held-out")
    point = curve[curve["size"] == 4].iloc[0]
    assert point[["mean", "low", "high"]].tolist() == pytest.approx(list(t_interval(rows["gap"])))
    assert point["units"] == rows["seed"].nunique() >= 6
    assert compute_budget(MORE_PROMPTS)["size"].tolist() == [4, 8, 16, 32, 64]


def test_explorers_say_what_they_draw():
    explorer = explore_gap()
    row = explorer.tables["table"].query("sign == 'negative' and band == 'all'").iloc[0]
    assert f"negative rollouts {row['mean']:+.3f}" in explorer.sentence.value
    explorer = explore_budget()
    before = explorer.sentence.value
    explorer.set(axis=MORE_PROMPTS)
    assert "at 4," in explorer.sentence.value != before
    assert "at 64." in explorer.sentence.value


def test_charts_draw_their_tables_and_name_what_is_missing():
    steps = pd.DataFrame({"seed": [0, 1] * 2, "step": [1, 1, 2, 2], "rate": "a", "gap": [0.1, 0.3, 0.5, 0.9]})
    assert "0.5" in repeated_chart(steps).to_dict()["description"]
    shares = pd.DataFrame({"category": ["x"], "estimator": ["grpo"], "mean": [0.5], "low": [0.4], "high": [0.6]})
    assert "x, grpo: 0.50" in shares_chart(shares).to_dict()["description"]
    path = pd.DataFrame({"position": [1, 0], "token": [" b", "a|"], "value": [0.2, 0.6], "value_se": 0.1})
    assert "From 0.60 after the first token to 0.20" in value_path(path).to_dict()["description"]
    with pytest.raises(ValueError, match=r"value_path needs the column\(s\) value_se"):
        value_path(path.drop(columns="value_se"))


def test_measures_of_units_by_hand():
    """A slope per doubling and a change over updates, in tables of two units."""
    tables = Tables("family")
    budget = [
        {"seed": seed, "axis": axis, "pool": "training", "matched": "position", "prompts": 16, "group_size": 2**place}
        | {"gap": 0.1 + slope * place}
        for seed, slope in ((0, 0.02), (1, -0.01))
        for axis in (GROWING, FIXED)
        for place in range(5)
    ]
    tables._whole["value_gap/budget"] = pd.DataFrame(budget)
    assert exact_slope(tables, GROWING, "training").to_dict() == pytest.approx({0: 0.02, 1: -0.01})
    assert exact_slope(tables, GROWING, "held-out").empty
    steps = pd.DataFrame({"step": [1, 2, 3] * 2, "seed": [0] * 3 + [1] * 3, "gap": [0.1, 0.9, 0.4, 0.3, 0.0, 0.2]})
    tables._whole["value_gap/repeated"] = steps.assign(pool="training", nats=0.01, matched="position")
    assert widening(tables, "training").to_dict() == pytest.approx({0: 0.3, 1: -0.1})


def test_the_shift_of_a_class_is_its_share_less_that_of_positive_rollouts_alone():
    shares = pd.DataFrame(
        [(0, 0, "grpo", "a", 0.7), (0, 0, "grpo", "b", 0.3), (0, 0, "positive_only", "a", 0.4)],
        columns=["seed", "group", "estimator", "category", "share"],
    ).assign(measure="movement")
    assert category_shift(shares, ("a",))["shift"].tolist() == [pytest.approx(0.3)]


def test_every_registered_outcome_is_measured_by_its_claim():
    registration = read_registration("value_gap")
    keys = {key: claim for claim, measures in EXACT.items() for key in measures}
    assert {key: outcome.claim for key, outcome in registration.outcomes.items()} == keys
    rows = measurements(list(EXACT), Tables("family"))
    primary = rows[(rows["role"] == "primary") & (rows["study"] == "value_gap")]
    assert sorted(primary["claim"]) == ["H7", "H8", "H9", "R4"]
    assert (primary["units"] >= 6).all()
    assert (primary["low"] <= primary["mean"]).all()


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
            table = compute_gap(measured_tokens(), slider.base**exponent, optimizer, pool, column)
            assert {"all", "positive", "negative"} <= set(table.query("band == 'all'")["sign"])
