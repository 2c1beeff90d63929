"""The steps of each cut, split into signal, noise and bias: what a mini-batch loses, the other mini-batches hold.

A mini-batch that was chosen without regard to rewards pushes, on average over redrawn words, as the whole batch does at
the contexts it visits (`workbook.theory.decomposition`). One that holds positive rollouts alone does so as well, up to
a factor of its own in each context. For a word y with reward 1 after it with probability Q_y, in a context of value V,

    E[e_y - p | r = 1] = sum_y p_y Q_y / V (e_y - p) = p (Q - V) / V            r = 0: - p (Q - V) / (1 - V)

so the step still points at credit. It weighs contexts unequally, which is bias, and has fewer rollouts, which is noise.
"""

from __future__ import annotations

import altair as alt
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from workbook.policies.copies import evaluating, private_copy
from workbook.probes.recovered import PARTS, Pushes, check_gains, exact_gradient
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
from workbook.views.explorer import power_slider, slider
from workbook.views.live_study import LiveStudy
from workbook.views.parts import PART_NAMES, signal_noise_chart
from workbook.views.style import describe_rows, titled

RULE = "grpo"
PART_OF = {"signal": PART_NAMES["own_signal"], "bias": PART_NAMES["bias"], "noise": PART_NAMES["own_noise"]}
ORDER, SIZE = list(PART_NAMES.values()), {"size": "size_"}
WHOLE = "the whole batch at once"
CUTS = [WHOLE, *NAMES.values()]
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
    policy, rollouts: Rollouts, values: TokenValues, cut: tuple[Int[Tensor, " B"], int], perfect: Float[Tensor, " D"]
) -> dict[str, float]:
    """Shares of signal, bias and noise in the squared length of a cut's steps, and their mean cosine.

    cut: an order, and the number of mini-batches.  perfect: the exact gradient of all prompts' mean expected reward, to
    which the cosine is taken.  Mini-batches that push nothing are left out.
    """
    sums, cosines = dict.fromkeys(PARTS, 0.0), []
    for rows in (rows for rows in cut[0].chunk(cut[1]) if rollouts.advantages[rows].any()):
        with evaluating(policy.model), sdpa_kernel(SDPBackend.MATH):
            pushes = Pushes(policy, rollouts.select(rows), values.select(rows))
            parts = minibatch_parts(rollouts, pushes)
            directions = pushes.directions([getattr(parts, part) for part in PARTS])
        step = sum(directions)
        for part, direction in zip(PARTS, directions, strict=True):
            sums[part] += float(direction @ step)
        cosines.append(float(torch.nn.functional.cosine_similarity(step, perfect, dim=0)))
    total = sum(sums.values())
    return {part: share / total for part, share in sums.items()} | {"cosine": sum(cosines) / len(cosines)}


def compute_parts(
    policy, task, prompts: int = 8, group_size: int = 8, minibatches: int = 4, seed: int = 0
) -> dict[str, pd.DataFrame]:
    """Signal, bias and noise in the steps of every cut of one batch: {"table": category (a cut), part, share, size}.

    size: mean cosine of the steps with the exact gradient of all prompts of the batch.  seed: of prompts, rollouts and
    cuts.  Raises ValueError where no group has different rewards, and where a cut is impossible.
    """
    rollouts = sample_rollouts(policy, task, prompts, group_size, seed=seed, max_new_tokens=48)
    if not rollouts.advantages.any():
        raise ValueError(f"{prompts} prompts have no group of different rewards with seed={seed}; take more.")
    values, generator = chain_values(policy, task, rollouts), torch.Generator().manual_seed(seed)
    cuts = {WHOLE: (torch.arange(len(rollouts)), 1)}
    for strategy, name in NAMES.items():
        args = (rollouts.group_ids, rollouts.advantages, minibatches, generator)
        cuts[name] = (minibatch_order(strategy, *args), minibatches)
    perfect, rows = exact_gradient(policy, task, list(dict.fromkeys(rollouts.prompts))), []
    for name in progress(cuts, "cuts"):
        shares = split_minibatches(policy, rollouts, values, cuts[name], perfect)
        rows += [(name, PART_OF[part], ORDER.index(PART_OF[part]), shares[part], shares["cosine"]) for part in PARTS]
        show_partial(table=_table(rows))
    return {"table": _table(rows)}


def _table(rows: list[tuple]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["category", "part", "order", "share", "size"])


def describe_cut_parts(table: pd.DataFrame) -> str:
    """Signal, and the cosine with the batch's perfect credit, of each cut's steps."""
    signal = table[table["part"] == PART_OF["signal"]]
    words = [f"{row.category} {row.share:.0%}, {row.size_:.2f}" for row in signal.rename(columns=SIZE).itertuples()]
    return f"Signal, and cosine with the credit of all prompts: {'; '.join(words)}."


def cut_parts_chart(table: pd.DataFrame) -> alt.LayerChart:
    """Stacked shares of what the steps of each cut are made of; table of `compute_parts`."""
    title = "What the steps of each cut are made of"
    subtitle = (
        "of the update, all weights; right: cosine of the steps with the credit of all prompts, by exact gradients"
    )
    numbers = describe_rows(table, "category", "part", value="share", form=".0%")
    words = numbers if table["share"].any() else "A bar for every cut: signal, bias and noise of its steps."
    return titled(signal_noise_chart(table, width=400), title, subtitle, words)


def live_parts(policy, task, prompts: int = 8) -> LiveStudy:
    """Prompts, rollouts, mini-batches and seed of a real batch, whose steps are split for every cut."""
    controls = {
        "prompts": power_slider(prompts, 16, "prompts", least=4),
        "group_size": power_slider(8, 16, "rollouts per prompt", least=2),
        "minibatches": power_slider(4, 4, "mini-batches", least=2),
        "seed": slider(0, 0, 19, 1, "seed of prompts, rollouts"),
    }
    start = {
        "table": _table([(name, part, ORDER.index(part), 0.0, None) for name in CUTS for part in PART_OF.values()])
    }
    variables = {"policy": private_copy(policy), "task": task}
    return LiveStudy(compute_parts, cut_parts_chart, controls, start, describe_cut_parts, variables)
