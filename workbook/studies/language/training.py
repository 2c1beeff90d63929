"""Studies `smollm2_rates` and `smollm2_training`: rules on tuned language models, each at a rate
tuned on others.

At the scale "smollm2:sums" plain group advantages (dr_grpo), positive-only, entropy minimisation,
which sees no reward, and permuted rewards; at "smollm2:ramble", whose wrong answers go on, a
constant (dr_grpo) against 1/T ("length"). A unit is one stream: a policy, its training prompts and
its draws. A run is 40 batches of 4 prompts x 8 rollouts, one AdamW step each, on-policy, of new
adapters on queries and values; `training.loop` takes such a policy as it is, so TRL is not
needed. Rates: of LADDER the one that gets half-way with the fewest tokens on two
other policies of sums within 20 batches (`half_way.own_rates`); permuted, and both arms at
ramble, whose policies are those of sums trained on, run at plain's.

Table runs, a row per reading: arm, lr, what `train` reads with `SampledReadings`; of
rates also policy.
"""

from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import pandas as pd
from jaxtyping import Float
from torch import Tensor

from workbook.app.half_way import LOWER, PLAIN, own_rates
from workbook.policies.load import load_policy
from workbook.policies.tuned import on_q_and_v
from workbook.probes.readings import PASS_TRIES, Readings
from workbook.rollouts.sample import sample_rollouts
from workbook.studies.record import load_measured
from workbook.studies.unit import StudyUnit
from workbook.studies.worlds.questions import by_length
from workbook.training.loop import LoopConfig, train

# plain advantages times mean T / T_i, as loss type grpo weighs a completion's tokens
LENGTH = "length"
PROMPTS, _GROUP_SIZE, _TUNED = 4, 8, 2  # of a batch; policies that rates are tuned on
LADDER = (3e-4, 1e-3, 3e-3)
_KEPT = [
    "batch",
    "value",
    "reward",
    "grad_norm",
    "moved",
    "tax",
    "style_entropy",
    "pass_at_8",
    "logp_right",
]
_KEPT += ["entropy", "length", "right_length", "wrong_length", "sampled_tokens", "seconds"]


class TrainingSizes(NamedTuple):
    """Arms, generation batches of a run and of one that tunes, from one reading to the next,
    held-out prompts.
    """

    arms: tuple[str, ...] = (PLAIN, "positive_only", "entropy_minimization", LOWER)
    batches: int = 40
    tuning: int = 20
    every: int = 10
    held_out: int = 24


SIZES = {"smollm2:sums": TrainingSizes(), "smollm2:ramble": TrainingSizes((PLAIN, LENGTH))}


class SampledReadings(Readings):
    """Readings of a task without exact values: PASS_TRIES completions of each held-out prompt.

    value: mean reward.  pass_at_8: share of prompts with a right one among the eight.  entropy:
    mean over their tokens, nats; length, right_length, wrong_length: mean tokens of completions, of
    right and of wrong ones (NaN without any). Draws are of one seed at every reading. The others
    are those of `Readings`.
    """

    def __init__(self, policy, task, held_out: list[str], seed: int, longest: int):
        self.rows = [{"prompt": prompt, "answer": task.solve(prompt)} for prompt in held_out]
        self.seed, self.longest = seed, longest
        super().__init__(policy, task, held_out)

    def now(self, policy) -> dict[str, float]:
        """The readings of a later policy."""
        self.rollouts = sampled = sample_rollouts(
            policy, self.task, self.rows, PASS_TRIES, self.seed, self.longest
        )
        lengths, right = sampled.completion_mask.sum(1).float(), sampled.rewards > 0
        read = {
            "pass_at_8": right.view(-1, PASS_TRIES).any(1).float().mean(),
            "length": lengths.mean(),
        }
        read |= {"right_length": lengths[right].mean(), "wrong_length": lengths[~right].mean()}
        read |= {"entropy": sampled.entropies[sampled.completion_mask.bool()].mean()}
        return super().now(policy) | {name: float(number) for name, number in read.items()}

    def values(self, policy) -> Float[Tensor, " P"]:
        """Mean reward of each held-out prompt."""
        return self.rollouts.rewards.view(-1, PASS_TRIES).mean(1)


def _trained(
    unit: StudyUnit, runs: Sequence[tuple[str, float]], batches: int, name: str = ""
) -> pd.DataFrame:
    """Readings of a run of each (arm, rate) from a unit's policy; parts of an interrupted unit are
    kept run by run.
    """
    size = SIZES[unit.setting.name]

    @cache
    def start():
        policy = load_policy(unit.setting.policy, lora=on_q_and_v(), seed=unit.number)
        unit.loaded[unit.setting.policy] = policy.provenance["sha256"]
        held_out = unit.task.dataset(size.held_out, unit.held_out_seed)["prompt"][:]
        read = (policy, unit.task, held_out, unit.held_out_seed, unit.setting.max_new_tokens)
        return policy, SampledReadings(*read)

    def run(arm: str, lr: float) -> pd.DataFrame:
        policy, readings = start()
        sizes = {
            "prompts": PROMPTS,
            "group_size": _GROUP_SIZE,
            "max_new_tokens": unit.setting.max_new_tokens,
        }
        loop = LoopConfig(**sizes, batches=batches, lr=lr, rule=by_length if arm == LENGTH else arm)
        made = train(policy, unit.task, loop, unit.data_seed, readings, size.every)
        return made[_KEPT].assign(arm=arm, lr=lr)

    made = [unit.cached_table(f"{arm}-{lr:g}{name}", partial(run, arm, lr)) for arm, lr in runs]
    return pd.concat(made, ignore_index=True)


def language_rates_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table runs of a scale: its arms at the rates of LADDER, on its tuning policies."""
    size = SIZES[unit.setting.name]
    runs = [(arm, lr) for arm in size.arms if arm not in (LOWER, LENGTH) for lr in LADDER]
    units = [unit, *(StudyUnit(unit.setting.name, k, "tuning") for k in range(1, _TUNED))]
    for other in units:
        other.loaded, other.parts = unit.loaded, unit.parts
    made = [
        _trained(one, runs, size.tuning, f"-{k}").assign(policy=k) for k, one in enumerate(units)
    ]
    return {"runs": pd.concat(made, ignore_index=True)}


def training_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table runs of one unit: every arm of its scale at its own rate; NotMeasured until rates have
    been tuned.
    """
    size = SIZES[unit.setting.name]
    rates = own_rates(load_measured("smollm2_rates", "smollm2:sums", "runs", unit.results))["lr"]
    return {
        "runs": _trained(
            unit, [(arm, rates.get(arm, rates[PLAIN])) for arm in size.arms], size.batches
        )
    }
