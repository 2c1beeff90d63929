"""Study tabular: how far does credit per token come without any coupling between contexts?

Beside the network stands a softmax table that gives every context logits of its own, with the
policy's own start probabilities. There a token is moved by what visits its very context alone.
Measured is the correlation of a token's change with its exact credit, about the mean of its prompt
and class: of the network's own step by the rollouts of the prompt, and of the table's step by the
visits of the context. Nothing is decided by it.
"""

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

from workbook.probes.agreement import cell_correlation
from workbook.probes.cancellation import kinds
from workbook.probes.directions import Along
from workbook.probes.values import exact_values
from workbook.rollouts.likelihood import FIELDS, context_logits
from workbook.rollouts.sample import sample_rollouts
from workbook.studies.unit import StudyUnit
from workbook.theory.coupling import NEARLY_CERTAIN

# prompts, rollouts of each, and the first ones whose tokens are measured
PROMPTS, _ROLLOUTS, _MEASURED = 12, 64, 8
COUNTS = (1, 2, 4, 8, 16, 32, 64)  # rollouts of a prompt that push, or visits of a context
REDRAWS = 16  # of the visits


def tabular_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Table curve of one unit: source (network, table), count, correlation, tokens.

    Advantages are r minus the mean reward of all rollouts of the prompt, so that one rollout
    pushes, too.
    """
    given = (
        unit.policy,
        unit.task,
        PROMPTS,
        _ROLLOUTS,
        unit.data_seed,
        unit.setting.max_new_tokens,
    )
    rollouts = sample_rollouts(*given)
    means = rollouts.rewards.view(PROMPTS, _ROLLOUTS).mean(1).repeat_interleave(_ROLLOUTS)
    advantages = rollouts.rewards - means
    place = torch.arange(len(rollouts)) % _ROLLOUTS  # of a rollout among those of its prompt
    along, alive = Along(unit.policy), rollouts.completion_mask.bool()
    first = rollouts.select(place < _MEASURED)
    values = exact_values(unit.policy, unit.task, first)
    table = first.token_table()
    at = tuple(torch.tensor(table[["rollout", "position"]].to_numpy(copy=True)).T)
    table = table.assign(
        credit=values.credit[at].double().numpy(), inside=values.inside[at].numpy()
    )
    table["kind"] = kinds(table)
    unsure = ((table["logp"] < np.log(NEARLY_CERTAIN)) & table["inside"]).to_numpy()
    chosen = table[unsure]
    cells = [chosen["group"], chosen["kind"]]
    rows = []
    for count in COUNTS:
        pushes = torch.where(alive & (place < count).unsqueeze(1), advantages.unsqueeze(1), 0.0)
        changes = []
        for group in rollouts.group_ids.unique():
            own = rollouts.group_ids == group
            direction = along.gradient_of(rollouts.select(own), pushes[own])
            changes.append(along.change(first.select(first.group_ids == group), direction))
        change = pd.Series(torch.cat(changes)[at].double().numpy()[unsure], index=chosen.index)
        number = cell_correlation(change, chosen["credit"], cells)
        rows.append(
            {"source": "network", "count": count, "correlation": number, "tokens": len(chosen)}
        )
    with torch.no_grad():
        probs = context_logits(
            unit.policy.model, *(getattr(first, name) for name in FIELDS)
        ).softmax(-1)[at]
    kept = torch.tensor(unsure)
    # (N, V): reward after each word
    probs, chances = probs[kept], values.dense(probs.shape[-1])[at][kept].clamp(0, 1)
    words = torch.tensor(chosen["token_id"].to_numpy(copy=True))
    own = advantages[place < _MEASURED][torch.tensor(chosen["rollout"].to_numpy(copy=True))]
    mean = means[place < _MEASURED][torch.tensor(chosen["rollout"].to_numpy(copy=True))]
    generator = torch.Generator().manual_seed(unit.data_seed)
    for count in COUNTS:
        numbers = []
        for _ in range(REDRAWS):
            moved = table_change(probs, chances, words, own, mean, count, generator)
            change = pd.Series(moved.double().numpy(), index=chosen.index)
            numbers.append(cell_correlation(change, chosen["credit"], cells))
        rows.append(
            {
                "source": "table",
                "count": count,
                "correlation": np.mean(numbers),
                "tokens": len(chosen),
            }
        )
    return {"curve": pd.DataFrame(rows)}


def table_change(
    probs: Float[torch.Tensor, "N V"],
    chances: Float[torch.Tensor, "N V"],
    words: Int[torch.Tensor, " N"],
    advantages: Float[torch.Tensor, " N"],
    baseline: Float[torch.Tensor, " N"],
    visits: int,
    generator: torch.Generator,
) -> Float[torch.Tensor, " N"]:
    """Change of each token's log-probability by so many visits of its context, its own among them.

        <e_w - p, sum over visits of A (e_v - p)>

    probs: of the context's words.  chances: of reward 1 after each.  words, advantages: of the
    token's own rollout.
    baseline: what is subtracted from the other visits' rewards.
    """
    scores = torch.nn.functional.one_hot(words, probs.shape[1]) - probs  # (N, V)
    pushed = advantages.unsqueeze(1) * scores
    if visits > 1:
        # (N, visits - 1)
        drawn = torch.multinomial(probs, visits - 1, replacement=True, generator=generator)
        rewards = torch.rand(drawn.shape, generator=generator) < chances.gather(1, drawn)
        pushes = rewards.float() - baseline.unsqueeze(1)
        pushed = pushed.scatter_add(1, drawn, pushes) - pushes.sum(1, keepdim=True) * probs
    return (scores * pushed).sum(1)
