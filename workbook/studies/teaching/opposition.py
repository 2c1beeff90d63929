"""Study opposition: does learning need good and bad rollouts to push against one another?

Advantages are r - c x mean reward of the group (`partial_baseline`), from no opposition (c = 0) to
that of GRPO without scaling (c = 1), all with gradients of one length and at plain's rate. Beside
each c: the same with permuted rewards, and one without the groups of equal rewards, which push
below c = 1 and have nothing to compare.

The noise study reads one update at the start: noise, and the share of signal, against the step's
own prompts and against the population of prompts; and the variance-optimal baseline E[r |s|^2] /
E[|s|^2], with s the gradient of a rollout's log-probability, as a share of the mean reward.
"""

from functools import partial

import numpy as np
import pandas as pd
import torch

from workbook.policies.models import evaluating
from workbook.probes.baseline_noise import noise_of
from workbook.probes.recovered import exact_gradient, flat_gradient
from workbook.rollouts.likelihood import scores
from workbook.rollouts.sample import sample_rollouts
from workbook.studies.teaching.masks import GROUP_SIZE, PLAIN, run_mask, tuned_mask_rates
from workbook.studies.unit import StudyUnit
from workbook.theory.credit_controls import Opposition

_SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
KNOWN = "known credit"
NOISE_PROMPTS, DRAWS = 32, 4  # prompts of the noise study, and groups drawn of each


def opposition_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table runs of one unit: each share with true and permuted rewards, without equal groups, and
    known credit.
    """
    world = unit.setting.name
    lr = tuned_mask_rates(unit, "mask_rates" if world != "world:low" else "mask_rates_plain")[PLAIN]
    parts = []
    for share in _SHARES:
        for arm, rule, permuted in (
            ("rewards", Opposition(share), False),
            ("permuted rewards", Opposition(share), True),
            ("without equal groups", Opposition(share, drop_equal=True), False),
        ):
            if share == 1 and arm == "without equal groups":
                continue  # at 1 they push nothing anyway
            made = unit.cached_table(
                f"{arm}-{share:g}", partial(run_mask, unit, rule, lr, permuted=permuted)
            )
            parts.append(made.assign(arm=arm, share=share))
    made = unit.cached_table(KNOWN, partial(run_mask, unit, "known_credit", lr))
    parts.append(made.assign(arm=KNOWN, share=np.nan))
    return {"runs": pd.concat(parts, ignore_index=True)}


def opposition_noise_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables of one unit: noise, a row per share of the baseline; optimal, a row per prompt."""
    policy, task = unit.policy, unit.task
    rows = task.dataset(NOISE_PROMPTS, unit.data_seed)
    given = [row for row in range(NOISE_PROMPTS) for _ in range(DRAWS)]  # a group each
    rollouts = sample_rollouts(
        policy, task, rows.select(given), GROUP_SIZE, unit.data_seed, unit.setting.max_new_tokens
    )
    with evaluating(policy.model), torch.enable_grad():
        # (P, D)
        exact = torch.stack(
            [exact_gradient(policy, task, [prompt]).double() for prompt in rows["prompt"]]
        )
        rewarded, plain, optimal = [], [], []
        for prompt in range(NOISE_PROMPTS):
            lengths, rewards = [], []
            for draw in range(DRAWS):
                first = (prompt * DRAWS + draw) * GROUP_SIZE
                part = rollouts.select(slice(first, first + GROUP_SIZE))
                scored = scores(policy.model, part).sum(1)  # (G,)
                own = torch.stack(
                    [flat_gradient(policy, value, keep_graph=True).double() for value in scored]
                )  # (G, D)
                given = part.rewards.double()
                rewarded.append((given[:, None] * own).mean(0))
                plain.append(given.mean() * own.mean(0))
                lengths.append(own.square().sum(1))
                rewards.append(given)
            squares, given = torch.cat(lengths), torch.cat(rewards)
            optimal.append(
                {
                    "prompt": prompt,
                    "reward": float(given.mean()),
                    "squares": float(squares.mean()),
                    "reward_squares": float((given * squares).mean()),
                }
            )
    rewarded, plain = (
        torch.stack(parts).unflatten(0, (NOISE_PROMPTS, DRAWS)) for parts in (rewarded, plain)
    )
    table = [
        {"share": share, **noise_of(rewarded - share * plain, exact, share)} for share in _SHARES
    ]
    return {"noise": pd.DataFrame(table), "optimal": pd.DataFrame(optimal)}
