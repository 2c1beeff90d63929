"""Pure tensor functions of cancellation: advantages, credit rules, update weights, batching, coupling, drift."""

from workbook.lazy import lazy_names

_HOMES = {
    "CREDIT_RULES": "theory.credit_rules",
    "CreditBatch": "theory.credit",
    "ESTIMATORS": "theory.choices",
    "STRATEGIES": "theory.choices",
    "advantage_orthogonal": "theory.weights",
    "advantage_reweighting": "theory.credit_weights",
    "balanced_aggregation": "theory.credit_weights",
    "cancellation_residual": "theory.weights",
    "coin_reward": "theory.credit_controls",
    "coupling_kernel": "theory.coupling",
    "credit_table": "theory.credit_rules",
    "edit_mask": "theory.credit_edits",
    "group_advantages": "theory.advantages",
    "gtpo": "theory.credit_weights",
    "ibpo": "theory.credit_edits",
    "jitter": "theory.drift",
    "kl_drift": "theory.drift",
    "lambda_grpo": "theory.credit_weights",
    "log_odds_drift": "theory.drift",
    "lopti": "theory.credit_weights",
    "min_replace": "theory.weights",
    "minibatch_order": "theory.batching",
    "negative_token_filtering": "theory.credit_weights",
    "nthr": "theory.credit_coupling",
    "objective_weights": "theory.objective",
    "oracle": "theory.credit_controls",
    "permuted": "theory.credit_controls",
    "predicted_delta_logp": "theory.coupling",
    "prefix_credit": "theory.advantages",
    "solution_entropy": "theory.drift",
    "surrogate_weights": "theory.weights",
    "token_hidden_reward": "theory.credit_coupling",
    "update_weights": "theory.weights",
    "w_reinforce": "theory.credit_weights",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
