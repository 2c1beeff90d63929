"""Study `smollm2_probes`: what the family's probes say of a language model, by the family's own functions.

A unit is SmolLM2-135M tuned to sums in a sentence with a data seed of its own (`workbook.policies.tuned`), every weight
trainable, and prompts of its own. One set of small steps, a row for each rollout of the measured prompts and for each
sign of the others, alone or in bundles, makes every step on 1 to 64 prompts. Tables:

    sums       cancelled share by class of word, by reward and permuted: `PushRows.sums`, as study cancelled has them
    rates      whether tokens follow their own sign, by prompts per step: `flip_rates`, as study dose
    pairs      coupling by mass within prompts: `pair_sums`, as study mass
    blocks     coupling by mass in other prompts: `coupling_by_mass`, as study mass
    training   agreement of a full step and the output layer over all tokens, at the start: `proxy_signs`, as study mass
    gaps       value of boosted minus that of suppressed tokens at equal position, by reward and permuted: `value_gaps`
    rows       how many rows, prompts and tokens it rests on, and by how much the rows' sum misses a real step of all

Values are sampled, for nobody knows them: 32 continuations after each of 64 tokens. Before the digits of a sum all
tokens are worth the same, after them a rollout's reward; so most resets go to digits (`chosen_cells`), and the gap over
all tokens is put together from both strata by their weights in the whole.
"""

from functools import cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from workbook.probes.blocks import block_coupling, coupling_by_mass
from workbook.probes.cancellation import PARTS, PushRows, prompt_rows
from workbook.probes.dose import flip_rates
from workbook.probes.step import MOVED
from workbook.probes.values import cell_gap, token_values
from workbook.rollouts.sample import Rollouts
from workbook.studies.bench import Bench
from workbook.topics.cancelled.study import BY, DRAWS, PERMUTATIONS, powers, prompts_curve
from workbook.topics.coupling.study import pair_sums, proxy_signs
from workbook.topics.credit.study import CELLS

EQUAL = CELLS["position"]  # what is alike in boosted and suppressed tokens that are compared
ON_RESULTS = 0.75  # of the resets


class Sizes(NamedTuple):
    """Prompts sampled, measured, that push by themselves, in a bundle; prompts and anchors of products of gradients;
    tokens after which continuations begin, and how many of each."""

    prompts: int = 96
    measured: int = 8
    alone: int = 16
    bundle: int = 16
    anchored: tuple[int, int] = (4, 4)
    resets: int = 64
    continuations: int = 32


SIZES = {"tiny": Sizes(16, 3, 4, 2, (2, 2), 12, 4), "smollm2:sums": Sizes()}


def probes_study(bench: Bench) -> dict[str, pd.DataFrame]:
    """The tables of one unit, as the module's head says. Raises ValueError if too few prompts push."""
    size, policy = SIZES[bench.scale.name], bench.policy
    rollouts = bench.sample(size.prompts, bench.data_seed)
    pushing = rollouts.group_ids[rollouts.advantages != 0].unique()[: size.measured]
    few = rollouts.select(torch.isin(rollouts.group_ids, pushing))

    @cache
    def rows() -> PushRows:
        return prompt_rows(policy, rollouts, size.measured, size.alone, size.bundle)

    made = {
        "pairs": lambda: pair_sums(policy, few, *size.anchored, seed=bench.seed),
        "blocks": lambda: coupling_by_mass(block_coupling(policy, few, blocks="sign")),
        "training": lambda: proxy_signs(policy, few).assign(step=0, reward=float(few.rewards.mean())),
        "sums": lambda: prompts_curve(rows()).groupby(BY, sort=False).sum().reset_index(),
        "rates": lambda: rates_curve(rows()),
        "gaps": lambda: value_gaps(bench, rollouts, rows(), size),
        "rows": lambda: facts(rollouts, rows()),
    }
    return {name: bench.kept(name, make) for name, make in made.items()}


def rates_curve(rows: PushRows) -> pd.DataFrame:
    """`flip_rates` of steps on 1, 2, 4, ... prompts, DRAWS draws of the others: its columns and prompts."""
    weights, tables = rows.weights(), []
    for size in powers(rows.blocks.prompts):
        parts = pd.concat([rows.parts(weights, size, draw) for draw in range(DRAWS)])
        tables.append(flip_rates(moved(rows, parts)).assign(prompts=size))
    return pd.concat(tables, ignore_index=True)


def moved(rows: PushRows, parts: pd.DataFrame) -> pd.DataFrame:
    """The token table of `PushRows.parts`, with push (the sign alone), change per rate (dlogp, too), own, by the own
    prompt, and result, whether it is one."""
    change, own = parts[[*PARTS]].sum(axis=1).to_numpy(), (parts["same"] + parts["other"]).to_numpy()
    table = rows.tokens.loc[parts.index]
    columns = {"push": parts["sign"].to_numpy(), "change": change, "dlogp": change, "own": own}
    return table.assign(**columns, result=table["category"] == "result")


def facts(rollouts: Rollouts, rows: PushRows) -> pd.DataFrame:
    """One row about the rows."""
    groups, blocks = rollouts.rewards.view(len(rollouts.group_ids.unique()), -1), rows.blocks
    about = {"rows": len(blocks.blocks), "prompts": blocks.prompts, "tokens": len(rows.tokens), "error": blocks.error}
    about |= {"reward": float(groups.mean()), "mixed": float((groups.amax(1) > groups.amin(1)).float().mean())}
    return pd.DataFrame([about])


# --- boosted against suppressed tokens by value


def value_gaps(bench: Bench, rollouts: Rollouts, rows: PushRows, size: Sizes) -> pd.DataFrame:
    """Gaps of a step on the measured prompts, and means of steps on permuted rewards.

    Columns pool (training), advantages (own, permuted), rollouts (all: of all tokens; results: of digits alone),
    matched (position), of (value), gap, tokens (with a value).
    """
    weights, count = rows.weights(), len(rows.groups)
    steps = [("own", weights)] + [("permuted", rows.weights(permuted=k)) for k in range(PERMUTATIONS)]
    tables = [(name, moved(rows, rows.parts(one, count))) for name, one in steps]
    chosen = chosen_cells(tables[0][1], size.resets, bench.seed)
    places = rollouts.token_table().reset_index().merge(chosen[["rollout", "position"]])["index"]
    sampled = (bench.policy, bench.task, rollouts, size.continuations, places)
    values = token_values(*sampled, bench.data_seed, bench.scale.max_new_tokens, credit=False)
    values = values[["rollout", "position", "value"]]
    made = []
    for name, table in tables:
        gaps = stratified(table, table.merge(values))
        made += [{"advantages": name, "rollouts": one, "gap": gap} for one, gap in gaps.items()]
    gaps = pd.DataFrame(made).groupby(["advantages", "rollouts"], sort=False, as_index=False)["gap"].mean()
    return gaps.assign(pool="training", matched="position", of="value", tokens=len(values))


def cell_weights(table: pd.DataFrame) -> pd.DataFrame:
    """A row per cell of EQUAL and stratum (result) with boosted and suppressed tokens: weight, n+ n- / (n+ + n-)."""
    eps = MOVED * float((table["dlogp"] ** 2).mean() ** 0.5)
    far = table[table["dlogp"].abs() > eps]
    n, m = ((far["dlogp"] * sign > 0).groupby([far[name] for name in (*EQUAL, "result")]).sum() for sign in (1, -1))
    cells = (n * m / (n + m)).rename("weight").reset_index()
    return cells[cells["weight"] > 0]


def chosen_cells(table: pd.DataFrame, resets: int, seed: int) -> pd.DataFrame:
    """Tokens whose values are sampled: whole cells at random, ON_RESULTS of the tokens from cells of results."""
    cells, parts = cell_weights(table).sample(frac=1, random_state=seed), []
    for result, most in ((True, round(ON_RESULTS * resets)), (False, resets - round(ON_RESULTS * resets))):
        tokens = table[table["result"] == result].merge(cells.assign(order=range(len(cells)))).sort_values("order")
        reached = tokens.groupby("order").size().cumsum()
        parts.append(tokens[tokens["order"].map(reached) <= max(most, reached.min())])
    return pd.concat(parts, ignore_index=True)


def stratified(table: pd.DataFrame, sampled: pd.DataFrame) -> dict[str, float]:
    """Gap over all tokens, from the gaps of both strata among the sampled ones by weight in the table; and of results.

    Moved are tokens beyond MOVED times the table's root mean square change, sampled or not.
    """
    eps = MOVED * float((table["dlogp"] ** 2).mean() ** 0.5)
    weights = cell_weights(table).groupby("result")["weight"].sum()
    gaps = pd.Series({one: cell_gap(sampled[sampled["result"] == one], EQUAL, eps=eps) for one in (True, False)})
    known = weights.reindex(gaps.dropna().index).dropna()
    whole = float((gaps[known.index] * known).sum() / known.sum()) if len(known) else np.nan
    return {"all": whole, "results": float(gaps[True])}
