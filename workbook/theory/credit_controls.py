"""Controls of a comparison: rules that see no reward, rules that know credit, and equal weights.

A rule that ends ahead of plain group advantages may have found credit; or it may only have made the
policy surer of itself, which pays wherever the likeliest word is right. So rules that never see a
reward run beside it: where they gain, the world rewards confidence, not credit. Plain advantages
with some of such a rule on top (`entropy_penalty`) show what confidence adds, and what tax it
takes. At the other end `known_credit` bounds what any rule can learn from the same rollouts.

All are credit rules as those of `theory.credit_rules`, and trained with by their names.

Letters: B rollouts, T completion tokens, n groups.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from .advantages import (
    group_advantages,
    group_index,
    group_sum,
    partial_baseline,
    permute_in_groups,
)
from .credit import CreditBatch, credit_rule, sampled_logps, spread_over_tokens
from .weights import objective_weights

# rules that never look at rewards
REWARD_FREE = ("coin_reward", "entropy_minimization", "sequence_logp", "majority_vote")

# -- without a reward, or with one that says nothing of the completions


@credit_rule("coin_reward", paper="arXiv 2506.10947", fidelity="control", per_token=False)
def coin_reward(batch: CreditBatch, estimator: str = "grpo") -> Float[Tensor, " B"]:
    """Group advantages of rewards that are fair coin flips, 0 or 1.

    A random reward can still seem to teach, through the bias of clipping (spurious rewards, arXiv
    2506.10947). The flips come from batch.generator. A group whose rewards are all equal does get
    advantages here: that is the point.
    """
    coins = torch.randint(2, (len(batch),), generator=batch.generator).to(batch.rewards)
    return group_advantages(coins, batch.group_ids, estimator)


@credit_rule("permuted", paper="lower bound of comparisons", fidelity="control", per_token=False)
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
    fidelity="our reading",
    each_step=True,
)
def entropy_minimization(batch: CreditBatch) -> Float[Tensor, "B T"]:
    """Make every token's distribution surer of itself, whatever is right.

        A_it = log p_it + H_it

    under the policy of now, so the rule is evaluated again in every micro-batch. In a context of
    entropy H, E[(log p + H) grad log p] = sum_v grad p_v log p_v = - grad H: without bias, the
    gradient of minus the token entropies in the contexts that were sampled. Seen as surprise: words
    likelier than the context's average are pushed up, all others down.

    Source: EM-FT (arXiv 2505.15134), which takes the gradient through the entropy itself. Our
    reading: its estimate from the sampled word, so that it is a credit rule. Groups of equal
    rewards are trained on, too.
    """
    return batch.logps + batch.entropies


@credit_rule(
    "entropy_penalty",
    paper="ours, from arXiv 2505.15134",
    needs=("logps", "entropies"),
    fidelity="control",
    each_step=True,
)
def entropy_penalty(
    batch: CreditBatch, share: float = 0.1, estimator: str = "dr_grpo"
) -> Float[Tensor, "B T"]:
    """Group advantages with a tenth of entropy minimisation on top: an entropy bonus turned round.

        A_it = A_i + share (log p_it + H_it)

    the second part `entropy_minimization` under the policy of now, so the rule is evaluated again
    in every micro-batch. In expectation: plain's gradient minus share times that of the token
    entropies in the contexts that were sampled. The first part is in the reward's unit, the second
    in nats.

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
    plain = spread_over_tokens(batch, batch.group_advantages(estimator))
    return plain + share * entropy_minimization(batch)


@credit_rule(
    "sequence_logp",
    paper="arXiv 2505.15134",
    needs=("old_logps",),
    fidelity="our reading",
    per_token=False,
)
def sequence_logp(batch: CreditBatch, estimator: str = "dr_grpo") -> Float[Tensor, " B"]:
    """Group advantages with a completion's own log-probability as its reward.

    R_i = sum_t log p_it when sampled, in nats: EM-RL at the sequence level (arXiv 2505.15134). Our
    reading: centred in the group, no KL penalty. Groups of equal rewards are trained on, too.
    """
    rewards = sampled_logps(batch).to(batch.rewards).sum(1)
    return group_advantages(rewards, batch.group_ids, estimator)


@credit_rule(
    "majority_vote",
    paper="arXiv 2504.16084",
    needs=("answers",),
    fidelity="our reading",
    per_token=False,
)
def majority_vote(batch: CreditBatch, estimator: str = "grpo") -> Float[Tensor, " B"]:
    """Group advantages with reward 1 for stating the group's most frequent answer, else 0.

    Source: TTRL (arXiv 2504.16084). Our reading: answers that tie for the most votes all count,
    where its code takes the one met first; a completion that states no answer has no vote and
    reward 0. Groups of equal rewards are trained on, too.

    >>> one = torch.ones(3, 1)
    >>> batch = CreditBatch(torch.zeros(3), torch.zeros(3), one.int(), one, answers=[*"442"])
    >>> majority_vote(batch, "dr_grpo")
    tensor([ 0.3333,  0.3333, -0.6667])
    """
    rewards = torch.zeros_like(batch.rewards)
    for rows in batch.groups():
        answers = [batch.answers[row] for row in rows.tolist()]
        # no answer, no vote
        votes = [0 if answer is None else answers.count(answer) for answer in answers]
        most = max(votes)
        rewards[rows] = torch.tensor([float(0 < vote == most) for vote in votes]).to(rewards)
    return group_advantages(rewards, batch.group_ids, estimator)


# -- with less of a baseline


@dataclass(frozen=True)
class Opposition:
    """Credit rule: the reward minus a share of the group's mean, the dial of opposition.

        A_i = r_i - share m_g

    share: 1 is `dr_grpo`, where good and bad rollouts oppose one another in full; 0 is REINFORCE.
    drop_equal: 0 in groups of equal rewards, which push below a share of 1.
    """

    share: float
    drop_equal: bool = False
    each_step = False

    def __call__(self, batch: CreditBatch) -> Float[Tensor, " B"]:
        advantages = partial_baseline(batch.rewards, batch.group_ids, self.share)
        if self.drop_equal:
            return torch.where(batch.group_advantages() == 0, 0.0, advantages)
        return advantages


# -- with known credit


@credit_rule(
    "known_credit", paper="upper bound of comparisons", needs=("known_credit",), fidelity="control"
)
def known_credit(batch: CreditBatch) -> Float[Tensor, "B T"]:
    """True credit of each token: the upper bound of a comparison, on tasks that know it.

        A_it = Q(s_it, a_it) - V(s_it)

    the change of the expected reward by this token under the policy of now, as the batch knows it.
    In the reward's unit, not scaled to the spread of any other rule: match update sizes before
    comparing. Known for every rollout by itself, so groups of equal rewards are trained on, too.
    Raises ValueError where no credit is known.
    """
    return batch.known_credit


@credit_rule(
    "worst_token_reset",
    paper="resampling at the worst token, as in arXiv 2605.25507",
    fidelity="control",
    needs=("known_credit", "continue_from"),
)
def worst_token_reset(
    batch: CreditBatch, samples: int = 4, right: float = 1.0, estimator: str = "dr_grpo"
) -> Float[Tensor, "B T"]:
    """Push a failing rollout on its worst token alone, by what continuations before it earn more.

        A_it = R_i - mean R'

    on the token of a failing rollout whose known credit is the most negative, with R' the rewards
    of `samples` completions of the prefix before it, and 0 on its other tokens. Rollouts of
    positive group advantage keep it. A rollout fails that has no positive advantage and a reward
    below `right`: also where the whole group failed.
    Cost: the continuations' tokens, in batch.sampled_tokens.

    Methods that reset a failed rollout where it went wrong have to find the place; here it is
    known. Raises ValueError where no credit is known, and without a policy to sample.
    """
    plain = batch.group_advantages(estimator)
    # padding must not be the worst token
    credit = batch.known_credit.masked_fill(~batch.mask, torch.inf)
    fails = (plain <= 0) & (batch.rewards < right) & (credit < 0).any(1)
    failing = fails.nonzero().squeeze(1)  # (n,) rows
    worst = credit.argmin(1)[failing]  # (n,) positions

    # `samples` fresh continuations of each failing rollout, from just before its worst token
    prefixes = []
    for row, t in zip(failing, worst.tolist(), strict=True):
        prefixes += [batch.completion_ids[row, :t].tolist()] * samples
    continued = batch.continue_from(failing.repeat_interleave(samples), prefixes)
    expected = continued.view(-1, samples).mean(1)  # (n,)

    advantages = spread_over_tokens(batch, plain.clamp(min=0))
    advantages[failing, worst] = batch.rewards[failing] - expected
    return advantages


# -- with weights made equal


@dataclass(frozen=True)
class EqualWeights:
    """Credit rule with equal weights: advantages times the group's mean weight under an objective.

    The objective's weights differ within a group; their mean does not, so what cancels under
    weights of 1 cancels here. The mean is taken anew at every step: a sequence's weight is averaged
    over the group's rollouts, a token's at each position over those that have it. The loop
    multiplies by its own token ratios, which are divided out.

    level, clip: as in `objective_weights`.
    """

    level: str
    clip: tuple[float, float] | None
    each_step = True

    def __call__(self, batch: CreditBatch) -> Float[Tensor, "B T"]:
        advantages = batch.group_advantages("dr_grpo")
        given = (batch.logps, batch.old_logps, batch.mask, advantages, batch.group_ids)
        weights = objective_weights(*given, self.level, self.clip)  # (B, T)
        alive = batch.mask
        if self.level == "sequence":
            # all tokens of a rollout have one weight: (B, 1)
            weights = weights.amax(1, keepdim=True)
            alive = alive.any(1, keepdim=True)

        index, groups = group_index(batch.group_ids, len(batch))
        count = group_sum(alive.to(weights), index, groups).clamp(min=1)
        mean = group_sum(weights, index, groups) / count  # (n, T) or (n, 1)

        # 0 outside the mask, where the quotient is then masked
        ratio = objective_weights(*given)
        return (advantages[:, None] * mean[index] / ratio).masked_fill(~batch.mask, 0.0)
