"""Speed of token coupling at SmolLM2's shape: ratios of medians taken turn by turn in one run, so that load cancels.

On one thread: threads that wait for each other on a busy machine measure the machine.
"""

import time
from statistics import median

import pytest
import torch

from workbook.theory import coupling_kernel, predicted_delta_logp

TOKENS, VOCABULARY, WIDTH = 512, 49_152, 576


@pytest.fixture(scope="module")
def layer():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator) / WIDTH**0.5
    hidden = torch.randn(TOKENS, WIDTH, generator=generator)
    yield weight, hidden, hidden @ weight.T, torch.randint(VOCABULARY, (TOKENS,), generator=generator)
    torch.set_num_threads(threads)


def medians(rounds, *functions):
    """Median seconds of each function over rounds in which each is called once; a first round warms up."""
    seconds = [[] for _ in functions]
    for _ in range(rounds + 1):
        for function, times in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            times.append(time.perf_counter() - start)
    return [median(times[1:]) for times in seconds]


def test_kernel_against_its_bare_matrix_products(layer, capsys):
    _, hidden, logits, tokens = layer
    kernel, bare = medians(
        7, lambda: coupling_kernel(hidden, logits, tokens), lambda: (hidden @ hidden.T, logits @ logits.T)
    )
    with capsys.disabled():
        print(f"\ncoupling kernel / bare matrix products: {kernel:.3f} s / {bare:.3f} s = {kernel / bare:.2f}")


def test_kernel_against_per_token_autograd(layer, capsys):
    """The gradient of each token's log-probability by autograd, then an inner product for each pair.

    A few tokens and pairs are timed and scaled to N and N(N + 1)/2; keeping N gradients at hand is not charged.
    """
    weight, hidden, logits, tokens = layer
    leaf = weight.clone().requires_grad_()
    turn = iter(range(TOKENS))
    kept = []

    def gradient():
        i = next(turn)
        logp = (hidden[i] @ leaf.T).log_softmax(-1)[tokens[i]]
        kept[:] = [*kept[-1:], torch.autograd.grad(logp, leaf)[0].flatten()]

    per_token, per_pair, kernel = medians(
        5, gradient, lambda: kept[0] @ kept[-1], lambda: coupling_kernel(hidden, logits, tokens)
    )
    autograd = TOKENS * per_token + TOKENS * (TOKENS + 1) / 2 * per_pair
    with capsys.disabled():
        print(
            f"\nper-token autograd / coupling kernel: {autograd:.0f} s (scaled from {per_token:.3f} s a token, "
            f"{per_pair:.4f} s a pair) / {kernel:.3f} s = {autograd / kernel:.0f}"
        )


def test_prediction_against_a_real_step(layer, capsys):
    """A real step: the output layer forward, backward, SGD, forward again. The prediction starts from logits."""
    weight, hidden, logits, tokens = (layer[0], *(x[:256] for x in layer[1:]))
    weights = torch.randn(len(tokens), generator=torch.Generator().manual_seed(1)) / len(tokens)
    leaf = weight.clone().requires_grad_()
    optimizer = torch.optim.SGD([leaf], lr=1e-3)

    def logps():
        return (hidden @ leaf.T).log_softmax(-1).gather(1, tokens[:, None]).squeeze(1)

    def real_step():
        optimizer.zero_grad()
        before = logps()
        (-(weights * before).sum()).backward()
        optimizer.step()
        with torch.no_grad():
            return logps() - before

    predict = [lambda o=o: predicted_delta_logp(hidden, logits, tokens, weights, 1e-3, o) for o in ("first", "exact")]
    torch.testing.assert_close(predict[1](), real_step().detach(), rtol=1e-2, atol=1e-5)
    first, exact, real = medians(3, *predict, real_step)
    with capsys.disabled():
        print(
            f"\npredicted_delta_logp / real step: first order {first:.3f} s / {real:.3f} s = {first / real:.2f}, "
            f"exact {exact:.3f} s = {exact / real:.2f}"
        )
