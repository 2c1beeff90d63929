"""Drift over many steps (`toy` takes one): of a shared token whose pushes do not cancel, and of
right answers.

The first is the learning tax of arXiv 2604.13088 (proposition 3.1, claim D4), the second its
corollary 3.2 (D5).
"""

from functools import lru_cache

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from workbook.chapters.exchange.toy import TRANSFORMS, interval, single_thread
from workbook.messages import require_one_of, require_range
from workbook.statistics import bootstrap_mean
from workbook.theory import kl_drift, solution_entropy
from workbook.theory.drift import log_odds_drift
from workbook.theory.weights import transform_weights

VOCABULARY = 8
STEPS, DRAWS = 40, 64
PATHS = ["your setting", "a coin toss each step"]
START = (0.3, 0.15, 0.05, 0.5)  # three right answers with odds 6 : 3 : 1, and a wrong one
WEIGHTS, OPERATORS = ("equal", "one favoured", "random"), ("softmax gradient", "natural gradient")
_LR, LATE_STEPS, REWARD = 0.3, 60, 0.8  # of `entropy_by_setting`
SETTINGS = {  # of `run_solutions`: who weighs more, what repairs it, what turns pushes into a step
    "equal weights": {},
    "one answer favoured": {"weights": "one favoured"},
    "favoured, min-replace": {"weights": "one favoured", "transform": "min-replace"},
    "favoured, advantage-orthogonal": {
        "weights": "one favoured",
        "transform": "advantage-orthogonal",
    },
    "random weights": {"weights": "random"},
    "random, min-replace": {"weights": "random", "transform": "min-replace"},
    "equal, natural gradient": {"operator": OPERATORS[1]},
    "favoured, natural gradient": {"weights": "one favoured", "operator": OPERATORS[1]},
}
WHEN = {"end": f"after {LATE_STEPS} steps", "reward": f"when the reward reaches {REWARD}"}


@single_thread()
def compute_kl_drift(
    p_shared: float = 0.4,
    residual: float = 0.2,
    lr: float = 0.1,
    same_sign: float = 1.0,
    seed: int = 0,
) -> pd.DataFrame:
    """Tabulate how far a softmax over 8 words drifts in 40 steps on a push that did not cancel.

    p_shared: probability of the pushed word; the others fall off by halves.  residual: of its push,
    as a share.  same_sign: probability that a step's residual has the usual sign; 1 always, 0.5 by
    coin toss.

    Columns step, series (of PATHS: your setting, or a coin toss at the same rate), mean, low, high
    of the KL from the first policy (nats) over 64 draws. ValueError for p_shared outside (0, 1).
    """
    require_range(0, 1, closed=False, p_shared=p_shared)
    rest = 0.5 ** torch.arange(VOCABULARY - 1, dtype=torch.float64)
    first = torch.tensor([p_shared], dtype=torch.float64)
    logits = torch.cat([first, (1 - p_shared) * rest / rest.sum()]).log()
    shared = torch.eye(VOCABULARY, dtype=torch.float64)[0]

    tables = []
    for series, chance in zip(PATHS, (same_sign, 0.5), strict=True):
        # every step goes along residual (e - p) at its own p
        generator = torch.Generator().manual_seed(seed)
        uniform = torch.rand((STEPS, DRAWS, 1), generator=generator, dtype=torch.float64)
        signs = torch.where(uniform < chance, 1.0, -1.0).double()
        now, path = logits.expand(DRAWS, -1), []
        for step in range(STEPS):
            now = now + lr * residual * signs[step] * (shared - now.softmax(-1))
            path.append(kl_drift(logits, now - logits))
        table = pd.DataFrame(interval(torch.stack(path)))
        tables.append(table.assign(step=range(1, STEPS + 1), series=series))
    return pd.concat(tables, ignore_index=True)


def solution_step(
    logits: Float[Tensor, "S V"], coefficients: Float[Tensor, "S V"], lr: float, operator: str
) -> Float[Tensor, "S V"]:
    """Take one step on sum_y k_y log pi(y), k_y the coefficient that output y has in the update.

    - softmax gradient: z += lr (k - p sum_y k_y)
    - natural gradient: z += lr F^+ (the same), which is lr k_y / p_y up to a constant common to all
    outputs

    Shapes: S softmaxes over V whole outputs. ValueError for an unknown operator.
    """
    require_one_of("operator", operator, OPERATORS)
    p = logits.softmax(-1)
    if operator == "natural gradient":
        return logits + lr * torch.where(coefficients == 0, 0.0, coefficients / p)
    return logits + lr * (coefficients - p * coefficients.sum(-1, keepdim=True))


@lru_cache(maxsize=32)
@single_thread()
def run_solutions(
    weights: str = "equal",
    transform: str = "none",
    operator: str = "softmax gradient",
    strength: float = 0.5,
    lr: float = 0.5,
    group_size: int = 8,
    seeds: int = 48,
    steps: int = STEPS,
    seed: int = 0,
) -> Float[Tensor, "steps1 seeds V"]:
    """Train on on-policy groups: log-probabilities of four outputs, three equally right ones and a
    wrong one.

    Each step draws a group, centres its rewards (Dr. GRPO), weighs its rollouts and steps. weights:
    "equal" all 1; "one favoured" 1 + strength for the first right answer; "random" exp(strength
    times a normal number) per rollout, as sequence ratios are.  transform: one of TRANSFORMS.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = torch.tensor(START, dtype=torch.float64).log().repeat(seeds, 1)
    group_ids, outputs = (
        torch.arange(seeds).repeat_interleave(group_size),
        torch.eye(len(START), dtype=torch.float64),
    )
    path = [logits]
    for _ in range(steps):
        drawn = torch.multinomial(
            logits.softmax(-1), group_size, replacement=True, generator=generator
        ).flatten()
        noise = torch.randn(len(drawn), generator=generator, dtype=torch.float64)
        rewards = (drawn < 3).double().view(seeds, group_size)
        # group_advantages' "dr_grpo", on a grid
        advantages = (rewards - rewards.mean(1, keepdim=True)).flatten()
        if weights == "random":
            w = (strength * noise).exp()
        else:
            w = 1 + (strength if weights == "one favoured" else 0.0) * (drawn == 0).double()
        w = transform_weights(w, TRANSFORMS[transform], advantages, group_ids)
        pushes = (w * advantages)[:, None] * outputs[drawn] / group_size
        logits = solution_step(logits, pushes.view(seeds, group_size, -1).sum(1), lr, operator)
        path.append(logits)
    return torch.stack(path).log_softmax(-1)


@single_thread()
def compute_solutions(
    weights: str = "equal", transform: str = "none", strength: float = 0.5, **settings
) -> pd.DataFrame:
    """Tabulate entropy over the right answers, log-odds of the first two, and reward, step by step,
    over 48 seeds.

    Arguments as in `run_solutions`; settings: more of them. Columns measure, run ("your settings",
    or "equal weights": the same with nothing unequal), step, mean, low, high (95 % interval over
    seeds).
    """
    yours = {
        "weights": weights,
        "transform": transform,
        "strength": strength if weights != "equal" else 0.0,
    }
    tables = []
    for run, own in {"your settings": yours, "equal weights": {"strength": 0.0}}.items():
        path = run_solutions(**own, **settings)
        for measure, curve in solution_measures(path).items():  # (steps, seeds)
            tables.append(
                pd.DataFrame(
                    {"measure": measure, "run": run, "step": range(len(curve)), **interval(curve)}
                )
            )
    return pd.concat(tables, ignore_index=True)


def solution_measures(
    path: Float[Tensor, "steps1 seeds V"],
) -> dict[str, Float[Tensor, "steps1 seeds"]]:
    """Measure entropy over the right answers, drift of the first two's log-odds, and the chance of
    a right answer.
    """
    right = path[..., :3]
    return {
        "entropy": solution_entropy(right),
        "log-odds": log_odds_drift(right[:1].expand_as(right), right)[..., 0, 1],
        "reward": right.logsumexp(-1).exp(),
    }


def entropy_by_setting(
    seeds: int = 200, settings: tuple[str, ...] = tuple(SETTINGS)
) -> pd.DataFrame:
    """Entropy over the right answers (nats) of settings in SETTINGS, after 60 steps and at equal
    reward, over seeds.

    Columns setting, when (of WHEN), mean, low, high (95 % bootstrap interval over seeds), start
    (entropy at step 0) and reward, at the end.
    """
    rows = []
    for name in settings:
        path = solution_measures(
            run_solutions(lr=_LR, seeds=seeds, steps=LATE_STEPS, **SETTINGS[name])
        )
        entropy, reward = path["entropy"].numpy(), path["reward"].numpy()
        at_reward = entropy[(reward >= REWARD).argmax(0), np.arange(seeds)]
        base = {"setting": name, "start": entropy[0, 0], "reward": reward[-1].mean()}
        for when, values in (("end", entropy[-1]), ("reward", at_reward)):
            rows.append(base | {"when": WHEN[when], **bootstrap_mean(values)._asdict()})
    return pd.DataFrame(rows)


def long_runs(steps: int = 2_000, seeds: int = 48) -> pd.DataFrame:
    """Entropy and log-odds of equally right answers over many steps: either operator, equal weights
    and a favourite.

    Columns measure ("entropy", "log-odds" or "wrong", the share of wrong answers), run, step (30 of
    them, evenly spread on a logarithm), mean, low, high over seeds.
    """
    marks, rows = np.unique(np.geomspace(1, steps, 30).astype(int)), []
    for operator in OPERATORS:
        for weights in ("equal", "one favoured"):
            measures = solution_measures(
                run_solutions(weights, operator=operator, lr=_LR, seeds=seeds, steps=steps)
            )
            measures["wrong"] = 1 - measures.pop("reward")
            for measure, values in measures.items():
                for step in marks:
                    ends = bootstrap_mean(values[step].numpy(), resamples=499)._asdict()
                    rows.append(
                        {"measure": measure, "run": f"{operator}, {weights}", "step": step, **ends}
                    )
    return pd.DataFrame(rows)
