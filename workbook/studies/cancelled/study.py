"""Study cancelled: the cancelled share against rollouts of one prompt and against prompts of 8
rollouts.

Tables of a unit:

- sums: `PushRows.sums` by curve ("prompts", "rollouts"), size (of it), rewards ("by reward",
"permuted"), and its keys
- products: `sign_products` of single prompts, a row per group, size and tokens ("all", "shared
words")
- steps: `set_sums` of parts that real steps leave out, by nats and order, with miss2 and real2, of
which the error is
- tokens: of the first KEPT_TOKENS units the parts of single tokens at 64 prompts, from which an
audit reckons shares
- rows: how many rows, prompts and tokens it rests on

What was registered: data/results/pairs/registration.yaml. On language models a row is a prompt's
rollouts of one sign, rewards are not permuted, and there is no curve over rollouts: described only.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from workbook.probes.cancellation import (
    PUSHER_PARTS,
    PushRows,
    left_out,
    prompt_rows,
    rollout_rows,
    set_sums,
    sign_products,
)
from workbook.probes.categories import categorized
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.studies.unit import StudyUnit, distinct_rollouts
from workbook.theory.coupling import NEARLY_CERTAIN

REWARDS = ("by reward", "permuted")
GROUP = 8  # rollouts of a prompt at which the measured tokens are chosen
DRAWS, PERMUTATIONS = 8, 8  # of the other prompts, and of rewards
NATS = (1e-3, 1e-2, 1e-1)
KEPT_TOKENS, LAID_OUT = 3, 64  # units whose single tokens are kept, and the prompts of their step
_KEPT = [
    "group",
    "rollout",
    "position",
    "token_id",
    "logp",
    "category",
    "credit",
    "sign",
    *PUSHER_PARTS,
]
BY = ["curve", "size", "rewards", "identity", "kind"]


class CancelledSizes(NamedTuple):
    """Prompts sampled, measured, that push by themselves, in a bundle, of the curve over rollouts;
    most rollouts.
    """

    prompts: int
    measured: int
    alone: int
    bundle: int
    deep: int
    rollouts: int
    stepped: int  # prompts whose parts are left out of real steps
    by: str = "rollout"


SIZES = {
    "tiny": CancelledSizes(16, 3, 4, 2, 2, 16, 1),
    "family": CancelledSizes(360, 20, LAID_OUT, 16, 12, 512, 4),
    "smollm2_plain": CancelledSizes(40, 8, 16, 64, 2, GROUP, 1, "sign"),
    "gemma3_plain": CancelledSizes(24, 8, 8, 64, 0, GROUP, 1, "sign"),
}


def cancelled_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """The tables of one unit, as the module's head says."""
    size, on_chain = SIZES[unit.setting.name], unit.setting.task == "chain"
    sampled = (
        unit.sample(size.prompts, unit.data_seed)
        if on_chain
        else distinct_rollouts(unit, size.prompts)
    )
    rollouts = categorized(sampled)
    rows = prompt_rows(unit.policy, rollouts, size.measured, size.alone, size.bundle, size.by)
    deep = deep_prompts(unit, size) if size.deep else []
    sums, more = [prompts_curve(rows, permuted=on_chain)], {}
    if size.rollouts > GROUP:
        sums += [
            rollouts_curve(rollout_rows(unit.policy, one, GROUP), size.rollouts) for one in deep
        ]
    if deep:
        products = [
            both_products(unit.policy, one, size.rollouts).assign(group=k)
            for k, one in enumerate(deep)
        ]
        more["products"] = pd.concat(products, ignore_index=True)
    if on_chain and unit.number < KEPT_TOKENS:
        more["tokens"] = single_tokens(rows)
    facts = {
        "rows": len(rows.blocks.blocks),
        "prompts": rows.blocks.prompts,
        "tokens": len(rows.tokens),
    }
    tables = {
        "sums": pd.concat(sums).groupby(BY, sort=False).sum().reset_index(),
        "steps": real_steps(unit.policy, rollouts, rows, size.stepped),
        "rows": pd.DataFrame([facts | {"reward": float(rollouts.rewards.mean())}]),
    }
    return tables | more


def powers(most: int, least: int = 1) -> list[int]:
    """The powers of 2 from least to most."""
    return [2**k for k in range(most.bit_length()) if least <= 2**k <= most]


def deep_prompts(unit: StudyUnit, size: CancelledSizes) -> list[Rollouts]:
    """Many rollouts of held-out prompts, one by one, whose first GROUP rollouts have different
    rewards.
    """
    prompts, length = unit.task.dataset(size.deep, unit.held_out_seed), unit.setting.max_new_tokens
    whole = sample_rollouts(
        unit.policy, unit.task, prompts, size.rollouts, unit.held_out_seed, length
    )
    each = [categorized(whole).select(whole.group_ids == group) for group in range(len(prompts))]
    return [one for one in each if one.rewards[:GROUP].unique().numel() > 1]


def prompts_curve(rows: PushRows, permuted: bool = True) -> pd.DataFrame:
    """Sums over prompts per step: DRAWS draws of the others; with rewards permuted as far as
    measured prompts reach.
    """
    made, weights = [], rows.weights()
    for size in powers(rows.blocks.prompts):
        made += [
            rows.sums(weights, size, draw).assign(size=size, rewards=REWARDS[0])
            for draw in range(DRAWS)
        ]
    for k in range(PERMUTATIONS if permuted else 0):
        shuffled = rows.weights(permuted=k)
        made += [
            rows.sums(shuffled, n, k).assign(size=n, rewards=REWARDS[1])
            for n in powers(len(rows.groups))
        ]
    return pd.concat(made).assign(curve="prompts")


def rollouts_curve(rows: PushRows, most: int) -> pd.DataFrame:
    """Sums over rollouts of one prompt that pushes alone; rewards are permuted where every rollout
    has a row.
    """
    single = int(rows.blocks.blocks["rollouts"].eq(1).sum())
    made = [
        rows.sums(rows.weights(n)).assign(size=n, rewards=REWARDS[0]) for n in powers(most, GROUP)
    ]
    for n in powers(min(single, most), GROUP):
        made += [
            rows.sums(rows.weights(n, k)).assign(size=n, rewards=REWARDS[1])
            for k in range(PERMUTATIONS)
        ]
    return pd.concat(made).assign(curve="rollouts")


def both_products(policy, rollouts: Rollouts, most: int) -> pd.DataFrame:
    """`sign_products` of one prompt, of all tokens and of unsure words that both signs share among
    GROUP rollouts.
    """
    ids, alive = rollouts.completion_ids, rollouts.completion_mask.bool()
    unsure = rollouts.old_logps < np.log(NEARLY_CERTAIN)
    good = rollouts.rewards[:GROUP] > rollouts.rewards[:GROUP].mean()
    bearers = [torch.isin(ids, ids[:GROUP][one][alive[:GROUP][one]]) for one in (good, ~good)]
    parts = {"all": None, "shared words": unsure & bearers[0] & bearers[1]}
    made = [
        sign_products(policy, rollouts, powers(most, GROUP), one).assign(tokens=name)
        for name, one in parts.items()
    ]
    return pd.concat(made)


def real_steps(policy, rollouts: Rollouts, rows: PushRows, prompts: int) -> pd.DataFrame:
    """Sums of parts by leaving out, of some prompts beside all others that are measured: nats,
    order, kind, ...
    """
    made = []
    for group in rows.groups[:prompts]:
        tables = left_out(
            policy, rollouts, rows, group, [one for one in rows.groups if one != group], NATS
        )
        for (nats, order), parts in tables.items():
            seen = parts[rows.tokens["unsure"].to_numpy()[parts.index]]
            miss = seen[[*PUSHER_PARTS]].sum(axis=1) - seen["real"]
            about = {
                "nats": nats,
                "order": order,
                "miss2": float(miss @ miss),
                "real2": float((seen["real"] ** 2).sum()),
            }
            sets = {
                kind: one
                for (identity, kind), one in rows.sets(parts).items()
                if identity == "word"
            }
            made += [about | {"kind": kind} | set_sums(parts, one) for kind, one in sets.items()]
    return pd.DataFrame(made).groupby(["nats", "order", "kind"], sort=False).sum().reset_index()


def single_tokens(rows: PushRows) -> pd.DataFrame:
    """Parts of single tokens in a step on LAID_OUT prompts, float32: unsure ones, and of sure ones
    a word of each sign.

    Sure tokens that lower the value are kept, too, so that errors can be found; parts of all sure
    ones are NaN.
    """
    parts = rows.parts(rows.weights(), min(LAID_OUT, rows.blocks.prompts), 0)
    table = rows.tokens.loc[parts.index].assign(**parts.astype("float32"))
    table.loc[~table["unsure"], [*PUSHER_PARTS]] = np.nan
    once = ~table[~table["unsure"]].duplicated(["group", "sign", "token_id"]).reindex(
        table.index, fill_value=True
    )
    table = table.loc[table["unsure"] | once | (table["credit"] < 0), _KEPT]
    return table.astype(dict.fromkeys(("logp", "credit", "sign"), "float32")).reset_index(drop=True)
