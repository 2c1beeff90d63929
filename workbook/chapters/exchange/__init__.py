"""Gradient exchangeability: when a shared token's pushes cancel, what breaks it, what mends it
(chapters 03, 04).

Terms: the *residual* |sum w A| / sum |w A| is 0 where pushes cancel and 1 where they add up; a
*mechanism* makes the weights or the gradients of a group unequal; a *transform* (min-replace,
advantage-orthogonal) repairs weights.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.exchange.charts": (
        "entropy_chart long_run_chart normalizer_chart ratios_chart repairs_chart"
    ),
    "chapters.exchange.drift": (
        "compute_kl_drift entropy_by_setting long_runs run_solutions"
        " solution_measures solution_step"
    ),
    "chapters.exchange.exercises": (
        "check_sequence_weights sequence_or_ours sequence_weights weights_by_range"
    ),
    "chapters.exchange.explore": (
        "check_unequal_weights explore_exchange explore_formula"
        " explore_kl_drift explore_reference_pull explore_solutions"
    ),
    "chapters.exchange.objectives": (
        "OBJECTIVES compute_objectives filled_formula formula_errors reference_pull_errors"
        " residual_by_situation"
    ),
    "chapters.exchange.toy": (
        "draw_drifted_groups repair_costs residual_by_mechanism residuals two_rollouts"
    ),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
