"""What a group pushes in expectation and by chance, exactly (`toy` draws groups): signal, bias,
noise and coupling.

A rollout of reward r draws word y at a softmax with probability f_r(y), has the advantage A_r,
which depends on the number k of right rollouts in its group alone, and the weight w. The mean push
of a group on the logits is

    g = 1/G sum_i A_i w_i (e_i - p)

Given k, the rollouts are independent, so mean and second moment of g are sums over k, Binomial(G,
chance of reward 1):

    E[g | k]   = (k A_1 m_1 + (G - k) A_0 m_0) / G                        m_r = E[w (e - p) | r]
    Cov[g | k] = (k A_1^2 C_1 + (G - k) A_0^2 C_0) / G^2                  C_r = Cov[w (e - p) | r]

With the model as its own sampler and weights of 1, E[g] = s p (Q - V), s = E[A | r = 1] - E[A | r =
0]: the policy gradient (`workbook.theory.decomposition.expected_gain` is s). V words in a softmax,
P prompts.
"""

from __future__ import annotations

import math
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
MIXED, TEACHING = (
    "groups that hold both rewards",
    "prompts that teach, of those possible with pairs",
)


@dataclass(frozen=True)
class Word:
    """One softmax of a rollout: the model's and the sampler's probabilities (V,), the chance (V,)
    of reward 1 after each word, and E[w | y, r], E[w^2 | y, r] of the rollout's weight, both (V,
    2), column r."""

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
    means, covariances = [], []
    for reward, joint in enumerate((word.sampler * (1 - word.chance), word.sampler * word.chance)):
        drawn = joint / max(joint.sum(), 1e-300)  # f_r
        residual = np.eye(len(drawn)) - word.model  # e - p, a row per word
        means.append(drawn * word.weight[:, reward] @ residual)
        square = (residual.T * (drawn * word.weight_square[:, reward])) @ residual
        covariances.append(square - np.outer(means[-1], means[-1]))
    right = np.arange(group_size + 1)  # k
    counts = np.stack([group_size - right, right], axis=1)  # (K, 2), column r
    # (K, G)
    rewards = (torch.arange(group_size) < torch.arange(group_size + 1).unsqueeze(1)).double()
    ids = torch.arange(group_size + 1).repeat_interleave(group_size)
    table = group_advantages(rewards.flatten(), ids, rule).view_as(rewards).numpy()
    advantages = table[:, [-1, 0]]  # (K, 2), of a rollout of reward 0 or 1 among k right ones
    odds = binom.pmf(right, group_size, float(word.sampler @ word.chance))
    given = (counts * advantages) @ np.stack(means) / group_size  # (K, V), E[g | k]
    mean = odds @ given
    within = np.tensordot(
        (odds @ (counts * advantages**2)) / group_size**2, np.stack(covariances), 1
    )
    return mean, within + (given - mean).T * odds @ (given - mean)


def toy_words(
    temperature: float = 1.0, weights: str = "equal", p_right: float = 0.5
) -> dict[str, Word]:
    """Return the toy's three softmaxes by class, with a sampler at a temperature and a rule for the
    rollouts' weights.

    A rollout is as long as its opening says, LENGTHS, times two where it is wrong and `weights`
    says so.
    """
    require_one_of("weights", weights, list(WEIGHTS))
    require_range(0, math.inf, closed=False, temperature=temperature)
    policy = {name: p[0] for name, p in make_policy(1, p_right).items()}
    drawn = {
        name: p ** (1 / temperature) / (p ** (1 / temperature)).sum() for name, p in policy.items()
    }
    by_length, wrong = WEIGHTS[weights]
    inverse = 1 / np.array(LENGTHS) if by_length else np.ones(len(LENGTHS))
    factor = np.array([1 / wrong, 1.0])  # of reward 0 and 1
    words = {}
    for name, p in policy.items():
        right = np.eye(len(p))[0] if name == "result" else np.full(len(p), drawn["result"][0])
        own, square = (
            w if name == "style" else np.full(len(p), drawn["style"] @ w)
            for w in (inverse, inverse**2)
        )
        words[name] = Word(
            p, drawn[name], right, np.outer(own, factor), np.outer(square, factor**2)
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
    """Split the squared movement of one step, exactly, a row per class of word and part; columns of
    `parts_table`.

    prompts: 1 or more, of which each has another right answer.  cosine: of the hidden states of two
    prompts, by which a push on one's logits arrives at the other's.  temperature: of the sampler
    alone.  weights: of WEIGHTS. Movement is of log-probabilities, sum_y p_y (dlogp_y)^2, on average
    over groups and prompts.
    """
    require_range(1, math.inf, prompts=prompts)
    require_range(-1, 1, cosine=cosine)
    words = toy_words(temperature, weights)
    moments = {name: push_moments(word, group_size, estimator) for name, word in words.items()}
    ideal = {name: word.ideal for name, word in words.items()}
    scale = sum(moments[name][0] @ ideal[name] for name in CLASSES) / sum(
        push @ push for push in ideal.values()
    )
    rows = []
    for name in CLASSES:
        mean, covariance = moments[name]
        pushes = np.stack([scale * ideal[name], mean - scale * ideal[name]])  # (2, V): signal, bias
        # prompt k's right answer is word k: its softmax is the first one's, turned by k
        turns = [
            np.roll(np.arange(len(mean)), k if name == "result" else 0) for k in range(prompts)
        ]
        parts = np.zeros(len(_SIX))
        for n, turn in enumerate(turns):
            others = turns[:n] + turns[n + 1 :]
            model, own = words[name].model[turn], pushes[:, turn]
            coupled = cosine * sum((pushes[:, other] for other in others), np.zeros_like(own))
            spread = cosine**2 * sum(
                (covariance[np.ix_(o, o)] for o in others), np.zeros_like(covariance)
            )
            fisher = np.diag(model) - np.outer(model, model)  # x' F x = sum_y p_y dlogp_y^2
            along = fisher @ (own + coupled).sum(0)
            noise = [(fisher * matrix).sum() for matrix in (covariance[np.ix_(turn, turn)], spread)]
            parts += [*(own @ along), noise[0], *(coupled @ along), noise[1]]
        rows.append(parts / prompts)
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


def compute_mixed(success: float = 0.4, spread: float = 0.3, rollouts: int = 128) -> pd.DataFrame:
    """Groups that hold both rewards, so that they teach, by rollouts per prompt, at a fixed number
    of rollouts.

    A group of G rollouts of a prompt solved with probability q holds both with 1 - q^G - (1 - q)^G;
    q is drawn from a Beta distribution of mean `success`.  spread: its 1 / (1 + a + b): 0 all
    prompts alike, towards 1 prompts that are always or never solved.  Columns group_size, series,
    mean, low, high (expectations, so the three are equal), prompts (how many prompts the rollouts
    are of), teaching (expected number of mixed groups).

    >>> compute_mixed(0.5, 0.0, 8).query("group_size == 2")["mean"].tolist()
    [0.5, 0.5]
    """

    def all_right(mean: float, size: int) -> float:  # E[q^G] = B(a + G, b) / B(a, b)
        if spread == 0 or mean in (0, 1):
            return mean**size
        total = 1 / spread - 1
        a = mean * total
        return math.exp(
            math.lgamma(a + size) - math.lgamma(a) + math.lgamma(total) - math.lgamma(total + size)
        )

    rows = []
    for size in (2**k for k in range(1, rollouts.bit_length()) if 2**k <= rollouts):
        share, prompts = (
            1 - all_right(success, size) - all_right(1 - success, size),
            rollouts // size,
        )
        values = {MIXED: share, TEACHING: share * prompts / (rollouts // 2)}
        rows += [
            (size, series, value, value, value, prompts, share * prompts)
            for series, value in values.items()
        ]
    return pd.DataFrame(
        rows, columns=["group_size", "series", "mean", "low", "high", "prompts", "teaching"]
    )
