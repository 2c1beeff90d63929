"""The steps of each cut, split into signal, noise and bias: what a mini-batch loses, the other mini-batches hold.

A mini-batch that was chosen without regard to rewards pushes, on average over redrawn words, as the whole batch does at
the contexts it visits (`workbook.theory.decomposition`). One that holds positive rollouts alone does so as well, up to
a factor of its own in each context. For a word y with reward 1 after it with probability Q_y, in a context of value V,

    E[e_y - p | r = 1] = sum_y p_y Q_y / V (e_y - p) = p (Q - V) / V            r = 0: - p (Q - V) / (1 - V)

so the step still points at credit. It weighs contexts unequally, which is bias, and has fewer rollouts, which is noise.
"""

from __future__ import annotations

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbook.policies.restoring import evaluating, private_copy
from workbook.probes.recovered import Pushes, check_gains, class_shares, measure_parts
from workbook.probes.values import TokenValues, chain_values
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.theory.batching import minibatch_order
from workbook.theory.decomposition import (
    PushParts,
    expected_advantages,
    ideal_pushes,
    realised_pushes,
    split_pushes,
)
from workbook.topics.batching.cut import NAMES
from workbook.training.progress import progress, show_partial
from workbook.views.explorer import menu, power_slider, slider
from workbook.views.live_study import LiveStudy
from workbook.views.parts import PART_NAMES, parts_table, signal_noise_chart

RULE, TOKENS = "grpo", 12  # tokens of each class that are measured in a mini-batch
MEASURED = 2  # mini-batches of each cut that are split
WHOLE = "the whole batch at once"
CUTS = [WHOLE, *NAMES.values()]
CLASSES = [("all tokens", "all"), ("results", "result"), ("style words", "style")]
EDGE = 1e-4  # values nearer than this to 0 or 1 count as that far away


def minibatch_parts(rollouts: Rollouts, pushes: Pushes) -> PushParts:
    """Parts of the pushes of a mini-batch, in the contexts that it visits; also leaves the ideal ones on `pushes`.

    rollouts: the generation batch, of groups of one size with rewards 0 and 1, whose advantages (GRPO's) hold.
    pushes: of the mini-batch.  A mini-batch with both signs counts as chosen without regard to rewards.
    """
    part, mask = pushes.rollouts, pushes.mask
    advantages = part.advantages[:, None].expand_as(part.completion_ids)[mask] / len(part)
    realised = realised_pushes(advantages, part.completion_ids[mask], pushes.context[mask], pushes.probs)
    pushes.ideal = ideal_pushes(pushes.visits, pushes.probs, pushes.q) / len(part)
    return split_pushes(realised, pushes.ideal, _gains(pushes, check_gains(rollouts, RULE)))


def _gains(pushes: Pushes, group_size: int) -> Float[Tensor, " C"]:
    """The factor of p (Q - V) that each context's expected push has."""
    home = pushes.home // pushes.mask.shape[1]  # (C,) the rollout of each context
    high, low = (a[home] for a in expected_advantages(RULE, pushes.values.prompt.to(pushes.probs), group_size))
    value = (pushes.probs * pushes.q).sum(1).clamp(EDGE, 1 - EDGE)
    signs = pushes.rollouts.advantages.sign()
    if (signs >= 0).all() and signs.any():
        return high / value
    return -low / (1 - value) if (signs <= 0).all() and signs.any() else high - low


def split_minibatches(
    policy, rollouts: Rollouts, values: TokenValues, order: Int[Tensor, " B"], parts: int, seed: int = 0
) -> pd.DataFrame:
    """Shares of signal, noise and bias by token class over the first MEASURED mini-batches of a cut that push."""
    tables = []
    for rows in (rows for rows in order.chunk(parts) if rollouts.advantages[rows].any()):
        with evaluating(policy.model), sdpa_kernel(SDPBackend.MATH):
            pushes = Pushes(policy, rollouts.select(rows), values.select(rows))
            split = measure_parts(pushes, minibatch_parts(rollouts, pushes), RULE, tokens=TOKENS, seed=seed)
        tables.append(split.tokens)
        if len(tables) == MEASURED:
            break
    return class_shares(pd.concat(tables, ignore_index=True))


def compute_parts(
    policy, task, prompts: int = 8, group_size: int = 8, minibatches: int = 4, category: str = "all", seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Signal, noise and bias in the steps of every cut of one generation batch: {"table": category (a cut), part, ...}.

    category: of the tokens, all, result or style.  seed: of prompts, rollouts and cuts.  Raises ValueError where no
    group has different rewards, and where a cut is impossible.
    """
    rollouts = sample_rollouts(policy, task, prompts, group_size, seed=seed, max_new_tokens=48)
    if not rollouts.advantages.any():
        raise ValueError(f"{prompts} prompts have no group of different rewards with seed={seed}; take more.")
    values, generator = chain_values(policy, task, rollouts), torch.Generator().manual_seed(seed)
    cuts = {WHOLE: (torch.arange(len(rollouts)), 1)}
    for strategy, name in NAMES.items():
        args = (rollouts.group_ids, rollouts.advantages, minibatches, generator)
        cuts[name] = (minibatch_order(strategy, *args), minibatches)
    tables = []
    for name in progress(cuts, "cuts"):
        shares = split_minibatches(policy, rollouts, values, *cuts[name], seed=seed)
        rows = parts_table(shares).query("category == @category")
        tables.append(rows.assign(category=name).drop(columns="size", errors="ignore"))
        show_partial(table=pd.concat(tables, ignore_index=True))
    return {"table": pd.concat(tables, ignore_index=True)}


def describe_cut_parts(table: pd.DataFrame) -> str:
    """The share of signal in each cut's steps."""
    signal = table[table["part"].str.startswith("signal")].groupby("category", sort=False)["share"].sum()
    return "Signal: " + ", ".join(f"{name} {share:.0%}" for name, share in signal.items()) + "."


def cut_parts_chart(table: pd.DataFrame):
    """Stacked shares of what the steps of each cut do; table of `compute_parts`."""
    return signal_noise_chart(table, "What the steps of each cut are made of", width=420)


def live_parts(policy, task, prompts: int = 8) -> LiveStudy:
    """Prompts, rollouts, mini-batches and seed of a real batch, whose steps are split for every cut."""
    controls = {
        "prompts": power_slider(prompts, 16, "prompts", least=4),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "minibatches": power_slider(4, 4, "mini-batches", least=2),
        "category": menu("all", CLASSES, "tokens"),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    rows = [(name, part, k, 0.0) for name in CUTS for k, part in enumerate(PART_NAMES.values())]
    start = {"table": pd.DataFrame(rows, columns=["category", "part", "order", "share"])}
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_parts, cut_parts_chart, controls, start, describe_cut_parts, variables)
