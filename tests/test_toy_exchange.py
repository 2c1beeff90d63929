"""The residual meter: each mechanism against what it must do, transforms, bad settings; charts."""

import pytest
import torch
from refusals import refused
from torch.testing import assert_close

from workbook.chapters.exchange import charts, drift, explore, objectives
from workbook.chapters.exchange.exercises import (
    sequence_or_ours,
    sequence_weights,
    weights_by_range,
)
from workbook.chapters.exchange.toy import (
    GROUPS,
    MECHANISMS,
    RESULTS,
    TRANSFORMS,
    compute_exchange,
    draw_drifted_groups,
    repair_costs,
    residual_by_mechanism,
    residuals,
    shared_weights,
    two_rollouts,
)
from workbook.theory import cancellation_residual


def left(draw=None, **switches):
    return residuals(draw or draw_drifted_groups(), **switches)[0]


def test_the_packaged_weights_are_autograds_gradient():
    draw = draw_drifted_groups(groups=4)
    logps = (draw.log_ratios * draw.mask).requires_grad_()
    sequence = (logps.sum(1) / draw.mask.sum(1)).exp()
    (sequence * draw.advantages).mean().backward()
    weights, _ = shared_weights(draw, level="sequence", per_length=True)
    assert_close((weights * draw.advantages[:, None])[draw.mask], logps.grad[draw.mask])


def test_token_ratios_cancel_and_sequence_ratios_never_do():
    assert left().max() < 1e-12
    sequence = left(level="sequence")
    assert sequence.min() > 1e-6
    assert left(draw_drifted_groups(drift=0.0), level="sequence").max() < 1e-12
    assert left(draw_drifted_groups(drift=0.8), level="sequence").mean() > 2 * sequence.mean()


def test_clipping_on_a_shared_ratio_is_all_or_nothing_and_symmetric_clipping_is_silence():
    draw = draw_drifted_groups()
    ratio = draw.log_ratios[::8, 0].exp()
    outside = (ratio < 0.8) | (ratio > 1.2)
    assert_close(left(draw, clipping="asymmetric"), outside.double(), atol=1e-12, rtol=0)
    residual, weights, _ = residuals(draw, clipping="symmetric")
    assert residual.max() < 1e-12
    assert torch.equal((weights.view(GROUPS, -1) == 0).all(1), outside)


def test_own_embeddings_leave_what_their_angle_says():
    draw = draw_drifted_groups()
    means = [
        left(draw, own_embeddings=True, angle=angle).mean() for angle in (0.0, 20.0, 60.0, 90.0)
    ]
    assert means[0] < 1e-12
    assert means == sorted(means)
    _, weights, pushes = residuals(draw, own_embeddings=True)
    g = pushes / (weights * draw.advantages)[:, None]
    assert_close(g.norm(dim=1), torch.ones(len(g), dtype=g.dtype))
    cosines = (g @ g.T)[~torch.eye(len(g), dtype=torch.bool)]
    assert cosines.mean().item() == pytest.approx(0.5, abs=0.01)
    with refused("angle", 120.0):
        left(draw, own_embeddings=True, angle=120.0)


def test_the_vector_residual_is_the_packaged_one_where_all_directions_agree():
    draw = draw_drifted_groups(follows_reward=0.5)
    switches = {"level": "sequence", "per_length": True}
    packaged = cancellation_residual(
        shared_weights(draw, **switches)[0][:, 0], draw.advantages, draw.group_ids
    )
    assert_close(left(draw, **switches), packaged)
    assert_close(left(draw, **switches, own_embeddings=True, angle=0.0), packaged)
    assert left(draw, masking=True, masked_share=1.0).eq(0).all()


def test_which_transform_mends_which_mechanism():
    mends = {
        transform: {
            name
            for name, switches in MECHANISMS.items()
            if left(transform=transform, **switches).max() < 1e-9
        }
        for transform in TRANSFORMS
    }
    exact = {"token ratio", "symmetric clipping"}
    weights = {"sequence ratio", "asymmetric clipping", "1/T per sequence"}
    assert mends["none"] == exact
    assert mends["min-replace"] == exact | weights
    assert mends["advantage-orthogonal"] == exact | weights | {"position masking"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"own_embeddings": True},
        {"masking": True, "masked_share": 0.75},
        {"sequence": False},
        {
            "sequence": False,
            "clipping": "symmetric",
            "clip_range": 0.01,
            "transform": "min-replace",
        },
    ],
)
def test_the_pushes_of_one_group_add_up_to_its_residual(settings):
    pushes = compute_exchange(drift=0.2, **settings)["pushes"].set_index("rollout")["push"]
    switches = {
        k: v
        for k, v in settings.items()
        if k in ("own_embeddings", "masking", "masked_share", "transform", "clip_range")
    }
    level = "token" if settings.get("sequence") is False else "sequence"
    expected = left(level=level, clipping=settings.get("clipping"), **switches)[0].item()
    assert abs(pushes["net"]) == pytest.approx(expected, abs=1e-9)
    assert pushes.drop("net").sum() == pytest.approx(pushes["net"], abs=1e-9)


def test_words_before_the_error_keep_a_ratio_of_one_and_later_ones_follow_their_rollout():
    words = two_rollouts(lr=0.5, clip_range=0.2).set_index(["rollout", "position"])
    first = RESULTS[0]  # where the rollouts part
    for rollout, up in (("A", True), ("B", False)):
        own = words.loc[rollout]
        assert (own.loc[: first - 1, "ratio"] == 1).all()
        assert ((own.loc[first:, "ratio"] > 1) == up).all()
    open_choice, p, lr = words.loc[("A", 11)], 0.25, 0.5  # one softmax of four words
    expected = torch.tensor([lr * (1 - p)] + [-lr * p] * 3, dtype=torch.float64).softmax(0)[0] / p
    assert open_choice["ratio"] == pytest.approx(expected.item())
    assert words["stopped"].isin(["", "clip high", "clip low"]).all()
    assert (words.loc[words["stopped"] != "", "weight"] == 0).all()
    free = words[words["stopped"] == ""]
    assert free["weight"].tolist() == pytest.approx(free["ratio"].tolist())
    assert (two_rollouts(lr=0.5, clip_range=5.0)["stopped"] == "").all()
    assert two_rollouts(steps=0)["ratio"].eq(1).all()
    with refused("lr", -1):
        two_rollouts(lr=-1)


def test_repairs_and_costs_are_the_explorers_numbers():
    table = residual_by_mechanism(0.2).set_index(["mechanism", "transform"])["mean"]
    assert table["asymmetric clipping", "none"] == pytest.approx(
        left(clipping="asymmetric").mean().item()
    )
    assert charts.repairs_chart(
        table.rename("mean").reset_index().assign(low=0.0, high=1.0)
    ).to_dict()
    costs = repair_costs()
    cost = costs.set_index(["setting", "transform", "measure"])["mean"]
    assert cost["sequence ratios, luck", "none", "right answers' own: push kept"] == pytest.approx(
        1
    )
    assert (
        cost.xs("shared token: residual", level="measure")
        .xs("min-replace", level="transform")
        .max()
        < 1e-9
    )


def test_entropy_at_equal_reward_and_over_many_steps():
    names = ("equal weights", "favoured, min-replace")
    table = drift.entropy_by_setting(8, names)
    ends = table.pivot(index="when", columns="setting", values="mean")
    # min-replace takes the favour away
    assert_close(*(torch.tensor(ends[name].to_numpy()) for name in names))
    assert (table["mean"] < table["start"]).all()
    assert charts.entropy_chart(table).to_dict()["description"]
    runs = drift.long_runs(steps=20, seeds=4)
    assert charts.long_run_chart(runs).to_dict()["title"]["text"]
    assert set(runs["measure"]) == {"entropy", "log-odds", "wrong"}
    assert runs["run"].nunique() == 4


# --- the table of objectives, and the formula of a token


def test_the_filled_formula_is_autograds_push_for_every_token_objective_and_situation():
    for beta in (0.0, 0.04):
        errors = objectives.formula_errors(beta)
        assert len(errors) == 7 * 4 * len(objectives.token_names())
        assert max(map(abs, errors)) < 1e-6
    assert max(map(abs, objectives.reference_pull_errors())) < 1e-5


def test_what_cancels_and_what_is_unbiased_is_what_theory_says():
    table = objectives.compute_objectives()
    assert table.loc["REINFORCE", "shared token cancels"] == "never"
    for name in ("RLOO", "CISPO"):
        assert table.loc[name, "shared token cancels"] == "yes"
    assert table.loc["GRPO", "shared token cancels"] == "not: moved, lengths"
    assert table.loc["Dr. GRPO", "shared token cancels"] == "not: moved"
    assert "reused" in table.loc["GSPO", "shared token cancels"]
    unbiased = table.index[table["unbiased"] == "yes"].tolist()
    assert unbiased == ["REINFORCE", "RLOO", "Dr. GRPO"]


def test_the_expected_step_of_dr_grpo_is_the_gradient_times_its_factor():
    # E = (G - 1) / G of the gradient, over the constant normalizer of one token
    step = objectives.expected_step("Dr. GRPO")
    p, rewards = objectives._WORLD, objectives._REWARDS
    gradient = p * (rewards - (p @ rewards)[:, None])
    assert_close(step, 3 / 4 * gradient / objectives.LENGTH, atol=1e-7, rtol=1e-4)


def test_a_token_that_is_stopped_or_over_says_why():
    stopped = objectives.filled_formula("B 10: 8", "GRPO", "reused")
    assert stopped["push"] == 0
    assert "fallen far enough" in stopped["why"]
    assert "ended" in objectives.filled_formula("B 15: 3", "GRPO", "lengths")["why"]
    for field, value in {"token": "C 1: x", "objective": "PPO", "situation": "later"}.items():
        with refused(field, value):
            objectives.filled_formula(**{field: value})


def test_the_explorer_writes_the_equation_of_what_its_menus_say():
    explorer = explore.explore_formula()
    assert explorer.equation in explorer.box.children
    assert "1.18" in explorer.equation.value
    explorer.set(token="B 10: 8")
    assert "the clip stops it" in explorer.sentence.value
    explorer.set(objective="REINFORCE", token="B 1: start")
    assert explorer.tables["formula"]["push"].tolist() == [0.0]
    assert explorer.tables["pushes"].query("rollout == 'A'")["push"].gt(0).all()


def test_a_wide_clip_lets_both_rollouts_push_and_a_narrow_one_stops_them():
    table = weights_by_range(sequence_weights)
    assert (table.loc[0.0003, ["start in A", "start in B"]] == 0).all()
    assert (table.loc[0.2, ["start in A", "start in B"]] > 0).all()
    assert 0 < table.loc[0.2, "residual"] < 1
    batch = objectives.situations()["reused"]
    free = batch.now - batch.old
    mean = (free * batch.mask).sum(1) / batch.mask.sum(1)
    assert_close(
        torch.tensor(table.loc[0.2, ["start in A", "start in B"]].to_numpy()),
        mean.exp().double(),
        atol=1e-6,
        rtol=0,
    )


def test_a_readers_weights_are_taken_where_they_are_right(capsys):
    assert sequence_or_ours(lambda *batch: None) is sequence_weights
    assert "workbook's own" in capsys.readouterr().out

    def mine(*batch):
        return sequence_weights(*batch)

    assert sequence_or_ours(mine) is mine


@pytest.mark.parametrize(
    "name",
    [
        "explore_exchange",
        "explore_kl_drift",
        "explore_reference_pull",
        "explore_solutions",
    ],
)
def test_explorers_follow_their_controls_to_the_ends(name):
    explorer = getattr(explore, name)()
    spec = explorer.chart.spec
    assert spec["description"].startswith(spec["title"]["text"])
    start, sentence = explorer.tables, explorer.sentence.value
    for end in ("min", "max"):
        explorer.set(
            **{n: getattr(c, end) for n, c in explorer.controls.items() if hasattr(c, "max")}
        )
        assert 'role="status"' in explorer.sentence.value
        assert "nan" not in explorer.sentence.value
        for rows in explorer.chart.data.values():
            assert len(rows) < 2_000
            assert all(row.get("mean", 0) is not None for row in rows)
    assert explorer.sentence.value != sentence
    explorer.reset()
    for name, table in start.items():
        assert explorer.tables[name].equals(table)
    assert "from workbook.chapters.exchange." in explorer.code
    compile(explorer.code, "snippet", "exec")
