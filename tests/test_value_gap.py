"""The gap in value between boosted and suppressed tokens: tables with known gaps, and steps really taken."""

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.policies.copies import private_copy
from workbook.policies.load import load_policy
from workbook.probes import (
    category_shares,
    repeated_updates,
    sampling_budget,
    slope_by_prompt,
    token_flips,
    token_values,
    update,
    update_share_by_category,
    value_gap,
)
from workbook.probes.step import logps
from workbook.rollouts.sample import sample_rollouts
from workbook.tasks import get_task


def table(rows):
    names = ["group", "advantage", "dlogp", "value", "token_id"]
    return pd.DataFrame(rows, columns=names).assign(value_before=0.0)


@pytest.fixture(scope="module")
def measured():
    policy, task = load_policy("bundled"), get_task("chain")
    rollouts = sample_rollouts(policy, task, 8, 8, seed=0, max_new_tokens=48)
    return policy, rollouts, token_values(policy, task, rollouts, 4, 6, max_new_tokens=48)


@pytest.fixture(autouse=True)
def unchanged(measured):
    policy, _, _ = measured
    before = [p.detach().clone() for p in policy.model.parameters()]
    yield
    assert all(torch.equal(p, q) for p, q in zip(policy.model.parameters(), before, strict=True))


def test_gaps_are_differences_of_means_within_prompts():
    tokens = table(
        [
            (0, 1, 0.5, 0.9, 1),
            (0, 1, 0.5, 0.7, 2),
            (0, 1, -0.5, 0.2, 3),
            (0, -1, 0.5, 0.1, 4),
            (0, -1, -0.5, 0.4, 5),
            (0, -1, 0.05, 9.0, 6),  # stable at eps = 0.1
            (1, 1, 0.5, 1.0, 1),  # nothing suppressed in its prompt
        ]
    )
    gaps = value_gap(tokens, eps=0.1).query("band == 'all'").set_index(["group", "sign"])
    assert gaps.loc[(0, "positive"), "gap"] == pytest.approx(0.8 - 0.2)
    assert gaps.loc[(0, "negative"), "gap"] == pytest.approx(0.1 - 0.4)
    assert gaps.loc[(0, "all"), "gap"] == pytest.approx(np.mean([0.9, 0.7, 0.1]) - np.mean([0.2, 0.4]))
    assert gaps.loc[(0, "all"), ["n_boosted", "n_suppressed"]].tolist() == [3, 2]
    assert 1 not in gaps.index.get_level_values("group")
    with pytest.raises(ValueError, match=r"lacks the columns \['credit_mc'\]"):
        value_gap(tokens, column="credit_mc")
    with pytest.raises(ValueError, match="share=2 must be above 0"):
        value_gap(tokens, share=2)


def test_a_share_of_tokens_counts_whatever_the_step_was():
    rng = np.random.default_rng(0)
    n = 4000
    tokens = pd.DataFrame({"group": np.repeat(np.arange(40), 100), "advantage": rng.choice([-1, 1], n)})
    tokens["dlogp"], tokens["value"] = rng.normal(size=n), rng.uniform(size=n)
    small = value_gap(tokens.assign(dlogp=tokens["dlogp"] / 1000), share=0.2).query("sign == 'all' and band == 'all'")
    large = value_gap(tokens, share=0.2).query("sign == 'all' and band == 'all'")
    pd.testing.assert_frame_equal(small, large)
    assert (large["n_boosted"] + large["n_suppressed"]).sum() == pytest.approx(0.2 * n, rel=0.02)
    assert value_gap(tokens.assign(dlogp=tokens["dlogp"] / 1000)).empty


def test_bands_are_thirds_and_bound_the_gap_within():
    rng = np.random.default_rng(0)
    n = 3000
    tokens = pd.DataFrame({"group": np.repeat(np.arange(30), 100), "advantage": rng.choice([-1, 1], n)})
    tokens["value"] = rng.uniform(size=n)
    tokens["dlogp"] = tokens["value"] - 0.5 + rng.normal(size=n)
    gaps = value_gap(tokens, eps=0.0).query("sign == 'all'")
    counts = gaps.groupby("band")[["n_boosted", "n_suppressed"]].sum().sum(axis=1)
    assert counts[["low", "middle", "high"]].sum() == counts["all"] == n
    np.testing.assert_allclose(counts[["low", "middle", "high"]], n / 3, rtol=0.01)
    assert gaps.loc[gaps["band"] != "all", "gap"].abs().max() <= 1 / 3 + 0.02
    assert gaps.loc[gaps["band"] == "all", "gap"].mean() > 0.1


def test_matching_takes_away_a_gap_that_frequency_alone_makes():
    """Token 7 stands in positive rollouts, is valued there and boosted; token 8 the other way round; 9 is on both."""
    rows = []
    for group in range(20):
        for token, sign, count in ((7, 1, 9), (7, -1, 1), (8, 1, 1), (8, -1, 9)):
            dlogp = 0.5 if token == 7 else -0.5
            rows += [(group, sign, dlogp, 0.5 + 0.4 * sign, token)] * count
    plain = value_gap(table(rows)).query("sign == 'all' and band == 'all'")["gap"].mean()
    matched = value_gap(table(rows), matched=True).query("sign == 'all' and band == 'all'")["gap"].mean()
    assert plain == pytest.approx(0.8 * 0.8)
    assert matched == pytest.approx(0, abs=1e-9)


def test_one_repeated_update_is_the_plain_step_and_all_of_them_are_counted_from_the_start(measured):
    policy, rollouts, values = measured
    kept = []
    gaps = repeated_updates(
        policy, rollouts, {"own": (rollouts, values)}, 3, "sgd", 1.0, lambda t: kept.append(t) or value_gap(t)
    )
    whole = token_flips(policy, rollouts, "sgd", lr=1.0).loc[values.index, "dlogp"]
    np.testing.assert_allclose(kept[0]["dlogp"], whole, atol=1e-6)
    before = logps(policy, rollouts)
    mine = private_copy(policy)
    for _ in range(3):
        update(mine, rollouts, "sgd", 1.0)
    after = logps(mine, rollouts)
    change = (after - before).numpy()[values["rollout"].to_numpy(), values["position"].to_numpy()]
    np.testing.assert_allclose(kept[2]["dlogp"], change, atol=1e-5)
    assert sorted(gaps["step"].unique()) == [1, 2, 3]
    assert set(gaps["pool"]) == {"own"}


def test_a_budget_is_spent_on_parts_of_the_size_asked_for(measured):
    policy, rollouts, values = measured
    pools = {"own": (rollouts, values)}
    gaps = sampling_budget(policy, rollouts, pools, (8, 16, 128), (1, 2, 8), lr=2.0, repeats=1)
    cells = set(gaps[["batch_size", "group_size", "estimator"]].itertuples(index=False, name=None))
    assert {size for size, _, _ in cells} == {8, 16}  # 128 rollouts there are not
    assert (8, 1, "reinforce") in cells
    assert (8, 1, "grpo") not in cells
    assert (16, 1, "reinforce") not in cells  # eight prompts can't give sixteen single rollouts
    assert gaps["gap"].notna().all()
    again = sampling_budget(policy, rollouts, pools, (8, 16, 128), (1, 2, 8), lr=2.0, repeats=1)
    pd.testing.assert_frame_equal(gaps, again)
    with pytest.raises(ValueError, match=r"None of batch_sizes=\[7\] can be made"):
        sampling_budget(policy, rollouts, pools, (7,), (2,))


def test_the_whole_batch_as_its_part_is_the_plain_step(measured):
    policy, rollouts, values = measured
    gaps = sampling_budget(policy, rollouts, {"own": (rollouts, values)}, (64,), (8,), ("grpo",), lr=1.0, repeats=1)
    flips = token_flips(policy, rollouts, "sgd", lr=1.0).loc[values.index, "dlogp"]
    plain = value_gap(values.assign(dlogp=flips)).query("sign == 'all'")
    both = gaps.merge(plain, on=["group", "band"])
    assert len(both) == len(plain) > 0
    np.testing.assert_allclose(both["gap_x"], both["gap_y"], atol=1e-6)


def test_slopes_are_least_squares_prompt_by_prompt():
    rows = pd.DataFrame({"group": [0, 0, 0, 1, 1, 2], "size": [16, 32, 64, 16, 64, 16], "gap": [1, 2, 3, 5, 1, 9]})
    slopes = slope_by_prompt(rows, "size", log2=True).set_index("group")["slope"]
    assert slopes.to_dict() == {0: pytest.approx(1), 1: pytest.approx(-2)}
    with pytest.raises(ValueError, match="No prompt has gap at two values of size"):
        slope_by_prompt(rows[rows["group"] == 2], "size")


def test_shares_by_prompt_average_to_the_shares(measured):
    policy, rollouts, _ = measured
    shares = category_shares(policy, rollouts, "grpo", measures=("movement",))
    whole = update_share_by_category(policy, rollouts, "grpo").query("measure == 'movement'")
    means = shares.groupby("category")["share"].mean()
    np.testing.assert_allclose(whole.set_index("category")["mean"], means[whole["category"]], atol=1e-9)
    np.testing.assert_allclose(shares.groupby("group")["share"].sum(), 1)
    with pytest.raises(ValueError, match=r"measures holds \['size'\]; valid are movement"):
        category_shares(policy, rollouts, measures=("size",))
