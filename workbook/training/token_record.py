"""TokenRecord: what an optimizer step did to each token that it trained on, kept every so many steps.

Everything but the log-probabilities after the step is what the loss has computed anyway: a token's push is read from
the loss's own graph (`training.meter`), so that it is exact for every loss type, bound, mask, correction and transform.
After the step the same rollouts are scored once more, by the same call, without gradients and with the generators of
random numbers put back, so that recording cannot train. Layout and reading of the tables: `training.token_tables`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import TrainerCallback

from workbook.policies.copies import seeded
from workbook.rollouts.token_files import STOPS
from workbook.training.processes import all_gather, broadcast_from_main, is_main
from workbook.training.token_parts import Part, loss_ratio, normalizer, stop_codes
from workbook.training.token_tables import (
    FOLDER,
    is_recorded,
    place_residuals,
    thin,
    thinning_note,
    tidy,
    write_table,
)

TABLE_ROLLOUTS, TABLE_TOKENS = 64, 2**18  # of a table: the first groups of the step, whole, and one at least
RECORDED = (  # settings that a token's formula reads
    *("loss_type", "beta", "delta", "clipping", "group_transform", "transform_on", "advantage_estimator"),
    *("num_generations", "max_completion_length", "temperature", "mask_truncated_completions"),
    *("top_entropy_quantile", "off_policy_mask_threshold", "sapo_temperature_pos", "sapo_temperature_neg"),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
)


class TokenRecord(TrainerCallback):
    """Writes a token table of every `trainer.args.record_tokens`-th optimizer step, and of the first.

    Several processes score what is theirs, and the main one writes. It holds a step's micro-batches, some ten numbers
    per token, until the step is done.
    """

    def __init__(self, trainer):
        self.trainer, self.parts, self.training = trainer, [], False
        self.folder, self.interval = Path(trainer.args.output_dir) / FOLDER, trainer.args.record_tokens
        self.rate, self.texts = 0.0, {}

    @property
    def due(self) -> bool:
        """Whether the optimizer step under way is recorded; a loss that is asked for outside training is in none."""
        return self.training and is_recorded(self.trainer.state.global_step + 1, self.interval)

    def add(self, inputs: dict, scored: tuple, outputs: tuple, pushes: Tensor, advantages: Tensor) -> None:
        """Add one micro-batch: its columns, the call that scored it and what it gave, pushes and advantages (B, T)."""
        trainer = self.trainer
        self.rate = trainer.optimizer.param_groups[0]["lr"]
        batch = trainer._step // (trainer.args.steps_per_generation * trainer.num_iterations)
        kept = outputs[0].detach(), outputs[1].detach(), pushes, advantages
        self.parts.append(Part(inputs, scored, *kept, normalizer(trainer, inputs), batch))

    def on_train_begin(self, args, state, control, **kwargs):
        interval = tidy(self.folder, state.global_step, args.record_tokens) if is_main() else None
        self.interval, self.training = broadcast_from_main(interval), True

    def on_train_end(self, args, state, control, **kwargs):
        self.training = False

    def on_step_begin(self, args, state, control, **kwargs):
        self.parts = []

    def on_step_end(self, args, state, control, **kwargs):
        if not self.parts:
            return
        groups = self._groups()
        shares = all_gather(self._share(groups))
        self.parts = []
        interval = self._write(state.global_step, shares) if is_main() else None
        self.interval = broadcast_from_main(interval)

    # -- what is recorded ------------------------------------------------------------------------------------------

    def _groups(self) -> set[int]:
        """The step's first groups, over all processes: at most TABLE_ROLLOUTS rollouts and TABLE_TOKENS tokens."""
        rollouts, tokens = Counter(), Counter()
        for part in self.parts:
            lengths = self._written(part).sum(dim=1).tolist()
            for group, length in zip(self._group_ids(part).tolist(), lengths, strict=True):
                rollouts[group] += 1
                tokens[group] += length
        rollouts, tokens = (sum(counts, Counter()) for counts in zip(*all_gather((rollouts, tokens)), strict=True))
        ends = np.cumsum([[rollouts[group], tokens[group]] for group in sorted(rollouts)], axis=0)
        fitting = int((ends <= [TABLE_ROLLOUTS, TABLE_TOKENS]).all(axis=1).sum())
        return set(sorted(rollouts)[: max(1, fitting)])

    def _group_ids(self, part: Part) -> Tensor:
        """Labels (B,), numbered on where a step takes more than one generation batch."""
        return part.inputs["group_id"] + self._later(part) * self._batch_size() // self.trainer.num_generations

    def _later(self, part: Part) -> int:
        return part.batch - self.parts[0].batch

    def _batch_size(self) -> int:
        args = self.trainer.args
        return args.per_device_train_batch_size * args.steps_per_generation * self.trainer.accelerator.num_processes

    def _written(self, part: Part) -> Tensor:
        """The tokens (B, T) that were sampled, also those of a truncated rollout, whose own mask is 0 everywhere."""
        mask, ids = part.inputs["completion_mask"].bool(), part.inputs["completion_ids"]
        if not self.trainer.mask_truncated_completions:
            return mask
        place = torch.arange(ids.size(1), device=ids.device)
        real = ids != self.trainer._tokenizer.pad_token_id
        last = (real * (place + 1)).amax(dim=1, keepdim=True)  # 1 + the last real token's place
        return mask | ((place < last) & ~mask.any(dim=1, keepdim=True))

    def _share(self, groups: set[int]) -> dict:
        """This process's rows of those groups, and their prompts; scores them after the step."""
        columns, prompts, normalizers = [], {}, {}
        with torch.no_grad(), seeded(0, self.trainer.accelerator.device):  # a dropout draws no number of training's
            for part in self.parts:
                chosen = torch.isin(self._group_ids(part), torch.tensor(sorted(groups), device=part.logps.device))
                if not chosen.any():
                    continue
                rows = chosen.nonzero()[:, 0]
                columns.append(self._columns(part, rows))
                prompts |= self._prompts(part, rows)
                rollouts = (part.inputs["rollout"] + self._later(part) * self._batch_size())[rows].tolist()
                normalizers |= dict.fromkeys(rollouts, part.normalizer)
        names = columns[0] if columns else ()
        joined = {name: np.concatenate([part[name] for part in columns]) for name in names}
        return {"columns": joined, "prompts": prompts, "normalizers": normalizers}

    def _columns(self, part: Part, rows: Tensor) -> dict[str, np.ndarray]:
        """One micro-batch's rows of a table, each column (tokens,)."""
        inputs, written = part.inputs, self._written(part)
        ratio = loss_ratio(self.trainer, part)
        after = torch.zeros_like(part.logps)
        after[rows] = self._score(part, rows).to(after.dtype)
        old = inputs.get("old_per_token_logps")
        scored = {
            "ratio": ratio,
            "old_logp": part.logps if old is None else old,
            "logp": part.logps,
            "logp_after": after,
            "entropy": part.entropies,
        }
        truncated = ~inputs["completion_mask"].bool()
        per_token = {name: values.masked_fill(truncated, torch.nan) for name, values in scored.items()} | {
            "token_id": inputs["completion_ids"],
            "advantage": part.advantages,
            "push": part.pushes,
            "stopped": stop_codes(self.trainer, part, ratio),
            "importance": inputs.get("importance_sampling_ratio", torch.ones_like(part.logps)),
        }
        per_rollout = {
            "group": self._group_ids(part),
            "rollout": inputs["rollout"] + self._later(part) * self._batch_size(),
            "reward": inputs["rewards"],
        }
        row, position = written[rows].nonzero(as_tuple=True)
        places = rows[row], position
        table = {name: values.expand_as(part.logps)[places] for name, values in per_token.items()}
        table |= {name: values[places[0]] for name, values in per_rollout.items()} | {"position": position}
        return {name: (v.float() if v.is_floating_point() else v).cpu().numpy() for name, v in table.items()}

    def _score(self, part: Part, rows: Tensor) -> Tensor:
        """Log-probabilities (rows, T) under the weights of now, by the call that training made."""
        (ids, mask, width), kwargs = part.scored
        plain = {name: False if "compute" in name else value for name, value in kwargs.items()}
        images = any(value is not None for name, value in kwargs.items() if "compute" not in name)
        chosen = slice(None) if images else rows  # pictures are cut by rollout in TRL's own call alone
        scored = self.trainer._get_per_token_logps_and_entropies(
            self.trainer.model, ids[chosen], mask[chosen], width, batch_size=len(part.logps), **plain
        )[0]
        return scored[rows] if images else scored

    def _prompts(self, part: Part, rows: Tensor) -> dict[int, str]:
        """Text of each group's prompt, as the model read it."""
        ids, mask = part.inputs["prompt_ids"].cpu(), part.inputs["prompt_mask"].bool().cpu()
        first = {group: row for row, group in zip(rows.tolist(), self._group_ids(part)[rows].tolist(), strict=True)}
        return {group: self.trainer._tokenizer.decode(ids[row][mask[row]]) for group, row in first.items()}

    # -- what is written --------------------------------------------------------------------------------------------

    def _write(self, step: int, shares: list[dict]) -> int:
        """Write the table of all processes' rows; the interval from now on."""
        parts = [share["columns"] for share in shares if share["columns"]]
        columns = _merged({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = columns["push"] / columns["advantage"]
        columns["weight"] = np.where(columns["advantage"] == 0, 0.0, weight)
        columns["residual"] = place_residuals(columns)
        prompts = {group: text for share in shares for group, text in share["prompts"].items()}
        groups = {group: i for i, group in enumerate(sorted(prompts))}
        columns["prompt"] = np.array([groups[group] for group in columns["group"].tolist()])
        ids, columns["token"] = np.unique(columns["token_id"], return_inverse=True)
        texts = {"token": self._strings(ids), "prompt": [prompts[group] for group in groups], "stopped": list(STOPS)}
        write_table(self.folder, step, columns, texts, self._objective(shares))
        interval = thin(self.folder, self.interval)
        if interval != self.interval:
            warnings.warn(thinning_note(self.folder), stacklevel=2)
        return interval

    def _strings(self, ids: np.ndarray) -> list[str]:
        """Texts of tokens, each decoded by itself, kept for the next table."""
        for token in ids.tolist():
            if token not in self.texts:
                text = self.trainer._tokenizer.decode([token])
                self.texts[token] = text.encode("utf-8", "replace").decode()
        return [self.texts[token] for token in ids.tolist()]

    def _objective(self, shares: list[dict]) -> dict:
        """The loss as it was trained: settings, this step's learning rate, and the normalizer N of a micro-batch.

        bnpo, whose micro-batches each have their own, has a mapping of rollouts to theirs.
        """
        trainer = self.trainer
        rollouts = {rollout: n for share in shares for rollout, n in share["normalizers"].items()}
        single = len(set(rollouts.values())) == 1
        objective = {name: _plain(getattr(trainer.args, name)) for name in RECORDED}
        return objective | {
            "level": trainer.args.importance_sampling_level,
            "epsilon_low": trainer.epsilon_low,
            "epsilon_high": trainer.epsilon_high,
            "learning_rate": float(self.rate),
            "normalizer": next(iter(rollouts.values())) if single else rollouts,
            "steps": trainer.state.max_steps,
        }


def _merged(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rows in the order of group, rollout and position; of a token that a step took more than once, the summed push."""
    keys = np.stack([columns[name] for name in ("group", "rollout", "position")])
    _, first, place = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    push = np.bincount(place.reshape(-1), columns["push"].astype(np.float64))
    return {name: values[first] for name, values in columns.items()} | {"push": push}


def _plain(value):
    return value if isinstance(value, bool | int | float | str | None) else str(value)
