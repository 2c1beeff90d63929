"""TRL's trainer with the switches of cancellation, and runs that can be watched, stopped, resumed and compared."""

from __future__ import annotations

from importlib import import_module

_HOMES = {
    "CancellationConfig": "config",
    "CancellationTrainer": "trainer",
    "RunConfig": "run_config",
    "Run": "runs",
    "start_run": "runs",
    "load_run": "runs",
    "latest_run": "runs",
    "compare_runs": "compare",
    "sweep": "sweeps",
    "load_sweep": "sweeps",
}
__all__ = list(_HOMES)


def __getattr__(name: str):
    """Import on first use: reading a run's metrics should not wait for TRL."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
