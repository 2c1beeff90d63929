"""The update that probes take is the objective's own, and leaves nothing behind."""

import pytest
import torch
from refusals import refused
from small_run import SMALL

from workbook.policies.load import load_policy
from workbook.policies.models import private_copy
from workbook.probes.step import along_training, logp_change, matched_lr, update
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.rollouts.scoring import sequence_logps
from workbook.tasks import get_task
from workbook.training.loop import LoopConfig, take_step
from workbook.training.optimizers import optimizer_of

FIELDS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")


@pytest.fixture(scope="module")
def sampled(policy, task):
    return policy, sample_rollouts(policy, task, 6, 4, seed=0)


def weights(policy):
    return torch.cat([p.detach().flatten() for p in policy.model.parameters()])


def test_an_sgd_step_is_the_gradient_of_the_objective(sampled):
    policy, rollouts = sampled
    start, lr = weights(policy), 0.5
    now, _ = sequence_logps(policy.model, *(getattr(rollouts, name) for name in FIELDS))
    scale = rollouts.completion_mask.shape[0] * rollouts.completion_mask.shape[1]
    objective = (rollouts.advantages[:, None] * now * rollouts.completion_mask).sum() / scale
    gradient = torch.cat(
        [g.flatten() for g in torch.autograd.grad(objective, list(policy.model.parameters()))]
    )
    mine = private_copy(policy)
    (norm,) = update(mine, rollouts, "sgd", lr=lr)
    torch.testing.assert_close(weights(mine), start + lr * gradient, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(norm, gradient.norm(), atol=1e-5, rtol=1e-4)
    assert torch.equal(weights(policy), start)


def test_a_private_copy_moves_alone_and_shares_what_is_frozen(sampled):
    policy, rollouts = sampled
    start, random = weights(policy), torch.get_rng_state()
    policy.model.train()
    mine = private_copy(policy)
    assert not mine.model.training
    update(mine, rollouts, "adamw", lr=0.1)
    assert (weights(mine) - start).abs().max() > 0.05
    assert policy.model.training
    policy.model.eval()
    assert torch.equal(weights(policy), start)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in policy.model.parameters())
    adapted = load_policy("bundled", lora=4)
    pairs = zip(adapted.model.parameters(), private_copy(adapted).model.parameters(), strict=True)
    assert all((own is one) == (not one.requires_grad) for one, own in pairs)


def test_pushes_of_two_halves_add_up(sampled):
    policy, rollouts = sampled
    start, steps = weights(policy), []
    half = (
        torch.rand(rollouts.completion_mask.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    )
    for chosen in (half, ~half, None):
        mine = private_copy(policy)
        update(mine, rollouts, "sgd", lr=1.0, chosen=chosen)
        steps.append(weights(mine) - start)
    torch.testing.assert_close(steps[0] + steps[1], steps[2], atol=1e-5, rtol=1e-3)


def test_further_steps_are_clipped(sampled):
    """Beyond the range nothing pushes further: the clipped objective leaves the weights nearer to
    the start.
    """
    policy, rollouts = sampled
    moved, start = {}, logps(policy, rollouts)
    for clip in (None, (0.001, 0.001)):
        mine = private_copy(policy)
        assert len(update(mine, rollouts, "sgd", lr=0.5, steps=6, clip=clip)) == 6
        moved[clip] = (rollouts.advantages[:, None] * (logps(mine, rollouts) - start)).sum()
    assert moved[0.001, 0.001] < 0.8 * moved[None]


def test_what_can_not_push_is_refused(sampled):
    policy, rollouts = sampled
    with refused("optimizer", "lion"):
        update(policy, rollouts, "lion")
    flat = rollouts.select(rollouts.advantages == 0)
    if len(flat):
        with refused("rollouts", flat):
            update(policy, flat)


def test_only_rollouts_that_push_are_computed_and_none_is_fine(sampled):
    policy, rollouts = sampled
    seen = []
    handle = policy.model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    mine = private_copy(policy)
    update(mine, rollouts, "sgd", 0.1)
    nothing = update(
        mine, rollouts, "sgd", 0.1, chosen=torch.zeros_like(rollouts.completion_mask).bool()
    )
    handle.remove()
    assert sum(seen) == int((rollouts.advantages != 0).sum()) + 1
    assert nothing.item() == 0


def test_matched_learning_rates_move_tokens_equally_far(sampled):
    policy, rollouts = sampled
    alive = rollouts.completion_mask.bool()
    before = logps(policy, rollouts)
    for optimizer in ("sgd", "adamw"):
        lr = matched_lr(policy, rollouts, optimizer, target=0.05)
        torch.testing.assert_close(logps(policy, rollouts), before, atol=0, rtol=0)
        mine = private_copy(policy)
        update(mine, rollouts, optimizer, lr)
        moved = (logps(mine, rollouts) - before)[alive]
        assert moved.pow(2).mean().sqrt().item() == pytest.approx(0.05, rel=0.051)
    with refused("target", 0):
        matched_lr(policy, rollouts, "sgd", target=0)


def test_along_training_measures_a_moving_copy(sampled):
    policy, _ = sampled
    start = weights(policy)
    seen, steps = [], []
    sizes = {"prompts": 4, "group_size": 4, "lr": 1e-3, "every": 2}
    for step, trained, rollouts in along_training(policy, get_task("chain"), 3, **sizes):
        steps.append(step)
        seen.append(weights(trained))
        torch.testing.assert_close(
            logps(trained, rollouts), rollouts.old_logps, atol=1e-4, rtol=1e-4
        )
    assert steps == [0, 2, 3]
    assert torch.equal(seen[0], start)
    assert not torch.equal(seen[1], seen[0])
    assert not torch.equal(seen[2], seen[1])
    assert torch.equal(weights(policy), start)


def test_a_step_along_training_is_the_loops(sampled):
    """On the same rollouts; `update` takes the completions' width for their greatest length."""
    policy, _ = sampled
    sizes = {"prompts": 4, "group_size": 4, "optimizer": "sgd", "lr": 0.5}
    run = along_training(policy, get_task("chain"), 1, **sizes)
    _, _, rollouts = next(run)
    _, trained, _ = next(run)
    config = LoopConfig(**sizes, max_new_tokens=rollouts.completion_ids.shape[1])
    mine = private_copy(policy)
    take_step(mine, None, config, rollouts, optimizer_of(mine, "sgd", 0.5))
    change = weights(trained) - weights(policy)
    assert change.norm() > 1e-2
    assert (weights(mine) - weights(trained)).norm() < 1e-4 * change.norm()


def flat(model) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def one_step_of(make_trainer, optim, **settings):
    """TRL's own trainer takes one optimizer step; the batch it took it on, and its weights before
    and after.
    """
    from trl import GRPOConfig, GRPOTrainer

    class Recording(GRPOTrainer):
        def _prepare_inputs(self, generation_batch):
            self.seen = super()._prepare_inputs(generation_batch)
            return self.seen

    whole = {
        "per_device_train_batch_size": 32,
        "steps_per_generation": 1,
        "max_steps": 1,
        "optim": optim,
    }
    trainer = make_trainer(Recording, GRPOConfig, **whole | settings)
    before = flat(trainer.model)
    trainer.train()
    return trainer.seen, before, flat(trainer.model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "optim", "lr", "tolerance"),
    [("sgd", "sgd", 0.5, 1e-4), ("adam", "adamw_torch", 1e-3, 1e-2)],
)
@pytest.mark.parametrize("aggregate", ["dr_grpo", "grpo"])
def test_the_step_is_that_of_trls_trainer(make_trainer, name, optim, lr, tolerance, aggregate):
    """TRL's dr_grpo divides by the longest completion allowed, ours by the longest there is: a
    factor on SGD's rate.

    Its AdamW has no weight decay by default, which makes it Adam.
    """
    batch, before, after = one_step_of(make_trainer, optim, learning_rate=lr, loss_type=aggregate)
    theirs = after - before
    labels = torch.arange(len(batch["advantages"]))  # of no account: the advantages are given
    rollouts = Rollouts.from_batch(batch, group_ids=labels)
    if aggregate == "dr_grpo" and name == "sgd":
        lr *= rollouts.completion_mask.shape[1] / SMALL["max_completion_length"]
    policy = load_policy("bundled")
    assert torch.equal(flat(policy.model), before)
    update(policy, rollouts, name, lr, aggregate=aggregate)
    ours = flat(policy.model) - before
    assert theirs.norm() > 1e-2
    assert (ours - theirs).norm() < tolerance * theirs.norm()


def test_what_does_not_move_has_changed_by_exactly_nothing(sampled):
    policy, rollouts = sampled
    some = torch.zeros_like(rollouts.completion_mask, dtype=torch.bool)
    # the others are scored apart, as they push nothing
    some[rollouts.advantages.abs().argmax()] = True
    for chosen in (None, some):
        mine = private_copy(policy)
        assert not logp_change(mine, rollouts, "sgd", lr=0.0, chosen=chosen, batch_size=5).any()
        before = logps(policy, rollouts)
        mine = private_copy(policy)
        moved = logp_change(mine, rollouts, "sgd", lr=0.5, chosen=chosen, batch_size=5)
        torch.testing.assert_close(moved, logps(mine, rollouts) - before, atol=1e-5, rtol=1e-4)
        # the rest are all but certain
        assert (moved[rollouts.completion_mask.bool()] != 0).float().mean() > 0.5
