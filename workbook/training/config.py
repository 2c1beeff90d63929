"""CancellationConfig: TRL's GRPOConfig plus the switches that make or break token-gradient cancellation.

Every switch's default is TRL's own behaviour, so that `CancellationConfig(**kwargs)` means what
`GRPOConfig(**kwargs)` means.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from trl import GRPOConfig

from workbook.training.run_config import RunConfig


def _switch(default, words: str):
    return field(default=default, metadata={"help": words})


@dataclass
class CancellationConfig(GRPOConfig):
    """Settings of a [`CancellationTrainer`]: all of TRL's `GRPOConfig`, and those below.

    Which combinations make sense is checked when the trainer is built (see `workbook.training.checks`), since that
    needs the model and the number of processes.
    """

    batching: str = _switch(
        "shuffled",
        "How a generation batch is cut into optimizer mini-batches: shuffled (TRL's), query_preserved, "
        "reward_balanced, query_preserved_reward_balanced or sign_partitioned.",
    )
    advantage_estimator: str = _switch(
        "grpo",
        "grpo (TRL's own), dr_grpo, rloo, reinforce, positive_only, negative_only, a credit rule such as prefix_credit "
        "(one per rollout or per token), or own:<file.py>:<function>; python -m workbook estimators lists them.",
    )
    group_transform: str | None = _switch(
        None, "Drift fix on the ratio weights of each group: None, min_replace or advantage_orthogonal."
    )
    transform_on: str = _switch(
        "clamped_ratios",
        "What group_transform works on: clamped_ratios, held inside the clip range, or clipped_weights, "
        "the surrogate's own, 0 where it is clipped, so that min_replace stops a group with its first rollout.",
    )
    clipping: str = _switch(
        "asymmetric", "asymmetric (PPO's min, TRL's) or symmetric (no gradient outside the range, whatever the sign)."
    )
    measure_cancellation: int = _switch(
        0, "Measure what cancels inside and across optimizer steps, every so many generation batches; 0 = never."
    )
    record_tokens: int = _switch(
        0,
        "Write what the step did to each token, as a Parquet table in output_dir/tokens, at the first optimizer step "
        "and every so many; 0 = never.",
    )
    trim_padding: bool = _switch(
        False, "Cut columns that are padding in the whole micro-batch before the forward pass."
    )
    fp32_adapters: bool = _switch(
        False, "Keep LoRA weights in float32, where TRL casts those of a quantized model to bfloat16."
    )

    @property
    def steps_per_batch(self) -> int:
        """Optimizer steps on each generation batch."""
        return max(1, self.steps_per_generation * self.num_iterations // self.gradient_accumulation_steps)


def trainer_args(config: RunConfig, device: torch.device, output_dir: str | Path) -> CancellationConfig:
    """The trainer's settings of a run on a device, with the defaults that runs have.

    Raises ValueError: TRL's, for sizes that do not divide, or ours for max_steps.
    """
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    settings = {
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "beta": 0.0,
        "fp32_adapters": config.lora is not None,
    } | config.trainer
    args = CancellationConfig(
        output_dir=str(output_dir),
        seed=config.seed,
        use_cpu=device.type == "cpu",
        bf16=capable,
        fp16=device.type == "cuda" and not capable,
        **settings,
    )
    if args.max_steps <= 0:
        raise ValueError(f"trainer.max_steps={args.max_steps} must be a positive number of optimizer steps.")
    if "save_steps" not in settings:
        args.save_steps = args.steps_per_batch * max(1, round(args.max_steps / 5 / args.steps_per_batch))
    return args


def sampling_settings(args: CancellationConfig) -> dict:
    """Arguments of `sample_rollouts` under which it samples as the trainer of `args` does."""
    same = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "chat_template_kwargs", "generation_kwargs")
    return {"max_new_tokens": args.max_completion_length} | {name: getattr(args, name) for name in same}
