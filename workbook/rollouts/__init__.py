"""Rollouts: sampled completions of prompts, their token table, scores and output states."""

from __future__ import annotations

from workbook.lazy import lazy_names

_HOMES = {
    "OutputStates": "rollouts.states",
    "Rollouts": "rollouts.sample",
    "credit_batch": "rollouts.credit",
    "end_tokens": "rollouts.sample",
    "output_states": "rollouts.states",
    "pad_rows": "rollouts.scoring",
    "read_metrics": "rollouts.logs",
    "read_rollouts": "rollouts.logs",
    "sample_rollouts": "rollouts.sample",
    "sequence_logps": "rollouts.scoring",
    "tokenize_prompts": "rollouts.scoring",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
