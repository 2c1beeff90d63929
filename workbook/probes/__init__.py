"""Probes: measurements of a policy on its rollouts, as tables that extend the token table.

Each takes a policy and `Rollouts`, and steps a `private_copy` where it steps at all: the policy
itself never changes. Nothing here draws. What one real step is: `probes.step`; what each token
pushes on each other: `probes.coupling`, `probes.pairs`; sums over any batch: `probes.blocks`.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "probes.blocks": "Blocks block_coupling category_shift coupling_by_mass step_changes",
    "probes.cancellation": (
        "PushRows cancelled_shares left_out prompt_rows rollout_rows sign_products"
    ),
    "probes.categories": "categorized",
    "probes.coupling": (
        "choose_tokens coupling_by_confidence followers gradient_products masked_update"
        " shared_token"
    ),
    "probes.dose": (
        "dose_blocks dose_curve flip_rates net_curve permuted_signs real_step_changes shift_curve"
    ),
    "probes.drift": "drift_report learning_tax odds_drift",
    "probes.energy": "shared_energy token_energy two_word_share",
    "probes.explained": "TokenExplainer",
    "probes.flips": (
        "cancellation_index column_shares flip_distance flip_shares predicts token_flips"
    ),
    "probes.minibatches": (
        "cancelled_in_steps gradient_gram minibatch_displacement sign_shared_words"
    ),
    "probes.noise": "noise_share",
    "probes.pair_mass": "opposed_signs pair_sums",
    "probes.pairs": "cancellation_by_pair",
    "probes.readings": "Readings",
    "probes.recovered": "credit_recovered",
    "probes.reuse": "left_on_shared position_shared_tokens reuse_path token_weights",
    "probes.rivals": "measure_pairs measure_unsure",
    "probes.step": (
        "frequency_matched matched_lr output_layer_step permuted_advantages"
        " pushing_prompts update with_signs"
    ),
    "probes.value_gaps": "cell_gap movement_shares step_gaps",
    "probes.values": (
        "exact_credit exact_pool exact_values expected_reward token_values value_error"
    ),
    "rollouts.likelihood": "context_logits logps",
    "training.optimizers": "optimizer_of",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
