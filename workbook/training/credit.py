"""Credit rules in training: a name, a file's function or a function at hand, called on a trainer's
batches.

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
from importlib import import_module
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from workbook.messages import InvalidValue
from workbook.places import file_hash
from workbook.rollouts.scoring import pad_rows
from workbook.tasks.task import Task, error_line, load_function
from workbook.theory.advantages import group_advantages
from workbook.theory.choices import ESTIMATORS
from workbook.theory.credit import CREDIT_RULES, CreditBatch, Rule
from workbook.theory.credit_rules import RULES, check_estimator

# what takes a pass through the policy
OF_POLICY = ("old_logps", "logps", "entropies", "states", "continue_from")


class CreditCall:
    """A credit rule that answers with advantages, or a ValueError of one sentence.

    name: as in `advantage_estimator`.  files: SHA-256 of the file of a rule of one's
    own.  each_step: whether it is evaluated again in every micro-batch.  per_token: whether its
    advantages may be (B, T).  needs: names of OF_POLICY that it may ask for.
    """

    def __init__(self, name: str, function: Rule, path: Path | None = None):
        known = CREDIT_RULES.get(name)
        self.name, self.function, self.path = name, function, path
        self.files = {f"credit rule {path.name}": file_hash(path)} if path else {}
        self.each_step = bool(getattr(function, "each_step", False))
        self.per_token = known is None or known.per_token
        self.needs = tuple(need for need in OF_POLICY if known is None or need in known.needs)

    def __str__(self) -> str:
        return f"The credit rule {self.name}"

    def __call__(self, batch: CreditBatch) -> Tensor:
        """Advantages (B,) or (B, T) of a batch, in the rewards' dtype, 0 outside the mask.

        torch's generators are seeded from the batch's during the call, and as they were afterwards.
        """
        rewards, mask = batch.rewards, batch.mask.clone()  # whatever the rule changes
        device = rewards.device
        with (
            torch.no_grad(),
            torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        ):
            torch.manual_seed(batch.generator.initial_seed())
            try:
                value = self.function(batch)
            except Exception as error:
                raise ValueError(f"{self} raised {error_line(error, self.path)}.") from error
        return checked_credit(value, rewards, mask, str(self))


def credit_call(estimator: str | Rule) -> CreditCall | None:
    """The rule that an `advantage_estimator` means, imported; None for a plain estimator, which
    needs no batch.

    Raises ValueError, in one sentence, for a name that is unknown, a file that can't be imported, a
    function that is not there, and one that can't be called with one argument.
    """
    if not isinstance(estimator, str):
        return CreditCall(
            f"own:{getattr(estimator, '__name__', type(estimator).__name__)}",
            _checked_rule(estimator),
        )
    check_estimator(estimator)
    if estimator in ESTIMATORS:
        return None
    if estimator in CREDIT_RULES:
        return CreditCall(estimator, CREDIT_RULES[estimator].function)
    function, file = load_function(estimator.removeprefix("own:"), "credit")
    return CreditCall(estimator, _checked_rule(function), file)


def _checked_rule(function: Callable) -> Callable:
    """The function, unless it cannot be called with one argument or does not answer at once."""
    if not callable(function):
        raise InvalidValue("advantage_estimator", function, "a function of one CreditBatch")
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ValueError(f"The credit rule {name} must be a plain function that returns a tensor.")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise ValueError(
            f"The credit rule {name} can't be called with the batch alone: {error}."
        ) from None
    return function


def checked_credit(
    value, rewards: Float[Tensor, " B"], mask: Tensor, rule: str = "The credit rule"
) -> Tensor:
    """What a rule returned as advantages (B,) or (B, T) in the rewards' dtype, 0 outside the mask.

    A list or an array counts as the tensor that it makes. Raises ValueError, in one sentence that
    says what came and what would be valid, for anything else, another shape, and a number inside
    the mask that is not finite.
    """
    shapes = f"{tuple(rewards.shape)}, one per rollout, or {tuple(mask.shape)}, one per token"
    try:
        value = torch.as_tensor(value)
        if value.dtype == torch.bool or value.is_complex():
            raise TypeError
    except Exception:  # of what is no array of numbers
        kind = (
            "None; does it lack a return?"
            if value is None
            else f"a {type(value).__name__}; return floats {shapes}."
        )
        raise ValueError(f"{rule} returned {kind}") from None
    if value.shape not in (rewards.shape, mask.shape):
        raise ValueError(f"{rule} returned the shape {tuple(value.shape)}; it must be {shapes}.")
    value = value.detach().to(device=rewards.device, dtype=rewards.dtype).clone()
    if value.ndim == 2:
        value = value.masked_fill(~mask, 0.0)
    if len(bad := (~value.isfinite()).nonzero()):
        where, number = ", position ".join(map(str, bad[0].tolist())), float(value[tuple(bad[0])])
        raise ValueError(
            f"{rule} gave {number} to rollout {where}; every advantage must be a finite number."
        )
    return value


class TrainerCredit:
    """Evaluates a trainer's credit rule; the batch's column rollout says which row of the data set
    each rollout is of.

    Logs under cancellation/, per evaluation: credit_seconds, and credit_tokens, the tokens that the
    rule has sampled.
    """

    def __init__(self, trainer, rule: CreditCall):
        self.trainer, self.rule, self.rows = trainer, rule, []
        self.task = TrainerTask(trainer)

    def take_rows(self, rows: list[dict]) -> None:
        """Remember the data set's rows of a generation batch, those of all processes."""
        from accelerate.utils import gather_object

        self.rows = gather_object(list(rows))

    def advantages(
        self, inputs: dict, micro_batch: int = 0, **known: Tensor
    ) -> Float[Tensor, " B"]:
        """Advantages (B,) or (B, T) of a batch; 0 for a rollout that no reward function could score
        and no rule sees.

        micro_batch: its number in the optimizer step from 1 on, 0 for a generation batch.  known:
        values of `theory.credit.LAZY` that are at hand, for all of the batch.
        """
        scored, began, sampled = ~inputs["rewards"].isnan(), time.perf_counter(), 0
        values = torch.zeros_like(inputs["rewards"])
        if scored.any():
            batch = self._batch(
                {name: inputs.get(name) for name in COLUMNS}, scored, micro_batch, known
            )
            given = self.rule(batch)
            values = given.new_zeros(len(scored), *given.shape[1:])
            values[scored] = given
            sampled = batch.sampled_tokens
        self.trainer._log_cancellation("credit_seconds", time.perf_counter() - began)
        self.trainer._log_cancellation("credit_tokens", sampled)
        return values.to(inputs["advantages"].dtype)

    def _batch(
        self, columns: dict, scored: Tensor, micro_batch: int, known: dict[str, Tensor]
    ) -> CreditBatch:
        from workbook.policies.load import Policy
        from workbook.rollouts.credit import credit_batch

        # loads TRL, which a study need not wait for
        from workbook.training.config import sampling_settings

        trainer, own = self.trainer, columns["tool_mask"]
        if columns["pixel_values"] is not None and self.rule.needs:
            raise ValueError(
                f"{self.rule} may ask for the policy, which is given token ids alone; this batch"
                " has images."
            )
        rollouts = self._rollouts(
            {name: column for name, column in columns.items() if column is not None}
        )
        policy = Policy(trainer.accelerator.unwrap_model(trainer.model), trainer._tokenizer, {})
        sampling = sampling_settings(trainer.args)
        sampling.pop("chat_template_kwargs")  # prompts are tokens already
        sampling |= {"batch_size": trainer.args.per_device_train_batch_size}
        sampling |= {"own_tokens": None if own is None else own[scored]}
        sampling |= {name: value[scored] for name, value in known.items()}
        seeds = (trainer.args.seed, trainer.accelerator.process_index, micro_batch)
        return credit_batch(
            policy, rollouts.select(scored), self.task, seeds, trainer.state.global_step, **sampling
        )

    def _rollouts(self, columns: dict):
        from workbook.rollouts.sample import Rollouts

        mask, rows = (
            columns["completion_mask"],
            [self.rows[row] for row in columns["rollout"].tolist()],
        )
        unknown = torch.full(mask.shape, torch.nan, device=mask.device).masked_fill(mask == 0, 0.0)
        old = columns.get("sampling_per_token_logps", columns.get("old_per_token_logps", unknown))
        same = (
            "prompt_ids",
            "prompt_mask",
            "completion_ids",
            "completion_mask",
            "rewards",
            "advantages",
        )
        return Rollouts(
            **{name: columns[name] for name in same},
            group_ids=columns["group_id"],
            old_logps=old.float().masked_fill(mask == 0, 0.0),
            entropies=unknown,
            prompts=(
                tuple(row["prompt"] for row in rows)
                if all("prompt" in row for row in rows)
                else None
            ),
            answers=tuple(row.get("answer") for row in rows),
            extras=tuple(
                {name: row[name] for name in row if name not in ("prompt", "answer")}
                for row in rows
            ),
        )


COLUMNS = (
    *(
        "prompt_ids",
        "prompt_mask",
        "completion_ids",
        "completion_mask",
        "group_id",
        "rewards",
        "advantages",
        "rollout",
    ),
    *("sampling_per_token_logps", "old_per_token_logps", "pixel_values", "tool_mask"),
)


class TrainerTask:
    """What a trainer's reward functions say of further completions, and what the task behind them
    knows of credit.

    The task is found where a reward function is a `Task`'s own method.
    """

    def __init__(self, trainer):
        self.trainer = trainer
        owners = [
            getattr(inspect.unwrap(function), "__self__", None) for function in trainer.reward_funcs
        ]
        for task in (owner for owner in owners if isinstance(owner, Task)):
            self.annotate, self.calibrated, self.stated = (
                task.annotate,
                task.calibrated,
                task.stated,
            )
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
        asked = {
            "prompts": prompts,
            "completions": completions,
            "completion_ids": completion_ids,
            **columns,
        }
        # no rollout of the batch
        asked |= dict.fromkeys(("log_extra", "log_metric"), lambda *_: None)
        asked["trainer_state"] = self.trainer.state
        totals = [0.0] * len(prompts)
        for function, weight in zip(
            self.trainer.reward_funcs, self.trainer.reward_weights.tolist(), strict=True
        ):
            if isinstance(function, nn.Module) or inspect.iscoroutinefunction(function):
                kind = type(function).__name__
                raise ValueError(
                    f"continue_from can't score with a reward that is a {kind}; use plain"
                    " functions."
                )
            scores = function(**asked)
            totals = [
                t + weight * (0.0 if s is None else s) for t, s in zip(totals, scores, strict=True)
            ]
        return totals


def estimators_text() -> str:
    """Every advantage estimator and credit rule in a line each, and where to read how to write one."""
    plain = (line.strip() for line in group_advantages.__doc__.splitlines())
    lines = [line.removeprefix("- ") for line in plain if line.startswith("- ")]
    for rule in (CREDIT_RULES[name] for name in RULES):
        asks = f"; asks for {', '.join(rule.needs)}" * bool(rule.needs)
        unit = "token" if rule.per_token else "rollout"
        lines.append(f"{rule.name}: per {unit}, {rule.changes}{asks} [{rule.paper}, {rule.exact}]")
    own = (
        "One of your own, advantage_estimator: own:credit.py:my_rule, see"
        " help(workbook.theory.CreditBatch)."
    )
    return "\n".join([*lines, own])


def made_up_batch() -> CreditBatch:
    """Two prompts of two rollouts with all that a rule may ask for but known credit, drawn at
    random: no policy's.
    """
    draws = torch.Generator().manual_seed(0)
    texts = ["so it is 4 .", "so it is 5 .", "that makes 7", "it is 7 ."]
    words = sorted(set(" ".join(texts).split()))
    ids, mask = pad_rows(
        [[words.index(word) for word in text.split()] for text in texts], 0, "right"
    )
    sizes = (int(mask.sum()), 4), (int(mask.sum()), len(words)), ids.shape, ids.shape, ids.shape
    hidden, logits, old, now, entropies = (torch.rand(size, generator=draws) for size in sizes)
    known = {
        "old_logps": -old,
        "logps": -now,
        "entropies": entropies,
        "tokens": [text.split() for text in texts],
    }
    # of states, which bring transformers to a rule that asks for them
    given = hidden, logits, ids[mask.bool()]
    known |= {"states": lambda: import_module("workbook.rollouts.credit").OutputStates(*given)}
    known |= {"prompts": ["2 + 2 ="] * 2 + ["3 + 4 ="] * 2, "answers": ["4", "5", "7", "7"]}
    known |= {
        "continuation": lambda rows, prefixes: (
            torch.rand(len(rows), generator=draws).round(),
            len(rows),
        )
    }
    return CreditBatch(
        torch.tensor([1.0, 0, 1, 1]),
        torch.tensor([0, 0, 1, 1]),
        ids,
        mask,
        generator=draws,
        **known,
    )


def trial_text(estimator: str) -> str:
    """What an estimator or a credit rule gives the rollouts of `made_up_batch`, a line each, or its
    ValueError.
    """
    batch, call = made_up_batch(), credit_call(estimator)
    given = batch.group_advantages(estimator) if call is None else call(batch)
    rows = (given if given.ndim == 2 else given[:, None].expand(batch.mask.shape)).tolist()
    lines = [
        "Made-up rollouts, whose log-probabilities, entropies, states and continuations are random"
        " numbers:"
    ]
    for prompt, reward, tokens, row in zip(
        batch.prompts, batch.rewards.tolist(), batch.tokens, rows, strict=True
    ):
        words = "  ".join(
            f"{token} {value:+.3f}" for token, value in zip(tokens, row, strict=False)
        )
        lines.append(f"{prompt}  reward {reward:g}:  {words}")
    return "\n".join(lines)
