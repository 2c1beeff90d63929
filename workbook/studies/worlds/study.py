"""Studies of worlds: `worlds_start` (a batch, untrained), `worlds_rates` (each arm's rate),
`worlds` (the comparison), `worlds_300` (six of its arms, 300 batches), `worlds_300_plain_rate` (at
plain's rate, where an arm's own is another), `worlds_values` (what exact values are off by at the
start).

Arms are credit rules by their names: known credit, rules with rewards, rules that never see one,
permuted rewards. A run is 32 generation batches of 8 prompts x 8 rollouts, one AdamW step each,
on-policy; readings every fourth batch.

Rates are tuned on a world's three other policies. The ladder's middle is the lowest of CLIMB at
which permuted falls below half of its start on most of them: noise alone destroys them there, so
that the rates on both sides of what a rule can bear are tried. What rate is an arm's own, and which
one all could share: `half_way.own_rates`, `outcomes.common_rate`. Permuted, which learns at no
rate, runs at plain's own.

Tables, a row per reading of a run: world, arm, lr, what `train` reads; of `worlds_rates`
policy (of the tuning ones) in ladder (`runs`) and climb (`edge`). `worlds_start`: a row per rule
with mean2 and total2, the squared length of the expected update and the mean one of a batch's.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import pandas as pd
import torch

from workbook.app.half_way import COLLAPSED, KNOWN_CREDIT, LOWER, PLAIN, own_rates
from workbook.app.world_runs import (
    BATCHES,
    EVERY,
    GROUP_SIZE,
    HELD_OUT_PROMPTS,
    PROMPTS,
    run_rule,
)
from workbook.policies.models import evaluating
from workbook.probes.recovered import exact_gradient, flat_gradient
from workbook.probes.values import exact_credit, value_error
from workbook.rollouts.likelihood import scores
from workbook.studies.record import load_measured
from workbook.studies.registration import WORLD_SCALES
from workbook.studies.unit import StudyUnit
from workbook.studies.worlds.outcomes import world_name
from workbook.theory.credit_controls import REWARD_FREE
from workbook.training.loop import LoopConfig, add_advantages, sample_batch

ARMS = (KNOWN_CREDIT, PLAIN, "positive_only", "negative_token_filtering", "edit_mask")
ARMS += ("entropy_minimization", "sequence_logp", "majority_vote", LOWER)
LASTING = (
    KNOWN_CREDIT,
    PLAIN,
    "positive_only",
    "negative_token_filtering",
    "entropy_minimization",
    LOWER,
)
CLIMB = tuple(1.5e-4 * 2**k for k in range(6))  # up to 4.8e-3
LADDER = (-2, -1, 0, 1, 2)  # doublings about the edge
TUNED = 3  # policies that a world's rates are tuned on


class WorldSizes(NamedTuple):
    """Generation batches of a run, from one reading to the next, held-out prompts, batches drawn at
    the start, continuations of each held-out prompt that values are compared with."""

    batches: int = BATCHES
    every: int = EVERY
    held_out: int = HELD_OUT_PROMPTS
    redraws: int = 32
    continuations: int = 64


SIZES = dict.fromkeys(WORLD_SCALES, WorldSizes()) | {"tiny": WorldSizes(4, 2, 4, 4, 8)}


def run_world_arm(
    unit: StudyUnit, arm: str, lr: float, size: WorldSizes | None = None
) -> pd.DataFrame:
    """A run of one arm at one rate from a unit's policy; size: by default its scale's."""
    size = size or SIZES[unit.setting.name]
    return run_rule(unit, arm, lr, size.batches, size.every, size.held_out)


def world_config(unit: StudyUnit, arm: str, lr: float = CLIMB[0]) -> LoopConfig:
    """The loop of a run."""
    sizes = {
        "prompts": PROMPTS,
        "group_size": GROUP_SIZE,
        "batches": SIZES[unit.setting.name].batches,
    }
    longest = unit.setting.max_new_tokens
    return LoopConfig(**sizes, lr=lr, rule=arm, known_credit=exact_credit, max_new_tokens=longest)


def start_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table updates of one unit: `update_squares` at the start, of plain and of known credit."""
    redraws = SIZES[unit.setting.name].redraws
    table = update_squares(unit, redraws)
    return {"updates": table.assign(world=world_name(unit.setting.name), redraws=redraws)}


def update_squares(unit: StudyUnit, redraws: int) -> pd.DataFrame:
    """A row per rule, plain and known credit: signal (mean2) and all (total2) of one batch's update
    of the policy as it is, on prompts that nobody trains on; every batch draws prompts and rollouts
    anew.

        mean2    = |E g|^2 = c^2 <G_1, G_2>       of exact gradients on two halves of the prompts
        total2   = mean_m |g_m|^2
        sampled2 = mean_{m != n} <g_m, g_n>       mean2 again, with sampling's noise

    all without bias, as halves and batches share no noise. c is 1 for known credit; for plain,
    whose baseline holds each rollout's own reward, 1 - 1 / group size.
    """
    scale, policy, task, seed = (
        {PLAIN: 1 - 1 / GROUP_SIZE, KNOWN_CREDIT: 1.0},
        unit.policy,
        unit.task,
        unit.held_out_seed,
    )
    data, gradients, exact = task.dataset(PROMPTS * redraws, seed), {rule: [] for rule in scale}, []
    for draw in range(redraws):
        rows = data.select(range(PROMPTS * draw, PROMPTS * (draw + 1)))
        rollouts = sample_batch(policy, task, world_config(unit, PLAIN), rows, seed, draw)
        with evaluating(policy.model), torch.enable_grad():
            scored = scores(policy.model, rollouts)  # (B, T)
            exact.append(exact_gradient(policy, task, rows["prompt"]).double())
        for rule, parts in gradients.items():
            loop = world_config(unit, rule)
            given, _ = add_advantages(policy, task, loop, rollouts, seed, draw)
            objective = (given.advantages.view(len(given), -1) * scored).sum() / len(given)
            parts.append(flat_gradient(policy, objective, keep_graph=rule != KNOWN_CREDIT).double())
    signal = float(torch.stack(exact[::2]).mean(0) @ torch.stack(exact[1::2]).mean(0))
    table = [
        {"rule": rule, "mean2": scale[rule] ** 2 * signal, **squares(parts)}
        for rule, parts in gradients.items()
    ]
    return pd.DataFrame(table)


def squares(gradients: list[torch.Tensor]) -> dict[str, float]:
    """total2 and sampled2 of gradients (D,) of independent batches."""
    rows, count = torch.stack(gradients), len(gradients)
    own, whole = float(rows.square().sum()), float(rows.sum(0).square().sum())
    return {"total2": own / count, "sampled2": (whole - own) / (count * (count - 1))}


def values_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table errors of one unit: `value_error` of its policy; ten units make 20,480 continuations of
    a world.
    """
    size = SIZES[unit.setting.name]
    error = value_error(
        unit.policy, unit.task, size.held_out, size.continuations, unit.held_out_seed
    )
    return {"errors": pd.DataFrame([{"world": world_name(unit.setting.name), **error}])}


def world_rates_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables runs and edge of a world: the arms on its tuning policies at five rates, and
    permuted's way up there.
    """
    tuned = {"role": "tuning"} if unit.setting.name in WORLD_SCALES else {}
    units = [unit, *(StudyUnit(unit.setting.name, k, **tuned) for k in range(1, TUNED))]
    for other in units[1:]:
        other.loaded, other.parts = unit.loaded, unit.parts

    def rows(arm: str, lr: float) -> pd.DataFrame:
        made = [
            one.cached_table(f"{arm}-{lr:g}-{k}", partial(run_world_arm, one, arm, lr))
            for k, one in enumerate(units)
        ]
        return pd.concat(
            [table.assign(policy=k) for k, table in enumerate(made)], ignore_index=True
        )

    climb = []
    for lr in CLIMB:
        climb.append(rows(LOWER, lr))
        values = climb[-1].groupby("policy")["value"]
        if (values.min() <= COLLAPSED * values.first()).sum() > TUNED / 2:
            break
    runs = [
        rows(arm, climb[-1]["lr"][0] * 2.0**step) for arm in ARMS if arm != LOWER for step in LADDER
    ]
    return {
        name: pd.concat(parts, ignore_index=True)
        for name, parts in (("edge", climb), ("runs", runs))
    }


def worlds_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table runs of one unit: every arm at its own rate.

    Raises NotMeasured until the world's rates have been tuned.
    """
    rates = unit_rates(unit)
    made = [
        unit.cached_table(f"{arm}-{rates[arm]:g}", partial(run_world_arm, unit, arm, rates[arm]))
        for arm in ARMS
    ]
    return {"runs": pd.concat(made, ignore_index=True)}


def lasting_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table runs of one unit: the arms of LASTING at their own rates for 300 batches in place of
    32, read every twentieth."""
    return lasting_runs(unit, unit_rates(unit)[[*LASTING]].to_dict())


def plain_rate_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table runs of one unit: arms of `lasting_study` that see rewards, at plain's rate where their
    own is another.
    """
    rates = unit_rates(unit)
    # permuted's is plain's
    arms = [arm for arm in LASTING if arm not in REWARD_FREE and rates[arm] != rates[PLAIN]]
    return lasting_runs(unit, dict.fromkeys(arms, rates[PLAIN]))


def lasting_runs(unit: StudyUnit, rates: dict[str, float]) -> dict[str, pd.DataFrame]:
    """Table runs of one unit: an arm each at its rate for 300 batches."""
    size = SIZES[unit.setting.name]
    size = size._replace(batches=75 * size.batches // 8, every=5 * size.every)
    made = [
        unit.cached_table(f"{arm}-{lr:g}", partial(run_world_arm, unit, arm, lr, size))
        for arm, lr in rates.items()
    ]
    return {"runs": pd.concat(made, ignore_index=True)}


def unit_rates(unit: StudyUnit) -> pd.Series:
    """Each arm's own rate in a unit's world, permuted's that of plain; NotMeasured until they have
    been tuned.
    """
    rates = own_rates(load_measured("worlds_rates", unit.setting.name, "runs", unit.results))["lr"]
    rates[LOWER] = rates[PLAIN]
    return rates
