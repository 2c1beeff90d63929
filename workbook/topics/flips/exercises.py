"""Checks of chapter 05: shares of flipped tokens by hand, and the balance of signs on a token."""

from __future__ import annotations

import torch

from workbook.grading import answer_of

DLOGP = torch.tensor([0.20, -0.05, 0.004, 0.03, -0.30, 0.010, -0.002, -0.08])
ADVANTAGE = torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0, -1.0, -1.0, 0.0])
TOKENS = torch.tensor([7, 7, 4, 7, 4, 9])
SIGNS = torch.tensor([1.5, -0.5, 1.5, -0.5, -0.5, -0.5])


def check_shares(function) -> None:
    """A function (dlogp (N,), advantage (N,), eps) -> shares boosted, suppressed, stable of A > 0 and of A < 0: (2, 3).

    >>> check_shares(lambda dlogp, advantage, eps: torch.zeros(2, 3))
    Not quite: each row's shares should sum to 1; yours sum to 0 and 0.
    """
    got = answer_of(function, DLOGP, ADVANTAGE, 0.01)
    if got is None:
        return
    right = torch.stack([_shares(DLOGP[side], 0.01) for side in (ADVANTAGE > 0, ADVANTAGE < 0)])
    if got.shape != (2, 3):
        print(f"Not quite: it returned the shape {tuple(got.shape)}; return (2, 3): two signs, three changes.")
    elif torch.allclose(got.float(), right, atol=1e-5):
        print("Right: and a token that moved by exactly eps counts as stable.")
    elif torch.allclose(got.float().flip(0), right, atol=1e-5):
        print("Not quite: the rows are the wrong way round; positive rollouts come first.")
    elif not torch.allclose(got.float().sum(1), torch.ones(2), atol=1e-5):
        sums = " and ".join(f"{total:g}" for total in got.float().sum(1).tolist())
        print(f"Not quite: each row's shares should sum to 1; yours sum to {sums}.")
    elif torch.allclose(got.float()[1], torch.stack([_shares(DLOGP[ADVANTAGE <= 0], 0.01)])[0], atol=1e-5):
        print("Not quite: a rollout of advantage 0 is on neither side; leave it out.")
    else:
        print(f"Not quite: positive rollouts should give {[round(x, 3) for x in right[0].tolist()]}.")


def check_balance(function) -> None:
    """A function (tokens (N,), advantages (N,)) of one group -> balance of signs on each token (N,).

    >>> check_balance(lambda tokens, advantages: advantages.sign())
    Not quite: this is the sign of the token's own rollout; add up all occurrences of the token.
    """
    got = answer_of(function, TOKENS, SIGNS)
    if got is None:
        return
    same = TOKENS[:, None] == TOKENS
    right = (same * SIGNS).sum(1) / (same * SIGNS.abs()).sum(1)
    if got.shape != right.shape:
        print(f"Not quite: it returned the shape {tuple(got.shape)} for 6 tokens; return one number for each.")
    elif torch.allclose(got.float(), right, atol=1e-5):
        print("Right: 1 where all occurrences pull up, -1 where all pull down, near 0 where they cancel.")
    elif torch.allclose(got.float(), SIGNS.sign(), atol=1e-5):
        print("Not quite: this is the sign of the token's own rollout; add up all occurrences of the token.")
    elif torch.allclose(got.float(), (same * SIGNS).sum(1), atol=1e-5):
        print("Not quite: this is the sum; divide it by the sum of the sizes.")
    else:
        print(f"Not quite: the first token should get {right[0]:+.3f}, but yours gets {got.flatten()[0]:+.3f}.")


def _shares(dlogp: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.stack(
        [(dlogp > eps).float().mean(), (dlogp < -eps).float().mean(), (dlogp.abs() <= eps).float().mean()]
    )
