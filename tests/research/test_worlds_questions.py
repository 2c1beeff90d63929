"""Plain's settings in worlds: weights and bias by hand, another sampler, both studies of one small
unit.
"""

import pandas as pd
import pytest
import torch
from test_worlds_study import write

from workbook.app import half_way
from workbook.rollouts import credit_batch, sample_rollouts
from workbook.studies.record import NotMeasured, load_measured, measure
from workbook.studies.unit import StudyUnit
from workbook.studies.worlds import questions, study
from workbook.studies.worlds.questions import GROUPS, TWINS


def test_long_rollouts_weigh_less_or_their_group_as_much(policy, task):
    """Against the formula; a twin's weights are the mean of its group's."""
    rollouts = sample_rollouts(policy, task, 4, 8, 3, 48)
    rollouts.completion_mask[:, 20:] *= torch.arange(32)[:, None] % 3 > 0  # so that lengths differ
    batch, lengths = credit_batch(policy, rollouts), rollouts.completion_mask.sum(1).float()
    plain, weights = batch.group_advantages("dr_grpo"), lengths.mean() / lengths
    assert torch.allclose(questions.by_length(batch), weights * plain)
    means = weights.view(4, 8).mean(1).repeat_interleave(8)
    assert torch.allclose(questions.by_length(batch, equal=True), means * plain)
    assert (weights - means)[plain != 0].abs().min() > 0.1


def test_the_other_sampler_draws_likely_words_alone_and_with_the_same_random_numbers():
    unit = StudyUnit("tiny")
    own, other = (
        sample_rollouts(questions.policy_of(unit, arm), unit.task, 4, 8, 1, 48)
        for arm in ("", "sampler")
    )
    same = sample_rollouts(unit.policy, unit.task, 4, 8, 1, 48, top_p=questions.TOP_P)
    assert other.completions == same.completions
    assert torch.allclose(other.old_logps, same.old_logps, atol=2e-5), (
        "scored as if the model had drawn them"
    )
    assert other.old_logps.min() > own.old_logps.min()
    assert sum(a == b for a, b in zip(own.completions, other.completions, strict=True)) > 8


def test_bias_is_what_is_off_the_exact_gradient():
    """By hand, e along x: m = (3, 4) has 16 of 25 off it; noise adds nothing on average."""
    torch.manual_seed(0)
    exact, m = torch.tensor([2.0, 0.0]).repeat(4, 1), torch.tensor([3.0, 4.0]).repeat(4, 1)
    assert questions.across(m, exact) == {"mean2": 25.0, "bias2": 16.0}
    found = pd.DataFrame(questions.across(m + torch.randn(4, 2), exact) for _ in range(3000)).mean()
    assert found.tolist() == pytest.approx([25, 16], rel=0.02)


def test_small_studies_of_one_unit(tmp_path, monkeypatch):
    monkeypatch.setattr(half_way, "LEAST", -1.0)
    monkeypatch.setitem(study.SIZES, "tiny", study.WorldSizes(2, 1, 2, 2))
    monkeypatch.setattr(questions, "FEW_REDRAWS", 2)
    with pytest.raises(NotMeasured):
        measure("worlds_groups", "tiny", [0], tmp_path)  # before its rates
    own = study.run_world_arm(StudyUnit("tiny"), "dr_grpo", 6e-4)
    write(tmp_path, "worlds_rates", "tiny", 0, runs=own.assign(policy=0))
    for name, count in (("worlds_groups", 8), ("worlds_defaults", 7)):
        measure(name, "tiny", [0], tmp_path)
        runs = load_measured(name, "tiny", "runs", tmp_path)
        assert runs.groupby(["arm", "lr"]).size().tolist() == [3] * count
        same = runs[runs["arm"] == ("8" if "groups" in name else "dr_grpo")]
        assert same["value"].tolist() == own["value"].tolist(), (
            "plain with groups of eight is plain"
        )
    assert set(runs["arm"]) == {"dr_grpo", *TWINS, *TWINS.values()}
    ends = runs.query("batch == 2").set_index("arm")["value"]
    assert (ends[["length", "length, equal"]] == ends["dr_grpo"]).all(), (
        "here all completions have one length"
    )
    assert ends.nunique() == 5, "each other default changes something"
    updates = load_measured("worlds_defaults", "tiny", "updates", tmp_path).set_index("arm")
    assert abs(updates["bias2"]["length"]) < 0.02 * updates["mean2"]["length"], (
        "what plain shares is no bias"
    )
    assert load_measured("worlds_groups", "tiny", "updates", tmp_path)["arm"].tolist() == [*GROUPS]
