"""Batching: which rollouts should share an optimizer step (chapter 08; H11 to H13).

cut           a generation batch cut into mini-batches five ways: the table and its explorer
probe         how much of the gradient cancels inside a step, from inner products of rollouts' gradients
study         tables measured once before training; pilot: learning rates for the sweep of whole runs
claims        what is stated, against which number, and how it is estimated
charts        the sweep's cells and effects, each figure beside its explorer          exercises     checks of chapter 08

Terms: *query-preserved* keeps a prompt's rollouts in one mini-batch, *reward-balanced* gives each the same mix of
signs, *sign-partitioned* parts the signs; *jitter* is a curve's movement from step to step.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "topics.batching.charts": "cell_effects explore_batching label_cells study_cells_chart",
    "topics.batching.claims": "less_cancelled",
    "topics.batching.cut": "NAMES compute_cut endpoints_chart explore_cut mechanism_chart",
    "topics.batching.exercises": "check_in_step check_order",
    "topics.batching.pilot": "rates",
    "topics.batching.probe": "cancelled_in_steps gradient_gram",
    "topics.batching.study": "shared_words",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
