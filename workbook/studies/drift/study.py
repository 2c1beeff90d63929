"""Studies of exchangeable weights in training: `confidence`, `confidence_tuning` and
`training_curves`.

On the plane of the confidence p of template words (members of the family) and the group's size G,
`confidence` measures

- energy: the share of all energy on shared tokens (`probes.energy.shared_energy`);
- residuals: what each objective leaves on shared tokens when a batch is used again, and in the
policy's own gradients;
- runs: seven objectives in training (ARMS), each with a twin whose advantages are permuted within
their groups: it
  learns nothing, so what it moves is the price of noise, ratios and clip. All at G = 2 and p = 0.8,
  where a quarter of the energy is shared; GSPO and min-replace along p at G = 2, and along G at p =
  0.8 (twins at G = 8 alone).

A generation batch of 128 rollouts is cut into two mini-batches of whole groups and gone over twice,
so that ratios differ. `confidence_tuning` searches each arm's learning rate and clip range, on a
unit of its own; `training_curves` reads whole runs at one learning rate. Registrations:
data/results/unequal_weights/registration.yaml.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import torch

from workbook.chapters.drift.objectives import (
    ARMS,
    HELD_OUT_PROMPTS,
    LOOP,
    ROLLOUTS,
    FreeWords,
    run_arm,
    training_curves,
)
from workbook.policies.models import private_copy
from workbook.probes.energy import (
    residual_by_energy,
    shared_energy,
    shared_gradient,
    token_energy,
)
from workbook.probes.reuse import EQUAL_WEIGHTS, token_weights
from workbook.probes.step import MOVED, logp_change, matched_lr, output_layer_step, update
from workbook.probes.value_gaps import cell_gap
from workbook.probes.values import exact_pool
from workbook.rollouts.likelihood import logps
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies.unit import StudyUnit
from workbook.theory.advantages import group_advantages, shared_places
from workbook.training.optimizers import optimizer_of

DEAD = 0.5  # of the start's exact value: below, a run has collapsed
CONFIDENCES = (1.0, 0.95, 0.9, 0.8, 0.7)
GROUP_SIZES = (2, 4, 8, 16)
POINT = (2, 0.8)  # group size and confidence of the deciding rows
COMPARED = ("GSPO", "min-replace")  # the arms along both axes
PLACES = [(2, p) for p in (1.0, 0.7)] + [(size, 0.8) for size in (4, 8, 16)]
TWINNED = [POINT, (2, 1.0), (2, 0.7), (8, 0.8)]  # where arms have twins with permuted advantages
# of the steps on a batch before its residuals are read; all rollouts weigh the same
EPOCHS, REFERENCE_LR = 3, 3e-4
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
TUNING_BATCHES, RATE_GRID = 6, (3e-4, 6e-4, 1.2e-3)
CLIP_GRID = {"sequence": (0.003, 0.01, 0.03), "token": (0.05, 0.2)}

CURVES = "training_curves"
_STEP_NATS = (
    0.01  # root mean square movement of the small step that agreement and gap are read from
)
READ_PROMPTS, READ_SIZE = 16, 8  # held-out prompts of that step, and rollouts of each
# what boosted and suppressed tokens have in common (value_gap)
AT_ONE_PLACE = ("group", "reward", "position")
_BATCHES, _EVERY = 12, 2  # generation batches, and from one reading to the next
GROUPS, PAIRS = (8, 1.0), (2, 0.8)  # group size and template confidence of the two places
CURVE_ARMS = {
    GROUPS: ("PPO", "PPO, symmetric", "GSPO", "min-replace", "min-replace, clamped", "orthogonal"),
    PAIRS: ("PPO", "GSPO", "min-replace"),
}
# arms with a small step read at GROUPS; with a permuted twin
STEPPED, CURVES_TWINNED = ("PPO", "GSPO"), ("GSPO",)


# --- readings of one small step


class StepReadings(FreeWords):
    """`FreeWords`, and what one small step of plain SGD on fresh rollouts of held-out prompts would
    do just then.

    "agreement, all" and "agreement, moved" (beyond MOVED of the rms): how often the output layer
    alone predicts its sign (H4).  gap: exact value of boosted minus suppressed tokens at equal
    position in rollouts of one reward (H7). NaN where no group is mixed.
    """

    def __init__(self, policy, task, held_out: list[str], seed: int = 0):
        self.seed, self.lr = seed, 1.0
        super().__init__(policy, task, held_out)

    def now(self, policy) -> dict[str, float]:
        """The readings of a later policy."""
        rows = [
            {"prompt": prompt, "answer": self.task.solve(prompt)}
            for prompt in self.held_out[:READ_PROMPTS]
        ]
        rollouts = sample_rollouts(policy, self.task, rows, READ_SIZE, self.seed)
        read = {"agreement, all": np.nan, "agreement, moved": np.nan, "gap": np.nan}
        if rollouts.advantages.any():
            self.lr = matched_lr(policy, rollouts, "sgd", _STEP_NATS, start=self.lr, tolerance=0.5)
            moved = logp_change(private_copy(policy), rollouts, "sgd", self.lr)
            alive = rollouts.completion_mask.bool()
            predicted = output_layer_step(policy, rollouts, self.lr)
            change = moved[alive].double().cpu().numpy()
            agree = np.sign(change) == np.sign(predicted.cpu().numpy())
            far = np.abs(change) > MOVED * np.sqrt(np.mean(change**2))
            read = {
                "agreement, all": float(agree.mean()),
                "agreement, moved": float(agree[far].mean()),
            }
            _, table = exact_pool(policy, self.task, rollouts)
            at = table["rollout"].to_numpy(), table["position"].to_numpy()
            read["gap"] = cell_gap(
                table.assign(dlogp=moved.double().cpu().numpy()[at]), AT_ONE_PLACE
            )
        return super().now(policy) | read


# --- the studies


def confidence_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables energy, residuals and runs of one unit."""
    energy, residuals, runs = [], [], []
    for confidence in CONFIDENCES:
        here = unit.dialled(confidence=confidence)
        # smaller groups are parts of the same rollouts
        rollouts = _sampled(here, max(GROUP_SIZES), prompts=16)
        for size in GROUP_SIZES:
            ids = torch.arange(len(rollouts)) // size
            advantages = group_advantages(rollouts.rewards, ids, estimator="dr_grpo")
            table = shared_energy(
                here.policy, replace(rollouts, group_ids=ids, advantages=advantages)
            )
            energy.append(table.assign(confidence=confidence, group_size=size))
    places = [(POINT[0], p) for p in CONFIDENCES] + [
        (size, POINT[1]) for size in GROUP_SIZES if size != POINT[0]
    ]
    for size, confidence in places:
        here = unit.dialled(confidence=confidence)
        table = objective_residuals(here.policy, _sampled(here, size))
        residuals.append(table.assign(confidence=confidence, group_size=size))
    for (size, confidence), arms in [(POINT, ARMS), *((place, COMPARED) for place in PLACES)]:
        here = unit.dialled(confidence=confidence)
        readings = readings_of(here)
        for name in arms:
            for permuted in (False, True) if (size, confidence) in TWINNED else (False,):
                run = run_arm(
                    here.policy, here.task, readings, name, size, here.data_seed, permuted
                )
                runs.append(
                    run.assign(confidence=confidence).drop(
                        columns=["sign_cosine", "sampled_tokens"]
                    )
                )
    tables = {"energy": energy, "residuals": residuals, "runs": runs}
    return {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}


def _sampled(unit: StudyUnit, group_size: int, prompts: int | None = None) -> Rollouts:
    prompts, length = prompts or ROLLOUTS // group_size, unit.setting.max_new_tokens
    return sample_rollouts(
        unit.policy, unit.task, prompts, group_size, unit.data_seed, length, estimator="dr_grpo"
    )


def objective_residuals(
    policy, rollouts: Rollouts, epochs: int = EPOCHS, lr: float = REFERENCE_LR
) -> pd.DataFrame:
    """Residual that every objective leaves on shared tokens, after so many epochs on a batch in two
    halves.

    In these epochs all rollouts weigh the same, so all objectives are asked about one and the same
    movement.

    A row for each of OBJECTIVES, and "equal weights", before the first step. Columns objective;
    residual, weighted by energy; stopped, the share of shared tokens' energy with weight 0;
    gradient, the residual of the shared tokens' update in all the policy's weights
    (`shared_gradient`), of equal weights and BY_GRADIENT, by the first 32 rollouts; drift, rms
    log-ratio of the batch (nats).
    """
    alive = rollouts.completion_mask.bool()
    shared = shared_places(rollouts.completion_ids, alive, rollouts.group_ids) & alive
    energy, _ = token_energy(policy, rollouts)
    equal, few = alive.to(rollouts.old_logps.dtype), slice(GRADIENT_ROLLOUTS)

    def by_gradient(weights, policy) -> float:
        return shared_gradient(policy, rollouts.select(few), weights[few], shared[few])

    rows = [
        (
            EQUAL_WEIGHTS,
            residual_by_energy(rollouts, equal, energy, shared),
            0.0,
            by_gradient(equal, policy),
            0.0,
        )
    ]
    halves = [
        rollouts.select(torch.isin(rollouts.group_ids, half))
        for half in rollouts.group_ids.unique().chunk(2)
    ]
    mine = private_copy(policy)
    stepper = optimizer_of(mine, LOOP.optimizer, lr)
    for part in halves * epochs:
        update(mine, part, stepper)
    now = logps(mine, rollouts)
    drift = float((now - rollouts.old_logps)[alive].square().mean().sqrt())
    for name, objective in OBJECTIVES.items():
        weights = token_weights(rollouts, now, *objective)
        stopped = float((energy * shared * (weights == 0)).sum() / (energy * shared).sum())
        own = by_gradient(weights, mine) if name in BY_GRADIENT else float("nan")
        rows.append(
            (name, residual_by_energy(rollouts, weights, energy, shared), stopped, own, drift)
        )
    return pd.DataFrame(rows, columns=["objective", "residual", "stopped", "gradient", "drift"])


def readings_of(unit: StudyUnit) -> FreeWords:
    """Readings on the unit's held-out prompts."""
    return FreeWords(
        unit.policy,
        unit.task,
        unit.task.dataset(HELD_OUT_PROMPTS, unit.held_out_seed)["prompt"][:],
    )


def tuning_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table rates of one unit: every arm at the deciding point, at each learning rate and clip
    range of the grids.

    Columns arm, lr, epsilon, final (exact held-out value at the end), lowest (the least along the
    run, as a share of the start's).
    """
    size, confidence = POINT
    here = unit.dialled(confidence=confidence)
    readings, rows = readings_of(here), []
    for name, arm in ARMS.items():
        for lr in RATE_GRID:
            for epsilon in CLIP_GRID[arm.level] if arm.clipped else (arm.epsilon,):
                settings = {"batches": TUNING_BATCHES, "lr": lr, "epsilon": epsilon}
                run = run_arm(
                    here.policy, here.task, readings, name, size, here.data_seed, **settings
                )
                value = run["value"]
                rows.append((name, lr, epsilon, value.iloc[-1], value.min() / value.iloc[0]))
    return {"rates": pd.DataFrame(rows, columns=["arm", "lr", "epsilon", "final", "lowest"])}


def training_curves_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table curves of one unit: `training_curves` at both places, GSPO with its twin of permuted
    advantages.
    """
    small, tables = unit.setting.name == "tiny", []
    for place, arms in ({GROUPS: STEPPED} if small else CURVE_ARMS).items():
        here = unit if small else unit.dialled(confidence=place[1])
        settings = {"group_size": place[0], "seed": here.data_seed}
        settings |= {"batches": 2, "every": 1} if small else {"batches": _BATCHES, "every": _EVERY}
        held_out = here.task.dataset(
            READ_PROMPTS if small else HELD_OUT_PROMPTS, here.held_out_seed
        )["prompt"][:]
        plain = FreeWords(here.policy, here.task, held_out)
        stepped = (
            StepReadings(here.policy, here.task, held_out, here.held_out_seed)
            if place == GROUPS
            else plain
        )
        for name, permuted in [
            *((name, False) for name in arms),
            *((name, True) for name in CURVES_TWINNED),
        ]:
            readings = stepped if name in STEPPED and not permuted else plain
            run = training_curves(
                here.policy, here.task, [name], permuted=permuted, readings=readings, **settings
            )
            tables.append(run.assign(confidence=place[1]))
    return {"curves": pd.concat(tables, ignore_index=True)}
