"""Credit recovered: what share of a step's movement is the credit that the policy gradient asks for (chapter 07).

study       one unit: a step split into signal, noise and bias at many settings     live     the same in a second
claims      what is stated, and what each row measures                               charts   explore_recovered, curves

Terms: *signal*, the push p (Q - V) that the policy gradient asks for, up to one constant of the rule; *noise*, what one
reward per rollout adds by chance; *bias*, what a rule adds on average; *coupling*, what arrives from other contexts.
The probe is `workbook.probes.credit_recovered`, the chart of a step `workbook.views.signal_noise_chart`.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "topics.recovered.charts": "explore_recovered members_chart recovered_curve rules_chart",
    "topics.recovered.live": "compute_recovered",
    "topics.recovered.live_curve": "live_recovered",
    "views.parts": "parts_table signal_noise_chart",
    "topics.recovered.study": "recovered_dials_study recovered_study",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
