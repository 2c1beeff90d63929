"""Toy rollouts of three words each, and what their advantages push: the model of chapter 02.

A rollout is an opening, a verb and a result, as in `so is 9`. Each word is drawn from a softmax of
its own:

    style      so, then, thus: a free choice with odds 6 : 3 : 2, without influence on the reward
    template   is, rarely `makes`: nearly always the same, without influence on the reward
    result     9 is right and pays a reward of 1; 8 and 1 are wrong

The net push of a group on the logits of one of these softmaxes is its exact gradient,

    sum_i A_i (e_i - p)

Two rollouts, `so is 9` with A = +1 and `so is 8` with A = -1, and p(so) = .55: on the logit of `so`
the first pushes +.45, the second -.45, and nothing is left. On the logit of `9`, at p(9) = .5, the
first pushes +.5 and the second +.5: what the rollouts share cancels, what tells them apart stays.

N groups, G rollouts in each, V words in a softmax.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

from workbook.messages import require_one_of, require_range
from workbook.theory.advantages import group_advantages

WORDS = {
    "style": ("so", "then", "thus", "hence", "now", "well"),
    "template": ("is", "makes"),
    "result": ("9", "8", "1"),
}
CLASSES = list(WORDS)
COMPARED = ["grpo", "dr_grpo", "rloo", "reinforce", "positive_only"]
SIGN_RULES = ["by reward", "shuffled", "all positive"]
PROMPTS = 4  # levels of difficulty that the groups of a batch go through
# tokens of the book's two rollouts, A and B, and where the pushes on them come from
PUSHED = ["“start”, in A and in B", "“9”, in A only", "“8”, in B only"]
SOURCES = ["from A", "from B", "net"]


def push_on_logits(
    tokens: Int[np.ndarray, "*N G"],
    advantages: Float[np.ndarray, "*N G"],
    probabilities: Float[np.ndarray, "*N V"],
) -> Float[np.ndarray, "*N G V"]:
    """Compute the push of each rollout on the logits of one softmax, A_i (e_i - p).

    The sum over rollouts is the net push.

    tokens: (G,) what each rollout drew there.
    advantages: (G,).
    probabilities: (V,).
    All three may have group axes before.

    >>> push_on_logits([0, 0], [1, -1], [0.5, 0.5]).sum(0).tolist()
    [0.0, 0.0]
    """
    p = np.asarray(probabilities, dtype=float)
    drawn = np.eye(p.shape[-1])[np.asarray(tokens)]  # e, (*N, G, V)
    scores = drawn - p[..., None, :]
    return np.asarray(advantages, dtype=float)[..., None] * scores


def push_on_word(word: str, said: Sequence[str], advantages: Sequence[float], p: float) -> float:
    """Sum a group's pushes on one word's logit in one context, sum_i A_i ([said_i = word] - p).

    said: what each rollout says in the context.
    advantages: of these rollouts.
    p: probability of the word.

    >>> push_on_word("start", ["start", "start"], [1.0, -1.0], 0.25)
    0.0
    """
    total = 0.0
    for other, advantage in zip(said, advantages, strict=True):
        e = 1.0 if other == word else 0.0
        total += advantage * (e - p)
    return total


def sum_pushes(
    tokens: pd.DataFrame, push: Callable[[str, Sequence[str], Sequence[float], float], float]
) -> Float[np.ndarray, " N"]:
    """The sum of pushes on each of N tokens: of its own rollout and of all in the same context.

    tokens: a token table with the columns group, rollout, position, token, advantage and logp.
    push: takes what `push_on_word` takes.
    """
    # rollouts are in one context as long as all words before are the same
    before = tokens.groupby(["group", "rollout"])["token"].transform(
        lambda words: [" ".join(words[:place]) for place in range(len(words))]
    )
    sums = np.zeros(len(tokens))
    for _, places in tokens.groupby([tokens["group"], before]).indices.items():
        here = tokens.iloc[places]
        said = here["token"].tolist()
        advantages = here["advantage"].tolist()
        for place, word, logp in zip(places, said, here["logp"], strict=True):
            sums[place] = float(push(word, said, advantages, math.exp(logp)))
    return sums


@dataclass(frozen=True)
class Groups:
    """N groups of G rollouts.

    Attributes:
        tokens: {class: (N, G)} the words drawn, as places in the class's softmax
        probabilities: {class: (N, V)} of the model in each group's prompt
        rewards: (N, G)
    """

    tokens: dict[str, Int[np.ndarray, "N G"]]
    probabilities: dict[str, Float[np.ndarray, "N V"]]
    rewards: Float[np.ndarray, "N G"]

    def advantages(self, estimator: str) -> Float[np.ndarray, "N G"]:
        """Compute `workbook.theory.group_advantages`; reinforce takes the mean of all N groups."""
        groups, size = self.rewards.shape
        ids = torch.arange(groups).repeat_interleave(size)
        advantages = group_advantages(torch.tensor(self.rewards).flatten(), ids, estimator)
        return advantages.view(groups, size).numpy()

    def net_push(self, advantages: Float[np.ndarray, "N G"], weights: dict | None = None) -> dict:
        """Sum the pushes on each class's logits, {class: (N, V)}.

        weights: {class: (N, G)} of single words, default 1.
        """
        net = {}
        for name, words in self.tokens.items():
            weighted = advantages * (weights[name] if weights else 1.0)
            net[name] = push_on_logits(words, weighted, self.probabilities[name]).sum(-2)
        return net

    def rates(
        self, advantages: Float[np.ndarray, "N G"], name: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute how often each word occurs among rollouts with A > 0 and with A < 0, both (N, V).

        Occurrences are weighted by |A|; NaN where a group has no rollout of that sign.
        """
        drawn = np.eye(self.probabilities[name].shape[-1])[self.tokens[name]]  # (N, G, V)
        rates = []
        for sign in (1, -1):
            size = np.clip(sign * advantages, 0, None)[..., None]  # |A| on this side, else 0
            # a group without this sign divides 0 by 0
            with np.errstate(invalid="ignore"):
                rates.append((size * drawn).sum(1) / size.sum(1))
        return rates[0], rates[1]

    def match_frequencies(
        self, advantages: Float[np.ndarray, "N G"]
    ) -> dict[str, Float[np.ndarray, "N G"]]:
        """Weight single words so that each occurs equally often under both signs (R1).

        With f+ and f- a word's rates, an occurrence on the positive side is kept with weight
        min(f+, f-) / f+, one on the negative side with min(f+, f-) / f-: surplus occurrences are
        dropped, none are invented.
        """
        weights = {}
        for name, words in self.tokens.items():
            # (N, 1, V)
            plus, minus = (np.nan_to_num(rate)[:, None] for rate in self.rates(advantages, name))
            # each rollout's own side decides what its words are divided by, (N, G, V)
            own = np.where(advantages[..., None] > 0, plus, minus)
            kept = np.minimum(plus, minus) / np.maximum(own, 1e-12)
            # of all words, the one that the rollout drew
            weights[name] = np.take_along_axis(kept, words[..., None], -1)[..., 0]
        return weights


def make_policy(
    groups: int, p_right: float = 0.5, spread: float = 0.0
) -> dict[str, Float[np.ndarray, "N V"]]:
    """Build the model's probabilities in each group's prompt, {class: (N, V)}.

    The prompts go through four levels of difficulty, from p_right - spread to p_right + spread,
    kept within 0.02 and 0.98.

    p_right: probability of the right result, on average.
    spread: at most 0.5.
    Raises ValueError for a setting out of range.
    """
    require_range(0, 1, closed=False, p_right=p_right)
    require_range(0, 0.5, spread=spread)
    levels = np.clip(p_right + spread * np.linspace(-1, 1, PROMPTS), 0.02, 0.98)
    right = levels[np.arange(groups) % PROMPTS]  # (N,)
    return {
        "style": np.tile(np.array([6, 3, 2]) / 11, (groups, 1)),
        "template": np.tile([0.98, 0.02], (groups, 1)),
        "result": np.stack([right, (1 - right) * 2 / 3, (1 - right) / 3], -1),
    }


def draw_groups(
    policy: dict[str, Float[np.ndarray, "N V"]],
    group_size: int = 8,
    temperature: float = 1.0,
    noise: float = 0.0,
    seed: int | np.random.Generator = 0,
) -> Groups:
    """Draw G rollouts for each prompt of the policy and verify them.

    temperature: of the sampler alone, which draws in proportion to p^(1/temperature), while pushes
    are taken at the model's own p: below 1 it stands for any sampler that avoids rare words.
    noise: probability that the verifier errs.
    """
    require_range(1, math.inf, group_size=group_size)
    require_range(0, math.inf, closed=False, temperature=temperature)
    require_range(0, 1, noise=noise)
    rng = np.random.default_rng(seed)
    tokens = {}
    for name, p in policy.items():
        q = p ** (1 / temperature)
        q = q / q.sum(-1, keepdims=True)
        # a uniform number picks the word whose interval it lies in; each next word begins at a
        # cumulative sum, (N, 1, V - 1)
        begins = q.cumsum(-1)[:, None, :-1]
        uniform = rng.random((len(p), group_size, 1))
        tokens[name] = (uniform > begins).sum(-1)  # (N, G)

    # the verifier takes a right result for a wrong one, and the reverse, where it errs
    errs = rng.random(tokens["result"].shape) < noise
    rewards = (tokens["result"] == 0) ^ errs
    return Groups(tokens, policy, rewards.astype(float))


def moved(net: Float[np.ndarray, "*N V"], group_size: int) -> Float[np.ndarray, "*N"]:
    """Size of a net push within one softmax, per rollout: sum_v |net_v| / 2G.

    A net push sums to 0 over a softmax, so as much goes up as goes down: half of the sum counts
    each once. With sum_i A_i = 0 the size is (sum_i |A_i| / 2G) times the total variation distance
    between the words of positive and of negative rollouts.
    """
    return np.abs(net).sum(-1) / 2 / group_size


def assign_signs(
    advantages: Float[np.ndarray, "N G"], signs: str, seed: int = 0
) -> Float[np.ndarray, "N G"]:
    """Reassign signs (intervention R3): the same rollouts and sizes |A|, with other signs.

    signs: "by reward" as they are, "shuffled" permuted within each group, "all positive" |A|.

    >>> assign_signs(np.array([[0.5, -0.5]]), "all positive").tolist()
    [[0.5, 0.5]]
    """
    require_one_of("signs", signs, SIGN_RULES)
    if signs == "shuffled":
        return np.random.default_rng(seed).permuted(advantages, axis=1)
    return np.abs(advantages) if signs == "all positive" else advantages


def compute_gradients_meet(
    advantage_a: float = 1.0, advantage_b: float = -1.0, p_shared: float = 0.25
) -> pd.DataFrame:
    """Tabulate the pushes of rollouts A and B on their shared token and on each one's own.

    Columns token (of PUSHED), source (of SOURCES), push.

    p_shared: probability of `start`; `9` has 0.75 and `8` 0.05, about as in the example's policy.
    """
    require_range(0, 1, closed=False, p_shared=p_shared)
    advantages = [advantage_a, advantage_b]
    # both draw `start`; at the first result A draws `9` and B draws `8`: (2 rollouts, V)
    opening = push_on_logits([0, 0], advantages, [p_shared, 1 - p_shared])
    result = push_on_logits([0, 1], advantages, [0.75, 0.05, 0.2])
    rows = []
    for token, (a, b) in zip(PUSHED, (opening[:, 0], result[:, 0], result[:, 1]), strict=True):
        for source, push in zip(SOURCES, (a, b, a + b), strict=True):
            rows.append((token, source, float(push)))
    return pd.DataFrame(rows, columns=["token", "source", "push"])


def compute_growing(
    so_far: int = 8,
    group_size: int = 8,
    estimator: str = "grpo",
    p_right: float = 0.5,
    draw: int = 0,
) -> dict[str, pd.DataFrame]:
    """Tabulate one group whose rollouts are added one at a time; pushes are divided by G.

    so_far: rollouts added (all, where the group has fewer).
    draw: number of the random draw.

    Returns three tables:
        net: the push so far on each word
        path: the push on each word after 0, 1, 2, ... rollouts; seen: up to `so_far`
        rollouts: the text of each one, its reward, advantage and sign; seen: as above
    """
    # reinforce takes the mean of all eight groups; the table shows the first
    groups = draw_groups(make_policy(8, p_right), group_size, seed=draw)
    advantages = groups.advantages(estimator)[0]
    path = []
    texts = [""] * group_size
    for name, words in groups.tokens.items():
        pushes = push_on_logits(words[0], advantages, groups.probabilities[name][0])
        # (G, V): the sum after each rollout
        growing = pushes.cumsum(0) / group_size
        for word, after in zip(WORDS[name], growing.T, strict=False):
            path += [(name, word, i, push) for i, push in enumerate([0.0, *after])]
        for i, drawn in enumerate(words[0]):
            texts[i] = f"{texts[i]} {WORDS[name][drawn]}".strip()
    path = pd.DataFrame(path, columns=["class", "word", "rollouts", "push"])
    path["seen"] = path["rollouts"] <= so_far

    rollouts = pd.DataFrame(
        {
            "rollout": np.arange(1, group_size + 1),
            "text": texts,
            "reward": groups.rewards[0],
            "advantage": advantages,
        }
    )
    rollouts["sign"] = np.select([advantages > 0, advantages < 0], ["+", "−"], "0")
    rollouts["seen"] = rollouts["rollout"] <= so_far

    net = path[path["rollouts"] == min(so_far, group_size)]
    net = net.drop(columns="seen").reset_index(drop=True)
    return {"net": net, "path": path, "rollouts": rollouts}
