"""The study of token coupling: what its tables hold, what is judged by them, and the charts and explorers over them."""

import pandas as pd
import pytest

from workbook.policies.load import load_policy
from workbook.rollouts.sample import sample_rollouts
from workbook.studies import Tables, record
from workbook.tasks import get_task
from workbook.topics.coupling import claims, study
from workbook.topics.coupling.charts import (
    agreement_by_movement,
    agreement_by_movement_chart,
    compute_confidence,
    explore_couplings,
    first_step_chart,
)
from workbook.views import followers_chart, products_chart, times_chart

# --- what the study makes of it


def test_times_smaller_is_a_geometric_mean_over_prompts():
    rows = [
        {"seed": 0, "group": g, "kind": kind, "size": size, "pairs": pairs}
        for g, rest in enumerate((1.0, 4.0))
        for kind, size, pairs in ((claims.TOP, 8.0, 1), (claims.TOP, 2.0, 2), ("other", rest, 5), ("still", 0.0, 1))
    ]
    times = claims.times_smaller(pd.DataFrame(rows).query("kind != 'still' or group == 0"), "size").set_index("kind")
    assert times.loc["other", "mean"] == pytest.approx((4.0 / 1.0 * 4.0 / 4.0) ** 0.5)  # (8 + 2 * 2) / 3 = 4 on top
    assert times.loc["other", "prompts"] == 2
    assert "still" not in times.index, "what never moves has no ratio"


def test_kinds_of_few_prompts_are_doubted():
    rows = pd.DataFrame({"kind": ["a", "b"], "mean": 5.0, "low": 4.0, "high": 6.0, "seeds": 3, "prompts": [9, 4]})
    assert [estimate.doubt for estimate in claims.kinds_of(rows)] == ["a kind with fewer than 5 prompts"] * 2
    assert [estimate.doubt for estimate in claims.kinds_of(rows[:1])] == [""]
    with pytest.raises(ValueError, match="no prompt has pairs of both kinds"):
        claims.kinds_of(rows[:0])


def test_a_study_measures_every_claim(tmp_path, monkeypatch):
    sizes = {"anchors": 2, "lora": 1, "masked": 2, "curves": 1, "training": (1, 1, 3, 1e-3)}
    monkeypatch.setitem(study.SIZES, "tiny", sizes)
    monkeypatch.setattr(study, "LRS", (0.1,))
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    record.measure("coupling", "tiny", seeds=[0])
    tables = Tables("tiny")
    assert (claims.coupling_times(tables)["mean"] > 1).all()
    for opposite in (False, True):
        assert len(claims.product_times(tables, opposite)) >= 3
    assert claims.follower(tables).mean > 0
    assert (claims.follow_times(tables)["mean"] > 0).all()
    assert claims.hidden_by_adam(tables).mean > claims.MIN_RATIO
    along = claims.agreement_along(tables)
    assert along["step"].tolist() == [0, 1]
    assert along["mean"].between(0, 1).all()


# --- charts and explorers of what was measured


@pytest.mark.parametrize("bins", [2, 5, 12])
def test_the_map_merges_bins_without_losing_a_pair(bins):
    cells = compute_confidence(bins=bins)
    known = record.load_measured("coupling", "bundled", "map").query("where != 'same context'")
    upper = cells[cells["low_i"] <= cells["low_j"]]
    assert upper["pairs"].sum() == known["pairs"].sum()
    assert (upper["pairs"] * upper["size"]).sum() == pytest.approx(known["total_size"].sum())
    one = cells.set_index(["token", "low_i", "low_j"])["size"]
    assert one.loc[("same token", 0.0, 0.0)] > one.loc[("different tokens", 0.0, 0.0)]


def test_the_map_is_of_the_policy_in_hand_or_of_a_study():
    rollouts = sample_rollouts(load_policy("bundled"), get_task("chain"), 2, 4, seed=0)
    explorer = explore_couplings(load_policy("bundled"), rollouts)
    tokens = rollouts.completion_mask.sum(1).view(2, 4).sum(1)
    upper = explorer.tables["table"].query("low_i <= low_j")
    known = explorer.variables["cells"].query("where != 'same context'")["pairs"].sum()
    assert upper["pairs"].sum() == known < (tokens * (tokens - 1) / 2).sum()
    explorer.set(bins=3, place="the same context", scale="bundled")
    pd.testing.assert_frame_equal(
        explorer.tables["table"], compute_confidence(3, "bundled", "the same context"), check_dtype=False
    )
    assert f"{explorer.tables['table']['size'].max():.3g}" in explorer.sentence.value
    assert explorer.quick


def test_agreement_is_sorted_by_how_far_tokens_move():
    moved = [0.1 * k for k in range(1, 9)]
    table = pd.DataFrame(
        {"dlogp": moved, "agree": [False] * 4 + [True] * 4, "group": [0, 1] * 4, "logp": [-0.1, -3] * 4}
    )
    halves = agreement_by_movement(table, bins=2)
    assert halves["mean"].tolist() == [0, 1]
    assert halves["size"].tolist() == pytest.approx([0.25, 0.65])
    assert halves["unsure"].tolist() == [0.5, 0.5]


def test_charts_are_of_their_tables():
    pairs = pd.DataFrame(
        {"kernel": [1.0, -2.0], "product": [2.0, -1.0], "kind": ["a", "b"], "pair": ["c → d", "e → f"]}
    )
    intervals = pd.DataFrame(
        {"kind": ["a"], "mean": [4.0], "low": [2.0], "high": [5.0], "series": ["s"], "panel": ["p"]}
    )
    agreement = intervals.assign(size=0.1, tokens=3, unsure=0.5)[["size", "mean", "low", "high", "tokens", "unsure"]]
    steps = pd.DataFrame({"optimizer": ["SGD", "SGD"], "factor": [1, 10], "size": [0.1, 1.0]})
    for chart, table, arguments in (
        (products_chart, pairs, ()),
        (times_chart, intervals, (3,)),
        (followers_chart, intervals.assign(quantity="measured"), ()),
        (agreement_by_movement_chart, agreement, ()),
        (first_step_chart, steps, ()),
    ):
        spec = chart(table, *arguments).to_dict()
        assert spec["description"].startswith(spec["title"]["text"])
        with pytest.raises(ValueError, match=f"{chart.__name__} needs the column"):
            chart(table.drop(columns=table.columns[0]), *arguments)
