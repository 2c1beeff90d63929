"""Masks by sharing: credit rules that push some tokens of a group and leave the others alone.

The cancellation hypothesis says where learning should happen: pushes on what good and bad rollouts
share cancel, so the tokens that one side alone says are left to teach. These rules put that to the
test. Each keeps the group advantage on a set of *unsure* tokens (probability below .9 when sampled)
and gives 0 to all others:

    shared by word      the word stands in a rollout of positive and in one of negative advantage
    specific by word    it stands in rollouts of one sign only
    ... by place        the same of word *and* place: the slot of the task's grammar, else position

always within the group. A set that is chosen by the signs is chosen by the outcome, so every mask
has two twins. `permute_signs` draws the set from signs that are permuted within the group, and
still pushes with the true advantages: frequency, confidence, class, place and length stay as they
were. `MatchedCredit` takes random unsure tokens until they hold as much |credit|.

Letters: B rollouts, G group size, T completion tokens.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .advantages import permute_in_groups
from .coupling import NEARLY_CERTAIN
from .credit import (
    CreditBatch,
    Start,
    credit_rule,
    sampled_logps,
    spread_over_tokens,
    start_from,
    token_places,
)

_PAPER = "arXiv 2605.08666"
_NEEDS = ("old_logps",)


def unsure_tokens(batch: CreditBatch) -> Bool[Tensor, "B T"]:
    """Mask of the tokens whose probability was below .9 when they were sampled."""
    return batch.mask & (sampled_logps(batch) < math.log(NEARLY_CERTAIN))


def sign_shared_tokens(
    batch: CreditBatch, advantages: Float[Tensor, " B"], by_place: bool = False
) -> Bool[Tensor, "B T"]:
    """Mask of the tokens whose word stands in rollouts of both signs of the group.

    advantages: (B,), whose signs count; rollouts of advantage 0 are of neither.
    by_place: the word at the same place.
    """
    words = batch.completion_ids
    if by_place:
        # a number for each pair of word and place
        pairs = torch.stack([words, token_places(batch)], dim=-1)  # (B, T, 2)
        _, numbers = pairs.flatten(0, 1).unique(dim=0, return_inverse=True)
        words = numbers.view_as(words)

    shared = torch.zeros_like(batch.mask)
    for rows in batch.groups():
        group_words = words[rows]  # (G, T)
        alive = batch.mask[rows]
        signs = advantages[rows].sign().unsqueeze(1)  # (G, 1)
        in_positive = torch.isin(group_words, group_words[alive & (signs > 0)])
        in_negative = torch.isin(group_words, group_words[alive & (signs < 0)])
        shared[rows] = alive & in_positive & in_negative
    return shared


def masked_advantages(
    batch: CreditBatch,
    shared: bool,
    by_place: bool,
    permute_signs: bool = False,
    advantages: Start = "dr_grpo",
) -> Float[Tensor, "B T"]:
    """Group advantages on the unsure tokens that are shared (or are not), 0 elsewhere.

    shared: push the shared tokens, else the specific ones.
    by_place: shared by word and place, else by word.
    permute_signs: the twin, whose set follows from signs permuted within each group by
    batch.generator.
    advantages: what the rule starts from, an estimator or a tensor (B,).
    """
    started = start_from(batch, advantages)
    signs = started
    if permute_signs:
        signs = permute_in_groups(started, batch.group_ids, batch.generator)
    chosen = sign_shared_tokens(batch, signs, by_place) == shared
    return spread_over_tokens(batch, started) * (chosen & unsure_tokens(batch))


@credit_rule("shared_by_word", paper=_PAPER, needs=_NEEDS, fidelity="our reading")
def shared_by_word(
    batch: CreditBatch, permute_signs: bool = False, advantages: Start = "dr_grpo"
) -> Float[Tensor, "B T"]:
    """Push only the unsure tokens whose word stands in rollouts of both signs.

    A_it = A_i on them, 0 elsewhere. Where the cancellation hypothesis holds word by word, they
    teach little.

    >>> ids, mask = torch.tensor([[5, 1], [5, 2]]), torch.ones(2, 2)
    >>> rewards, groups = torch.tensor([1.0, 0.0]), torch.zeros(2)
    >>> batch = CreditBatch(rewards, groups, ids, mask, old_logps=-mask)
    >>> shared_by_word(batch).tolist()
    [[0.5, 0.0], [-0.5, -0.0]]
    """
    return masked_advantages(
        batch, shared=True, by_place=False, permute_signs=permute_signs, advantages=advantages
    )


@credit_rule("specific_by_word", paper=_PAPER, needs=_NEEDS, fidelity="our reading")
def specific_by_word(
    batch: CreditBatch, permute_signs: bool = False, advantages: Start = "dr_grpo"
) -> Float[Tensor, "B T"]:
    """Push only the unsure tokens whose word stands in rollouts of one sign.

    A_it = A_i on them, 0 elsewhere. Where the cancellation hypothesis holds, they are what teaches.
    """
    return masked_advantages(
        batch, shared=False, by_place=False, permute_signs=permute_signs, advantages=advantages
    )


@credit_rule("shared_by_place", paper=_PAPER, needs=_NEEDS, fidelity="our reading")
def shared_by_place(
    batch: CreditBatch, permute_signs: bool = False, advantages: Start = "dr_grpo"
) -> Float[Tensor, "B T"]:
    """Push only the unsure tokens whose word stands at the same place in rollouts of both signs.

    The place is the slot of the task's grammar, where the task knows it, else the position.
    """
    return masked_advantages(
        batch, shared=True, by_place=True, permute_signs=permute_signs, advantages=advantages
    )


@credit_rule("specific_by_place", paper=_PAPER, needs=_NEEDS, fidelity="our reading")
def specific_by_place(
    batch: CreditBatch, permute_signs: bool = False, advantages: Start = "dr_grpo"
) -> Float[Tensor, "B T"]:
    """Push only the unsure tokens whose word stands at this place in rollouts of one sign.

    The place as in `shared_by_place`.
    """
    return masked_advantages(
        batch, shared=False, by_place=True, permute_signs=permute_signs, advantages=advantages
    )


@dataclass(frozen=True)
class Masked:
    """A mask of `masked_advantages` as a credit rule; permute_signs: its twin."""

    shared: bool
    by_place: bool
    permute_signs: bool = False
    each_step = False

    def __call__(self, batch: CreditBatch) -> Float[Tensor, "B T"]:
        return masked_advantages(batch, self.shared, self.by_place, self.permute_signs)


@dataclass(frozen=True)
class UnsureTokens:
    """All unsure tokens as a credit rule: what the masks share out."""

    each_step = False

    def __call__(self, batch: CreditBatch) -> Float[Tensor, "B T"]:
        return spread_over_tokens(batch, batch.group_advantages("dr_grpo")) * unsure_tokens(batch)


@dataclass(frozen=True)
class MatchedCredit:
    """Twin of a mask: random unsure tokens that hold as much |known credit| as the mask's do.

    Within each group unsure tokens are taken in a random order until the sum of |credit| is nearest
    to the mask's. Raises ValueError where no credit is known.

    shared, by_place: of the mask, as in `masked_advantages`.
    """

    shared: bool
    by_place: bool
    each_step = False

    def __call__(self, batch: CreditBatch) -> Float[Tensor, "B T"]:
        started = start_from(batch, "dr_grpo")
        unsure = unsure_tokens(batch)
        masked = unsure & (sign_shared_tokens(batch, started, self.by_place) == self.shared)
        size = batch.known_credit.abs().double()  # (B, T)

        chosen = torch.zeros_like(unsure)
        for rows in batch.groups():
            target = size[rows][masked[rows]].sum()

            # the group's unsure tokens in a random order, (n, 2): rollout of the group, position
            places = unsure[rows].nonzero()
            places = places[torch.randperm(len(places), generator=batch.generator)]

            # how far the first k of them are from the target, for k from 0 to n
            sums = size[rows][tuple(places.T)].cumsum(0)
            misses = (torch.cat([sums.new_zeros(1), sums]) - target).abs()
            nearest = places[: int(misses.argmin())]

            own = torch.zeros_like(unsure[rows])  # (G, T)
            own[tuple(nearest.T)] = True
            chosen[rows] = own
        return spread_over_tokens(batch, started) * chosen


@dataclass(frozen=True)
class SureTokens:
    """Control of the masks: group advantages on sure tokens, which hardly any credit rests on."""

    each_step = False

    def __call__(self, batch: CreditBatch) -> Float[Tensor, "B T"]:
        return spread_over_tokens(batch, start_from(batch, "dr_grpo")) * ~unsure_tokens(batch)
