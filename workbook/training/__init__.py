"""TRL's trainer with the switches of cancellation, and runs that can be watched, stopped, resumed and compared."""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "training.checks": "problems",
    "training.config": "CancellationConfig RunConfig",
    "training.credit": "credit_call",
    "training.diagnosis": "diagnose",
    "training.listening": "TokenRecord",
    "training.memory": ("QWEN_1_5B QWEN_7B WORKLOAD at_peak forecast_run memory_forecast parameter_counts peak_mib"),
    "training.messages": "progress",
    "training.runs": "Run latest_run load_run start_run",
    "training.sweeps": "compare_runs load_sweep sweep",
    "rollouts.token_files": "token_biography",
    "training.trainer": "CancellationTrainer",
    "training.worker": "build_trainer",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
