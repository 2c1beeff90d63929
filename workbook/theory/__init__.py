"""Pure tensor functions of cancellation: advantages, update weights, batching, coupling, drift. Torch alone."""

from .advantages import ESTIMATORS, counterfactual_advantages, group_advantages
from .batching import STRATEGIES, minibatch_order
from .coupling import coupling_kernel, predicted_delta_logp
from .drift import jitter, kl_drift, log_odds_drift, solution_entropy
from .weights import advantage_orthogonal, cancellation_residual, min_replace, surrogate_weights, update_weights

__all__ = [
    "ESTIMATORS",
    "STRATEGIES",
    "advantage_orthogonal",
    "cancellation_residual",
    "counterfactual_advantages",
    "coupling_kernel",
    "group_advantages",
    "jitter",
    "kl_drift",
    "log_odds_drift",
    "min_replace",
    "minibatch_order",
    "predicted_delta_logp",
    "solution_entropy",
    "surrogate_weights",
    "update_weights",
]
