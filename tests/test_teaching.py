"""Chapter 07's live experiments: tables, charts and the mask that a reader builds."""

import numpy as np
import pandas as pd
import pytest
import torch

from workbook.chapters.teaching import (
    agreement_chart,
    agreement_table,
    check_mask,
    credit_shares,
    excess_row,
    explore_opposition,
    givers_chart,
    givers_table,
    gradient_noise,
    mask_rule,
    masks_chart,
    masks_table,
    pairs_chart,
    sampled_pairs,
    train_rules,
    train_shares,
)
from workbook.chapters.teaching.exercises import CASES, TableMask, said_by_both
from workbook.chapters.teaching.live import LEFT_OUT
from workbook.probes.agreement import OWN_KINDS, falls
from workbook.probes.baseline_noise import baseline_gradients
from workbook.probes.recovered import flat_gradient
from workbook.rollouts.credit_batches import credit_batch
from workbook.rollouts.likelihood import scores
from workbook.rollouts.sample import sample_rollouts
from workbook.tasks import get_task
from workbook.theory.advantages import partial_baseline
from workbook.theory.credit_masks import Masked
from workbook.views import measured_table

pytestmark = pytest.mark.usefixtures("one_thread")
TASK = get_task("chain")


def right_mask(tokens):
    place = [tokens["prompt"], tokens["slot"], tokens["word"]]
    by_good = (tokens["advantage"] > 0).groupby(place).transform("any")
    by_bad = (tokens["advantage"] < 0).groupby(place).transform("any")
    return by_good & by_bad & tokens["unsure"]


# --- the exercise


def test_a_readers_mask_pushes_what_the_workbooks_does(policy, capsys):
    rollouts = sample_rollouts(policy, TASK, 6, 8, seed=5)
    batch = credit_batch(policy, rollouts, TASK, seed=1, logps=rollouts.old_logps)
    own = Masked(shared=True, by_place=True)
    mine = mask_rule(right_mask)
    assert isinstance(mine, TableMask)
    assert torch.equal(mine(batch), own(batch))
    assert (own(batch) != 0).any()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("mask", [lambda tokens: None, lambda tokens: tokens["no such column"]])
def test_the_workbooks_mask_stands_in_for_none(mask, capsys):
    assert mask_rule(mask) == Masked(shared=True, by_place=True)
    assert "stands in" in capsys.readouterr().out


def _sure_too(tokens):
    return said_by_both(tokens, ["prompt", "slot"])


MISTAKES = {
    "all unsure tokens": lambda tokens: tokens["unsure"],
    "Take slot": lambda tokens: said_by_both(tokens, ["prompt", "position"]) & tokens["unsure"],
    "word alone": lambda tokens: said_by_both(tokens, ["prompt"]) & tokens["unsure"],
    "other prompts": lambda tokens: said_by_both(tokens, ["slot"]) & tokens["unsure"],
    "sure tokens are pushed": _sure_too,
    "only unsure tokens are asked": lambda tokens: right_mask(tokens[tokens["unsure"]]).reindex(
        tokens.index, fill_value=False
    ),
    "other half": lambda tokens: (
        ~pd.Series(_sure_too(tokens)) & tokens["unsure"] & (tokens["advantage"] != 0)
    ),
    "advantage 0": lambda tokens: right_mask(
        tokens.assign(advantage=tokens["advantage"].replace(0.0, -0.5))
    ),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_each_usual_mistake_is_named(words, capsys):
    check_mask(MISTAKES[words])
    said = capsys.readouterr().out
    assert said.startswith("Not quite")
    assert words in said


def test_the_right_mask_passes_and_no_two_mistakes_agree(capsys):
    check_mask(right_mask)
    assert capsys.readouterr().out.startswith("Right")
    answers = [tuple(np.asarray(mask(CASES.copy()), dtype=int)) for mask in MISTAKES.values()]
    assert len({*answers, tuple(right_mask(CASES).astype(int))}) == len(answers) + 1


# --- the dial


def test_two_gradients_a_group_say_what_each_share_would_do(policy):
    rollouts = sample_rollouts(policy, TASK, 3, 4, seed=2)
    rewarded, baseline = baseline_gradients(policy, rollouts)
    advantages = partial_baseline(rollouts.rewards, rollouts.group_ids, 0.25)
    for k, group in enumerate(rollouts.group_ids.unique()):
        rows = (rollouts.group_ids == group).nonzero().squeeze(1)
        with torch.enable_grad():
            logps = scores(policy.model, rollouts.select(rows)).sum(1)
            expected = flat_gradient(policy, (advantages[rows] * logps).mean())
        found = rewarded[k] - 0.25 * baseline[k]
        torch.testing.assert_close(found, expected.double(), rtol=1e-3, atol=1e-5)


def test_the_dial_shows_the_share_that_is_chosen(policy):
    noise = gradient_noise(policy, TASK, prompts=2, groups=2)
    assert noise["noise"].iloc[-1] == 1
    runs = train_shares(policy, TASK, batches=1)
    dial = explore_opposition(noise, runs)
    measured = measured_table("teaching/opposition")
    for share in (0.0, 0.5):
        dial.set(share=share)
        wanted = measured[measured["share"] == share]["mean"].tolist()
        assert dial.tables["measured"]["mean"].tolist() == wanted
        assert dial.tables["chosen"]["share"].tolist() == [share]
    dial.set(share=1.0)
    assert (dial.tables["measured"]["mean"] == 0).all()
    assert dial.tables["chosen"]["lead"].tolist() == [0]
    dial.close()


# --- pairs and masks


def test_agreement_without_each_set_of_pairs(policy):
    tokens = sampled_pairs(policy, TASK, prompts=2, seed=3)
    numbers = falls(tokens)
    table = agreement_table(tokens).set_index("left_out")["agreement"]
    assert table["nothing"] == numbers["correlation"]
    assert table[LEFT_OUT["cancelling"]] == numbers["correlation"] - numbers["cancelling"]
    agreement_chart(table.reset_index()).to_dict()
    row = excess_row(tokens, "this", "one policy, now")
    assert row["mean"][0] == pytest.approx(numbers["excess"] / numbers["correlation"])
    pairs_chart(pd.concat([measured_table("teaching/pairs"), row])).to_dict()


def test_what_the_other_sign_does_is_taken_and_given_back():
    """Two style words: one whose own side's push is halved, and one that its rivals push as far."""
    tokens = pd.DataFrame(0.0, index=range(2), columns=OWN_KINDS).assign(kind="style")
    tokens["self"] = [2.0, 2.0]
    tokens["other_sign_same_word_other_context"] = [-1.0, 0.0]
    tokens["other_sign_other_word_same_context"] = [0.0, 2.0]
    table = givers_table(tokens)
    assert table["push"].tolist() == pytest.approx([1, -0.25, 0.5, 0.25])
    givers_chart(table).to_dict()


def test_a_masks_credit_is_a_share_of_the_unsure_tokens(policy):
    rules = {
        name: Masked(shared=name == "shared", by_place=True) for name in ("shared", "specific")
    }
    credit = credit_shares(policy, TASK, rules, prompts=3)
    assert 0 < credit["shared"] < 1
    assert credit.sum() <= 1 + 1e-6
    runs = train_rules(policy, TASK, {"all": "dr_grpo", **rules}, batches=1)
    now = masks_table(runs, credit, plain="all", kind="one policy, now")
    ends = runs[runs["batch"] == 1].set_index("rule")["value"]
    assert now["mean"].tolist() == pytest.approx([ends[name] - ends["all"] for name in rules])
    masks_chart(pd.concat([measured_table("teaching/masks"), now])).to_dict()
