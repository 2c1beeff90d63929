"""Settings of a run of seconds on the bundled policy, and what tests make with them."""

# 4 optimizer steps per generation batch of 4 prompts x 4 rollouts: ratios differ from 1, groups can
# be kept or broken.
TRAINER = {
    "num_generations": 4,
    "per_device_train_batch_size": 4,
    "steps_per_generation": 4,
    "max_steps": 12,
}
TRAINER |= {"gradient_accumulation_steps": 1, "max_completion_length": 48, "max_grad_norm": 0.0}
TRAINER |= {"learning_rate": 1e-3, "lr_scheduler_type": "constant", "loss_type": "dr_grpo"}
# With what a run's config leaves to the run.
SMALL = TRAINER | {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "save_strategy": "no",
    "seed": 3,
}
SMALL |= {"report_to": "none", "logging_steps": 1, "disable_tqdm": True}

# A config of one step.
ONE_STEP = {
    "max_steps": 1,
    "num_generations": 4,
    "per_device_train_batch_size": 8,
    "max_completion_length": 8,
}
ONE_STEP |= {
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "loss_type": "dr_grpo",
    "save_strategy": "no",
}
BASE = {"name": "small", "num_prompts": 8, "threads": 1, "trainer": ONE_STEP}


def bundled_trainer(kind, args, policy=None, reward=None, prompts=16, **options):
    """A trainer of a kind on the bundled policy, or one given, and prompts of its task."""
    from workbook.policies.load import load_policy
    from workbook.tasks import get_task

    policy, task = policy or load_policy("bundled"), get_task("chain")
    options |= {
        "train_dataset": task.dataset(prompts, seed=0),
        "processing_class": policy.tokenizer,
    }
    return kind(policy.model, reward or task.reward, args=args, **options)


def nudge_adapters(model, std=0.02):
    """LoRA starts with B = 0, where the gradient of A is exactly zero: move B elsewhere."""
    import torch

    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.copy_(std * torch.randn(parameter.shape, generator=generator))


def byte_tokenizer():
    """A tokenizer of bytes, with an end of sequence that also pads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {
        word: i for i, word in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "<end>"])
    }
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
