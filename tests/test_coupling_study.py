"""The study of token coupling: what its tables hold, what is judged by them, and the charts and explorers over them."""

import pandas as pd
import pytest

from workbook.studies import Tables, record
from workbook.topics.coupling import claims, study
from workbook.topics.coupling.charts import compute_confidence
from workbook.views import (
    explore_confidence,
    explore_push,
    followers_chart,
    products_chart,
    times_chart,
)

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


def test_explorers_say_what_they_draw():
    explorer = explore_confidence()
    explorer.set(bins=3, place="the same context")
    assert f"{explorer.tables['table']['size'].max():.3g}" in explorer.sentence.value
    push = explore_push()
    push.set(optimizer="adamw", lr=1.0)
    assert push.tables["bars"]["lr"].unique().tolist() == [pytest.approx(0.01)]
    assert explorer.quick
    assert push.quick


def test_charts_are_of_their_tables():
    pairs = pd.DataFrame({"kernel": [1.0, -2.0], "product": [2.0, -1.0], "kind": ["a", "b"]})
    intervals = pd.DataFrame({"mean": [4.0], "low": [2.0], "high": [5.0], "kind": ["a"], "series": ["s"]})
    for chart, table, arguments in (
        (products_chart, pairs, ()),
        (times_chart, intervals, (3,)),
        (followers_chart, intervals.assign(quantity="measured"), ()),
    ):
        spec = chart(table, *arguments).to_dict()
        assert spec["description"].startswith(spec["title"]["text"])
        with pytest.raises(ValueError, match=f"{chart.__name__} needs the column"):
            chart(table.drop(columns=table.columns[0]), *arguments)
