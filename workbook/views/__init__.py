"""Charts and widgets: pure charts f(DataFrame) -> alt.Chart, and thin shells that make them live. Nothing trains."""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    "Explorer": "explorer",
    "Laboratory": "laboratory",
    "LiveChart": "live",
    "RunMonitor": "monitor",
    "TokenHeatmap": "heatmap",
    "agreement_chart": "coupling_probes",
    "cells_chart": "coupling",
    "compare_settings": "comparison",
    "comparison_chart": "comparison",
    "compute_gradients_meet": "gradients",
    "confidence_chart": "coupling_probes",
    "curves_chart": "coupling_probes",
    "doses_chart": "flips",
    "enable_charts": "renderer",
    "endpoints_chart": "batching",
    "estimators_chart": "groups",
    "explore_batching": "batching_study",
    "explore_budget": "values",
    "explore_confidence": "coupling_probes",
    "explore_cut": "batching",
    "explore_estimators": "groups",
    "explore_exchange": "exchange",
    "explore_flips": "flips",
    "explore_flips_of": "llm",
    "explore_gap": "values",
    "explore_gradients_meet": "gradients",
    "explore_growing": "groups",
    "explore_intervention": "groups",
    "explore_kl_drift": "drift",
    "explore_map": "coupling",
    "explore_pair": "coupling",
    "explore_push": "coupling_probes",
    "explore_solutions": "drift",
    "explore_tied": "coupling",
    "explore_transforms": "exchange",
    "flips_chart": "flips",
    "forecast_chart": "experiment",
    "followers_chart": "coupling_probes",
    "frequency_chart": "group_studies",
    "gradients_meet_chart": "gradients",
    "group_size_chart": "group_studies",
    "growing_chart": "groups",
    "intervals_chart": "intervals",
    "intervention_chart": "groups",
    "learning_curve": "charts",
    "learning_rate_chart": "coupling",
    "ledger_chart": "ledger",
    "map_chart": "coupling",
    "mechanism_chart": "batching",
    "movement_chart": "llm",
    "pair_chart": "coupling",
    "predictors_chart": "flips",
    "products_chart": "coupling_probes",
    "refresh": "live",
    "reward_before_after": "charts",
    "run_tables": "comparison",
    "show": "live",
    "tied_chart": "coupling",
    "times_chart": "coupling_probes",
    "token_strip": "tokens",
    "training_chart": "group_studies",
    "verdict_grid": "llm",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    """Import on first use: a chapter's first cell should not wait for its last chart."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
