"""Token coupling in a policy: which token's update moves which other token (chapter 06, 10; H2 to H4, H10, R2).

probe         coupling kernels and products of full gradients, by confidence and kind of pair
masked        an update on chosen tokens alone; spillover of a single-token update; the output layer as a proxy
mass          the study of coupling by mass and along training; mass_charts: its figures
live          one token pushes, on the policy in hand; live_pairs: mass, and H3, H4 along a short training
study         one policy, measured once      claims        what is stated, and the measures of the registered outcomes
charts        figures, each beside its explorer          exercises     checks of chapter 06

Terms: K_ij = <h_i, h_j> <e_i - p_i, e_j - p_j> is the output layer's *coupling*; a token is *unsure* below
`theory.coupling.UNSURE`; *agreement* is the share of tokens whose change the output layer predicts in sign.
"""

from workbook.lazy import lazy_names

_NAMES = {  # module: what it offers
    "probes.output_layer": "output_layer_step",
    "topics.coupling.charts": (
        "agreement_by_movement agreement_by_movement_chart confidence_chart explore_couplings first_step_chart "
        "followers_chart products_chart times_chart"
    ),
    "topics.coupling.exercises": "check_first_step check_forecast",
    "topics.coupling.masked": ("KINDS choose_tokens followers masked_update proxy_agreement shared_token"),
    "topics.coupling.mass": "opposed_signs pair_sums proxy_signs spillover",
    "topics.coupling.live": "live_push",
    "topics.coupling.live_pairs": "live_mass live_training",
    "topics.coupling.mass_charts": ("compute_mass mass_chart reach_table"),
    "topics.coupling.probe": "coupling_by_confidence gradient_products product_agreement",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
