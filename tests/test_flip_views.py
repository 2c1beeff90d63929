"""What chapter 05 draws is what was measured."""

import numpy as np
import pandas as pd
import pytest

from workbook.studies import load_measured
from workbook.topics.flips.settings import EPSILONS, compute_flips
from workbook.views import explore_flips, intervals_chart, predictors_chart


def test_settings_are_those_that_were_measured():
    drawn = compute_flips(eps=0.1, optimizer="sgd", factor=3.0, prompts=16, group_size=4)
    whole = load_measured("flip_settings", "bundled", "shares")
    here = whole.query("optimizer == 'sgd' and factor == 3 and prompts == 16 and group_size == 4")
    here = here[np.isclose(here["eps"], 0.1)]
    stable = here[here["change"] == "stable"]["positive"]
    row = drawn["shares"].query("change == 'stable' and sign == 'positive'").iloc[0]
    assert row["mean"] == pytest.approx(stable.mean())
    assert (row["low"], row["high"]) == (stable.min(), stable.max())
    assert drawn["shares"].groupby("sign")["mean"].sum().tolist() == pytest.approx([1, 1])
    assert drawn["curve"]["eps"].tolist() == pytest.approx(EPSILONS)
    assert drawn["curve"].query("chosen")["eps"].tolist() == pytest.approx([0.1])
    gaps = (here["positive"] - here["negative"]).abs().groupby(here["seed"]).sum() / 2
    assert drawn["curve"].query("chosen")["mean"].item() == pytest.approx(gaps.mean())


def test_what_was_not_measured_is_refused():
    with pytest.raises(ValueError, match=r"'prompts': 5.*was not measured; .*prompts \(4, 16, 32\)"):
        compute_flips(prompts=5)


def test_the_explorer_tells_the_distance_it_draws():
    explorer = explore_flips()
    explorer.set(eps=0.1, optimizer="sgd")
    here = explorer.tables["curve"].query("chosen").iloc[0]
    assert f"{here['mean']:.3f}" in explorer.sentence.value
    assert explorer.code.endswith("compute_flips(eps=0.1, optimizer='sgd', factor=1.0, prompts=32, group_size=8)")


def test_intervals_and_their_threshold_are_drawn():
    table = pd.DataFrame({"label": ["a", "b"], "mean": [0.1, 0.3], "low": [0.0, 0.2], "high": [0.2, 0.4]})
    spec = intervals_chart(table, "Title", "below", "nats", threshold=0.25).to_dict()
    rows = [row for rows in spec["datasets"].values() for row in rows]
    assert 0.25 in [layer["encoding"]["x"].get("datum") for layer in spec["layer"]]
    assert [row["mean"] for row in rows if "mean" in row] == [0.1, 0.3]
    assert "b: 0.3 (0.2 to 0.4)" in spec["description"]
    scales = pd.concat([table.assign(scale="small"), table.assign(scale="large")])
    assert "yOffset" in str(intervals_chart(scales, "Title", "below", "nats").to_dict())
    with pytest.raises(ValueError, match="needs the column"):
        intervals_chart(table.drop(columns="low"), "Title", "below", "nats")


def test_predictors_keep_every_row():
    auroc = pd.DataFrame({"mean": [0.1], "low": [0.0], "high": [0.2], "predictor": "frequency", "target": "credit"})
    assert "frequency, credit: 0.10" in predictors_chart(auroc).to_dict()["description"]
