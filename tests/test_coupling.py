"""Token coupling against autograd, real SGD steps on an output layer, and limits of memory."""

import pytest
import torch
from refusals import refused

from workbook.theory import coupling, coupling_kernel, predicted_delta_logp


def layer(tokens=9, width=4, vocabulary=11, seed=0, dtype=torch.float64, scale=1.0):
    """An output layer, hidden states, and tokens that repeat."""
    generator = torch.Generator().manual_seed(seed)
    weight = scale * torch.randn(vocabulary, width, dtype=dtype, generator=generator)
    hidden = torch.randn(tokens, width, dtype=dtype, generator=generator)
    ids = torch.randint(min(3, vocabulary), (tokens,), generator=generator)
    return weight, hidden, ids, torch.randn(tokens, dtype=dtype, generator=generator)


def logps_of(weight, hidden, ids):
    return (hidden @ weight.T).log_softmax(-1).gather(1, ids[:, None]).squeeze(1)


def gradients(weight, hidden, ids):
    leaf = weight.clone().requires_grad_()
    return torch.stack(
        [
            torch.autograd.grad(logp, leaf, retain_graph=True)[0]
            for logp in logps_of(leaf, hidden, ids)
        ]
    )


def real_step(weight, hidden, ids, weights, lr):
    """The loss -sum w logp, torch's SGD, and the log-probabilities after minus before."""
    leaf = weight.clone().requires_grad_()
    optimizer = torch.optim.SGD([leaf], lr=lr)
    before = logps_of(leaf, hidden, ids)
    (-(weights * before).sum()).backward()
    optimizer.step()
    return (logps_of(leaf, hidden, ids) - before).detach()


@pytest.fixture(
    params=[coupling.BLOCK_ELEMENTS, 20, 1], ids=["one block", "small blocks", "single entries"]
)
def block(request, monkeypatch):
    monkeypatch.setattr(coupling, "BLOCK_ELEMENTS", request.param)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("tokens", [1, 2, 5, 9])
def test_kernel_equals_autograd(tokens):
    weight, hidden, ids, _ = layer(tokens)
    rows = gradients(weight, hidden, ids).flatten(1)
    kernel = coupling_kernel(hidden, hidden @ weight.T, ids)
    assert kernel.dtype == torch.float64
    torch.testing.assert_close(kernel, rows @ rows.T, rtol=1e-11, atol=1e-13)


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("lr", [1e-4, 0.3])
def test_first_order_is_the_kernel_and_autograd(lr):
    weight, hidden, ids, weights = layer()
    logits = hidden @ weight.T
    predicted = predicted_delta_logp(hidden, logits, ids, weights, lr)
    torch.testing.assert_close(
        predicted, lr * coupling_kernel(hidden, logits, ids) @ weights, rtol=1e-10, atol=1e-14
    )
    rows = gradients(weight, hidden, ids)
    step = torch.einsum("n,nvd->vd", weights, rows)
    torch.testing.assert_close(
        predicted, lr * torch.einsum("nvd,vd->n", rows, step), rtol=1e-10, atol=1e-14
    )


@pytest.mark.usefixtures("block")
@pytest.mark.parametrize("lr", [0.0, 1e-6, 1e-2, 1.0, 50.0])
def test_exact_is_a_real_step(lr):
    weight, hidden, ids, weights = layer()
    predicted = predicted_delta_logp(hidden, hidden @ weight.T, ids, weights, lr, order="exact")
    torch.testing.assert_close(
        predicted, real_step(weight, hidden, ids, weights, lr), rtol=1e-9, atol=1e-13
    )


def test_first_order_error_is_second_order():
    weight, hidden, ids, weights = layer()
    errors = []
    for lr in (1e-2, 1e-3):
        first, exact = (
            predicted_delta_logp(hidden, hidden @ weight.T, ids, weights, lr, order)
            for order in ("first", "exact")
        )
        errors.append(float((first - exact).abs().max()))
    assert 80 < errors[0] / errors[1] < 125


def test_float32_is_near_float64():
    weight, hidden, ids, weights = layer(40, 8, 3000, dtype=torch.float32, scale=3.0)
    logits = hidden @ weight.T
    double = hidden.double(), logits.double(), ids
    exact = coupling_kernel(*double)
    assert (coupling_kernel(hidden, logits, ids) - exact).abs().max() <= 2e-6 * exact.abs().max()
    for order in ("first", "exact"):
        delta = predicted_delta_logp(hidden, logits, ids, weights, 1e-3, order)
        expected = predicted_delta_logp(*double, weights.double(), 1e-3, order)
        torch.testing.assert_close(delta.double(), expected, rtol=1e-4, atol=2e-6)


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"order": "second"}, "order", "second"),
        ({"tokens": torch.tensor([0, 11])}, "tokens", 11),
        ({"tokens": torch.tensor([-100, 0])}, "tokens", -100),
        ({"tokens": torch.tensor([0])}, "hidden, logits and tokens", [(2, 4), (2, 11), (1,)]),
        ({"weights": torch.ones(3)}, "weights.shape", (3,)),
    ],
)
def test_refusals_say_what_is_wrong(change, field, value):
    arguments = {
        "hidden": torch.ones(2, 4),
        "logits": torch.ones(2, 11),
        "tokens": torch.tensor([0, 1]),
    }
    with refused(field, value):
        predicted_delta_logp(**(arguments | {"weights": torch.ones(2), "lr": 0.1} | change))
