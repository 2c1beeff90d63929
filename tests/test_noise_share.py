"""`noise_share` where the truth is known: Gaussian gradients, and exact gradients of the policy."""

import numpy as np
import pandas as pd
import pytest
import torch
from refusals import refused

from workbook import get_task, load_policy, noise_share, sample_rollouts
from workbook.probes import minibatches, noise
from workbook.probes.noise import group_gram, share_at, shares_of_gram
from workbook.rollouts.likelihood import scores
from workbook.views import noise_share_chart
from workbook.views.style import to_spec


@pytest.fixture(scope="module")
def policy():
    return load_policy("bundled")


@pytest.fixture(scope="module")
def rollouts(policy):
    return sample_rollouts(policy, get_task("chain"), 12, 4, seed=0)


@pytest.mark.parametrize("signal", [0.0, 0.05, 1.0])
@pytest.mark.parametrize("directions", [3, 40])
def test_the_estimate_is_unbiased_and_its_interval_covers(signal, directions, monkeypatch):
    """Gradients of known mean and covariance: the means of the estimates are the truth."""
    monkeypatch.setattr(noise, "_SPLITS", 1)
    generator = torch.Generator().manual_seed(0)
    scale = torch.full((60,), 0.1)
    scale[:directions] = 1.0
    mean = torch.zeros(60)
    trace = float(scale.square().sum())
    mean[0] = (signal * trace) ** 0.5
    truth = float(share_at(signal / (1 + signal), 8))

    signals, noises, covered = [], [], 0
    for _ in range(300):
        gradients = mean + scale * torch.randn(12, 60, generator=generator)
        table = shares_of_gram(gradients @ gradients.T, [8])
        signals.append(table.attrs["signal"])
        noises.append(table.attrs["noise"])
        covered += table["low"][0] - 1e-9 <= truth <= table["high"][0] + 1e-9
    for estimates, true in ((signals, signal * trace), (noises, trace)):
        error = np.std(estimates) / len(estimates) ** 0.5
        assert abs(np.mean(estimates) - true) < 4 * error
    assert covered >= 0.9 * 300


def test_halves_estimate_the_same_as_all_pairs():
    """The inner product of two halves, over every way to split, is the mean over pairs."""
    gradients = torch.randn(4, 10, generator=torch.Generator().manual_seed(1)) + 1
    gram = gradients @ gradients.T
    products = []
    for first in ([0, 1], [0, 2], [0, 3]):
        second = [k for k in range(4) if k not in first]
        products.append(float(gradients[first].mean(0) @ gradients[second].mean(0)))
    table = shares_of_gram(gram, [1, 2])
    assert np.mean(products) == pytest.approx(table.attrs["signal"], rel=1e-5)
    assert table["halves"].notna().all()
    assert np.isnan(shares_of_gram(gram, [3])["halves"][0])


def test_more_prompts_more_signal():
    one = np.linspace(0, 1, 11)
    shares = np.array([share_at(one, prompts) for prompts in (1, 2, 16)])
    assert np.allclose(shares[0], one)
    assert (np.diff(shares, axis=0) >= 0).all()
    assert share_at(-0.3, 8) == 0.0


def test_the_gradients_are_the_groups(policy, rollouts):
    """Against autograd's own gradient of sum_i A_i log pi(o_i), group by group."""
    weights = [p for p in policy.model.parameters() if p.requires_grad]
    rows = []
    for group in rollouts.group_ids.unique():
        part = rollouts.select(rollouts.group_ids == group)
        objective = (part.advantages[:, None] * scores(policy.model, part)).sum()
        slopes = torch.autograd.grad(objective, weights, materialize_grads=True)
        rows.append(torch.cat([slope.flatten() for slope in slopes]))
    wanted = torch.stack(rows) @ torch.stack(rows).T
    gram = group_gram(policy, rollouts)
    # weights of the loss are one constant, whatever it is
    factor = float(gram.diagonal().sum() / wanted.diagonal().sum())
    assert torch.allclose(gram, factor * wanted, atol=1e-4 * float(gram.diagonal().max()))


def test_a_batch_gives_a_table_and_a_picture(policy, rollouts, monkeypatch):
    before = [p.clone() for p in policy.model.parameters()]
    table = noise_share(policy, rollouts)
    assert table.attrs["batch"] == 12
    assert table["prompts"].tolist() == [1, 2, 4, 8, 16, 32, 64, 128]
    assert (table["low"] <= table["share"]).all()
    assert (table["share"] <= table["high"]).all()
    assert table["halves"].notna().sum() == 3
    assert all(torch.equal(a, b) for a, b in zip(before, policy.model.parameters(), strict=True))
    # rows of a pass change nothing; a sketch little
    again = noise_share(policy, rollouts, batch_size=3)
    pd.testing.assert_frame_equal(table, again, rtol=1e-3, atol=1e-5)
    gram = group_gram(policy, rollouts)
    monkeypatch.setattr(minibatches, "SKETCHED", 2**14)
    sketched = group_gram(policy, rollouts)
    assert 0 < float((sketched - gram).abs().max()) < 0.1 * float(gram.diagonal().max())


@pytest.mark.parametrize("signal", [0.0, 0.5, 50.0])
def test_the_title_says_what_was_told(signal):
    gradients = torch.randn(16, 400, generator=torch.Generator().manual_seed(2))
    gradients[:, 0] += (signal * 400) ** 0.5
    table = shares_of_gram(gradients @ gradients.T)
    title = to_spec(noise_share_chart(table))["title"]["text"]
    assert "16 prompts" in title
    assert ("can't tell" in title) == (table["low"].iloc[4] <= 0)


def test_too_little_is_refused(policy, rollouts):
    with refused("prompts"):
        noise_share(policy, rollouts.select(slice(0, 12)))
    with refused("aggregate", "mean"):
        noise_share(policy, rollouts, aggregate="mean")
    with refused("prompts"):
        noise_share(policy, rollouts, prompts=[0])
    flat = rollouts.select(rollouts.advantages.abs() < 0)
    with refused("prompts"):
        noise_share(policy, flat)
