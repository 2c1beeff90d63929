"""Chapter 09: weights of real objectives on one batch, what its sliders compute from the studies, and its exercises."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.testing import assert_close

from workbook.policies.load import load_policy
from workbook.rollouts.sample import sample_rollouts
from workbook.statistics import bootstrap_mean
from workbook.studies import Tables
from workbook.studies.record import RESULTS
from workbook.studies.sweeps import load_runs
from workbook.tasks import get_task
from workbook.theory.advantages import prefix_credit
from workbook.topics.drift.charts import (
    compute_reuse,
    effects_chart,
    explore_objectives,
    explore_reuse,
    objectives_chart,
    rollouts_per_prompt_chart,
    tax_chart,
)
from workbook.topics.drift.exercises import IDS, REWARDS, check_compute, check_prefix_credit
from workbook.topics.drift.probe import left_on_shared, objective_weights, reuse_path, shared_tokens
from workbook.topics.drift.settings import (
    OUTCOME_LABELS,
    compute_causes,
    compute_group_size,
    compute_objectives,
    compute_readings,
    compute_remedies,
    compute_sampling_budget,
    estimator_curves,
    intervals,
    tax_against_learning,
)
from workbook.training import CancellationConfig, CancellationTrainer
from workbook.training.sweeps import combinations, load_sweep

TRANSFORM = {None: 0.0, "min_replace": -0.3, "advantage_orthogonal": -0.1}
STUDIES = ("drift_fixing", "group_size", "what_causes_what", "combined", "advantages", "drift_fixing_clipped")


# --- one batch


@pytest.fixture(scope="module")
def policy():
    return load_policy("bundled")


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
    settings |= {"batching": "query_preserved", "group_transform": None if transform == "none" else transform}
    trainer = make_trainer(CancellationTrainer, CancellationConfig, **settings)
    noise = torch.randn(rollouts.old_logps.shape, generator=torch.Generator().manual_seed(0))
    now = rollouts.old_logps + 0.2 * noise * rollouts.completion_mask
    inputs = {name: getattr(rollouts, name) for name in ("completion_ids", "completion_mask", "advantages")}
    inputs |= {"group_id": rollouts.group_ids, "old_per_token_logps": rollouts.old_logps}
    trainer._reweight(now, inputs)
    weights = objective_weights(rollouts, now, level, clipping, 0.05, transform)
    assert_close(weights * rollouts.advantages[:, None], inputs["advantages"])
    assert (weights != 1).any()


def test_going_over_a_batch_leaves_the_policy_and_starts_at_its_logps(policy, rollouts, path):
    before = [p.detach().clone() for p in policy.model.parameters()]
    again = reuse_path(policy, rollouts, times=1)
    assert all(torch.equal(p, q) for p, q in zip(policy.model.parameters(), before, strict=True))
    assert_close(path[0], rollouts.old_logps, atol=1e-4, rtol=0)
    assert_close(again[1], path[1])
    assert (path[2] - path[1]).abs().max() > 1e-3
    with pytest.raises(ValueError, match="minibatches=3 does not divide the 4 groups"):
        reuse_path(policy, rollouts, minibatches=3)


def test_shared_tokens_are_those_of_the_whole_group(rollouts):
    tokens = shared_tokens(rollouts)
    place = tokens.groupby(["group", "position"])
    whole = (place["token_id"].transform("nunique") == 1) & (place["rollout"].transform("nunique") == 4)
    assert tokens["shared"].equals(whole.rename("shared"))
    assert 0 < tokens["shared"].mean() < 1


def test_what_is_left_is_counted_by_hand(rollouts, path):
    weights = objective_weights(rollouts, path[2], "sequence", "none")
    table = left_on_shared(rollouts, weights).set_index("group")
    tokens = shared_tokens(rollouts).query("shared and advantage != 0")
    of_rollout = tokens["rollout"].map(dict(enumerate(weights.amax(1).tolist())))
    push = (of_rollout * tokens["advantage"]).groupby([tokens["group"], tokens["position"]])
    expected = (push.sum().abs() / push.agg(lambda pushes: pushes.abs().sum())).groupby(level=0).mean()
    assert table["residual"].to_dict() == pytest.approx(expected.to_dict(), abs=1e-5)
    assert (table["residual"] > 1e-4).all()
    assert (table["silent"] == 0).all()
    for transform in ("min_replace", "advantage_orthogonal"):
        mended = left_on_shared(rollouts, objective_weights(rollouts, path[2], "sequence", "none", 0.03, transform))
        assert mended["residual"].max() < 1e-5
    least = left_on_shared(rollouts, objective_weights(rollouts, path[2], "sequence", "none", 0.03, "min_replace"))
    assert (least["own"] < table["own"].to_numpy()).all(), "min-replace costs push"
    with pytest.raises(ValueError, match="transform 'best' is unknown"):
        objective_weights(rollouts, path[2], transform="best")
    with pytest.raises(ValueError, match="clipping 'both' is unknown"):
        objective_weights(rollouts, path[2], clipping="both")


def test_a_batch_not_used_yet_cancels_under_every_objective(rollouts, path):
    for level in ("token", "sequence"):
        tables = compute_reuse(rollouts, path, level, "asymmetric", times=0)
        start = tables["lines"].iloc[0]
        assert start["chosen"]
        assert start["high"] < 1e-3
        assert start["own"] == pytest.approx(1, abs=1e-3)
        assert tables["pushes"]["push"].iloc[:-1].abs().sum() == pytest.approx(1, abs=1e-3)
        assert tables["pushes"]["push"].iloc[-1] == pytest.approx(tables["pushes"]["push"].iloc[:-1].sum())


def test_the_explorer_of_a_batch_says_what_it_draws(rollouts, path):
    explorer = explore_reuse(rollouts, path)
    explorer.set(times=1, level="sequence", clipping="asymmetric", epsilon=0.01)
    row = explorer.tables["lines"].query("chosen").iloc[0]
    assert f"After 1 epochs: residual {row['mean']:.3f}" in explorer.sentence.value
    assert "compute_reuse(rollouts, path, level='sequence', clipping='asymmetric', epsilon=0.01" in explorer.code
    before = row["mean"]
    explorer.set(transform="min_replace")
    assert explorer.tables["lines"].query("chosen")["mean"].item() < 1e-3 < before


# --- whole runs, of which everything is known


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The studies' tables as if tax, area and the rest were simple functions of the settings."""
    home = tmp_path_factory.mktemp("results")
    for study in STUDIES:
        shared, grid = load_sweep(RESULTS.parent / "configs" / "studies" / f"{study}.yaml")
        rows = []
        for name, _, settings in combinations(shared, grid):
            named = {key.rpartition(".")[2]: value for key, value in settings.items()}
            reuse = named.get("num_iterations", 2)
            tax = 1 + TRANSFORM[named.get("group_transform")] + 0.1 * np.log2(reuse) + 0.01 * named["seed"]
            tax += 0.5 * (named.get("optim") == "sgd") + 0.05 * np.log2(named.get("num_generations", 8))
            steps = named.get("max_steps", 48)
            rows.append({"run": name, **named, "steps": steps} | dict.fromkeys((*OUTCOME_LABELS, "collapsed"), tax))
        table = pd.DataFrame(rows).drop(columns="compute")
        table["compute_to_score"] = np.nan
        curves = pd.DataFrame({"run": table["run"].repeat(5), "step": [1, 2, 3, 4, 5] * len(table)})
        (home / study / "bundled").mkdir(parents=True)
        table.to_parquet(home / study / "bundled" / "runs.parquet")
        curves.assign(reward=curves["step"] / 5).to_parquet(home / study / "bundled" / "curves.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workbook.topics.drift.settings.BUNDLED", Tables("bundled", home))
        yield home


def test_lines_and_changes_are_the_studys(made):
    tables = compute_objectives("tax", "token", "none", 2)
    lines = tables["lines"].set_index(["transform", "reuse"])
    runs = load_runs("drift_fixing", folder=made).query("importance_sampling_level == 'token' and epsilon > 1")
    runs = runs[runs["group_transform"].isna()]
    for reuse, seeds in runs.groupby("num_iterations")["tax"]:
        whole, row = bootstrap_mean(seeds), lines.loc[("none", reuse)]
        assert row["mean"] == pytest.approx(whole.mean)
        assert row[["low", "high"]].tolist() == pytest.approx([whole.low, whole.high], abs=0.003)
    assert lines["chosen"].tolist() == [reuse == 4 for _, reuse in lines.index]
    changes = tables["changes"].set_index("transform")
    for name, value in {"min-replace": -0.3, "advantage-orthogonal": -0.1}.items():
        assert changes.loc[name, ["mean", "low", "high"]].tolist() == pytest.approx([value] * 3)


def test_a_cell_rests_on_the_seeds_that_it_has():
    wide = pd.DataFrame({"whole": [1.0, 2.0, 3.0], "less": [5.0, 7.0, np.nan], "one": [np.nan, 4.0, np.nan]})
    wide.columns.name = "cell"
    estimates = intervals(wide).set_index("cell")
    assert estimates["mean"].to_dict() == {"whole": 2.0, "less": 6.0, "one": 4.0}
    assert estimates.loc["one", ["low", "high"]].tolist() == [4.0, 4.0]
    assert estimates.loc["less", ["low", "high"]].tolist() == [5.0, 7.0]
    assert 1 <= estimates.loc["whole", "low"] < 2 < estimates.loc["whole", "high"] <= 3


def test_a_transform_stands_under_either_clipping_and_a_score_never_reached_costs_the_run(made):
    either = [compute_objectives("tax", "sequence", clipping)["lines"] for clipping in ("asymmetric", "symmetric")]
    assert either[0]["mean"].tolist() == either[1]["mean"].tolist()
    compute = compute_objectives("compute", "token", "none")["lines"]
    assert compute.query("reuse == 4")["mean"].tolist() == pytest.approx([12 * (1 + 3 * 4)] * 3)


def test_what_was_not_measured_is_refused(made):
    with pytest.raises(ValueError, match="outcome='beauty' is unknown"):
        compute_objectives("beauty")
    with pytest.raises(ValueError, match="reuse 16: no run was made"):
        compute_objectives(doublings=4)


def test_group_sizes_and_budgets(made):
    gain = compute_group_size("tax")
    assert gain["mean"].tolist() == pytest.approx([-0.3] * 4)
    assert gain["group_size"].tolist() == [2, 4, 8, 16]
    assert set(gain["level"]) == {"sequence"}
    budget = compute_sampling_budget("tax").set_index(["series", "group_size"])
    assert budget["rollouts"].to_dict() == {
        (series, size): 64 if "64" in series else 8 * size
        for series in ("64 rollouts, fewer prompts", "8 prompts, more rollouts")
        for size in (2, 4, 8, 16)
    }
    slope = budget.loc["64 rollouts, fewer prompts", "mean"].diff().dropna()
    assert slope.tolist() == pytest.approx([0.05] * 3)


def test_causes_are_told_apart(made):
    causes = compute_causes(("tax", "area"))
    tax = causes[causes["outcome"] == "tax"].set_index("cause")
    assert tax.loc["exchangeable: min-replace against none", "mean"] == pytest.approx(-0.3)
    assert tax.loc["optimizer: sgd against adamw", "mean"] == pytest.approx(0.5)
    sparse = tax[tax.index.str.startswith("sparse")]
    assert len(sparse) == 2
    assert sparse["mean"].abs().max() < 1e-9
    assert sparse["share"].max() < 1e-9
    assert tax["share"].idxmax() == "optimizer: sgd against adamw"


def test_both_readings_of_a_transform_are_compared_with_none(made):
    readings = compute_readings(("tax", "jitter")).set_index(["transform", "outcome"])["mean"]
    assert len(readings) == 2 * 4
    for kind in ("clamped ratios", "clipped weights"):
        assert readings[f"min-replace, {kind}", "tax"] == pytest.approx(-0.3)
        assert readings[f"advantage-orthogonal, {kind}", "jitter"] == pytest.approx(-0.1)


def test_remedies_are_compared_with_the_shuffle(made):
    remedies = compute_remedies(("tax", "jitter")).set_index(["remedy", "outcome"])["mean"]
    assert len(remedies) == 2 * 7
    assert remedies["query preserved", "tax"] == pytest.approx(0)
    assert remedies["query preserved reward balanced + min-replace", "jitter"] == pytest.approx(-0.3)


def test_curves_are_averaged_along_each_run(made):
    curves = estimator_curves()
    assert set(curves["run"]) == {"grpo", "dr_grpo", "rloo", "prefix_credit"}
    one = curves[(curves["run"] == "rloo") & (curves["seed"] == 0)]
    assert one["reward"].tolist() == pytest.approx([0.4, 0.6, 0.8])
    assert one["step"].tolist() == [3, 4, 5]


def test_charts_draw_their_tables_and_name_what_is_missing(made):
    explorer = explore_objectives()
    explorer.set(outcome="area", doublings=3)
    here = explorer.tables["lines"].query("chosen and transform == 'none'")["mean"].item()
    assert f"used 8 times: none {here:.3g}" in explorer.sentence.value
    assert len(objectives_chart(**explorer.tables).to_dict()["hconcat"]) == 2
    assert (
        "sequence, G = 2: -0.300"
        in rollouts_per_prompt_chart(compute_group_size(), "level", "T", "u").to_dict()["description"]
    )
    spec = effects_chart(compute_remedies(), "remedy", "T", "s").to_dict()
    assert len(spec["hconcat"]) == 4
    assert "query preserved, area: +0" in spec["description"]
    assert "56 objectives" in tax_chart(tax_against_learning()).to_dict()["description"]
    with pytest.raises(ValueError, match=r"effects_chart needs the column\(s\) remedy"):
        effects_chart(compute_remedies().drop(columns="remedy"), "remedy", "T", "s")


# --- exercises


@pytest.mark.parametrize(
    ("answer", "messages"),
    [
        ({"used once": 48, "used four times": 78}, ["used once: right", "used four times: right"]),
        ({"used once": 12}, ["counts batches", "used four times: not answered"]),
        ({"used once": 36, "used four times": 30}, ["leaves out the pass", "counts a use as 1 pass"]),
        ({"used once": "many", "used four times": 7}, ["is no number", "batches times the passes"]),
        ({"used once": None}, ["Not answered"]),
        (None, ["Not answered"]),
    ],
)
def test_passes_are_checked(capsys, answer, messages):
    check_compute(answer)
    output = capsys.readouterr().out
    assert all(message in output for message in messages), output


def test_step_advantages_are_checked(capsys):
    def by_state(rewards, ids, before=True, alone=True):
        out = torch.zeros(ids.shape)
        for i, t in np.ndindex(*ids.shape):
            here = (ids[:, :t] == ids[i, :t]).all(1)
            then = here & (ids[:, t] == ids[i, t])
            base = rewards[here].mean() if before else 0.0
            out[i, t] = rewards[then].mean() - base
            if alone and here.sum() == 1:
                out[i, t] = rewards[i] - rewards.mean()
        return out

    right = prefix_credit(REWARDS, IDS, torch.ones_like(IDS), torch.zeros(4))
    assert_close(by_state(REWARDS, IDS), right)
    answers = {
        "Right": by_state,
        "the group's advantage on every token": lambda r, ids: (r - r.mean())[:, None].expand(4, 3),
        "falls back": lambda r, ids: by_state(r, ids, alone=False),
        "mean reward after the step": lambda r, ids: by_state(r, ids, before=False, alone=False),
        "not over the whole group": lambda r, ids: by_state(r, ids, before=False, alone=False) - r.mean(),
        "turned round": lambda r, ids: -by_state(r, ids),
        "the token alone": lambda r, ids: torch.stack(
            [torch.stack([r[ids[:, t] == ids[i, t]].mean() for t in range(3)]) - r.mean() for i in range(4)]
        ),
        "returned the shape": lambda r, ids: r,
        "rollout and position (0, 0) should be -0.1667": lambda r, ids: right + 0.2,
        "Not answered": lambda r, ids: None,
    }
    for message, function in answers.items():
        check_prefix_credit(function)
        assert message in capsys.readouterr().out, message
