"""Credit recovered: what share of a step's movement is the credit that the policy gradient asks for
(chapter 06).

Terms: *signal*, the push p (Q - V) that the policy gradient of the step's own prompts asks for, up
to one constant of the batch; *own-prompt share of signal*, its part of the squared movement;
*noise*, what one reward per rollout adds by chance; *bias*, what a rule adds on average;
*coupling*, what arrives from other contexts.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.recovered.explore": "UPDATE compute_recovered explore_recovered recovered_chart",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
