"""Chapter 08's charts, what its sliders compute, and its exercises."""

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.statistics import t_interval
from workbook.theory.batching import STRATEGIES, minibatch_order
from workbook.topics.batching import charts
from workbook.topics.batching.charts import compute_batching, level_chart, level_curve
from workbook.topics.batching.composition import ends
from workbook.topics.batching.cut import compute_cut
from workbook.topics.batching.exercises import check_in_step, check_order
from workbook.views import endpoints_chart, explore_batching, explore_cut, mechanism_chart


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_cut_shows_every_rollout_once_and_counts_its_signs(strategy):
    tables = compute_cut(strategy, prompts=6, group_size=4, minibatches=3, draw=2)
    cells, batches = tables["cells"], tables["batches"]
    assert cells.groupby("prompt").size().tolist() == [4] * 6
    assert cells.groupby("minibatch").size().tolist() == [8] * 3
    assert (np.sign(cells["advantage"]) == cells["sign"].map({"+": 1, "0": 0, "−": -1})).all()
    for name, sign in {"positives": "+", "negatives": "−"}.items():
        counted = (cells["sign"] == sign).groupby(cells["minibatch"]).sum()
        assert counted.tolist() == batches[name].tolist()


def test_what_a_strategy_guarantees_shows_in_its_batches():
    kept = compute_cut("query_preserved")["batches"]
    assert kept["cut"].sum() == 0
    assert kept["residual"].max() < 1e-6
    parted = compute_cut("sign_partitioned")["batches"]
    assert (parted[["positives", "negatives"]].min(axis=1) > 0).sum() <= 1
    assert parted["residual"].max() == pytest.approx(1)
    rewards = compute_cut("shuffled", draw=3)["cells"].groupby("prompt")["sign"].agg(lambda s: "".join(sorted(s)))
    again = compute_cut("sign_partitioned", draw=3)["cells"].groupby("prompt")["sign"].agg(lambda s: "".join(sorted(s)))
    assert rewards.equals(again), "a draw has the same rewards under every strategy"


def test_residual_is_that_of_a_prompts_part():
    tables = compute_cut("shuffled", prompts=2, group_size=4, minibatches=2, draw=1)
    for row in tables["batches"].itertuples():
        cells = tables["cells"].query("minibatch == @row.minibatch and sign != '0'")
        net = cells.groupby("prompt")["advantage"].agg(lambda a: abs(a.sum()) / a.abs().sum())
        assert row.residual == pytest.approx(net.mean(), abs=1e-6)


def test_explorers_say_what_they_draw_and_refuse_what_cannot_be():
    explorer = explore_cut()
    explorer.set(strategy="query_preserved")
    assert "Here 0 of 8 prompts are cut apart" in explorer.sentence.value
    before = explorer.tables
    explorer.set(minibatches=3)
    assert "divide the 64 rollouts" in explorer.sentence.value
    assert explorer.tables is before
    explorer.set(prompts=7, group_size=4, minibatches=2)
    assert "multiple of the group size" in explorer.sentence.value


GAINS = {"query_preserved": 0.05, "reward_balanced": 0.0, "sign_partitioned": -0.02}


def made_study(units=8):
    """Runs in which each order gains what GAINS says, give or take the unit's own tenth of it; unit 7's collapses."""
    rows = []
    for unit in range(units):
        for level in (2, 8):
            for order, gain in {"shuffled": 0.0, **GAINS}.items():
                end = 0.6 + 0.01 * unit + gain * (1 + (unit % 3 - 1) / 10)
                end = 0.1 if (unit, order, level) == (7, "query_preserved", 8) else end
                for batch, value in enumerate((0.4, 0.5, end)):
                    rows.append({"seed": unit, "level": level, "order": order, "batch": batch, "value": value})
    read = dict.fromkeys(("sign_cosine", "grad_norm", "moved", "reward", "tax", "style_entropy"), 0.1)
    return pd.DataFrame(rows).assign(matched=True, lr=1e-4, **read)


@pytest.fixture
def study(monkeypatch):
    curves = made_study()
    monkeypatch.setattr(charts, "_study", lambda: (ends(curves), curves))
    return curves


def test_a_level_of_the_study_is_paired_by_unit(study):
    drawn = compute_batching("value", 8)
    effects = drawn["effects"].set_index("strategy")
    expected = t_interval([0.05 * (1 + (unit % 3 - 1) / 10) for unit in range(7)])
    assert tuple(effects.loc["query-preserved", ["mean", "low", "high"]]) == pytest.approx(tuple(expected))
    assert effects["units"].to_dict() == {"query-preserved": 7, "reward-balanced": 8, "sign-partitioned": 8}
    assert effects["collapsed"].tolist() == [1, 0, 0]
    assert effects["zero"].tolist() == [False, True, False]
    assert effects["baseline"].unique() == pytest.approx([0.635])
    ends_of = drawn["curves"].query("batch == 2").set_index("strategy")["value"]
    assert ends_of["reward-balanced"] == pytest.approx(0.635)
    dead = compute_batching("collapsed", 8)["effects"].set_index("strategy")
    assert dead.loc["query-preserved", "mean"] == pytest.approx(1 / 8)
    assert compute_batching(units=5)["effects"][["low", "high"]].isna().all(axis=None), "five units have no interval"
    with pytest.raises(ValueError, match="outcome='speed' is unknown"):
        compute_batching("speed")
    with pytest.raises(ValueError, match="level=4 with gradients matched was not measured"):
        compute_batching(level=4)


def test_the_study_explorer_tells_which_intervals_leave_zero_out(study):
    explorer = explore_batching()
    assert "Intervals without 0: query-preserved, sign-partitioned. Pairs left out for a collapse: 1." in (
        explorer.sentence.value
    )
    explorer.set(norm="as it is")
    assert "level=8 with gradients as it is was not measured in several orders" in explorer.sentence.value


def test_the_curve_over_levels_keeps_its_numbers(study):
    curve = level_curve(ends(study))
    row = curve.query("order == 'sign-partitioned' and level == 2").iloc[0]
    assert (row["mean"], row["units"]) == (pytest.approx(-0.02 * (1 - 1 / 80)), 8)
    spec = level_chart(curve, bound=0.02).to_dict()
    assert "sign-partitioned, 8: -0.0198" in spec["description"]
    assert "the paper: tens of prompts or more" in str(spec["datasets"])


def test_charts_of_the_mechanism_and_of_end_points_keep_their_numbers():
    one = pd.DataFrame({"measure": "cosine", "strategy": ["shuffled"] * 2, "tokens": ["all", "shared"], "mean": 0.1})
    spec = mechanism_chart(one.assign(low=0.0, high=0.2, scale="small"), "below").to_dict()
    assert "cosine, shuffled, all tokens: 0.10" in spec["description"]
    ends = pd.DataFrame(
        {"optimizer": "SGD", "factor": [0.25, 1.0], "distance": [1e-4, 1.6e-3], "label": [None, 1.6e-3]}
    )
    description = endpoints_chart(ends.assign(slope=2.0), ends.assign(slope=1.0)).to_dict()["description"]
    assert "same mini-batches, SGD: slope 2.00; other mini-batches, SGD: slope 1.00" in description
    with pytest.raises(ValueError, match="endpoints_chart needs the column"):
        endpoints_chart(ends, ends)


def whole(group_ids, parts):
    return minibatch_order("query_preserved", group_ids, torch.zeros(len(group_ids)), parts)


def squared(gram, advantages):
    plus, minus = (gram[rows][:, rows].sum() for rows in (advantages > 0, advantages < 0))
    return plus, minus, gram.sum()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda g, parts: None, "Not answered"),
        (whole, "Right"),
        (lambda g, parts: g.argsort(), "Right"),
        (lambda g, parts: torch.arange(len(g)), "prompt 4 has rollouts in mini-batches 1 and 2"),
        (lambda g, parts: g.sort().values, "prompts' labels"),
        (lambda g, parts: torch.zeros(len(g)), "exactly once"),
        (lambda g, parts: g[:3], "shape (3,)"),
        (lambda g, parts: g.nothing, "AttributeError"),
    ],
)
def test_order_says_what_went_wrong(capsys, function, message):
    check_order(function)
    assert message in capsys.readouterr().out


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda gram, a: None, "Not answered"),
        (lambda gram, a: 1 - squared(gram, a)[2] ** 0.5 / sum(x**0.5 for x in squared(gram, a)[:2]), "Right"),
        (lambda gram, a: squared(gram, a)[2] ** 0.5 / sum(x**0.5 for x in squared(gram, a)[:2]), "is the residual"),
        (lambda gram, a: 1 - squared(gram, a)[2] / sum(squared(gram, a)[:2]), "take their roots"),
        (lambda gram, a: 1 - gram.sum() ** 0.5 / gram.diagonal().sqrt().sum(), "stand for itself"),
        (lambda gram, a: 1 - (a @ gram @ a) ** 0.5 / sum(x**0.5 for x in squared(gram, a)[:2]), "no further sign"),
        (lambda gram, a: gram.diagonal(), "shape (3,)"),
        (lambda gram, a: 0.5, "it should be 0.3874, but yours is 0.5"),
    ],
)
def test_in_step_says_what_went_wrong(capsys, function, message):
    check_in_step(function)
    assert message in capsys.readouterr().out
