"""Token-gradient cancellation in critic-free RL for language models: see it, measure it, steer it, try to refute it."""

from workbook.environment import Profile, setup

__all__ = ["Profile", "setup"]
