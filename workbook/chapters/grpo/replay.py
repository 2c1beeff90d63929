"""TRL's trainer for a few steps, with every rollout that it sampled: what code from scratch has to
repeat on the same rollouts (chapter 04).

AdamW divides each weight's gradient by its own usual size. Where opposite pushes cancel, a gradient
is nothing but rounding, and would come out as a whole step. So here the constant that AdamW adds to
that size is `ADAM_EPSILON` instead of 1e-8.
"""

import tempfile
import warnings
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PrinterCallback
from trl import GRPOConfig, GRPOTrainer

from workbook.policies.load import Policy
from workbook.policies.models import private_copy
from workbook.rollouts.scoring import unpadded
from workbook.tasks.task import Task

ADAM_EPSILON = 1e-4
LR = 1e-3
LENGTH = 48  # new tokens at most


class SampledBatch(NamedTuple):
    """One generation batch of the trainer: B rollouts, those of one prompt in a row."""

    prompts: list[str]
    answers: list[str]
    prompt_ids: Int[Tensor, "B P"]  # all of one length
    completion_ids: Int[Tensor, "B T"]
    mask: Bool[Tensor, "B T"]
    texts: list[str]  # of the completions
    advantages: Float[Tensor, " B"]  # the trainer's own


def trainer_steps(
    policy: Policy,
    task: Task,
    steps: int = 3,
    prompts: int = 8,
    group_size: int = 8,
    kind: type[GRPOTrainer] = GRPOTrainer,
    config: type[GRPOConfig] = GRPOConfig,
    **settings,
) -> tuple[list[SampledBatch], Policy]:
    """Train a copy of the policy; return what the trainer sampled, and the copy.

    A step takes `prompts` x `group_size` rollouts, with AdamW at the constant rate LR.
    settings: further fields of the trainer's config, such as loss_type, or num_iterations=k for k
    steps on each generation batch.

    The policy stays as it was. Prompts have to be of one length, as a chain's are.
    """
    learner = private_copy(policy)
    fields = {
        "loss_type": "grpo",
        "max_steps": steps,
        "num_generations": group_size,
        "per_device_train_batch_size": prompts * group_size,
        "max_completion_length": LENGTH,
        "max_grad_norm": 0.0,
        "learning_rate": LR,
        "lr_scheduler_type": "constant",
        "adam_epsilon": ADAM_EPSILON,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }
    batches = []
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # of transformers and TRL, about their own arguments
        warnings.simplefilter("ignore")
        trainer = kind(
            learner.model,
            task.reward,
            args=config(output_dir=folder, **fields | settings),
            train_dataset=task.dataset(prompts * steps, seed=0),
            processing_class=learner.tokenizer,
        )
        trainer.remove_callback(PrinterCallback)
        generate = trainer._generate_and_score_completions

        def generate_and_keep(inputs):
            output = generate(inputs)
            completions = unpadded(output["completion_ids"], output["completion_mask"])
            batches.append(
                SampledBatch(
                    prompts=[row["prompt"] for row in inputs],
                    answers=[row["answer"] for row in inputs],
                    prompt_ids=output["prompt_ids"],
                    completion_ids=output["completion_ids"],
                    mask=output["completion_mask"].bool(),
                    texts=learner.tokenizer.batch_decode(completions, skip_special_tokens=True),
                    advantages=output["advantages"],
                )
            )
            return output

        trainer._generate_and_score_completions = generate_and_keep
        trainer.train()
    learner.model.eval()
    return batches, learner


def largest_difference(one: torch.nn.Module, other: torch.nn.Module) -> float:
    """The largest difference between two models' weights."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)
