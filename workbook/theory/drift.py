"""Drift: how far an update moves a softmax, or the odds between equally good solutions.

Some movement earns nothing. Where an answer may begin with any of three words, no reward prefers
one of them; yet sampling noise, and pushes that fail to cancel, move their probabilities anyway.
This *reward-irrelevant drift* is the tax of training, and it is measured in nats: as a KL
divergence between the softmax before and after, or as a change of log-odds between solutions that
deserve the same. The measures compare two policies; `theory.weights` says what moves them apart.

Letters: V vocabulary, K solutions.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from workbook.messages import InvalidValue, require_one_of

_KL_ORDERS = ("exact", "quadratic")


def kl_drift(
    logits: Float[Tensor, "*batch V"], step: Float[Tensor, "*batch V"], order: str = "exact"
) -> Float[Tensor, "*batch"]:
    """KL divergence of the moved softmax from the old one, at each position.

    With p = softmax(z), p' = softmax(z + s), the step s = lr g, and the Fisher matrix F = diag(p) -
    p p':

    - order "exact": KL(p' || p) = sum_v p'_v (log p'_v - log p_v)
    - order "quadratic": 1/2 s'F s = 1/2 Var_p(s), which the exact one equals up to O(|s|^3)

    Shapes: logits (..., V) = z (log-probabilities will do), step (..., V), which may broadcast;
    result (...). Unit: nats, in float32 good to about 1e-7. Between two known policies the step is
    the difference of their log-probabilities. Both orders are >= 0, and 0 only where s is one
    constant wherever p > 0. Source: arXiv 2604.13088, proposition 3.1 (D4 in the claims).

    Raises ValueError for an unknown order, and for steps of another V than the logits.

    >>> kl_drift(torch.zeros(2), torch.tensor([1.0, -1.0]), "quadratic").item()
    0.5
    >>> round(kl_drift(torch.zeros(2), torch.tensor([0.1, -0.1])).item(), 5)
    0.00498
    """
    require_one_of("order", order, _KL_ORDERS)
    if logits.ndim == 0 or step.shape[-1:] != logits.shape[-1:]:
        raise InvalidValue(
            "step.shape",
            tuple(step.shape),
            f"in its last axis that of logits, {tuple(logits.shape)}",
        )
    logits = logits.detach()
    step = step.detach()
    logp = torch.log_softmax(logits, -1)  # (..., V)
    # words of probability 0 count 0, where arithmetic would make NaN of 0 times infinity
    possible = logp > -torch.inf

    if order == "quadratic":
        p = logp.exp()
        step = torch.where(possible, step, 0.0)
        mean = (p * step).sum(-1, keepdim=True)
        return 0.5 * (p * (step - mean).square()).sum(-1)

    moved = torch.log_softmax(logits + step, -1)
    gain = torch.where(possible, moved - logp, 0.0)
    # rounding may leave -1e-9
    return (moved.exp() * gain).sum(-1).clamp(min=0.0)


def log_odds_drift(
    before: Float[Tensor, "*batch K"], after: Float[Tensor, "*batch K"]
) -> Float[Tensor, "*batch K K"]:
    """Change of the log-odds of each pair of solutions: entry (a, b) is that of pi(y_a)/pi(y_b).

        drift_ab = (log pi'(y_a) - log pi'(y_b)) - (log pi(y_a) - log pi(y_b))

    It is antisymmetric, in nats.

    Shapes: before and after (..., K), the log-probabilities of K whole solutions (the sum over a
    solution's tokens), normalized or not: a constant common to all drops out. Result (..., K, K).
    Source: arXiv 2604.13088, corollary 3.2 (D5 in the claims), which says lr c(x) (kappa_a -
    kappa_b); that holds for some update operators only.

    Raises ValueError for shapes that disagree, and for a solution that is impossible (-inf) before
    or after.

    >>> log_odds_drift(torch.zeros(2), torch.tensor([0.5, 0.25])).tolist()
    [[0.0, 0.25], [-0.25, 0.0]]
    """
    if before.shape != after.shape or before.ndim == 0:
        raise InvalidValue(
            "after.shape",
            tuple(after.shape),
            f"that of before, {tuple(before.shape)}, and (..., K)",
        )
    for name, logps in {"before": before, "after": after}.items():
        if not logps.isfinite().all():
            raise InvalidValue(
                name, float(logps[~logps.isfinite()][0]), "finite: every solution must be possible"
            )
    moved = (after - before).detach()  # (..., K)
    return moved.unsqueeze(-1) - moved.unsqueeze(-2)


def solution_entropy(logps: Float[Tensor, "*batch K"]) -> Float[Tensor, "*batch"]:
    """Entropy over equivalent solutions, given that the policy produces one of them.

    H = -sum_k q_k log q_k with q_k = pi(y_k) / sum_j pi(y_j), in nats, between 0 and log K; of two
    solutions it is the binary entropy of D5.

    Shapes: logps (..., K) log-probabilities of the solutions, normalized or not; result (...). An
    impossible solution (-inf) counts 0. Source: arXiv 2604.13088, corollary 3.2. Raises ValueError
    where there are no solutions.

    >>> round(solution_entropy(torch.tensor([0.25, 0.25]).log()).item(), 4)
    0.6931
    """
    if logps.ndim == 0 or logps.shape[-1] == 0:
        raise InvalidValue("logps.shape", tuple(logps.shape), "(..., K) with at least one solution")
    logq = torch.log_softmax(logps.detach(), -1)  # (..., K)
    # 0 log 0 counts 0
    finite = torch.where(logq > -torch.inf, logq, 0.0)
    return -(logq.exp() * finite).sum(-1)
