"""What training did to style words and to the odds of equal solutions, on policies that were moved
by hand.
"""

import copy
import dataclasses
import math

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused
from torch import nn

from workbook.policies.load import load_policy
from workbook.probes import drift_report, learning_tax, odds_drift
from workbook.probes.drift import right_solutions
from workbook.rollouts.states import output_states

SHIFT, WORD, PROMPTS, SOLUTIONS = 0.5, "then", 3, 4


@pytest.fixture(scope="module")
def policies():
    """The bundled policy, and the same with the logit of one style word shifted everywhere."""
    before = load_policy("bundled")
    model = copy.deepcopy(before.model)
    old = model.get_output_embeddings()
    head = nn.Linear(old.in_features, old.out_features)
    with torch.no_grad():
        head.weight.copy_(old.weight)
        head.bias.zero_()
        head.bias[before.tokenizer.convert_tokens_to_ids(WORD)] = SHIFT
    model.set_output_embeddings(head)
    return before, dataclasses.replace(before, model=model)


@pytest.fixture(scope="module")
def report(policies, task):
    return drift_report(*policies, task, PROMPTS, SOLUTIONS)


def test_the_same_policy_twice_has_not_moved(policies, task):
    report = drift_report(policies[0], policies[0], task, PROMPTS, SOLUTIONS)
    assert len(report) == PROMPTS * SOLUTIONS * (report["position"].max() + 1)
    assert (report["kl"] == 0).all()
    assert (report["logp_after"] == report["logp_before"]).all()
    assert (learning_tax(report)["tax"] == 0).all()
    odds = odds_drift(report)
    assert (odds["odds"] == 0).all()
    assert (odds["entropy"] == odds["entropy_before"]).all()


def test_a_shifted_logit_moves_tokens_and_odds_as_the_softmax_says(policies, task, report):
    """log p' = log p + shift [the word] - log(1 + p(word) (e^shift - 1)) at every position."""
    before, _ = policies
    rollouts = right_solutions(before, task, list(task.dataset(PROMPTS, 0)), SOLUTIONS)
    word = before.tokenizer.convert_tokens_to_ids(WORD)
    chance = output_states(before, rollouts).logits.softmax(-1)[:, word].double().numpy()
    norm = np.log1p(chance * math.expm1(SHIFT))
    is_word = (report["token"].str.strip() == WORD).to_numpy()
    assert is_word.any()
    moved = SHIFT * is_word - norm
    np.testing.assert_allclose(report["logp_after"] - report["logp_before"], moved, atol=1e-5)
    # E'[shift of the token] - log norm
    kl = chance * math.exp(SHIFT) / (1 + chance * math.expm1(SHIFT)) * SHIFT - norm
    np.testing.assert_allclose(report["kl"], kl, atol=1e-5)

    whole = (
        pd.Series(moved).groupby([report["group"], report["solution"]]).sum().unstack().to_numpy()
    )
    pairs = [(a, b) for a in range(SOLUTIONS) for b in range(a)]
    odds = [np.mean([abs(row[a] - row[b]) for a, b in pairs]) for row in whole]
    np.testing.assert_allclose(odds_drift(report)["odds"], odds, atol=1e-4)
    assert min(odds) > 0


def test_the_tax_is_that_of_style_words_alone(report):
    style = report[report["category"] == "style"]
    expected = style.groupby("group")["kl"].mean()
    tax = learning_tax(report)
    assert tax["tax"].tolist() == pytest.approx(expected.tolist())
    assert (tax["style_entropy"] > 0).all()
    spoilt = report.assign(kl=report["kl"].where(report["category"] == "style", 99.0))
    assert learning_tax(spoilt)["tax"].tolist() == pytest.approx(expected.tolist())


def test_entropy_is_over_the_solutions_in_the_report(report):
    odds = odds_drift(report)
    assert odds["entropy"].between(0, math.log(SOLUTIONS) + 1e-9).all()
    logp = report.groupby(["group", "solution"])["logp_before"].sum().unstack().to_numpy()
    q = np.exp(logp - np.logaddexp.reduce(logp, axis=1, keepdims=True))
    np.testing.assert_allclose(odds["entropy_before"], -(q * np.log(q)).sum(1), atol=1e-8)


def test_what_has_no_odds_is_refused(policies, task):
    with refused("solutions", 1):
        drift_report(*policies, task, PROMPTS, solutions=1)

    class Plain:
        name = "plain"

    with refused("task", "plain"):
        drift_report(*policies, Plain())
