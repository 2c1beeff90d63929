"""Pure tensor functions of cancellation: advantages, update weights, batching, coupling, drift. Torch alone."""

from workbook.lazy import lazy_names

_HOMES = {
    "CreditBatch": "theory.credit",
    "ESTIMATORS": "theory.choices",
    "STRATEGIES": "theory.choices",
    "advantage_orthogonal": "theory.weights",
    "cancellation_residual": "theory.weights",
    "coupling_kernel": "theory.coupling",
    "group_advantages": "theory.advantages",
    "jitter": "theory.drift",
    "kl_drift": "theory.drift",
    "log_odds_drift": "theory.drift",
    "min_replace": "theory.weights",
    "minibatch_order": "theory.batching",
    "objective_weights": "theory.objective",
    "predicted_delta_logp": "theory.coupling",
    "prefix_credit": "theory.advantages",
    "solution_entropy": "theory.drift",
    "surrogate_weights": "theory.weights",
    "update_weights": "theory.weights",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
