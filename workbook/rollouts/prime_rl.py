"""prime-rl's token export (schema 1): one JSON line per sequence, read as a `Record` and written from a token table."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
import pandas as pd

from workbook.rollouts.foreign import (
    Malformed,
    Record,
    as_prompt,
    check_strings,
    check_text,
    numbers,
    short,
    step_of,
    token_ids,
)
from workbook.rollouts.scoring import tokenize_prompts
from workbook.rollouts.token_files import NEEDED, OUTSIDE, STOPS

EXTENSION = "workbook"  # key of a line under which stands what that format has no place for
EXTRA = ("weight", "push", "ratio", "logp_after", "importance", "residual")  # columns of that extension
PRIME_RL = {  # prime-rl's per-token lists and our columns, both as the trainer computed them
    "rewards": "reward",
    "advantages": "advantage",
    "inference_logprobs": "old_logp",
    "trainer_logprobs": "logp",
    "entropy": "entropy",
    "importance_ratio": "ratio",
}
FLAGS = {"off-policy": "is_masked", "clip high": "is_masked_high", "clip low": "is_masked_low"}


def prime_rl_record(row: Mapping, decode=None) -> Record:
    """A record of prime-rl's token export (schema 1): token_ids, loss_mask and lists of the same length.

    The prompt is what stands before the first token of the loss mask; a gap behind it is another's turn (a tool's).
    decode: list of token ids -> text.
    """
    ids = token_ids(row.get("token_ids"))
    mask = np.nan_to_num(numbers("loss_mask", row.get("loss_mask"), len(ids))) > 0
    ours = row.get(EXTENSION) if isinstance(row.get(EXTENSION), Mapping) else {}
    start = ours.get("prompt_tokens", int(mask.argmax()) if mask.any() else 0)
    if type(start) is not int or not 0 <= start <= len(ids):
        raise Malformed(f"prompt_tokens is {short(start)} of {len(ids)} tokens")
    end = len(ids) if "prompt_tokens" in ours or not mask.any() else int(np.flatnonzero(mask)[-1]) + 1
    columns = {
        column: numbers(name, row[name], len(ids))[start:end]
        for name, column in PRIME_RL.items()
        if row.get(name) is not None
    }
    columns = {name: values for name, values in columns.items() if not np.isnan(values).all()}
    columns |= {name: numbers(name, ours[name], end - start) for name in EXTRA if ours.get(name) is not None}
    group, rollout, prompt = ours.get("group"), ours.get("rollout"), ours.get("prompt")
    known = type(group) is int and 0 <= group < 2**31
    return Record(
        step=step_of(row.get("step", 0)),
        group=group if known else tuple(ids[:start]) or None,
        rollout=rollout if type(rollout) is int and 0 <= rollout < 2**31 else None,
        groups="file" if known else "prompt" if start else "none",
        origin="prime-rl",
        prompt=check_text("prompt", prompt) if prompt is not None else decode(ids[:start]) if decode and start else "",
        tokens=check_strings(ours["tokens"], end - start) if ours.get("tokens") is not None else None,
        token_ids=ids[start:end],
        columns=columns,
        stopped=_stops(row, ours, mask, start, end),
        objective=dict(ours["objective"]) if isinstance(ours.get("objective"), Mapping) else None,
    )


def _stops(row: Mapping, ours: Mapping, mask: np.ndarray, start: int, end: int) -> list[str] | None:
    """What took each token's gradient away, from the extension or the flags of prime-rl's own mask."""
    if ours.get("stopped") is not None:
        stopped = check_strings(ours["stopped"], end - start)
        if unknown := sorted(set(stopped) - set(STOPS)):
            raise Malformed(f"stopped holds {short(unknown[0])}; valid are {', '.join(map(repr, STOPS))}")
        return stopped
    stopped = np.where(mask, "", "tool").astype(object)
    if not any(row.get(name) is not None for name in FLAGS.values()) and mask[start:end].all():
        return None
    for reason, name in FLAGS.items():
        if row.get(name) is not None:
            stopped[mask & (np.nan_to_num(numbers(name, row[name], len(mask))) > 0)] = reason
    return stopped[start:end].tolist()


# --- writing


def write_prime_rl(table: pd.DataFrame, path: str | Path, tokenizer=None) -> None:
    """Write a token table as prime-rl's token export (schema 1), a JSON line per rollout, atomically.

    Its names for our columns are `PRIME_RL`'s; what it has no place for (groups, texts, weights, pushes, what stopped a
    token) stands under the key "workbook", so that `read_rollouts` gives the same numbers back, bit for bit; NaN and
    infinities become null. prime-rl's `losses`, which repeat advantages and mask, are left out. Its inference_logprobs
    are our old_logp.

    tokenizer: puts the prompt's tokens before the completion's, as prime-rl does; without one a line begins with the
    completion.  Raises ValueError for a table without token ids, or with rollouts that are not whole.
    """
    if missing := [name for name in (*NEEDED, "step", "token_id") if name not in table]:
        raise ValueError(f"the table has no column {missing[0]}, which a token export needs.")
    path = Path(path)
    with NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            for number, (_, rows) in enumerate(table.groupby(["step", "rollout"], sort=False)):
                record = _prime_rl(rows, number, tokenizer, table.attrs.get("objective"))
                file.write(json.dumps(record, separators=(",", ":"), allow_nan=False, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
            os.chmod(file.name, 0o666 & ~_umask())
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _prime_rl(rows: pd.DataFrame, number: int, tokenizer, objective: dict | None) -> dict:
    if not np.array_equal(rows["position"], np.arange(len(rows))):
        step, rollout = rows.iloc[0][["step", "rollout"]]
        raise ValueError(f"rollout {rollout} of step {step} is not whole: its positions are not 0 to {len(rows) - 1}.")
    prompt = str(rows["prompt"].iloc[0]) if "prompt" in rows else ""
    before = tokenize_prompts(tokenizer, [as_prompt(prompt)])[0] if tokenizer is not None and prompt else []
    stopped = rows["stopped"].astype(str).to_numpy() if "stopped" in rows else np.full(len(rows), "")
    outside = np.isin(stopped, OUTSIDE)

    def padded(values, fill=None) -> list:
        return [fill] * len(before) + list(values)

    columns = {theirs: _plain(rows[ours]) if ours in rows else [None] * len(rows) for theirs, ours in PRIME_RL.items()}
    flags = {"": ~outside & (stopped != "") & (stopped != "no advantage")}
    flags |= {f"_{end}": stopped == f"clip {end}" for end in ("high", "low")}
    if {"old_logp", "logp"} <= set(rows):
        columns |= _mismatch(rows["logp"].to_numpy(np.float64), rows["old_logp"].to_numpy(np.float64))
    ours = {"format": 1, **{name: int(rows[name].iloc[0]) for name in ("group", "rollout")}}
    ours |= {"prompt": prompt, "prompt_tokens": len(before)}
    ours |= {"tokens": rows["token"].astype(str).tolist()}
    ours |= {name: _plain(rows[name]) for name in EXTRA if name in rows}
    ours |= {"stopped": stopped.tolist()} if "stopped" in rows else {}
    ours |= {"objective": objective} if objective else {}
    return {
        "schema_version": 1,
        "step": int(rows["step"].iloc[0]),
        "export_step": int(rows["step"].iloc[0]),
        "rank": 0,
        "micro_step": 0,
        "micro_sequence_idx": number,
        "export_sequence_idx": number,
        "run_id": None,
        "env_name": None,
        "token_ids": padded(rows["token_id"].tolist()) if not before else before + rows["token_id"].tolist(),
        "position_ids": list(range(len(before) + len(rows))),
        "loss_mask": padded((~outside).tolist(), False),
        **{name: padded(values) for name, values in columns.items()},
        **{f"is_masked{end}": padded(values.tolist(), False) for end, values in flags.items()},
        EXTENSION: ours,
    }


def _mismatch(logp: np.ndarray, old_logp: np.ndarray) -> dict[str, list]:
    """prime-rl's columns of the ratio r = pi / pi_old: log r, r, its KL estimate r - 1 - log r, and pi - pi_old."""
    log_ratio = logp - old_logp
    with np.errstate(over="ignore"):
        ratio = np.exp(log_ratio)
    columns = {"log_importance_ratio": log_ratio, "importance_ratio": ratio, "mismatch_kl": ratio - 1 - log_ratio}
    return {name: _plain(values) for name, values in {**columns, "prob_delta": np.exp(logp) - np.exp(old_logp)}.items()}


def _plain(values) -> list:
    """Numbers for JSON: None for what is not finite."""
    values = np.asarray(values, dtype=np.float64)
    return [value if finite else None for value, finite in zip(values.tolist(), np.isfinite(values), strict=True)]
