"""Report on a policy before any step: what it earns in a world, and where its likeliest words fail.

What a rule can teach depends on where it starts. A policy whose likeliest completions are all right
can gain by sharpening alone, whichever rule trains it. One whose likeliest word is wrong in some
context (a *wrong mode*) has to learn that context, and one whose groups all earn the same learns
nothing at all.
"""

import torch

from workbook.probes.values import exact_values, expected_reward
from workbook.rollouts.likelihood import FIELDS, context_logits
from workbook.rollouts.sample import sample_rollouts
from workbook.rollouts.scoring import in_batches

START_PROMPTS = 256  # of exact values and likeliest completions
START_GROUPS = 64  # of the rollouts
START_GROUP_SIZE = 8
_DECIDING_LOSS = 0.01  # of the best word's value: what sampling must lose in a context that counts


@in_batches
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
    rows = task.dataset(START_PROMPTS, seed)
    value = expected_reward(policy, task, rows["prompt"][:]).mean()
    sampling = {"seed": seed, "max_new_tokens": task.longest}
    greedy = sample_rollouts(policy, task, rows, 1, top_k=1, **sampling).rewards.mean()

    # groups, as training would draw them
    rollouts = sample_rollouts(
        policy, task, rows.select(range(START_GROUPS)), START_GROUP_SIZE, **sampling
    )
    rewards = rollouts.rewards.view(START_GROUPS, START_GROUP_SIZE)
    values = exact_values(policy, task, rollouts)
    alive = rollouts.completion_mask.bool()  # (B, T)
    is_end = rollouts.completion_ids == policy.tokenizer.eos_token_id
    ended = is_end.logical_and(alive).any(1)  # (B,)

    # value of the best word in each context, and of the likeliest, (B, T)
    with torch.no_grad():
        # (B, T, V)
        logits = context_logits(policy.model, *(getattr(rollouts, name) for name in FIELDS))
    after_each_word = values.dense(logits.shape[-1])
    likeliest_word = logits.argmax(2, keepdim=True)
    likeliest = after_each_word.gather(2, likeliest_word).squeeze(2)
    best = after_each_word.amax(2)

    # contexts that count: nothing was lost before, and something is decided here
    lossless = values.after >= (1 - _DECIDING_LOSS) * best
    lossless_so_far = lossless[:, :-1].cummin(1).values
    reached = torch.cat([torch.ones_like(lossless[:, :1]), lossless_so_far], dim=1)
    deciding = values.inside & reached & (best - values.before > _DECIDING_LOSS * best)
    wrong = likeliest < (1 - _DECIDING_LOSS) * best

    report = {
        "value": value,
        "reward": rollouts.rewards.mean(),
        "greedy": greedy,
        "wrong_modes": wrong[deciding].float().mean(),
        "mixed": (rewards.amax(1) > rewards.amin(1)).float().mean(),
        "well_formed": ((values.inside | ~alive).all(1) & ended).float().mean(),
    }
    return {name: round(float(number), 6) for name, number in report.items()}
