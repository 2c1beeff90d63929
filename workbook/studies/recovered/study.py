"""Study of credit recovered: one step at many settings, split into signal, noise and bias, own and
coupled.

Tables, a row per setting (axis, prompts, group_size, rule):

- shares (signal is that of the step's own prompts): of each token class, the six of
`credit_recovered` and change_rms;
- update: the same of the update itself, in the weights' space, with cosine (with the exact gradient
of these prompts),
  cosine_held_out (with that of other prompts), oracle_rollouts, and noise_per_signal, a ratio of
  squared lengths.

Settings are parts of two pools of rollouts, so that along an axis one thing changes and the rest
stays. Column draw: of the pools; one batch of a unit says little, so that a unit's number is the
mean over its draws.
"""

from dataclasses import dataclass
from itertools import product

import pandas as pd
import torch
from torch import Tensor

from workbook.probes.recovered import CreditRecovered, credit_recovered, exact_gradient
from workbook.probes.values import TokenValues, exact_values
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies.unit import StudyUnit

GROUP_SIZES = (2, 4, 8, 16, 32, 64)  # at PROMPTS prompts
PROMPT_COUNTS = (1, 4, 16, 64)  # at GROUP_SIZE rollouts
PROMPTS, GROUP_SIZE = 16, 8
_EQUAL = ((64, 2), (32, 4), (16, 8), (8, 16), (4, 32))  # prompts, rollouts: 128 in all
# known_credit goes by its registered name, oracle
RULES = ("grpo", "dr_grpo", "reinforce", "positive_only", "negative_only", "oracle", "permuted")
RULE = "grpo"
DRAWS = 4  # of the pools, in a unit
_MEASURED = 48  # tokens of each class, in as many rollouts
_HELD_OUT = 32  # prompts of the gradient that a step should have outside its batch
_SETTING = ["axis", "prompts", "group_size", "rule"]
SMALL = {
    "group_sizes": (2, 4),
    "prompt_counts": (1, 2),
    "equal": ((2, 2),),
    "rules": ("grpo", "oracle"),
}
SMALL |= {"base": (2, 2)}


@dataclass(frozen=True)
class _Pool:
    """Rollouts of some prompts, with their exact values, and the exact gradient of each prompt (P,
    D).
    """

    rollouts: Rollouts
    values: TokenValues
    gradients: Tensor

    def part(self, prompts: int, group_size: int) -> tuple[Rollouts, TokenValues, Tensor]:
        """The first rollouts of the first prompts' groups, their values and exact gradient."""
        group = self.rollouts.group_ids
        place = torch.arange(len(group)) - torch.searchsorted(group, group)
        rows = ((group < prompts) & (place < group_size)).nonzero().squeeze(1)
        return (
            self.rollouts.select(rows),
            self.values.select(rows),
            self.gradients[:prompts].mean(0),
        )


def pool(unit: StudyUnit, prompts: int, group_size: int, draw: int = 0) -> _Pool:
    """Fresh rollouts of a unit's training prompts, of other ones at every draw."""
    rows = unit.task.dataset(prompts * (draw + 1), unit.data_seed).select(
        range(prompts * draw, prompts * (draw + 1))
    )
    seed, length = unit.data_seed + 100_000 * draw, unit.setting.max_new_tokens
    rollouts = sample_rollouts(unit.policy, unit.task, rows, group_size, seed, length)
    gradients = torch.stack(
        [exact_gradient(unit.policy, unit.task, [prompt]) for prompt in rows["prompt"]]
    )
    return _Pool(rollouts, exact_values(unit.policy, unit.task, rollouts), gradients)


def recovered_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables shares and update of one unit: against group size, prompts, both at equal rollouts,
    and rule.
    """
    small = unit.setting.name == "tiny"
    return _tables(unit, *((settings(**SMALL), 4, 2) if small else (settings(), _HELD_OUT, DRAWS)))


def settings(
    group_sizes=GROUP_SIZES,
    prompt_counts=PROMPT_COUNTS,
    equal=_EQUAL,
    rules=RULES,
    base=(PROMPTS, GROUP_SIZE),
) -> list[tuple[str, int, int, str]]:
    """(axis, prompts, group size, rule) of every setting; several axes may share one."""
    prompts, group_size = base
    return [
        *(("group_size", prompts, size, RULE) for size in group_sizes),
        *(("prompts", count, group_size, RULE) for count in prompt_counts),
        *(("equal", count, size, RULE) for count, size in equal),
        *(("rule", prompts, group_size, rule) for rule in rules),
    ]


def _tables(
    unit: StudyUnit, wanted: list[tuple[str, int, int, str]], held_out: int, draws: int
) -> dict[str, pd.DataFrame]:
    """Tables shares and update: every setting's split, of a deep pool of few prompts or of a wide
    one of many.
    """
    other = unit.task.dataset(held_out, unit.held_out_seed)["prompt"]
    direction = exact_gradient(unit.policy, unit.task, list(other))
    keys = {key[1:] for key in wanted}
    sizes = {key[:2] for key in keys}
    most = min(max(size[0] for size in sizes), PROMPTS)
    deep = {size for size in sizes if size[0] <= most}
    shares, updates = [], []
    for part, draw in product((part for part in (deep, sizes - deep) if part), range(draws)):
        rollouts = pool(unit, *(max(sizes) for sizes in zip(*part, strict=True)), draw)
        for prompts, group_size, rule in sorted(key for key in keys if key[:2] in part):
            batch, values, exact = rollouts.part(prompts, group_size)
            known = {
                "values": values,
                "exact": exact,
                "tokens": _MEASURED,
                "seed": unit.number + 1000 * draw,
            }
            split = credit_recovered(unit.policy, batch, rule, **known)
            for axis in (
                axis for axis, *key in wanted if tuple(key) == (prompts, group_size, rule)
            ):
                setting = dict(zip(_SETTING, (axis, prompts, group_size, rule), strict=True)) | {
                    "draw": draw
                }
                shares.append(split.shares.assign(**setting))
                updates.append(setting | update_row(split, direction))
    order = [*_SETTING, "draw", "category"]
    return {
        "shares": (
            pd.concat(shares)[[*order, *(c for c in shares[0] if c not in order)]].reset_index(
                drop=True
            )
        ),
        "update": pd.DataFrame(updates),
    }


def update_row(recovered: CreditRecovered, held_out: Tensor) -> dict[str, float]:
    """The update's numbers, and its cosine with the direction that other prompts ask for."""
    parts = recovered.directions
    total = parts["signal"] + parts["bias"] + parts["noise"]
    signal, noise = float(parts["signal"].square().sum()), float(parts["noise"].square().sum())
    moves = recovered.update["cosine"] == recovered.update["cosine"]  # not NaN
    cosine = (
        float(torch.nn.functional.cosine_similarity(total, held_out, dim=0))
        if moves
        else float("nan")
    )
    return recovered.update | {
        "constant": recovered.scale,
        "cosine_held_out": cosine,
        "noise_per_signal": noise / signal if signal else float("nan"),
    }
