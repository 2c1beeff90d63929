"""The fields of `CancellationConfig` that a run takes, with their ranges, and those that it does not, with the reason.

Every field of TRL's config stands in TRAINER_FIELDS or in REFUSED; a test holds that.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from workbook.theory.choices import (
    CLIPPINGS,
    ESTIMATORS,
    LEVELS,
    RENAMED,
    RULES,
    STRATEGIES,
    TRANSFORM_INPUTS,
    TRANSFORMS,
    check_estimator,
)
from workbook.training.schema import (
    ABOVE_0_TO_1,
    DECAY,
    FLAG,
    FLAG_OR_NULL,
    LENGTH_OR_NULL,
    MAX_SIZE,
    NOT_NEGATIVE,
    NOT_NEGATIVE_OR_NULL,
    OPTIONS_OR_NULL,
    POSITIVE,
    POSITIVE_OR_NULL,
    SHARE,
    SHARE_OR_NULL,
    SIZE,
    SIZE_OR_NULL,
    check_fields,
    choice,
    integer,
    make_model,
    nearest,
    number,
    show_name,
    text,
)

# Optimizer states in bytes per trained weight, of those optimizers that transformers has without another package. 8-bit
# ones keep a float32 scale per block of 256 weights, or of 128 where torchao's has none of them.
OPTIMIZER_BYTES = {
    **{"adamw_torch": 8, "adamw_torch_fused": 8, "sgd": 0, "adagrad": 4, "rmsprop": 4, "adafactor": 0.1},
    **{"adamw_8bit": 2.03, "adamw_bnb_8bit": 2.03, "paged_adamw_8bit": 2.03, "paged_adamw_32bit": 8},
    **{"lion_8bit": 1.02, "lion_32bit": 4, "paged_lion_8bit": 1.02, "paged_lion_32bit": 4},
    **{"ademamix": 12, "ademamix_8bit": 3.05, "paged_ademamix_32bit": 12, "paged_ademamix_8bit": 3.05},
    **{"rmsprop_bnb": 4, "rmsprop_bnb_8bit": 1.02, "rmsprop_bnb_32bit": 4},
}
SCHEDULES = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"),
)
LOSS_TYPES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo")
TRACKERS = {  # name in report_to: the package that it needs
    **{name: name for name in ("tensorboard", "trackio", "wandb", "mlflow", "neptune", "codecarbon", "clearml")},
    **{"dagshub": "dagshub", "swanlab": "swanlab", "dvclive": "dvclive", "comet_ml": "comet_ml"},
}


def _estimator(value: str) -> str:
    check_estimator(value)
    return value


TRAINER_FIELDS = {
    # how much
    "max_steps": integer(1, 10_000_000, words="a positive number of optimizer steps, from {} to {:,}"),
    "per_device_train_batch_size": SIZE,
    "gradient_accumulation_steps": SIZE,
    "steps_per_generation": SIZE_OR_NULL,
    "generation_batch_size": integer(2, MAX_SIZE * 64, null=True),
    "num_generations": integer(2, MAX_SIZE, words="an integer of at least {} generations per prompt and at most {:,}"),
    "num_iterations": integer(1, 1000),
    "max_completion_length": integer(1, 1_000_000),
    # the optimizer and its schedule
    "learning_rate": POSITIVE,
    "lr_scheduler_type": choice(*SCHEDULES),
    "lr_scheduler_kwargs": OPTIONS_OR_NULL,
    "warmup_steps": NOT_NEGATIVE,
    "optim": choice(*OPTIMIZER_BYTES),
    "optim_args": Annotated[
        str | None,
        Field(
            pattern=r"^\w+=[^=,\s]+(, ?\w+=[^=,\s]+)*$",
            description="name=value pairs with commas between them, or null",
        ),
    ],
    "weight_decay": SHARE,
    "adam_beta1": DECAY,
    "adam_beta2": DECAY,
    "adam_epsilon": POSITIVE,
    "max_grad_norm": NOT_NEGATIVE,
    # the objective
    "beta": NOT_NEGATIVE,
    "epsilon": POSITIVE,
    "epsilon_high": POSITIVE_OR_NULL,
    "delta": POSITIVE_OR_NULL,
    "loss_type": choice(*LOSS_TYPES),
    "importance_sampling_level": choice(*LEVELS),
    "scale_rewards": choice("group", "batch", "none", True, False),
    "multi_objective_aggregation": choice("sum_then_normalize", "normalize_then_sum"),
    "reward_weights": Annotated[
        list[POSITIVE] | None,
        Field(min_length=1, max_length=1, description="a list of one finite number above 0, or null"),
    ],
    **dict.fromkeys(("sapo_temperature_neg", "sapo_temperature_pos"), POSITIVE),
    **dict.fromkeys(("vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg"), NOT_NEGATIVE),
    "mask_truncated_completions": FLAG,
    "off_policy_mask_threshold": POSITIVE_OR_NULL,
    "use_bias_correction_kl": FLAG,
    "sync_ref_model": FLAG,
    "ref_model_mixup_alpha": SHARE,
    "ref_model_sync_steps": integer(1, 10_000_000),
    "top_entropy_quantile": ABOVE_0_TO_1,
    **dict.fromkeys(("entropy_coef", "entropy_coef_min", "entropy_coef_max"), NOT_NEGATIVE),
    **dict.fromkeys(("entropy_coef_delta", "entropy_target"), NOT_NEGATIVE),
    "use_adaptive_entropy": FLAG,
    "router_aux_loss_coef": NOT_NEGATIVE_OR_NULL,
    # cancellation
    "batching": choice(*STRATEGIES),
    "advantage_estimator": Annotated[
        str,
        AfterValidator(_estimator),
        Field(description=f"{', '.join(map(repr, (*ESTIMATORS, *RULES)))}, or 'own:<file.py>:<function>'"),
    ],
    "group_transform": choice(None, *TRANSFORMS),
    "transform_on": choice(*TRANSFORM_INPUTS),
    "clipping": choice(*CLIPPINGS),
    **dict.fromkeys(("measure_cancellation", "record_tokens"), integer(0, 10_000_000)),
    "trim_padding": FLAG,
    "fp32_adapters": FLAG,
    # sampling
    "temperature": number("a number from 0.0001 to 1,000,000", ge=1e-4, le=1e6),
    "top_p": ABOVE_0_TO_1,
    "top_k": integer(0, 10_000_000),
    "min_p": SHARE_OR_NULL,
    "repetition_penalty": POSITIVE,
    **dict.fromkeys(("generation_kwargs", "chat_template_kwargs"), OPTIONS_OR_NULL),
    "cache_implementation": text(null=True),
    "shuffle_dataset": FLAG,
    "pad_to_multiple_of": Annotated[
        integer(1, MAX_SIZE, null=True) | Literal["auto"],
        Field(description=f"an integer of at least 1 and at most {MAX_SIZE:,}, 'auto' or null"),
    ],
    "use_transformers_continuous_batching": FLAG,
    "transformers_continuous_batching_config": OPTIONS_OR_NULL,
    # vLLM
    **dict.fromkeys(("use_vllm", "vllm_enable_sleep_mode", "vllm_importance_sampling_correction"), FLAG),
    "vllm_mode": choice("colocate", "server"),
    "vllm_model_impl": choice("vllm", "transformers"),
    **dict.fromkeys(("vllm_structured_outputs_regex", "vllm_server_base_url"), text(null=True)),
    "vllm_server_host": text(),
    **dict.fromkeys(("vllm_server_port", "vllm_group_port"), integer(1, 65_535)),
    "vllm_server_timeout": POSITIVE,
    "vllm_gpu_memory_utilization": ABOVE_0_TO_1,
    "vllm_max_model_length": LENGTH_OR_NULL,
    "vllm_tensor_parallel_size": integer(1, 1024),
    "vllm_importance_sampling_mode": choice("token_truncate", "token_mask", "sequence_truncate", "sequence_mask"),
    **dict.fromkeys(("vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"), POSITIVE_OR_NULL),
    # memory and speed
    **dict.fromkeys(("gradient_checkpointing", "torch_compile", "use_liger_kernel", "use_cache"), FLAG),
    **dict.fromkeys(("gradient_checkpointing_kwargs", "liger_kernel_config"), OPTIONS_OR_NULL),
    **dict.fromkeys(("torch_compile_backend", "torch_compile_mode"), text(null=True)),
    **dict.fromkeys(("tf32", "ddp_find_unused_parameters", "ddp_broadcast_buffers"), FLAG_OR_NULL),
    **dict.fromkeys(("cast_lm_head_to_fp32", "disable_dropout", "full_determinism"), FLAG),
    **dict.fromkeys(("torch_empty_cache_steps", "ddp_bucket_cap_mb"), integer(1, 1_000_000, null=True)),
    "ddp_timeout": integer(1, 1_000_000),
    "dataloader_num_workers": integer(0, 64),
    **dict.fromkeys(("dataloader_pin_memory", "dataloader_persistent_workers", "average_tokens_across_devices"), FLAG),
    "dataloader_prefetch_factor": integer(1, 1000, null=True),
    # what is written
    "save_strategy": choice("steps", "no"),
    "save_steps": integer(1, 10_000_000),
    "logging_steps": Annotated[
        int, Field(ge=1, le=1, description="1, since a run's metrics have a line for every step")
    ],
    "report_to": Annotated[
        Literal[("none", "all", *TRACKERS)] | list[Literal[tuple(TRACKERS)]] | None,
        Field(description=f"'none', 'all', {', '.join(TRACKERS)}, or a list of those trackers"),
    ],
    **dict.fromkeys(("run_name", "project"), text(null=True)),
    "disable_tqdm": FLAG_OR_NULL,
    **dict.fromkeys(("log_completions", "log_unique_prompts", "log_on_each_node"), FLAG),
    "num_completions_to_print": integer(1, MAX_SIZE, null=True),
    **dict.fromkeys(
        ("log_level", "log_level_replica"), choice("detail", "debug", "info", "warning", "error", "critical", "passive")
    ),
}


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


RUN_SETS = ("output_dir", "seed", "use_cpu", "bf16", "fp16")
REFUSED = {  # a reason: the fields of TRL's config that a run does not take for it
    "is set by the run itself": RUN_SETS,
    "would upload, and nothing of a run is uploaded": _names(
        """push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
        log_completions_hub_repo trackio_space_id trackio_bucket_id trackio_static_space_id"""
    ),
    "would change a run's checkpoints, which are its own": _names(
        """save_total_limit save_only_model save_on_each_node enable_jit_checkpoint resume_from_checkpoint
        ignore_data_skip restore_callback_states_from_checkpoint load_best_model_at_end metric_for_best_model
        greater_is_better"""
    ),
    "has no effect on a run, whose eval_prompts are evaluated before and after": _names(
        """eval_strategy eval_steps eval_delay eval_on_start eval_do_concat_batches eval_accumulation_steps
        eval_use_gather_object per_device_eval_batch_size num_generations_eval prediction_loss_only do_train do_eval
        do_predict include_for_metrics batch_eval_metrics label_names bf16_full_eval fp16_full_eval"""
    ),
    "has no effect on a run, whose length is max_steps": ("num_train_epochs",),
    "has no effect on a run, whose metrics have a line for every step": _names(
        """logging_strategy logging_first_step logging_nan_inf_filter include_num_input_tokens_seen skip_memory_metrics
        log_multimodal"""
    ),
    "has no effect on a run, whose policy is loaded with the fields policy, quantization and lora": _names(
        """model_init_kwargs trust_remote_code"""
    ),
    "has no effect on the loss or the sampling of a run": _names(
        """label_smoothing_factor neftune_noise_alpha max_tool_calling_iterations data_seed length_column_name
        train_sampling_strategy dataloader_drop_last dataloader_multiprocessing_context dataloader_in_order
        remove_unused_columns debug optim_target_modules activation_checkpointing activation_checkpointing_kwargs
        ds3_gather_for_generation"""
    ),
    "is no setting of a run but of its launch, see data/configs/accelerate": _names(
        """local_rank deepspeed fsdp fsdp_config accelerator_config parallelism_config ddp_backend ddp_static_graph"""
    ),
    "would break groups of rollouts": ("auto_find_batch_size",),
    "has another name: use_transformers_continuous_batching": ("use_transformers_paged",),
    "has another name: vllm_importance_sampling_clip_max": ("vllm_importance_sampling_cap",),
}
REASONS = {name: reason for reason, names in REFUSED.items() for name in names}
TRAINER = make_model("Trainer", TRAINER_FIELDS)


def check_trainer(values: dict[str, Any]) -> None:
    """Raise a ValueError for the first field of the trainer that is unknown, not for a run, or not valid."""
    for name in values:
        if name in REASONS:
            raise ValueError(f"trainer.{name} {REASONS[name]}; remove it.")
        if name not in TRAINER_FIELDS:
            raise ValueError(
                f"trainer.{show_name(name)} is not a field of CancellationConfig; {nearest(name, TRAINER_FIELDS)}"
            )
    if (now := RENAMED.get(str(estimator := values.get("advantage_estimator")))) is not None:
        raise ValueError(f"trainer.advantage_estimator={estimator!r} is now called {now!r}, which is what it computes.")
    check_fields(TRAINER, values, "trainer.")
