"""Checks of chapter 01's exercises: what two contexts do to each other through one softmax layer."""

from __future__ import annotations

import math

import torch

from workbook.grading import UNANSWERED, answer_of


def check_half_angle(answer: float | None) -> None:
    """The angle (degrees) at which a step on A takes back half of B's own: same token and p, lengths 1, A = +1, -1.

    >>> check_half_angle(45)
    Not quite: at 45 degrees A takes back 71% of B's own step; the coupling follows the cosine, not the angle.
    """
    if answer is None:
        print(UNANSWERED)
        return
    if not isinstance(answer, int | float) or not math.isfinite(answer):
        print(f"Not quite: {answer!r} is no angle; give a number of degrees.")
        return
    taken = _share_taken_back(answer)
    told = f"at {answer:g} degrees A takes back {taken:.0%} of B's own step"
    if abs(taken - 0.5) < 0.005:
        print("Right: K_AB is K_BB times the cosine of the angle, and the cosine of 60 degrees is a half.")
    elif abs(answer - math.pi / 3) < 0.02:
        print(f"Not quite: {told}; you seem to count in radians, and the slider counts in degrees.")
    elif taken < 0:
        print(f"Not quite: {told}: beyond 90 degrees A's step pushes B further down.")
    elif abs(answer - 30) < 1:
        print(f"Not quite: {told}; this is the sine's half, and an inner product has a cosine.")
    else:
        print(f"Not quite: {told}; the coupling follows the cosine, not the angle.")


def check_coupling(function) -> None:
    """A function (hidden (N, D), logits (N, V), tokens (N,)) -> K (N, N).

    >>> from workbook.theory import coupling_kernel
    >>> check_coupling(lambda hidden, logits, tokens: coupling_kernel(hidden, logits, tokens) * 0 + hidden @ hidden.T)
    Not quite: this is the hidden states' inner product alone; the residuals' inner product multiplies it.
    """
    from workbook.theory import coupling_kernel

    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    logits = 2 * torch.randn(4, 6, generator=generator, dtype=torch.float64)
    tokens = torch.tensor([0, 0, 2, 5])
    expected = coupling_kernel(hidden, logits, tokens)
    got = answer_of(function, hidden.clone(), logits.clone(), tokens.clone())
    if got is None:
        return
    got = got.double()
    if got.shape != expected.shape:
        print(
            f"Not quite: it returned the shape {tuple(got.shape)} for 4 tokens; return a number for each pair, (4, 4)."
        )
    elif torch.allclose(got, expected, atol=1e-6):
        print("Right: one inner product for the contexts, one for the tokens, and their product for the pair.")
    else:
        print(f"Not quite: {_mistake(got, expected, hidden, logits, tokens)}")


def check_rivals(settings: dict | None) -> None:
    """Settings of compute_pair in which both tokens differ and A's step pushes B down 0.9 as hard as A itself up.

    >>> check_rivals({"same": True})
    Not quite: both contexts say the same token here; add same=False.
    """
    from workbook.topics.softmax.toy import compute_pair

    if settings is None:
        print(UNANSWERED)
        return
    try:
        kernel = compute_pair(**settings)["kernel"]["K"].tolist()
    except (TypeError, ValueError) as error:
        print(f"Not quite: {error}")
        return
    ratio = kernel[2] / kernel[0] if kernel[0] > 0 else 0.0
    cosine = math.cos(math.radians(settings.get("angle", 30.0)))
    if settings.get("same", True):
        print("Not quite: both contexts say the same token here; add same=False.")
    elif ratio <= -0.9:
        print(f"Right: K_BA is {ratio:.2f} of K_AA. Different tokens compete as hard as equal ones agree.")
    elif ratio > 0:
        print(f"Not quite: A's step lifts B here ({ratio:+.2f} of A's own); look at the hidden states' angle.")
    elif settings.get("rivalry", 0.0) < 0.5:
        print(f"Not quite: {ratio:+.2f}; most of the rest goes to words that neither says: which setting moves it?")
    elif cosine < 0.9:
        print(f"Not quite: {ratio:+.2f}; the rivals compete, but the hidden states share only {cosine:.2f}.")
    else:
        print(f"Not quite: {ratio:+.2f}; compare lengths and probabilities of A and B, and the rivalry.")


def _share_taken_back(angle: float) -> float:
    from workbook.theory import coupling_kernel
    from workbook.topics.softmax.pair import make_pair

    pair = make_pair(angle=angle)
    kernel = coupling_kernel(pair.hidden, pair.logits, pair.tokens)
    return float(kernel[1, 0] / kernel[1, 1])


def _mistake(got, expected, hidden, logits, tokens) -> str:
    """What the answer seems to have done instead."""
    p = logits.softmax(-1)
    one_hot = torch.nn.functional.one_hot(tokens, logits.shape[1]).double()
    near, unit = hidden @ hidden.T, torch.nn.functional.normalize(hidden, dim=1)
    residual = one_hot - p
    guesses = {
        "this is the hidden states' inner product alone; the residuals' inner product multiplies it.": near,
        "this is the residuals' inner product alone; the hidden states' inner product multiplies it.": residual
        @ residual.T,
        "lengths of hidden states count, too: take their inner product, not the cosine.": (unit @ unit.T)
        * (residual @ residual.T),
        "the residual is e - p, with the one-hot e; yours seems to have p alone.": near * (p @ p.T),
        "the residual is e - p with p the softmax of the logits; yours seems to have e minus the logits.": near
        * ((one_hot - logits) @ (one_hot - logits).T),
        "for different tokens K is not 0: p at the other's token pulls against it.": expected
        * (tokens[:, None] == tokens),
        "both inner products are right, but they are multiplied, not added.": near + residual @ residual.T,
        "the sign is turned around: K_ii is a squared length and so never negative.": -expected,
    }
    for sentence, guess in guesses.items():
        if torch.allclose(got, guess, atol=1e-6):
            return sentence
    i, j = divmod(int((got - expected).abs().argmax()), len(tokens))
    return f"K[{i}, {j}] should be {expected[i, j]:.3f}, but yours is {got[i, j]:.3f}."
