"""Token-gradient cancellation in critic-free RL for language models: see it, measure it, steer it, try to refute it."""

import os

# Read by OpenMP when torch is loaded. By default its threads spin while they wait, and two processes with two threads
# each on two cores then slow one another down several times over: a notebook and the run that it started, for one.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from workbook.environment import Profile, setup

__all__ = ["Profile", "setup"]
