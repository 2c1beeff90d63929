"""Update weights against autograd of the clipped surrogate written as TRL writes it; the group
transforms by hand.
"""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from workbook.theory import (
    advantage_orthogonal,
    cancellation_residual,
    group_advantages,
    min_replace,
    objective_weights,
    surrogate_weights,
    update_weights,
)
from workbook.theory.choices import CLIPPINGS, LEVELS

ROLLOUTS, WIDTH, VOCABULARY = 6, 5, 7
LABELS = torch.tensor([0, 0, 0, 1, 1, 1])


def batch(seed, spread=0.4):
    """Log-probabilities of a leaf of logits, older ones, a ragged mask with an empty row,
    advantages of all signs.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(
        ROLLOUTS, WIDTH, VOCABULARY, dtype=torch.float64, generator=generator
    ).requires_grad_()
    tokens = torch.randint(VOCABULARY, (ROLLOUTS, WIDTH, 1), generator=generator)
    logps = logits.log_softmax(-1).gather(-1, tokens).squeeze(-1)
    old = logps.detach() + spread * torch.randn(
        ROLLOUTS, WIDTH, dtype=torch.float64, generator=generator
    )
    mask = (torch.arange(WIDTH) < torch.tensor([5, 3, 1, 0, 4, 5])[:, None]).long()
    advantages = torch.randn(ROLLOUTS, dtype=torch.float64, generator=generator)
    advantages[4] = 0
    return logits, logps, old, mask, advantages


def trl_loss(logps, old, mask, advantages, level, clip, clipping, aggregate, max_length):
    """TRL 1.16's policy loss (one process, one accumulation step), and a symmetric variant."""
    advantages = advantages.unsqueeze(1) if advantages.ndim == 1 else advantages
    log_ratio = logps - old
    if level == "sequence":
        log_ratio = ((log_ratio * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
    ratio = torch.exp(log_ratio)
    if clip is None:
        loss = -ratio * advantages
    else:
        clipped = torch.clamp(ratio, 1 - clip[0], 1 + clip[1])
        both = torch.min(ratio * advantages, clipped * advantages)
        loss = -(both if clipping == "asymmetric" else clipped * advantages)
    if aggregate == "grpo":
        return ((loss * mask).sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    if aggregate == "dapo":
        return (loss * mask).sum() / mask.sum().clamp(min=1.0)
    return (loss * mask).sum() / (loss.size(0) * max_length)


GRID = list(
    itertools.product(
        ("token", "sequence"),
        (None, (0.2, 0.28), (0.0, 0.0), (0.5, 0.1)),
        ("asymmetric", "symmetric"),
        ("grpo", "dapo", "dr_grpo"),
    )
)


@pytest.mark.parametrize(("level", "clip", "clipping", "aggregate"), GRID)
def test_equals_autograd(level, clip, clipping, aggregate):
    for seed in range(3):
        logits, logps, old, mask, advantages = batch(seed)
        options = {"level": level, "clip": clip, "clipping": clipping, "aggregate": aggregate}
        weights = update_weights(logps, old, mask, advantages, max_completion_length=9, **options)
        assert not weights.requires_grad
        loss = trl_loss(logps, old, mask, advantages, max_length=9, **options)
        by_logp, by_logits = torch.autograd.grad(loss, (logps, logits))
        torch.testing.assert_close(-weights * advantages[:, None], by_logp, rtol=1e-12, atol=1e-15)
        # the stop-gradient surrogate -w A logp moves the parameters as the clipped loss does
        _, logps, *_ = (fresh := batch(seed))
        (again,) = torch.autograd.grad(-(weights * advantages[:, None] * logps).sum(), fresh[0])
        torch.testing.assert_close(again, by_logits, rtol=1e-12, atol=1e-15)


def test_sequence_level_token_advantages_are_gspo_token():
    """s_it = sg[s_i] * pi / sg[pi], clipped at each token by that token's advantage."""
    _, logps, old, mask, _ = batch(2, spread=0.8)
    advantages = torch.randn(
        ROLLOUTS, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(6)
    )
    mean = ((logps - old) * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    ratio = mean.exp().detach() * (logps - logps.detach()).exp()
    objective = torch.min(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
    (gradient,) = torch.autograd.grad((objective * mask).sum(), logps)
    weights = surrogate_weights(logps, old, mask, advantages, level="sequence", clip=(0.2, 0.28))
    torch.testing.assert_close(weights * advantages, gradient, rtol=1e-12, atol=1e-15)


def test_padding_may_hold_anything():
    _, logps, old, mask, advantages = batch(3)
    dirty_logps, dirty_old = (
        x.detach().masked_fill(mask == 0, bad) for x, bad in ((logps, -torch.inf), (old, torch.nan))
    )
    for level in ("token", "sequence"):
        clean = update_weights(logps, old, mask, advantages, level)
        dirty = update_weights(dirty_logps, dirty_old, mask.bool(), advantages, level)
        assert torch.equal(clean, dirty)
        assert (dirty[mask == 0] == 0).all()


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"level": "word"}, "level", "word"),
        ({"clipping": "both"}, "clipping", "both"),
        ({"aggregate": "bnpo"}, "aggregate", "bnpo"),
        ({"clip": (0.2,)}, "clip", (0.2,)),
        ({"clip": (0.2, float("nan"))}, "clip", (0.2, float("nan"))),
        ({"mask": torch.ones(2, 2)}, "mask.shape", (2, 2)),
        ({"old_logps": torch.zeros(2, 2)}, "old_logps.shape", (2, 2)),
        ({"advantages": torch.zeros(2)}, "advantages.shape", (2,)),
        ({"max_completion_length": 0}, "max_completion_length", 0),
    ],
)
def test_refusals_say_what_is_wrong(change, field, value):
    _, logps, old, mask, advantages = batch(0)
    arguments = {"logps": logps, "old_logps": old, "mask": mask, "advantages": advantages} | change
    with refused(field, value):
        update_weights(**arguments)


groups_of = st.lists(st.sampled_from([-7, 0, 3, 100]), min_size=1, max_size=16)


@settings(max_examples=60, deadline=None)
@given(groups=groups_of, seed=st.integers(0, 999), width=st.integers(0, 4))
def test_transforms_equal_their_definitions(groups, seed, width):
    """Any labels, any order, ragged groups, at each position over the rollouts that the mask has
    there.
    """
    generator = torch.Generator().manual_seed(seed)
    size = len(groups)
    weights = torch.rand(size, max(width, 1), dtype=torch.float64, generator=generator) + 0.5
    mask = torch.rand(weights.shape, generator=generator) < 0.7
    advantages = torch.randn(size, dtype=torch.float64, generator=generator) * (
        torch.arange(size) % 3 > 0
    )
    labels = torch.tensor(groups)
    least = min_replace(weights, labels, mask)
    projected = advantage_orthogonal(weights, advantages, labels, mask)
    for t, label in itertools.product(range(weights.shape[1]), set(groups)):
        rows = [i for i in range(size) if groups[i] == label and mask[i, t]]
        if rows:
            w, a = weights[rows, t], advantages[rows]
            norm = a.square().sum()
            assert (least[rows, t] == w.min()).all()
            expected = w - (a @ w / norm if norm > 0 else 0) * a
            torch.testing.assert_close(projected[rows, t], expected, rtol=1e-9, atol=1e-12)
            assert abs(projected[rows, t] @ a) <= 1e-12 * (w @ a.abs() + 1)
    assert (least[~mask] == 0).all()
    assert (projected[~mask] == 0).all()
    assert projected.isfinite().all()
    if width == 0:  # one weight per rollout is the same thing as one position
        flat = advantage_orthogonal(weights[:, 0], advantages, labels, mask[:, 0])
        assert torch.equal(flat, projected[:, 0])
        assert torch.equal(min_replace(weights[:, 0], labels, mask[:, 0]), least[:, 0])


@settings(max_examples=60, deadline=None)
@given(groups=groups_of, seed=st.integers(0, 999))
def test_residual_and_what_the_transforms_do_to_it(groups, seed):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.tensor(groups)
    rewards = (torch.rand(len(groups), generator=generator) < 0.5).double()
    weights = torch.rand(len(groups), dtype=torch.float64, generator=generator) + 0.5
    advantages = group_advantages(rewards, labels)
    residual = cancellation_residual(weights, advantages, labels)
    for row, label in enumerate(sorted(set(groups))):
        pushes = (weights * advantages)[labels == label]
        expected = (
            pushes.sum().abs() / pushes.abs().sum()
            if pushes.abs().sum() > 0
            else torch.tensor(0.0).double()
        )
        torch.testing.assert_close(residual[row], expected, rtol=1e-9, atol=1e-12)
    assert ((residual >= 0) & (residual <= 1)).all()
    for cancelling in (
        min_replace(weights, labels),
        advantage_orthogonal(weights, advantages, labels),
    ):
        assert (cancellation_residual(cancelling, advantages, labels) < 1e-12).all()


@pytest.mark.parametrize("clip", [None, (0.2, 0.3)])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("clipping", CLIPPINGS)
def test_the_objectives_rule_is_surrogate_then_transform(level, clipping, clip):
    for seed in range(5):
        _, logps, old, mask, advantages = batch(seed)
        surrogate = surrogate_weights(logps, old, mask, advantages, level, clip, clipping)
        ratios = surrogate_weights(logps, old, mask, advantages, level)
        clamped = ratios if clip is None else ratios.clamp(0.8, 1.3)
        given = (logps, old, mask, advantages, LABELS, level, clip, clipping)
        assert torch.equal(objective_weights(*given), surrogate)
        for seen, on in ((clamped, "clamped_ratios"), (surrogate, "clipped_weights")):
            if level == "sequence":  # one weight per rollout; an empty one is none of its group
                alive, seen = mask.any(1), seen.amax(1)
                low = min_replace(seen, LABELS, alive)[:, None] * mask
                flat = advantage_orthogonal(seen, advantages, LABELS, alive)[:, None] * mask
            else:
                low = min_replace(seen, LABELS, mask)
                flat = advantage_orthogonal(seen, advantages, LABELS, mask)
            assert torch.equal(objective_weights(*given, "min_replace", on), low)
            assert torch.equal(objective_weights(*given, "advantage_orthogonal", on), flat)
