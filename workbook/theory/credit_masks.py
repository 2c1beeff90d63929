"""Masks by sharing: credit rules that push some tokens of a group and leave the others alone.

The cancellation hypothesis says where learning should happen: pushes on what good and bad rollouts
share cancel, so the tokens that one side alone says are left to teach. These rules put that to the
test. Each keeps the group advantage on a set of *unsure* tokens (probability below .9 when sampled)
and gives 0 to all others:

    shared by word        the word stands in a rollout of positive and in one of negative advantage of the group
    specific by word      it stands in rollouts of one sign only
    ... by place          the same of word *and* place: the slot of the task's grammar, else the position

A set that is chosen by the signs is chosen by the outcome, so every mask has two twins.
`permute_signs` draws the set from signs that are permuted within the group, and still pushes with
the true advantages: frequency, confidence, class, place and length stay as they were.
`MatchedCredit` takes random unsure tokens until they hold as much |credit|.

Letters: B rollouts, T completion tokens.
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
    per_token,
    sampled_logps,
    start_from,
    token_places,
)

OURS = "arXiv 2605.08666"
NEEDS = ("old_logps",)


def unsure_tokens(batch: CreditBatch) -> Bool[Tensor, "B T"]:
    """Mask of the tokens whose probability was below .9 when they were sampled."""
    return batch.mask & (sampled_logps(batch) < math.log(NEARLY_CERTAIN))


def shared_tokens(
    batch: CreditBatch, advantages: Float[Tensor, " B"], by_place: bool = False
) -> Bool[Tensor, "B T"]:
    """Mask of the tokens whose word stands in rollouts of both signs of the group.

    advantages: (B,), whose signs count; rollouts of advantage 0 are of neither.  by_place: the word
    at the same place.
    """
    words = batch.completion_ids
    if by_place:
        pairs = torch.stack([words, token_places(batch)], dim=-1)  # (B, T, 2)
        words = pairs.flatten(0, 1).unique(dim=0, return_inverse=True)[1].view_as(words)
    shared = torch.zeros_like(batch.mask)
    for rows in batch.groups():
        here, own, signs = words[rows], batch.mask[rows], advantages[rows].sign()
        up = here[own & (signs > 0).unsqueeze(1)]
        down = here[own & (signs < 0).unsqueeze(1)]
        shared[rows] = own & torch.isin(here, up) & torch.isin(here, down)
    return shared


def masked_advantages(
    batch: CreditBatch,
    shared: bool,
    by_place: bool,
    permute_signs: bool = False,
    advantages: Start = "dr_grpo",
) -> Float[Tensor, "B T"]:
    """Advantages (B, T): the group's own on the unsure tokens that are shared (or are not), 0
    elsewhere.

    permute_signs: the twin, whose set follows from signs permuted within each group by
    batch.generator.
    """
    started = start_from(batch, advantages)
    signs = (
        permute_in_groups(started, batch.group_ids, batch.generator) if permute_signs else started
    )
    chosen = shared_tokens(batch, signs, by_place) == shared
    return per_token(batch, started) * (chosen & unsure_tokens(batch))


@credit_rule("shared_by_word", paper=OURS, needs=NEEDS, exact="our reading")
def shared_by_word(
    batch: CreditBatch, permute_signs: bool = False, advantages: Start = "dr_grpo"
) -> Tensor:
    """Push only the unsure tokens whose word stands in rollouts of both signs.

    A_it = A_i on them, 0 elsewhere. Where the cancellation hypothesis holds word by word, they
    teach little.

    >>> ids, logps = torch.tensor([[5, 1], [5, 2]]), torch.full((2, 2), -1.0)
    >>> batch = CreditBatch(torch.tensor([1.0, 0.0]), torch.zeros(2), ids, torch.ones(2, 2), old_logps=logps)
    >>> shared_by_word(batch).tolist()
    [[0.5, 0.0], [-0.5, -0.0]]
    """
    return masked_advantages(batch, True, False, permute_signs, advantages)


@credit_rule("specific_by_word", paper=OURS, needs=NEEDS, exact="our reading")
def specific_by_word(
    batch: CreditBatch, permute_signs: bool = False, advantages: Start = "dr_grpo"
) -> Tensor:
    """Push only the unsure tokens whose word stands in rollouts of one sign."""
    return masked_advantages(batch, False, False, permute_signs, advantages)


@credit_rule("shared_by_place", paper=OURS, needs=NEEDS, exact="our reading")
def shared_by_place(
    batch: CreditBatch, permute_signs: bool = False, advantages: Start = "dr_grpo"
) -> Tensor:
    """Push only the unsure tokens whose word stands at the same place in rollouts of both signs.

    The place is the slot of the task's grammar, where the task knows it, else the position.
    """
    return masked_advantages(batch, True, True, permute_signs, advantages)


@credit_rule("specific_by_place", paper=OURS, needs=NEEDS, exact="our reading")
def specific_by_place(
    batch: CreditBatch, permute_signs: bool = False, advantages: Start = "dr_grpo"
) -> Tensor:
    """Push only the unsure tokens whose word stands at this place in rollouts of one sign."""
    return masked_advantages(batch, False, True, permute_signs, advantages)


@dataclass(frozen=True)
class MatchedCredit:
    """A credit rule: random unsure tokens that hold as much |known credit| as a mask's, pushed in
    its stead.

    Within each group unsure tokens are taken in a random order until the sum of |credit| is nearest
    to the mask's. Raises ValueError where no credit is known.
    """

    shared: bool
    by_place: bool
    each_step = False

    def __call__(self, batch: CreditBatch) -> Float[Tensor, "B T"]:
        started, unsure = start_from(batch, "dr_grpo"), unsure_tokens(batch)
        size = batch.known_credit.abs().double()
        wanted = unsure & (shared_tokens(batch, started, self.by_place) == self.shared)
        taken = torch.zeros_like(unsure)
        for rows in batch.groups():
            places = unsure[rows].nonzero()  # (n, 2): rollout of the group, position
            places = places[torch.randperm(len(places), generator=batch.generator)]
            target = size[rows][wanted[rows]].sum()
            sums = size[rows][tuple(places.T)].cumsum(0)  # (n,) after so many tokens
            misses = (torch.cat([sums.new_zeros(1), sums]) - target).abs()
            own = torch.zeros_like(unsure[rows])
            own[tuple(places[: int(misses.argmin())].T)] = True
            taken[rows] = own
        return per_token(batch, started) * taken


@dataclass(frozen=True)
class SureTokens:
    """A credit rule: the group's advantage on the tokens that are not unsure, which hardly any
    credit rests on.
    """

    each_step = False

    def __call__(self, batch: CreditBatch) -> Float[Tensor, "B T"]:
        return per_token(batch, start_from(batch, "dr_grpo")) * ~unsure_tokens(batch)
