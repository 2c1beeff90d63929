"""Drift fixing: what exchangeable weights can change, what they leave, and what that does to training (chapter 09).

D1 to D9 and paper D's falsifier are judged here.

probe            epochs on one batch: importance ratios, weights of each objective, the residual on shared tokens
energy           the share of a batch's gradient energy on tokens that a whole group has: the most that could cancel
arms             seven objectives in training, each with a twin of permuted advantages
confidence       the study along template confidence and group size, registered beforehand
effects          its numbers per unit, and its curves          confidence_charts          their charts and explorers
curves           curves over training of value, tax, odds, entropy, and H's mechanisms          curves_charts
claims           what is stated, and which registered outcome judges it
group_sizes      rollouts per prompt at a fixed budget, live over the study's runs
reuse_parts      the returning chart: what an objective's weights add to signal and noise of one batch
charts           the residual of one batch, beside its explorer          exercises        checks of chapter 09
loss_arms        TRL's loss types and corrections: the exact weights of each on given scores
loss_types       the study of their residuals, registered beforehand          loss_types_charts   its tables and charts

Terms: the *learning tax* is the movement of tokens that no reward asks for, in nats; *reuse* is epochs on one batch.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "topics.drift.arms": "FreeWords run_arm",
    "topics.drift.group_sizes": "group_size_gaps live_group_sizes",
    "topics.drift.charts": "effects_chart explore_reuse",
    "topics.drift.confidence_charts": (
        "arms_chart energy_chart energy_now explore_sharing explore_training residual_chart"
    ),
    "topics.drift.curves": "training_curves",
    "topics.drift.curves_charts": "explore_curves fix_by_group_size_chart live_curves mechanisms_chart",
    "topics.drift.effects": "collapses",
    "topics.drift.energy": "shared_energy two_word_share",
    "topics.drift.exercises": "check_compute check_prefix_credit",
    "topics.drift.loss_types": "residuals_of_batch",
    "topics.drift.loss_types_charts": "explore_loss_types loss_type_effects loss_type_levels loss_types_chart",
    "topics.drift.reuse_parts": "parts_at_reuse parts_at_reuse_chart",
    "topics.drift.probe": "left_on_shared objective_weights reuse_path shared_tokens",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
