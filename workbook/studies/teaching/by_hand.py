"""What each deciding number must be, without credit and with it, where it can be computed: one
context, V words.

    python -m workbook.studies.teaching.by_hand          # the table that the registrations quote

A bandit: every rollout is one word of V equally likely ones; the reward is 1 with probability .5 +
spread for the first half of the words and .5 - spread for the others. spread = 0 is no credit, .25
known credit. All rollouts of a prompt share its one context, so that here cancellation *is* how a
word's credit comes about: its net push is its frequency in good rollouts minus that in bad ones. A
step is taken on 8 such prompts, whose contexts have nothing in common.

Letters: P prompts of a step, G rollouts, V words, S steps that are averaged over.
"""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from workbook.probes.agreement import falls
from workbook.statistics import pseudo_values
from workbook.studies.teaching.vocabulary import toy_table

_WORDS, GROUPS = (2, 10, 50), (4, 8, 16)
SPREADS = {"no credit": 0.0, "known credit": 0.25}
PROMPTS, _STEPS = 8, 400
BLOCKS = 8  # parts of the steps, whose spread gives the standard error


def draw_steps(
    words: int, group: int, spread: float, steps: int = _STEPS, seed: int = 0
) -> Iterator[tuple]:
    """Words (P, G), advantages (P, G) of Dr. GRPO, and rewards (P, G), step by step."""
    rng = np.random.default_rng([seed, words, group])
    chance = success_rates(words, spread)
    for _ in range(steps):
        drawn = rng.integers(words, size=(PROMPTS, group))
        rewards = (rng.random((PROMPTS, group)) < chance[drawn]).astype(float)
        yield drawn, rewards - rewards.mean(1, keepdims=True), rewards


def success_rates(words: int, spread: float) -> np.ndarray:
    """Chance of reward 1 after each word, (V,)."""
    return np.where(np.arange(words) < words / 2, 0.5 + spread, 0.5 - spread)


def bandit_pairs(
    words: int, group: int, spread: float, steps: int = _STEPS, seed: int = 0
) -> pd.DataFrame:
    """The table that `pairs.falls` takes: a row per rollout whose group has both rewards, split by
    pair.
    """
    # what the words would have; rewards may ignore it
    credit = success_rates(words, SPREADS["known credit"]) - 0.5
    drawn, advantages = (
        np.concatenate(parts)
        for parts in list(zip(*draw_steps(words, group, spread, steps, seed), strict=True))[:2]
    )
    mixed = advantages.any(1)
    drawn, advantages = drawn[mixed], advantages[mixed]  # (P, G) of all steps
    same_word = drawn[:, :, None] == drawn[:, None]  # (P, G, G): the moved rollout, the pusher
    same_sign = np.sign(advantages)[:, :, None] == np.sign(advantages)[:, None]
    # <e_i - p, e_j - p> in the one context, times A_j
    moved = (same_word - 1 / words) * advantages[:, None]
    itself = np.eye(group, dtype=bool)
    columns = {
        "group": np.repeat(np.arange(len(drawn)), group),
        "sign": np.sign(advantages).ravel(),
        "kind": "word",
    }
    columns |= {
        "credit": credit[drawn].ravel(),
        "self": np.where(itself, moved, 0.0).sum(2).ravel(),
    }
    for sign, word in ((sign, word) for sign in ("same", "other") for word in ("same", "other")):
        pairs = (same_sign == (sign == "same")) & (same_word == (word == "same")) & ~itself
        columns[f"{sign}_sign_{word}_word_same_context"] = (
            np.where(pairs, moved, 0.0).sum(2).ravel()
        )
        columns[f"{sign}_sign_{word}_word_other_context"] = np.zeros(drawn.size)
    return pd.DataFrame(columns)


def hand_built_arm() -> pd.DataFrame:
    """Tokens whose credit is made by cancelling pairs alone: 8 rollouts, half of them good, pairs
    of one word couple.

    Good and bad rollouts say "the" once each; every good one adds "nine", which has credit and no
    bad one says. Without the pushes that cancel, nothing tells the two words apart.
    """
    kinds = [
        f"{sign}_sign_{word}_word_other_context"
        for sign in ("same", "other")
        for word in ("same", "other")
    ]
    kinds += [name.replace("other_context", "same_context") for name in kinds]
    table = pd.DataFrame(
        {"group": 0, "sign": 1.0, "kind": "word", "credit": [0.0] * 4 + [1.0] * 4, "self": 0.5}
    )
    table[kinds] = 0.0
    table["same_sign_same_word_other_context"] = 1.5  # of the three others, alike for both words
    table["other_sign_same_word_other_context"] = [-2.0] * 4 + [0.0] * 4
    return table


def excess_share_by_hand(table: pd.DataFrame) -> float:
    """R of `pairs`: the excess fall of the correlation as a share of it; NaN where there is no
    credit to correlate.
    """
    numbers = falls(table)
    return numbers["excess"] / numbers["correlation"]


def excess_over_correlation(table: pd.DataFrame) -> float:
    """R as a ratio of means over rows."""
    return float(table["excess"].mean() / table["correlation"].mean())


def gains(
    words: int, group: int, spread: float, steps: int = _STEPS, seed: int = 0
) -> dict[str, float]:
    """First-order gain in value per unit length of a step, mean over steps, of masks and of halves
    by discrimination.

    In one context word and place are one. Keys: plain, shared, specific, each mask's twin of
    permuted signs, top and bottom (halves by DelTA's discrimination). A step that pushes nothing
    gains 0.
    """
    # (V,) of the value by the logits: p (q - mean)
    slope = (success_rates(words, spread) - 0.5) / words
    rng, made = np.random.default_rng([seed, 1]), []
    for drawn, advantages, _ in draw_steps(words, group, spread, steps, seed):
        score = np.eye(words)[drawn] - 1 / words  # (P, G, V)
        permuted = np.stack([rng.permutation(row) for row in advantages])
        chosen = {"plain": np.ones_like(drawn, dtype=bool)}
        for name, signs in (("", advantages), (", permuted signs", permuted)):
            up, down = (
                ((signs * side > 0)[..., None] * np.eye(words)[drawn]).sum(1) > 0
                for side in (1, -1)
            )
            both = np.take_along_axis(up & down, drawn, axis=1)
            chosen |= {f"shared{name}": both, f"specific{name}": ~both}
        ranks = discrimination_of(score, advantages)
        chosen |= {"top": ranks >= np.median(ranks), "bottom": ranks < np.median(ranks)}
        row = {}
        for name, mask in chosen.items():
            step = ((advantages * mask)[..., None] * score).sum(1)  # (P, V)
            length = np.sqrt((step**2).sum())
            row[name] = (step @ slope).sum() / length if length > 1e-12 else 0.0
        made.append(row)
    return pd.DataFrame(made).mean().to_dict()


def discrimination_of(score: np.ndarray, advantages: np.ndarray) -> np.ndarray:
    """Cosine with the own side's centroid minus that with the other's, of each rollout's word in
    its prompt, (P, G).
    """
    out = np.zeros_like(advantages)
    lengths = np.sqrt((score**2).sum(-1))
    for prompt, own in enumerate(advantages):
        if not own.any():
            continue
        cosines = {}
        for side in (1, -1):
            weights = np.where(own * side > 0, np.abs(own), 0.0)
            centre = weights @ score[prompt] / weights.sum()
            cosines[side] = (
                score[prompt] @ centre / np.maximum(lengths[prompt] * np.linalg.norm(centre), 1e-12)
            )
        out[prompt] = np.sign(own) * (cosines[1] - cosines[-1])
    return out


def noise_ratio(words: int, group: int, spread: float, steps: int = _STEPS, seed: int = 0) -> float:
    """Noise per signal of an update with advantages r - mean / 2, over that with r - mean: squared
    lengths.
    """
    made = {0.5: [], 1.0: []}
    for drawn, _, rewards in draw_steps(words, group, spread, steps, seed):
        score = np.eye(words)[drawn] - 1 / words
        for share, parts in made.items():
            advantages = rewards - share * rewards.mean(1, keepdims=True)
            parts.append((advantages[..., None] * score).sum(1).ravel() / (1 - share / group))
    half, full = (np.var(np.stack(parts), axis=0, ddof=1).sum() for parts in made.values())
    return float(half / full)


def by_hand_table() -> pd.DataFrame:
    """Every deciding number with and without credit, by words and rollouts: mean and standard error
    over BLOCKS.
    """
    rows = []
    for words in _WORDS:
        for group in GROUPS:
            for name, spread in SPREADS.items():
                blocks = []
                for block in range(BLOCKS):
                    given = (words, group, spread, _STEPS // BLOCKS, block)
                    gained = gains(*given)
                    fallen = falls(bandit_pairs(*given))
                    numbers = {
                        "correlation": fallen["correlation"],
                        "excess": fallen["excess"],
                        "specific minus twin": (
                            gained["specific"] - gained["specific, permuted signs"]
                        ),
                        "shared minus twin": gained["shared"] - gained["shared, permuted signs"],
                        "top minus bottom": gained["top"] - gained["bottom"],
                        "plain": gained["plain"],
                        "noise at half opposition": noise_ratio(*given),
                    }
                    blocks.append(numbers)
                table = pd.DataFrame(blocks)
                mean, error = table.mean(), table.std() / BLOCKS**0.5
                numbers = {name: (mean[name], error[name]) for name in table}
                if spread:  # a share of nothing is no number
                    shares = pseudo_values(
                        table.assign(seed=range(BLOCKS)), excess_over_correlation
                    )
                    numbers["R"] = (shares.mean(), shares.std() / BLOCKS**0.5)
                for quantity, (value, spread_of_it) in numbers.items():
                    row = {"words": words, "rollouts": group, "credit": name, "quantity": quantity}
                    rows.append(row | {"value": value, "error": spread_of_it})
    return pd.DataFrame(rows)


if __name__ == "__main__":
    pd.set_option("display.width", 200)
    table = by_hand_table()
    pairs = zip(table["value"], table["error"], strict=True)
    table["text"] = [f"{value:.3f} ± {error:.3f}" for value, error in pairs]
    print(
        table.pivot(
            index=["quantity", "credit", "rollouts"], columns="words", values="text"
        ).to_string()
    )
    print(
        f"excess / correlation in the hand-built arm: {excess_share_by_hand(hand_built_arm()):.2f}"
    )
    print("Of a word's own side, what the other sign's same word takes and its other words return:")
    print(toy_table().round(3).to_string(index=False))
