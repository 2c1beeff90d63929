"""The study `confidence`: what exchangeable weights can change, by what a group shares; and what they do change.

Paper D speaks of tokens that a whole group shares. Two dials say how much of a batch's gradient energy those have: the
confidence p of template words (members of the family) and the group's size G (`energy`). On that plane are measured

- energy: the share of all energy on shared tokens, for every p and G, beside what probabilities predict;
- residuals: what each objective leaves on shared tokens when a batch is used again, weighted by energy, and in the
  policy's own gradients;
- runs: the arms of `arms`, each with its twin of permuted advantages. All seven at G = 2 and p = 0.8, where a quarter
  of the energy is shared; GSPO and min-replace along p at G = 2, and along G at p = 0.8 (twins at G = 8 alone).

`confidence_tuning` is the search for each arm's learning rate and clip range, on a unit of its own. What was stated
before the first measured unit: data/results/confidence/registration.yaml.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import torch

from workbook.policies.copies import private_copy
from workbook.probes.step import logps, optimizer_of, update
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies.bench import Bench
from workbook.theory.advantages import group_advantages
from workbook.theory.groups import shared_places
from workbook.topics.drift.arms import ARMS, DEAD, LOOP, RATES, ROLLOUTS, FreeWords, run_arm
from workbook.topics.drift.energy import residual_by_energy, shared_energy, shared_gradient, token_energy
from workbook.topics.drift.probe import objective_weights

CONFIDENCES = (1.0, 0.95, 0.9, 0.8, 0.7)
GROUP_SIZES = (2, 4, 8, 16)
POINT = (2, 0.8)  # group size and confidence of the deciding rows
COMPARED = ("GSPO", "min-replace")  # the arms along both axes
PLACES = [(2, p) for p in (1.0, 0.7)] + [(size, 0.8) for size in (4, 8, 16)]
TWINNED = [POINT, (2, 1.0), (2, 0.7), (8, 0.8)]  # where arms have twins with permuted advantages
TUNING_BATCHES = 6
HELD_OUT_PROMPTS = 24
EPOCHS = 3  # on a batch, before its residuals are read
REFERENCE_LR = 3e-4  # of the steps in which all rollouts weigh the same
OBJECTIVES = {  # level, clipping, epsilon, transform
    "token ratio": ("token", "none", 0.2, "none"),
    "sequence ratio": ("sequence", "none", 0.01, "none"),
    "PPO's clip, 0.2": ("token", "asymmetric", 0.2, "none"),
    "token, clipped": ("token", "asymmetric", 0.01, "none"),
    "token, symmetric": ("token", "symmetric", 0.01, "none"),
    "sequence, clipped": ("sequence", "asymmetric", 0.01, "none"),
    "sequence, symmetric": ("sequence", "symmetric", 0.01, "none"),
    "min-replace": ("sequence", "none", 0.01, "min_replace"),
    "orthogonal": ("sequence", "none", 0.01, "advantage_orthogonal"),
}
BY_GRADIENT = ("sequence ratio", "sequence, clipped", "min-replace", "orthogonal")
GRADIENT_ROLLOUTS = 32  # of a batch, whose gradients are taken one by one
AS_GOOD = 0.01  # of exact value: nearer to the best setting than what one unit can tell
RATE_GRID = (3e-4, 6e-4, 1.2e-3)
CLIP_GRID = {"sequence": (0.003, 0.01, 0.03), "token": (0.05, 0.2)}


def confidence_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Tables energy, residuals and runs of one unit."""
    return {"energy": energy_table(bench), "residuals": residual_table(bench), "runs": run_table(bench)}


# --- what a group shares


def energy_table(bench: Bench) -> pd.DataFrame:
    """`shared_energy` for every confidence and group size: columns confidence, group_size and those.

    The smaller groups are parts of the same rollouts, 16 of each of 16 prompts.
    """
    tables = []
    for confidence in CONFIDENCES:
        here = bench.dialled(confidence=confidence)
        rollouts = _sampled(here, max(GROUP_SIZES), prompts=16)
        for size in GROUP_SIZES:
            table = shared_energy(here.policy, regrouped(rollouts, size))
            tables.append(table.assign(confidence=confidence, group_size=size))
    return pd.concat(tables, ignore_index=True)


def regrouped(rollouts: Rollouts, size: int) -> Rollouts:
    """The same rollouts in groups of `size`, which follow one another, with Dr. GRPO's advantages."""
    ids = torch.arange(len(rollouts)) // size
    return replace(rollouts, group_ids=ids, advantages=group_advantages(rollouts.rewards, ids, estimator="dr_grpo"))


def _sampled(bench: Bench, group_size: int, prompts: int | None = None) -> Rollouts:
    prompts = prompts or ROLLOUTS // group_size
    length = bench.scale.max_new_tokens
    return sample_rollouts(bench.policy, bench.task, prompts, group_size, bench.data_seed, length, estimator="dr_grpo")


# --- what an objective leaves on it


def residual_table(bench: Bench) -> pd.DataFrame:
    """Residuals on shared tokens for every confidence in groups of 2, and for every group size at confidence 0.8.

    Columns confidence, group_size, drift (rms log-ratio, nats) and those of `objective_residuals`.
    """
    places = [(POINT[0], p) for p in CONFIDENCES] + [(size, POINT[1]) for size in GROUP_SIZES if size != POINT[0]]
    tables = []
    for size, confidence in places:
        here = bench.dialled(confidence=confidence)
        table = objective_residuals(here.policy, _sampled(here, size))
        tables.append(table.assign(confidence=confidence, group_size=size))
    return pd.concat(tables, ignore_index=True)


def objective_residuals(policy, rollouts: Rollouts, epochs: int = EPOCHS, lr: float = REFERENCE_LR) -> pd.DataFrame:
    """Residual that every objective leaves on shared tokens, after so many epochs on a batch in two halves.

    In these epochs all rollouts weigh the same, so all objectives are asked about one and the same movement.

    A row for each of OBJECTIVES, and "equal weights", before the first step. Columns objective; residual, weighted by
    energy; stopped, the share of shared tokens' energy with weight 0; gradient, the residual of the shared tokens'
    update in all the policy's weights (`shared_gradient`), of equal weights and BY_GRADIENT, by the first 32 rollouts;
    drift, rms log-ratio of the batch (nats).
    """
    alive = rollouts.completion_mask.bool()
    shared = shared_places(rollouts.completion_ids, alive, rollouts.group_ids) & alive
    energy, _ = token_energy(policy, rollouts)
    equal, few = alive.to(rollouts.old_logps.dtype), slice(GRADIENT_ROLLOUTS)

    def by_gradient(weights, policy) -> float:
        return shared_gradient(policy, rollouts.select(few), weights[few], shared[few])

    rows = [
        ("equal weights", residual_by_energy(rollouts, equal, energy, shared), 0.0, by_gradient(equal, policy), 0.0)
    ]
    mine = private_copy(policy)
    stepper = optimizer_of(mine, LOOP.optimizer, lr)
    for part in [part for _ in range(epochs) for part in _halves(rollouts)]:
        update(mine, part, stepper)
    now = logps(mine, rollouts)
    drift = float((now - rollouts.old_logps)[alive].square().mean().sqrt())
    for name, objective in OBJECTIVES.items():
        weights = objective_weights(rollouts, now, *objective)
        stopped = float((energy * shared * (weights == 0)).sum() / (energy * shared).sum())
        own = by_gradient(weights, mine) if name in BY_GRADIENT else float("nan")
        rows.append((name, residual_by_energy(rollouts, weights, energy, shared), stopped, own, drift))
    return pd.DataFrame(rows, columns=["objective", "residual", "stopped", "gradient", "drift"])


def _halves(rollouts: Rollouts) -> list[Rollouts]:
    groups = rollouts.group_ids.unique()
    return [rollouts.select(torch.isin(rollouts.group_ids, half)) for half in groups.chunk(2)]


# --- what that does to training


def run_table(bench: Bench) -> pd.DataFrame:
    """Runs of all arms at the deciding point, and of two along each axis, each with its twin: columns of `run_arm`.

    Column confidence; a row per generation batch and one before the first.
    """
    tables = _runs(bench, *POINT, ARMS)
    for place in PLACES:
        tables += _runs(bench, *place, COMPARED)
    return pd.concat(tables, ignore_index=True).drop(columns=["sign_cosine", "sampled_tokens"])


def _runs(bench: Bench, group_size: int, confidence: float, arms) -> list[pd.DataFrame]:
    here = bench.dialled(confidence=confidence)
    readings, tables = readings_of(here), []
    for name in arms:
        for permuted in (False, True) if (group_size, confidence) in TWINNED else (False,):
            run = run_arm(here.policy, here.task, readings, name, group_size, here.data_seed, permuted)
            tables.append(run.assign(confidence=confidence))
    return tables


def readings_of(bench: Bench, prompts: int = HELD_OUT_PROMPTS) -> FreeWords:
    """Readings on the unit's held-out prompts."""
    held_out = bench.task.dataset(prompts, bench.held_out_seed)["prompt"][:]
    return FreeWords(bench.policy, bench.task, held_out)


# --- each arm's rate and clip


def tuning_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Table rates of one unit: every arm at the deciding point, at each learning rate and clip range of the grids.

    Columns arm, lr, epsilon, final (exact held-out value at the end), lowest (the least along the run, as a share of
    the start's).
    """
    size, confidence = POINT
    here = bench.dialled(confidence=confidence)
    readings, rows = readings_of(here), []
    for name, arm in ARMS.items():
        for lr in RATE_GRID:
            for epsilon in CLIP_GRID[arm.level] if arm.clipped else (RATES[name][1],):
                settings = {"batches": TUNING_BATCHES, "lr": lr, "epsilon": epsilon}
                run = run_arm(here.policy, here.task, readings, name, size, here.data_seed, **settings)
                value = run["value"]
                rows.append((name, lr, epsilon, value.iloc[-1], value.min() / value.iloc[0]))
    return {"rates": pd.DataFrame(rows, columns=["arm", "lr", "epsilon", "final", "lowest"])}


def best_rates(rates: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Learning rate and clip range of each arm: the calmest within 0.01 of the best final value.

    A setting in which a run collapsed is not taken.  Raises ValueError where an arm collapsed in all of them.
    """
    whole = rates.groupby(["arm", "lr", "epsilon"]).agg(final=("final", "mean"), lowest=("lowest", "min"))
    alive = whole[whole["lowest"] >= DEAD].reset_index()
    if dead := sorted(set(rates["arm"]) - set(alive["arm"])):
        raise ValueError(f"{dead[0]} collapsed at every learning rate and clip range that was tried.")
    good = alive[alive["final"] >= alive.groupby("arm")["final"].transform("max") - AS_GOOD]
    best = good.sort_values(["lr", "final"], ascending=[True, False]).drop_duplicates("arm").set_index("arm")
    return {name: (float(best.loc[name, "lr"]), float(best.loc[name, "epsilon"])) for name in rates["arm"].unique()}
