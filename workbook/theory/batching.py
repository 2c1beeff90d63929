"""Mini-batch orders: how a generation batch is cut into optimizer steps, and what that keeps whole.

Pushes cancel where they meet in one optimizer step. A batch of B rollouts is cut into mini-batches,
each of which makes one step; where the positive and the negative rollouts of a prompt fall into
different ones, what they share is pushed up by one step and down by another. So the order decides
how much can cancel at once:

- *query-preserved* orders keep each prompt's group in one mini-batch
- *reward-balanced* orders give every mini-batch its share of each sign
  (both arXiv 2605.08666, figure 8; H12, H13 in the claims)
- *sign-partitioned* orders are the opposite of both, the intervention that should hurt most if
  cancellation inside a mini-batch matters

Letters: B rollouts, G group size.
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

# seed * LARGE_PRIME + step (or batch) seeds what is drawn there: seeds don't overlap
LARGE_PRIME = 1_000_003
# ways to share out the groups up to which all are looked at: 12 groups always are
_MAX_SHARINGS = 20_000
# random starts of the swap descent
_RESTARTS = 32


def minibatch_order(
    strategy: str,
    group_ids: Shaped[Tensor, " B"],
    advantages: Float[Tensor, " B"],
    num_minibatches: int,
    generator: torch.Generator | None = None,
) -> Int[Tensor, " B"]:
    """Permute the rollouts of a batch so that equal contiguous parts are its mini-batches.

    - shuffled: torch.randperm, as TRL does
    - query_preserved: no group straddles mini-batches, and each lies contiguous in the order
    - reward_balanced: the counts of positives (advantage > 0) differ by at most one between
      mini-batches; those of negatives and of neutrals too
    - query_preserved_reward_balanced: whole groups, shared out so that the range (max - min over
      mini-batches) of the positives' count plus that of the negatives' is least. Exact for up to 12
      groups, and for more where the range that divisibility alone demands is reached; else the best
      of 32 random starts, each improved by swapping pairs of groups while that lowers the sum of
      squared counts
    - sign_partitioned: at most one mini-batch holds positives and negatives, none where neutrals
      can keep them apart

    All that the guarantee leaves free is random: which rollouts, and the order of groups and of
    mini-batches.

    Shapes: group_ids (B,) any labels, advantages (B,); result (B,), long, on the CPU. The same
    state of `generator` (a CPU one) gives the same order; None takes torch's global CPU generator.

    Raises ValueError for an unknown strategy, shapes that disagree, NaN advantages, B that
    num_minibatches does not divide, and (query_preserved ones) groups of unequal size or that do
    not fill a mini-batch whole.

    >>> groups, advantages = torch.tensor([0, 0, 1, 1]), torch.tensor([1.0, -1.0, 1.0, -1.0])
    >>> order = minibatch_order("sign_partitioned", groups, advantages, 2)
    >>> sorted(sorted(part.tolist()) for part in order.chunk(2))
    [[0, 2], [1, 3]]
    """
    require_one_of("strategy", strategy, STRATEGIES)
    group_ids = group_ids.detach().cpu()
    signs = _signs(advantages)
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
        rows = _group_rows(order, group_ids, num_minibatches, generator)  # (groups, G)
        if strategy == "query_preserved_reward_balanced":
            rows = rows[_balanced_groups(signs[rows], num_minibatches, generator)]
        return rows.flatten()

    # positives first, then neutrals, then negatives
    by_sign = order[signs[order].argsort(descending=True, stable=True)]
    if strategy == "reward_balanced":
        # dealt like cards, one by one: each sign covers the parts evenly
        parts = by_sign.reshape(-1, num_minibatches).T
    else:
        # cut where the signs lie together
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
    within = torch.rand(parts.shape, generator=generator).argsort(1)
    return parts.gather(1, within)


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
    size = int(sizes[0])
    if (len(order) // parts) % size:
        raise InvalidValue(
            "num_minibatches", parts, f"a divisor of the {len(sizes)} groups, which stay whole"
        )
    # a stable sort by group keeps the random order within each
    rows = order[index[order].argsort(stable=True)].reshape(-1, size)
    return rows[torch.randperm(len(rows), generator=generator)]


def _balanced_groups(signs: Tensor, parts: int, generator: torch.Generator | None) -> Tensor:
    """An order of groups whose equal parts have balanced counts of both signs.

    signs: (groups, G), a row per group. Random starts with swaps come first; where they miss the
    least conceivable range and the ways to share out the groups are few, all of them are tried.
    """
    counts = torch.stack([(signs > 0).sum(1), (signs < 0).sum(1)], 1)  # (groups, 2)
    groups = len(counts)

    # no sharing can beat this, so the search may stop there
    positives, negatives = counts.T.tolist()
    least = max(
        _least_range(positives, parts) + _least_range(negatives, parts),
        _least_range(counts.sum(1).tolist(), parts),
    )

    best = torch.arange(groups)
    best_range = math.inf
    for _ in range(_RESTARTS):
        order = _swap_descent(counts, torch.randperm(groups, generator=generator), parts)
        loads = counts[order].reshape(parts, -1, 2).sum(1)  # (parts, 2)
        count_range = _count_range(loads.tolist())
        if count_range < best_range:
            best, best_range = order, count_range
        if best_range == least:
            return best

    per_part = groups // parts
    orders_alike = math.factorial(per_part) ** parts * math.factorial(parts)
    if math.factorial(groups) // orders_alike <= _MAX_SHARINGS:
        pairs = counts.tolist()
        for sharing in _sharings(tuple(range(groups)), per_part):
            loads = [
                [sum(pairs[group][side] for group in part) for side in (0, 1)] for part in sharing
            ]
            count_range = _count_range(loads)
            if count_range < best_range:
                best, best_range = torch.tensor(sharing).flatten(), count_range
            if best_range == least:
                break
    return _shuffled_parts(best.reshape(parts, -1), generator).flatten()


def _swap_descent(counts: Tensor, order: Tensor, parts: int) -> Tensor:
    """Swap the pair of groups that lowers the parts' sum of squared counts most, until none does.

    counts: (groups, 2).
    order: a permutation of the groups, which is changed in place.
    """
    groups = len(order)
    base = int(counts.max()) + 1
    part = torch.arange(groups) // (groups // parts)
    while True:
        placed = counts[order]  # (groups, 2)

        # groups of one part with the same counts are interchangeable: the first stands for all
        kind = (part * base + placed[:, 0]) * base + placed[:, 1]
        index, kinds = group_index(kind, groups)
        site = group_extreme(torch.arange(groups), index, kinds, "amin")  # (kinds,)
        load = placed.reshape(parts, -1, 2).sum(1)[part[site]]  # (kinds, 2), of its part

        # what a's part gains, and b's loses, when a and b change places
        gain = placed[site][None] - placed[site][:, None]  # (kinds, kinds, 2)
        # half the change of the sum of squares
        change = (gain * (load[:, None] - load[None]) + gain.square()).sum(-1)
        a, b = divmod(int(change.argmin()), len(site))
        if change[a, b] >= 0:
            return order
        order[site[[a, b]]] = order[site[[b, a]]]


def _least_range(counts: list[int], parts: int) -> int:
    """A range over equal parts that no sharing can beat.

    Loads are multiples of the counts' greatest common divisor, so a range of 0 needs a total that
    the parts can share evenly in such units.
    """
    unit = math.gcd(*counts)
    if unit and sum(counts) // unit % parts:
        return unit
    return 0


def _count_range(loads: list[list[int]]) -> int:
    """Range over the parts of the positives' count plus that of the negatives'."""
    return sum(max(side) - min(side) for side in zip(*loads, strict=True))


def _sharings(groups: tuple[int, ...], size: int) -> Iterator[list[tuple[int, ...]]]:
    """All ways to share out groups into parts of one size, each once whatever the parts' order."""
    if not groups:
        yield []
        return
    # the first group fixes which part is meant
    first, *rest = groups
    for others in combinations(rest, size - 1):
        remaining = tuple(group for group in rest if group not in others)
        for sharing in _sharings(remaining, size):
            yield [(first, *others), *sharing]
