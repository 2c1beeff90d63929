"""What a group pushes in expectation and by chance, exactly: signal, bias, noise and coupling.

`toy` draws groups; here the same model is summed over all groups that it can draw. A rollout of
reward r draws word y at a softmax with probability f_r(y). Its advantage A_r depends only on the
number k of right rollouts in its group; w is its weight. The mean push of a group on the logits is

    g = 1/G sum_i A_i w_i (e_i - p)

Given k, the rollouts are independent. So mean and second moment of g are sums over k, which is
Binomial(G, chance of reward 1):

    E[g | k]   = (k A_1 m_1 + (G - k) A_0 m_0) / G                        m_r = E[w (e - p) | r]
    Cov[g | k] = (k A_1^2 C_1 + (G - k) A_0^2 C_0) / G^2                  C_r = Cov[w (e - p) | r]

If the model is its own sampler and all weights are 1, the mean is the policy gradient times the
gain s of the rule (`workbook.theory.decomposition.expected_gain`):

    E[g] = s p (Q - V)        s = E[A | r = 1] - E[A | r = 0]

What the mean has beyond a multiple of p (Q - V) is bias; the covariance is noise.

G rollouts in a group, V words in a softmax, P prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import binom

from workbook.chapters.groups.toy import CLASSES, make_policy
from workbook.messages import require_one_of, require_range
from workbook.theory.advantages import group_advantages
from workbook.views.charts import parts_table

# whose advantage depends on the group's rewards alone
RULES = ["grpo", "dr_grpo", "rloo", "positive_only"]
LENGTHS = (3, 4, 5)  # tokens of a right answer, by its opening
_SIX = [f"{where}_{part}" for where in ("own", "coupled") for part in ("signal", "bias", "noise")]
WEIGHTS = {  # name: (whether 1 / length, how many times as long a wrong answer is)
    "equal": (False, 1.0),
    "1/length, right and wrong alike": (True, 1.0),
    "1/length, wrong twice as long": (True, 2.0),
}
MIXED = "groups that hold both rewards"
TEACHING = "prompts that teach, of those possible with pairs"


@dataclass(frozen=True)
class Word:
    """One softmax of a rollout: who draws its words, and what each word means for the reward.

    Attributes:
        model: (V,) probabilities of the model
        sampler: (V,) probabilities of the sampler, which draws the words
        chance: (V,) of reward 1 after each word
        weight: (V, 2) E[w | y, r] of the rollout's weight w, column r
        weight_square: (V, 2) E[w^2 | y, r]
    """

    model: Float[np.ndarray, " V"]
    sampler: Float[np.ndarray, " V"]
    chance: Float[np.ndarray, " V"]
    weight: Float[np.ndarray, "V 2"]
    weight_square: Float[np.ndarray, "V 2"]

    @classmethod
    def plain(cls, model, chance) -> Word:
        """A word drawn by the model itself, with weights of 1."""
        model = np.asarray(model, dtype=float)
        ones = np.ones((len(model), 2))
        return cls(model, model, np.asarray(chance, dtype=float), ones, ones)

    @property
    def ideal(self) -> Float[np.ndarray, " V"]:
        """The policy gradient's push p (Q - V)."""
        return self.model * (self.chance - self.model @ self.chance)


def push_moments(
    word: Word, group_size: int, rule: str
) -> tuple[Float[np.ndarray, " V"], Float[np.ndarray, "V V"]]:
    """Mean (V,) and covariance (V, V) of a group's mean push on the logits of one softmax.

    >>> mean, _ = push_moments(Word.plain([0.5, 0.3, 0.2], [1.0, 0.0, 0.0]), 4, "rloo")
    >>> (mean / (np.array([0.5, 0.3, 0.2]) * (np.array([1.0, 0.0, 0.0]) - 0.5))).round(9).tolist()
    [1.0, 1.0, 1.0]
    """
    require_one_of("rule", rule, RULES)
    require_range(2, math.inf, group_size=group_size)
    scores = np.eye(len(word.model)) - word.model  # e - p, a row per word drawn
    means = []  # m_r
    covariances = []  # C_r
    for reward, joint in enumerate((word.sampler * (1 - word.chance), word.sampler * word.chance)):
        drawn = joint / max(joint.sum(), 1e-300)  # f_r
        mean = drawn * word.weight[:, reward] @ scores
        square = (scores.T * (drawn * word.weight_square[:, reward])) @ scores
        means.append(mean)
        covariances.append(square - np.outer(mean, mean))

    # a row per k = 0, ..., G, a column per reward
    counts, advantages = _counts_and_advantages(group_size, rule)
    odds = binom.pmf(counts[:, 1], group_size, float(word.sampler @ word.chance))

    # E[g | k], (K, V), and its mean over k
    given = (counts * advantages) @ np.stack(means) / group_size
    mean = odds @ given
    # Cov[g] = E[Cov[g | k]] + Cov[E[g | k]]
    share = odds @ (counts * advantages**2) / group_size**2
    within = np.tensordot(share, np.stack(covariances), 1)
    between = (given - mean).T * odds @ (given - mean)
    return mean, within + between


def _counts_and_advantages(
    group_size: int, rule: str
) -> tuple[Float[np.ndarray, "K 2"], Float[np.ndarray, "K 2"]]:
    """Rollouts of reward 0 and 1 in a group with k right ones, and their advantages, row k."""
    right = np.arange(group_size + 1)
    counts = np.stack([group_size - right, right], axis=1)
    # group k has its k right rollouts first, (K, G)
    rewards = (torch.arange(group_size) < torch.arange(group_size + 1).unsqueeze(1)).double()
    ids = torch.arange(group_size + 1).repeat_interleave(group_size)
    advantages = group_advantages(rewards.flatten(), ids, rule).view_as(rewards).numpy()
    # so the last rollout is wrong and the first is right, where there are such
    return counts, advantages[:, [-1, 0]]


def toy_words(
    temperature: float = 1.0, weights: str = "equal", p_right: float = 0.5
) -> dict[str, Word]:
    """Build the toy's three softmaxes by class, with a sampler and a rule for rollouts' weights.

    A rollout is as long as its opening says, LENGTHS, times two where it is wrong and `weights`
    says so.

    temperature: of the sampler.
    weights: of WEIGHTS.
    """
    require_one_of("weights", weights, list(WEIGHTS))
    require_range(0, math.inf, closed=False, temperature=temperature)
    policy = {name: p[0] for name, p in make_policy(1, p_right).items()}
    sampler = {}
    for name, p in policy.items():
        sharpened = p ** (1 / temperature)
        sampler[name] = sharpened / sharpened.sum()

    # a rollout's weight is 1 / its length, by its opening and its reward, or 1
    by_length, times_as_long = WEIGHTS[weights]
    by_opening = 1 / np.array(LENGTHS) if by_length else np.ones(len(LENGTHS))
    by_reward = np.array([1 / times_as_long, 1.0])  # of reward 0 and 1

    words = {}
    for name, p in policy.items():
        # only the result decides the reward
        if name == "result":
            chance = np.eye(len(p))[0]
        else:
            chance = np.full(len(p), sampler["result"][0])
        # only the opening knows the length; other words have its mean
        if name == "style":
            weight, square = by_opening, by_opening**2
        else:
            weight = np.full(len(p), sampler["style"] @ by_opening)
            square = np.full(len(p), sampler["style"] @ by_opening**2)
        words[name] = Word(
            model=p,
            sampler=sampler[name],
            chance=chance,
            weight=np.outer(weight, by_reward),
            weight_square=np.outer(square, by_reward**2),
        )
    return words


def compute_parts(
    group_size: int = 8,
    estimator: str = "grpo",
    prompts: int = 1,
    cosine: float = 0.2,
    temperature: float = 1.0,
    weights: str = "equal",
) -> pd.DataFrame:
    """Split the squared movement of one step, exactly, a row per class of word and part.

    Movement is of log-probabilities, sum_y p_y (dlogp_y)^2, on average over groups and prompts.
    Columns of `parts_table`.

    prompts: 1 or more, each with another right answer.
    cosine: of the hidden states of two prompts; a push on one's logits arrives at the other's times
        the cosine.
    temperature: of the sampler alone.
    weights: of WEIGHTS.
    """
    require_range(1, math.inf, prompts=prompts)
    require_range(-1, 1, cosine=cosine)
    words = toy_words(temperature, weights)
    moments = {name: push_moments(word, group_size, estimator) for name, word in words.items()}
    ideal = {name: word.ideal for name, word in words.items()}

    # signal: the multiple of the policy gradient that comes closest to the mean push of all classes
    along = sum(moments[name][0] @ ideal[name] for name in CLASSES)
    scale = along / sum(push @ push for push in ideal.values())

    rows = []
    for name in CLASSES:
        mean, covariance = moments[name]
        signal = scale * ideal[name]
        pushes = np.stack([signal, mean - signal])  # (2, V): signal, bias
        shifts = range(prompts) if name == "result" else [0] * prompts
        rows.append(_movement_parts(words[name].model, pushes, covariance, shifts, cosine))

    parts = np.vstack([*rows, sum(rows)])  # (classes and all, six parts)
    total = parts.sum(1)
    shares = pd.DataFrame(parts / total[:, None], columns=_SIX)
    return parts_table(
        shares.assign(
            category=[*CLASSES, "all"],
            change_rms=np.sqrt(total / [1, 1, 1, len(CLASSES)]),
            tokens=prompts * group_size,
        )
    )


def _movement_parts(
    model: Float[np.ndarray, " V"],
    pushes: Float[np.ndarray, "2 V"],
    covariance: Float[np.ndarray, "V V"],
    shifts: Sequence[int],
    cosine: float,
) -> Float[np.ndarray, " 6"]:
    """Squared movement of one class of word, in the parts of _SIX, on average over prompts.

    pushes: signal and bias of one prompt's group.
    shifts: one a prompt; its softmax is the model's turned by so many words, which makes another
        word the right answer.
    """
    turns = [np.roll(np.arange(len(model)), shift) for shift in shifts]
    parts = np.zeros(len(_SIX))
    for n, turn in enumerate(turns):
        # what the other prompts push arrives times the cosine; their noise is independent
        others = turns[:n] + turns[n + 1 :]
        own = pushes[:, turn]
        coupled = cosine * sum((pushes[:, other] for other in others), np.zeros_like(own))
        own_noise = covariance[np.ix_(turn, turn)]
        all_noise = sum(
            (covariance[np.ix_(other, other)] for other in others), np.zeros_like(covariance)
        )
        coupled_noise = cosine**2 * all_noise

        # x' F x = sum_y p_y dlogp_y^2 for a change x of the logits
        p = model[turn]
        fisher = np.diag(p) - np.outer(p, p)
        movement = fisher @ (own + coupled).sum(0)
        parts += [
            *(own @ movement),
            (fisher * own_noise).sum(),
            *(coupled @ movement),
            (fisher * coupled_noise).sum(),
        ]
    return parts / len(turns)


def compute_mixed(success: float = 0.4, spread: float = 0.3, rollouts: int = 128) -> pd.DataFrame:
    """Tabulate how many groups hold both rewards, so that they teach, by rollouts per prompt.

    A group of G rollouts of a prompt solved with probability q holds both with probability

        1 - q^G - (1 - q)^G

    and q is drawn from a Beta(a, b) distribution.

    success: its mean, a / (a + b).
    spread: 1 / (1 + a + b): at 0 all prompts are alike, towards 1 each is always or never solved.
    rollouts: of a batch, a fixed number.

    Columns group_size, series, mean, low, high (expectations, so the three are equal), prompts (how
    many prompts the rollouts are of), teaching (expected number of mixed groups).

    >>> compute_mixed(0.5, 0.0, 8).query("group_size == 2")["mean"].tolist()
    [0.5, 0.5]
    """
    rows = []
    sizes = [2**k for k in range(1, rollouts.bit_length()) if 2**k <= rollouts]
    for size in sizes:
        share = 1 - _all_right(success, spread, size) - _all_right(1 - success, spread, size)
        prompts = rollouts // size
        values = {MIXED: share, TEACHING: share * prompts / (rollouts // 2)}
        for series, value in values.items():
            rows.append((size, series, value, value, value, prompts, share * prompts))
    return pd.DataFrame(
        rows, columns=["group_size", "series", "mean", "low", "high", "prompts", "teaching"]
    )


def _all_right(mean: float, spread: float, size: int) -> float:
    """E[q^G] = B(a + G, b) / B(a, b), with q of Beta(a, b)."""
    if spread == 0 or mean in (0, 1):
        return mean**size
    total = 1 / spread - 1  # a + b
    a = mean * total
    return math.exp(
        math.lgamma(a + size) - math.lgamma(a) + math.lgamma(total) - math.lgamma(total + size)
    )
