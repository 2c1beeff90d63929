"""Rollouts: sampled completions of prompts, their token table, scores and output states."""

from workbook.places import lazy_names

_NAMES = {  # module: what it offers
    "rollouts.credit_batches": "credit_batch",
    "rollouts.logs": "log_ids read_logged_metrics read_rollouts",
    "rollouts.sample": "Rollouts end_tokens sample_rollouts",
    "rollouts.scoring": "pad_rows sequence_logps tokenize_prompts",
    "rollouts.states": "OutputStates output_states",
    "rollouts.token_files": "token_biography",
}
__all__, __getattr__, __dir__ = lazy_names(__name__, _NAMES)
