"""What cancels inside a step: the Gram matrix of rollouts' gradients tells it for every way of cutting the batch."""

import numpy as np
import pytest
import torch

from workbook.policies.load import load_policy
from workbook.probes import cancelled_in_steps, gradient_gram
from workbook.probes.step import logps
from workbook.rollouts.sample import sample_rollouts
from workbook.studies.bench import Bench
from workbook.tasks import get_task
from workbook.theory.batching import STRATEGIES
from workbook.theory.weights import cancelled_share
from workbook.topics.batching import probe as minibatches
from workbook.topics.batching import study


@pytest.fixture(scope="module")
def policy():
    return load_policy("bundled")


@pytest.fixture(scope="module")
def rollouts(policy):
    return sample_rollouts(policy, get_task("chain"), 4, 8, seed=1, max_new_tokens=48)


@pytest.fixture(scope="module")
def gram(policy, rollouts):
    return gradient_gram(policy, rollouts)


def push(policy, rollouts, members):
    """Gradient of sum A log pi over these rollouts, by one backward pass over them together."""
    from workbook.policies.copies import evaluating
    from workbook.rollouts.scoring import sequence_logps

    part = rollouts.select(members)
    with evaluating(policy.model):
        fields = (part.prompt_ids, part.prompt_mask, part.completion_ids, part.completion_mask)
        scored, _ = sequence_logps(policy.model, *fields)
    loss = (part.advantages[:, None] * scored).sum()
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(policy.model.parameters()))])


def test_gram_is_that_of_the_gradients(policy, rollouts, gram):
    assert gram.shape == (32, 32)
    torch.testing.assert_close(gram, gram.T)
    for members in ([0], [1, 5], list(range(32))):
        length = float(push(policy, rollouts, members).norm())
        assert float(gram[members][:, members].sum()) ** 0.5 == pytest.approx(length, rel=1e-3, abs=1e-4)


def test_in_step_is_the_cancelled_share_of_the_two_signs(policy, rollouts, gram):
    steps = cancelled_in_steps(gram, rollouts.advantages, torch.arange(32), 2)
    assert steps["part"].tolist() == [0, 1]
    for part, members in enumerate(torch.arange(32).chunk(2)):
        signs = [members[sign * rollouts.advantages[members] > 0].tolist() for sign in (1, -1)]
        pushes = torch.stack([push(policy, rollouts, members) for members in signs])
        assert steps["in_step"][part] == pytest.approx(float(cancelled_share(pushes)), abs=1e-3)
        assert steps["sign_cosine"][part] == pytest.approx(float(torch.cosine_similarity(*pushes, dim=0)), abs=1e-3)


def test_one_sign_and_no_sign():
    gram = torch.eye(4)
    steps = cancelled_in_steps(gram, torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.arange(4), 2)
    assert steps["in_step"][0] == 0
    assert np.isnan(steps["sign_cosine"][0])
    assert np.isnan(steps["in_step"][1])
    with pytest.raises(ValueError, match="parts=3 does not divide 4"):
        cancelled_in_steps(gram, torch.ones(4), torch.arange(4), 3)


def test_the_sketch_keeps_inner_products(policy, rollouts, gram, monkeypatch):
    monkeypatch.setattr(minibatches, "SKETCHED", 2**14)
    sketched = gradient_gram(policy, rollouts)
    lengths = gram.diagonal().clamp(min=0).sqrt()
    errors = (sketched - gram) / (lengths[:, None] * lengths).clamp(min=1e-9)
    pushing = rollouts.advantages != 0
    errors = errors[pushing][:, pushing]
    assert 0 < errors.pow(2).mean().sqrt() < 2 / 2**7  # standard deviation 1/sqrt(buckets), up to a factor on top


def test_chosen_tokens_alone_push(policy, rollouts, gram):
    shared = study.shared_words(rollouts)
    assert 0 < shared.sum() < rollouts.completion_mask.sum()
    one, rest = gradient_gram(policy, rollouts, shared), gradient_gram(policy, rollouts, ~shared)
    assert not torch.allclose(one, gram)
    assert not torch.allclose(one + rest, gram)  # the two parts' gradients are not at right angles
    none = gradient_gram(policy, rollouts, torch.zeros_like(shared))
    assert not none.any()


def test_the_policy_is_left_as_it_was(policy, rollouts):
    before = {name: p.clone() for name, p in policy.model.named_parameters()}
    scored = logps(policy, rollouts)
    gradient_gram(policy, rollouts)
    assert all(torch.equal(before[name], p) for name, p in policy.model.named_parameters())
    assert torch.equal(scored, logps(policy, rollouts))
    assert all(p.grad is None for p in policy.model.parameters())


def test_the_study_at_the_tiny_scale():
    bench = Bench("tiny", 0)
    steps = study.minibatches_study(bench)["steps"]
    assert set(steps["strategy"]) == set(STRATEGIES)
    assert steps.groupby("strategy").size().eq(2 * study.DRAWS).all()
    means = steps.groupby("strategy")["in_step"].mean()
    assert means["sign_partitioned"] < means["shuffled"]
