"""Signal, noise and bias of a step's pushes: what one reward per rollout delivers of what known
credit would.

The push on the logits of context c (a prompt with the words so far) adds up over the n_c tokens
drawn there:

    u_c  = sum_{j at c} a_j (e_{y_j} - p_c)                       realised; a_j the token's advantage
    u*_c = n_c p_c (Q_c - V_c),    V_c = <p_c, Q_c>               ideal: the policy gradient at the visited contexts

In expectation over redrawn words and groups, given the visits, every token rule here pushes ideally
up to a factor:

    E u_c = s_c u*_c,              s_c = E[A | reward 1] - E[A | reward 0]

since a reward of 0 or 1 is all that the rest of a rollout tells its advantage. With one constant k
for the rule, that of least squares, the push is

    u_c = k u*_c [signal] + (s_c - k) u*_c [bias] + (u_c - s_c u*_c) [noise]

so bias only weighs prompts unequally. (The reward is 0 or 1; of other rewards only the mean
advantage would count.)

Letters: B rollouts, T tokens, C contexts, V vocabulary, G group size, P prompts.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from workbook.messages import InvalidValue, require_one_of

from .advantages import active, group_advantages, group_index
from .choices import ESTIMATORS

GAIN_RULES = (*ESTIMATORS, "oracle", "permuted", "coin_reward")


@dataclass(frozen=True)
class PushParts:
    """Parts (C, V) of the pushes on C contexts, which add up to the realised push, and the rule's
    constant.
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
    """Number the contexts: tokens of the same prompt with the same tokens before them stand in one;
    -1 outside.

    prompts: a label of each rollout's prompt.

    >>> context_index(torch.zeros(3), torch.tensor([[5, 1], [5, 2], [6, 1]]), torch.ones(3, 2)).tolist()
    [[0, 1], [0, 1], [0, 2]]
    """
    alive = active(mask, completion_ids, "completion_ids")
    state, _ = group_index(prompts, len(completion_ids))
    words, word = torch.unique(completion_ids, return_inverse=True)
    index, first = torch.full_like(completion_ids, -1), 0
    for t in range(completion_ids.shape[1]):
        here = alive[:, t]
        used, place = torch.unique(state[here], return_inverse=True)
        index[here, t] = first + place
        first += len(used)
        state, _ = group_index(state * len(words) + word[:, t], len(state))
    return index


def realised_pushes(
    advantages: Float[Tensor, " N"],
    tokens: Int[Tensor, " N"],
    context: Int[Tensor, " N"],
    probs: Float[Tensor, "C V"],
) -> Float[Tensor, "C V"]:
    """Pushes u_c = sum_{j at c} a_j (e_{y_j} - p_c) of N tokens, each in its context.

    >>> realised_pushes(torch.ones(1), torch.tensor([0]), torch.tensor([0]), torch.tensor([[0.25, 0.75]])).tolist()
    [[0.75, -0.75]]
    """
    pushed = torch.zeros_like(probs).index_put(
        (context, tokens), advantages.to(probs.dtype), accumulate=True
    )
    return pushed - pushed.sum(1, keepdim=True) * probs


def ideal_pushes(
    visits: Shaped[Tensor, " C"], probs: Float[Tensor, "C V"], q: Float[Tensor, "C V"]
) -> Float[Tensor, "C V"]:
    """Pushes u*_c = n_c p_c (Q_c - V_c) of the policy gradient at contexts that were visited n_c
    times.
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

    gain (C,): s_c of each context's rule.  scale: the rule's constant k, by default that of least
    squares, k = sum s_c |u*_c|^2 / sum |u*_c|^2, and 0 where there is no ideal push.
    """
    if scale is None:
        weight = ideal.square().sum(1)
        scale = float(
            (gain * weight).sum() / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
        )
    expected = gain.unsqueeze(1) * ideal
    return PushParts(scale * ideal, expected - scale * ideal, realised - expected, scale)


def expected_gain(rule: str, values: Float[Tensor, " P"], group_size: int) -> Float[Tensor, " P"]:
    """How much more advantage a rollout of reward 1 gets than one of reward 0, on average over the
    rest of its batch.

        s = E[A | r = 1] - E[A | r = 0]       the other G - 1 rewards of its group are 1 with probability V

    values (P,): expected reward V of each prompt of the batch, each of which has one group of
    group_size rollouts.
    rule: one of GAIN_RULES; oracle, whose advantage is Q - V itself, has gain 1; permuted and
    coin_reward have none.

    Raises ValueError for another rule and for values outside [0, 1].

    >>> [round(float(k), 3) for k in expected_gain("dr_grpo", torch.tensor([0.05, 0.5, 0.9]).double(), group_size=8)]
    [0.875, 0.875, 0.875]
    >>> [round(float(k), 2) for k in expected_gain("grpo", torch.tensor([0.05, 0.5, 0.9]).double(), group_size=8)]
    [2.31, 1.74, 2.18]
    """
    require_one_of("rule", rule, GAIN_RULES)
    if not ((values >= -1e-6) & (values <= 1 + 1e-6)).all():
        raise InvalidValue("values", float(values[((values - 0.5).abs()).argmax()]), "in [0, 1]")
    values = values.clamp(0, 1)
    if rule == "oracle":
        return torch.ones_like(values)
    if rule not in ESTIMATORS:
        return torch.zeros_like(values)
    if rule == "reinforce":
        others, chances = _others(values, group_size)
        return (chances * _batch_baseline(values, group_size, others)).sum(1)
    high, low = expected_advantages(rule, values, group_size)
    return high - low


def expected_advantages(
    rule: str, values: Float[Tensor, " P"], group_size: int
) -> tuple[Float[Tensor, " P"], Float[Tensor, " P"]]:
    """E[A | r = 1] and E[A | r = 0] of a rule that reads the rewards of a group alone, as
    `expected_gain` has them.

    >>> [float(a) for a in expected_advantages("dr_grpo", torch.tensor([0.5]), group_size=4)]
    [0.375, -0.375]
    """
    others, chances = _others(values.clamp(0, 1), group_size)
    high, low = (_advantage(rule, group_size, own, others) for own in (1.0, 0.0))  # (G,) each
    return chances @ high, chances @ low


def _others(
    values: Float[Tensor, " P"], group_size: int
) -> tuple[Float[Tensor, " G"], Float[Tensor, "P G"]]:
    """How many of the other G - 1 rewards of a group are 1, and each number's chance."""
    others = torch.arange(group_size, dtype=values.dtype, device=values.device)
    return (
        others,
        torch.distributions.Binomial(group_size - 1, values.unsqueeze(1)).log_prob(others).exp(),
    )


def _advantage(
    rule: str, group_size: int, own: float, others: Float[Tensor, " G"]
) -> Float[Tensor, " G"]:
    """Advantage of a rollout of reward `own` whose group has so many other rewards of 1."""
    rewards = (torch.arange(group_size - 1, device=others.device) < others.unsqueeze(1)).to(
        others.dtype
    )
    # (G groups, G rollouts)
    rewards = torch.cat([torch.full_like(others, own).unsqueeze(1), rewards], dim=1)
    groups = torch.arange(group_size, device=others.device).repeat_interleave(group_size)
    return group_advantages(rewards.flatten(), groups, rule).view(group_size, group_size)[:, 0]


def _batch_baseline(
    values: Float[Tensor, " P"], group_size: int, others: Float[Tensor, " G"]
) -> Float[Tensor, "P G"]:
    """A(1) - A(0) of REINFORCE with the batch's mean as baseline and groups of equal rewards left
    out.
    """
    batch, rest = len(values) * group_size, group_size * (values.sum() - values).unsqueeze(1)
    high = (1 - (1 + others + rest) / batch) * (others < group_size - 1)
    low = -(others + rest) / batch * (others > 0)
    return high - low
