"""Rollouts: sampled completions of prompts, their token table, scores and output states."""

from __future__ import annotations

from workbook.lazy import lazy_names

_HOMES = {
    "OutputStates": "rollouts.states",
    "Rollouts": "rollouts.sample",
    "credit_batch": "rollouts.credit",
    "end_tokens": "rollouts.generation",
    "output_states": "rollouts.states",
    "pad_rows": "rollouts.scoring",
    "read_rollouts": "rollouts.exchange",
    "sample_rollouts": "rollouts.sample",
    "sequence_logps": "rollouts.scoring",
    "tokenize_prompts": "rollouts.scoring",
    "write_prime_rl": "rollouts.prime_rl",
}
__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
