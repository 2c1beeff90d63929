"""Chapter 08's charts, what its sliders compute, and its exercises."""

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.statistics import bootstrap_mean
from workbook.studies.sweeps import load_runs
from workbook.theory.batching import STRATEGIES, minibatch_order
from workbook.topics.batching.charts import OTHERS, cell_effects, compute_batching, label_cells, study_cells_chart
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


def test_a_cell_of_the_study_is_paired_by_seed():
    runs = label_cells(load_runs("batching"))
    drawn = compute_batching("area", "SGD", "at 1.0", "near instability", seeds=4)
    here = runs.query("optim == 'sgd' and max_grad_norm == 1 and learning_rate == 0.25 and seed < 4")
    wide = here.pivot_table(index="seed", columns="batching", values="area")
    row = drawn["effects"].set_index("strategy").loc["sign-partitioned"]
    expected = bootstrap_mean(wide["sign_partitioned"] - wide["shuffled"])
    assert (row["mean"], row["low"], row["high"]) == pytest.approx(tuple(expected))
    assert row["seeds"] == 4
    assert row["baseline"] == pytest.approx(wide["shuffled"].mean())
    curves = drawn["curves"].query("strategy == 'shuffled'")
    assert curves["reward"].mean() == pytest.approx(wide["shuffled"].mean(), abs=1e-6)
    with pytest.raises(ValueError, match="outcome='speed' is unknown"):
        compute_batching("speed")


def test_cells_have_the_names_of_their_settings():
    runs = label_cells(load_runs("batching"))
    assert runs.groupby(["optimizer", "clipping", "rate", "batching"]).size().unique().tolist() == [10]
    calm = runs[runs["rate"] == "calm"].groupby("optimizer")["learning_rate"].unique()
    assert {name: rate.tolist() for name, rate in calm.items()} == {
        "AdamW": [0.00025],
        "AdamW, no momentum": [0.000125],
        "SGD": [0.0625],
    }


def test_the_study_explorer_tells_which_intervals_leave_zero_out():
    explorer = explore_batching()
    explorer.set(outcome="in_step")
    assert "sign-partitioned" in explorer.sentence.value
    few = explorer.tables["effects"].set_index("strategy").loc["sign-partitioned"]
    assert few["high"] < 0
    explorer.set(seeds=3)
    assert explorer.tables["effects"]["seeds"].unique().tolist() == [3]


def made_runs():
    """Two cells; in the first, query-preserved is better by 0.5 for every seed."""
    rows = [
        {"seed": seed, "batching": strategy, "place": place, "area": 0.1 * seed + 0.5 * (strategy == "query_preserved")}
        for seed in range(3)
        for strategy in STRATEGIES
        for place in ("here", "there")
    ]
    runs = pd.DataFrame(rows)
    runs.loc[runs["place"] == "there", "area"] = runs["seed"] * 0.1
    return runs


def test_all_cells_are_compared_and_drawn():
    table = cell_effects(made_runs(), "area", ["place"])
    effects = table.set_index(["strategy", "cell"])
    assert len(table) == 2 * len(OTHERS)
    assert effects.loc[("query_preserved", "here"), "mean"] == pytest.approx(0.5)
    assert effects["zero"].to_dict() == {key: key != ("query_preserved", "here") for key in effects.index}
    spec = study_cells_chart(table, "area").to_dict()
    assert len(spec["hconcat"]) == len(OTHERS)
    assert spec["description"].endswith("query-preserved, here: +0.500.")
    with pytest.raises(ValueError, match="study_cells_chart needs the column"):
        study_cells_chart(table.drop(columns="zero"), "area")


def test_charts_of_the_mechanism_and_of_end_points_keep_their_numbers():
    one = pd.DataFrame({"measure": "cosine", "strategy": ["shuffled"] * 2, "tokens": ["all", "shared"], "mean": 0.1})
    spec = mechanism_chart(one.assign(low=0.0, high=0.2, scale="small"), "below").to_dict()
    assert "cosine, shuffled, all tokens: 0.10" in spec["description"]
    ends = pd.DataFrame({"change": "reverse", "optimizer": "SGD", "factor": [0.25, 1.0], "distance": [1e-4, 1.6e-3]})
    assert "reverse, SGD: slope 2.00" in endpoints_chart(ends.assign(slope=2.0)).to_dict()["description"]
    with pytest.raises(ValueError, match="endpoints_chart needs the column"):
        endpoints_chart(ends)


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
