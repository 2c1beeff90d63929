"""Token coupling through the output layer: how one token's update moves another token's
log-probability.

The logits of token i are W h_i. A step on log pi(token j) moves W along (e_j - p_j) h_j', with e_j
the one-hot vector of the token and p_j the softmax at its position, and so moves log pi(token i) in
proportion to K_ij (arXiv 2605.08666, figure 2; H2 in the claims). Vocabulary-sized rows are made a
block at a time: no second N x V tensor, and nothing of size N x N unless it is the answer.

cap: some models bend the logits after the layer, z = cap tanh(W h / cap) (soft-capping, Gemma 2).
By the chain rule each entry of e - p is then multiplied by 1 - (z / cap)^2; `logits` are always
those that the softmax gets.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbook.messages import InvalidValue, require_one_of

BLOCK = 2**21  # elements of a block of residuals: 8 MiB in float32
# the kernel is symmetric: it is made in parts from the diagonal on, 5/8 of the whole square
CUTS = 4
# tokens up to which the kernel is made whole; rows of a strip of larger ones
WHOLE, STRIP = 2_000, 1_024
ORDERS = ("first", "exact")
# a token is unsure below this probability; from there on it has hardly any gradient of its own
NEARLY_CERTAIN = 0.9
# pairs of tokens are counted by whether both lie below one half; in tables from before, "unsure"
BELOW_HALF = 0.5


def coupling_kernel(
    hidden: Float[Tensor, "N D"],
    logits: Float[Tensor, "N V"],
    tokens: Int[Tensor, " N"],
    cap: float | None = None,
) -> Float[Tensor, "N N"]:
    """Coupling of tokens: how far a unit step on j's log-probability moves i's, through the output
    layer alone.

    K_ij = <h_i, h_j> <e_i - p_i, e_j - p_j> = <grad_W log pi(i), grad_W log pi(j)> (arXiv
    2605.08666, figure 2; H2).

    Shapes: hidden (N, D) the output layer's inputs, logits (N, V) its outputs, tokens (N,) the
    sampled ids; result (N, N), symmetric, in the inputs' dtype (at least float32). Unit:
    log-probability per learning rate and weight, no normalizer. Extra memory: two N x N and a few 8
    MiB blocks. Raises ValueError for shapes that disagree and for ids outside the vocabulary.

    >>> hidden, logits = torch.eye(2), torch.zeros(2, 4)
    >>> coupling_kernel(hidden, logits, torch.tensor([0, 0])).tolist()
    [[0.75, 0.0], [0.0, 0.75]]
    """
    strips = kernel_strips(hidden, logits, tokens, cap, rows=max(1, len(tokens)))
    return next(strips, (0, logits.new_zeros(0, 0)))[1]


def kernel_strips(
    hidden: Float[Tensor, "N D"],
    logits: Float[Tensor, "N V"],
    tokens: Int[Tensor, " N"],
    cap=None,
    rows=None,
) -> Iterator[tuple[int, Float[Tensor, "m M"]]]:
    """The kernel in strips of so many rows from the diagonal on: i and K[i : i + m, i:], so that no
    N x N is held.

    rows: by default all up to WHOLE tokens, then STRIP. Arguments and errors as of
    `coupling_kernel`.
    """
    dtype, hidden, logits = _checked(hidden, logits, tokens)
    (size, vocabulary), hidden = logits.shape, hidden.to(dtype)
    total = torch.empty(size, 1, dtype=dtype, device=logits.device)
    for part, out in _row_blocks(logits, total):
        torch.logsumexp(part.to(dtype), -1, keepdim=True, out=out)
    rows = rows or (size if size <= WHOLE else STRIP)
    for i in range(0, size, rows):
        m, width = min(rows, size - i), _block(size - i)
        strip, cut = torch.zeros(m, size - i, dtype=dtype, device=logits.device), -(-m // CUTS)
        cuts = [slice(start, min(m, start + cut)) for start in range(0, m, cut)]
        for start in range(0, vocabulary, width):
            block = logits[i:, start : start + width]
            residual = _bent(_residual(block - total[i:], tokens[i:] - start), block, cap)
            for own in cuts:
                strip[own, own.start :].addmm_(residual[own], residual[own.start :].T)
        for own in cuts:
            strip[own.stop :, own] = strip[own, own.stop : m].T
        yield i, strip.mul_(hidden[i : i + m] @ hidden[i:].T)


def coupling_factors(
    hidden: Float[Tensor, "N D"],
    logits: Float[Tensor, "N V"],
    tokens: Int[Tensor, " N"],
    index: int,
    cap: float | None = None,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """The two factors of one row of the kernel: <h_i, h_j> and <e_i - p_i, e_j - p_j> for i = index
    and every j.

    Their product is coupling_kernel(...)[index] (arXiv 2605.08666, figure 2; H2). Shapes, units and
    errors as there, each result (N,); IndexError for an index outside the N tokens. Extra memory:
    blocks of rows.

    >>> hidden, logits = torch.eye(2), torch.zeros(2, 4)
    >>> [factor.tolist() for factor in coupling_factors(hidden, logits, torch.tensor([0, 0]), 0)]
    [[1.0, 0.0], [0.75, 0.75]]
    """
    dtype, hidden, logits = _checked(hidden, logits, tokens)
    own = _residual(torch.log_softmax(logits[index][None].to(dtype), -1), tokens[index][None])[0]
    own = _bent(own, logits[index], cap)
    residuals = torch.empty(len(tokens), dtype=dtype, device=logits.device)
    for z, token, out in _row_blocks(logits, tokens, residuals):
        out.copy_(_bent(_residual(torch.log_softmax(z.to(dtype), -1), token), z, cap) @ own)
    return hidden.to(dtype) @ hidden[index].to(dtype), residuals


def predicted_delta_logp(
    hidden: Float[Tensor, "N D"],
    logits: Float[Tensor, "N V"],
    tokens: Int[Tensor, " N"],
    weights: Float[Tensor, " N"],
    lr: float,
    order: str = "first",
    cap: float | None = None,
) -> Float[Tensor, " N"]:
    """Change of every token's log-probability when one SGD step is taken on the output layer (no
    bias, rest frozen).

    The step is W += lr G with G = sum_j w_j (e_j - p_j) h_j', w_j = update weight x advantage of
    token j, so that

    - order "first": delta_i = lr <e_i - p_i, G h_i> = lr sum_j w_j K_ij
    - order "exact": delta_i = log softmax(z_i + lr G h_i)[token i] - log softmax(z_i)[token i]

    Shapes: hidden (N, D), logits (N, V) = z, tokens (N,), weights (N,); result (N,), in nats. Extra
    memory: G, of the output layer's size (V, D), and blocks of rows; no N x N. Source: arXiv
    2605.08666, figures 2 and 10 (H2, H4). Raises ValueError for an unknown order, shapes that
    disagree and ids outside the vocabulary.

    >>> hidden, logits, tokens = torch.eye(2), torch.zeros(2, 4), torch.tensor([0, 0])
    >>> predicted_delta_logp(hidden, logits, tokens, torch.tensor([1.0, 0.0]), lr=0.5).tolist()
    [0.375, 0.0]
    """
    require_one_of("order", order, ORDERS)
    dtype, hidden, logits = _checked(hidden, logits, tokens)
    if weights.shape != tokens.shape:
        raise InvalidValue(
            "weights.shape", tuple(weights.shape), f"{tuple(tokens.shape)}, one per token"
        )
    step = torch.zeros(logits.shape[1], hidden.shape[1], dtype=dtype, device=logits.device)  # lr G

    for z, h, token, weight in _row_blocks(logits, hidden, tokens, lr * weights.detach().to(dtype)):
        residual = _bent(_residual(torch.log_softmax(z.to(dtype), -1), token), z, cap)
        step.addmm_(residual.T, h.to(dtype) * weight[:, None])
    delta = torch.empty(len(tokens), dtype=dtype, device=logits.device)
    for z, h, token, out in _row_blocks(logits, hidden, tokens, delta):
        shift = _after_cap(h.to(dtype) @ step.T, z, cap, order)
        logp = torch.log_softmax(z.to(dtype), -1)
        own = shift.gather(1, token[:, None]).squeeze(1)
        if order == "first":
            out.copy_(own - logp.exp_().mul_(shift).sum(1))
        else:
            out.copy_(own - (torch.logsumexp(shift.add_(logp), 1) - torch.logsumexp(logp, 1)))
    return delta


def _residual(logp: Tensor, tokens: Tensor) -> Tensor:
    """e - p for a block of the vocabulary, written over its log-probabilities; tokens outside the
    block have no e.
    """
    residual = logp.exp_().neg_()
    rows = ((tokens >= 0) & (tokens < logp.shape[1])).nonzero().squeeze(1)
    residual[rows, tokens[rows]] += 1
    return residual


def _bent(residual: Tensor, logits: Tensor, cap: float | None) -> Tensor:
    """The residual seen from before the soft-cap: each entry times the cap's slope, in place."""
    return residual if cap is None else residual.mul_(1 - (logits / cap) ** 2)


def _after_cap(shift: Tensor, logits: Tensor, cap: float | None, order: str) -> Tensor:
    """Shift of the logits that follows a shift of W h; exact: tanh(a + b) = (tanh a + tanh b) / (1
    + tanh a tanh b).
    """
    if cap is None or order == "first":
        return _bent(shift, logits, cap)
    pushed = (shift / cap).tanh_()
    return _bent(cap * pushed / (1 + logits / cap * pushed), logits, cap)


def _block(width: int) -> int:
    return max(1, BLOCK // max(width, 1))


def _row_blocks(logits: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Blocks of rows of the logits, with the same rows of the tensors beside them."""
    return zip(*(x.split(_block(logits.shape[1])) for x in (logits, *others)), strict=True)


def _checked(hidden: Tensor, logits: Tensor, tokens: Tensor) -> tuple[torch.dtype, Tensor, Tensor]:
    """The dtype to compute in, hidden and logits without gradients; ValueError if inputs do not
    belong together.
    """
    if not (
        hidden.ndim == logits.ndim == 2
        and tokens.ndim == 1
        and len(hidden) == len(logits) == len(tokens)
    ):
        shapes = [tuple(x.shape) for x in (hidden, logits, tokens)]
        raise InvalidValue(
            "hidden, logits and tokens",
            shapes,
            "of shapes (N, D), (N, V) and (N,)",
            f"hidden, logits and tokens have shapes {shapes}; they must be (N, D), (N, V), (N,).",
        )
    outside = tokens[(tokens < 0) | (tokens >= logits.shape[1])]
    if len(outside):
        raise InvalidValue("tokens", int(outside[0]), f"ids from 0 to {logits.shape[1] - 1}")
    dtype = torch.promote_types(torch.promote_types(hidden.dtype, logits.dtype), torch.float32)
    return dtype, hidden.detach(), logits.detach()
