"""TRL's loss on log-probabilities that are given, so that one loss can be asked what it does.

TRL computes each of its losses in one method, from log-probabilities that a model has just scored.
`GivenScores` is TRL's trainer with that one call replaced: it returns log-probabilities that the
caller chose. So what is measured is TRL's own code, clip, mask and normalizer included, and no
model is entered:

    trainer = objective_trainer(policy, task, {"loss_type": "dapo", "epsilon_high": 0.28})
    pushes = pushes_on(trainer, now, old, advantages, mask)        # -d loss / d logp, (B, T)

Letters: B rollouts, T completion tokens.
"""

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from workbook.training.meter import token_pushes

Scores = tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]  # log-probabilities and entropies, nats


class GivenScores(GRPOTrainer):
    """A GRPOTrainer that takes `scores` for the model's; it never enters the model."""

    scores: Scores

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        return *self.scores, None


def objective_trainer(policy, task, settings: Mapping[str, object]) -> GivenScores:
    """Build TRL's trainer with an objective's settings; it trains nothing.

    policy, task: any of the workbook's, for TRL asks for a model, a reward and a data set.
    settings: of GRPOConfig. A constant normalizer is B times max_completion_length.

    Raises TRL's own errors for settings that it refuses.
    """
    # for TRL to patch: the same weights, in training mode by its own flag alone
    model = copy.copy(policy.model)
    model.config, model.training = copy.deepcopy(policy.model.config), True
    usual = {
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": False,
        "fp16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "per_device_train_batch_size": 2,
        "num_generations": 2,
        "steps_per_generation": 1,
    }
    with TemporaryDirectory() as folder, quiet_trl():
        trainer = GivenScores(
            model,
            task.reward,
            args=GRPOConfig(output_dir=folder, **usual | dict(settings)),
            train_dataset=task.dataset(1, 0),
            processing_class=policy.tokenizer,
        )
    trainer.current_gradient_accumulation_steps = 1
    return trainer


def pushes_on(
    trainer: GivenScores,
    logps: Float[Tensor, "B T"],
    old_logps: Float[Tensor, "B T"] | None,
    advantages: Float[Tensor, " B"],
    mask: Shaped[Tensor, "B T"],
    ref_logps: Float[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """Read each token's push, -d loss / d logp, from the graph of the trainer's loss.

    The loss is TRL's `_compute_loss` on these log-probabilities (nats).

    old_logps: of the policy that sampled; None takes every ratio as 1, as TRL does on a fresh
    batch.  ref_logps: of the reference model, which a trainer with beta > 0 needs.

    Shapes (B, T), advantages (B,); result (B, T), 0 outside the mask. Unit: advantage per nat.
    """
    leaf = logps.detach().clone().requires_grad_()
    mask = mask.long()
    # the ids are never looked at: they only have the right shape
    ids = torch.zeros_like(mask)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": advantages,
        "num_items_in_batch": mask.sum(),
    }
    if old_logps is not None:
        inputs["old_per_token_logps"] = old_logps
    if ref_logps is not None:
        inputs["ref_per_token_logps"] = ref_logps
    trainer.scores = (leaf, torch.zeros_like(leaf))
    pushes = token_pushes(trainer._compute_loss(trainer.model, inputs), leaf)
    # what the trainer would log of this call is nobody's
    for metrics in trainer._metrics.values():
        metrics.clear()
    return pushes


@contextmanager
def quiet_trl() -> Iterator[None]:
    """Keep TRL from warning of settings that are meant."""
    logger = logging.getLogger(GRPOTrainer.__module__)
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
