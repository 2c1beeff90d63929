"""Exercises of chapter 06: forecasts from the kernel, and what Adam's first step does with a gradient."""

from __future__ import annotations

import torch

from workbook.topics.grading import answer_of, grade


def check_forecast(function) -> None:
    """Check a function (kernel (N, N), pushes (N,), lr) -> first-order dlogp (N,) of a step on the output layer.

    >>> check_forecast(lambda kernel, pushes, lr: lr * kernel.diagonal() * pushes)
    Not quite: this is each token's own push alone; every other token of the group adds to it.
    """
    factor = torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel, lr = factor @ factor.T, 0.1
    pushes = torch.tensor([1.0, -0.5, 0.0, 2.0, -1.5], dtype=torch.float64)
    right, own, rows = lr * kernel @ pushes, lr * kernel.diagonal() * pushes, lr * kernel.sum(1)
    mistakes = {
        "this is each token's own push alone; every other token of the group adds to it.": own,
        "the learning rate is missing.": kernel @ pushes,
        "this weighs by the token that is moved; the advantage is that of the token that pushes.": rows * pushes,
        "all tokens seem to push with weight 1; multiply by their pushes.": rows,
        "this leaves out each token's own push.": right - own,
        "sizes are added here; opposite pushes take each other back.": lr * (kernel * pushes).abs().sum(1),
        "the sign is turned around: a positive push makes its own token more likely.": -right,
    }
    praise = "Right: one row of the kernel, weighed by what every token of the group pushes with."
    grade(answer_of(function, kernel.clone(), pushes.clone(), lr), right, mistakes, praise, "token")


def check_first_step(function) -> None:
    """Check a function (gradient (D,), lr) -> change of the weights (D,) by Adam's first step of ascent, eps = 1e-8.

    >>> check_first_step(lambda gradient, lr: lr * gradient)
    Not quite: this is SGD's step; Adam divides by the square root of the mean square.
    """
    gradient, lr = torch.tensor([3.0, -2e-3, 1e-6, -40.0, 0.0], dtype=torch.float64), 0.01
    weights = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weights], lr, maximize=True)
    weights.grad = gradient.clone()
    optimizer.step()
    right = weights.detach()
    uncorrected = lr * 0.1 * gradient / ((0.001 * gradient**2).sqrt() + 1e-8)
    mistakes = {
        "this is SGD's step; Adam divides by the square root of the mean square.": lr * gradient,
        "the sign is turned around: the step goes up the gradient here.": -right,
        "the learning rate is missing.": right / lr,
        "the means start at zero and are divided by 1 - beta, which makes the first step whole.": uncorrected,
        "Adam divides each weight's gradient by its own size, not by that of the whole gradient.": lr
        * gradient
        / gradient.norm(),
    }
    praise = "Right: every weight moves by lr, however large or small its gradient was."
    grade(answer_of(function, gradient.clone(), lr), right, mistakes, praise, "weight")
