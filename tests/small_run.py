"""SMALL: the settings of a run of seconds on the bundled policy."""

# 4 optimizer steps per generation batch of 4 prompts x 4 rollouts: ratios differ from 1, groups can be kept or broken.
SMALL = {
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "logging_steps": 1,
    "disable_tqdm": True,
    "gradient_checkpointing": False,
    "save_strategy": "no",
    "num_generations": 4,
    "per_device_train_batch_size": 4,
    "steps_per_generation": 4,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 48,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "loss_type": "dr_grpo",
    "max_grad_norm": 0.0,
    "max_steps": 12,
    "seed": 3,
}

# A config of one step.
BASE = {
    "name": "small",
    "num_prompts": 8,
    "threads": 1,
    "trainer": {
        "max_steps": 1,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "loss_type": "dr_grpo",
        "num_generations": 4,
        "per_device_train_batch_size": 8,
        "max_completion_length": 8,
        "save_strategy": "no",
    },
}
