"""Effects of a setting against numbers worked out by hand; attribution against the coefficients of the data."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from workbook.statistics import Interval
from workbook.studies.paired import attribution, differences, effect, effects, having, level, ratio, slope

ON, OFF = {"fix": "on"}, {"fix": None}


@pytest.fixture
def runs():
    """Two seeds with and without a fix, at a rate that both have and at one that only the baseline has."""
    rows = [
        (0, None, 1, 1.0),
        (0, None, 2, 100.0),
        (0, "on", 1, 3.0),
        (1, None, 1, 2.0),
        (1, None, 2, 100.0),
        (1, "on", 1, 3.0),
    ]
    return pd.DataFrame(rows, columns=["seed", "fix", "rate", "reward"])


def test_runs_are_compared_at_the_settings_that_both_kinds_have(runs):
    table = differences(runs, "reward", ON, OFF, ["rate"])
    assert table[["rate", "seed", "chosen", "baseline", "difference"]].to_numpy().tolist() == [
        [1, 0, 3, 1, 2],
        [1, 1, 3, 2, 1],
    ]
    assert effect(runs, "reward", ON, OFF, ["rate"]) == Interval(1.5, 1.0, 2.0)
    assert effect(runs, "reward", ON, OFF).mean == np.mean([3 - 50.5, 3 - 51.0])
    assert list(having(runs, ON | {"seed": 1})) == [False] * 5 + [True]


def test_each_seed_counts_once_and_only_if_it_has_both_kinds(runs):
    more = pd.concat(
        [runs, runs[(runs["seed"] == 0) & (runs["fix"] == "on")], pd.DataFrame([{"seed": 2, "reward": 9.0}])]
    )
    assert effect(more, "reward", ON, OFF | {"rate": 1}).mean == 1.5
    failed = more.assign(reward=more["reward"].mask((more["seed"] == 1) & (more["fix"] == "on")))
    assert effect(failed, "reward", ON, OFF | {"rate": 1}) == Interval(2.0, 2.0, 2.0)


def test_ratios_are_of_means(runs):
    estimate = ratio(runs, "reward", ON, OFF, ["rate"])
    assert estimate.mean == pytest.approx(3 / 1.5)
    assert (estimate.low, estimate.high) == pytest.approx((3 / 2, 3 / 1))


def test_effects_at_each_value():
    rows = [(seed, fix, rate, rate * (fix == "on")) for seed in (0, 1) for fix in ("on", "off") for rate in (1.0, 2.0)]
    table = effects(pd.DataFrame(rows, columns=["seed", "fix", "rate", "y"]), "y", ON, {"fix": "off"}, ["rate"])
    assert table.to_numpy().tolist() == [[1, 1, 1, 1, 2], [2, 2, 2, 2, 2]]


def test_slopes_are_per_doubling():
    rows = [
        (seed, fix, size, 7.0 * seed + (0.5 if fix == "on" else 0.2) * np.log2(size))
        for seed, fix, size in product(range(3), ("on", "off"), (2, 4, 16))
    ]
    table = pd.DataFrame(rows, columns=["seed", "fix", "size", "y"])
    assert slope(table, "y", "size", ON) == pytest.approx((0.5,) * 3)
    assert slope(table, "y", "size", ON, {"fix": "off"}) == pytest.approx((0.3,) * 3)
    assert slope(table[(table["seed"] > 0) | (table["size"] == 2)], "y", "size", ON).mean == pytest.approx(0.5)
    with pytest.raises(ValueError, match="size: no seed has the outcome y at two of its values"):
        slope(table[table["size"] == 2], "y", "size", ON)


def test_levels_average_each_seed_first(runs):
    assert level(runs, "reward", OFF) == Interval(50.75, 50.5, 51.0)


def _factors(noise: float = 0.0) -> tuple[pd.DataFrame, dict]:
    rng = np.random.default_rng(0)
    factors = {"fix": ["none", "on"], "optim": ["adamw", "sgd"], "sparsity": ["none", "hard", "noisy"]}
    rows = pd.DataFrame(list(product(range(6), *factors.values())), columns=["seed", *factors])
    on, sgd = rows["fix"] == "on", rows["optim"] == "sgd"
    rows["y"] = 1 + 2.0 * on + 3.0 * sgd + 4.0 * (on & sgd) + rows["sparsity"].map({"none": 0, "hard": 1, "noisy": 5})
    rows["y"] += noise * rng.normal(size=len(rows))
    rows["plain"] = 2.0 * on
    return rows, factors


def test_attribution_finds_the_coefficients_that_made_the_data():
    rows, factors = _factors()
    table = attribution(rows, "y", factors).set_index("term")
    expected = {"fix=on": 2 + 4 / 2, "optim=sgd": 3 + 4 / 2, "sparsity=hard": 1, "sparsity=noisy": 5}
    expected |= {"fix=on x optim=sgd": 4, "fix=on x sparsity=noisy": 0, "optim=sgd x sparsity=hard": 0}
    for term, value in expected.items():
        assert tuple(table.loc[term, ["mean", "low", "high"]]) == pytest.approx((value,) * 3, abs=1e-9), term
    shares = attribution(rows, "plain", factors).set_index("term")["share"]
    assert shares["fix=on"] == pytest.approx(1)
    assert shares["sparsity=noisy"] == pytest.approx(0)
    assert np.isnan(shares["fix=on x optim=sgd"])


def test_attribution_knows_what_it_does_not_know():
    rows, factors = _factors(noise=1.0)
    table = attribution(rows, "y", factors).set_index("term")
    assert (table["low"] < table["high"]).all()
    assert table.loc["fix=on", "mean"] == pytest.approx(4, abs=1)
    assert table.loc["fix=on", "high"] - table.loc["fix=on", "low"] < 2
    lacking = rows[~((rows["fix"] == "on") & (rows["optim"] == "sgd"))]
    with pytest.raises(ValueError, match="some combination of their levels has no run with y"):
        attribution(lacking, "y", factors)


def test_what_cannot_be_compared_is_refused(runs):
    with pytest.raises(ValueError, match=r"no run has the settings \{'fix': 'off'\}"):
        effect(runs, "reward", ON, {"fix": "off"})
    with pytest.raises(ValueError, match="colour: no such setting among the columns seed, fix"):
        effect(runs, "reward", {"colour": 1}, OFF)
    apart = runs[(runs["seed"] == 0) == (runs["fix"] == "on")]
    for compare in (effect, ratio):
        with pytest.raises(ValueError, match="no seed has the outcome reward under both"):
            compare(apart, "reward", ON, OFF)
    with pytest.raises(ValueError, match="no run with the settings"):
        level(runs.assign(reward=np.nan), "reward", ON)
