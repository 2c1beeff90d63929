"""What a rule's update has in common with the ideal one, and its advantages with the credit that is known to be true.

The ideal update of a policy on some prompts is the gradient g* of their exact expected reward. A rule makes a gradient
g_m of each redraw m of the rollouts. Products of different redraws have independent noise, so with M redraws

    along  = mean_m <g_m, g*> / |g*|^2             how far the mean update goes along the ideal one
    mean2  = mean_{m != n} <g_m, g_n> / |g*|^2     squared norm of the mean update
    total2 = mean_m |g_m|^2 / |g*|^2               mean squared norm of one redraw's update

are unbiased. Of them follow the cosine of the mean update with the ideal one, along / sqrt(mean2) (what the rule
distorts), that of one redraw's update, along / sqrt(total2) (what one step gets), and the noise per signal,
(total2 - mean2) / mean2. They are kept apart, so that ratios are taken of means over policies.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from scipy.stats import rankdata
from torch import Tensor

from workbook.policies.copies import evaluating
from workbook.probes.recovered import exact_gradient, flat_gradient
from workbook.probes.step import FIELDS
from workbook.probes.values import chain_values
from workbook.rollouts.credit import credit_batch
from workbook.rollouts.sample import sample_rollouts
from workbook.rollouts.scoring import rollout_logps
from workbook.studies.loop import LARGE_PRIME
from workbook.topics.arena.rules import Contender

DECIDES = 0.01  # reward: a token whose true credit is larger than this, up or down, decides something


def rule_marks(
    policy,
    task,
    rules: Iterable[Contender],
    prompts: int,
    group_size: int,
    redraws: int,
    seed: int,
    max_new_tokens: int = 48,
) -> pd.DataFrame:
    """A row per rule: along, mean2, total2 (see the module), agreement with true credit, its own time and tokens.

    Columns besides: correlation of its advantages with true credit; auroc, tokens of positive true credit ranked by
    advantage against those of negative; where, all tokens ranked by the size of the advantage, those that decide
    something against those that don't; rule_ms, milliseconds per redraw; extra_tokens, sampled by the rule per redraw.
    True credit is that of the policy of now, exact.  prompts: drawn as `task.dataset(prompts, seed)`, and redrawn
    `redraws` times with group_size rollouts each. The policy is left as it was.

    Raises ValueError for fewer than two redraws.
    """
    if redraws < 2:
        raise ValueError(f"redraws={redraws} must be 2 or more: products of two tell signal from noise.")
    rows, rules = task.dataset(prompts, seed), list(rules)
    gradients, observed = {rule.name: [] for rule in rules}, []
    with evaluating(policy.model), torch.enable_grad():
        ideal = exact_gradient(policy, task, rows["prompt"])
        for redraw in range(redraws):
            rollouts = sample_rollouts(policy, task, rows, group_size, LARGE_PRIME * seed + redraw, max_new_tokens)
            credit = chain_values(policy, task, rollouts).credit  # (B, T)
            scored = rollout_logps(policy.model, *(getattr(rollouts, name) for name in FIELDS))  # (B, T)
            for rule in rules:  # a batch of its own each, so that none pays for what another has asked for
                given = {"known_credit": credit, "max_new_tokens": max_new_tokens}
                batch = credit_batch(policy, rollouts, task, (seed, redraw), redraw, **given)
                began = time.perf_counter()
                advantages = rule.advantages(batch)
                cost = {"rule_ms": 1e3 * (time.perf_counter() - began), "extra_tokens": batch.sampled_tokens}
                observed.append({"rule": rule.name, **agreement(advantages, batch.known_credit, batch.mask), **cost})
                objective = (advantages * scored).sum() / len(rollouts)  # its mean is g* for unbiased advantages
                gradients[rule.name].append(flat_gradient(policy, objective, keep_graph=True))
    means = pd.DataFrame(observed).groupby("rule", sort=False).mean()
    lengths = pd.DataFrame({name: products(torch.stack(rows), ideal) for name, rows in gradients.items()}).T
    return lengths.join(means).rename_axis("rule").reset_index()


def products(gradients: Float[Tensor, "M D"], ideal: Float[Tensor, " D"]) -> dict[str, float]:
    """along, mean2 and total2 of redrawn updates (see the module).

    >>> gradients = torch.tensor([[1.0, 1.0], [1.0, -1.0]])  # signal (1, 0), and noise that changes its sign
    >>> products(gradients, torch.tensor([2.0, 0.0]))
    {'along': 0.5, 'mean2': 0.0, 'total2': 0.5}
    """
    gradients, ideal = gradients.double(), ideal.double()
    gram, unit = gradients @ gradients.T, float(ideal @ ideal)
    pairs, own = len(gradients) * (len(gradients) - 1), float(gram.trace())
    return {
        "along": float((gradients @ ideal).mean()) / unit,
        "mean2": (float(gram.sum()) - own) / pairs / unit,
        "total2": own / len(gradients) / unit,
    }


def agreement(
    advantages: Float[Tensor, "B T"], credit: Float[Tensor, "B T"], mask: Bool[Tensor, "B T"]
) -> dict[str, float]:
    """correlation, auroc and where of advantages and true credit (see `rule_marks`); NaN where nothing varies.

    >>> agreement(torch.tensor([[0.5, 0.5, -0.5]]), torch.tensor([[0.4, 0.0, -0.4]]), torch.ones(1, 3).bool())["auroc"]
    1.0
    """
    given, true = (tensor[mask].double().cpu().numpy() for tensor in (advantages, credit))
    varies = given.std() > 0 and true.std() > 0
    decides = np.abs(true) > DECIDES
    return {
        "correlation": float(np.corrcoef(given, true)[0, 1]) if varies else float("nan"),
        "auroc": auroc(given[decides], true[decides] > 0),
        "where": auroc(np.abs(given), decides),
    }


def auroc(scores: np.ndarray, positive: np.ndarray) -> float:
    """The probability that a positive scores above a negative, ties counting half; NaN without either.

    >>> auroc(np.array([1.0, 2.0, 2.0]), np.array([False, True, False]))
    0.75
    """
    ups, downs = int(positive.sum()), int((~positive).sum())
    if not ups or not downs:
        return float("nan")
    return float((rankdata(scores)[positive].sum() - ups * (ups + 1) / 2) / (ups * downs))
