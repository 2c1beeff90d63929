"""Theory: the pure tensor functions of cancellation, from one reward to the push on each token.

Read in this order; nothing here knows a model, a tokenizer or a trainer:

    advantages       one reward per rollout -> one advantage, against its group
    weights          what an objective multiplies it by: ratios, clipping, normalizers, transforms
    credit           one advantage per token instead: what a credit rule is given
    credit_rules     the published rules; credit_masks, credit_edits, credit_controls: more of them
    batching         which rollouts meet in one optimizer step
    coupling         how one token's push moves another
    decomposition    a step as signal, noise and bias, where credit is known
    drift            how far a step moved what no reward asked for
    choices          the names of all settings
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "theory.advantages": "group_advantages partial_baseline permute_in_groups prefix_advantages",
    "theory.batching": "minibatch_order",
    "theory.choices": "ESTIMATORS STRATEGIES",
    "theory.coupling": "coupling_kernel predicted_delta_logp",
    "theory.credit": "CreditBatch",
    "theory.credit_controls": (
        "coin_reward entropy_minimization entropy_penalty known_credit majority_vote"
        " permuted sequence_logp worst_token_reset"
    ),
    "theory.credit_edits": "edit_mask ibpo",
    "theory.credit_masks": (
        "Masked MatchedCredit shared_by_place shared_by_word specific_by_place specific_by_word"
    ),
    "theory.credit_rules": (
        "CREDIT_RULES advantage_reweighting balanced_aggregation credit_table gtpo lambda_grpo"
        " lopti negative_token_filtering nthr token_hidden_reward w_reinforce"
    ),
    "theory.decomposition": "context_index expected_gain split_pushes",
    "theory.drift": "kl_drift log_odds_drift solution_entropy",
    "theory.weights": (
        "advantage_orthogonal cancellation_residual min_replace objective_weights"
        " surrogate_weights update_weights"
    ),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
