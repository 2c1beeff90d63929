"""Probes: measurements of a policy on its rollouts, as tables that extend the token table. Nothing here draws.

Each takes a policy and `Rollouts`, and leaves the policy exactly as it was.
"""

from __future__ import annotations

from workbook.lazy import lazy_names

_HOMES = {
    "cancellation_index": "topics.flips.index",
    "cancelled_in_steps": "topics.batching.probe",
    "categorized": "probes.categories",
    "category_shares": "topics.credit.shares",
    "choose_tokens": "topics.coupling.masked",
    "composition_effects": "topics.flips.composition",
    "coupling_by_confidence": "topics.coupling.probe",
    "drift_report": "probes.drift",
    "eps_curve": "topics.flips.probe",
    "exact_values": "topics.credit.values",
    "flip_distance": "topics.flips.probe",
    "flip_shares": "topics.flips.probe",
    "followers": "topics.coupling.masked",
    "frequency_matched": "topics.flips.probe",
    "gradient_gram": "topics.batching.probe",
    "gradient_products": "topics.coupling.probe",
    "learning_tax": "probes.drift",
    "masked_update": "topics.coupling.masked",
    "odds_drift": "probes.drift",
    "output_layer_step": "topics.coupling.masked",
    "predictions": "topics.flips.index",
    "predicts": "topics.flips.index",
    "product_agreement": "topics.coupling.probe",
    "proxy_agreement": "topics.coupling.masked",
    "repeated_updates": "topics.credit.gaps",
    "sampling_budget": "topics.credit.gaps",
    "shared_token": "topics.coupling.masked",
    "shares_by_prompt": "topics.flips.probe",
    "sign_composition": "topics.flips.composition",
    "slope_by_prompt": "statistics",
    "tagger_name": "probes.categories",
    "token_flips": "topics.flips.probe",
    "token_values": "topics.credit.values",
    "untouched": "probes.step",
    "update": "probes.step",
    "update_share_by_category": "topics.credit.shares",
    "value_gap": "topics.credit.gaps",
}
__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
