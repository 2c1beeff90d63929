"""Settings that would turn an intervention into a silent no-op, or break it, named before anything is trained.

Each rule is one sentence that names the field, its value and what would be valid. `problems` is pure: it takes a config and
a few facts about the model and the launch, and returns what is wrong; the trainer raises on errors and warns on the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from workbook.theory.choices import (
    CLIPPINGS,
    ESTIMATORS,
    RULES,
    STRATEGIES,
    TRANSFORM_INPUTS,
    TRANSFORMS,
    WHOLE_GROUP,
    check_estimator,
)

# Loss types whose surrogate is min(r A, clip(r) A): the ones a reweighted surrogate can stand in for.
CLIPPED_LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo")
# Loss types that add up what a sequence's one ratio pushes, so that per-token advantages would be averaged over it.
AVERAGING_LOSSES = (*CLIPPED_LOSSES, "sapo", "luspo")
# Optimizers that step inside the backward pass and leave no gradient to read.
STEPPING_INSIDE = ("lomo", "layerwise")


class Problem(NamedTuple):
    severity: str  # "error" | "warning"
    sentence: str


error, warning = partial(Problem, "error"), partial(Problem, "warning")


def problems(
    args,
    *,
    world_size: int = 1,
    lora_dropout: float = 0.0,
    quantized: bool = False,
    base_dtype=None,
    aux_loss: bool = False,
    sharded: bool = False,
    padding_changes: bool = False,
    kind: str = "the model",
    rule=None,
) -> list[Problem]:
    """List what is wrong with `args` (a CancellationConfig) for a launch of `world_size` processes.

    Args:
        args: the config; only read.
        world_size: number of training processes.
        lora_dropout: largest dropout of the model's adapters, 0 without adapters.
        quantized: whether the base weights are 4-bit or 8-bit.
        base_dtype: the torch.dtype of the weights under the model's adapters; None without adapters, or if not known.
        aux_loss: whether the model adds a mixture of experts' load-balancing loss.
        sharded: whether weights or gradients are spread over processes (FSDP, DeepSpeed).
        padding_changes: whether prompts differ in length for a model that left padding changes.
        kind: the model's class.
        rule: the credit rule (`training.credit.CreditCall`) that advantage_estimator means; None looks up one of ours.
    """
    if unknown := list(_unknown_values(args, rule)):  # the other rules would only repeat it
        return unknown
    rule = credit_rule(args, rule)
    return [
        *_measuring(args, aux_loss, sharded),
        *_recording(args, sharded),
        *_batching(args, world_size),
        *_reweighting(args, rule),
        *_estimator(args),
        *_credit(args, rule, sharded),
        *_loss(args),
        *_model(args, lora_dropout, quantized, base_dtype, sharded),
        *_padding(padding_changes, kind),
        *_checkpoints(args),
    ]


def credit_rule(args, rule=None):
    """The credit rule of a config, where it is one of ours or given; None for a plain estimator, and for one unknown."""
    from workbook.training.credit import credit_call

    return credit_call(args.advantage_estimator) if rule is None and args.advantage_estimator in RULES else rule


def token_credit(args, rule=None) -> bool:
    """Whether each token may have its own advantage; what one's own rule gives is known once it has given it."""
    rule = credit_rule(args, rule)
    return args.advantage_estimator not in ESTIMATORS and (rule is None or rule.per_token)


def reweights(args, rule=None, advantages=None) -> bool:
    """Whether the trainer writes the surrogate's weights itself, in place of TRL's.

    advantages: a batch's, which say whether each token has its own; None asks what the rule may give.
    """
    # per-token advantages under one ratio per sequence
    averaged = args.importance_sampling_level == "sequence" and args.loss_type in AVERAGING_LOSSES
    by_token = averaged and (token_credit(args, rule) if advantages is None else advantages.dim() == 2)
    return args.group_transform is not None or args.clipping == "symmetric" or by_token


def _unknown_values(args, rule) -> Iterator[Problem]:
    for name, valid in {
        "batching": STRATEGIES,
        "group_transform": (None, *TRANSFORMS),
        "transform_on": TRANSFORM_INPUTS,
        "clipping": CLIPPINGS,
    }.items():
        value = getattr(args, name)
        if value not in valid:
            yield error(f"{name}={value!r} is unknown; valid values are {', '.join(map(str, valid))}.")
    try:
        check_estimator(args.advantage_estimator)
    except ValueError as refusal:
        if rule is None:  # a function at hand has another name
            yield error(str(refusal))
    for name, unit in {"measure_cancellation": "generation batches", "record_tokens": "optimizer steps"}.items():
        every = getattr(args, name)
        if type(every) is not int or every < 0:
            yield error(f"{name}={every!r} must be a number of {unit}, or 0 for never.")


def _measuring(args, aux_loss: bool, sharded: bool) -> Iterator[Problem]:
    """Rules for measure_cancellation, which splits the gradient that training sums into its two signs."""
    if not args.measure_cancellation:
        return
    setting = f"measure_cancellation={args.measure_cancellation}"
    for name in ("beta", "entropy_coef", "use_adaptive_entropy"):
        if value := getattr(args, name):
            yield error(
                f"{setting} would count the pull of {name}={value} as a push of either sign; set {name}={type(value)(0)}, or measure_cancellation=0."
            )
    if aux_loss:
        yield error(
            f"{setting} would count the pull of the experts' load-balancing loss as a push of either sign; set router_aux_loss_coef=0.0, or "
            "measure_cancellation=0."
        )
    if sharded:
        yield error(
            f"{setting} reads whole weights and gradients, which FSDP and DeepSpeed shard; set measure_cancellation=0."
        )
    if args.gradient_checkpointing and (args.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
        yield error(
            f"{setting} takes gradients of chosen tokens, which gradient_checkpointing_kwargs={{'use_reentrant': True}} can't; set it to False."
        )
    optim = getattr(args.optim, "value", args.optim)
    if any(part in optim for part in STEPPING_INSIDE):
        yield error(
            f"{setting} reads the gradient that the optimizer takes, of which optim={optim!r} keeps none; use 'adamw_torch', or measure_cancellation=0."
        )


def _recording(args, sharded: bool) -> Iterator[Problem]:
    """Rules for record_tokens, which takes the KL penalty's part out of a push and scores rollouts after the step."""
    setting = f"record_tokens={args.record_tokens}"
    if args.record_tokens and args.beta and args.use_bias_correction_kl:
        yield error(
            f"{setting} can't tell a push from the pull of beta={args.beta} under use_bias_correction_kl=True, which weights it by the ratio; set "
            "use_bias_correction_kl=False, or record_tokens=0."
        )
    if args.record_tokens and sharded:
        yield error(
            f"{setting} scores rollouts with whole weights, which FSDP and DeepSpeed shard; set record_tokens=0."
        )


def _batching(args, world_size: int) -> Iterator[Problem]:
    groups, spg, accum = args.num_generations, args.steps_per_generation, args.gradient_accumulation_steps
    batching, local = f"batching={args.batching!r}", args.per_device_train_batch_size * spg
    if world_size > 1 and local % groups:
        yield error(
            f"per_device_train_batch_size * steps_per_generation = {local} is not a multiple of num_generations={groups}, so a "
            f"group would straddle two of the {world_size} processes; make it a multiple of {groups}."
        )
    if args.batching == "shuffled":
        return
    if spg <= accum:
        yield error(
            f"{batching} can't have an effect with steps_per_generation={spg} and gradient_accumulation_steps={accum}, since each "
            f"generation batch is one optimizer step; set steps_per_generation to {2 * accum} or a higher multiple of {accum}."
        )
    elif spg % accum:
        yield error(
            f"steps_per_generation={spg} is not a multiple of gradient_accumulation_steps={accum}, so an optimizer mini-batch would "
            f"mix two generation batches and {batching} would not hold; make it a multiple of {accum}."
        )
    minibatch = args.per_device_train_batch_size * accum * world_size
    if args.batching in WHOLE_GROUP and minibatch % groups:
        yield error(
            f"{batching} needs whole groups in each optimizer mini-batch, but its {minibatch} rollouts are not a multiple of "
            f"num_generations={groups}; make per_device_train_batch_size * gradient_accumulation_steps * processes a multiple of {groups}."
        )
    if args.loss_type == "bnpo":
        yield error(
            f"loss_type='bnpo' divides by each micro-batch's own tokens, so {batching} would change the step size as well as the "
            "composition; use loss_type 'grpo' or 'dr_grpo'."
        )
    if args.max_grad_norm and args.max_grad_norm > 0:
        yield warning(
            f"max_grad_norm={args.max_grad_norm} rescales one-signed mini-batches most, which confounds {batching}; set max_grad_norm=0 "
            "for a comparison, or read the logged cancellation/grad_clipped beside it."
        )


def _reweighting(args, rule) -> Iterator[Problem]:
    """Rules for what replaces the surrogate's weights: a transform, symmetric clipping, tokens of a sequence ratio."""
    setting = f"group_transform={args.group_transform!r}" if args.group_transform else f"clipping={args.clipping!r}"
    if args.group_transform is None and args.transform_on != TRANSFORM_INPUTS[0]:
        yield warning(
            f"transform_on={args.transform_on!r} is ignored without a group_transform; set one of {', '.join(TRANSFORMS)}."
        )
    if not reweights(args, rule):
        return
    if args.group_transform is None and args.clipping == "asymmetric":
        setting = f"advantage_estimator={args.advantage_estimator!r} with importance_sampling_level='sequence'"
    spg, accum = args.steps_per_generation, args.gradient_accumulation_steps
    corrected = args.group_transform and args.use_vllm and args.vllm_importance_sampling_correction
    on_policy = accum % (spg * args.num_iterations) == 0
    if on_policy and not corrected and not setting.startswith("advantage_estimator"):
        yield error(
            f"{setting} can't have an effect: with gradient_accumulation_steps={accum}, steps_per_generation={spg} and num_iterations="
            f"{args.num_iterations} every ratio is exactly 1; set steps_per_generation above gradient_accumulation_steps, or num_iterations above 1."
        )
    if args.loss_type not in CLIPPED_LOSSES:
        yield error(
            f"{setting} is defined for the clipped surrogate, not for loss_type={args.loss_type!r}; use 'grpo', 'dr_grpo' or 'dapo'."
        )
    if args.delta is not None:
        yield error(
            f"{setting} replaces the clipped surrogate, so delta={args.delta} would be ignored; set delta=None."
        )
    if args.off_policy_mask_threshold is not None:
        yield error(
            f"{setting} replaces the log-ratios that off_policy_mask_threshold={args.off_policy_mask_threshold} reads; set it to None."
        )
    if args.use_bias_correction_kl and args.beta:
        yield error(
            f"{setting} sets the ratio to 1 inside the loss, which use_bias_correction_kl=True reads; set it to False."
        )
    if args.group_transform:
        yield from _transform(args, rule, setting)


def _transform(args, rule, setting: str) -> Iterator[Problem]:
    """Rules for group transforms: what must not come between them and the gradient, and what they need of a batch."""
    if args.top_entropy_quantile < 1:
        yield error(
            f"{setting} makes a group's weights cancel, which top_entropy_quantile={args.top_entropy_quantile} undoes by dropping tokens of "
            "some of its rollouts; set it to 1.0."
        )
    if args.mask_truncated_completions and args.group_transform == "min_replace":
        yield error(
            f"{setting} cancels where a group's advantages sum to 0, but mask_truncated_completions=True takes rollouts out of that sum; set "
            "it to False, or use group_transform='advantage_orthogonal', which projects on what is left."
        )
    if args.loss_type == "grpo":
        yield warning(
            f"loss_type='grpo' divides by each rollout's own length after {setting}, so a group of unequal lengths doesn't cancel; use "
            "'dr_grpo' or 'dapo'."
        )
    clipped = args.transform_on == "clipped_weights"
    if args.clipping != "asymmetric" and not clipped:
        yield error(
            f"{setting} bounds every ratio of a group by the clip range already, so clipping={args.clipping!r} would be ignored; leave it at "
            "'asymmetric', or set transform_on='clipped_weights'."
        )
    if clipped and args.importance_sampling_level == "sequence" and token_credit(args, rule):
        yield error(
            f"{setting} on clipped_weights of importance_sampling_level='sequence' needs one weight per rollout, but "
            f"advantage_estimator={args.advantage_estimator!r} clips token by token; use transform_on='clamped_ratios'."
        )
    yield from _whole_groups(args, setting)


def _whole_groups(args, setting: str) -> Iterator[Problem]:
    """Rules for what needs all rollouts of a prompt in one micro-batch."""
    groups = args.num_generations
    if args.per_device_train_batch_size % groups:
        yield error(
            f"{setting} needs whole groups in each micro-batch, but per_device_train_batch_size={args.per_device_train_batch_size} is not "
            f"a multiple of num_generations={groups}; make it a multiple of {groups}."
        )
    if args.batching not in WHOLE_GROUP and args.steps_per_generation > 1:
        yield error(
            f"{setting} needs whole groups in each micro-batch, which batching={args.batching!r} scatters; use {' or '.join(WHOLE_GROUP)}."
        )


def _estimator(args) -> Iterator[Problem]:
    estimator, setting = args.advantage_estimator, f"advantage_estimator={args.advantage_estimator!r}"
    if estimator == "grpo":
        return
    if args.multi_objective_aggregation != "sum_then_normalize":
        yield error(
            f"{setting} works on the summed reward, not with multi_objective_aggregation={args.multi_objective_aggregation!r}; use "
            "'sum_then_normalize'."
        )
    if args.scale_rewards not in ("group", True):
        yield warning(
            f"scale_rewards={args.scale_rewards!r} is ignored with {setting}, which defines its own scale; leave it at 'group'."
        )
    if estimator in ("positive_only", "negative_only") and args.batching in ("sign_partitioned", "reward_balanced"):
        yield error(
            f"{setting} leaves rollouts of one sign only, so batching={args.batching!r} has nothing to arrange; use shuffled or query_preserved."
        )


def _credit(args, rule, sharded: bool) -> Iterator[Problem]:
    """Rules for what a credit rule asks of the model and of each micro-batch."""
    if rule is None:
        return
    setting = f"advantage_estimator={args.advantage_estimator!r}"
    if sharded and rule.needs:
        yield error(
            f"{setting} may ask the policy for {', '.join(rule.needs)}, which FSDP and DeepSpeed shard; use a rule that needs none of them."
        )
    if rule.each_step:
        yield from _whole_groups(args, f"{setting}, evaluated in each micro-batch,")


def _loss(args) -> Iterator[Problem]:
    """Rules for loss types and masks, whatever else is set."""
    if args.loss_type == "cispo" and (args.epsilon_high is None or args.epsilon_high < 1):
        highest = args.epsilon if args.epsilon_high is None else args.epsilon_high
        yield error(
            f"loss_type='cispo' holds each ratio below epsilon_high itself, not 1 + epsilon_high, and epsilon_high={args.epsilon_high} makes "
            f"that {highest}, so every weight near 1 would be {highest}; set epsilon_high to 1 or more, e.g. 5.0."
        )
    if args.delta is not None and args.delta <= 1 + args.epsilon:
        yield error(
            f"delta={args.delta} bounds each ratio below the clip range's own end, 1 + epsilon = {1 + args.epsilon:g}, and so cuts pushes near "
            f"a ratio of 1; set it above {1 + args.epsilon:g}, e.g. 2.0, or to None."
        )
    if args.mask_truncated_completions and args.batching != "shuffled":
        yield warning(
            "mask_truncated_completions=True takes rollouts out of their groups, whose advantages then no longer sum to 0 under batching="
            f"{args.batching!r}; read the logged cancellation/batch_residual, or set it to False."
        )


def _model(args, lora_dropout: float, quantized: bool, base_dtype, sharded: bool) -> Iterator[Problem]:
    if lora_dropout > 0:
        yield error(
            f"lora_dropout={lora_dropout} makes sampled and trained log-probabilities differ, since generation runs in train mode; set lora_dropout=0."
        )
    if quantized and args.use_vllm:
        yield error(
            "use_vllm=True merges adapters into the 4-bit weights at each sync and so re-quantizes the base; use use_vllm=False, or an unquantized base."
        )
    elif args.use_vllm and sharded and base_dtype is not None and base_dtype.itemsize < 4:
        yield error(
            f"use_vllm=True merges adapters into the {str(base_dtype).removeprefix('torch.')} base and takes them out again at each sync, whose "
            "rounding moves a base that FSDP or DeepSpeed shards; load it in float32, leave it whole on each process, or set use_vllm=False."
        )
    if args.use_transformers_continuous_batching and (args.bf16 or args.fp16 or args.fp32_adapters):
        yield error(
            "use_transformers_continuous_batching=True casts all weights in place at each generation, those in training too, to what bf16="
            f"{args.bf16} or fp16={args.fp16} names, whatever fp32_adapters={args.fp32_adapters} says; set it to False, or these three."
        )
    if quantized and not args.fp32_adapters:
        yield warning(
            "fp32_adapters=False leaves the adapters of a quantized model in bfloat16, in which small opposing gradients are lost rather than "
            "cancelled; set fp32_adapters=True."
        )


def _padding(padding_changes: bool, kind: str) -> Iterator[Problem]:
    if padding_changes:
        yield error(
            f"{kind} computes other logits behind padding than without, and train_dataset has prompts of unequal length, which TRL pads: "
            "take prompts of one length in tokens, or a model with relative positions and an attention mask."
        )


def _checkpoints(args) -> Iterator[Problem]:
    strategy = getattr(args.save_strategy, "value", args.save_strategy)
    if strategy == "steps" and args.save_steps % args.steps_per_batch:
        yield warning(
            f"save_steps={args.save_steps} falls inside a generation batch, whose rollouts a checkpoint does not hold, so a resumed run would "
            f"differ; use a multiple of {args.steps_per_batch}."
        )
