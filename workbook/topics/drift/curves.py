"""Curves over training: what each objective does to value, learning tax, odds, entropy, and to H's two mechanisms.

    table = training_curves(policy, task, ["PPO", "GSPO", "min-replace"], batches=8)

Paper D's training curves, and figure 10 of paper H over training, on a policy whose exact value is known. Every arm of
`arms` starts from the same policy and the same first rollouts, takes four optimizer steps on each generation batch of
128 rollouts (two mini-batches, two passes, so ratios differ from 1), at one learning rate and the clip range of its
kind. After each batch the policy is read on held-out prompts.

The study measures them over policies of the family at two places: groups of eight and the usual template
words; and pairs with template confidence 0.8, where a quarter of the gradient's energy is on tokens that a whole group
shares. What was stated before: data/results/training_curves/registration.yaml.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from workbook.policies.copies import private_copy
from workbook.probes.step import logp_change, matched_lr, output_layer_step, sign_agreement
from workbook.probes.values import cell_gap, exact_pool
from workbook.rollouts.sample import sample_rollouts
from workbook.studies.bench import Bench
from workbook.topics.drift.arms import ROLLOUTS, FreeWords, run_arm
from workbook.topics.drift.confidence import HELD_OUT_PROMPTS
from workbook.training.progress import progress

CURVES = "training_curves"  # name of the study
LR = 3e-4  # of all arms, so that they differ in their weights alone
STEP_NATS = 0.01  # root mean square movement of the small step that agreement and gap are read from
READ_PROMPTS, READ_SIZE = 16, 8  # held-out prompts of that step, and rollouts of each
AT_ONE_PLACE = ("group", "reward", "position")  # what boosted and suppressed tokens have in common (value_gap)
BATCHES, EVERY = 12, 2  # generation batches, and from one reading to the next
GROUPS, PAIRS = (8, 1.0), (2, 0.8)  # group size and template confidence of the two places
PLACES = {
    GROUPS: ("PPO", "PPO, symmetric", "GSPO", "min-replace", "min-replace, clamped", "orthogonal"),
    PAIRS: ("PPO", "GSPO", "min-replace"),
}
STEPPED = ("PPO", "GSPO")  # arms at GROUPS whose small step is read, too
TWINNED = ("GSPO",)  # arms with a twin of permuted advantages, at both places
TINY = {GROUPS: ("PPO", "GSPO")}
HELD_OUT_SEED = 8005  # of live curves' prompts: none of them is trained on, unless with a seed that is 5 modulo 8
COLUMNS = ["arm", "permuted", "group_size", "lr", "epsilon", "batch", "steps", "reward", "value", "tax", "free_tax"]
COLUMNS += ["odds", "style_entropy", "moved", "agreement, all", "agreement, moved", "gap"]


class StepReadings(FreeWords):
    """`FreeWords`, and what one small step of plain SGD on fresh rollouts of held-out prompts would do just then.

    "agreement, all" and "agreement, moved": how often the output layer alone predicts its sign (H4).  gap: exact value
    of boosted minus suppressed tokens at equal position in rollouts of one reward (H7).
    """

    def __init__(self, policy, task, held_out: list[str], seed: int = 0):
        self.seed, self.lr = seed, 1.0
        super().__init__(policy, task, held_out)

    def now(self, policy) -> dict[str, float]:
        """The readings of a later policy; NaN of the step where no fresh group has different rewards."""
        rows = [{"prompt": prompt, "answer": self.task.solve(prompt)} for prompt in self.held_out[:READ_PROMPTS]]
        rollouts = sample_rollouts(policy, self.task, rows, READ_SIZE, self.seed)
        read = {"agreement, all": np.nan, "agreement, moved": np.nan, "gap": np.nan}
        if rollouts.advantages.any():
            self.lr = matched_lr(policy, rollouts, "sgd", STEP_NATS, start=self.lr, tolerance=0.5)
            moved = logp_change(private_copy(policy), rollouts, "sgd", self.lr)
            alive = rollouts.completion_mask.bool()
            predicted = output_layer_step(policy, rollouts, self.lr)
            read = sign_agreement(moved[alive].cpu(), predicted.cpu())
            _, table = exact_pool(policy, self.task, rollouts)
            at = table["rollout"].to_numpy(), table["position"].to_numpy()
            read["gap"] = cell_gap(table.assign(dlogp=moved.double().cpu().numpy()[at]), AT_ONE_PLACE)
        return super().now(policy) | read


def training_curves(
    policy,
    task,
    arms: Sequence[str] = ("PPO", "GSPO", "min-replace"),
    batches: int = 8,
    group_size: int = 8,
    lr: float = LR,
    epsilon: float | None = None,
    seed: int = 0,
    permuted: bool = False,
    every: int = 1,
    readings: FreeWords | None = None,
) -> pd.DataFrame:
    """Train arms from one policy and read each after every few generation batches; the policy stays as it was.

    arms: of `arms.ARMS`; "PPO" has GRPO's token ratios and its one-sided clip, "GSPO" sequence ratios.  epsilon: half
    the clip range, by default each arm's own.  permuted: advantages permuted within their groups, so that nothing can
    be learned.  every: generation batches from one reading to the next.  readings: on held-out prompts, by default
    `FreeWords` on some of the task's.

    Columns: arm, permuted, group_size, lr, epsilon, batch (0 before the first), steps; reward, of the batch; value,
    exact, of held-out prompts; tax and free_tax (nats a word, of style words and of all free words); odds (nats, of
    equally right solutions); style_entropy (nats a word); moved (nats), and what `readings` adds.

    Raises ValueError for an unknown arm, and for groups that do not fill both mini-batches of 128 rollouts.
    """
    if group_size < 2 or ROLLOUTS % (2 * group_size):
        raise ValueError(
            f"group_size={group_size} must divide {ROLLOUTS // 2}, half of a batch's rollouts, and be 2 or more."
        )
    readings = readings or FreeWords(policy, task, task.dataset(HELD_OUT_PROMPTS, HELD_OUT_SEED)["prompt"][:])
    rate = {"lr": lr} if epsilon is None else {"lr": lr, "epsilon": epsilon}
    run = (group_size, seed, permuted, batches, every)
    tables = [run_arm(policy, task, readings, name, *run, **rate) for name in progress(list(arms), "objectives")]
    table = pd.concat(tables, ignore_index=True)
    return table[[name for name in COLUMNS if name in table]]


def training_curves_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """Table curves of one unit: `training_curves` at both places, GSPO with its twin of permuted advantages."""
    small, tables = bench.scale.name == "tiny", []
    for place, arms in (TINY if small else PLACES).items():
        here = bench if small else bench.dialled(confidence=place[1])
        settings = {"group_size": place[0], "seed": here.data_seed}
        settings |= {"batches": 2, "every": 1} if small else {"batches": BATCHES, "every": EVERY}
        held_out = here.task.dataset(READ_PROMPTS if small else HELD_OUT_PROMPTS, here.held_out_seed)["prompt"][:]
        plain = FreeWords(here.policy, here.task, held_out)
        stepped = StepReadings(here.policy, here.task, held_out, here.held_out_seed) if place == GROUPS else plain
        for name, permuted in [*((name, False) for name in arms), *((name, True) for name in TWINNED)]:
            readings = stepped if name in STEPPED and not permuted else plain
            run = training_curves(here.policy, here.task, [name], permuted=permuted, readings=readings, **settings)
            tables.append(run.assign(confidence=place[1]))
    return {"curves": pd.concat(tables, ignore_index=True)}
