"""Signal, noise and bias: what one reward per rollout delivers of what known credit would.

A token's credit is Q - V: what the expected reward gains by choosing it. Nobody has told GRPO; it
pushes every token of a rollout by the same advantage. On average over rollouts this pushes each
token by its credit all the same: that is the policy gradient theorem. So a step on a finite batch
is *signal*, the push that known credit would give, plus *noise*, what this batch added by chance,
plus a *bias* that no number of groups averages out. Where credit is known, the three can be told
apart exactly.

The push on the logits of context c (a prompt with the words so far) adds up over the n_c tokens
drawn there, a_j being the token's advantage and e_y the one-hot vector of word y:

    u_c  = sum_{j at c} a_j (e_{y_j} - p_c)            realised
    u*_c = n_c p_c (Q_c - V_c),    V_c = <p_c, Q_c>    ideal: the policy gradient, at the visits

In expectation over redrawn words and groups, given the visits, every token rule here pushes ideally
up to a factor:

    E u_c = s_c u*_c,              s_c = E[A | reward 1] - E[A | reward 0]

since a reward of 0 or 1 is all that the rest of a rollout tells its advantage. With one constant k
for the rule, that of least squares, the push is

    u_c = k u*_c [signal] + (s_c - k) u*_c [bias] + (u_c - s_c u*_c) [noise]

so bias only weighs prompts unequally. (The reward is 0 or 1; of other rewards only the mean
advantage would count.)

Letters: B rollouts, T tokens, N tokens in the mask, C contexts, V vocabulary, G group size, P
prompts.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from workbook.messages import InvalidValue, require_one_of

from .advantages import active, group_advantages, group_index
from .choices import ESTIMATORS, FORMER_RULE_NAMES

# rules whose expected push has a closed form
GAIN_RULES = (*ESTIMATORS, "known_credit", "permuted", "coin_reward")


@dataclass(frozen=True)
class PushParts:
    """Parts of the pushes on C contexts, which add up to the realised push.

    scale: the rule's constant k.
    """

    signal: Float[Tensor, "C V"]
    bias: Float[Tensor, "C V"]
    noise: Float[Tensor, "C V"]
    scale: float

    @property
    def total(self) -> Float[Tensor, "C V"]:
        """The realised push."""
        return self.signal + self.bias + self.noise


def context_index(
    prompts: Shaped[Tensor, " B"], completion_ids: Int[Tensor, "B T"], mask: Shaped[Tensor, "B T"]
) -> Int[Tensor, "B T"]:
    """Number the contexts: tokens of one prompt with the same tokens before them stand in one.

    prompts: a label of each rollout's prompt. Result (B, T), -1 outside the mask.

    >>> ids = torch.tensor([[5, 1], [5, 2], [6, 1]])
    >>> context_index(torch.zeros(3), ids, torch.ones(3, 2)).tolist()
    [[0, 1], [0, 1], [0, 2]]
    """
    alive = active(mask, completion_ids, "completion_ids")
    words, word = torch.unique(completion_ids, return_inverse=True)  # word: (B, T), from 0 on
    index = torch.full_like(completion_ids, -1)
    contexts = 0

    # a state is a prompt with the tokens so far
    state, _ = group_index(prompts, len(completion_ids))  # (B,)
    for t in range(completion_ids.shape[1]):
        here = alive[:, t]
        # states that no rollout goes on from are no contexts
        visited, place = torch.unique(state[here], return_inverse=True)
        index[here, t] = contexts + place
        contexts += len(visited)
        state, _ = group_index(state * len(words) + word[:, t], len(state))
    return index


def realised_pushes(
    advantages: Float[Tensor, " N"],
    tokens: Int[Tensor, " N"],
    context: Int[Tensor, " N"],
    probs: Float[Tensor, "C V"],
) -> Float[Tensor, "C V"]:
    """Pushes u_c = sum_{j at c} a_j (e_{y_j} - p_c) of N tokens, each in its context.

    >>> token, context = torch.tensor([0]), torch.tensor([0])
    >>> realised_pushes(torch.ones(1), token, context, torch.tensor([[0.25, 0.75]])).tolist()
    [[0.75, -0.75]]
    """
    # sum of a_j e_{y_j}; its entries add up to the context's sum of a_j
    pushed = torch.zeros_like(probs).index_put(
        (context, tokens), advantages.to(probs.dtype), accumulate=True
    )
    return pushed - pushed.sum(1, keepdim=True) * probs


def ideal_pushes(
    visits: Shaped[Tensor, " C"], probs: Float[Tensor, "C V"], q: Float[Tensor, "C V"]
) -> Float[Tensor, "C V"]:
    """Pushes u*_c = n_c p_c (Q_c - V_c) of the policy gradient at contexts visited n_c times.

    visits: n_c.
    q: expected reward after each word of the vocabulary.
    """
    value = (probs * q).sum(1, keepdim=True)
    return visits.to(probs.dtype).unsqueeze(1) * probs * (q - value)


def split_pushes(
    realised: Float[Tensor, "C V"],
    ideal: Float[Tensor, "C V"],
    gain: Float[Tensor, " C"],
    scale: float | None = None,
) -> PushParts:
    """Split pushes into signal, bias and noise.

    gain: s_c of each context's rule.
    scale: the rule's constant k, by default that of least squares, k = sum s_c |u*_c|^2 / sum
    |u*_c|^2, and 0 where there is no ideal push.
    """
    if scale is None:
        weight = ideal.square().sum(1)  # (C,)
        total = weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
        scale = float((gain * weight).sum() / total)
    expected = gain.unsqueeze(1) * ideal
    signal = scale * ideal
    return PushParts(signal, bias=expected - signal, noise=realised - expected, scale=scale)


def expected_gain(rule: str, values: Float[Tensor, " P"], group_size: int) -> Float[Tensor, " P"]:
    """Expected advantage of a rollout of reward 1 minus that of one of reward 0.

        s = E[A | r = 1] - E[A | r = 0]

    on average over the rest of its batch: the other G - 1 rewards of its group are 1 with
    probability V.

    rule: one of GAIN_RULES; known_credit, whose advantage is Q - V itself, has gain 1; permuted and
    coin_reward have none.
    values: expected reward V of each prompt of the batch, each of which has one group of group_size
    rollouts.

    Raises ValueError for another rule and for values outside [0, 1].

    >>> values = torch.tensor([0.05, 0.5, 0.9]).double()
    >>> [round(float(k), 3) for k in expected_gain("dr_grpo", values, group_size=8)]
    [0.875, 0.875, 0.875]
    >>> [round(float(k), 2) for k in expected_gain("grpo", values, group_size=8)]
    [2.31, 1.74, 2.18]
    """
    rule = FORMER_RULE_NAMES.get(rule, rule)
    require_one_of("rule", rule, GAIN_RULES)
    if not ((values >= -1e-6) & (values <= 1 + 1e-6)).all():
        farthest = (values - 0.5).abs().argmax()
        raise InvalidValue("values", float(values[farthest]), "in [0, 1]")
    values = values.clamp(0, 1)
    if rule == "known_credit":
        return torch.ones_like(values)
    if rule not in ESTIMATORS:
        return torch.zeros_like(values)
    if rule == "reinforce":
        # its baseline depends on the other prompts of the batch
        others, chances = _other_rewards(values, group_size)
        return (chances * _batch_baseline_gain(values, group_size, others)).sum(1)
    high, low = expected_advantages(rule, values, group_size)
    return high - low


def expected_advantages(
    rule: str, values: Float[Tensor, " P"], group_size: int
) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """E[A | r = 1] and E[A | r = 0] of an estimator that reads the rewards of a group alone.

    Arguments as in `expected_gain`.

    >>> [float(a) for a in expected_advantages("dr_grpo", torch.tensor([0.5]), group_size=4)]
    [0.375, -0.375]
    """
    others, chances = _other_rewards(values.clamp(0, 1), group_size)
    # by the number of other rewards of 1: (G,)
    high = _advantage(rule, group_size, 1.0, others)
    low = _advantage(rule, group_size, 0.0, others)
    return chances @ high, chances @ low


def _other_rewards(
    values: Float[Tensor, " P"], group_size: int
) -> tuple[Float[Tensor, " G"], Float[Tensor, "P G"]]:
    """How many of the other G - 1 rewards of a group are 1, and each number's chance."""
    others = torch.arange(group_size, dtype=values.dtype, device=values.device)
    binomial = torch.distributions.Binomial(group_size - 1, values.unsqueeze(1))
    return others, binomial.log_prob(others).exp()


def _advantage(
    rule: str, group_size: int, own: float, others: Float[Tensor, " G"]
) -> Float[Tensor, " G"]:
    """Advantage of a rollout of reward `own` whose group has so many other rewards of 1."""
    # a group for each number of others, (G groups, G rollouts), the rollout itself first
    rest = torch.arange(group_size - 1, device=others.device) < others.unsqueeze(1)
    first = torch.full_like(others, own).unsqueeze(1)
    rewards = torch.cat([first, rest.to(others.dtype)], dim=1)
    groups = torch.arange(group_size, device=others.device).repeat_interleave(group_size)
    advantages = group_advantages(rewards.flatten(), groups, rule).view(group_size, group_size)
    return advantages[:, 0]


def _batch_baseline_gain(
    values: Float[Tensor, " P"], group_size: int, others: Float[Tensor, " G"]
) -> Float[Tensor, "P G"]:
    """A(1) - A(0) of REINFORCE, by prompt and number of the group's other rewards of 1.

    The baseline is the batch's mean; groups of equal rewards are left out.
    """
    batch = len(values) * group_size
    # (P, 1): expected rewards of the other prompts
    rest = group_size * (values.sum() - values).unsqueeze(1)
    high = (1 - (1 + others + rest) / batch) * (others < group_size - 1)
    low = -(others + rest) / batch * (others > 0)
    return high - low
