"""Probes: measurements of a policy on its rollouts, as tables that extend the token table. Nothing here draws.

Each takes a policy and `Rollouts`, and leaves the policy exactly as it was.
"""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    "cancellation_index": "cancellation",
    "cancelled_in_steps": "minibatches",
    "categorized": "categories",
    "category_shares": "shares",
    "choose_tokens": "masked",
    "composition_effects": "composition",
    "coupling_by_confidence": "coupling",
    "drift_report": "drift",
    "eps_curve": "flips",
    "exact_values": "values",
    "flip_distance": "flips",
    "flip_shares": "flips",
    "followers": "following",
    "frequency_matched": "flips",
    "gradient_gram": "minibatches",
    "gradient_products": "coupling",
    "learning_tax": "drift",
    "masked_update": "masked",
    "odds_drift": "drift",
    "output_layer_step": "masked",
    "predictions": "cancellation",
    "predicts": "cancellation",
    "product_agreement": "coupling",
    "proxy_agreement": "masked",
    "repeated_updates": "gaps",
    "sampling_budget": "gaps",
    "shared_token": "following",
    "shares_by_prompt": "flips",
    "sign_composition": "composition",
    "slope_by_prompt": "gaps",
    "tagger_name": "categories",
    "token_flips": "flips",
    "token_values": "values",
    "untouched": "step",
    "update": "step",
    "update_share_by_category": "shares",
    "value_gap": "gaps",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    """Import on first use, as in `workbook.views`."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
