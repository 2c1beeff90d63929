"""Drift fixing: what exchangeable weights buy over epochs on one batch, and their cost (chapter 09; D1 to D9).

Prefix credit, a rule of the process-reward kind, is judged here too.

probe            epochs on one batch: importance ratios, weights of each objective, the residual on shared tokens
prefix_credit    step advantages from shared prefixes, against the credit that is known
settings         the sweeps' runs under other settings: what charts and sliders read
claims           what is stated, against which number, and how it is estimated
charts           figures, each beside its explorer          exercises        checks of chapter 09
loss_arms        TRL's loss types and corrections: the exact weights of each on given scores
loss_types       the study of their residuals, registered beforehand          loss_types_charts   its tables and charts

Terms: the *learning tax* is the movement of tokens that no reward asks for, in nats; *reuse* is epochs on one batch.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "topics.drift.charts": "effects_chart explore_objectives explore_reuse rollouts_per_prompt_chart tax_chart",
    "topics.drift.claims": "nearer_to_credit",
    "topics.drift.prefix_credit": "LARGE",
    "topics.drift.exercises": "check_compute check_prefix_credit",
    "topics.drift.loss_types": "residuals_of_batch",
    "topics.drift.loss_types_charts": "explore_loss_types loss_type_effects loss_type_levels loss_types_chart",
    "topics.drift.probe": "left_on_shared objective_weights reuse_path shared_tokens",
    "topics.drift.settings": (
        "compute_causes compute_group_size compute_readings compute_remedies compute_sampling_budget "
        "estimator_curves objectives tax_against_learning"
    ),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
