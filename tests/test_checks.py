"""Each setting that would break an intervention, or make it a silent no-op, is named in one
sentence.
"""

import pytest
import torch

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

CASES = [
    # settings, launch, severity, words the sentence must hold: the field, its value, what is valid
    ({"batching": "sorted"}, {}, "error", ["batching='sorted'", "shuffled", "sign_partitioned"]),
    ({"advantage_estimator": "gae"}, {}, "error", ["advantage_estimator='gae'", "rloo"]),
    ({"group_transform": "mean"}, {}, "error", ["group_transform='mean'", "min_replace", "advantage_orthogonal"]),
    ({"clipping": "none"}, {}, "error", ["clipping='none'", "symmetric"]),
    (MIN | {"transform_on": "ratios"}, {}, "error", ["transform_on='ratios'", "clamped_ratios", "clipped_weights"]),
    ({"transform_on": "clipped_weights"}, {}, "warning", ["transform_on='clipped_weights'", "min_replace"]),
    (MIN | ON_WEIGHTS | {"advantage_estimator": "prefix_credit"}, {}, "error", ["prefix_credit", "'clamped_ratios'"]),
    ({"batching": "reward_balanced", "steps_per_generation": 1}, {}, "error", ["one optimizer step", "steps_per_generation=1"]),
    (QUERY | {"gradient_accumulation_steps": 4}, {}, "error", ["one optimizer step", "gradient_accumulation_steps=4"]),
    (QUERY | {"gradient_accumulation_steps": 3}, {}, "error", ["steps_per_generation=4", "multiple of 3"]),
    (QUERY | {"per_device_train_batch_size": 4}, {}, "error", ["whole groups", "num_generations=8", "4 rollouts"]),
    ({"per_device_train_batch_size": 3}, {"world_size": 2}, "error", ["12 is not", "straddle", "multiple of 8"]),
    (QUERY | {"loss_type": "bnpo"}, {}, "error", ["loss_type='bnpo'", "dr_grpo"]),
    (QUERY | {"max_grad_norm": 1.0}, {}, "warning", ["max_grad_norm=1.0", "confounds", "grad_clipped"]),
    (MIN | {"gradient_accumulation_steps": 4, "batching": "shuffled"}, {}, "error", ["ratio is exactly 1", "num_iterations=1"]),
    ({"clipping": "symmetric", "steps_per_generation": 1}, {}, "error", ["clipping='symmetric'", "ratio is exactly 1"]),
    (MIN | {"loss_type": "cispo"}, {}, "error", ["loss_type='cispo'", "grpo"]),
    (MIN | {"clipping": "symmetric"}, {}, "error", ["clipping='symmetric'", "ignored", "'asymmetric'"]),
    (MIN | {"delta": 2.0}, {}, "error", ["delta=2.0", "None"]),
    (MIN | {"off_policy_mask_threshold": 0.5}, {}, "error", ["off_policy_mask_threshold=0.5", "None"]),
    (MIN | {"beta": 0.1, "use_bias_correction_kl": True}, {}, "error", ["use_bias_correction_kl=True"]),
    (MIN | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}, {}, "error", ["per_device_train_batch_size=4", "multiple of 8"]),
    (MIN | {"batching": "shuffled"}, {}, "error", ["batching='shuffled'", "query_preserved"]),
    ({"advantage_estimator": "rloo", "multi_objective_aggregation": "normalize_then_sum"}, {}, "error", ["sum_then_normalize"]),
    ({"advantage_estimator": "rloo", "scale_rewards": "batch"}, {}, "warning", ["scale_rewards='batch'", "ignored"]),
    ({"advantage_estimator": "positive_only", "batching": "sign_partitioned"}, {}, "error", ["one sign only", "shuffled"]),
    ({}, {"lora_dropout": 0.05}, "error", ["lora_dropout=0.05", "lora_dropout=0"]),
    ({"use_vllm": True, "fp32_adapters": True}, {"quantized": True}, "error", ["use_vllm=True", "use_vllm=False"]),
    ({"use_vllm": True}, {"base_dtype": torch.bfloat16, "sharded": True}, "error", ["use_vllm=True", "bfloat16", "float32"]),
    ({"use_transformers_continuous_batching": True, "fp32_adapters": True}, {"quantized": True}, "error", ["use_transformers_continuous_batching=True"]),
    ({"use_transformers_continuous_batching": True, "fp32_adapters": True}, {}, "error", ["fp32_adapters=True", "set one of them to False"]),
    (MEASURED | {"beta": 0.1}, {}, "error", ["beta=0.1", "beta=0.0", "measure_cancellation=0"]),
    (MEASURED | {"entropy_coef": 0.01}, {}, "error", ["entropy_coef=0.01", "entropy_coef=0.0"]),
    (MEASURED | {"use_adaptive_entropy": True}, {}, "error", ["use_adaptive_entropy=True", "use_adaptive_entropy=False"]),
    (MEASURED, {"aux_loss": True}, "error", ["load-balancing", "router_aux_loss_coef=0.0"]),
    (MEASURED, {"sharded": True}, "error", ["FSDP", "measure_cancellation=0"]),
    (MEASURED | {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}}, {}, "error", ["'use_reentrant': True", "False"]),
    (MEASURED | {"optim": "lomo"}, {}, "error", ["optim='lomo'", "adamw_torch"]),
    ({"record_tokens": True}, {}, "error", ["record_tokens=True", "optimizer steps", "0 for never"]),
    ({}, {"padding_changes": True, "kind": "GPT2"}, "warning", ["GPT2", "as in TRL", "prompts of one length"]),
    ({"record_tokens": 2}, {"sharded": True}, "error", ["record_tokens=2", "FSDP", "record_tokens=0"]),
    (MIN | {"top_entropy_quantile": 0.5}, {}, "error", ["top_entropy_quantile=0.5", "1.0"]),
    (MIN | {"mask_truncated_completions": True}, {}, "error", ["mask_truncated_completions=True", "advantage_orthogonal"]),
    (QUERY | {"mask_truncated_completions": True}, {}, "warning", ["mask_truncated_completions=True", "batch_residual"]),
    (MIN | {"loss_type": "grpo"}, {}, "warning", ["loss_type='grpo'", "dr_grpo"]),
    (SPREAD | {"loss_type": "sapo"}, {}, "error", ["prefix_credit", "loss_type='sapo'", "dr_grpo"]),
    (SPREAD | {"loss_type": "luspo"}, {}, "error", ["prefix_credit", "loss_type='luspo'"]),
    (SPREAD | {"delta": 2.0}, {}, "error", ["prefix_credit", "delta=2.0"]),
    ({}, {"quantized": True}, "warning", ["fp32_adapters=False", "fp32_adapters=True"]),
    ({"save_strategy": "steps", "save_steps": 6}, {}, "warning", ["save_steps=6", "multiple of 4"]),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "launch", "severity", "words"), CASES, ids=lambda v: None)
def test_named_in_one_sentence(settings, launch, severity, words):
    args = CancellationConfig(**SOUND)
    # afterwards: TRL's constructor refuses some of them for one process
    for field, value in settings.items():
        setattr(args, field, value)
    faults = problems(args, **launch)
    matching = [
        p for p in faults if p.severity == severity and all(word in p.sentence for word in words)
    ]
    assert matching, faults
    assert matching[0].sentence.endswith(".")
    assert "\n" not in matching[0].sentence


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
