"""Toy rollouts of three words each, and what their advantages push: the model of chapter 02.

A rollout is an opening, a verb and a result, as in `so is 9`. Each word is drawn from a softmax of
its own:

    style      so, then, thus, ...: free choice, no influence on the reward, probabilities in proportion to 1, 1/2, 1/3
    template   is, rarely `makes`: nearly always the same, no influence on the reward
    result     9 is right and pays a reward of 1; 8 and 1 are wrong

The net push of a group on the logits of one of these softmaxes is sum_i A_i (e_i - p), its exact
gradient. N groups, G rollouts in each, V words in a softmax.
"""

import math
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
# of two rollouts, A `so 9` and B `so 8`
PUSHED = ["“so”, in A and in B", "“9”, in A only", "“8”, in B only"]
SOURCES = ["from A", "from B", "net"]


def push_on_logits(
    tokens: Int[np.ndarray, "*N G"],
    advantages: Float[np.ndarray, "*N G"],
    probabilities: Float[np.ndarray, "*N V"],
) -> Float[np.ndarray, "*N G V"]:
    """Compute the push on each logit of one softmax, row i from rollout i: A_i (e_i - p); their sum
    is the net push.

    tokens: (G,) what each rollout drew there.  advantages: (G,).  probabilities: (V,).  All may
    have group axes before.

    >>> push_on_logits([0, 0], [1, -1], [0.5, 0.5]).sum(0).tolist()
    [0.0, 0.0]
    """
    p = np.asarray(probabilities, dtype=float)
    drawn = np.eye(p.shape[-1])[np.asarray(tokens)]
    return np.asarray(advantages, dtype=float)[..., None] * (drawn - p[..., None, :])


@dataclass(frozen=True)
class Groups:
    """N groups of G rollouts: per class the words drawn (N, G) and the model's probabilities (N,
    V); rewards (N, G).
    """

    tokens: dict[str, Int[np.ndarray, "N G"]]
    probabilities: dict[str, Float[np.ndarray, "N V"]]
    rewards: Float[np.ndarray, "N G"]

    def advantages(self, estimator: str) -> Float[np.ndarray, "N G"]:
        """Compute `workbook.theory.group_advantages` of these rewards; reinforce takes the mean of
        all N groups.
        """
        groups, size = self.rewards.shape
        ids = torch.arange(groups).repeat_interleave(size)
        return (
            group_advantages(torch.tensor(self.rewards).flatten(), ids, estimator)
            .view(groups, size)
            .numpy()
        )

    def net_push(self, advantages: Float[np.ndarray, "N G"], weights: dict | None = None) -> dict:
        """Sum pushes to {class: net push (N, V)} on its logits; weights: {class: (N, G)} of single
        words, default 1.
        """
        weighted = {name: advantages * (weights[name] if weights else 1.0) for name in self.tokens}
        return {
            name: push_on_logits(words, weighted[name], self.probabilities[name]).sum(-2)
            for name, words in self.tokens.items()
        }

    def rates(
        self, advantages: Float[np.ndarray, "N G"], name: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """Compute how often each word occurs among the rollouts with A > 0, and among those with A
        < 0: both (N, V).

        Occurrences are weighted by |A|; NaN where a group has no rollout of that sign.
        """
        drawn = np.eye(self.probabilities[name].shape[-1])[self.tokens[name]]
        with np.errstate(invalid="ignore"):
            sides = (np.clip(sign * advantages, 0, None)[..., None] for sign in (1, -1))
            return tuple((side * drawn).sum(1) / side.sum(1) for side in sides)

    def match_frequencies(
        self, advantages: Float[np.ndarray, "N G"]
    ) -> dict[str, Float[np.ndarray, "N G"]]:
        """Weight single words so that each occurs equally often among positive and negative
        rollouts (R1).

        With f+ and f- a word's rates, an occurrence on the positive side is kept with weight
        min(f+, f-) / f+, one on the negative side with min(f+, f-) / f-: surplus occurrences are
        dropped, none are invented.
        """
        weights = {}
        for name, words in self.tokens.items():
            plus, minus = (np.nan_to_num(side)[:, None] for side in self.rates(advantages, name))
            own = np.where(advantages[..., None] > 0, plus, minus)
            kept = np.minimum(plus, minus) / np.maximum(own, 1e-12)
            weights[name] = np.take_along_axis(kept, words[..., None], -1)[..., 0]
        return weights


def make_policy(
    groups: int, p_right: float = 0.5, spread: float = 0.0
) -> dict[str, Float[np.ndarray, "N V"]]:
    """Build the model's probabilities in each group's prompt, {class: (N, V)}; ValueError for what
    can't be.

    p_right: probability of the right result, on average over four levels of difficulty from p_right
    - spread to p_right + spread (at most 0.5), kept within 0.02 and 0.98.
    """
    require_range(0, 1, closed=False, p_right=p_right)
    require_range(0, 0.5, spread=spread)
    # (N,)
    right = np.clip(p_right + spread * np.linspace(-1, 1, PROMPTS), 0.02, 0.98)[
        np.arange(groups) % PROMPTS
    ]
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
    are taken at the model's own p: below 1 it stands for any sampler that avoids rare
    words.  noise: probability that the verifier errs.
    """
    require_range(1, math.inf, group_size=group_size)
    require_range(0, math.inf, closed=False, temperature=temperature)
    require_range(0, 1, noise=noise)
    rng = np.random.default_rng(seed)
    tokens = {}
    for name, p in policy.items():
        q = p ** (1 / temperature)
        # (N, 1, V - 1), where the next word begins
        steps = (q / q.sum(-1, keepdims=True)).cumsum(-1)[:, None, :-1]
        tokens[name] = (rng.random((len(p), group_size, 1)) > steps).sum(-1)  # (N, G)
    errs = rng.random(tokens["result"].shape) < noise
    return Groups(tokens, policy, ((tokens["result"] == 0) ^ errs).astype(float))


def moved(net: Float[np.ndarray, "*N V"], group_size: int) -> Float[np.ndarray, "*N"]:
    """Size of a net push within one softmax, per rollout: sum_v |net_v| / 2G.

    A net push sums to 0 over a softmax, so as much goes up as goes down. With sum_i A_i = 0 it is
    (sum_i |A_i| / 2G) times the total variation distance between the words of positive and of
    negative rollouts.
    """
    return np.abs(net).sum(-1) / 2 / group_size


def assign_signs(
    advantages: Float[np.ndarray, "N G"], signs: str, seed: int = 0
) -> Float[np.ndarray, "N G"]:
    """Reassign signs (intervention R3): the same rollouts and sizes |A|, with other signs.

    by reward: as they are.  shuffled: advantages permuted within each group.  all positive: |A|.

    >>> assign_signs(np.array([[0.5, -0.5]]), "all positive").tolist()
    [[0.5, 0.5]]
    """
    require_one_of("signs", signs, SIGN_RULES)
    if signs == "shuffled":
        return np.random.default_rng(seed).permuted(advantages, axis=1)
    return np.abs(advantages) if signs == "all positive" else advantages


def compute_gradients_meet(
    advantage_a: float = 1.0, advantage_b: float = -1.0, p_shared: float = 0.5
) -> pd.DataFrame:
    """Pushes of two rollouts on their shared token and on each one's own: columns token, source
    (SOURCES), push.

    p_shared: probability of the shared token; `9` and `8` have 0.4 each.
    """
    require_range(0, 1, closed=False, p_shared=p_shared)
    advantages = [advantage_a, advantage_b]
    first = push_on_logits([0, 0], advantages, [p_shared, 1 - p_shared])[:, 0]
    second = push_on_logits([0, 1], advantages, [0.4, 0.4, 0.2])
    rows = [
        (token, source, float(push))
        for token, (a, b) in zip(PUSHED, (first, second[:, 0], second[:, 1]), strict=True)
        for source, push in zip(SOURCES, (a, b, a + b), strict=True)
    ]
    return pd.DataFrame(rows, columns=["token", "source", "push"])


def compute_growing(
    so_far: int = 8,
    group_size: int = 8,
    estimator: str = "grpo",
    p_right: float = 0.5,
    draw: int = 0,
) -> dict[str, pd.DataFrame]:
    """Tabulate one group whose rollouts are added one at a time; pushes are divided by G.

    so_far: rollouts added (all, where the group has fewer).  draw: number of the random draw.
    Returns net (the push so far on each word), path (after each rollout) and rollouts (the text of
    each one).
    """
    # reinforce takes the mean of all eight
    groups = draw_groups(make_policy(8, p_right), group_size, seed=draw)
    advantages = groups.advantages(estimator)[0]
    path, texts = [], [""] * group_size
    for name, words in groups.tokens.items():
        texts = [
            f"{text} {WORDS[name][word]}".strip()
            for text, word in zip(texts, words[0], strict=True)
        ]
        pushes = (
            push_on_logits(words[0], advantages, groups.probabilities[name][0]).cumsum(0)
            / group_size
        )
        for v, word in enumerate(WORDS[name][: pushes.shape[1]]):
            path += [(name, word, i, push) for i, push in enumerate([0.0, *pushes[:, v]])]
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
    net = (
        path[path["rollouts"] == min(so_far, group_size)]
        .drop(columns="seen")
        .reset_index(drop=True)
    )
    return {"net": net, "path": path, "rollouts": rollouts}


def train_policy(
    estimator: str,
    steps: int = 100,
    lr: float = 0.5,
    copies: int = 64,
    group_size: int = 8,
    temperature=1.0,
    seed=0,
) -> pd.DataFrame:
    """Train `copies` independent policies, one fresh group a step each.

        logits += lr * net push / G

    That is the step of `workbook.training.loop` where the policy is a table of logits, taken for
    all copies at once (tests/test_loop.py holds it to that).

    Columns step, copy, template (probability of `is`), style (entropy of the opening, nats), result
    (probability of `9`). reinforce takes the mean reward of all copies.
    """
    rng, rows = np.random.default_rng(seed), []
    logits = {name: np.log(p) for name, p in make_policy(copies).items()}
    for step in range(steps + 1):
        policy = {name: torch.tensor(z).softmax(-1).numpy() for name, z in logits.items()}
        entropy = -(policy["style"] * np.log(policy["style"])).sum(-1)
        now = {
            "template": policy["template"][:, 0],
            "style": entropy,
            "result": policy["result"][:, 0],
        }
        rows.append(pd.DataFrame({"step": step, "copy": np.arange(copies), **now}))
        groups = draw_groups(policy, group_size, temperature, seed=rng)
        for name, push in groups.net_push(groups.advantages(estimator)).items():
            logits[name] = logits[name] + lr * push / group_size
    return pd.concat(rows, ignore_index=True)
