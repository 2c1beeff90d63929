"""Explorers, live studies and exercises of chapters 05, 10 and 14: the policy in hand beside
committed curves.
"""

from collections.abc import Callable

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbook.chapters.flips import charts
from workbook.chapters.grading import answer_of, grade
from workbook.policies.models import private_copy
from workbook.probes.flips import EPS, EPSILONS, column_shares, token_flips
from workbook.probes.step import (
    ONE_STEP_OPTIMIZERS,
    SIGN_SOURCES,
    STEP_NATS,
    matched_lr,
    pushing_prompts,
    with_signs,
)
from workbook.rollouts.example import example_policy, example_rollouts
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.views.explorer import log_slider, menu, power_slider, slider
from workbook.views.live_study import NOW, LiveStudy, live_tables

NEW_TOKENS = 48  # at most, of the bundled task


# --- the same on the policy in hand


def _sampling(prompts: int, most: int, label: str) -> dict:
    """Controls of what is sampled, and of whose signs push."""
    return {
        "prompts": power_slider(prompts, most, label, least=2),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "signs": menu("by reward", list(SIGN_SOURCES), "advantages"),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }


def measure_flips(
    policy,
    task,
    optimizer="adamw",
    nats=STEP_NATS,
    eps=EPS,
    signs="by reward",
    prompts=16,
    group_size=8,
    seed=0,
) -> dict[str, pd.DataFrame]:
    """Shares of CHANGE_CLASSES after one real step of this policy, by sign: {"table": ...}.

    nats: root mean square movement of its tokens.
    """
    sampled = pushing_prompts(
        sample_rollouts(policy, task, prompts, group_size, seed, NEW_TOKENS), prompts
    )
    rollouts = with_signs(sampled, signs, seed)
    table = token_flips(policy, rollouts, optimizer, matched_lr(policy, rollouts, optimizer, nats))
    return {"table": column_shares(table, eps).assign(model=NOW, units=1)}


def live_flips(policy, task, prompts: int = 16) -> LiveStudy:
    """Optimizer, size of the step, eps, signs, batch and seed of one step on a copy of a policy,
    beside the models.
    """
    controls = {
        "optimizer": menu("adamw", list(ONE_STEP_OPTIMIZERS), "optimizer"),
        "nats": log_slider(STEP_NATS, -3, 0, "step (nats, rms)", step=0.25),
        "eps": menu(EPS, list(EPSILONS), "boosted from (nats)"),
        **_sampling(prompts, 64, "prompts in the batch"),
    }
    presets = {
        "boosted from 0.1 nats on": {"eps": 0.1},
        "plain SGD": {"optimizer": "sgd"},
        "advantages permuted": {"signs": "permuted"},
    }
    shown = charts.compute_flips, charts.flips_chart, controls
    return live_tables(measure_flips, *shown, policy, task, charts.describe_flips, None, presets)


# --- exercises


def undone_step(policy, rollouts: Rollouts, lr: float) -> Float[Tensor, " N"]:
    """Each completion token's change of log-probability (nats) by one SGD step on a copy."""
    return torch.tensor(token_flips(policy, rollouts, "sgd", lr)["dlogp"].to_numpy())


def check_undone(function: Callable) -> None:
    """Check a function (policy, rollouts, lr) -> change of each token's log-probability (N,).

    It is tried on a copy of the example's policy, with rollouts A and B, which it has to put back.

    >>> check_undone(lambda policy, rollouts, lr: -undone_step(policy, rollouts, lr))
    Not quite: every sign is turned around. Go up the objective, and subtract before from after.
    """
    policy = private_copy(example_policy())
    rollouts, lr = example_rollouts(policy), 0.1
    alive = rollouts.completion_mask.bool()
    right = undone_step(policy, rollouts, lr)
    start = [weight.detach().clone() for weight in policy.model.parameters()]
    with torch.enable_grad():
        got = answer_of(function, policy, rollouts, lr)
    stays = all(
        torch.equal(weight.detach(), value)
        for weight, value in zip(policy.model.parameters(), start, strict=True)
    )
    if got is not None and not stays:
        print("Not quite: the policy has moved. Copy the weights first, and put them back.")
        return
    if got is not None and got.shape == alive.shape:
        print("Not quite: it returned (B, T). Return the tokens within the mask alone, (N,).")
        return
    # a step that is longer by a factor moves tokens by that factor, to first order
    doubled = undone_step(policy, rollouts, lr * rollouts.completion_ids.numel())
    mistakes = {
        "every sign is turned around. Go up the objective, and subtract before from after.": -right,
        "nothing moved. Score the tokens again after the step, before you put it back.": 0 * right,
        "the step is too long: the objective is a mean over all B x T places, not a sum.": doubled,
        "these look like log-probabilities; return after minus before.": lambda got: (
            (got <= 0).all().item()
        ),
    }
    praise = "Right: the step is taken, measured and undone."
    grade(got, right, mistakes, praise, "token")
