"""TRL's trainer with the switches of cancellation, and runs that can be watched, stopped, resumed and compared."""

from __future__ import annotations

from workbook.lazy import lazy_names

_HOMES = {
    "CancellationConfig": "training.config",
    "CancellationTrainer": "training.trainer",
    "RunConfig": "training.run_config",
    "Run": "training.runs",
    "start_run": "training.runs",
    "load_run": "training.runs",
    "latest_run": "training.runs",
    "compare_runs": "training.compare",
    "sweep": "training.sweeps",
    "load_sweep": "training.sweeps",
}
__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
