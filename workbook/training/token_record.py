"""StepRecord: what an optimizer step did to each token that it trained on.

A reward says how good an answer was. Which of its words the step then made more probable, and which
less, is nowhere in a trainer's logs: this table has it, a row per token, every so many steps. Its
columns follow the token through the step: its advantage, the weight that the loss gave it, the push
that came of both, what stopped it where nothing came, and its log-probability before and after.

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
from jaxtyping import Bool, Float, Int
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

# rollouts of a table: the first groups of the step, whole, and one group at least
TABLE_ROLLOUTS = 64
# settings that a token's formula reads
_RECORDED = (
    "loss_type",
    "beta",
    "delta",
    "clipping",
    "group_transform",
    "transform_on",
    "advantage_estimator",
    "num_generations",
    "max_completion_length",
    "temperature",
    "mask_truncated_completions",
    "top_entropy_quantile",
    "off_policy_mask_threshold",
    "sapo_temperature_pos",
    "sapo_temperature_neg",
    "vespo_k_pos",
    "vespo_lambda_pos",
    "vespo_k_neg",
    "vespo_lambda_neg",
)


@dataclass
class Part:
    """One micro-batch of a step: its columns, how it was scored, and what came of it.

    Tensors are (B, T).
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
        self.trainer = trainer
        self.every = every
        self.folder = Path(trainer.args.output_dir) / FOLDER
        self.training = False
        # of the step under way
        self.parts: list[Part] = []
        self.rate = 0.0

    @property
    def due(self) -> bool:
        """Whether the optimizer step under way is recorded.

        A loss that is asked for outside training is in none.
        """
        step = self.trainer.state.global_step + 1
        return self.training and (step == 1 or step % self.every == 0)

    def add(
        self,
        inputs: dict,
        scored: tuple,
        outputs: tuple,
        pushes: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
    ) -> None:
        """Add one micro-batch.

        inputs: its columns.  scored: arguments and keywords of the call that scored it.  outputs:
        what that call gave, log-probabilities and entropies first.
        """
        trainer = self.trainer
        self.rate = trainer.optimizer.param_groups[0]["lr"]
        micro_batches = trainer.args.steps_per_generation * trainer.num_iterations
        part = Part(
            inputs=inputs,
            scored=scored,
            logps=outputs[0].detach(),
            entropies=outputs[1].detach(),
            pushes=pushes,
            advantages=advantages,
            normalizer=normalizer(trainer, inputs),
            batch=trainer._step // micro_batches,
        )
        self.parts.append(part)

    # -- during training -----------------------------------------------------------------------

    def on_train_begin(self, args, state, control, **kwargs):
        self.training = True
        if not is_main():
            return
        # tables of a run that is resumed from before them
        for step, paths in step_files(self.folder).items():
            if step > state.global_step:
                for path in paths:
                    path.unlink()

    def on_train_end(self, args, state, control, **kwargs):
        self.training = False

    def on_step_begin(self, args, state, control, **kwargs):
        self.parts = []

    def on_step_end(self, args, state, control, **kwargs):
        if not self.parts:
            return
        chosen = self._chosen_groups()
        tables = []
        device = self.trainer.accelerator.device
        devices = [device] if device.type == "cuda" else []
        # a dropout draws no number of training's
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            for part in self.parts:
                wanted = torch.tensor(chosen, device=part.logps.device)
                rows = torch.isin(self._group_ids(part), wanted).nonzero()[:, 0]
                if len(rows):
                    tables.append(self._table(part, rows))
        if tables:
            table = pd.concat(tables, ignore_index=True).assign(step=state.global_step)
            self._write(table, state.global_step)
        self.parts = []

    def _chosen_groups(self) -> list[int]:
        """The step's first groups, over all processes, as many as a table has."""
        own = {int(group) for part in self.parts for group in self._group_ids(part)}
        groups = sorted(set().union(*all_gather(own)))
        return groups[: max(1, TABLE_ROLLOUTS // self.trainer.num_generations)]

    # -- one micro-batch's rows ----------------------------------------------------------------

    def _group_ids(self, part: Part) -> Int[Tensor, " B"]:
        """Labels of groups, numbered on where a step takes more than one generation batch."""
        return part.inputs["group_id"] + self._earlier(part) // self.trainer.num_generations

    def _earlier(self, part: Part) -> int:
        """Rollouts of the step's generation batches before this micro-batch's."""
        args = self.trainer.args
        per_process = args.per_device_train_batch_size * args.steps_per_generation
        rollouts = per_process * self.trainer.accelerator.num_processes
        return (part.batch - self.parts[0].batch) * rollouts

    def _sampled(self, part: Part) -> Bool[Tensor, "B T"]:
        """The tokens that were sampled, also those of a truncated rollout, whose own mask is 0
        everywhere.
        """
        mask = part.inputs["completion_mask"].bool()
        ids = part.inputs["completion_ids"]
        if not self.trainer.mask_truncated_completions:
            return mask
        positions = torch.arange(ids.size(1), device=ids.device)
        real = ids != self.trainer._tokenizer.pad_token_id
        lengths = (real * (positions + 1)).amax(dim=1, keepdim=True)  # up to the last real token
        truncated = ~mask.any(dim=1, keepdim=True)
        return mask | ((positions < lengths) & truncated)

    def _table(self, part: Part, rows: Int[Tensor, " b"]) -> pd.DataFrame:
        """The chosen rollouts' rows of the table, one per sampled token."""
        inputs = part.inputs
        ratio = loss_ratio(self.trainer, part)
        after = torch.zeros_like(part.logps)
        after[rows] = self._score(part, rows).to(after.dtype)
        old = inputs.get("old_per_token_logps", part.logps)
        old = part.logps if old is None else old
        group_ids = self._group_ids(part)

        # what scoring gave (B, T); nothing scored a truncated rollout that the loss masks
        per_token = {
            "ratio": ratio,
            "old_logp": old,
            "logp": part.logps,
            "logp_after": after,
            "entropy": part.entropies,
        }
        truncated = ~inputs["completion_mask"].bool()
        for name, values in per_token.items():
            per_token[name] = values.masked_fill(truncated, torch.nan)
        per_token["token_id"] = inputs["completion_ids"]
        per_token["advantage"] = part.advantages
        per_token["push"] = part.pushes
        per_token["stopped"] = stop_codes(self.trainer, part, ratio)
        unused = torch.ones_like(part.logps)
        per_token["importance"] = inputs.get("importance_sampling_ratio", unused)
        per_rollout = {
            "group": group_ids,
            "rollout": inputs["rollout"] + self._earlier(part),
            "reward": inputs["rewards"],
        }

        # a row per sampled token of the chosen rollouts
        row, position = self._sampled(part)[rows].nonzero(as_tuple=True)
        rollout = rows[row]
        columns = {}
        for name, values in per_token.items():
            columns[name] = values.expand_as(part.logps)[rollout, position]
        for name, values in per_rollout.items():
            columns[name] = values[rollout]
        columns["position"] = position
        for name, values in columns.items():
            if values.is_floating_point():
                values = values.float()
            columns[name] = values.cpu().numpy()
        table = pd.DataFrame(columns).assign(normalizer=part.normalizer)

        # codes as texts
        decode = self.trainer._tokenizer.decode
        prompt_ids = inputs["prompt_ids"].cpu()
        prompt_masks = inputs["prompt_mask"].bool().cpu()
        labels = group_ids.tolist()
        prompts = {labels[i]: decode(prompt_ids[i][prompt_masks[i]]) for i in rows.tolist()}
        tokens = {}
        for token_id in table["token_id"].unique():
            # half of a character is written as a question mark
            tokens[token_id] = decode([token_id]).encode("utf-8", "replace").decode()
        table["stopped"] = np.array(STOPS)[table["stopped"]]
        table["token"] = table["token_id"].map(tokens)
        table["prompt"] = table["group"].map(prompts)
        return table

    def _score(self, part: Part, rows: Int[Tensor, " b"]) -> Float[Tensor, "b T"]:
        """Log-probabilities under the weights of now, by the call that training made."""
        (ids, mask, width), keywords = part.scored
        keywords = dict(keywords)
        has_images = False
        for name, value in keywords.items():
            if "compute" in name:
                keywords[name] = False  # entropies were computed before the step
            elif value is not None:
                has_images = True
        # pictures are cut by rollout in TRL's own call alone
        chosen = slice(None) if has_images else rows
        logps, *_ = self.trainer._get_per_token_logps_and_entropies(
            self.trainer.model,
            ids[chosen],
            mask[chosen],
            width,
            batch_size=len(part.logps),
            **keywords,
        )
        return logps[rows] if has_images else logps

    # -- the file ------------------------------------------------------------------------------

    def _write(self, table: pd.DataFrame, step: int) -> None:
        """Write this process's rows, with the loss as it was trained in the file's metadata."""
        trainer = self.trainer
        settings = {name: setting(trainer, name) for name in _RECORDED}
        settings["level"] = trainer.args.importance_sampling_level
        settings["epsilon_low"] = trainer.epsilon_low
        settings["epsilon_high"] = trainer.epsilon_high
        settings["learning_rate"] = float(self.rate)
        # bnpo's N differs between micro-batches: then a mapping of rollouts to theirs
        normalizers = table.groupby("rollout")["normalizer"].first()
        one = normalizers.nunique() == 1
        settings["normalizer"] = float(normalizers.iloc[0]) if one else normalizers.to_dict()
        settings["steps"] = trainer.state.max_steps

        # of a token that a step took more than once, the summed push
        keys = ["group", "rollout", "position"]
        pushes = table.astype({"push": np.float64}).groupby(keys)["push"].sum()
        table = table.drop_duplicates(keys).sort_values(keys, ignore_index=True)
        table["push"] = pushes.to_numpy()
        weight = table["push"] / table["advantage"]
        table["weight"] = weight.where(table["advantage"] != 0, 0.0)
        table["residual"] = place_residuals(table)

        kinds = dict.fromkeys(WHOLE, "int32") | dict.fromkeys(NUMBERS, "float32")
        kinds |= dict.fromkeys(TEXTS, "category")
        table = table[[*WHOLE, *TEXTS, *NUMBERS]].astype(kinds)
        metadata = {b"workbook": json.dumps(settings, default=str).encode()}
        arrow = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(metadata)
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"step-{step:06d}.{trainer.accelerator.process_index}.parquet"
        with replacement(self.folder / name) as temporary:
            pq.write_table(arrow, temporary, compression="zstd")


# -- reading a micro-batch as its loss does --------------------------------------------------------


def setting(trainer, name: str):
    """A field of the trainer's arguments; of TRL's own arguments, CancellationConfig's default."""
    return getattr(trainer.args, name, getattr(CancellationConfig, name, None))


def loss_ratio(trainer, part: Part) -> Float[Tensor, "B T"]:
    """The loss's ratio, of a whole rollout at sequence level; 1 without old log-probabilities."""
    old = part.inputs.get("old_per_token_logps")
    log_ratio = torch.zeros_like(part.logps) if old is None else part.logps - old
    if trainer.args.importance_sampling_level == "sequence":
        mask = loss_mask(part.inputs)
        lengths = mask.sum(-1, keepdim=True).clamp(min=1.0)
        log_ratio = (log_ratio * mask).sum(-1, keepdim=True) / lengths  # (B, 1)
    return log_ratio.exp().expand_as(part.logps)


def normalizer(trainer, inputs: dict) -> float:
    """N of a micro-batch: a token's push is its weight times its advantage / N.

    Of several processes it is the mean.
    """
    mask = loss_mask(inputs)
    kind = trainer.loss_type
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


def stop_codes(trainer, part: Part, ratio: Float[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """What took each token's gradient away, as an index into STOPS; 0 where it has a push.

    Nothing here decides what is trained: a cause is named for pushes that are 0. Where several meet
    their condition, the first of: truncated, tool, no advantage, off-policy, clip, entropy, group
    (its transform).
    """
    inputs = part.inputs
    args = trainer.args
    advantages = part.advantages
    everywhere = torch.ones_like(ratio, dtype=torch.bool)
    causes = [
        ("truncated", ~inputs["completion_mask"].bool()),
        ("tool", ~loss_mask(inputs).bool()),
        ("no advantage", advantages == 0),
    ]

    if "importance_sampling_ratio" in inputs:  # vLLM's masks set it to 0
        causes.append(("off-policy", inputs["importance_sampling_ratio"] == 0))
    threshold = args.off_policy_mask_threshold
    if threshold is not None:
        old = inputs.get("old_per_token_logps", part.logps)
        sampled = inputs.get("sampling_per_token_logps", old)
        on_policy = trainer.get_off_policy_mask(
            advantages, part.logps, sampled, loss_mask(inputs), threshold
        )
        causes.append(("off-policy", on_policy == 0))

    transformed = setting(trainer, "group_transform")
    clamped = transformed and setting(trainer, "transform_on") == "clamped_ratios"
    if trainer.loss_type in (*CLIPPED_LOSSES, "luspo") and not clamped:
        below = ratio < 1 - trainer.epsilon_low
        above = ratio > 1 + trainer.epsilon_high
        if setting(trainer, "clipping") == "asymmetric":
            below &= advantages < 0
            above &= advantages > 0
        if args.delta is not None:
            above |= ratio > args.delta
        causes.append(("clip low", below))
        causes.append(("clip high", above))

    if args.top_entropy_quantile < 1:
        causes.append(("entropy", everywhere))
    if transformed:
        causes.append(("group", everywhere))

    # the first cause is written last
    codes = torch.zeros_like(ratio, dtype=torch.int8)
    for cause, where in reversed(causes):
        codes = torch.where((part.pushes == 0) & where, STOPS.index(cause), codes)
    return codes
