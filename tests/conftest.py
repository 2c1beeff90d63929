"""What the training tests share: the bundled policy's task, small settings, and a trainer built from them."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest

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


@pytest.fixture
def make_trainer(tmp_path):
    """Build a trainer of the given class on the bundled policy and task; settings override SMALL."""
    from workbook.policies import load_policy
    from workbook.tasks import get_task

    def make(trainer_class, config_class, model=None, **settings):
        policy = load_policy("bundled")
        task = get_task("chain")
        args = config_class(output_dir=str(tmp_path / trainer_class.__name__), **SMALL | settings)
        return trainer_class(
            model or policy.model,
            task.reward,
            args=args,
            train_dataset=task.dataset(64, seed=0),
            processing_class=policy.tokenizer,
        )

    return make
