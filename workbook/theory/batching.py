"""The order in which a generation batch is cut into optimizer mini-batches, and what each strategy
guarantees.

The paper names query-preserved and reward-balanced mini-batches (arXiv 2605.08666, figure 8; H12,
H13 in the claims); sign_partitioned is their opposite, the intervention that should hurt most if
cancellation inside a mini-batch matters.
"""

import math
from collections.abc import Iterator
from itertools import combinations

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from workbook.messages import InvalidValue, require_one_of

from .advantages import group_extreme, group_index
from .choices import STRATEGIES

# ways to share out the groups up to which all are looked at: 12 groups always are
EXACT_LIMIT = 20_000
RESTARTS = 32  # random starts of the swap descent beyond that


def minibatch_order(
    strategy: str,
    group_ids: Shaped[Tensor, " B"],
    advantages: Float[Tensor, " B"],
    num_minibatches: int,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " B"]:
    """A permutation of the rollouts whose equal contiguous parts are the mini-batches.

    - shuffled: torch.randperm, as TRL does
    - query_preserved: no group straddles mini-batches, and each lies contiguous in the order
    - reward_balanced: the counts of positives (advantage > 0) differ by at most one between
    mini-batches; those of
      negatives and of neutrals too
    - query_preserved_reward_balanced: whole groups, shared out so that the range (max - min over
    mini-batches) of the
      positives' count plus that of the negatives' is least. Exact for up to 12 groups, and for more
      where the range that divisibility alone demands is reached; else the best of 32 random starts,
      each improved by swapping pairs of groups while that lowers the sum of squared counts
    - sign_partitioned: at most one mini-batch holds positives and negatives, none where neutrals
    can keep them apart

    All that the guarantee leaves free is random: which rollouts, and the order of groups and of
    mini-batches.

    Shapes: group_ids (B,) any labels, advantages (B,); result (B,), long, on the CPU. The same
    state of `generator` (a CPU one) gives the same order; None takes torch's global CPU generator.

    Raises ValueError for an unknown strategy, shapes that disagree, NaN advantages, B that
    num_minibatches does not divide, and (query_preserved ones) groups of unequal size or that do
    not fill a mini-batch whole.

    >>> order = minibatch_order("sign_partitioned", torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, -1.0, 1.0, -1.0]), 2)
    >>> sorted(sorted(part.tolist()) for part in order.chunk(2))
    [[0, 2], [1, 3]]
    """
    require_one_of("strategy", strategy, STRATEGIES)
    group_ids, signs = group_ids.detach().cpu(), _signs(advantages)
    rollouts = len(signs)
    if group_ids.shape != (rollouts,):
        raise InvalidValue(
            "group_ids.shape", tuple(group_ids.shape), f"({rollouts},), as advantages"
        )
    if num_minibatches < 1 or rollouts % num_minibatches:
        raise InvalidValue(
            "num_minibatches", num_minibatches, f"a divisor of the {rollouts} rollouts"
        )
    order = torch.randperm(rollouts, generator=generator)
    if strategy == "shuffled" or rollouts == 0:
        return order
    if strategy.startswith("query_preserved"):
        order = _group_rows(order, group_ids, num_minibatches, generator)  # (groups, G)
        if strategy == "query_preserved_reward_balanced":
            order = order[_balanced_groups(signs[order], num_minibatches, generator)]
        return order.flatten()
    # positives, neutrals, negatives
    by_sign = order[signs[order].argsort(descending=True, stable=True)]
    # like cards, one by one: each sign's run then covers the parts evenly
    if strategy == "reward_balanced":
        parts = by_sign.reshape(-1, num_minibatches).T
    else:
        parts = by_sign.reshape(num_minibatches, -1)
    return _shuffled_parts(parts, generator).flatten()


def _signs(advantages: Tensor) -> Tensor:
    """+1, 0 or -1 per rollout, long, on the CPU."""
    if advantages.ndim != 1:
        raise InvalidValue(
            "advantages.shape", tuple(advantages.shape), "(B,), one number per rollout"
        )
    if advantages.isnan().any():
        raise InvalidValue(
            "advantages", float("nan"), "numbers, whose signs are positive, negative or 0"
        )
    return advantages.detach().cpu().sign().long()


def _shuffled_parts(parts: Tensor, generator: torch.Generator | None) -> Tensor:
    """Shuffle the rows of parts, and each row within itself."""
    parts = parts[torch.randperm(len(parts), generator=generator)]
    return parts.gather(1, torch.rand(parts.shape, generator=generator).argsort(1))


def _group_rows(
    order: Tensor, group_ids: Tensor, parts: int, generator: torch.Generator | None
) -> Tensor:
    """The groups as rows (groups, G) in random order, each row a random order of its group."""
    _, index, sizes = torch.unique(group_ids, return_inverse=True, return_counts=True)
    if sizes.min() != sizes.max():
        raise InvalidValue(
            "group_ids",
            group_ids.tolist(),
            "groups of equal size",
            f"group_ids has groups of {int(sizes.min())} to {int(sizes.max())} rollouts; "
            "query-preserved mini-batches need groups of equal size.",
        )
    size, part = int(sizes[0]), len(order) // parts
    if part % size:
        raise InvalidValue(
            "num_minibatches", parts, f"a divisor of the {len(sizes)} groups, which stay whole"
        )
    rows = order[index[order].argsort(stable=True)].reshape(-1, size)
    return rows[torch.randperm(len(rows), generator=generator)]


def _balanced_groups(signs: Tensor, parts: int, generator: torch.Generator | None) -> Tensor:
    """An order of the groups (rows of signs (groups, G)) whose equal parts have balanced counts of
    both signs.
    """
    counts = torch.stack([(signs > 0).sum(1), (signs < 0).sum(1)], 1)  # (groups, 2)
    groups = len(counts)
    floors = [
        _least_range(column, parts) for column in (*counts.T.tolist(), counts.sum(1).tolist())
    ]
    least = max(floors[0] + floors[1], floors[2])
    best, best_spread = torch.arange(groups), math.inf
    for _ in range(RESTARTS):
        order = _swap_descent(counts, torch.randperm(groups, generator=generator), parts)
        spread = _spread(counts[order].reshape(parts, -1, 2).sum(1).tolist())
        if spread < best_spread:
            best, best_spread = order, spread
        if best_spread == least:
            return best
    ways = math.factorial(groups) // (
        math.factorial(groups // parts) ** parts * math.factorial(parts)
    )
    if ways <= EXACT_LIMIT:
        pairs = counts.tolist()
        for sharing in _sharings(tuple(range(groups)), groups // parts):
            spread = _spread(
                [[sum(pairs[g][side] for g in part) for side in (0, 1)] for part in sharing]
            )
            if spread < best_spread:
                best, best_spread = torch.tensor(sharing).flatten(), spread
            if best_spread == least:
                break
    return _shuffled_parts(best.reshape(parts, -1), generator).flatten()


def _swap_descent(counts: Tensor, order: Tensor, parts: int) -> Tensor:
    """Swap the pair of groups that lowers the parts' sum of squared counts most, until none does."""
    groups, base = len(order), int(counts.max()) + 1
    part = torch.arange(groups) // (groups // parts)
    while True:
        placed = counts[order]
        # one stands for all with its counts in its part
        alike = (part * base + placed[:, 0]) * base + placed[:, 1]
        site = group_extreme(torch.arange(groups), *group_index(alike, groups), "amin")
        load = placed.reshape(parts, -1, 2).sum(1)[part[site]]
        # what a's part gains, and b's loses, when they change places
        gain = placed[site][None] - placed[site][:, None]
        # half the change of the sum of squares
        change = (gain * (load[:, None] - load[None]) + gain.square()).sum(-1)
        a, b = divmod(int(change.argmin()), len(site))
        if change[a, b] >= 0:
            return order
        order[site[[a, b]]] = order[site[[b, a]]]


def _least_range(counts: list[int], parts: int) -> int:
    """A range over equal parts that no sharing can beat: counts come in steps of their greatest
    common divisor.
    """
    unit = math.gcd(*counts)
    return unit if unit and sum(counts) // unit % parts else 0


def _spread(loads: list[list[int]]) -> int:
    """Range over the parts of the positives' count plus that of the negatives'."""
    return sum(max(side) - min(side) for side in zip(*loads, strict=True))


def _sharings(groups: tuple[int, ...], size: int) -> Iterator[list[tuple[int, ...]]]:
    """All ways to share out groups into parts of one size, each once whatever the order of parts."""
    if not groups:
        yield []
        return
    first, *rest = groups
    for others in combinations(rest, size - 1):
        for sharing in _sharings(tuple(g for g in rest if g not in others), size):
            yield [(first, *others), *sharing]
