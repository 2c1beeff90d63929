"""Exercises of chapter 01: what two contexts do to each other through one softmax layer."""

from __future__ import annotations

import math

import torch

from workbook.theory import coupling_kernel
from workbook.topics.grading import UNANSWERED, answer_of, grade, settings_fault
from workbook.topics.softmax.pair import make_pair
from workbook.topics.softmax.toy import compute_pair


def check_half_angle(answer: float | None) -> None:
    """Check the angle (degrees) at which a step on A takes back half of B's own: same token and p, A = +1, B = -1.

    >>> check_half_angle(45)
    Not quite: at 45 degrees A takes back 71% of B's own step; the coupling follows the cosine, not the angle.
    """
    if answer is None:
        print(UNANSWERED)
        return
    if not isinstance(answer, int | float) or not math.isfinite(answer):
        print(f"Not quite: {answer!r} is no angle; give a number of degrees.")
        return
    pair = make_pair(angle=answer)
    kernel = coupling_kernel(pair.hidden, pair.logits, pair.tokens)
    share = float(kernel[1, 0] / kernel[1, 1])
    effect = f"at {answer:g} degrees A takes back {share:.0%} of B's own step"
    if abs(share - 0.5) < 0.005:
        print("Right: K_AB is K_BB times the cosine of the angle, and the cosine of 60 degrees is a half.")
    elif abs(answer - math.pi / 3) < 0.02:
        print(f"Not quite: {effect}; you seem to count in radians, and the slider counts in degrees.")
    elif share < 0:
        print(f"Not quite: {effect}: beyond 90 degrees A's step pushes B further down.")
    elif abs(answer - 30) < 1:
        print(f"Not quite: {effect}; this is the sine's half, and an inner product has a cosine.")
    else:
        print(f"Not quite: {effect}; the coupling follows the cosine, not the angle.")


def check_coupling(function) -> None:
    """Check a function (hidden (N, D), logits (N, V), tokens (N,)) -> K (N, N).

    >>> check_coupling(lambda hidden, logits, tokens: coupling_kernel(hidden, logits, tokens) * 0 + hidden @ hidden.T)
    Not quite: this is the hidden states' inner product alone; that of the scores e - p multiplies it.
    """
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    logits = 2 * torch.randn(4, 6, generator=generator, dtype=torch.float64)
    tokens = torch.tensor([0, 0, 2, 5])
    right = coupling_kernel(hidden, logits, tokens)
    p, e = logits.softmax(-1), torch.nn.functional.one_hot(tokens, 6).double()
    contexts, scores = hidden @ hidden.T, (e - p) @ (e - p).T
    unit = torch.nn.functional.normalize(hidden, dim=1)
    mistakes = {
        "this is the hidden states' inner product alone; that of the scores e - p multiplies it.": contexts,
        "this is the inner product of the scores e - p alone; that of the hidden states multiplies it.": scores,
        "lengths of hidden states count, too: take their inner product, not the cosine.": unit @ unit.T * scores,
        "the score is e - p, with the one-hot e; yours seems to have p alone.": contexts * (p @ p.T),
        "the score is e - p with p the softmax of the logits; yours seems to have e minus the logits.": (
            contexts * ((e - logits) @ (e - logits).T)
        ),
        "for different tokens K is not 0: p at the other's token pulls against it.": right * (e @ e.T),
        "both inner products are right, but they are multiplied, not added.": contexts + scores,
        "the sign is turned around: K_ii is a squared length and so never negative.": -right,
    }
    praise = "Right: one inner product for the contexts, one for the tokens, and their product for the pair."
    grade(
        answer_of(function, hidden.clone(), logits.clone(), tokens.clone()), right, mistakes, praise, "pair of tokens"
    )


def check_rivals(settings: dict | None) -> None:
    """Check settings of compute_pair with different tokens in which A's step pushes B down 0.9 as hard as A itself up.

    >>> check_rivals({"same": True})
    Not quite: both contexts say the same token here; add same=False.
    """
    if settings is None:
        print(UNANSWERED)
        return
    if fault := settings_fault(settings, compute_pair, make_pair):
        print(f"Not quite: {fault}")
        return
    try:
        kernel = compute_pair(**settings)["kernel"]["K"].tolist()
    except ValueError as error:
        print(f"Not quite: {error}")
        return
    except TypeError:  # text in the place of a number
        print(f"Not quite: {settings} must be numbers, True or False.")
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
