"""Each setting that would break an intervention, or make it a silent no-op, is named in one
sentence.
"""

from dataclasses import fields

import pytest
import torch
from refusals import refused

from workbook.training.checks import problems
from workbook.training.config import CancellationConfig

# 4 optimizer steps per generation batch of 4 x 16 rollouts in groups of 8, whole groups everywhere:
# nothing to complain about.
SOUND = {"num_generations": 8, "per_device_train_batch_size": 16, "steps_per_generation": 4}
SOUND |= {"gradient_accumulation_steps": 1, "loss_type": "dr_grpo", "max_grad_norm": 0.0}
SOUND |= {
    "output_dir": "unused",
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "save_strategy": "no",
}
QUERY = {"batching": "query_preserved"}
MIN = QUERY | {"group_transform": "min_replace"}
MEASURED = {"measure_cancellation": 1}
SPREAD = {"advantage_estimator": "prefix_credit", "importance_sampling_level": "sequence"}
ON_WEIGHTS = {"transform_on": "clipped_weights", "importance_sampling_level": "sequence"}

# transformers renames it
CHECKPOINTING = next(
    name
    for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
    if name in {field.name for field in fields(CancellationConfig)}
)
REENTRANT = {"gradient_checkpointing": True}
REENTRANT["gradient_checkpointing_kwargs"] = {"use_reentrant": True}
REENTRANT[CHECKPOINTING] = {"use_reentrant": True}
MASKED = {"mask_truncated_completions": True}
CONTINUOUS = {"use_transformers_continuous_batching": True, "fp32_adapters": True}

CASES = [
    # settings, launch, severity, then the field that should change, and what it can take
    ({"batching": "sorted"}, {}, "error", "batching", "sign_partitioned"),
    ({"advantage_estimator": "gae"}, {}, "error", "advantage_estimator", "rloo"),
    ({"group_transform": "mean"}, {}, "error", "group_transform", "advantage_orthogonal"),
    ({"clipping": "none"}, {}, "error", "clipping", "symmetric"),
    (MIN | {"transform_on": "ratios"}, {}, "error", "transform_on", "clipped_weights"),
    ({"transform_on": "clipped_weights"}, {}, "warning", "transform_on", "'clamped_ratios'"),
    (
        MIN | ON_WEIGHTS | {"advantage_estimator": "prefix_credit"},
        {},
        "error",
        "transform_on",
        "'clamped_ratios'",
    ),
    (
        {"batching": "reward_balanced", "steps_per_generation": 1},
        {},
        "error",
        "steps_per_generation",
        "2 or a higher multiple of 1",
    ),
    (
        QUERY | {"gradient_accumulation_steps": 4},
        {},
        "error",
        "steps_per_generation",
        "8 or a higher multiple of 4",
    ),
    (
        QUERY | {"gradient_accumulation_steps": 3},
        {},
        "error",
        "steps_per_generation",
        "a multiple of gradient_accumulation_steps=3",
    ),
    (
        QUERY | {"per_device_train_batch_size": 4},
        {},
        "error",
        "per_device_train_batch_size",
        "such that a mini-batch has a multiple of 8 rollouts",
    ),
    (
        {"per_device_train_batch_size": 3},
        {"world_size": 2},
        "error",
        "per_device_train_batch_size",
        "a multiple of 8",
    ),
    (QUERY | {"loss_type": "bnpo"}, {}, "error", "loss_type", "'grpo' or 'dr_grpo'"),
    (QUERY | {"max_grad_norm": 1.0}, {}, "warning", "max_grad_norm", "0"),
    (
        MIN | {"gradient_accumulation_steps": 4, "batching": "shuffled"},
        {},
        "error",
        "steps_per_generation",
        "above gradient_accumulation_steps=4, or num_iterations above 1",
    ),
    (
        {"clipping": "symmetric", "steps_per_generation": 1},
        {},
        "error",
        "steps_per_generation",
        "above gradient_accumulation_steps=1, or num_iterations above 1",
    ),
    (MIN | {"loss_type": "cispo"}, {}, "error", "loss_type", "'grpo', 'dr_grpo' or 'dapo'"),
    (MIN | {"clipping": "symmetric"}, {}, "error", "clipping", "'asymmetric'"),
    (MIN | {"delta": 2.0}, {}, "error", "delta", "None"),
    (MIN | {"off_policy_mask_threshold": 0.5}, {}, "error", "off_policy_mask_threshold", "None"),
    (
        MIN | {"beta": 0.1, "use_bias_correction_kl": True},
        {},
        "error",
        "use_bias_correction_kl",
        "False",
    ),
    (
        MIN | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        {},
        "error",
        "per_device_train_batch_size",
        "a multiple of 8",
    ),
    (MIN | {"batching": "shuffled"}, {}, "error", "batching", "query_preserved_reward_balanced"),
    (
        {"advantage_estimator": "rloo", "multi_objective_aggregation": "normalize_then_sum"},
        {},
        "error",
        "multi_objective_aggregation",
        "'sum_then_normalize'",
    ),
    (
        {"advantage_estimator": "rloo", "scale_rewards": "batch"},
        {},
        "warning",
        "scale_rewards",
        "'group'",
    ),
    (
        {"advantage_estimator": "positive_only", "batching": "sign_partitioned"},
        {},
        "error",
        "batching",
        "'shuffled' or 'query_preserved'",
    ),
    ({}, {"lora_dropout": 0.05}, "error", "lora_dropout", "0"),
    ({"use_vllm": True, "fp32_adapters": True}, {"quantized": True}, "error", "use_vllm", "False"),
    (
        {"use_vllm": True},
        {"base_dtype": torch.bfloat16, "sharded": True},
        "error",
        "use_vllm",
        "False",
    ),
    (CONTINUOUS, {"quantized": True}, "error", "use_transformers_continuous_batching", "False"),
    (CONTINUOUS, {}, "error", "use_transformers_continuous_batching", "False"),
    (MEASURED | {"beta": 0.1}, {}, "error", "beta", "0.0"),
    (MEASURED | {"entropy_coef": 0.01}, {}, "error", "entropy_coef", "0.0"),
    (MEASURED | {"use_adaptive_entropy": True}, {}, "error", "use_adaptive_entropy", "False"),
    (MEASURED, {"aux_loss": True}, "error", "router_aux_loss_coef", "0.0"),
    (MEASURED, {"sharded": True}, "error", "measure_cancellation", "0"),
    (MEASURED | REENTRANT, {}, "error", CHECKPOINTING, "{'use_reentrant': False}"),
    (
        MEASURED | {"optim": "lomo"},
        {},
        "error",
        "optim",
        "one that keeps the gradient, such as 'adamw_torch',",
    ),
    ({"record_tokens": True}, {}, "error", "record_tokens", "a number of optimizer steps, or 0"),
    (
        {},
        {"padding_changes": True, "kind": "GPT2"},
        "warning",
        "train_dataset",
        "prompts of one length in tokens",
    ),
    ({"record_tokens": 2}, {"sharded": True}, "error", "record_tokens", "0"),
    (MIN | {"top_entropy_quantile": 0.5}, {}, "error", "top_entropy_quantile", "1.0"),
    (MIN | MASKED, {}, "error", "mask_truncated_completions", "False"),
    (QUERY | MASKED, {}, "warning", "mask_truncated_completions", "False"),
    (MIN | {"loss_type": "grpo"}, {}, "warning", "loss_type", "'dr_grpo' or 'dapo'"),
    (SPREAD | {"loss_type": "sapo"}, {}, "error", "loss_type", "'grpo', 'dr_grpo' or 'dapo'"),
    (SPREAD | {"loss_type": "luspo"}, {}, "error", "loss_type", "'grpo', 'dr_grpo' or 'dapo'"),
    (SPREAD | {"delta": 2.0}, {}, "error", "delta", "None"),
    ({}, {"quantized": True}, "warning", "fp32_adapters", "True"),
    ({"save_strategy": "steps", "save_steps": 6}, {}, "warning", "save_steps", "a multiple of 4"),
]


@pytest.mark.parametrize(
    ("settings", "launch", "severity", "field", "valid"), CASES, ids=lambda value: None
)
def test_a_problem_knows_its_field_its_value_and_what_would_be_valid(
    settings, launch, severity, field, valid
):
    args = CancellationConfig(**SOUND)
    # afterwards: TRL's constructor refuses some of them for one process
    for name, value in settings.items():
        setattr(args, name, value)
    faults = problems(args, **launch)
    matching = [
        fault
        for fault in faults
        if (fault.severity, fault.field) == (severity, field) and valid in str(fault.valid)
    ]
    assert matching, faults
    for fault in matching:
        if field in launch or hasattr(args, field):
            assert fault.value == launch.get(field, getattr(args, field, None))
        assert field in fault.sentence
        assert fault.sentence.endswith(".")
        assert "\n" not in fault.sentence
        with refused(field, fault.value, fault.valid):
            raise fault.refusal()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        QUERY,
        MIN,
        MIN | MEASURED | {"record_tokens": 5},
        QUERY | {"clipping": "symmetric"},
        {"batching": "sign_partitioned"},
        SPREAD | MEASURED,
        SPREAD | {"steps_per_generation": 1},
        SPREAD | {"loss_type": "cispo", "epsilon_high": 5.0},
        QUERY
        | {
            "group_transform": "advantage_orthogonal",
            "beta": 0.1,
            "use_bias_correction_kl": False,
        },
    ],
)
@pytest.mark.parametrize("world_size", [1, 2])
def test_sound_settings_pass(settings, world_size):
    assert (
        problems(CancellationConfig(**SOUND | settings), world_size=world_size, quantized=False)
        == []
    )
