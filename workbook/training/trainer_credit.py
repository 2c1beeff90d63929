"""A trainer's batches as a credit rule sees them, and what the rule makes of them.

The rule is evaluated once per generation batch, on this process's groups, before these are cut into mini-batches; one
that says `each_step = True` again in every micro-batch, with the log-probabilities of that moment. What it draws
depends on the trainer's seed, the optimizer step, the micro-batch and the process alone: a resumed run draws the same.
"""

from __future__ import annotations

import inspect
import time

import torch
from accelerate.utils import gather_object
from jaxtyping import Float
from torch import Tensor, nn

from workbook.policies.load import Policy
from workbook.rollouts.credit import credit_batch
from workbook.rollouts.sample import Rollouts
from workbook.tasks.task import Task
from workbook.theory.credit import CreditBatch
from workbook.training.config import sampling_settings
from workbook.training.credit import CreditCall


class TrainerCredit:
    """Evaluates a trainer's credit rule; the batch's column rollout says which row of the data set each rollout is of.

    Logs under cancellation/, per evaluation: credit_seconds, and credit_tokens, the tokens that the rule has sampled.
    """

    def __init__(self, trainer, rule: CreditCall):
        self.trainer, self.rule, self.rows = trainer, rule, []
        self.task = TrainerTask(trainer)

    def take_rows(self, rows: list[dict]) -> None:
        """Remember the data set's rows of a generation batch, those of all processes."""
        self.rows = gather_object(list(rows))

    def advantages(self, inputs: dict, micro_batch: int = 0, **known: Tensor) -> Float[Tensor, " B"]:
        """Advantages (B,) or (B, T) of a batch; 0 for a rollout that no reward function could score and no rule sees.

        micro_batch: its number in the optimizer step from 1 on, 0 for a generation batch.  known: values of
        `theory.credit.LAZY` that are at hand, for all of the batch.
        """
        scored, began, sampled = ~inputs["rewards"].isnan(), time.perf_counter(), 0
        values = torch.zeros_like(inputs["rewards"])
        if scored.any():
            batch = self._batch({name: inputs.get(name) for name in COLUMNS}, scored, micro_batch, known)
            given = self.rule(batch)
            values = given.new_zeros(len(scored), *given.shape[1:])
            values[scored] = given
            sampled = batch.sampled_tokens
        self.trainer._log_cancellation("credit_seconds", time.perf_counter() - began)
        self.trainer._log_cancellation("credit_tokens", sampled)
        return values.to(inputs["advantages"].dtype)

    def _batch(self, columns: dict, scored: Tensor, micro_batch: int, known: dict[str, Tensor]) -> CreditBatch:
        trainer = self.trainer
        if columns["pixel_values"] is not None and self.rule.needs:
            raise ValueError(
                f"{self.rule} may ask for the policy, which is given token ids alone; this batch has images."
            )
        rollouts = self._rollouts({name: column for name, column in columns.items() if column is not None})
        policy = Policy(trainer.accelerator.unwrap_model(trainer.model), trainer._tokenizer, {})
        sampling = sampling_settings(trainer.args)
        sampling.pop("chat_template_kwargs")  # prompts are tokens already
        seeds = (trainer.args.seed, trainer.accelerator.process_index, micro_batch)
        known = {name: value[scored] for name, value in known.items()}
        step, size = trainer.state.global_step, trainer.args.per_device_train_batch_size
        own = None if columns["tool_mask"] is None else columns["tool_mask"][scored]
        chosen = rollouts.select(scored)
        sampling |= {"batch_size": size, "own_tokens": own}
        return credit_batch(policy, chosen, self.task, seeds, step, **sampling, **known)

    def _rollouts(self, columns: dict) -> Rollouts:
        mask, rows = columns["completion_mask"], [self.rows[row] for row in columns["rollout"].tolist()]
        unknown = torch.full(mask.shape, torch.nan, device=mask.device).masked_fill(mask == 0, 0.0)
        old = columns.get("sampling_per_token_logps", columns.get("old_per_token_logps", unknown))
        other = ("prompt", "answer")
        return Rollouts(
            **{name: columns[name] for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")},
            group_ids=columns["group_id"],
            rewards=columns["rewards"],
            advantages=columns["advantages"],
            old_logps=old.float().masked_fill(mask == 0, 0.0),
            entropies=unknown,
            prompts=tuple(row["prompt"] for row in rows) if all("prompt" in row for row in rows) else None,
            answers=tuple(row.get("answer") for row in rows),
            extras=tuple({name: row[name] for name in row if name not in other} for row in rows),
        )


COLUMNS = (
    *("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "group_id", "rewards", "advantages", "rollout"),
    *("sampling_per_token_logps", "old_per_token_logps", "pixel_values", "tool_mask"),
)


class TrainerTask:
    """What a trainer's reward functions say of further completions, and what the task behind them knows of credit.

    The task is found where a reward function is a `Task`'s own method.
    """

    def __init__(self, trainer):
        self.trainer = trainer
        owners = [getattr(inspect.unwrap(function), "__self__", None) for function in trainer.reward_funcs]
        for task in (owner for owner in owners if isinstance(owner, Task)):
            self.annotate, self.calibrated = task.annotate, task.calibrated

    def reward(self, prompts: list, completions: list, completion_ids: list, **columns) -> list[float]:
        """The weighted sum of the reward functions, as TRL calls them; 0 where none of them can score.

        Tools and environments are not run for a continuation. Raises ValueError for a reward that is a model or a
        coroutine.
        """
        asked = {"prompts": prompts, "completions": completions, "completion_ids": completion_ids, **columns}
        asked |= {"trainer_state": self.trainer.state, "log_extra": _ignore, "log_metric": _ignore}
        totals = [0.0] * len(prompts)
        for function, weight in zip(self.trainer.reward_funcs, self.trainer.reward_weights.tolist(), strict=True):
            if isinstance(function, nn.Module) or inspect.iscoroutinefunction(function):
                kind = type(function).__name__
                raise ValueError(f"continue_from can't score with a reward that is a {kind}; use plain functions.")
            scores = function(**asked)
            totals = [t + weight * (0.0 if s is None else s) for t, s in zip(totals, scores, strict=True)]
        return totals


def _ignore(*_) -> None:
    """Take what a reward function logs: a continuation is no rollout of the batch."""
