"""Pure tensor functions of cancellation: advantages, credit rules, update weights, batching,
coupling, drift.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "theory.advantages": "group_advantages partial_baseline prefix_credit",
    "theory.batching": "minibatch_order",
    "theory.choices": "ESTIMATORS STRATEGIES",
    "theory.coupling": "coupling_kernel predicted_delta_logp",
    "theory.credit": "CreditBatch",
    "theory.credit_controls": (
        "coin_reward entropy_minimization entropy_penalty majority_vote oracle permuted"
        " sequence_logp worst_token_reset"
    ),
    "theory.credit_edits": "edit_mask ibpo",
    "theory.credit_masks": "shared_by_place shared_by_word specific_by_place specific_by_word",
    "theory.credit_rules": (
        "CREDIT_RULES advantage_reweighting balanced_aggregation credit_table gtpo lambda_grpo"
        " lopti negative_token_filtering nthr token_hidden_reward w_reinforce"
    ),
    "theory.decomposition": "context_index expected_gain split_pushes",
    "theory.drift": "kl_drift log_odds_drift solution_entropy",
    "theory.objective": "objective_weights",
    "theory.weights": (
        "advantage_orthogonal cancellation_residual min_replace surrogate_weights update_weights"
    ),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
