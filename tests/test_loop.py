"""The training loop takes the trainer's own steps, and does with a batch what its fields say."""

import warnings
from dataclasses import replace

import pandas as pd
import pytest
import torch
from refusals import refused
from small_run import SMALL, bundled_trainer

from workbook.policies.models import private_copy
from workbook.probes.drift import right_solutions
from workbook.probes.readings import SOLUTIONS, Readings
from workbook.probes.values import exact_credit, exact_values, expected_reward
from workbook.rollouts.credit_batches import credit_batch
from workbook.rollouts.sample import Rollouts
from workbook.tasks import get_task
from workbook.training import CancellationConfig, CancellationTrainer
from workbook.training.loop import (
    LoopConfig,
    add_advantages,
    sample_batch,
    take_step,
    train,
    train_on,
)
from workbook.training.optimizers import optimizer_of

TASK = get_task("chain")
SIZES = {"prompts": 4, "group_size": 4, "minibatches": 4}
QUERY, SEQUENCE = {"batching": "query_preserved"}, {"importance_sampling_level": "sequence"}
ARMS = {  # the loop's fields, the trainer's
    "clip": ({"clip": (0.2, 0.28)}, {"epsilon": 0.2, "epsilon_high": 0.28}),
    "sequence": (
        {"order": "query_preserved", "level": "sequence", "clip": (0.01, 0.02)},
        QUERY | SEQUENCE | {"epsilon": 0.01, "epsilon_high": 0.02},
    ),
    "symmetric": (
        {"order": "sign_partitioned", "clip": (0.1, 0.1), "clipping": "symmetric"},
        {"batching": "sign_partitioned", "epsilon": 0.1, "clipping": "symmetric"},
    ),
    "min_replace": (
        {
            "order": "query_preserved",
            "level": "sequence",
            "clip": (0.02, 0.02),
            "transform": "min_replace",
        },
        QUERY
        | SEQUENCE
        | {
            "epsilon": 0.02,
            "group_transform": "min_replace",
            "transform_on": "clamped_ratios",
        },
    ),
    "orthogonal": (
        {
            "order": "query_preserved",
            "transform": "advantage_orthogonal",
            "transform_on": "clipped_weights",
        },
        QUERY
        | {
            "epsilon": 0.2,
            "group_transform": "advantage_orthogonal",
            "transform_on": "clipped_weights",
        },
    ),
    "rule": (
        {"order": "reward_balanced", "rule": "prefix_credit"},
        {"batching": "reward_balanced", "advantage_estimator": "prefix_credit"},
    ),
    "adamw": ({"order": "query_preserved", "optimizer": "adamw", "lr": 1e-3}, QUERY),
}


pytestmark = pytest.mark.usefixtures("one_thread")


def trained(policy):
    return torch.cat([p.detach().flatten().clone() for p in policy.model.parameters()])


def trainer_of(policy, folder, loop, **settings):
    settings = (
        SMALL | {"max_steps": 4, "num_generations": 4, "advantage_estimator": "dr_grpo"} | settings
    )
    args = CancellationConfig(output_dir=str(folder), **settings)
    optimizers = (optimizer_of(policy, loop.optimizer, loop.lr), None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bundled_trainer(CancellationTrainer, args, policy, optimizers=optimizers)


@pytest.mark.parametrize(("fields", "settings"), ARMS.values(), ids=ARMS)
def test_steps_are_the_trainers(policy, tmp_path, fields, settings):
    """Four mini-batches of one generation batch, on the trainer's own rollouts: the same weights in
    the end.
    """
    loop = LoopConfig(**{**SIZES, "optimizer": "sgd", "lr": 0.5, "clip": (0.2, 0.2), **fields})
    mine = private_copy(policy)
    trainer = trainer_of(mine, tmp_path, loop, **settings)
    kept, arranged = {}, loop.order != "shuffled"
    name = "_arrange" if arranged else "_generate_and_score_completions"
    prepare = getattr(trainer, name)

    def keep(inputs):
        output = prepare(inputs)
        kept.setdefault("batch", dict(inputs if arranged else output))
        return output

    setattr(trainer, name, keep)
    trainer.train()
    theirs, batch, parts = trained(mine), kept["batch"], trainer._buffered_inputs
    rollouts = Rollouts.from_batch(batch, group_ids=batch["group_id"])
    mine = private_copy(policy)
    before, optimizer = trained(mine), optimizer_of(mine, loop.optimizer, loop.lr)
    if loop.order == "shuffled":  # TRL's own draw
        for part in parts:
            take_step(
                mine, TASK, loop, Rollouts.from_batch(part, group_ids=part["group_id"]), optimizer
            )
    else:
        list(train_on(mine, TASK, loop, rollouts, optimizer, seed=SMALL["seed"]))
    ours = trained(mine)
    assert (theirs - before).norm() > 1e-2
    assert (ours - theirs).norm() < (1e-4 if loop.optimizer == "sgd" else 0.02) * (
        theirs - before
    ).norm()


def first_batch(policy, loop):
    return with_tokens(policy, TASK, loop, seed=1)[0]


def with_tokens(policy, task, loop, seed):
    """The first batch of a seed with advantages, and how many tokens its rule sampled."""
    rollouts = sample_batch(policy, task, loop, task.dataset(loop.prompts, seed), seed)
    return add_advantages(policy, task, loop, rollouts, seed, batch=1)


def one_step(policy, loop, rollouts):
    mine = private_copy(policy)
    before = trained(mine)
    step = take_step(mine, TASK, loop, rollouts, optimizer_of(mine, loop.optimizer, loop.lr))
    return step, trained(mine) - before


def test_a_matched_gradient_has_the_length_that_is_asked_for(policy):
    loop = LoopConfig(
        prompts=4, group_size=4, optimizer="sgd", lr=0.1, match="grad_norm", norm=0.25
    )
    rollouts = first_batch(policy, loop)
    step, change = one_step(policy, loop, rollouts)
    assert float(change.norm()) == pytest.approx(0.1 * 0.25, rel=1e-3)
    plain, free = one_step(policy, replace(loop, match=None), rollouts)
    assert plain[:2] == step[:2]  # the norm that is reported is the one before rescaling
    assert step.step_length == pytest.approx(float(change.norm()), rel=1e-3)
    assert plain.step_length == pytest.approx(float(free.norm()), rel=1e-3)
    assert float(free.norm()) == pytest.approx(0.1 * plain.grad_norm, rel=1e-3)
    assert float(torch.cosine_similarity(change, free, dim=0)) == pytest.approx(1, abs=1e-4)


def test_the_signs_cosine_is_that_of_two_steps(policy):
    loop = LoopConfig(prompts=4, group_size=4, optimizer="sgd", lr=0.1)
    rollouts = first_batch(policy, loop)
    step, whole = one_step(policy, loop, rollouts)
    halves = [
        replace(rollouts, advantages=rollouts.advantages * (sign * rollouts.advantages > 0))
        for sign in (1, -1)
    ]
    parts = [one_step(policy, loop, half)[1] for half in halves]
    torch.testing.assert_close(sum(parts), whole, atol=1e-6, rtol=0)
    assert step.sign_cosine == pytest.approx(
        float(torch.cosine_similarity(*parts, dim=0)), abs=1e-3
    )
    assert pd.isna(one_step(policy, loop, halves[0])[0].sign_cosine)


def test_a_rule_of_every_step_is_asked_in_every_step(policy):
    asked = []

    def rule(batch):
        asked.append((len(batch), float((batch.logps - batch.old_logps).abs().max())))
        return batch.group_advantages()

    rule.each_step = True
    loop = LoopConfig(
        **SIZES, order="query_preserved", optimizer="sgd", lr=0.5, rule=rule, batches=1
    )
    held_out = TASK.dataset(2, 5)["prompt"]
    readings = Readings(policy, TASK, held_out)
    theirs = train(policy, TASK, loop, 0, readings)
    # the generation batch, and each mini-batch
    assert [size for size, _ in asked] == [16, 4, 4, 4, 4]
    assert asked[1][1] < 1e-4 < asked[-1][1]
    plain = train(policy, TASK, replace(loop, rule="dr_grpo"), 0, readings)
    assert theirs["value"].tolist() == pytest.approx(plain["value"].tolist(), abs=1e-5)


def test_a_run_is_reproducible_and_leaves_the_policy_as_it_was(policy):
    before = trained(policy)
    loop = LoopConfig(prompts=2, group_size=4, batches=3, minibatches=2, epochs=2, lr=1e-3)
    held_out = TASK.dataset(3, 5)["prompt"]
    readings = Readings(policy, TASK, held_out)
    curve = train(policy, TASK, loop, 2, readings, every=2)
    assert torch.equal(trained(policy), before)
    assert all(p.grad is None for p in policy.model.parameters())
    again = train(policy, TASK, loop, 2, readings, every=2)
    pd.testing.assert_frame_equal(curve.drop(columns="seconds"), again.drop(columns="seconds"))
    rows = TASK.dataset(6, 2).select(range(2))
    first = sample_batch(policy, TASK, loop, rows, 2)
    shared = train(policy, TASK, loop, 2, readings, every=2, first=first)
    pd.testing.assert_frame_equal(curve.drop(columns="seconds"), shared.drop(columns="seconds"))
    assert curve["batch"].tolist() == [0, 2, 3]
    assert curve["steps"].tolist() == [0, 8, 12]
    assert curve["value"][0] == pytest.approx(float(expected_reward(policy, TASK, held_out).mean()))
    assert curve["tax"][0] == 0 < curve["tax"][2]
    assert curve["moved"][1] > 1e-3
    values = expected_reward(policy, TASK, held_out)
    assert curve["pass_at_8"][0] == pytest.approx(float((1 - (1 - values) ** 8).mean()))
    assert (curve["sampled_tokens"].diff()[1:] > 300).all()


def test_a_right_solutions_log_probability_is_that_of_its_words(policy):
    """Of solutions written out and scored as rollouts; what reward-free training does to it is
    read, too.
    """
    prompts = TASK.dataset(2, 5)["prompt"][:]
    readings = Readings(policy, TASK, prompts)
    rows = [{"prompt": prompt, "answer": TASK.solve(prompt)} for prompt in prompts]
    sums = right_solutions(policy, TASK, rows, SOLUTIONS).old_logps.sum(1)
    assert readings.start["logp_right"] == pytest.approx(float(sums.mean()), abs=1e-4)
    assert -30 < readings.start["logp_right"] < -1


def test_a_callback_sees_the_copy_that_learns(policy):
    """Before the first batch and every so many of them, the last included; what it returns are
    columns.
    """
    seen = []

    def look(learner, batch):
        seen.append((batch, trained(learner)))
        return {"look": 10.0 * batch}

    config = LoopConfig(prompts=2, group_size=4, batches=3, optimizer="sgd", lr=0.1)
    table = train(policy, TASK, config, 2, look, every=2)
    assert [batch for batch, _ in seen] == table["batch"].tolist() == [0, 2, 3]
    assert table["look"].tolist() == [0.0, 20.0, 30.0]
    assert torch.equal(seen[0][1], trained(policy))
    assert float((seen[2][1] - seen[1][1]).norm()) == pytest.approx(table["step_length"][2])


def test_a_rule_of_known_credit_wants_to_be_told(policy):
    """A rule by name asks for a function; a function at hand is told the task's own annotation."""
    with refused("known_credit", None):
        LoopConfig(rule="known_credit")
    config = LoopConfig(prompts=2, group_size=4, rule=lambda batch: batch.known_credit)
    annotated, _ = with_tokens(policy, TASK, config, seed=1)
    told = credit_batch(policy, annotated, TASK).known_credit
    torch.testing.assert_close(annotated.advantages, told)
    exact, _ = with_tokens(policy, TASK, replace(config, known_credit=exact_credit), seed=1)
    assert not torch.allclose(exact.advantages, told, atol=0.01)


@pytest.mark.parametrize(
    "rule", ["entropy_minimization", "sequence_logp", "majority_vote", "worst_token_reset"]
)
def test_controls_train_and_are_not_permuted(policy, rule):
    loop = LoopConfig(prompts=2, batches=1, lr=1e-3, rule=rule, known_credit=exact_credit)
    curve = train(policy, TASK, loop, seed=3)
    assert curve["moved"][1] > 1e-3
    rollouts, rule_tokens = with_tokens(policy, TASK, loop, seed=3)
    assert curve["sampled_tokens"][1] == rollouts.completion_mask.sum() + rule_tokens
    assert (rule_tokens > 0) == (rule == "worst_token_reset")
    with refused("permuted", True, f"False with rule={rule!r}"):
        replace(loop, permuted=True)


def test_entropies_of_sampling_serve_the_first_step(policy):
    """A rule that asks for the entropies of now is told those of sampling, which are those of
    another pass.
    """
    loop = LoopConfig(prompts=2, group_size=4, rule="entropy_minimization")
    given, _ = with_tokens(policy, TASK, loop, seed=3)
    batch = credit_batch(policy, given)
    torch.testing.assert_close(given.advantages, batch.logps + batch.entropies, atol=1e-4, rtol=0)
    assert given.advantages.abs().max() > 0.1


def test_the_oracle_is_the_exact_credit_of_the_policy_as_it_is(policy):
    task = get_task("chain")
    loop = LoopConfig(prompts=2, group_size=4, rule="known_credit", known_credit=exact_credit)
    given, _ = with_tokens(policy, task, loop, seed=1)
    exact = exact_values(policy, task, given).credit * given.completion_mask
    assert torch.allclose(given.advantages, exact, atol=1e-6)
    assert exact.abs().max() > 0.1
    assert not torch.allclose(
        given.advantages, credit_batch(policy, given, task).known_credit, atol=0.01
    )
