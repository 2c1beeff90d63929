"""Charts and widgets: pure charts f(DataFrame) -> alt.Chart, and thin shells that make them live. Nothing trains."""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    "LiveChart": "live",
    "RunMonitor": "monitor",
    "Explorer": "explorer",
    "TokenHeatmap": "heatmap",
    "compute_gradients_meet": "gradients",
    "enable_charts": "renderer",
    "explore_exchange": "exchange",
    "explore_gradients_meet": "gradients",
    "explore_kl_drift": "drift",
    "explore_solutions": "drift",
    "explore_transforms": "exchange",
    "gradients_meet_chart": "gradients",
    "learning_curve": "charts",
    "explore_estimators": "groups",
    "explore_growing": "groups",
    "explore_intervention": "groups",
    "estimators_chart": "groups",
    "frequency_chart": "groups",
    "group_size_chart": "groups",
    "growing_chart": "groups",
    "intervention_chart": "groups",
    "training_chart": "groups",
    "refresh": "live",
    "reward_before_after": "charts",
    "show": "live",
    "token_strip": "tokens",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    """Import on first use: a chapter's first cell should not wait for its last chart."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
