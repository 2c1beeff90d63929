"""Description of a start: what a policy earns in a world before any step, and where its likeliest
words are wrong.
"""

import torch

from workbook.probes.values import context_logits, exact_values, expected_reward
from workbook.rollouts.likelihood import FIELDS
from workbook.rollouts.sample import sample_rollouts

# of exact values and likeliest completions; of the rollouts
PROMPTS, GROUPS, GROUP_SIZE = 256, 64, 8
DECIDES = 0.01  # of the best word's value: what sampling must lose in a context that counts


def describe_start(policy, task, seed: int) -> dict[str, float]:
    """Describe a policy before any step in a task with exact values, in the task's reward.

    value: exact, over 256 prompts.  reward: of 512 rollouts, 8 for each of 64 prompts.  greedy: of
    the likeliest completions.  mixed: share of those groups of 8 whose rewards differ, without
    which a group's advantages are 0.
    well_formed: share of rollouts that keep to the grammar up to their end.

    wrong_modes: share of contexts whose likeliest word is not the best, among the rollouts'
    contexts that are reached by best words alone and in which sampling loses more than a hundredth
    of the best word's value.  (Once something is lost, the best word may be one that undoes it; and
    where the policy is sure, nothing is decided.)

    seed: of the prompts; those of other seeds modulo 8 differ.  Raises ValueError as `exact_values`
    does.
    """
    rows = task.dataset(PROMPTS, seed)
    value = expected_reward(policy, task, rows["prompt"][:]).mean()
    sampled = {"seed": seed, "max_new_tokens": task.longest}
    greedy = sample_rollouts(policy, task, rows, 1, top_k=1, **sampled).rewards.mean()
    rollouts = sample_rollouts(policy, task, rows.select(range(GROUPS)), GROUP_SIZE, **sampled)
    groups, values = rollouts.rewards.view(GROUPS, GROUP_SIZE), exact_values(policy, task, rollouts)
    alive = rollouts.completion_mask.bool()
    ended = (rollouts.completion_ids == policy.tokenizer.eos_token_id).logical_and(alive).any(1)
    with torch.no_grad():
        # (B, T, V)
        logits = context_logits(policy.model, *(getattr(rollouts, name) for name in FIELDS))
    dense = values.dense(logits.shape[-1])
    # (B, T): value after the likeliest word
    likeliest = dense.gather(2, logits.argmax(2, keepdim=True)).squeeze(2)
    best = dense.amax(2)
    kept = values.after >= (1 - DECIDES) * best
    reached = torch.cat([torch.ones_like(kept[:, :1]), kept[:, :-1].cummin(1).values], dim=1)
    deciding = values.inside & reached & (best - values.before > DECIDES * best)
    wrong = likeliest < (1 - DECIDES) * best
    described = {
        "value": value,
        "reward": rollouts.rewards.mean(),
        "greedy": greedy,
        "wrong_modes": wrong[deciding].float().mean(),
        "mixed": (groups.amax(1) > groups.amin(1)).float().mean(),
        "well_formed": ((values.inside | ~alive).all(1) & ended).float().mean(),
    }
    return {name: round(float(x), 6) for name, x in described.items()}
