"""Settings that would break a run, or turn an intervention into a silent no-op, named before
anything is trained.

Each rule is one sentence that names the field, its value and what would be valid. `problems` is
pure: the trainer raises on its errors and warns of the rest. `check_run` asks it of a run's config,
and whether packages, policy and task are there; no model is loaded.
"""

import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from workbook.files import process_count
from workbook.messages import InvalidValue, explain_error, one_line, reworded, show_value
from workbook.policies.load import check_name
from workbook.tasks import get_task
from workbook.theory.choices import ESTIMATORS, TRANSFORM_INPUTS, TRANSFORMS, WHOLE_GROUP
from workbook.theory.credit_rules import CREDIT_RULES
from workbook.training.config import CHOICES, CancellationConfig, RunConfig, trainer_args
from workbook.training.credit import check_estimator, credit_call

# Loss types whose surrogate is min(r A, clip(r) A): the ones a reweighted surrogate can stand in
# for.
CLIPPED_LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo")
AVERAGING_LOSSES = (*CLIPPED_LOSSES, "sapo", "luspo")
# optimizers that step inside the backward pass and leave no gradient to read
STEPPING_INSIDE = ("lomo", "layerwise")
# prompts; with more of them, or of a gym task, the run itself says whether there are enough
QUICKLY_DRAWN = 10_000


class Problem(NamedTuple):
    severity: str  # "error" | "warning"
    sentence: str


Rule = tuple[Any, str, str]  # what holds where it is broken, "error" or "warning", the sentence


def problems(
    args, *, world_size: int = 1, lora_dropout: float = 0.0, quantized: bool = False, base_dtype=None,
    aux_loss: bool = False, sharded: bool = False, padding_changes: bool = False, kind: str = "the model", rule=None,
) -> list[Problem]:  # fmt: skip
    """List what is wrong with `args` (a CancellationConfig) for a launch of `world_size` processes.

    lora_dropout: the largest of the model's adapters.  quantized: whether base weights are 4-bit or
    8-bit.  base_dtype: the torch.dtype of the weights under adapters, None without.  aux_loss:
    whether the model adds a mixture of experts' load-balancing loss.  sharded: whether weights or
    gradients are spread over processes (FSDP, DeepSpeed).
    padding_changes: whether prompts differ in length for a model that left padding changes.  kind:
    the model's class.
    rule: the credit rule (`training.credit.CreditCall`) that advantage_estimator means; None looks
    up one of ours.
    """
    found = _unknown_values(args, rule)
    if not any(holds for holds, *_ in found):  # else the other rules would only repeat it
        rule = rule_of_config(args, rule)
        found = [
            *_measuring(args, aux_loss, sharded),
            *_batching(args, world_size),
            *_reweighting(args, rule),
            *_estimator(args, rule, sharded),
            *_resuming(args),
            *_model(args, lora_dropout, quantized, base_dtype, sharded, padding_changes, kind),
        ]
    return [Problem(severity, sentence) for holds, severity, sentence in found if holds]


def rule_of_config(args, rule=None):
    """The credit rule of a config, where it is one of ours or given; None for a plain estimator,
    and for one unknown.
    """
    if rule is None and args.advantage_estimator in CREDIT_RULES:
        return credit_call(args.advantage_estimator)
    return rule


def token_credit(args, rule=None) -> bool:
    """Whether each token may have its own advantage; what one's own rule gives is known once it has
    given it.
    """
    rule = rule_of_config(args, rule)
    return args.advantage_estimator not in ESTIMATORS and (rule is None or rule.per_token)


def reweights(args, rule=None, advantages=None) -> bool:
    """Whether the trainer writes the surrogate's weights itself, in place of TRL's.

    advantages: a batch's, which say whether each token has its own; None asks what the rule may
    give.
    """
    # per-token advantages under one ratio per sequence
    averaged = args.importance_sampling_level == "sequence" and args.loss_type in AVERAGING_LOSSES
    by_token = averaged and (
        token_credit(args, rule) if advantages is None else advantages.dim() == 2
    )
    return args.group_transform is not None or args.clipping == "symmetric" or by_token


# -- the rules: when one holds, how bad that is, and the sentence -----------------------------------------------------
# fmt: off


def _unknown_values(args, rule) -> list[Rule]:
    found = [
        ((value := getattr(args, name)) not in CHOICES[name], "error", f"{name}={value!r} is unknown; valid values are {', '.join(map(str, CHOICES[name]))}.")
        for name in ("batching", "group_transform", "transform_on", "clipping")
    ]
    for name, unit in {"measure_cancellation": "generation batches", "record_tokens": "optimizer steps"}.items():
        every = getattr(args, name)
        found.append((type(every) is not int or every < 0, "error", f"{name}={every!r} must be a number of {unit}, or 0 for never."))
    try:
        check_estimator(args.advantage_estimator)
    except ValueError as refusal:  # a function at hand has another name
        found.append((rule is None, "error", str(refusal)))
    return found


def _measuring(args, aux_loss: bool, sharded: bool) -> list[Rule]:
    """Rules for measure_cancellation, which splits a gradient into its two signs, and for
    record_tokens.
    """
    on, off, setting = args.measure_cancellation, "measure_cancellation=0", f"measure_cancellation={args.measure_cancellation}"
    record, recording, optim = args.record_tokens, f"record_tokens={args.record_tokens}", getattr(args.optim, "value", args.optim)
    reentrant = args.gradient_checkpointing and (args.gradient_checkpointing_kwargs or {}).get("use_reentrant")
    options = f"{'activation' if hasattr(args, 'activation_checkpointing') else 'gradient'}_checkpointing_kwargs"
    pulls = {name: getattr(args, name) for name in ("beta", "entropy_coef", "use_adaptive_entropy")}
    return [
        *((on and value, "error", f"{setting} would count the pull of {name}={value} as a push of either sign; set {name}={type(value)(0)}, or {off}.") for name, value in pulls.items() if value),
        (on and aux_loss, "error", f"{setting} would count the pull of the experts' load-balancing loss as a push of either sign; set router_aux_loss_coef=0.0, or {off}."),
        (on and sharded, "error", f"{setting} reads whole weights and gradients, which FSDP and DeepSpeed shard; set {off}."),
        (on and reentrant, "error", f"{setting} takes gradients of chosen tokens, which {options}={{'use_reentrant': True}} can't; set it to False."),
        (on and any(part in optim for part in STEPPING_INSIDE), "error", f"{setting} reads the gradient, of which optim={optim!r} keeps none; use 'adamw_torch', or {off}."),
        (record and sharded, "error", f"{recording} scores rollouts with whole weights, which FSDP and DeepSpeed shard; set record_tokens=0."),
    ]


def _batching(args, world_size: int) -> list[Rule]:
    groups, spg, accum = args.num_generations, args.steps_per_generation, args.gradient_accumulation_steps
    batching, local = f"batching={args.batching!r}", args.per_device_train_batch_size * spg
    minibatch, on = args.per_device_train_batch_size * accum * world_size, args.batching != "shuffled"
    return [
        (world_size > 1 and local % groups, "error", f"per_device_train_batch_size * steps_per_generation = {local} is not a multiple of num_generations={groups}, so a group would straddle two of the {world_size} processes; make it a multiple of {groups}."),
        (on and spg <= accum, "error", f"{batching} can't have an effect with steps_per_generation={spg} and gradient_accumulation_steps={accum}, since each generation batch is one optimizer step; set steps_per_generation to {2 * accum} or a higher multiple of {accum}."),
        (on and spg > accum and spg % accum, "error", f"steps_per_generation={spg} is not a multiple of gradient_accumulation_steps={accum}, so an optimizer mini-batch would mix two generation batches and {batching} would not hold; make it a multiple of {accum}."),
        (args.batching in WHOLE_GROUP and minibatch % groups, "error", f"{batching} needs whole groups in each optimizer mini-batch, but its {minibatch} rollouts are not a multiple of num_generations={groups}; make per_device_train_batch_size * gradient_accumulation_steps * processes one of {groups}."),
        (on and args.loss_type == "bnpo", "error", f"loss_type='bnpo' divides by each micro-batch's own tokens, so {batching} would change the step size as well as the composition; use loss_type 'grpo' or 'dr_grpo'."),
        (on and (args.max_grad_norm or 0) > 0, "warning", f"max_grad_norm={args.max_grad_norm} rescales mini-batches of longer gradients, which confounds {batching}; set max_grad_norm=0 for a comparison, or read the logged cancellation/grad_clipped beside it."),
    ]


def _reweighting(args, rule) -> list[Rule]:
    """Rules for what replaces the surrogate's weights: a transform, symmetric clipping, tokens of a
    sequence ratio.
    """
    transform, clipped = args.group_transform, args.transform_on == "clipped_weights"
    idle = (transform is None and args.transform_on != TRANSFORM_INPUTS[0], "warning", f"transform_on={args.transform_on!r} is ignored without a group_transform; set one of {', '.join(TRANSFORMS)}.")
    if not reweights(args, rule):
        return [idle]
    spread = transform is None and args.clipping == "asymmetric"
    setting = f"group_transform={transform!r}" if transform else f"clipping={args.clipping!r}"
    if spread:
        setting = f"advantage_estimator={args.advantage_estimator!r} with importance_sampling_level='sequence'"
    spg, accum, threshold = args.steps_per_generation, args.gradient_accumulation_steps, args.off_policy_mask_threshold
    corrected = transform and args.use_vllm and args.vllm_importance_sampling_correction
    on_policy = accum % (spg * args.num_iterations) == 0 and not corrected
    by_token = args.importance_sampling_level == "sequence" and token_credit(args, rule)
    found = [
        idle,
        (on_policy and not spread, "error", f"{setting} can't have an effect: with gradient_accumulation_steps={accum}, steps_per_generation={spg} and num_iterations={args.num_iterations} every ratio is exactly 1; set steps_per_generation above gradient_accumulation_steps, or num_iterations above 1."),
        (args.loss_type not in CLIPPED_LOSSES, "error", f"{setting} is defined for the clipped surrogate, not for loss_type={args.loss_type!r}; use 'grpo', 'dr_grpo' or 'dapo'."),
        (args.delta is not None, "error", f"{setting} replaces the clipped surrogate, so delta={args.delta} would be ignored; set delta=None."),
        (threshold is not None, "error", f"{setting} replaces the log-ratios that off_policy_mask_threshold={threshold} reads; set it to None."),
        (args.use_bias_correction_kl and args.beta, "error", f"{setting} sets to 1 the ratio that use_bias_correction_kl=True reads; set it to False."),
    ]
    if not transform:
        return found
    return [
        # and what must not come between a transform and the gradient, and what it needs of a batch
        *found,
        (args.top_entropy_quantile < 1, "error", f"{setting} makes a group's weights cancel, which top_entropy_quantile={args.top_entropy_quantile} undoes by dropping tokens of some of its rollouts; set it to 1.0."),
        (args.mask_truncated_completions and transform == "min_replace", "error", f"{setting} cancels where a group's advantages sum to 0, but mask_truncated_completions=True takes rollouts out of that sum; set it to False, or use group_transform='advantage_orthogonal', which projects on what is left."),
        (args.loss_type == "grpo", "warning", f"loss_type='grpo' divides by each rollout's own length after {setting}, so a group of unequal lengths doesn't cancel; use 'dr_grpo' or 'dapo'."),
        (args.clipping != "asymmetric" and not clipped, "error", f"{setting} bounds every ratio of a group by the clip range already, so clipping={args.clipping!r} would be ignored; leave it at 'asymmetric', or set transform_on='clipped_weights'."),
        (clipped and by_token, "error", f"{setting} on clipped_weights of importance_sampling_level='sequence' needs one weight per rollout, but advantage_estimator={args.advantage_estimator!r} clips token by token; use transform_on='clamped_ratios'."),
        *_whole_groups(args, setting),
    ]


def _whole_groups(args, setting: str) -> list[Rule]:
    """Rules for what needs all rollouts of a prompt in one micro-batch."""
    groups, size = args.num_generations, args.per_device_train_batch_size
    scattered = args.batching not in WHOLE_GROUP and args.steps_per_generation > 1
    return [
        (size % groups, "error", f"{setting} needs whole groups in each micro-batch, but per_device_train_batch_size={size} is not a multiple of num_generations={groups}; make it a multiple of {groups}."),
        (scattered, "error", f"{setting} needs whole groups in each micro-batch, which batching={args.batching!r} scatters; use {' or '.join(WHOLE_GROUP)}."),
    ]


def _estimator(args, rule, sharded: bool) -> list[Rule]:
    estimator, setting, multi = args.advantage_estimator, f"advantage_estimator={args.advantage_estimator!r}", args.multi_objective_aggregation
    share, dial = args.baseline_share, f"baseline_share={args.baseline_share}"
    dialled = [
        (not 0 <= share <= 1, "error", f"{dial} must lie from 0 to 1."),
        (share < 1 and args.scale_rewards not in ("none", False), "error", f"{dial} lets groups of equal rewards push, which scale_rewards={args.scale_rewards!r} divides by a spread of 0; set scale_rewards='none'."),
        (share < 1 and estimator != "grpo", "error", f"{dial} would be ignored with {setting}, which defines its own baseline; leave one of them at its default."),
        (share < 1 and multi != "sum_then_normalize", "error", f"{dial} works on the summed reward, not with multi_objective_aggregation={multi!r}; use 'sum_then_normalize'."),
    ]
    if estimator == "grpo":
        return dialled
    one_sign = estimator in ("positive_only", "negative_only") and args.batching in ("sign_partitioned", "reward_balanced")
    needs = rule.needs if rule else ()
    return [
        *dialled,
        (multi != "sum_then_normalize", "error", f"{setting} works on the summed reward, not with multi_objective_aggregation={multi!r}; use 'sum_then_normalize'."),
        (args.scale_rewards not in ("group", True), "warning", f"scale_rewards={args.scale_rewards!r} is ignored with {setting}, which defines its own scale; leave it at 'group'."),
        (one_sign, "error", f"{setting} leaves rollouts of one sign only, so batching={args.batching!r} has nothing to arrange; use shuffled or query_preserved."),
        (sharded and needs, "error", f"{setting} may ask the policy for {', '.join(needs)}, which FSDP and DeepSpeed shard; use a rule that needs none of them."),
        *(_whole_groups(args, f"{setting}, evaluated in each micro-batch,") if rule and rule.each_step else []),
    ]


def _resuming(args) -> list[Rule]:
    """Rules for what a mask does to a mini-batch's composition, and for checkpoints."""
    strategy = getattr(args.save_strategy, "value", args.save_strategy)
    return [
        (args.mask_truncated_completions and args.batching != "shuffled", "warning", f"mask_truncated_completions=True takes rollouts out of their groups, whose advantages then no longer sum to 0 under batching={args.batching!r}; read the logged cancellation/batch_residual, or set it to False."),
        (strategy == "steps" and args.save_steps % args.steps_per_batch, "warning", f"save_steps={args.save_steps} falls inside a generation batch, whose rollouts a checkpoint does not hold, so a resumed run would differ; use a multiple of {args.steps_per_batch}."),
    ]


def _model(args, lora_dropout, quantized, base_dtype, sharded, padding_changes, kind) -> list[Rule]:
    rounded = not quantized and sharded and base_dtype is not None and base_dtype.itemsize < 4
    switched = any(getattr(args, name) != getattr(CancellationConfig, name) for name in CancellationConfig.__annotations__)
    way = "" if switched else ", so it trains as in TRL, on what padding has changed"
    cast = args.use_transformers_continuous_batching and args.fp32_adapters
    return [
        (lora_dropout > 0, "error", f"lora_dropout={lora_dropout} makes sampled and trained log-probabilities differ, since generation runs in train mode; set lora_dropout=0."),
        (quantized and args.use_vllm, "error", "use_vllm=True merges adapters into the 4-bit weights at each sync and so re-quantizes the base; use use_vllm=False, or an unquantized base."),
        (args.use_vllm and rounded, "error", f"use_vllm=True merges adapters into the {str(base_dtype).removeprefix('torch.')} base and takes them out again at each sync, whose rounding moves a base that FSDP or DeepSpeed shards; load it in float32, leave it whole on each process, or set use_vllm=False."),
        (cast, "error", "use_transformers_continuous_batching=True casts all weights in place at each generation, adapters too, so fp32_adapters=True would not hold; set one of them to False."),
        (quantized and not args.fp32_adapters, "warning", "fp32_adapters=False leaves the adapters of a quantized model in bfloat16, in which small opposing gradients are lost rather than cancelled; set fp32_adapters=True."),
        (padding_changes, "error" if switched else "warning", f"{kind} computes other logits behind padding than without, and train_dataset has prompts of unequal length, which TRL pads{way}: take prompts of one length in tokens, or a model with relative positions and an attention mask."),
    ]


# fmt: on
# -- a run as a whole -----------------------------------------------------------------------------------------------


def check_run(config: RunConfig) -> None:
    """Check a `RunConfig` wholly, with its policy's and task's names, and write nothing.

    A model or data set of a hub is not asked for: `load_policy` and `get_task` say whether that is
    there. Raises ValueError, one sentence that names the field, its value and what would be valid.
    """
    for problem in validate(config):
        if problem.severity == "error":
            raise ValueError(problem.sentence)
    _check_policy(config.policy)
    family, _, rest = config.task.partition(":")
    if family == "hub" and not Path(rest).expanduser().exists():
        return
    where = f"task={show_value(config.task)}" + f" with task_options={config.task_options}" * bool(
        config.task_options
    )
    try:
        task = get_task(config.task, **config.task_options)
        if family != "gym" and config.num_prompts + config.eval_prompts <= QUICKLY_DRAWN:
            task.split(config.num_prompts, config.eval_prompts, config.seed)
    except ValueError as refusal:
        if type(refusal) not in (ValueError, InvalidValue) or str(refusal).startswith("task"):
            raise  # of several lines, one a row, or with the task's name
        raise reworded(refusal, f"{where}: {refusal}") from None
    except (TypeError, OSError, ArithmeticError, LookupError, AttributeError) as refusal:
        raise ValueError(f"{where} can't be made: {one_line(refusal)}.") from None


def validate(config: RunConfig) -> list[Problem]:
    """List what `problems` and TRL's own config find wrong with a run's settings; model and task
    are not looked at.

    Of several processes TRL's config would wait for all, so there the trainer itself refuses what
    makes no run.
    """
    # what TRL and transformers would not say
    if "max_steps" not in config.trainer:
        missing = "trainer.max_steps is missing; set it to a positive number of optimizer steps."
        return [Problem("error", missing)]
    if config.quantization and not config.lora:
        frozen = f"quantization={config.quantization!r} freezes all weights, so lora={config.lora}"
        return [Problem("error", f"{frozen} leaves nothing to train; set lora to a rank, e.g. 8.")]
    if config.dtype not in ("auto", "float32") and not config.lora:
        lost = f"dtype={config.dtype!r} is for frozen weights, and without adapters all are trained"
        advice = "set lora to a rank, or dtype to auto, as trained weights lose small updates."
        return [Problem("error", f"{lost}; {advice}")]
    if process_count() > 1:
        return []
    try:
        args = trainer_args(config, torch.device("cpu"), "unused")
        rule = credit_call(args.advantage_estimator)
    except Exception as refusal:  # of TRL, transformers, accelerate, or a rule of one's own
        sentence = explain_error(refusal).rstrip(".")
        named = [
            f"{key}={show_value(value)}"
            for key, value in config.trainer.items()
            if re.search(rf"\b{key}\b", sentence)
        ]
        return [Problem("error", f"{sentence} ({', '.join(named)})." if named else f"{sentence}.")]
    few = args.generation_batch_size // args.num_generations
    prompts = (
        f"num_prompts={config.num_prompts} must be at least {few}, the prompts of a generation"
        " batch."
    )
    found = [Problem("error", prompts)] if config.num_prompts < few else []
    return found + problems(args, quantized=bool(config.quantization), rule=rule)


def _check_policy(name: str) -> None:
    try:
        check_name(name)
    except (ValueError, OSError, RuntimeError) as refusal:
        # the latter two: a name that is too long, a user's home that is not there
        sentence = f"policy={show_value(name)}: {explain_error(refusal)}"
        raise InvalidValue("policy", name, "a policy that is there", sentence) from None
