"""Claims of chapter 08: how mini-batches are cut (H11, H12, H13). Baseline is TRL's default, shuffled.

Stated before the sweep's results were looked at: sign-partitioned mini-batches cancel less inside a step than shuffled
ones (the mechanism), before training and in the runs, and learn less (the harm), averaged over optimizers, learning
rates and gradient clipping.  Query-preserved and reward-balanced ones learn more (they improve), with less jitter and
fewer collapses (they stabilize).
"""

from __future__ import annotations

from functools import partial

from workbook.statistics import Estimate, nested_estimate
from workbook.studies.claim import Claim, Measurement, Tables
from workbook.studies.paired import comparison

CELL = ["learning_rate", "max_grad_norm"]  # each optimizer has learning rates of its own
OUTCOMES = {"area": "area under the reward curve", "jitter": "jitter", "collapsed": "share of runs that collapse"}
CANCELS = "share of the gradient that cancels in a step"


def less_cancelled(tables: Tables, strategy: str, tokens: str = "all", outcome: str = "in_step") -> Estimate:
    """The outcome under a strategy minus that under shuffled mini-batches, over seeds and drawn orders."""
    table = tables["minibatches/steps"].query("tokens == @tokens")
    wide = table.pivot_table(index=["seed", "group"], columns="strategy", values=outcome).reset_index()
    return nested_estimate(wide.assign(less=wide[strategy] - wide["shuffled"]), "less", resamples=tables.resamples)


def against_shuffled(strategy: str, outcome: str, label: str, **threshold: float) -> Measurement:
    """What a strategy adds to an outcome of the batching sweep's runs, paired within each cell of its settings."""
    measure = comparison("batching", outcome, {"batching": strategy}, {"batching": "shuffled"}, by=CELL)
    return Measurement("batching", f"{strategy} - shuffled: {label}", measure, **threshold)


def stabilizing(strategy: str) -> list[Measurement]:
    """Measurements of a strategy that is said to improve GRPO and to stabilize it."""
    sides = {"area": {"above": 0}, "jitter": {"below": 0}, "collapsed": {"below": 0}}
    return [against_shuffled(strategy, outcome, OUTCOMES[outcome], **side) for outcome, side in sides.items()]


NO_BETTER = "it learns no more than shuffled mini-batches, or with no less jitter, or collapses no less often"
CLAIMS = [
    Claim(
        "H11",
        "mini-batches of one sign keep opposite pushes from cancelling inside a step, and hurt",
        "Fig 7",
        "as much cancels inside a step as with shuffled mini-batches, or as much is learned",
        [
            against_shuffled("sign_partitioned", "in_step", CANCELS, below=0),
            against_shuffled("sign_partitioned", "area", OUTCOMES["area"], below=0),
            Measurement(
                "minibatches",
                f"sign_partitioned - shuffled: {CANCELS}, before training",
                partial(less_cancelled, strategy="sign_partitioned"),
                below=0,
            ),
        ],
    ),
    Claim(
        "H12",
        "keeping a prompt's rollouts in one mini-batch stabilizes and improves GRPO",
        "Fig 8",
        NO_BETTER,
        stabilizing("query_preserved"),
    ),
    Claim(
        "H13",
        "balancing the signs in every mini-batch stabilizes and improves GRPO",
        "Fig 8",
        NO_BETTER,
        stabilizing("reward_balanced"),
    ),
]
