"""Batching: which rollouts should share an optimizer step (chapter 08; H11 to H13).

cut           a generation batch cut into mini-batches five ways: the table and its explorer
probe         how much of the gradient cancels inside a step, from inner products of rollouts' gradients
composition   the study: prompts per mini-batch x order, paired by policy and seed, in exact held-out value
study         tables measured once before training; pilot: learning rates of an earlier sweep on one policy
walks         two ways through one batch, and how far apart they end
parts         signal and noise of the steps of each cut
live          orders trained now, over the intervals of the study
claims        what is measured of each claim, one number per unit
charts        the study under sliders, and its curve                                  exercises     checks of chapter 08

Terms: *query-preserved* keeps a prompt's rollouts in one mini-batch, *reward-balanced* gives each the same mix of
signs, *sign-partitioned* parts the signs; *jitter* is a curve's movement from step to step.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "topics.batching.charts": "OUTCOMES compute_batching explore_batching level_chart level_curve",
    "topics.batching.claims": "less_cancelled",
    "topics.batching.composition": "Arm against_shuffled ends loop_of measured_curves rates",
    "topics.batching.cut": "NAMES compute_cut endpoints_chart explore_cut mechanism_chart",
    "topics.batching.exercises": "check_in_step check_order",
    "topics.batching.live": "live_orders",
    "topics.batching.parts": "live_parts",
    "topics.batching.probe": "cancelled_in_steps gradient_gram",
    "topics.batching.study": "shared_words",
    "topics.batching.walks": "live_walks walk",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
