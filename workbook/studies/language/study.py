"""Study `smollm2_probes`: what the family's probes say of a language model, by the family's own
functions.

A unit is SmolLM2-135M tuned to sums in a sentence with a data seed of its own
(`workbook.policies.tuned`), every weight trainable, and prompts of its own. One set of small steps,
a row for each rollout of the measured prompts and for each sign of the others, alone or in bundles,
makes every step on 1 to 64 prompts. Tables:

    sums       cancelled share by class of word, by reward and permuted: `PushRows.sums`, as in
               study cancelled
    rates      whether tokens follow their own sign, by prompts per step: `flip_rates`, as in study
               dose
    pairs      coupling by mass within prompts: `pair_sums`, as in study mass
    blocks     coupling by mass in other prompts: `coupling_by_mass`, as in study mass
    training   agreement of a full step and the output layer over all tokens, at the start:
               `proxy_signs`, as in study mass
    gaps       value of boosted minus that of suppressed tokens at equal position, by reward and
               permuted: `value_gaps`
    rows       how many prompts and tokens it rests on, and by how much the rows' sum misses a real
               step of all

Values are sampled, for nobody knows them: 32 continuations after each of 64 tokens. These are
digits, at places where digits differ: before them all words are worth the same, and behind them a
rollout's reward.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from workbook.probes.blocks import block_coupling, coupling_by_mass
from workbook.probes.cancellation import PUSHER_PARTS, PushRows, prompt_rows
from workbook.probes.dose import flip_rates
from workbook.probes.pair_mass import pair_sums
from workbook.probes.step import MOVED
from workbook.probes.value_gaps import CELLS, cell_gap
from workbook.probes.values import token_values
from workbook.rollouts.sample import Rollouts
from workbook.studies.cancelled.study import BY, DRAWS, PERMUTATIONS, powers, prompts_curve
from workbook.studies.coupling.study import proxy_signs
from workbook.studies.flips.study import facts
from workbook.studies.unit import StudyUnit

_EQUAL = CELLS["position"]  # what is alike in boosted and suppressed tokens that are compared


class ProbeSizes(NamedTuple):
    """Prompts sampled, measured, that push by themselves, in a bundle; prompts and anchors of
    products of gradients; tokens after which continuations begin, and how many of each."""

    prompts: int = 96
    measured: int = 8
    alone: int = 16
    bundle: int = 16
    anchored: tuple[int, int] = (4, 4)
    resets: int = 64
    continuations: int = 32


SIZES = {"smollm2:sums": ProbeSizes()}


def probes_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """The tables of one unit, as the module's head says.

    Raises ValueError if too few prompts push.
    """
    size, policy = SIZES[unit.setting.name], unit.policy
    rollouts = unit.sample(size.prompts, unit.data_seed)
    pushing = rollouts.group_ids[rollouts.advantages != 0].unique()[: size.measured]
    few = rollouts.select(torch.isin(rollouts.group_ids, pushing))

    @cache
    def rows() -> PushRows:
        return prompt_rows(policy, rollouts, size.measured, size.alone, size.bundle)

    made = {
        "pairs": lambda: pair_sums(policy, few, *size.anchored, seed=unit.number),
        "blocks": lambda: coupling_by_mass(block_coupling(policy, few, blocks="sign")),
        "training": (
            lambda: proxy_signs(policy, few).assign(step=0, reward=float(few.rewards.mean()))
        ),
        "sums": lambda: prompts_curve(rows()).groupby(BY, sort=False).sum().reset_index(),
        "rates": lambda: rates_curve(rows()),
        "gaps": lambda: value_gaps(unit, rollouts, rows(), size),
        "rows": lambda: facts(rows().blocks, rollouts),
    }
    return {name: unit.cached_table(name, make) for name, make in made.items()}


def rates_curve(rows: PushRows) -> pd.DataFrame:
    """`flip_rates` of steps on 1, 2, 4, ... prompts, DRAWS draws of the others: its columns and
    prompts.
    """
    weights, tables = rows.weights(), []
    for size in powers(rows.blocks.prompts):
        parts = pd.concat([rows.parts(weights, size, draw) for draw in range(DRAWS)])
        tables.append(flip_rates(moved_tokens(rows, parts)).assign(prompts=size))
    return pd.concat(tables, ignore_index=True)


def moved_tokens(rows: PushRows, parts: pd.DataFrame) -> pd.DataFrame:
    """The token table of `PushRows.parts`: push (its sign), change and dlogp (both per rate), own
    (by the prompt).
    """
    change = parts[[*PUSHER_PARTS]].sum(axis=1)
    columns = {
        "push": parts["sign"],
        "change": change,
        "dlogp": change,
        "own": parts["same"] + parts["other"],
    }
    return rows.tokens.loc[parts.index].assign(
        **{name: column.to_numpy() for name, column in columns.items()}
    )


def value_gaps(
    unit: StudyUnit, rollouts: Rollouts, rows: PushRows, size: ProbeSizes
) -> pd.DataFrame:
    """Gaps of a step on the measured prompts, and means of steps on permuted rewards, at equal
    position.

    Columns advantages (own, permuted), gap, tokens (with a value), and those that name the same row
    of value_gap.
    """
    weights, count = rows.weights(), len(rows.groups)
    steps = [("own", weights)] + [
        ("permuted", rows.weights(permuted=k)) for k in range(PERMUTATIONS)
    ]
    tables = [(name, moved_tokens(rows, rows.parts(one, count))) for name, one in steps]
    digits = chosen_digits(tables[0][1], size.resets, unit.number)[["rollout", "position"]]
    places = rollouts.token_table().reset_index().merge(digits)["index"]
    sampled = (unit.policy, unit.task, rollouts, size.continuations, places)
    values = token_values(*sampled, unit.data_seed, unit.setting.max_new_tokens, credit=False)
    made = []
    for name, table in tables:
        eps = MOVED * float((table["dlogp"] ** 2).mean() ** 0.5)
        valued = table.drop(columns="value").merge(values[["rollout", "position", "value"]])
        made.append({"advantages": name, "gap": cell_gap(valued, _EQUAL, eps=eps)})
    gaps = pd.DataFrame(made).groupby("advantages", sort=False, as_index=False)["gap"].mean()
    return gaps.assign(
        pool="training", rollouts="all", matched="position", of="value", tokens=len(values)
    )


def chosen_digits(table: pd.DataFrame, most: int, seed: int) -> pd.DataFrame:
    """Whole cells of EQUAL at random, up to so many tokens: of results, where more than one word
    stands.
    """
    cells = table[table["category"] == "result"].groupby([*_EQUAL])
    cells = [cell for _, cell in cells if cell["token_id"].nunique() > 1]
    cells = [cells[k] for k in np.random.default_rng(seed).permutation(len(cells))]
    reached = np.cumsum([len(cell) for cell in cells])
    return pd.concat(cells[: max(1, int((reached <= most).sum()))])
