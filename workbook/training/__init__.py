"""TRL's trainer with the switches of cancellation, and runs that can be watched, stopped, resumed and compared."""

from __future__ import annotations

from workbook.lazy import lazy_names

_HOMES = {
    "CancellationConfig": "training.config",
    "CancellationTrainer": "training.trainer",
    "QWEN_1_5B": "training.machines",
    "QWEN_7B": "training.machines",
    "Run": "training.runs",
    "RunConfig": "training.run_config",
    "WORKLOAD": "training.machines",
    "at_peak": "training.memory",
    "build_trainer": "training.worker",
    "compare_runs": "training.runs",
    "export_config": "training.export",
    "export_run": "training.export",
    "forecast_run": "training.memory",
    "forecast_seconds": "training.plan",
    "latest_run": "training.runs",
    "load_run": "training.runs",
    "load_sweep": "training.sweeps",
    "measure_throughput": "training.plan",
    "memory_forecast": "training.memory",
    "parameter_counts": "training.memory",
    "peak_mib": "training.memory",
    "problems": "training.checks",
    "start_run": "training.runs",
    "start_sweep": "training.sweep_run",
    "start_trial": "training.plan",
    "sweep": "training.sweeps",
}
__all__ = list(_HOMES)
__getattr__ = lazy_names(__name__, _HOMES)
