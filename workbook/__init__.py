"""Token-gradient cancellation in critic-free RL: see it, measure it, steer it, try to refute it."""

import os

# OpenMP reads it when torch is loaded. By default its threads spin while they wait, and two
# processes with two threads each, such as a notebook and the run that it started, then slow one
# another down several times over on two cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from workbook.environment import Profile, setup
from workbook.places import lazy_names

# module: what many chapters use of it
_NAMES = {
    "book.back_matter": "grade_choice",
    "policies.load": "load_policy",
    "probes.noise": "noise_share",
    "probes.step": "matched_lr",
    "rollouts.example": (
        "ANSWER PROMPT ROLLOUTS TASK example_group example_policy example_rollouts running_values"
    ),
    "rollouts.logs": "log_ids",
    "rollouts.sample": "sample_rollouts",
    "rollouts.scoring": "sequence_logps",
    "rollouts.states": "output_states",
    "statistics": "bootstrap_mean nested_mean paired_difference t_interval",
    "tasks": "get_task own_task",
    "chapters.hypothesis": "check_hypothesis",
    "training.config": "RunConfig",
    "views.batches": "draw_batch",
    "app.runs": "start_run",
    "app.sweeps": "runs",
    "views.charts": "intervals_chart",
    "views.heatmap": "TokenHeatmap",
    "app.monitor": "RunMonitor",
}
_names, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
__all__ = ["Profile", "setup", *_names]
