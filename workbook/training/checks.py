"""Settings that would break a run, or turn an intervention into a silent no-op, named before
anything is trained.

An experiment on cancellation compares two runs that differ in one switch. If that switch does
nothing, because every ratio is exactly 1 or because a mini-batch holds half a group, the two runs
are equal and the experiment says so with great certainty. So each combination that would do this is
refused, or warned of, in one sentence that names a field, its value and what would be valid.

`problems` is pure: the trainer raises on its errors and warns of the rest. `check_run` asks it of a
run's config, and asks whether packages, policy and task are there; no model is loaded. What TRL and
transformers refuse themselves is left to them.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from workbook.files import process_count
from workbook.messages import InvalidValue, explain_error, one_line, reworded, show_value
from workbook.policies.load import check_name
from workbook.tasks import get_task
from workbook.theory.choices import ESTIMATORS, TRANSFORM_INPUTS, TRANSFORMS, WHOLE_GROUP
from workbook.theory.credit_rules import CREDIT_RULES
from workbook.training.config import CHOICES, CancellationConfig, RunConfig, trainer_args
from workbook.training.credit_calls import CreditCall, check_estimator, credit_call

# loss types whose surrogate is min(r A, clip(r) A): a reweighted surrogate can stand in for these
CLIPPED_LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo")
# loss types that spread a sequence's advantage evenly over its tokens
AVERAGING_LOSSES = (*CLIPPED_LOSSES, "sapo", "luspo")
# optimizers that step inside the backward pass and leave no gradient to read
STEPPING_INSIDE = ("lomo", "layerwise")
# prompts; with more of them, or of a gym task, the run itself says whether there are enough
QUICKLY_DRAWN = 10_000


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with some settings: an "error" refuses them, a "warning" does not.

    field, value, valid: as in `InvalidValue`, of the setting that should change.
    """

    severity: str
    sentence: str
    field: str
    value: object
    valid: str | Collection

    @classmethod
    def of(cls, error: ValueError) -> "Problem":
        """A refusal as a problem; its field is "" where the error knows none."""
        if isinstance(error, InvalidValue):
            return cls("error", str(error), error.field, error.value, error.valid)
        return cls("error", str(error), "", None, "")

    def refusal(self, sentence: str | None = None) -> InvalidValue:
        """The error to raise, with the problem's own sentence or another."""
        return InvalidValue(self.field, self.value, self.valid, sentence or self.sentence)


def _error(field: str, value: object, valid: str | Collection, sentence: str) -> Problem:
    return Problem("error", sentence, field, value, valid)


def _warning(field: str, value: object, valid: str | Collection, sentence: str) -> Problem:
    return Problem("warning", sentence, field, value, valid)


def problems(
    args: CancellationConfig,
    *,
    world_size: int = 1,
    lora_dropout: float = 0.0,
    quantized: bool = False,
    base_dtype: torch.dtype | None = None,
    aux_loss: bool = False,
    sharded: bool = False,
    padding_changes: bool = False,
    kind: str = "the model",
    rule: CreditCall | None = None,
) -> list[Problem]:
    """List what is wrong with a trainer's settings for a launch of `world_size` processes.

    lora_dropout: the largest of the model's adapters.
    quantized: whether base weights are 4-bit or 8-bit.
    base_dtype: of the weights under adapters, None without adapters.
    aux_loss: whether the model adds a mixture of experts' load-balancing loss.
    sharded: whether weights or gradients are spread over processes (FSDP, DeepSpeed).
    padding_changes: whether prompts differ in length for a model that left padding changes.
    kind: the model's class.
    rule: the credit rule that advantage_estimator means; None looks up one of ours.
    """
    unknown = list(_unknown_values(args, rule))
    if unknown:
        return unknown  # the other rules would only repeat it
    rule = rule_of_config(args, rule)
    return [
        *_measuring(args, aux_loss, sharded),
        *_batching(args, world_size),
        *_reweighting(args, rule),
        *_estimator(args, rule, sharded),
        *_resuming(args),
        *_model(args, lora_dropout, quantized, base_dtype, sharded, padding_changes, kind),
    ]


def rule_of_config(args: CancellationConfig, rule: CreditCall | None = None) -> CreditCall | None:
    """The credit rule of a config: the given one, or one of ours by its name.

    None for a plain estimator, and for a name that is unknown.
    """
    if rule is None and args.advantage_estimator in CREDIT_RULES:
        return credit_call(args.advantage_estimator)
    return rule


def token_credit(args: CancellationConfig, rule: CreditCall | None = None) -> bool:
    """Whether each token may have its own advantage.

    What a rule of one's own gives is known only once it has given it, so it may.
    """
    if args.advantage_estimator in ESTIMATORS:
        return False
    rule = rule_of_config(args, rule)
    return rule is None or rule.per_token


def reweights(
    args: CancellationConfig,
    rule: CreditCall | None = None,
    advantages: torch.Tensor | None = None,
) -> bool:
    """Whether the trainer writes the surrogate's weights itself, in place of TRL's.

    advantages: a batch's, (B,) or (B, T), which say whether each token has its own; None asks what
    the rule may give.
    """
    if args.group_transform is not None or args.clipping == "symmetric":
        return True
    # one ratio per sequence: TRL would average advantages per token over the rollout
    if args.importance_sampling_level != "sequence" or args.loss_type not in AVERAGING_LOSSES:
        return False
    return token_credit(args, rule) if advantages is None else advantages.dim() == 2


# -- the rules: what is wrong with which setting, and the sentence ---------------------------------


def _unknown_values(args: CancellationConfig, rule: CreditCall | None) -> Iterator[Problem]:
    """Find values that the trainer's own switches do not have."""
    for name, valid in CHOICES.items():
        value = getattr(args, name)
        if value not in valid:
            choices = ", ".join(map(str, valid))
            sentence = f"{name}={value!r} is unknown; valid values are {choices}."
            yield _error(name, value, valid, sentence)

    units = {"measure_cancellation": "generation batches", "record_tokens": "optimizer steps"}
    for name, unit in units.items():
        every = getattr(args, name)
        if type(every) is not int or every < 0:
            valid = f"a number of {unit}, or 0 for never"
            yield _error(name, every, valid, f"{name}={every!r} must be {valid}.")

    if rule is None:  # a function at hand has another name
        try:
            check_estimator(args.advantage_estimator)
        except InvalidValue as refusal:
            yield Problem.of(refusal)


def _measuring(args: CancellationConfig, aux_loss: bool, sharded: bool) -> Iterator[Problem]:
    """Find what keeps measure_cancellation from splitting a gradient into its two signs, and
    record_tokens from scoring rollouts.
    """
    every = args.measure_cancellation
    setting = f"measure_cancellation={every}"
    off = "measure_cancellation=0"

    # terms of the loss that are no advantage times log-probability
    pulls = ("beta", "entropy_coef", "use_adaptive_entropy")
    for name in pulls:
        value = getattr(args, name)
        if every and value:
            none = type(value)(0)
            yield _error(
                name,
                value,
                f"{none} with {setting}",
                f"{setting} would count the pull of {name}={value} as a push of either sign;"
                f" set {name}={none}, or {off}.",
            )
    if every and aux_loss:
        yield _error(
            "router_aux_loss_coef",
            getattr(args, "router_aux_loss_coef", None),
            f"0.0 with {setting}",
            f"{setting} would count the pull of the experts' load-balancing loss as a push of"
            f" either sign; set router_aux_loss_coef=0.0, or {off}.",
        )

    # passes that give no gradient of chosen tokens
    if every and sharded:
        yield _error(
            "measure_cancellation",
            every,
            "0 with FSDP or DeepSpeed",
            f"{setting} reads whole weights and gradients, which FSDP and DeepSpeed shard; set"
            f" {off}.",
        )
    checkpointing = args.gradient_checkpointing_kwargs or {}
    if every and args.gradient_checkpointing and checkpointing.get("use_reentrant"):
        renamed = hasattr(args, "activation_checkpointing")
        options = f"{'activation' if renamed else 'gradient'}_checkpointing_kwargs"
        yield _error(
            options,
            checkpointing,
            f"{{'use_reentrant': False}} with {setting}",
            f"{setting} takes gradients of chosen tokens, which {options}={{'use_reentrant': True}}"
            " can't; set it to False.",
        )
    optimizer = getattr(args.optim, "value", args.optim)
    if every and any(part in optimizer for part in STEPPING_INSIDE):
        yield _error(
            "optim",
            optimizer,
            f"one that keeps the gradient, such as 'adamw_torch', with {setting}",
            f"{setting} reads the gradient, of which optim={optimizer!r} keeps none; use"
            f" 'adamw_torch', or {off}.",
        )

    if args.record_tokens and sharded:
        yield _error(
            "record_tokens",
            args.record_tokens,
            "0 with FSDP or DeepSpeed",
            f"record_tokens={args.record_tokens} scores rollouts with whole weights, which FSDP"
            " and DeepSpeed shard; set record_tokens=0.",
        )


def _batching(args: CancellationConfig, world_size: int) -> Iterator[Problem]:
    """Find what keeps a strategy from composing the optimizer mini-batches that it promises."""
    group_size = args.num_generations
    parts = args.steps_per_generation
    accumulated = args.gradient_accumulation_steps
    per_process = args.per_device_train_batch_size * parts
    minibatch = args.per_device_train_batch_size * accumulated * world_size  # rollouts
    batching = f"batching={args.batching!r}"
    arranged = args.batching != "shuffled"

    if world_size > 1 and per_process % group_size:
        yield _error(
            "per_device_train_batch_size",
            args.per_device_train_batch_size,
            f"such that times steps_per_generation it is a multiple of {group_size}",
            f"per_device_train_batch_size * steps_per_generation = {per_process} is not a multiple"
            f" of num_generations={group_size}, so a group would straddle two of the {world_size}"
            f" processes; make it a multiple of {group_size}.",
        )
    if arranged and parts <= accumulated:
        yield _error(
            "steps_per_generation",
            parts,
            f"{2 * accumulated} or a higher multiple of {accumulated}",
            f"{batching} can't have an effect with steps_per_generation={parts} and"
            f" gradient_accumulation_steps={accumulated}, since each generation batch is one"
            f" optimizer step; set steps_per_generation to {2 * accumulated} or a higher multiple"
            f" of {accumulated}.",
        )
    if arranged and parts > accumulated and parts % accumulated:
        yield _error(
            "steps_per_generation",
            parts,
            f"a multiple of gradient_accumulation_steps={accumulated}",
            f"steps_per_generation={parts} is not a multiple of"
            f" gradient_accumulation_steps={accumulated}, so an optimizer mini-batch would mix two"
            f" generation batches and {batching} would not hold; make it a multiple of"
            f" {accumulated}.",
        )
    if args.batching in WHOLE_GROUP and minibatch % group_size:
        yield _error(
            "per_device_train_batch_size",
            args.per_device_train_batch_size,
            f"such that a mini-batch has a multiple of {group_size} rollouts",
            f"{batching} needs whole groups in each optimizer mini-batch, but its {minibatch}"
            f" rollouts are not a multiple of num_generations={group_size}; make"
            " per_device_train_batch_size * gradient_accumulation_steps * processes one of"
            f" {group_size}.",
        )

    # what changes the size of a step beside its composition
    if arranged and args.loss_type == "bnpo":
        yield _error(
            "loss_type",
            args.loss_type,
            f"'grpo' or 'dr_grpo' with {batching}",
            f"loss_type='bnpo' divides by each micro-batch's own tokens, so {batching} would change"
            " the step size as well as the composition; use loss_type 'grpo' or 'dr_grpo'.",
        )
    if arranged and (args.max_grad_norm or 0) > 0:
        yield _warning(
            "max_grad_norm",
            args.max_grad_norm,
            f"0 for a comparison of {batching}",
            f"max_grad_norm={args.max_grad_norm} rescales mini-batches of longer gradients, which"
            f" confounds {batching}; set max_grad_norm=0 for a comparison, or read the logged"
            " cancellation/grad_clipped beside it.",
        )


def _reweighting(args: CancellationConfig, rule: CreditCall | None) -> Iterator[Problem]:
    """Find what stands against weights that replace the surrogate's: those of a transform, of
    symmetric clipping, or of tokens under one ratio per sequence.
    """
    transform = args.group_transform
    if transform is None and args.transform_on != TRANSFORM_INPUTS[0]:
        yield _warning(
            "transform_on",
            args.transform_on,
            f"{TRANSFORM_INPUTS[0]!r} without a group_transform",
            f"transform_on={args.transform_on!r} is ignored without a group_transform; set one of"
            f" {', '.join(TRANSFORMS)}.",
        )
    if not reweights(args, rule):
        return

    # which of the three it is
    if transform:
        field = "group_transform"
        setting = f"group_transform={transform!r}"
    elif args.clipping == "symmetric":
        field = "clipping"
        setting = f"clipping={args.clipping!r}"
    else:
        field = "advantage_estimator"
        setting = (
            f"advantage_estimator={args.advantage_estimator!r} with"
            " importance_sampling_level='sequence'"
        )
    yield from _ratios_all_one(args, field, setting)
    yield from _not_the_clipped_surrogate(args, setting)
    if transform:
        yield from _transform(args, rule, setting)


def _ratios_all_one(args: CancellationConfig, field: str, setting: str) -> Iterator[Problem]:
    """Find a transform or a clipping that has nothing to work on: on-policy, every ratio is 1."""
    if field == "advantage_estimator":
        return  # advantages per token train at a ratio of 1, too
    parts = args.steps_per_generation
    accumulated = args.gradient_accumulation_steps
    steps_in_batch = parts * args.num_iterations
    # vLLM's correction goes into the weights that a transform sees
    corrected = args.use_vllm and args.vllm_importance_sampling_correction
    if field == "group_transform" and corrected:
        return
    if accumulated % steps_in_batch == 0:
        yield _error(
            "steps_per_generation",
            parts,
            f"above gradient_accumulation_steps={accumulated}, or num_iterations above 1",
            f"{setting} can't have an effect: with gradient_accumulation_steps={accumulated},"
            f" steps_per_generation={parts} and num_iterations={args.num_iterations} every ratio is"
            " exactly 1; set steps_per_generation above gradient_accumulation_steps, or"
            " num_iterations above 1.",
        )


def _not_the_clipped_surrogate(args: CancellationConfig, setting: str) -> Iterator[Problem]:
    """Find settings of TRL's that say something of a surrogate which is replaced."""
    if args.loss_type not in CLIPPED_LOSSES:
        yield _error(
            "loss_type",
            args.loss_type,
            f"'grpo', 'dr_grpo' or 'dapo' with {setting}",
            f"{setting} is defined for the clipped surrogate, not for"
            f" loss_type={args.loss_type!r}; use 'grpo', 'dr_grpo' or 'dapo'.",
        )
    if args.delta is not None:
        yield _error(
            "delta",
            args.delta,
            f"None with {setting}",
            f"{setting} replaces the clipped surrogate, so delta={args.delta} would be ignored; set"
            " delta=None.",
        )
    threshold = args.off_policy_mask_threshold
    if threshold is not None:
        yield _error(
            "off_policy_mask_threshold",
            threshold,
            f"None with {setting}",
            f"{setting} replaces the log-ratios that off_policy_mask_threshold={threshold} reads;"
            " set it to None.",
        )
    if args.use_bias_correction_kl and args.beta:
        yield _error(
            "use_bias_correction_kl",
            True,
            f"False with {setting}",
            f"{setting} sets to 1 the ratio that use_bias_correction_kl=True reads; set it to"
            " False.",
        )


def _transform(
    args: CancellationConfig, rule: CreditCall | None, setting: str
) -> Iterator[Problem]:
    """Find what would come between a group's transformed weights and the gradient, and what a
    transform needs of a batch.
    """
    if args.top_entropy_quantile < 1:
        yield _error(
            "top_entropy_quantile",
            args.top_entropy_quantile,
            f"1.0 with {setting}",
            f"{setting} makes a group's weights cancel, which"
            f" top_entropy_quantile={args.top_entropy_quantile} undoes by dropping tokens of some"
            " of its rollouts; set it to 1.0.",
        )
    if args.mask_truncated_completions and args.group_transform == "min_replace":
        yield _error(
            "mask_truncated_completions",
            True,
            f"False with {setting}",
            f"{setting} cancels where a group's advantages sum to 0, but"
            " mask_truncated_completions=True takes rollouts out of that sum; set it to False, or"
            " use group_transform='advantage_orthogonal', which projects on what is left.",
        )
    if args.loss_type == "grpo":
        yield _warning(
            "loss_type",
            args.loss_type,
            f"'dr_grpo' or 'dapo' with {setting}",
            f"loss_type='grpo' divides by each rollout's own length after {setting}, so a group of"
            " unequal lengths doesn't cancel; use 'dr_grpo' or 'dapo'.",
        )
    clipped = args.transform_on == "clipped_weights"
    if args.clipping != "asymmetric" and not clipped:
        yield _error(
            "clipping",
            args.clipping,
            f"'asymmetric' with {setting}",
            f"{setting} bounds every ratio of a group by the clip range already, so"
            f" clipping={args.clipping!r} would be ignored; leave it at 'asymmetric', or set"
            " transform_on='clipped_weights'.",
        )
    per_sequence = args.importance_sampling_level == "sequence"
    if clipped and per_sequence and token_credit(args, rule):
        yield _error(
            "transform_on",
            args.transform_on,
            f"'clamped_ratios' with advantage_estimator={args.advantage_estimator!r}",
            f"{setting} on clipped_weights of importance_sampling_level='sequence' needs one weight"
            f" per rollout, but advantage_estimator={args.advantage_estimator!r} clips token by"
            " token; use transform_on='clamped_ratios'.",
        )
    yield from _whole_groups(args, setting)


def _whole_groups(args: CancellationConfig, setting: str) -> Iterator[Problem]:
    """Find what scatters a prompt's rollouts over micro-batches."""
    group_size = args.num_generations
    size = args.per_device_train_batch_size
    if size % group_size:
        yield _error(
            "per_device_train_batch_size",
            size,
            f"a multiple of {group_size}",
            f"{setting} needs whole groups in each micro-batch, but"
            f" per_device_train_batch_size={size} is not a multiple of"
            f" num_generations={group_size}; make it a multiple of {group_size}.",
        )
    if args.batching not in WHOLE_GROUP and args.steps_per_generation > 1:
        yield _error(
            "batching",
            args.batching,
            WHOLE_GROUP,
            f"{setting} needs whole groups in each micro-batch, which batching={args.batching!r}"
            f" scatters; use {' or '.join(WHOLE_GROUP)}.",
        )


def _estimator(
    args: CancellationConfig, rule: CreditCall | None, sharded: bool
) -> Iterator[Problem]:
    """Find what would be ignored beside an estimator of our own, or beside a share of the baseline,
    and what keeps a rule from its answer.
    """
    estimator = args.advantage_estimator
    setting = f"advantage_estimator={estimator!r}"
    share = args.baseline_share
    dial = f"baseline_share={share}"
    aggregation = args.multi_objective_aggregation

    if not 0 <= share <= 1:
        yield _error("baseline_share", share, "from 0 to 1", f"{dial} must lie from 0 to 1.")
    if share < 1 and args.scale_rewards not in ("none", False):
        yield _error(
            "scale_rewards",
            args.scale_rewards,
            f"'none' with {dial}",
            f"{dial} lets groups of equal rewards push, which scale_rewards={args.scale_rewards!r}"
            " divides by a spread of 0; set scale_rewards='none'.",
        )
    if share < 1 and estimator != "grpo":
        yield _error(
            "baseline_share",
            share,
            f"1.0 with {setting}",
            f"{dial} would be ignored with {setting}, which defines its own baseline; leave one of"
            " them at its default.",
        )
    if share < 1 and aggregation != "sum_then_normalize":
        yield _error(
            "multi_objective_aggregation",
            aggregation,
            f"'sum_then_normalize' with {dial}",
            f"{dial} works on the summed reward, not with"
            f" multi_objective_aggregation={aggregation!r}; use 'sum_then_normalize'.",
        )
    if estimator == "grpo":
        return

    if aggregation != "sum_then_normalize":
        yield _error(
            "multi_objective_aggregation",
            aggregation,
            f"'sum_then_normalize' with {setting}",
            f"{setting} works on the summed reward, not with"
            f" multi_objective_aggregation={aggregation!r}; use 'sum_then_normalize'.",
        )
    if args.scale_rewards not in ("group", True):
        yield _warning(
            "scale_rewards",
            args.scale_rewards,
            f"'group' with {setting}",
            f"scale_rewards={args.scale_rewards!r} is ignored with {setting}, which defines its own"
            " scale; leave it at 'group'.",
        )
    one_sign = estimator in ("positive_only", "negative_only")
    if one_sign and args.batching in ("sign_partitioned", "reward_balanced"):
        yield _error(
            "batching",
            args.batching,
            f"'shuffled' or 'query_preserved' with {setting}",
            f"{setting} leaves rollouts of one sign only, so batching={args.batching!r} has nothing"
            " to arrange; use shuffled or query_preserved.",
        )
    needs = rule.needs if rule else ()
    if sharded and needs:
        yield _error(
            "advantage_estimator",
            estimator,
            "a rule that asks the policy for nothing, with FSDP or DeepSpeed",
            f"{setting} may ask the policy for {', '.join(needs)}, which FSDP and DeepSpeed shard;"
            " use a rule that needs none of them.",
        )
    if rule and rule.each_step:
        yield from _whole_groups(args, f"{setting}, evaluated in each micro-batch,")


def _resuming(args: CancellationConfig) -> Iterator[Problem]:
    """Find a mask that takes rollouts out of a mini-batch, and checkpoints that miss rollouts."""
    if args.mask_truncated_completions and args.batching != "shuffled":
        yield _warning(
            "mask_truncated_completions",
            True,
            f"False with batching={args.batching!r}",
            "mask_truncated_completions=True takes rollouts out of their groups, whose advantages"
            f" then no longer sum to 0 under batching={args.batching!r}; read the logged"
            " cancellation/batch_residual, or set it to False.",
        )
    strategy = getattr(args.save_strategy, "value", args.save_strategy)
    if strategy == "steps" and args.save_steps % args.steps_per_batch:
        yield _warning(
            "save_steps",
            args.save_steps,
            f"a multiple of {args.steps_per_batch}",
            f"save_steps={args.save_steps} falls inside a generation batch, whose rollouts a"
            " checkpoint does not hold, so a resumed run would differ; use a multiple of"
            f" {args.steps_per_batch}.",
        )


def _model(
    args: CancellationConfig,
    lora_dropout: float,
    quantized: bool,
    base_dtype: torch.dtype | None,
    sharded: bool,
    padding_changes: bool,
    kind: str,
) -> Iterator[Problem]:
    """Find what makes a model's log-probabilities differ between sampling and training, or rounds
    its weights.
    """
    if lora_dropout > 0:
        yield _error(
            "lora_dropout",
            lora_dropout,
            "0",
            f"lora_dropout={lora_dropout} makes sampled and trained log-probabilities differ, since"
            " generation runs in train mode; set lora_dropout=0.",
        )
    if quantized and args.use_vllm:
        yield _error(
            "use_vllm",
            True,
            "False with a quantized base",
            "use_vllm=True merges adapters into the 4-bit weights at each sync and so re-quantizes"
            " the base; use use_vllm=False, or an unquantized base.",
        )
    half_precision = base_dtype is not None and base_dtype.itemsize < 4
    if args.use_vllm and not quantized and sharded and half_precision:
        yield _error(
            "use_vllm",
            True,
            "False with a base below float32 that is sharded",
            f"use_vllm=True merges adapters into the {str(base_dtype).removeprefix('torch.')} base"
            " and takes them out again at each sync, whose rounding moves a base that FSDP or"
            " DeepSpeed shards; load it in float32, leave it whole on each process, or set"
            " use_vllm=False.",
        )
    if args.use_transformers_continuous_batching and args.fp32_adapters:
        yield _error(
            "use_transformers_continuous_batching",
            True,
            "False with fp32_adapters=True",
            "use_transformers_continuous_batching=True casts all weights in place at each"
            " generation, adapters too, so fp32_adapters=True would not hold; set one of them to"
            " False.",
        )
    if quantized and not args.fp32_adapters:
        yield _warning(
            "fp32_adapters",
            False,
            "True with a quantized base",
            "fp32_adapters=False leaves the adapters of a quantized model in bfloat16, in which"
            " small opposing gradients are lost rather than cancelled; set fp32_adapters=True.",
        )
    if padding_changes:
        # with every switch at its default the trainer is TRL's, whatever that does
        switched = any(
            getattr(args, name) != getattr(CancellationConfig, name)
            for name in CancellationConfig.__annotations__
        )
        as_trl = "" if switched else ", so it trains as in TRL, on what padding has changed"
        yield Problem(
            "error" if switched else "warning",
            f"{kind} computes other logits behind padding than without, and train_dataset has"
            f" prompts of unequal length, which TRL pads{as_trl}: take prompts of one length in"
            " tokens, or a model with relative positions and an attention mask.",
            "train_dataset",
            "prompts of unequal length",
            "prompts of one length in tokens",
        )


# -- a run as a whole ------------------------------------------------------------------------------


def check_run(config: RunConfig) -> None:
    """Check a `RunConfig` wholly, with its policy's and task's names, and write nothing.

    A model or data set of a hub is not asked for: `load_policy` and `get_task` say whether that is
    there.

    Raises InvalidValue, in one sentence that names the field, its value and what would be valid;
    ValueError where a task can't be made, or of several lines, one a row, for rows of one's own.
    """
    for problem in validate(config):
        if problem.severity == "error":
            raise problem.refusal()
    _check_policy(config.policy)
    _check_task(config)


def validate(config: RunConfig) -> list[Problem]:
    """List what `problems` and TRL's own config find wrong with a run's settings.

    Model and task are not looked at. Of several processes TRL's config would wait for all, so there
    the trainer itself refuses what makes no run.
    """
    contradiction = _contradiction(config)
    if contradiction:
        return [contradiction]
    if process_count() > 1:
        return []

    try:
        args = trainer_args(config, torch.device("cpu"), "unused")
        rule = credit_call(args.advantage_estimator)
    except Exception as refusal:  # of TRL, transformers, accelerate, or a rule of one's own
        return [_refused_by_library(config, refusal)]

    found = problems(args, quantized=bool(config.quantization), rule=rule)
    needed = args.generation_batch_size // args.num_generations
    if config.num_prompts < needed:
        valid = f"at least {needed}, the prompts of a generation batch"
        sentence = f"num_prompts={config.num_prompts} must be {valid}."
        found.insert(0, _error("num_prompts", config.num_prompts, valid, sentence))
    return found


def _contradiction(config: RunConfig) -> Problem | None:
    """Find the first of a run's settings that TRL and transformers would not refuse."""
    if "max_steps" not in config.trainer:
        valid = "a positive number of optimizer steps"
        sentence = f"trainer.max_steps is missing; set it to {valid}."
        return _error("trainer.max_steps", None, valid, sentence)
    if config.quantization and not config.lora:
        return _error(
            "lora",
            config.lora,
            "a rank, e.g. 8",
            f"quantization={config.quantization!r} freezes all weights, so lora={config.lora}"
            " leaves nothing to train; set lora to a rank, e.g. 8.",
        )
    if config.dtype not in ("auto", "float32") and not config.lora:
        return _error(
            "dtype",
            config.dtype,
            "'auto' without adapters",
            f"dtype={config.dtype!r} is for frozen weights, and without adapters all are trained;"
            " set lora to a rank, or dtype to auto, as trained weights lose small updates.",
        )
    return None


def _refused_by_library(config: RunConfig, refusal: Exception) -> Problem:
    """A library's refusal of a trainer's settings, with the values of those that it names."""
    if isinstance(refusal, InvalidValue):
        return Problem.of(refusal)
    sentence = explain_error(refusal).rstrip(".")
    named = [key for key in config.trainer if re.search(rf"\b{key}\b", sentence)]
    if not named:
        sentence = f"trainer can't be made: {sentence}."
        return _error("trainer", config.trainer, "what TRL takes", sentence)
    values = [f"{key}={show_value(config.trainer[key])}" for key in named]
    sentence = f"{sentence} ({', '.join(values)})."
    return _error(named[0], config.trainer[named[0]], "what TRL takes", sentence)


def _check_policy(name: str) -> None:
    """Raise InvalidValue unless there is a policy of this name."""
    try:
        check_name(name)
    except (ValueError, OSError, RuntimeError) as refusal:
        # the latter two: a name that is too long, a user's home that is not there
        sentence = f"policy={show_value(name)}: {explain_error(refusal)}"
        raise InvalidValue("policy", name, "a policy that is there", sentence) from None


def _check_task(config: RunConfig) -> None:
    """Raise ValueError unless a run's task can be made, and has as many prompts as it asks for."""
    family, _, rest = config.task.partition(":")
    if family == "hub" and not Path(rest).expanduser().exists():
        return
    where = f"task={show_value(config.task)}"
    if config.task_options:
        where += f" with task_options={config.task_options}"
    try:
        task = get_task(config.task, **config.task_options)
        if family != "gym" and config.num_prompts + config.eval_prompts <= QUICKLY_DRAWN:
            task.split(config.num_prompts, config.eval_prompts, config.seed)
    except ValueError as refusal:
        if type(refusal) not in (ValueError, InvalidValue) or str(refusal).startswith("task"):
            raise  # of several lines, one a row, or with the task's name
        raise reworded(refusal, f"{where}: {refusal}") from None
    except (TypeError, OSError, ArithmeticError, LookupError, AttributeError) as refusal:
        sentence = f"{where} can't be made: {one_line(refusal)}."
        raise InvalidValue("task", config.task, "one that can be made", sentence) from None
