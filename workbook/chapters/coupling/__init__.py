"""Token coupling in a policy: which token's update moves which other token (chapters 05, 10, 14; H2
to H4, H10, R2).

Terms: K_ij = <h_i, h_j> <e_i - p_i, e_j - p_j> is the output layer's *coupling*; a token is *below
one half* if its p is below `theory.coupling.BELOW_HALF`, which the tables' names call unsure;
*agreement* is the share of tokens whose change the output layer predicts in sign.
"""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "chapters.coupling.charts": (
        "agreement_by_movement agreement_by_movement_chart training_chart"
    ),
    "chapters.coupling.explore": "live_mass live_push",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
