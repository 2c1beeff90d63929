"""Drift functions against definitions, autograd's Fisher matrix, limits and bad input; and the toys
of chapter 03.
"""

import math

import pytest
import torch
from refusals import refused
from torch.testing import assert_close

from workbook.chapters.exchange.drift import (
    PATHS,
    START,
    STEPS,
    compute_kl_drift,
    run_solutions,
    solution_measures,
    solution_step,
)
from workbook.theory import kl_drift, log_odds_drift, solution_entropy


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_exact_kl_is_torchs_kl_of_new_from_old():
    z, s = normal(5, 7), normal(5, 7, seed=1)
    old, new = z.log_softmax(-1), (z + s).log_softmax(-1)
    expected = torch.nn.functional.kl_div(old, new, log_target=True, reduction="none").sum(-1)
    assert_close(kl_drift(z, s), expected)
    assert_close(kl_drift(old, new - old), expected)  # log-probabilities do as well as logits
    # KL is not symmetric: the direction matters
    assert not torch.allclose(kl_drift(z, s), kl_drift(z + s, -s))


def test_the_quadratic_form_is_half_the_hessian_that_autograd_finds():
    z, s = normal(6), 0.01 * normal(6, seed=1)
    old = z.log_softmax(0)

    def kl(x):
        new = (z + x).log_softmax(0)
        return (new.exp() * (new - old)).sum()

    hessian = torch.autograd.functional.hessian(kl, torch.zeros(6, dtype=torch.float64))
    assert_close(kl_drift(z, s, "quadratic"), 0.5 * s @ hessian @ s)


def test_entropy_of_equal_solutions_is_log_k_and_of_two_the_binary_entropy():
    assert solution_entropy(torch.full((5,), -40.0)) == pytest.approx(math.log(5))
    assert solution_entropy(torch.tensor([-3.0, -torch.inf])) == 0
    assert solution_entropy(torch.tensor([-3.0])) == 0
    q = 0.2
    logps = torch.tensor([0.1 * q, 0.1 * (1 - q)]).log()
    assert solution_entropy(logps).item() == pytest.approx(
        -q * math.log(q) - (1 - q) * math.log(1 - q)
    )


def test_kl_path_starts_with_one_autograd_step_and_a_persistent_sign_goes_further():
    p = torch.cat([torch.tensor([0.3]), 0.7 * 0.5 ** torch.arange(7.0) / (2 - 2**-6)]).double()
    z = p.log().requires_grad_()
    (0.5 * z.log_softmax(0)[0]).backward()
    one = kl_drift(p.log(), 0.1 * z.grad).item()
    path = compute_kl_drift(0.3, residual=0.5, lr=0.1).set_index(["series", "step"])["mean"]
    mine, toss = PATHS
    assert path[mine, 1] == pytest.approx(one, rel=1e-4)
    assert path[toss, 1] == pytest.approx(one, rel=0.1)
    assert path[mine, STEPS] > 5 * path[toss, STEPS]
    with refused("p_shared", 1.0):
        compute_kl_drift(1.0)


def test_the_softmax_step_is_autograds_and_the_natural_one_is_preconditioned_by_fisher():
    z, k = normal(1, 4), normal(1, 4, seed=1)
    leaf = z.clone().requires_grad_()
    (k * leaf.log_softmax(-1)).sum().backward()
    assert_close(solution_step(z, k, 0.3, "softmax gradient"), z + 0.3 * leaf.grad)
    p = z.softmax(-1)[0]
    natural = torch.linalg.pinv(p.diag() - p.outer(p)) @ leaf.grad[0]
    moved = solution_step(z, k, 0.3, "natural gradient")[0] - z[0]
    assert_close(moved - moved.mean(), 0.3 * (natural - natural.mean()))
    with refused("operator", "adam"):
        solution_step(z, k, 0.3, "adam")


def test_no_drift_without_a_weight_difference_iff_the_group_cancels_or_the_odds_are_even():
    p, k = normal(50, 4).softmax(-1), normal(50, 4, seed=1)
    k[:, 1] = k[:, 0]

    def drift(p, k):
        return log_odds_drift(p.log(), solution_step(p.log(), k, 1.0, "softmax gradient"))[:, 0, 1]

    assert (drift(p, k).abs() > 1e-6).all()
    centred = k.clone()
    centred[:, 3] -= k.sum(1)
    assert drift(p, centred).abs().max() < 1e-12
    even = p.clone()
    even[:, 1] = even[:, 0]
    assert drift(even / even.sum(1, keepdim=True), k).abs().max() < 1e-12


def test_groups_drift_as_expected_in_one_step_under_either_operator():
    for settings, expected in (
        ({}, 0.1 * (START[0] - START[1]) * START[3] * 7 / 8),
        ({"operator": "natural gradient"}, 0.0),
        ({"operator": "natural gradient", "weights": "one favoured"}, 0.1 * 0.5 * START[3] * 7 / 8),
    ):
        moved = solution_measures(run_solutions(lr=0.1, seeds=4000, steps=1, **settings))[
            "log-odds"
        ][1]
        error = (moved.std() / len(moved) ** 0.5).item()
        assert moved.mean().item() == pytest.approx(expected, abs=4 * error)


def test_min_replace_undoes_a_favourite_and_the_projection_does_not():
    runs = {
        (weights, transform): (
            solution_measures(run_solutions(weights, transform, seeds=24))["log-odds"][-1].mean()
        )
        for weights in ("equal", "one favoured")
        for transform in ("none", "min-replace", "advantage-orthogonal")
    }
    assert_close(runs["one favoured", "min-replace"], runs["equal", "none"])
    assert_close(runs["equal", "advantage-orthogonal"], runs["equal", "none"])
    assert runs["one favoured", "advantage-orthogonal"] > runs["equal", "none"] + 0.2
