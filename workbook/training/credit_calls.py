"""Credit rules in training: a name, a file's function or a function at hand, called on a trainer's
batches.

GRPO gives each token of an answer the answer's advantage. A credit rule says instead which tokens
deserve it. It is a pure function of a `CreditBatch` (`theory.credit`). What stands here finds the
function that a setting means (`credit_call`), calls it and checks what it returned (`CreditCall`),
and makes a CreditBatch of a trainer's batch (`TrainerCredit`).

    advantage_estimator: edit_mask                  one of `theory.credit_rules.CREDIT_RULES`
    advantage_estimator: own:credit.py:my_rule      a function of one's own file
    CancellationTrainer(..., advantage_estimator=my_rule)

A rule is evaluated once per generation batch, on this process's groups; one that has `each_step =
True` again in every micro-batch, with the log-probabilities of that moment. What it draws depends
on the trainer's seed, the optimizer step, the micro-batch and the process alone, also after a
resume.
"""

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from workbook.messages import InvalidValue
from workbook.places import file_hash
from workbook.tasks.task import Task, error_line, load_function
from workbook.theory.choices import ESTIMATORS
from workbook.theory.credit import CREDIT_RULES, CreditBatch, Rule
from workbook.theory.credit_rules import check_estimator

if TYPE_CHECKING:
    from workbook.rollouts.sample import Rollouts

# what takes a pass through the policy
OF_POLICY = ("old_logps", "logps", "entropies", "states", "continue_from")


class CreditCall:
    """A credit rule that answers with advantages, or a ValueError of one sentence.

    name: as in `advantage_estimator`.
    files: SHA-256 of the file of a rule of one's own.
    each_step: whether it is evaluated again in every micro-batch.
    per_token: whether its advantages may be (B, T).
    needs: names of OF_POLICY that it may ask for.
    """

    def __init__(self, name: str, function: Rule, path: Path | None = None):
        self.name = name
        self.function = function
        self.path = path
        self.files = {f"credit rule {path.name}": file_hash(path)} if path else {}
        self.each_step = bool(getattr(function, "each_step", False))
        # a rule of one's own may do anything
        declared = CREDIT_RULES.get(name)
        self.per_token = declared is None or declared.per_token
        self.needs = OF_POLICY
        if declared is not None:
            self.needs = tuple(need for need in OF_POLICY if need in declared.needs)

    def __str__(self) -> str:
        return f"The credit rule {self.name}"

    def __call__(self, batch: CreditBatch) -> Tensor:
        """Advantages (B,) or (B, T) of a batch, in the rewards' dtype, 0 outside the mask.

        torch's generators are seeded from the batch's during the call, and as they were afterwards.
        """
        # a rule may change the batch: what is checked is what it was given
        rewards = batch.rewards
        mask = batch.mask.clone()
        devices = [rewards.device] if rewards.device.type == "cuda" else []
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            torch.manual_seed(batch.generator.initial_seed())
            try:
                returned = self.function(batch)
            except Exception as error:
                raise ValueError(f"{self} raised {error_line(error, self.path)}.") from error
        return checked_credit(returned, rewards, mask, str(self))


def credit_call(estimator: str | Rule) -> CreditCall | None:
    """The rule that an `advantage_estimator` means, imported; None for a plain estimator, which
    needs no batch.

    Raises ValueError, in one sentence, for a name that is unknown, a file that can't be imported, a
    function that is not there, and one that can't be called with one argument.
    """
    if not isinstance(estimator, str):
        return CreditCall(f"own:{_name_of(estimator)}", _checked_rule(estimator))
    check_estimator(estimator)
    if estimator in ESTIMATORS:
        return None
    if estimator in CREDIT_RULES:
        return CreditCall(estimator, CREDIT_RULES[estimator].function)
    function, file = load_function(estimator.removeprefix("own:"), "credit")
    return CreditCall(estimator, _checked_rule(function), file)


def _name_of(function: Callable) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _checked_rule(function: Callable) -> Callable:
    """The function, unless it cannot be called with one argument or does not answer at once."""
    if not callable(function):
        raise InvalidValue("advantage_estimator", function, "a function of one CreditBatch")
    name = _name_of(function)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ValueError(f"The credit rule {name} must be a plain function that returns a tensor.")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        sentence = f"The credit rule {name} can't be called with the batch alone: {error}."
        raise ValueError(sentence) from None
    return function


def checked_credit(
    value,
    rewards: Float[Tensor, " B"],
    mask: Bool[Tensor, "B T"],
    rule: str = "The credit rule",
) -> Tensor:
    """What a rule returned as advantages (B,) or (B, T) in the rewards' dtype, 0 outside the mask.

    A list or an array counts as the tensor that it makes. Raises ValueError, in one sentence that
    says what came and what would be valid, for anything else, another shape, and a number inside
    the mask that is not finite.
    """
    if value is None:
        raise ValueError(f"{rule} returned None; does it lack a return?")
    shapes = f"{tuple(rewards.shape)}, one per rollout, or {tuple(mask.shape)}, one per token"
    try:
        value = torch.as_tensor(value)
        if value.dtype == torch.bool or value.is_complex():
            raise TypeError
    except Exception:  # of what is no array of numbers
        kind = type(value).__name__
        raise ValueError(f"{rule} returned a {kind}; return floats {shapes}.") from None
    if value.shape not in (rewards.shape, mask.shape):
        raise ValueError(f"{rule} returned the shape {tuple(value.shape)}; it must be {shapes}.")

    value = value.detach().to(device=rewards.device, dtype=rewards.dtype).clone()
    if value.ndim == 2:
        value = value.masked_fill(~mask, 0.0)
    infinite = (~value.isfinite()).nonzero()
    if len(infinite):
        where = ", position ".join(map(str, infinite[0].tolist()))
        number = float(value[tuple(infinite[0])])
        raise ValueError(
            f"{rule} gave {number} to rollout {where}; every advantage must be a finite number."
        )
    return value


# -- a trainer's batch as a CreditBatch ------------------------------------------------------------

# columns of a trainer's batch that a CreditBatch is made of
_COLUMNS = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "group_id",
    "rewards",
    "advantages",
    "rollout",
    "sampling_per_token_logps",
    "old_per_token_logps",
    "pixel_values",
    "tool_mask",
)


class TrainerCredit:
    """Evaluates a trainer's credit rule on its batches.

    The batch's column rollout says which row of the data set each rollout is of. Logs under
    cancellation/, per evaluation: credit_seconds, and credit_tokens, the tokens that the rule has
    sampled.
    """

    def __init__(self, trainer, rule: CreditCall):
        self.trainer = trainer
        self.rule = rule
        self.task = TrainerTask(trainer)
        self.rows: list[dict] = []  # of the data set, of the newest generation batch

    def take_rows(self, rows: list[dict]) -> None:
        """Remember the data set's rows of a generation batch, those of all processes."""
        from accelerate.utils import gather_object

        self.rows = gather_object(list(rows))

    def advantages(self, inputs: dict, micro_batch: int = 0, **known: Tensor) -> Tensor:
        """Advantages (B,) or (B, T) of a batch.

        A rollout that no reward function could score has 0, and no rule sees it.

        micro_batch: its number in the optimizer step from 1 on, 0 for a generation batch.  known:
        values of `theory.credit.LAZY` that are at hand, for all of the batch.
        """
        started = time.perf_counter()
        scored = ~inputs["rewards"].isnan()  # (B,)
        values = torch.zeros_like(inputs["rewards"])
        sampled_tokens = 0
        if scored.any():
            batch = self._batch(inputs, scored, micro_batch, known)
            given = self.rule(batch)
            values = given.new_zeros(len(scored), *given.shape[1:])
            values[scored] = given
            sampled_tokens = batch.sampled_tokens
        self.trainer._log_cancellation("credit_seconds", time.perf_counter() - started)
        self.trainer._log_cancellation("credit_tokens", sampled_tokens)
        return values.to(inputs["advantages"].dtype)

    def _batch(
        self,
        inputs: dict,
        scored: Bool[Tensor, " B"],
        micro_batch: int,
        known: dict[str, Tensor],
    ) -> CreditBatch:
        """The scored rollouts of a trainer's batch, and its policy, as a rule sees them."""
        from workbook.policies.load import Policy
        from workbook.rollouts.credit_batches import credit_batch

        # loads TRL, which a study need not wait for
        from workbook.training.config import sampling_settings

        trainer = self.trainer
        columns = {name: inputs[name] for name in _COLUMNS if inputs.get(name) is not None}
        if "pixel_values" in columns and self.rule.needs:
            raise ValueError(
                f"{self.rule} may ask for the policy, which is given token ids alone; this batch"
                " has images."
            )

        # continuations are sampled as training samples
        settings = sampling_settings(trainer.args)
        settings.pop("chat_template_kwargs")  # prompts are tokens already
        settings["batch_size"] = trainer.args.per_device_train_batch_size
        own_tokens = columns.get("tool_mask")
        settings["own_tokens"] = None if own_tokens is None else own_tokens[scored]
        for name, value in known.items():
            settings[name] = value[scored]

        policy = Policy(trainer.accelerator.unwrap_model(trainer.model), trainer._tokenizer, {})
        rollouts = self._rollouts(columns).select(scored)
        seeds = (trainer.args.seed, trainer.accelerator.process_index, micro_batch)
        step = trainer.state.global_step
        return credit_batch(policy, rollouts, self.task, seeds, step, **settings)

    def _rollouts(self, columns: dict) -> "Rollouts":
        """Columns of a trainer's batch as Rollouts, with the data set's rows that they are of."""
        from workbook.rollouts.sample import Rollouts

        mask = columns["completion_mask"]
        unknown = torch.full(mask.shape, torch.nan, device=mask.device).masked_fill(mask == 0, 0.0)
        old_logps = columns.get("old_per_token_logps", unknown)
        old_logps = columns.get("sampling_per_token_logps", old_logps)  # (B, T)

        rows = [self.rows[row] for row in columns["rollout"].tolist()]
        prompts = None
        if all("prompt" in row for row in rows):
            prompts = tuple(row["prompt"] for row in rows)
        extras = [
            {name: value for name, value in row.items() if name not in ("prompt", "answer")}
            for row in rows
        ]
        return Rollouts(
            prompt_ids=columns["prompt_ids"],
            prompt_mask=columns["prompt_mask"],
            completion_ids=columns["completion_ids"],
            completion_mask=mask,
            rewards=columns["rewards"],
            advantages=columns["advantages"],
            group_ids=columns["group_id"],
            old_logps=old_logps.float().masked_fill(mask == 0, 0.0),
            entropies=unknown,
            prompts=prompts,
            answers=tuple(row.get("answer") for row in rows),
            extras=tuple(extras),
        )


class TrainerTask:
    """What a trainer's reward functions say of further completions, and what the task behind them
    knows of credit.

    The task is found where a reward function is a `Task`'s own method.
    """

    def __init__(self, trainer):
        self.trainer = trainer
        for function in trainer.reward_funcs:
            task = getattr(inspect.unwrap(function), "__self__", None)
            if not isinstance(task, Task):
                continue
            self.annotate = task.annotate
            self.calibrated = task.calibrated
            self.stated = task.stated
            if hasattr(task, "places"):
                self.places = task.places

    def reward(
        self, prompts: list, completions: list, completion_ids: list, **columns
    ) -> list[float]:
        """The weighted sum of the reward functions, as TRL calls them; 0 where none of them can
        score.

        Tools and environments are not run for a continuation. Raises ValueError for a reward that
        is a model or a coroutine.
        """
        arguments = {
            "prompts": prompts,
            "completions": completions,
            "completion_ids": completion_ids,
            **columns,
            "trainer_state": self.trainer.state,
            # a continuation is no rollout of the batch, and is not logged as one
            "log_extra": lambda *_: None,
            "log_metric": lambda *_: None,
        }
        totals = [0.0] * len(prompts)
        weights = self.trainer.reward_weights.tolist()
        for function, weight in zip(self.trainer.reward_funcs, weights, strict=True):
            if isinstance(function, nn.Module) or inspect.iscoroutinefunction(function):
                kind = type(function).__name__
                raise ValueError(
                    f"continue_from can't score with a reward that is a {kind}; use plain"
                    " functions."
                )
            scores = function(**arguments)
            totals = [
                total if score is None else total + weight * score
                for total, score in zip(totals, scores, strict=True)
            ]
        return totals
