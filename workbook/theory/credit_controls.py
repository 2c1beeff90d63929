"""Controls of a comparison: rules that never see a reward, rules that are told the truth, and
weights made equal.

A rule without rewards must not gain where the likeliest word is wrong: where it does, the world
rewards confidence, not credit. Plain group advantages with some of such a rule on top show what
confidence adds to credit, and what tax it takes. A rule with known credit bounds what any rule can
learn from the same rollouts. All are credit rules as those of `theory.credit_rules`, and trained
with by their names.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .advantages import group_advantages, group_index, group_sum, permute_in_groups
from .credit import CreditBatch, credit_rule, per_token, sampled_logps
from .objective import objective_weights

# that never look at rewards
REWARD_FREE = ("coin_reward", "entropy_minimization", "sequence_logp", "majority_vote")

# -- without a reward, or with one that says nothing of the completions
# ----------------------------------------------


@credit_rule("coin_reward", paper="arXiv 2506.10947", exact="control", per_token=False)
def coin_reward(batch: CreditBatch, estimator: str = "grpo") -> Float[Tensor, " B"]:
    """Group advantages of rewards that are fair coin flips, 0 or 1.

    A random reward can still seem to teach, through the bias of clipping (spurious rewards, arXiv
    2506.10947). The flips come from batch.generator. A group whose rewards are all equal does get
    advantages here: that is the point.
    """
    coins = torch.randint(2, (len(batch),), generator=batch.generator).to(batch.rewards)
    return group_advantages(coins, batch.group_ids, estimator)


@credit_rule("permuted", paper="lower bound of comparisons", exact="control", per_token=False)
def permuted(batch: CreditBatch, estimator: str = "grpo") -> Float[Tensor, " B"]:
    """Group advantages permuted among the rollouts of each group, by batch.generator.

    Size and balance of the update stay, its direction says nothing about the reward: the lower
    bound of a comparison.
    """
    return permute_in_groups(batch.group_advantages(estimator), batch.group_ids, batch.generator)


@credit_rule(
    "entropy_minimization",
    paper="arXiv 2505.15134",
    needs=("logps", "entropies"),
    exact="our reading",
    each_step=True,
)
def entropy_minimization(batch: CreditBatch) -> Float[Tensor, "B T"]:
    """Make every token's distribution surer of itself, whatever is right.

    A_it = log p_it + H_it under the policy of now, so the rule is evaluated again in every
    micro-batch. In a context of entropy H, E[(log p + H) grad log p] = sum_v grad p_v log p_v = -
    grad H: without bias, the gradient of minus the token entropies in the contexts that were
    sampled. Seen as surprise: words likelier than the context's average are pushed up, all others
    down.

    Source: EM-FT (arXiv 2505.15134), which takes the gradient through the entropy itself. Our
    reading: its estimate from the sampled word, so that it is a credit rule. Groups of equal
    rewards are trained on, too.
    """
    return batch.logps + batch.entropies


@credit_rule(
    "entropy_penalty",
    paper="ours, from arXiv 2505.15134",
    needs=("logps", "entropies"),
    exact="control",
    each_step=True,
)
def entropy_penalty(
    batch: CreditBatch, share: float = 0.1, estimator: str = "dr_grpo"
) -> Float[Tensor, "B T"]:
    """Group advantages with a tenth of entropy minimisation on top: an entropy bonus with its sign
    turned.

    A_it = A_i + share (log p_it + H_it), the second part `entropy_minimization` under the policy of
    now, so the rule is evaluated again in every micro-batch. In expectation: plain's gradient minus
    share times that of the token entropies in the contexts that were sampled. The first part is in
    the reward's unit, the second in nats.

    It knows no more of credit than plain does. A rule that is ahead of plain by no more than this
    one is, at no less tax, has shown that it sharpens and not that it finds credit. Groups of equal
    rewards are trained on, too.

    >>> one = torch.ones(2, 1)
    >>> known = {"logps": torch.tensor([[-1.0], [-2.0]]), "entropies": 1.5 * one}
    >>> batch = CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), one.int(), one, **known)
    >>> entropy_penalty(batch)
    tensor([[ 0.5500],
            [-0.5500]])
    """
    return per_token(batch, batch.group_advantages(estimator)) + share * entropy_minimization(batch)


@credit_rule(
    "sequence_logp",
    paper="arXiv 2505.15134",
    needs=("old_logps",),
    exact="our reading",
    per_token=False,
)
def sequence_logp(batch: CreditBatch, estimator: str = "dr_grpo") -> Float[Tensor, " B"]:
    """Group advantages with a completion's own log-probability as its reward.

    R_i = sum_t log p_it when sampled, in nats: EM-RL at the sequence level (arXiv 2505.15134). Our
    reading: centred in the group, no KL penalty. Groups of equal rewards are trained on, too.
    """
    return group_advantages(
        sampled_logps(batch).to(batch.rewards).sum(1), batch.group_ids, estimator
    )


@credit_rule(
    "majority_vote",
    paper="arXiv 2504.16084",
    needs=("answers",),
    exact="our reading",
    per_token=False,
)
def majority_vote(batch: CreditBatch, estimator: str = "grpo") -> Float[Tensor, " B"]:
    """Group advantages with reward 1 for stating the group's most frequent answer, else 0.

    Source: TTRL (arXiv 2504.16084). Our reading: answers that tie for the most votes all count,
    where its code takes the one met first; a completion that states no answer has no vote and
    reward 0. Groups of equal rewards are trained on, too.

    >>> batch = CreditBatch(torch.zeros(3), torch.zeros(3), torch.ones(3, 1).int(), torch.ones(3, 1), answers=[*"442"])
    >>> majority_vote(batch, "dr_grpo")
    tensor([ 0.3333,  0.3333, -0.6667])
    """
    answers, rewards = batch.answers, torch.zeros_like(batch.rewards)
    for rows in batch.groups():
        stated = [answers[row] for row in rows.tolist()]
        votes = [0 if answer is None else stated.count(answer) for answer in stated]
        rewards[rows] = torch.tensor([float(0 < vote == max(votes)) for vote in votes]).to(rewards)
    return group_advantages(rewards, batch.group_ids, estimator)


# -- with known credit, and with weights made equal
# -------------------------------------------------------------------


@credit_rule("oracle", paper="upper bound of comparisons", needs=("known_credit",), exact="control")
def oracle(batch: CreditBatch) -> Float[Tensor, "B T"]:
    """True credit of each token: the upper bound of a comparison, on tasks that know it.

    A_it = Q(s_it, a_it) - V(s_it), the change of the expected reward by this token under the policy
    of now, as the batch knows it. In the reward's unit, not scaled to the spread of any other rule:
    match update sizes before comparing. Known for every rollout by itself, so groups of equal
    rewards are trained on, too. Raises ValueError where no credit is known.
    """
    return batch.known_credit


@credit_rule(
    "worst_token_reset",
    paper="resampling at the worst token, as in arXiv 2605.25507",
    exact="control",
    needs=("known_credit", "continue_from"),
)
def worst_token_reset(
    batch: CreditBatch, samples: int = 4, right: float = 1.0, estimator: str = "dr_grpo"
) -> Float[Tensor, "B T"]:
    """Push a failing rollout only on its worst token, by what fresh continuations from just before
    it earn more.

    A_it = R_i - mean R' on the token of a failing rollout whose known credit is the most negative,
    with R' the rewards of so many completions of the prefix before it, and 0 on its other tokens.
    Rollouts of positive group advantage keep it. A rollout fails that has no positive advantage and
    a reward below `right`: also where the whole group failed.
    Cost: the continuations' tokens, in batch.sampled_tokens.

    Methods that reset a failed rollout where it went wrong have to find the place; here it is
    known. Raises ValueError where no credit is known, and without a policy to sample.
    """
    started = batch.group_advantages(estimator)
    credit = batch.known_credit.masked_fill(~batch.mask, torch.inf)
    failing = ((started <= 0) & (batch.rewards < right) & (credit < 0).any(1)).nonzero().squeeze(1)
    advantages, worst = per_token(batch, started.clamp(min=0)), credit.argmin(1)[failing]
    prefixes = [
        batch.completion_ids[row, :t].tolist()
        for row, t in zip(failing, worst.tolist(), strict=True)
    ]
    again = batch.continue_from(
        failing.repeat_interleave(samples), [p for p in prefixes for _ in range(samples)]
    )
    advantages[failing, worst] = batch.rewards[failing] - again.view(-1, samples).mean(1)
    return advantages


@dataclass(frozen=True)
class EqualWeights:
    """A credit rule: advantages times the group's mean weight under an objective, anew at every
    step.

    A sequence's weight is averaged over the group's rollouts, a token's at each position over those
    that have it. The loop multiplies by its own token ratios, which are divided out.  level, clip:
    as in `objective_weights`.
    """

    level: str
    clip: tuple[float, float] | None
    each_step = True

    def __call__(self, batch: CreditBatch) -> Float[Tensor, "B T"]:
        advantages = batch.group_advantages("dr_grpo")
        given = (batch.logps, batch.old_logps, batch.mask, advantages, batch.group_ids)
        weights, alive = objective_weights(*given, self.level, self.clip), batch.mask
        if self.level == "sequence":
            weights, alive = weights.amax(1, keepdim=True), alive.any(1, keepdim=True)  # (B, 1)
        index, groups = group_index(batch.group_ids, len(batch))
        mean = group_sum(weights, index, groups) / group_sum(
            alive.to(weights), index, groups
        ).clamp(min=1)
        ratio = objective_weights(*given)  # 0 outside the mask
        return (advantages[:, None] * mean[index] / ratio).masked_fill(~batch.mask, 0.0)
