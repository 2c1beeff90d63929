"""StepRecord: what an optimizer step did to each token that it trained on, kept every so many
steps.

A token's push is read from the loss's own graph (`training.meter`), so that it is exact for every
loss type, bound, mask, correction and transform. After the step the same rollouts are scored once
more, by the same call, without gradients and with the generators of random numbers put back, so
that recording cannot train. Layout and reading of the tables: `rollouts.token_files`.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor
from transformers import TrainerCallback

from workbook.files import all_gather, is_main, replacement
from workbook.rollouts.token_files import (
    FOLDER,
    NUMBERS,
    STOPS,
    TEXTS,
    WHOLE,
    place_residuals,
    step_files,
)
from workbook.training.checks import CLIPPED_LOSSES
from workbook.training.config import CancellationConfig
from workbook.training.meter import loss_mask

TABLE_ROLLOUTS = 64  # of a table: the first groups of the step, whole, and one at least
RECORDED = (  # settings that a token's formula reads
    *(
        "loss_type",
        "beta",
        "delta",
        "clipping",
        "group_transform",
        "transform_on",
        "advantage_estimator",
    ),
    *("num_generations", "max_completion_length", "temperature", "mask_truncated_completions"),
    *(
        "top_entropy_quantile",
        "off_policy_mask_threshold",
        "sapo_temperature_pos",
        "sapo_temperature_neg",
    ),
    *("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"),
)


@dataclass
class Part:
    """One micro-batch of a step: its columns, how it was scored, and what came of it; (B, T) where
    not said.
    """

    inputs: dict
    scored: tuple  # arguments and keywords of the call that gave logps and entropies
    logps: Tensor
    entropies: Tensor
    pushes: Tensor
    advantages: Tensor
    normalizer: float
    batch: int  # number of its generation batch


class StepRecord(TrainerCallback):
    """Writes a token table of every so many optimizer steps, and of the first, to
    output_dir/tokens.

    It holds a step's micro-batches until the step is done. `app.record_callback` has one for
    trainers that are not ours.
    """

    def __init__(self, trainer, every: int):
        self.trainer, self.parts, self.training, self.rate, self.every = (
            trainer,
            [],
            False,
            0.0,
            every,
        )
        self.folder = Path(trainer.args.output_dir) / FOLDER

    @property
    def due(self) -> bool:
        """Whether the optimizer step under way is recorded; a loss that is asked for outside
        training is in none.
        """
        step = self.trainer.state.global_step + 1
        return self.training and (step == 1 or step % self.every == 0)

    def add(
        self, inputs: dict, scored: tuple, outputs: tuple, pushes: Tensor, advantages: Tensor
    ) -> None:
        """Add one micro-batch: its columns, the call that scored it and what it gave, pushes and
        advantages (B, T).
        """
        trainer = self.trainer
        self.rate = trainer.optimizer.param_groups[0]["lr"]
        batch = trainer._step // (trainer.args.steps_per_generation * trainer.num_iterations)
        kept = outputs[0].detach(), outputs[1].detach(), pushes, advantages
        self.parts.append(Part(inputs, scored, *kept, normalizer(trainer, inputs), batch))

    def on_train_begin(self, args, state, control, **kwargs):
        self.training = True
        for step, paths in step_files(self.folder).items():
            if step > state.global_step and is_main():  # of a run that was resumed from before it
                for path in paths:
                    path.unlink()

    def on_train_end(self, args, state, control, **kwargs):
        self.training = False

    def on_step_begin(self, args, state, control, **kwargs):
        self.parts = []

    def on_step_end(self, args, state, control, **kwargs):
        if not self.parts:
            return
        # the step's first groups, over all processes
        present = set().union(
            *all_gather({int(group) for part in self.parts for group in self._group_ids(part)})
        )
        chosen = sorted(present)[: max(1, TABLE_ROLLOUTS // self.trainer.num_generations)]
        parts, device = [], self.trainer.accelerator.device
        devices = [device] if device.type == "cuda" else []
        # a dropout draws no number of training's
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            for part in self.parts:
                rows = torch.isin(
                    self._group_ids(part), torch.tensor(chosen, device=part.logps.device)
                ).nonzero()[:, 0]
                if len(rows):
                    parts.append(self._table(part, rows))
        if parts:
            self._write(
                pd.concat(parts, ignore_index=True).assign(step=state.global_step),
                state.global_step,
            )
        self.parts = []

    # -- what is recorded
    # ------------------------------------------------------------------------------------------

    def _group_ids(self, part: Part) -> Tensor:
        """Labels (B,), numbered on where a step takes more than one generation batch."""
        return part.inputs["group_id"] + self._earlier(part) // self.trainer.num_generations

    def _earlier(self, part: Part) -> int:
        """Rollouts of the step's generation batches before this micro-batch's."""
        args = self.trainer.args
        size = (
            args.per_device_train_batch_size
            * args.steps_per_generation
            * self.trainer.accelerator.num_processes
        )
        return (part.batch - self.parts[0].batch) * size

    def _sampled(self, part: Part) -> Tensor:
        """The tokens (B, T) that were sampled, also those of a truncated rollout, whose own mask is
        0 everywhere.
        """
        mask, ids = part.inputs["completion_mask"].bool(), part.inputs["completion_ids"]
        if not self.trainer.mask_truncated_completions:
            return mask
        place = torch.arange(ids.size(1), device=ids.device)
        real = ids != self.trainer._tokenizer.pad_token_id
        last = (real * (place + 1)).amax(dim=1, keepdim=True)  # 1 + the last real token's place
        return mask | ((place < last) & ~mask.any(dim=1, keepdim=True))

    def _table(self, part: Part, rows: Tensor) -> pd.DataFrame:
        """One micro-batch's rows of the table."""
        inputs, sampled = part.inputs, self._sampled(part)
        ratio, truncated = loss_ratio(self.trainer, part), ~inputs["completion_mask"].bool()
        after = torch.zeros_like(part.logps)
        after[rows] = self._score(part, rows).to(after.dtype)
        old = inputs.get("old_per_token_logps", part.logps)
        scored = {
            "ratio": ratio,
            "old_logp": part.logps if old is None else old,
            "logp": part.logps,
        }
        scored |= {"logp_after": after, "entropy": part.entropies}
        per_token = {
            name: values.masked_fill(truncated, torch.nan) for name, values in scored.items()
        } | {
            "token_id": inputs["completion_ids"],
            "advantage": part.advantages,
            "push": part.pushes,
            "stopped": stop_codes(self.trainer, part, ratio),
            "importance": inputs.get("importance_sampling_ratio", torch.ones_like(part.logps)),
        }
        per_rollout = {
            "group": self._group_ids(part),
            "rollout": inputs["rollout"] + self._earlier(part),
        }
        per_rollout["reward"] = inputs["rewards"]
        row, position = sampled[rows].nonzero(as_tuple=True)
        places = rows[row], position
        columns = {name: values.expand_as(part.logps)[places] for name, values in per_token.items()}
        columns |= {name: values[places[0]] for name, values in per_rollout.items()} | {
            "position": position
        }
        columns = {
            name: (v.float() if v.is_floating_point() else v).cpu().numpy()
            for name, v in columns.items()
        }
        table = pd.DataFrame(columns).assign(normalizer=part.normalizer)
        # texts
        decode = self.trainer._tokenizer.decode
        ids, masks = inputs["prompt_ids"].cpu(), inputs["prompt_mask"].bool().cpu()
        group_ids = self._group_ids(part).tolist()
        prompts = {group_ids[row]: decode(ids[row][masks[row]]) for row in rows.tolist()}
        texts = {
            token: decode([token]).encode("utf-8", "replace").decode()
            for token in table["token_id"].unique()
        }
        table["stopped"] = np.array(STOPS)[table["stopped"]]
        return table.assign(token=table["token_id"].map(texts), prompt=table["group"].map(prompts))

    def _score(self, part: Part, rows: Tensor) -> Tensor:
        """Log-probabilities (rows, T) under the weights of now, by the call that training made."""
        (ids, mask, width), kwargs = part.scored
        plain = {name: False if "compute" in name else value for name, value in kwargs.items()}
        images = any(value is not None for name, value in kwargs.items() if "compute" not in name)
        # pictures are cut by rollout in TRL's own call alone
        chosen = slice(None) if images else rows
        scored = self.trainer._get_per_token_logps_and_entropies(
            self.trainer.model,
            ids[chosen],
            mask[chosen],
            width,
            batch_size=len(part.logps),
            **plain,
        )[0]
        return scored[rows] if images else scored

    def _write(self, table: pd.DataFrame, step: int) -> None:
        """Write this process's rows, with the loss as it was trained; bnpo's N as a mapping of
        rollouts to theirs.
        """
        trainer, per_rollout = self.trainer, table.groupby("rollout")["normalizer"].first()
        settings = {name: setting(trainer, name) for name in RECORDED} | {
            "level": trainer.args.importance_sampling_level,
            "epsilon_low": trainer.epsilon_low,
            "epsilon_high": trainer.epsilon_high,
            "learning_rate": float(self.rate),
            "normalizer": (
                float(per_rollout.iloc[0]) if per_rollout.nunique() == 1 else per_rollout.to_dict()
            ),
            "steps": trainer.state.max_steps,
        }
        # of a token that a step took more than once, the summed push
        keys = ["group", "rollout", "position"]
        push = table.astype({"push": np.float64}).groupby(keys)["push"].sum()
        table = (
            table.drop_duplicates(keys)
            .sort_values(keys, ignore_index=True)
            .assign(push=push.to_numpy())
        )
        weight = (table["push"] / table["advantage"]).where(table["advantage"] != 0, 0.0)
        table = table.assign(weight=weight, residual=place_residuals(table))
        table = table[[*WHOLE, *TEXTS, *NUMBERS]].astype(
            dict.fromkeys(WHOLE, "int32") | dict.fromkeys(NUMBERS, "f4")
        )
        arrow = pa.Table.from_pandas(
            table.astype(dict.fromkeys(TEXTS, "category")), preserve_index=False
        )
        arrow = arrow.replace_schema_metadata(
            {b"workbook": json.dumps(settings, default=str).encode()}
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacement(
            self.folder / f"step-{step:06d}.{trainer.accelerator.process_index}.parquet"
        ) as temporary:
            pq.write_table(arrow, temporary, compression="zstd")


# -- reading a micro-batch as its loss does
# -------------------------------------------------------------------------


def setting(trainer, name: str):
    """A field of the trainer's arguments, or, of TRL's own arguments, the default of
    CancellationConfig.
    """
    return getattr(trainer.args, name, getattr(CancellationConfig, name, None))


def loss_ratio(trainer, part: Part) -> Tensor:
    """The loss's ratio (B, T), of a whole rollout at sequence level; 1 without old
    log-probabilities.
    """
    old = part.inputs.get("old_per_token_logps")
    log_ratio = torch.zeros_like(part.logps) if old is None else part.logps - old
    if trainer.args.importance_sampling_level == "sequence":
        mask = loss_mask(part.inputs)
        log_ratio = (log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(
            min=1.0
        )
    return log_ratio.exp().expand_as(part.logps)


def normalizer(trainer, inputs: dict) -> float:
    """N of a micro-batch: a token's push is its weight times its advantage / N; of several
    processes the mean.
    """
    mask, kind = loss_mask(inputs), trainer.loss_type
    if kind in ("grpo", "sapo", "luspo"):
        n = len(mask)
    elif kind == "bnpo":
        n = max(1.0, float(mask.sum()))
    elif kind == "dr_grpo":
        n = len(mask) * trainer.max_completion_length
    else:  # of the generation batch, so a share of it
        items = max(1.0, float(inputs["num_items_in_batch"])) / trainer.accelerator.num_processes
        n = items / trainer.args.steps_per_generation
    return float(n) * trainer.current_gradient_accumulation_steps


def stop_codes(trainer, part: Part, ratio: Tensor) -> Tensor:
    """What took each token's gradient away (B, T), as an index into STOPS; 0 where it has a push.

    Nothing here decides what is trained: a cause is named for pushes that are 0. Where several meet
    their condition, the first of: truncated, tool, no advantage, off-policy, clip, entropy, group
    (its transform).
    """
    inputs, args, advantages = part.inputs, trainer.args, part.advantages
    everywhere = torch.ones_like(ratio, dtype=torch.bool)
    causes = [("truncated", ~inputs["completion_mask"].bool()), ("tool", ~loss_mask(inputs).bool())]
    causes.append(("no advantage", advantages == 0))
    if "importance_sampling_ratio" in inputs:  # vLLM's masks set it to 0
        causes.append(("off-policy", inputs["importance_sampling_ratio"] == 0))
    if (threshold := args.off_policy_mask_threshold) is not None:
        old = inputs.get("old_per_token_logps", part.logps)
        sampled = inputs.get("sampling_per_token_logps", old)
        kept = trainer.get_off_policy_mask(
            advantages, part.logps, sampled, loss_mask(inputs), threshold
        )
        causes.append(("off-policy", kept == 0))
    transformed = setting(trainer, "group_transform")
    clamped = transformed and setting(trainer, "transform_on") == "clamped_ratios"
    if trainer.loss_type in (*CLIPPED_LOSSES, "luspo") and not clamped:
        below, above = ratio < 1 - trainer.epsilon_low, ratio > 1 + trainer.epsilon_high
        if setting(trainer, "clipping") == "asymmetric":
            below, above = below & (advantages < 0), above & (advantages > 0)
        if args.delta is not None:
            above = above | (ratio > args.delta)
        causes += [("clip low", below), ("clip high", above)]
    if args.top_entropy_quantile < 1:
        causes.append(("entropy", everywhere))
    if transformed:
        causes.append(("group", everywhere))
    codes = torch.zeros_like(ratio, dtype=torch.int8)
    for reason, where in reversed(causes):
        codes = torch.where((part.pushes == 0) & where, STOPS.index(reason), codes)
    return codes
