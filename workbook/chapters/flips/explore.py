"""Explorers, live studies and exercises of chapters 05, 10 and 14: the policy in hand beside
committed curves.
"""

from collections.abc import Callable

import pandas as pd
import torch
from torch import Tensor

from workbook.chapters.flips import charts
from workbook.chapters.grading import answer_of, grade
from workbook.probes.flips import EPS, EPSILONS, column_shares, token_flips
from workbook.probes.step import (
    ONE_STEP_OPTIMIZERS,
    SIGN_SOURCES,
    STEP_NATS,
    matched_lr,
    pushing_prompts,
    with_signs,
)
from workbook.rollouts.sample import sample_rollouts
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
        "eps": menu(EPS, list(EPSILONS), "eps (nats)"),
        **_sampling(prompts, 64, "prompts in the batch"),
    }
    presets = {
        "eps of 0.1 nats": {"eps": 0.1},
        "plain SGD": {"optimizer": "sgd"},
        "advantages permuted": {"signs": "permuted"},
    }
    shown = charts.compute_flips, charts.flips_chart, controls
    return live_tables(measure_flips, *shown, policy, task, charts.describe_flips, None, presets)


# --- exercises

DLOGP = torch.tensor([0.20, -0.05, 0.004, 0.03, -0.30, 0.010, -0.002, -0.08])
ADVANTAGE = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.0])
PIECES = ("The", "re", "fore", " the", " answ", "er", " is", " 1", "2", ".")
_WORDS = torch.tensor([0, 0, 0, 1, 2, 2, 3, 4, 4, 5])


def check_shares(function: Callable) -> None:
    """Check a function (dlogp (N,), advantage (N,), eps) -> shares boosted, suppressed, stable of A
    > 0, A < 0: (2, 3).

    >>> check_shares(lambda dlogp, advantage, eps: torch.zeros(2, 3))
    Not quite: each row's shares should sum to 1; yours sum to 0 and 0.
    """

    def shares(dlogp: Tensor, eps: float = 0.01) -> Tensor:
        return torch.stack(
            [part.double().mean() for part in (dlogp > eps, dlogp < -eps, dlogp.abs() <= eps)]
        )

    got = answer_of(function, DLOGP, ADVANTAGE, 0.01)
    sides = DLOGP[ADVANTAGE > 0], DLOGP[ADVANTAGE < 0]
    right, inclusive = (
        torch.stack([shares(side, cut) for side in sides]) for cut in (0.01, 0.0099)
    )
    rows = [] if got is None or got.ndim != 2 else got.float()
    totals = [f"{float(row.sum()):g}" for row in rows]
    mistakes = {
        "the rows are the wrong way round; positive rollouts come first.": right.flip(0),
        "each row's order is boosted, suppressed, stable; yours has stable second.": right[
            :, [0, 2, 1]
        ],
        "a token that moved by exactly eps is stable: > eps, not >= eps.": inclusive,
        f"each row's shares should sum to 1; yours sum to {' and '.join(totals)}.": lambda got: (
            not torch.allclose(got.sum(1), torch.ones(2).double(), atol=1e-5)
        ),
        "a rollout of advantage 0 is on neither side; leave it out.": lambda got: torch.allclose(
            got[1], shares(DLOGP[ADVANTAGE <= 0]), atol=1e-5
        ),
    }
    grade(
        got,
        right,
        mistakes,
        "Right: and a token that moved by exactly eps counts as stable.",
        "sign and change",
    )


def check_words(function: Callable) -> None:
    """Check a function (tokens) -> number of the word that each token belongs to; a full stop is a
    word of its own.

    >>> check_words(lambda tokens: list(range(len(tokens))))
    Not quite: every token is a word here; 're' goes on with 'The', since no space begins it.
    """
    mistakes = {
        "every token is a word here; 're' goes on with 'The', since no space begins it.": (
            torch.arange(len(PIECES))
        ),
        "the full stop begins with no space, and yet is no part of the number before it.": (
            lambda got: got[:-1].equal(_WORDS[:-1].double())
        ),
        "the numbers begin with 0, with a space before the first token or without one.": (
            lambda got: (got - got[0]).equal(_WORDS.double())
        ),
    }
    praise = "Right: with these numbers, all pieces of a word can be given the class of the whole."
    otherwise = "{entry} belongs to word {right:.0f}, but yours says {got:.0f}."
    got = answer_of(function, PIECES)
    if got is not None and got.tolist() == _WORDS.tolist():  # a text may begin with a space, too
        got = answer_of(function, (f" {PIECES[0]}", *PIECES[1:]))
    grade(got, _WORDS, mistakes, praise, "token", otherwise)
