"""Chapter 09: weights of real objectives on one batch, and what its slider computes of it."""

import pandas as pd
import pytest
import torch
from refusals import refused
from torch.testing import assert_close

from workbook.chapters.drift import parts, reuse_chart
from workbook.chapters.drift.parts import parts_at_reuse
from workbook.probes.reuse import (
    EQUAL_WEIGHTS,
    left_on_shared,
    position_shared_tokens,
    reuse_path,
    token_weights,
)
from workbook.rollouts.sample import sample_rollouts
from workbook.tasks import get_task
from workbook.training import CancellationConfig, CancellationTrainer
from workbook.views.charts import PART_NAMES


@pytest.fixture(scope="module")
def rollouts(policy):
    return sample_rollouts(policy, get_task("chain"), 4, 4, seed=3, max_new_tokens=48)


@pytest.fixture(scope="module")
def path(policy, rollouts):
    return reuse_path(policy, rollouts, times=2)


@pytest.mark.parametrize(
    ("level", "clipping", "transform"),
    [
        ("sequence", "symmetric", "none"),
        ("sequence", "asymmetric", "min_replace"),
        ("sequence", "asymmetric", "advantage_orthogonal"),
        ("token", "asymmetric", "advantage_orthogonal"),
    ],
)
def test_weights_are_those_the_trainer_gives(make_trainer, rollouts, level, clipping, transform):
    settings = {"importance_sampling_level": level, "clipping": clipping, "epsilon": 0.05}
    settings |= {
        "batching": "query_preserved",
        "group_transform": None if transform == "none" else transform,
    }
    trainer = make_trainer(CancellationTrainer, CancellationConfig, **settings)
    noise = torch.randn(rollouts.old_logps.shape, generator=torch.Generator().manual_seed(0))
    now = rollouts.old_logps + 0.2 * noise * rollouts.completion_mask
    inputs = {
        name: getattr(rollouts, name)
        for name in ("completion_ids", "completion_mask", "advantages")
    }
    inputs |= {"group_id": rollouts.group_ids, "old_per_token_logps": rollouts.old_logps}
    trainer._reweight(now, inputs)
    weights = token_weights(rollouts, now, level, clipping, 0.05, transform)
    assert_close(weights * rollouts.advantages[:, None], inputs["advantages"])
    assert (weights != 1).any()


def test_going_over_a_batch_leaves_the_policy_and_starts_at_its_logps(policy, rollouts, path):
    before = [p.detach().clone() for p in policy.model.parameters()]
    again = reuse_path(policy, rollouts, times=1)
    assert all(torch.equal(p, q) for p, q in zip(policy.model.parameters(), before, strict=True))
    assert_close(path[0], rollouts.old_logps, atol=1e-4, rtol=0)
    assert_close(again[1], path[1])
    assert (path[2] - path[1]).abs().max() > 1e-3
    with refused("minibatches", 3):
        reuse_path(policy, rollouts, minibatches=3)


def test_shared_tokens_are_those_of_the_whole_group(rollouts):
    tokens = position_shared_tokens(rollouts)
    place = tokens.groupby(["group", "position"])
    whole = (place["token_id"].transform("nunique") == 1) & (
        place["rollout"].transform("nunique") == 4
    )
    assert tokens["shared"].equals(whole.rename("shared"))
    assert 0 < tokens["shared"].mean() < 1


def test_what_is_left_is_counted_by_hand(rollouts, path):
    weights = token_weights(rollouts, path[2], "sequence", "none")
    table = left_on_shared(rollouts, weights).set_index("group")
    tokens = position_shared_tokens(rollouts).query("shared and advantage != 0")
    of_rollout = tokens["rollout"].map(dict(enumerate(weights.amax(1).tolist())))
    push = (of_rollout * tokens["advantage"]).groupby([tokens["group"], tokens["position"]])
    expected = (
        (push.sum().abs() / push.agg(lambda pushes: pushes.abs().sum())).groupby(level=0).mean()
    )
    assert table["residual"].to_dict() == pytest.approx(expected.to_dict(), abs=1e-5)
    assert (table["residual"] > 1e-4).all()
    assert (table["silent"] == 0).all()
    for transform in ("min_replace", "advantage_orthogonal"):
        mended = left_on_shared(
            rollouts, token_weights(rollouts, path[2], "sequence", "none", 0.03, transform)
        )
        assert mended["residual"].max() < 1e-5
    least = left_on_shared(
        rollouts, token_weights(rollouts, path[2], "sequence", "none", 0.03, "min_replace")
    )
    assert (least["own"] < table["own"].to_numpy()).all(), "min-replace costs push"
    with refused("transform", "best"):
        token_weights(rollouts, path[2], transform="best")


def test_parts_at_reuse_add_up_and_equal_weights_have_no_bias(policy, rollouts, path, monkeypatch):
    monkeypatch.setattr(parts, "PARTS_TOKENS", 4)
    table = parts_at_reuse(policy, get_task("chain"), rollouts, path, times=1)
    moved = table.groupby(["panel", "category"])["share"].sum()
    assert moved.xs(EQUAL_WEIGHTS, level="category").to_numpy() == pytest.approx(1, abs=1e-4)
    bias = table[table["part"] == "bias"].set_index(["panel", "category"])["share"]
    assert bias.xs(EQUAL_WEIGHTS, level="category").abs().max() < 0.02  # 1/T, of unequal lengths
    assert bias.abs().max() > 0.02


def test_a_chart_of_reuse_adds_what_came_by_coupling():
    shares = {"own_signal": 0.1, "coupled_signal": 0.5, "bias": -0.2, "own_noise": 0.3}
    rows = [
        ("result words", "GSPO", PART_NAMES[part], order, share)
        for order, (part, share) in enumerate(shares.items())
    ]
    columns = ["panel", "category", "part", "order", "share"]
    spec = reuse_chart(pd.DataFrame(rows, columns=columns)).to_dict()
    (rows,) = (rows for rows in spec["datasets"].values() if "share" in rows[0])
    drawn = {row["part"]: row["share"] for row in rows}
    assert drawn == pytest.approx({"signal (credit)": 0.6, "bias": -0.2, "noise (chance)": 0.3})
