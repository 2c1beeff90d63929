"""Settings that would turn an intervention into a silent no-op, or break it, named before anything is trained.

Each rule is one sentence that names the field, its value and what would be valid. `problems` is pure: it takes a config and
a few facts about the model and the launch, and returns what is wrong; the trainer raises on errors and warns on the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workbook.theory.advantages import ESTIMATORS
from workbook.theory.batching import STRATEGIES

TRANSFORMS = ("min_replace", "advantage_orthogonal")
TRANSFORMED = ("clamped_ratios", "clipped_weights")
CLIPPINGS = ("asymmetric", "symmetric")
# Loss types whose surrogate is min(r A, clip(r) A): the ones a reweighted surrogate can stand in for.
CLIPPED_LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo")
WHOLE_GROUP = ("query_preserved", "query_preserved_reward_balanced")


class Problem(NamedTuple):
    severity: str  # "error" | "warning"
    sentence: str


def problems(args, *, world_size: int = 1, lora_dropout: float = 0.0, quantized: bool = False) -> list[Problem]:
    """List what is wrong with `args` (a CancellationConfig) for a launch of `world_size` processes.

    Args:
        args: the config; only read.
        world_size: number of training processes.
        lora_dropout: largest dropout of the model's adapters, 0 without adapters.
        quantized: whether the base weights are 4-bit or 8-bit.
    """
    unknown = list(_unknown_values(args))
    if unknown:  # the other rules would only repeat it
        return unknown
    found = [
        *_batching(args, world_size),
        *_reweighting(args),
        *_estimator(args),
        *_model(args, lora_dropout, quantized),
    ]
    return found + list(_checkpoints(args))


def _unknown_values(args) -> Iterator[Problem]:
    for name, valid in {
        "batching": STRATEGIES,
        "advantage_estimator": (*ESTIMATORS, "counterfactual"),
        "group_transform": (None, *TRANSFORMS),
        "transform_on": TRANSFORMED,
        "clipping": CLIPPINGS,
    }.items():
        value = getattr(args, name)
        if value not in valid:
            yield Problem("error", f"{name}={value!r} is unknown; valid values are {', '.join(map(str, valid))}.")
    if not isinstance(args.measure_cancellation, int) or args.measure_cancellation < 0:
        yield Problem(
            "error",
            f"measure_cancellation={args.measure_cancellation!r} must be a number of generation batches, or 0 for never.",
        )
    elif args.measure_cancellation and args.beta:
        yield Problem(
            "error",
            f"measure_cancellation={args.measure_cancellation} would count the pull of beta={args.beta} as a push of either sign; set one of them to 0.",
        )


def _batching(args, world_size: int) -> Iterator[Problem]:
    groups, spg, accum = args.num_generations, args.steps_per_generation, args.gradient_accumulation_steps
    local = args.per_device_train_batch_size * spg
    if world_size > 1 and local % groups:
        yield Problem(
            "error",
            f"per_device_train_batch_size * steps_per_generation = {local} is not a multiple of num_generations={groups}, so a "
            f"group would straddle two of the {world_size} processes; make it a multiple of {groups}.",
        )
    if args.batching == "shuffled":
        return
    if spg <= accum:
        yield Problem(
            "error",
            f"batching={args.batching!r} can't have an effect with steps_per_generation={spg} and gradient_accumulation_steps="
            f"{accum}, since each generation batch is one optimizer step; set steps_per_generation to {2 * accum} or a higher multiple of {accum}.",
        )
    elif spg % accum:
        yield Problem(
            "error",
            f"steps_per_generation={spg} is not a multiple of gradient_accumulation_steps={accum}, so an optimizer mini-batch would "
            f"mix two generation batches and batching={args.batching!r} would not hold; make it a multiple of {accum}.",
        )
    minibatch = args.per_device_train_batch_size * accum * world_size
    if args.batching in WHOLE_GROUP and minibatch % groups:
        yield Problem(
            "error",
            f"batching={args.batching!r} needs whole groups in each optimizer mini-batch, but its {minibatch} rollouts are not a "
            f"multiple of num_generations={groups}; make per_device_train_batch_size * gradient_accumulation_steps * processes a multiple of {groups}.",
        )
    if args.loss_type == "bnpo":
        yield Problem(
            "error",
            f"loss_type='bnpo' divides by each micro-batch's own tokens, so batching={args.batching!r} would change the step size as "
            "well as the composition; use loss_type 'grpo' or 'dr_grpo'.",
        )
    if args.max_grad_norm and args.max_grad_norm > 0:
        yield Problem(
            "warning",
            f"max_grad_norm={args.max_grad_norm} rescales one-signed mini-batches most, which confounds batching={args.batching!r}; set "
            "max_grad_norm=0 for a comparison, or read the logged cancellation/grad_clipped beside it.",
        )


def _reweighting(args) -> Iterator[Problem]:
    """Rules for what replaces the surrogate's weights: a group transform or symmetric clipping."""
    setting = f"group_transform={args.group_transform!r}" if args.group_transform else f"clipping={args.clipping!r}"
    if args.group_transform is None and args.transform_on != TRANSFORMED[0]:
        yield Problem(
            "warning",
            f"transform_on={args.transform_on!r} is ignored without a group_transform; set one of {', '.join(TRANSFORMS)}.",
        )
    if args.group_transform is None and args.clipping == "asymmetric":
        return
    groups, spg, accum = args.num_generations, args.steps_per_generation, args.gradient_accumulation_steps
    if accum % (spg * args.num_iterations) == 0:
        yield Problem(
            "error",
            f"{setting} can't have an effect: with gradient_accumulation_steps={accum}, steps_per_generation={spg} and num_iterations="
            f"{args.num_iterations} every ratio is exactly 1; set steps_per_generation above gradient_accumulation_steps, or num_iterations above 1.",
        )
    if args.loss_type not in CLIPPED_LOSSES:
        yield Problem(
            "error",
            f"{setting} is defined for the clipped surrogate, not for loss_type={args.loss_type!r}; use 'grpo', 'dr_grpo' or 'dapo'.",
        )
    if args.delta is not None:
        yield Problem(
            "error",
            f"{setting} replaces the clipped surrogate, so delta={args.delta} would be ignored; set delta=None.",
        )
    if args.off_policy_mask_threshold is not None:
        yield Problem(
            "error",
            f"{setting} replaces the log-ratios that off_policy_mask_threshold={args.off_policy_mask_threshold} reads; set it to None.",
        )
    if args.use_bias_correction_kl and args.beta:
        yield Problem(
            "error",
            f"{setting} sets the ratio to 1 inside the loss, which use_bias_correction_kl=True reads; set it to False.",
        )
    if args.group_transform is None:
        return
    clipped = args.transform_on == "clipped_weights"
    if args.clipping != "asymmetric" and not clipped:
        yield Problem(
            "error",
            f"{setting} bounds every ratio of a group by the clip range already, so clipping={args.clipping!r} would be ignored; leave it at "
            "'asymmetric', or set transform_on='clipped_weights'.",
        )
    if clipped and args.importance_sampling_level == "sequence" and args.advantage_estimator == "counterfactual":
        yield Problem(
            "error",
            f"{setting} on clipped_weights of importance_sampling_level='sequence' needs one weight per rollout, but "
            "advantage_estimator='counterfactual' clips token by token; use transform_on='clamped_ratios'.",
        )
    if args.per_device_train_batch_size % groups:
        yield Problem(
            "error",
            f"{setting} needs whole groups in each micro-batch, but per_device_train_batch_size={args.per_device_train_batch_size} is not "
            f"a multiple of num_generations={groups}; make it a multiple of {groups}.",
        )
    if args.batching not in WHOLE_GROUP and spg > 1:
        yield Problem(
            "error",
            f"{setting} needs whole groups in each micro-batch, which batching={args.batching!r} scatters; use {' or '.join(WHOLE_GROUP)}.",
        )


def _estimator(args) -> Iterator[Problem]:
    estimator = args.advantage_estimator
    if estimator == "grpo":
        return
    if args.multi_objective_aggregation != "sum_then_normalize":
        yield Problem(
            "error",
            f"advantage_estimator={estimator!r} works on the summed reward, not with multi_objective_aggregation="
            f"{args.multi_objective_aggregation!r}; use 'sum_then_normalize'.",
        )
    if args.scale_rewards not in ("group", True):
        yield Problem(
            "warning",
            f"scale_rewards={args.scale_rewards!r} is ignored with advantage_estimator={estimator!r}, which defines its own scale; leave it at 'group'.",
        )
    if estimator in ("positive_only", "negative_only") and args.batching in ("sign_partitioned", "reward_balanced"):
        yield Problem(
            "error",
            f"advantage_estimator={estimator!r} leaves rollouts of one sign only, so batching={args.batching!r} has nothing to arrange; use "
            "shuffled or query_preserved.",
        )


def _model(args, lora_dropout: float, quantized: bool) -> Iterator[Problem]:
    if lora_dropout > 0:
        yield Problem(
            "error",
            f"lora_dropout={lora_dropout} makes sampled and trained log-probabilities differ, since generation runs in train mode; set lora_dropout=0.",
        )
    if quantized and args.use_vllm:
        yield Problem(
            "error",
            "use_vllm=True merges adapters into the 4-bit weights at each sync and so re-quantizes the base; use use_vllm=False, or an unquantized base.",
        )
    if quantized and args.fp32_adapters and args.use_transformers_continuous_batching:
        yield Problem(
            "error",
            "use_transformers_continuous_batching=True casts the adapters back to bfloat16 at each generation, which undoes fp32_adapters=True; set one of them to False.",
        )
    if quantized and not args.fp32_adapters:
        yield Problem(
            "warning",
            "fp32_adapters=False leaves the adapters of a quantized model in bfloat16, in which small opposing gradients are lost rather than cancelled; set fp32_adapters=True.",
        )


def _checkpoints(args) -> Iterator[Problem]:
    accum, window = args.gradient_accumulation_steps, args.steps_per_generation * args.num_iterations
    boundary = max(1, window // accum)
    strategy = getattr(args.save_strategy, "value", args.save_strategy)
    if strategy == "steps" and args.save_steps % boundary:
        yield Problem(
            "warning",
            f"save_steps={args.save_steps} falls inside a generation batch, whose rollouts a checkpoint does not hold, so a resumed run would "
            f"differ; use a multiple of {boundary}.",
        )
