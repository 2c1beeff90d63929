"""Checks of chapter 06's exercises: forecasts from the kernel, and what Adam's first step does with a gradient."""

from __future__ import annotations

import torch

from workbook.grading import answer_of


def check_forecast(function) -> None:
    """A function (kernel (N, N), pushes (N,), lr) -> first-order dlogp (N,) of a step on the output layer.

    >>> check_forecast(lambda kernel, pushes, lr: lr * kernel.diagonal() * pushes)
    Not quite: this is each token's own push alone; every other token of the group adds to it.
    """
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    kernel, lr = factor @ factor.T, 0.1
    pushes = torch.tensor([1.0, -0.5, 0.0, 2.0, -1.5], dtype=torch.float64)
    expected = lr * kernel @ pushes
    got = answer_of(function, kernel.clone(), pushes.clone(), lr)
    if got is None:
        return
    guesses = {
        "this is each token's own push alone; every other token of the group adds to it.": lr
        * kernel.diagonal()
        * pushes,
        "the learning rate is missing.": kernel @ pushes,
        "this weighs by the token that is moved; the advantage is that of the token that pushes.": lr
        * kernel.sum(1)
        * pushes,
        "all tokens seem to push with weight 1; multiply by their pushes.": lr * kernel.sum(1),
        "this leaves out each token's own push.": expected - lr * kernel.diagonal() * pushes,
        "sizes are added here; opposite pushes take each other back.": lr * (kernel * pushes).abs().sum(1),
        "the sign is turned around: a positive push makes its own token more likely.": -expected,
    }
    _tell(got, expected, guesses, "Right: one row of the kernel, weighed by what every token of the group pushes with.")


def check_first_step(function) -> None:
    """A function (gradient (D,), lr) -> change of the weights (D,) by Adam's first step of ascent, eps = 1e-8.

    >>> check_first_step(lambda gradient, lr: lr * gradient)
    Not quite: this is SGD's step; Adam divides by the square root of the mean square.
    """
    gradient, lr = torch.tensor([3.0, -2e-3, 1e-6, -40.0, 0.0], dtype=torch.float64), 0.01
    weights = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr, maximize=True)
    weights.grad = gradient.clone()
    optimizer.step()
    expected = weights.detach()
    got = answer_of(function, gradient.clone(), lr)
    if got is None:
        return
    guesses = {
        "this is SGD's step; Adam divides by the square root of the mean square.": lr * gradient,
        "the sign is turned around: the step goes up the gradient here.": -expected,
        "the learning rate is missing.": expected / lr,
        "the means start at zero and are divided by 1 - beta, which makes the first step whole.": lr
        * 0.1
        * gradient
        / ((0.001 * gradient**2).sqrt() + 1e-8),
        "Adam divides each weight's gradient by its own size, not by that of the whole gradient.": lr
        * gradient
        / gradient.norm(),
    }
    _tell(got, expected, guesses, "Right: every weight moves by lr, however large or small its gradient was.")


def _tell(got: torch.Tensor, expected: torch.Tensor, guesses: dict[str, torch.Tensor], praise: str) -> None:
    """The praise, the mistake that gives this very answer, or the worst entry."""
    got = got.double()
    if got.shape != expected.shape:
        print(f"Not quite: it returned the shape {tuple(got.shape)}; the answer has {tuple(expected.shape)}.")
        return
    near = 1e-4 * float(expected.abs().max())
    if torch.allclose(got, expected, rtol=1e-4, atol=near):
        print(praise)
        return
    for sentence, guess in guesses.items():
        if torch.allclose(got, guess, rtol=1e-4, atol=1e-4 * float(guess.abs().max())):
            print(f"Not quite: {sentence}")
            return
    worst = int((got - expected).abs().argmax())
    print(f"Not quite: entry {worst} should be {expected[worst]:.4g}, but yours is {got[worst]:.4g}.")
