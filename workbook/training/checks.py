"""Settings that would turn an intervention into a silent no-op, or break it, named before anything is trained.

Each rule is one sentence that names the field, its value and what would be valid. `problems` is pure: it takes a config and
a few facts about the model and the launch, and returns what is wrong; the trainer raises on errors and warns on the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbook.theory.choices import CLIPPINGS, ESTIMATORS, STRATEGIES, TRANSFORM_INPUTS, TRANSFORMS, WHOLE_GROUP
from workbook.training.loss_checks import Problem, loss, measuring, reweighting


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
    """
    unknown = list(_unknown_values(args))
    if unknown:  # the other rules would only repeat it
        return unknown
    return [
        *measuring(args, aux_loss, sharded),
        *_batching(args, world_size),
        *reweighting(args),
        *_estimator(args),
        *loss(args),
        *_model(args, lora_dropout, quantized, base_dtype, sharded),
        *_padding(padding_changes, kind),
        *_checkpoints(args),
    ]


def _unknown_values(args) -> Iterator[Problem]:
    for name, valid in {
        "batching": STRATEGIES,
        "advantage_estimator": (*ESTIMATORS, "counterfactual"),
        "group_transform": (None, *TRANSFORMS),
        "transform_on": TRANSFORM_INPUTS,
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


def _model(args, lora_dropout: float, quantized: bool, base_dtype, sharded: bool) -> Iterator[Problem]:
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
    elif args.use_vllm and sharded and base_dtype is not None and base_dtype.itemsize < 4:
        name = str(base_dtype).removeprefix("torch.")
        yield Problem(
            "error",
            f"use_vllm=True merges adapters into the {name} base and takes them out again at each sync, whose rounding moves a base that FSDP or "
            "DeepSpeed shards; load it in float32, leave it whole on each process, or set use_vllm=False.",
        )
    if args.use_transformers_continuous_batching and (args.bf16 or args.fp16 or args.fp32_adapters):
        yield Problem(
            "error",
            "use_transformers_continuous_batching=True casts all weights in place at each generation, those in training too, to what bf16="
            f"{args.bf16} or fp16={args.fp16} names, whatever fp32_adapters={args.fp32_adapters} says; set it to False, or these three.",
        )
    if quantized and not args.fp32_adapters:
        yield Problem(
            "warning",
            "fp32_adapters=False leaves the adapters of a quantized model in bfloat16, in which small opposing gradients are lost rather than cancelled; set fp32_adapters=True.",
        )


def _padding(padding_changes: bool, kind: str) -> Iterator[Problem]:
    if padding_changes:
        yield Problem(
            "error",
            f"{kind} computes other logits behind padding than without, and train_dataset has prompts of unequal length, which TRL pads: "
            "take prompts of one length in tokens, or a model with relative positions and an attention mask.",
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
