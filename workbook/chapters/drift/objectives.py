"""Seven objectives in training, of which a group's weights are unequal or mended, and readings of
what they move.

The studies of chapter 09 measure them on many policies; its live study trains two on one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from workbook.messages import InvalidValue, progress, require_one_of
from workbook.probes.drift import learning_tax, odds_drift
from workbook.probes.readings import Readings
from workbook.probes.values import expected_reward
from workbook.training.loop import LoopConfig, train

ROLLOUTS = 128  # of a generation batch, whatever the group's size
LOOP = LoopConfig(batches=4, minibatches=2, epochs=2, order="query_preserved", rule="dr_grpo")
LR = 3e-4  # of all arms of curves over training, so that they differ in their weights alone
MIN_FREE_ENTROPY = 0.05  # nats: a word whose entropy at the start is above is a free choice
HELD_OUT_PROMPTS = 24
# of live curves' prompts: none of them is trained on, unless with a seed that is 5 modulo 8
HELD_OUT_SEED = 8005
_COLUMNS = [
    *("arm", "permuted", "group_size", "lr", "epsilon", "batch", "steps", "reward", "value", "tax"),
    *("free_tax", "odds", "style_entropy", "moved", "agreement, all", "agreement, moved", "gap"),
]


@dataclass(frozen=True)
class Arm:
    """One objective: its ratio's level, whether it is clipped, and how; transform and what that
    works on.

    Its weights are exchangeable within a group where there is a transform; lr, epsilon: as tuned on
    unit 100.
    """

    lr: float
    epsilon: float
    level: str = "sequence"
    clipped: bool = True
    clipping: str = "asymmetric"
    transform: str | None = None
    transform_on: str = "clipped_weights"

    def loop(
        self, group_size: int, lr: float, epsilon: float, permuted: bool = False
    ) -> LoopConfig:
        """The loop of a run of this arm, at 128 rollouts a batch; epsilon: of the clip range, where
        it has one.
        """
        return replace(
            LOOP,
            prompts=ROLLOUTS // group_size,
            group_size=group_size,
            lr=lr,
            level=self.level,
            clip=(epsilon, epsilon) if self.clipped else None,
            clipping=self.clipping,
            transform=self.transform,
            transform_on=self.transform_on,
            permuted=permuted,
        )


ARMS = {
    "GSPO": Arm(6e-4, 0.01),
    "clip off": Arm(3e-4, 0.01, clipped=False),
    "min-replace": Arm(6e-4, 0.01, transform="min_replace"),
    "min-replace, clamped": Arm(3e-4, 0.03, transform="min_replace", transform_on="clamped_ratios"),
    "orthogonal": Arm(6e-4, 0.03, transform="advantage_orthogonal"),
    "PPO": Arm(6e-4, 0.2, level="token"),
    "PPO, symmetric": Arm(6e-4, 0.2, level="token", clipping="symmetric"),
}


class FreeWords(Readings):
    """Readings of a chain policy with the movement of all free words: of style, and of templates
    that have a synonym.

    tax: mean KL of style words from the start; template_tax: of the free template words (NaN where
    none is free);
    free_tax: of both, per word; odds: mean |change of log-odds| between equivalent solutions; all
    in nats.
    """

    def now(self, policy) -> dict[str, float]:
        """The readings of a later policy."""
        report = self.drift.report(policy)
        free = report[
            (report["entropy_before"] > MIN_FREE_ENTROPY)
            & report["category"].isin(["style", "template"])
        ]
        style = learning_tax(report).mean()
        return {
            "value": float(expected_reward(policy, self.task, self.held_out).mean()),
            "tax": float(style["tax"]),
            "style_entropy": float(style["style_entropy"]),
            "template_tax": float(free.loc[free["category"] == "template", "kl"].mean()),
            "free_tax": float(free["kl"].mean()),
            "odds": float(odds_drift(report)["odds"].mean()),
        }


def run_arm(
    policy,
    task,
    readings: FreeWords,
    name: str,
    group_size: int,
    seed: int,
    permuted: bool = False,
    batches: int = LOOP.batches,
    every: int = 1,
    **rate: float,
) -> pd.DataFrame:
    """Train one arm in memory: the table of `train`, with the columns arm, permuted,
    group_size, lr, epsilon.

    every: generation batches from one reading to the next.  rate: lr and epsilon, where they are
    not the tuned ones.
    """
    require_one_of("arm", name, tuple(ARMS))
    rate = {"lr": ARMS[name].lr, "epsilon": ARMS[name].epsilon} | rate
    loop = replace(ARMS[name].loop(group_size, permuted=permuted, **rate), batches=batches)
    table = train(policy, task, loop, seed, readings, every)
    return table.assign(arm=name, permuted=permuted, group_size=group_size, **rate)


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
    """Train arms from one policy and read each after every few generation batches; the policy stays
    as it was.

    arms: of ARMS; "PPO" has GRPO's token ratios and its one-sided clip, "GSPO" sequence
    ratios.  epsilon: half the clip range, by default each arm's own.  permuted: advantages permuted
    within their groups, so that nothing can be learned.  readings: on held-out prompts, by default
    `FreeWords` on some of the task's.

    Columns: arm, permuted, group_size, lr, epsilon, batch (0 before the first), steps; reward, of
    the batch; moved (nats), and what `readings` gives.

    Raises ValueError for an unknown arm, and for groups that do not fill both mini-batches of 128
    rollouts.
    """
    if group_size < 2 or ROLLOUTS % (2 * group_size):
        raise InvalidValue(
            "group_size",
            group_size,
            f"a divisor of {ROLLOUTS // 2}, half of a batch's rollouts, and 2 or more",
        )
    readings = readings or FreeWords(
        policy, task, task.dataset(HELD_OUT_PROMPTS, HELD_OUT_SEED)["prompt"][:]
    )
    rate = {"lr": lr} if epsilon is None else {"lr": lr, "epsilon": epsilon}
    run = (group_size, seed, permuted, batches, every)
    tables = [
        run_arm(policy, task, readings, name, *run, **rate)
        for name in progress(list(arms), "objectives")
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[[name for name in _COLUMNS if name in table]]
