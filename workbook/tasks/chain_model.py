"""How demonstrations of the chain task err, and the expected reward of whoever errs like them.

What a step's result is off by, modulo m, has one of two distributions. Of a pair (operator, operand) as it should be:

    0 with probability 1 - e, else uniform over the m - 1 others

and of a pair with a *wrong mode*, whose likeliest result is wrong by the pair's own shift s:

    s with probability .55, 0 with probability .35, else uniform over the m - 2 others

Offsets add up along a chain. So what is expected of a chain that is off by d after k of its K results is

    F_k(d) = sum_x q_k(x) (r(d + x) + F_k+1(d + x)),    F_K(d) = [d = 0] for a reward at the end, else 0

with q_k the distribution of the pair of step k, and r(d) = [d = 0] / K where each step is rewarded, else 0. Without
either this is the closed form of `still_right`.
"""

import hashlib
import itertools
import random
from functools import cache, lru_cache

from workbook.tasks.wording import OPERATORS

SHIFTED, KEPT = 0.55, 0.35  # of a pair with a wrong mode: probability of its shift, and of the right result


@cache
def shifts_of(share: float, modulus: int) -> dict[tuple[str, int], int]:
    """Return {(operator, operand): shift} of the pairs with a wrong mode: this share of all, the first by a hash.

    A larger share holds the pairs of a smaller one, with the same shifts.

    >>> len(shifts_of(1 / 3, 10)), shifts_of(1 / 3, 10).items() <= shifts_of(2 / 3, 10).items()
    (7, True)
    """

    def digest(pair: tuple[str, int], use: bytes) -> int:
        return int.from_bytes(hashlib.blake2b(" ".join(map(str, pair)).encode(), digest_size=8, person=use).digest())

    pairs = sorted(itertools.product(OPERATORS, range(modulus)), key=lambda pair: digest(pair, b"wrong mode"))
    return {pair: 1 + digest(pair, b"shift") % (modulus - 1) for pair in pairs[: round(share * len(pairs))]}


def offset_shares(modulus: int, error_rate: float, shift: int) -> list[float]:
    """Return the probability of each offset 0 ... modulus - 1 of a step's result; shift: of its pair, 0 for none.

    >>> offset_shares(5, 0.2, 0)
    [0.8, 0.05, 0.05, 0.05, 0.05]
    """
    if not shift:
        return [1 - error_rate] + [error_rate / (modulus - 1)] * (modulus - 1)
    rest = (1 - SHIFTED - KEPT) / (modulus - 2)
    return [{0: KEPT, shift: SHIFTED}.get(offset, rest) for offset in range(modulus)]


def drawn_offset(rng: random.Random, modulus: int, error_rate: float, shift: int) -> int:
    """Draw what a step's result is off by, with the probabilities of `offset_shares`."""
    chance = rng.random()
    if not shift:
        return rng.randrange(1, modulus) if chance < error_rate else 0
    if chance < SHIFTED + KEPT:
        return shift if chance < SHIFTED else 0
    return rng.choice([offset for offset in range(1, modulus) if offset != shift])


def still_right(on_track: bool, steps_left: int, modulus: int, error_rate: float) -> float:
    """Return the probability of the right answer, so many results before the end, where no mode is wrong."""
    decay = 1 - error_rate * modulus / (modulus - 1)
    return 1 / modulus + (on_track - 1 / modulus) * decay**steps_left


@lru_cache(4096)
def expected_rewards(modulus: int, error_rate: float, shifts: tuple[int, ...], by_steps: bool) -> list[list[float]]:
    """Return F, (K + 1, m): the reward to come after k results, by what the running value is off by.

    shifts: of the pair of each of the K steps, 0 for a pair without a wrong mode.  by_steps: whether each is rewarded.
    """
    steps, right = len(shifts), [1.0] + [0.0] * (modulus - 1)
    if not any(shifts) and not by_steps:
        rows = [[still_right(on, left, modulus, error_rate) for on in (True, False)] for left in range(steps, -1, -1)]
        return [[on, *[off] * (modulus - 1)] for on, off in rows]
    table = [[0.0] * modulus if by_steps else right]
    for shift in reversed(shifts):
        after = [come + by_steps * earned / steps for come, earned in zip(table[0], right, strict=True)]
        shares = offset_shares(modulus, error_rate, shift)
        # offset d becomes d + x; a negative index counts from the end, as offsets do modulo m
        table.insert(0, [sum(q * after[d + x - modulus] for x, q in enumerate(shares)) for d in range(modulus)])
    return table
