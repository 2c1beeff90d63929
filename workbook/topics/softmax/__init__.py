"""Softmax coupling: two contexts, one softmax layer, and what a step on one token does to the other (chapter 01).

pair        two contexts A and B with chosen probabilities, angle and lengths; the coupling in parts, and real SGD steps
toy         tables for the sliders, the map over both probabilities, and its verdict on H2
charts      figures and explorers: the pair, the map, tied embeddings, learning rates, cells of real couplings
measured    pairs of a real policy by kind, and what couples to its unsure tokens
exercises   the half angle, the kernel written by the reader, rivals that compete as hard as equal tokens agree

Terms: the *score* e - p is the gradient of logp by the logits; a token is *unsure* below `theory.coupling.UNSURE`;
*rivalry* is how much of the rest of a token's probability goes to the other context's word.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "topics.softmax.pair": "READS TRAINED coupling_parts make_pair real_step",
    "topics.softmax.toy": "compute_cells compute_learning_rates compute_map compute_pair compute_tied map_verdict",
    "topics.softmax.measured": "measure_pairs measure_unsure",
    "topics.softmax.charts": (
        "cells_chart explore_map explore_pair explore_tied learning_rate_chart map_chart pair_chart tied_chart"
    ),
    "topics.softmax.exercises": "check_coupling check_half_angle check_rivals",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
