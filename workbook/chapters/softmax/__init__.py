"""Softmax coupling: two contexts, one softmax layer, and what a step on one token does to the other
(chapter 01).

Terms: the *score* e - p is the gradient of logp by the logits; a token is *below one half* if its p
is below `theory.coupling.BELOW_HALF`; *rivalry* is how much of the rest of a token's probability
goes to the other context's word.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.softmax.charts": "cells_chart learning_rate_chart",
    "chapters.softmax.explore": (
        "check_coupling check_rivals draw_example_coupling explore_map explore_pair"
    ),
    "chapters.softmax.toy": (
        "READS TRAINED compute_learning_rates compute_map coupling_parts make_pair map_verdict"
        " real_step"
    ),
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
