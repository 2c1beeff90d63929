"""Gradient exchangeability: when a shared token's pushes cancel, what breaks it, what mends it (chapters 03, 04).

shared        groups whose rollouts share their first token: draws, weights, directions, the residual on that token
toy           the residual under each mechanism and under several together; what a transform mends and costs
example       two rollouts of one prompt, word by word: ratio, clip, weight
measured      the toy's residual along its drift, beside what real batches left
drift         reward-irrelevant drift of one softmax, and among solutions that are equally right
collapse      entropy over equally right answers at many settings and over thousands of steps
charts        the residual meter, the transforms' costs          drift_charts   KL drift, solutions, long runs
exercises     unequal weights that cancel, symmetric clipping, which transform to use, positive-only, missing controls

Terms: the *residual* |sum w A| / sum |w A| is 0 where pushes cancel and 1 where they add up; a *mechanism* makes the
weights or the gradients of a group unequal; a *transform* (min-replace, advantage-orthogonal) repairs weights.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "topics.exchange.shared": "TRANSFORMS draw_groups norm_imbalance residuals vector_residual",
    "topics.exchange.example": "two_rollouts",
    "topics.exchange.measured": "drift_chart measured_drift measured_residuals toy_residuals",
    "topics.exchange.toy": "MECHANISMS compute_exchange compute_transforms repair_costs residual_by_mechanism",
    "topics.exchange.collapse": "entropy_by_setting entropy_chart long_runs",
    "topics.exchange.drift": (
        "START compute_kl_drift compute_solutions push_on_shared run_solutions solution_measures solution_step"
    ),
    "topics.exchange.charts": "costs_chart explore_exchange explore_transforms normalizer_chart repairs_chart",
    "topics.exchange.drift_charts": "explore_kl_drift explore_solutions long_run_chart",
    "topics.exchange.exercises": ("check_positive_only check_symmetric_clip check_transforms check_unequal_weights"),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
