"""Token coupling: how one token's update moves another's log-probability, by the output layer.

All tokens are read from one matrix W: the logits of token i are W h_i, with h_i its hidden state. A
step on log pi(token j) moves W along (e_j - p_j) h_j', with e_j the one-hot vector of the token and
p_j the softmax at its position. It thereby moves log pi(token i) in proportion to

    K_ij = <h_i, h_j> <e_i - p_i, e_j - p_j>        (arXiv 2605.08666, figure 2; H2 in the claims)

So two tokens move together where their contexts are alike (h) and their scores e - p are alike:
above all where they are the same word and neither is nearly certain. What a whole batch does to a
token is the sum of its row of K, with advantages as weights; there cancellation becomes visible.

Memory: vocabulary-sized rows are made a block at a time. No second N x V tensor is held, and
nothing of size N x N unless it is the answer.

cap: some models bend the logits after the layer, z = cap tanh(W h / cap) (soft-capping, Gemma 2).
By the chain rule each entry of e - p is then multiplied by 1 - (z / cap)^2; `logits` are always
those that the softmax gets.

Letters: N tokens of a pool, D width, V vocabulary.
"""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from workbook.messages import InvalidValue, require_one_of

# a token is unsure below this probability; from there on it has hardly any gradient of its own
NEARLY_CERTAIN = 0.9
# pairs of tokens are counted by whether both lie below one half; in tables from before, "unsure"
BELOW_HALF = 0.5

# elements of a block of scores: 8 MiB in float32
BLOCK_ELEMENTS = 2**21
# tokens up to which the kernel is made whole
MAX_WHOLE_KERNEL = 2_000
# rows of a strip of larger kernels
STRIP_ROWS = 1_024
# a strip's symmetric part is made from the diagonal on in so many cuts: 5/8 of the work of all
_DIAGONAL_CUTS = 4
_TAYLOR_ORDERS = ("first", "exact")


def coupling_kernel(
    hidden: Float[Tensor, "N D"],
    logits: Float[Tensor, "N V"],
    tokens: Int[Tensor, " N"],
    cap: float | None = None,
) -> Float[Tensor, "N N"]:
    """Coupling of tokens: how far a step on j's log-probability moves i's, by the output layer.

        K_ij = <h_i, h_j> <e_i - p_i, e_j - p_j> = <grad_W log pi(i), grad_W log pi(j)>

    Source: arXiv 2605.08666, figure 2 (H2).

    Shapes: hidden (N, D) the output layer's inputs, logits (N, V) its outputs, tokens (N,) the
    sampled ids; result (N, N), symmetric, in the inputs' dtype (at least float32). Unit:
    log-probability per learning rate and weight, no normalizer. Extra memory: two N x N and a few 8
    MiB blocks. Raises ValueError for shapes that disagree and for ids outside the vocabulary.

    >>> hidden, logits = torch.eye(2), torch.zeros(2, 4)
    >>> coupling_kernel(hidden, logits, torch.tensor([0, 0])).tolist()
    [[0.75, 0.0], [0.0, 0.75]]
    """
    strips = kernel_strips(hidden, logits, tokens, cap, rows=max(1, len(tokens)))
    # the only strip is the kernel; of no tokens there is none
    _, kernel = next(strips, (0, logits.new_zeros(0, 0)))
    return kernel


def kernel_strips(
    hidden: Float[Tensor, "N D"],
    logits: Float[Tensor, "N V"],
    tokens: Int[Tensor, " N"],
    cap: float | None = None,
    rows: int | None = None,
) -> Iterator[tuple[int, Float[Tensor, "m M"]]]:
    """Yield the kernel in strips of rows from the diagonal on, so that no N x N is held.

    Each is a row number i with K[i : i + m, i:]; the rest follows from symmetry.

    rows: rows of a strip; by default all up to MAX_WHOLE_KERNEL tokens, then STRIP_ROWS. Other
    arguments and errors as of `coupling_kernel`.
    """
    dtype, hidden, logits = _checked(hidden, logits, tokens)
    hidden = hidden.to(dtype)
    size, vocabulary = logits.shape

    # (N, 1): with the softmax's normalizer known, columns of the vocabulary can be made alone
    normalizer = torch.empty(size, 1, dtype=dtype, device=logits.device)
    for z, out in _row_blocks(logits, normalizer):
        torch.logsumexp(z.to(dtype), -1, keepdim=True, out=out)

    if rows is None:
        rows = max(1, size) if size <= MAX_WHOLE_KERNEL else STRIP_ROWS
    for i in range(0, size, rows):
        m = min(rows, size - i)
        strip = torch.zeros(m, size - i, dtype=dtype, device=logits.device)

        # rows of the strip by cuts, each from its own diagonal on
        cut = -(-m // _DIAGONAL_CUTS)
        cuts = [slice(start, min(m, start + cut)) for start in range(0, m, cut)]

        # <e_i - p_i, e_j - p_j> adds up over blocks of the vocabulary
        width = _block_rows(size - i)
        for start in range(0, vocabulary, width):
            z = logits[i:, start : start + width]  # (N - i, width)
            score = _scores_in_place(z - normalizer[i:], tokens[i:] - start)
            score = _times_cap_slope(score, z, cap)
            for own in cuts:
                strip[own, own.start :].addmm_(score[own], score[own.start :].T)

        # what lies left of a cut's diagonal is the transpose of what lies above it
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
    """Split row `index` of the kernel into <h_i, h_j> and <e_i - p_i, e_j - p_j>, for every j.

    Their product is coupling_kernel(...)[index] (arXiv 2605.08666, figure 2; H2). Shapes, units and
    errors as there, each result (N,); IndexError for an index outside the N tokens. Extra memory:
    blocks of rows.

    >>> hidden, logits = torch.eye(2), torch.zeros(2, 4)
    >>> contexts, scores = coupling_factors(hidden, logits, torch.tensor([0, 0]), 0)
    >>> contexts.tolist(), scores.tolist()
    ([1.0, 0.0], [0.75, 0.75])
    """
    dtype, hidden, logits = _checked(hidden, logits, tokens)
    hidden = hidden.to(dtype)

    logp = torch.log_softmax(logits[index][None].to(dtype), -1)  # (1, V)
    own = _scores_in_place(logp, tokens[index][None])[0]  # (V,)
    own = _times_cap_slope(own, logits[index], cap)

    products = torch.empty(len(tokens), dtype=dtype, device=logits.device)
    for z, token, out in _row_blocks(logits, tokens, products):
        score = _scores_in_place(torch.log_softmax(z.to(dtype), -1), token)
        out.copy_(_times_cap_slope(score, z, cap) @ own)
    return hidden @ hidden[index], products


def predicted_delta_logp(
    hidden: Float[Tensor, "N D"],
    logits: Float[Tensor, "N V"],
    tokens: Int[Tensor, " N"],
    weights: Float[Tensor, " N"],
    lr: float,
    order: str = "first",
    cap: float | None = None,
) -> Float[Tensor, " N"]:
    """Change of every token's log-probability by one SGD step on the output layer, rest frozen.

    The step is W += lr G with G = sum_j w_j (e_j - p_j) h_j', w_j = update weight x advantage of
    token j, and no bias, so that

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
    require_one_of("order", order, _TAYLOR_ORDERS)
    dtype, hidden, logits = _checked(hidden, logits, tokens)
    if weights.shape != tokens.shape:
        raise InvalidValue(
            "weights.shape", tuple(weights.shape), f"{tuple(tokens.shape)}, one per token"
        )

    # the step of all tokens together, lr G: (V, D)
    step = torch.zeros(logits.shape[1], hidden.shape[1], dtype=dtype, device=logits.device)
    scaled = lr * weights.detach().to(dtype)
    for z, h, token, weight in _row_blocks(logits, hidden, tokens, scaled):
        score = _scores_in_place(torch.log_softmax(z.to(dtype), -1), token)
        score = _times_cap_slope(score, z, cap)
        step.addmm_(score.T, h.to(dtype) * weight[:, None])

    # what it does to each token's logits, and so to its log-probability
    delta = torch.empty(len(tokens), dtype=dtype, device=logits.device)
    for z, h, token, out in _row_blocks(logits, hidden, tokens, delta):
        shift = _shift_after_cap(h.to(dtype) @ step.T, z, cap, order)  # (rows, V)
        logp = torch.log_softmax(z.to(dtype), -1)
        own = shift.gather(1, token[:, None]).squeeze(1)  # (rows,)
        if order == "first":
            # <e - p, shift>
            out.copy_(own - logp.exp_().mul_(shift).sum(1))
        else:
            # the token's own shift minus that of the normalizer
            moved = torch.logsumexp(shift.add_(logp), 1) - torch.logsumexp(logp, 1)
            out.copy_(own - moved)
    return delta


def _scores_in_place(logp: Tensor, tokens: Tensor) -> Tensor:
    """The scores e - p of rows, written over their log-probabilities.

    The columns may be a block of the vocabulary: tokens outside of it have no e.
    """
    score = logp.exp_().neg_()
    rows = ((tokens >= 0) & (tokens < logp.shape[1])).nonzero().squeeze(1)
    score[rows, tokens[rows]] += 1
    return score


def _times_cap_slope(values: Tensor, logits: Tensor, cap: float | None) -> Tensor:
    """Multiply each entry by the soft-cap's slope at its logit, in place."""
    if cap is None:
        return values
    return values.mul_(1 - (logits / cap) ** 2)


def _shift_after_cap(shift: Tensor, logits: Tensor, cap: float | None, order: str) -> Tensor:
    """Shift of the capped logits that follows a shift of W h."""
    if cap is None or order == "first":
        return _times_cap_slope(shift, logits, cap)
    # tanh(a + b) - tanh a = (1 - tanh(a)^2) tanh b / (1 + tanh a tanh b)
    pushed = (shift / cap).tanh_()
    return _times_cap_slope(cap * pushed / (1 + logits / cap * pushed), logits, cap)


def _block_rows(width: int) -> int:
    """Rows of so many columns that fit into a block."""
    return max(1, BLOCK_ELEMENTS // max(width, 1))


def _row_blocks(logits: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Blocks of rows of the logits, with the same rows of the tensors beside them."""
    rows = _block_rows(logits.shape[1])
    return zip(*(tensor.split(rows) for tensor in (logits, *others)), strict=True)


def _checked(hidden: Tensor, logits: Tensor, tokens: Tensor) -> tuple[torch.dtype, Tensor, Tensor]:
    """The dtype to compute in, hidden and logits without gradients.

    Raises ValueError if the inputs do not belong together.
    """
    matrices = hidden.ndim == logits.ndim == 2 and tokens.ndim == 1
    if not (matrices and len(hidden) == len(logits) == len(tokens)):
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
