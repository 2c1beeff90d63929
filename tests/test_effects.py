"""Effects of a setting against numbers worked out by hand."""

import numpy as np
import pandas as pd
import pytest

from workbook.statistics import Estimate, Interval
from workbook.studies.claim import Tables
from workbook.studies.paired import comparison, differences, effect, effects, having

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


def test_effects_at_each_value():
    rows = [(seed, fix, rate, rate * (fix == "on")) for seed in (0, 1) for fix in ("on", "off") for rate in (1.0, 2.0)]
    table = effects(pd.DataFrame(rows, columns=["seed", "fix", "rate", "y"]), "y", ON, {"fix": "off"}, ["rate"])
    assert table.to_numpy().tolist() == [[1, 1, 1, 1, 2], [2, 2, 2, 2, 2]]


def test_a_comparison_reads_a_sweeps_runs(runs, tmp_path):
    """Settings that all runs share are no column, and need no pairing."""
    place = tmp_path / "batching" / "bundled"
    place.mkdir(parents=True)
    runs.to_parquet(place / "runs.parquet")
    measure = comparison("batching", "reward", ON, OFF, by=["rate", "batch_size"])
    assert measure(Tables("bundled", tmp_path)) == Estimate(1.5, 1.0, 2.0, 2, 6)


def test_what_cannot_be_compared_is_refused(runs):
    with pytest.raises(ValueError, match=r"no run has the settings \{'fix': 'off'\}"):
        effect(runs, "reward", ON, {"fix": "off"})
    with pytest.raises(ValueError, match="colour: no such setting among the columns seed, fix"):
        effect(runs, "reward", {"colour": 1}, OFF)
    apart = runs[(runs["seed"] == 0) == (runs["fix"] == "on")]
    with pytest.raises(ValueError, match="no seed has the outcome reward under both"):
        effect(apart, "reward", ON, OFF)
