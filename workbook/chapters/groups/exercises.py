"""Exercise 1 of chapter 02: four rules that turn the rewards of groups into advantages.

    right = four_rules(rewards, "rloo")      # the solution in plain code
    check_group_advantages(mine)             # names the usual mistakes

Letters: N groups, G rollouts in each.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from workbook.chapters.grading import answer_of, grade
from workbook.messages import require_one_of
from workbook.theory.advantages import STD_EPSILON

FOUR_RULES = ("reinforce", "rloo", "dr_grpo", "grpo")

# groups of unequal difficulty; in the last one all rewards are equal
_REWARDS = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]], dtype=torch.float64)


def four_rules(rewards: Float[Tensor, "N G"], rule: str) -> Float[Tensor, "N G"]:
    """Compute advantages of N groups by one of four rules.

    - reinforce: reward minus the mean of the whole batch
    - rloo: reward minus the mean of the group's other rewards
    - dr_grpo: reward minus the group's mean
    - grpo: that, divided by the group's standard deviation (over G - 1) plus 1e-4

    `workbook.theory.group_advantages` is the trainer's, for groups of any size. (Its reinforce
    leaves out groups of equal rewards.)

    Raises ValueError for another rule.

    >>> four_rules(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), "rloo").tolist()
    [[1.0, -1.0], [0.0, 0.0]]
    """
    require_one_of("rule", rule, FOUR_RULES)
    if rule == "reinforce":
        return rewards - rewards.mean()
    size = rewards.shape[1]
    centred = rewards - rewards.mean(1, keepdim=True)
    if rule == "rloo":
        # r - (sum - r) / (G - 1) = (r - mean) G / (G - 1)
        return centred * size / (size - 1)
    if rule == "dr_grpo":
        return centred
    return centred / (rewards.std(1, keepdim=True) + STD_EPSILON)


def _mistakes(rule: str) -> dict[str, object]:
    """Sentences, and the answer to `_REWARDS` that each mistake gives."""
    rewards = _REWARDS
    size = rewards.shape[1]
    own = rewards.mean(1, keepdim=True)
    centred = rewards - own
    sample = rewards.std(1, keepdim=True)
    population = rewards.std(1, keepdim=True, correction=0)
    of_batch = "this baseline is the mean of the whole batch; take the rollout's own group."
    common = {
        "these are the rewards themselves; no baseline is subtracted.": rewards,
        "this is the mean over the groups, rollout by rollout; a row is a group (dim=1).": (
            rewards - rewards.mean(0)
        ),
    }
    if rule == "reinforce":
        return common | {
            "this baseline is each group's own mean; here it is the mean of the whole batch.": (
                centred
            )
        }
    own_rule = {
        "rloo": {
            "the rollout's own reward is in its baseline: the factor G / (G - 1) is missing.": (
                centred
            ),
            "the factor is upside down: it is G / (G - 1).": centred * (size - 1) / size,
            "there are G - 1 other rewards; you divide their sum by G.": (
                rewards - (rewards.sum(1, keepdim=True) - rewards) / size
            ),
            "the others are those of the rollout's own group, not of the whole batch.": (
                rewards - (rewards.sum() - rewards) / (rewards.numel() - 1)
            ),
            "this divides by the standard deviation, as GRPO does; RLOO does not.": (
                four_rules(rewards, "grpo")
            ),
        },
        "dr_grpo": {
            "this divides by the standard deviation, as GRPO does; Dr. GRPO does not.": (
                four_rules(rewards, "grpo")
            ),
            "this leaves the rollout's own reward out, as RLOO does; Dr. GRPO does not.": (
                four_rules(rewards, "rloo")
            ),
        },
        "grpo": {
            "a group of equal rewards divides 0 by 0: add 1e-4 to the standard deviation.": (
                lambda got: got.isnan().any()
            ),
            "add 1e-4 to the standard deviation before you divide.": (
                (centred / sample).nan_to_num(0)
            ),
            "this is the spread of a population, over G; GRPO takes a sample's, over G - 1.": (
                centred / (population + STD_EPSILON)
            ),
            "the standard deviation is the batch's; it must be the group's.": (
                centred / (rewards.std() + STD_EPSILON)
            ),
            "this divides by the variance; take its square root.": (
                centred / (sample**2 + STD_EPSILON)
            ),
            "this is not divided by the group's standard deviation yet.": centred,
        },
    }
    return {of_batch: rewards - rewards.mean()} | common | own_rule[rule]


def check_group_advantages(function: Callable) -> None:
    """Check a function (rewards (N, G), rule) -> advantages (N, G), for each of FOUR_RULES.

    The first rule that is wrong is named, with the usual mistake if it is one.

    >>> check_group_advantages(lambda rewards, rule: rewards - rewards.mean())
    Not quite: rloo: this baseline is the mean of the whole batch; take the rollout's own group.
    """
    for rule in FOUR_RULES:
        if _is_right(function, rule):
            continue
        got = answer_of(function, _REWARDS.clone(), rule)
        mistakes = {f"{rule}: {text}": wrong for text, wrong in _mistakes(rule).items()}
        otherwise = rule + ": {entry} should be {right:.4g}, but yours is {got:.4g}."
        grade(got, four_rules(_REWARDS, rule), mistakes, "", "rollout", otherwise)
        return
    print(
        "Right: all four. Three of them subtract; GRPO divides, too, and its factor k depends on"
        " the prompt."
    )


def _is_right(function: Callable, rule: str) -> bool:
    """Whether a reader's function gives the advantages of `_REWARDS`."""
    right = four_rules(_REWARDS, rule)
    try:
        got = torch.as_tensor(function(_REWARDS.clone(), rule)).detach().double()
        return got.shape == right.shape and torch.allclose(got, right, rtol=0, atol=1e-4)
    except Exception:  # of a reader's function: anything
        return False
