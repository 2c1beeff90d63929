"""Rules for the loss: what would undo a group transform or clipping, and what measure_cancellation can't measure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workbook.theory.choices import TRANSFORM_INPUTS, TRANSFORMS, WHOLE_GROUP

# Loss types whose surrogate is min(r A, clip(r) A): the ones a reweighted surrogate can stand in for.
CLIPPED_LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo")
# Loss types that add up what a sequence's one ratio pushes, so that per-token advantages would be averaged over it.
AVERAGING_LOSSES = (*CLIPPED_LOSSES, "sapo", "luspo")
# Optimizers that step inside the backward pass and leave no gradient to read.
STEPPING_INSIDE = ("lomo", "layerwise")


class Problem(NamedTuple):
    severity: str  # "error" | "warning"
    sentence: str


def reweights(args) -> bool:
    """Whether the trainer writes the surrogate's weights itself, in place of TRL's."""
    return args.group_transform is not None or args.clipping == "symmetric" or _tokens_of_sequences(args)


def _tokens_of_sequences(args) -> bool:
    """Whether each token has its own advantage under one ratio per sequence."""
    return (
        args.advantage_estimator == "counterfactual"
        and args.importance_sampling_level == "sequence"
        and args.loss_type in AVERAGING_LOSSES
    )


def measuring(args, aux_loss: bool, sharded: bool) -> Iterator[Problem]:
    """Rules for measure_cancellation, which splits the gradient that training sums into its two signs."""
    if not args.measure_cancellation:
        return
    setting = f"measure_cancellation={args.measure_cancellation}"
    for name, value in {
        "beta": args.beta,
        "entropy_coef": args.entropy_coef,
        "use_adaptive_entropy": args.use_adaptive_entropy,
    }.items():
        if value:
            yield Problem(
                "error",
                f"{setting} would count the pull of {name}={value} as a push of either sign; set "
                f"{name}={type(value)(0)}, or measure_cancellation=0.",
            )
    if aux_loss:
        yield Problem(
            "error",
            f"{setting} would count the pull of the experts' load-balancing loss as a push of either sign; set "
            "router_aux_loss_coef=0.0, or measure_cancellation=0.",
        )
    if sharded:
        yield Problem(
            "error",
            f"{setting} reads whole weights and gradients, which FSDP and DeepSpeed shard; set measure_cancellation=0.",
        )
    if args.gradient_checkpointing and (args.gradient_checkpointing_kwargs or {}).get("use_reentrant"):
        yield Problem(
            "error",
            f"{setting} takes gradients of chosen tokens, which "
            f"gradient_checkpointing_kwargs={{'use_reentrant': True}} can't; set it to False.",
        )
    optim = getattr(args.optim, "value", args.optim)
    if any(part in optim for part in STEPPING_INSIDE):
        yield Problem(
            "error",
            f"{setting} reads the gradient that the optimizer takes, of which optim={optim!r} keeps none; use "
            "'adamw_torch', or measure_cancellation=0.",
        )


def reweighting(args) -> Iterator[Problem]:
    """Rules for what replaces the surrogate's weights: a transform, symmetric clipping, tokens of a sequence ratio."""
    setting = f"group_transform={args.group_transform!r}" if args.group_transform else f"clipping={args.clipping!r}"
    if args.group_transform is None and args.transform_on != TRANSFORM_INPUTS[0]:
        yield Problem(
            "warning",
            f"transform_on={args.transform_on!r} is ignored without a group_transform; set one of "
            f"{', '.join(TRANSFORMS)}.",
        )
    if not reweights(args):
        return
    if args.group_transform is None and args.clipping == "asymmetric":
        setting = "advantage_estimator='counterfactual' with importance_sampling_level='sequence'"
    spg, accum = args.steps_per_generation, args.gradient_accumulation_steps
    corrected = args.group_transform and args.use_vllm and args.vllm_importance_sampling_correction
    on_policy = accum % (spg * args.num_iterations) == 0
    if on_policy and not corrected and not setting.startswith("advantage_estimator"):
        yield Problem(
            "error",
            f"{setting} can't have an effect: with gradient_accumulation_steps={accum}, steps_per_generation={spg} "
            "and num_iterations="
            f"{args.num_iterations} every ratio is exactly 1; set steps_per_generation above "
            "gradient_accumulation_steps, or num_iterations above 1.",
        )
    if args.loss_type not in CLIPPED_LOSSES:
        yield Problem(
            "error",
            f"{setting} is defined for the clipped surrogate, not for loss_type={args.loss_type!r}; use 'grpo', "
            "'dr_grpo' or 'dapo'.",
        )
    if args.delta is not None:
        yield Problem(
            "error",
            f"{setting} replaces the clipped surrogate, so delta={args.delta} would be ignored; set delta=None.",
        )
    if args.off_policy_mask_threshold is not None:
        yield Problem(
            "error",
            f"{setting} replaces the log-ratios that off_policy_mask_threshold={args.off_policy_mask_threshold} "
            "reads; set it to None.",
        )
    if args.use_bias_correction_kl and args.beta:
        yield Problem(
            "error",
            f"{setting} sets the ratio to 1 inside the loss, which use_bias_correction_kl=True reads; set it to False.",
        )
    if args.group_transform:
        yield from _transform(args, setting)


def _transform(args, setting: str) -> Iterator[Problem]:
    """Rules for group transforms: what must not come between them and the gradient, and what they need of a batch."""
    groups, spg = args.num_generations, args.steps_per_generation
    if args.top_entropy_quantile < 1:
        yield Problem(
            "error",
            f"{setting} makes a group's weights cancel, which top_entropy_quantile={args.top_entropy_quantile} "
            "undoes by dropping tokens of "
            "some of its rollouts; set it to 1.0.",
        )
    if args.mask_truncated_completions and args.group_transform == "min_replace":
        yield Problem(
            "error",
            f"{setting} cancels where a group's advantages sum to 0, but mask_truncated_completions=True takes "
            "rollouts out of that sum; set "
            "it to False, or use group_transform='advantage_orthogonal', which projects on what is left.",
        )
    if args.loss_type == "grpo":
        yield Problem(
            "warning",
            f"loss_type='grpo' divides by each rollout's own length after {setting}, so a group of unequal lengths "
            "doesn't cancel; use "
            "'dr_grpo' or 'dapo'.",
        )
    clipped = args.transform_on == "clipped_weights"
    if args.clipping != "asymmetric" and not clipped:
        yield Problem(
            "error",
            f"{setting} bounds every ratio of a group by the clip range already, so clipping={args.clipping!r} "
            "would be ignored; leave it at "
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
            f"{setting} needs whole groups in each micro-batch, but "
            f"per_device_train_batch_size={args.per_device_train_batch_size} is not "
            f"a multiple of num_generations={groups}; make it a multiple of {groups}.",
        )
    if args.batching not in WHOLE_GROUP and spg > 1:
        yield Problem(
            "error",
            f"{setting} needs whole groups in each micro-batch, which batching={args.batching!r} scatters; use "
            f"{' or '.join(WHOLE_GROUP)}.",
        )


def loss(args) -> Iterator[Problem]:
    """Rules for loss types and masks, whatever else is set."""
    if args.loss_type == "cispo" and (args.epsilon_high is None or args.epsilon_high < 1):
        highest = args.epsilon if args.epsilon_high is None else args.epsilon_high
        yield Problem(
            "error",
            "loss_type='cispo' holds each ratio below epsilon_high itself, not 1 + epsilon_high, and epsilon_high="
            f"{args.epsilon_high} makes that {highest}, so every weight near 1 would be {highest}; set epsilon_high to "
            "1 or more, e.g. 5.0.",
        )
    if args.delta is not None and args.delta <= 1 + args.epsilon:
        yield Problem(
            "error",
            f"delta={args.delta} bounds each ratio below the clip range's own end, 1 + epsilon = {1 + args.epsilon:g}, "
            f"and so cuts pushes near a ratio of 1; set it above {1 + args.epsilon:g}, e.g. 2.0, or to None.",
        )
    if args.mask_truncated_completions and args.batching != "shuffled":
        yield Problem(
            "warning",
            "mask_truncated_completions=True takes rollouts out of their groups, whose advantages then no longer "
            "sum to 0 under batching="
            f"{args.batching!r}; read the logged cancellation/batch_residual, or set it to False.",
        )
