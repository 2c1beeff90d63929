"""What a group pushes in expectation and by chance, exactly: signal, bias, noise and coupling of the toy of chapter 02.

A rollout of reward r draws word y at a softmax with probability f_r(y), has the advantage A_r, which depends on the
number k of right rollouts in its group alone, and the weight w. The mean push of a group on the logits is

    g = 1/G sum_i A_i w_i (e_i - p)

Given k, the rollouts are independent, so mean and second moment of g are sums over k, Binomial(G, chance of reward 1):

    E[g | k]   = (k A_1 m_1 + (G - k) A_0 m_0) / G                        m_r = E[w (e - p) | r]
    Cov[g | k] = (k A_1^2 C_1 + (G - k) A_0^2 C_0) / G^2                  C_r = Cov[w (e - p) | r]

With the model as its own sampler and weights of 1, E[g] = s p (Q - V), s = E[A | r = 1] - E[A | r = 0]: the policy
gradient (`workbook.theory.decomposition.expected_gain` is s). V words in a softmax, P prompts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from workbook.theory.advantages import group_advantages
from workbook.theory.choices import check_choice, check_range
from workbook.topics.groups.toy import CLASSES, make_policy
from workbook.views.parts import parts_table

RULES = ["grpo", "dr_grpo", "rloo", "positive_only"]  # whose advantage depends on the group's rewards alone
LENGTHS = (3, 4, 5, 6, 7, 8)  # tokens of a right answer, by its opening
SIX = [f"{where}_{part}" for where in ("own", "coupled") for part in ("signal", "bias", "noise")]
WEIGHTS = {  # name: (whether 1 / length, how many times as long a wrong answer is)
    "equal": (False, 1.0),
    "1/length, right and wrong alike": (True, 1.0),
    "1/length, wrong twice as long": (True, 2.0),
}


@dataclass(frozen=True)
class Word:
    """One softmax of a rollout: the model's and the sampler's probabilities (V,), the chance (V,) of reward 1 after
    each word, and E[w | y, r], E[w^2 | y, r] of the rollout's weight, both (V, 2), column r."""

    model: Float[np.ndarray, " V"]
    sampler: Float[np.ndarray, " V"]
    chance: Float[np.ndarray, " V"]
    weight: Float[np.ndarray, "V 2"]
    weight_square: Float[np.ndarray, "V 2"]

    @classmethod
    def plain(cls, model, chance) -> Word:
        """A word drawn by the model itself, with weights of 1."""
        model, one = np.asarray(model, dtype=float), np.ones((len(model), 2))
        return cls(model, model, np.asarray(chance, dtype=float), one, one)

    @property
    def ideal(self) -> Float[np.ndarray, " V"]:
        """The policy gradient's push p (Q - V)."""
        return self.model * (self.chance - self.model @ self.chance)


def push_moments(word: Word, group_size: int, rule: str) -> tuple[Float[np.ndarray, " V"], Float[np.ndarray, "V V"]]:
    """Mean (V,) and covariance (V, V) of a group's mean push on the logits of one softmax.

    >>> mean, _ = push_moments(Word.plain([0.5, 0.3, 0.2], [1.0, 0.0, 0.0]), 4, "rloo")
    >>> (mean / (np.array([0.5, 0.3, 0.2]) * (np.array([1.0, 0.0, 0.0]) - 0.5))).round(9).tolist()
    [1.0, 1.0, 1.0]
    """
    check_choice("rule", rule, RULES)
    check_range(2, math.inf, group_size=group_size)
    first, covariance = zip(*(_by_reward(word, reward) for reward in (0, 1)), strict=True)
    right = np.arange(group_size + 1)  # k
    counts = np.stack([group_size - right, right], axis=1)  # (K, 2), column r
    advantages = _advantages(group_size, rule)
    odds = _binomial(group_size, float(word.sampler @ word.chance))
    given = (counts * advantages) @ np.stack(first) / group_size  # (K, V), E[g | k]
    mean = odds @ given
    spread = (odds @ (counts * advantages**2)) / group_size**2  # (2,)
    within = np.tensordot(spread, np.stack(covariance), 1)
    between = (given - mean).T * odds @ (given - mean)
    return mean, within + between


def _by_reward(word: Word, reward: int) -> tuple[Float[np.ndarray, " V"], Float[np.ndarray, "V V"]]:
    """Mean and covariance of w (e - p) of a rollout of this reward; 0 where there is none."""
    joint = word.sampler * (word.chance if reward else 1 - word.chance)
    drawn = joint / max(joint.sum(), 1e-300)  # f_r
    residual = np.eye(len(drawn)) - word.model  # e - p, a row per word
    mean = drawn * word.weight[:, reward] @ residual
    square = (residual.T * (drawn * word.weight_square[:, reward])) @ residual
    return mean, square - np.outer(mean, mean)


@cache
def _advantages(group_size: int, rule: str) -> Float[np.ndarray, "K 2"]:
    """Advantage of a rollout of reward 0 (column 0) or 1 in groups with k = 0 ... G right ones."""
    rewards = (torch.arange(group_size) < torch.arange(group_size + 1).unsqueeze(1)).double()  # (K, G)
    ids = torch.arange(group_size + 1).repeat_interleave(group_size)
    table = group_advantages(rewards.flatten(), ids, rule).view_as(rewards).numpy()
    return np.stack([table[:, -1], table[:, 0]], axis=1)


def _binomial(count: int, chance: float) -> Float[np.ndarray, " K"]:
    """Probabilities of 0 ... count successes."""
    ways = np.array([math.comb(count, k) for k in range(count + 1)], dtype=float)
    return ways * chance ** np.arange(count + 1) * (1 - chance) ** np.arange(count, -1, -1)


def toy_words(temperature: float = 1.0, weights: str = "equal", p_right: float = 0.5) -> dict[str, Word]:
    """Return the toy's three softmaxes by class, with a sampler at a temperature and a rule for the rollouts' weights.

    A rollout is as long as its opening says, LENGTHS, times two where it is wrong and `weights` says so.
    """
    check_choice("weights", weights, list(WEIGHTS))
    check_range(0, math.inf, closed=False, temperature=temperature)
    policy = {name: p[0] for name, p in make_policy(1, p_right).items()}
    drawn = {name: p ** (1 / temperature) / (p ** (1 / temperature)).sum() for name, p in policy.items()}
    by_length, wrong = WEIGHTS[weights]
    lengths = np.array(LENGTHS[: len(drawn["style"])], dtype=float)
    inverse = 1 / lengths if by_length else np.ones_like(lengths)
    factor = np.array([1 / wrong, 1.0])  # of reward 0 and 1
    words = {}
    for name, p in policy.items():
        right = np.eye(len(p))[0] if name == "result" else np.full(len(p), drawn["result"][0])
        own = inverse if name == "style" else np.full(len(p), drawn["style"] @ inverse)
        square = inverse**2 if name == "style" else np.full(len(p), drawn["style"] @ inverse**2)
        words[name] = Word(p, drawn[name], right, np.outer(own, factor), np.outer(square, factor**2))
    return words


def compute_parts(
    group_size: int = 8,
    estimator: str = "grpo",
    prompts: int = 1,
    cosine: float = 0.2,
    temperature: float = 1.0,
    weights: str = "equal",
) -> pd.DataFrame:
    """Split the squared movement of one step, exactly, a row per class of word and part; columns of `parts_table`.

    prompts: 1 or more, of which each has another right answer.  cosine: of the hidden states of two prompts, by which
    a push on one's logits arrives at the other's.  temperature: of the sampler alone.  weights: of WEIGHTS.
    Movement is of log-probabilities, sum_y p_y (dlogp_y)^2, on average over groups and prompts.
    Raises ValueError for settings out of range, named.
    """
    check_range(1, math.inf, prompts=prompts)
    check_range(-1, 1, cosine=cosine)
    words = toy_words(temperature, weights)
    moments = {name: push_moments(word, group_size, estimator) for name, word in words.items()}
    ideal = {name: word.ideal for name, word in words.items()}
    scale = sum(moments[name][0] @ ideal[name] for name in CLASSES) / sum(push @ push for push in ideal.values())
    parts = np.array([_class_parts(name, words[name], moments[name], scale, prompts, cosine) for name in CLASSES])
    parts = np.vstack([parts, parts.sum(0)])  # (classes and all, six parts)
    total = parts.sum(1)
    shares = pd.DataFrame(parts / total[:, None], columns=SIX)
    shares = shares.assign(category=[*CLASSES, "all"], change_rms=np.sqrt(total), tokens=prompts * group_size)
    return parts_table(shares)


def _class_parts(name: str, word: Word, moments, scale: float, prompts: int, cosine: float) -> np.ndarray:
    """What each of the six parts (SIX) adds to the squared movement of one class, a mean over prompts."""
    mean, covariance = moments
    pushes = np.stack([scale * word.ideal, mean - scale * word.ideal])  # (2, V): signal, bias
    turns = [np.roll(np.arange(len(mean)), k if name == "result" else 0) for k in range(prompts)]  # other right words
    parts = np.zeros(len(SIX))
    for n, turn in enumerate(turns):
        others = turns[:n] + turns[n + 1 :]
        model, own = word.model[turn], pushes[:, turn]
        coupled = cosine * sum((pushes[:, other] for other in others), np.zeros_like(own))
        spread = cosine**2 * sum((covariance[np.ix_(o, o)] for o in others), np.zeros_like(covariance))
        fisher = np.diag(model) - np.outer(model, model)  # x' F x = sum_y p_y dlogp_y^2
        along = fisher @ (own + coupled).sum(0)
        noise = [(fisher * matrix).sum() for matrix in (covariance[np.ix_(turn, turn)], spread)]
        parts += [*(own @ along), noise[0], *(coupled @ along), noise[1]]
    return parts / prompts
