"""TRL's loss types and corrections as arms of one comparison: the weight that each gives every token of one batch.

For each arm a real trainer is built. TRL's own code makes the batch (rewards, advantages, masks, the sampler's
importance ratios) and the loss; only sampling and scoring are given, by TRL's `rollout_func` and by log-probabilities
and entropies that were computed once for all arms. A loss of TRL is a function of these alone, so its slope by a
token's log-probability is the token's push, exact for every loss type and mask (`training.meter`).
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory

import torch
from jaxtyping import Float
from torch import Tensor
from trl import GRPOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from workbook.rollouts.sample import Rollouts
from workbook.rollouts.scoring import unpadded
from workbook.training.config import CancellationConfig
from workbook.training.meter import token_pushes
from workbook.training.trainer import CancellationTrainer

UNCLIPPED = 1e9  # an epsilon that clips nothing
Scores = tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]  # log-probabilities and entropies, nats


@dataclass(frozen=True)
class Arm:
    """One loss of the comparison: its name, kind, the settings that differ from `COMMON`, and whose trainer has it.

    kind: "loss type", "correction" (on the loss dr_grpo), "transform" or "control".  sampler: whether vLLM's correction
    is on, for the half-precision policy that sampled.  source: of the settings' values.
    """

    name: str
    kind: str
    settings: dict = field(default_factory=dict)
    trainer: str = "trl"
    sampler: bool = False
    source: str = "TRL's defaults"


def _sampler(mode: str) -> Arm:
    return Arm(f"vLLM {mode}", "correction", {"vllm_importance_sampling_mode": mode}, sampler=True)


def _sequence(name: str, kind: str, transform: str | None) -> Arm:
    settings = {"importance_sampling_level": "sequence", "epsilon": UNCLIPPED, "group_transform": transform}
    return Arm(name, kind, settings, "workbook", source="no clip, constant normalizer")


SEQUENCE = {"importance_sampling_level": "sequence"}
LUSPO = {"loss_type": "luspo", "epsilon": 2e-3, "epsilon_high": 2.5e-3} | SEQUENCE
GSPO = {"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4} | SEQUENCE
OURS = {"trainer": "workbook", "source": "this workbook"}
ARMS = (
    Arm("dapo", "loss type", {"loss_type": "dapo"}),
    Arm("bnpo", "loss type", {"loss_type": "bnpo"}),
    Arm("dr_grpo", "loss type"),
    Arm("grpo", "loss type", {"loss_type": "grpo"}),
    Arm("cispo", "loss type", {"loss_type": "cispo", "epsilon_high": 5.0}, source="arXiv 2510.13786"),
    Arm("sapo", "loss type", {"loss_type": "sapo"}),
    Arm("vespo", "loss type", {"loss_type": "vespo"}),
    Arm("gmpo", "loss type", {"epsilon": 0.4}, "gmpo", source="arXiv 2507.20673"),
    Arm("gspo", "loss type", GSPO, source="arXiv 2507.18071"),
    Arm("gspo, epsilon 0.03", "loss type", GSPO | {"epsilon": 0.03, "epsilon_high": 0.03}, source="this workbook"),
    Arm("luspo", "loss type", LUSPO, source="arXiv 2602.05261"),
    _sequence("sequence ratio alone", "loss type", None),
    Arm("delta 4", "correction", {"delta": 4.0}, source="arXiv 2505.07291"),
    Arm("off-policy mask 0.5", "correction", {"off_policy_mask_threshold": 0.5}, source="TRL's documentation"),
    Arm("off-policy mask 0.02", "correction", {"off_policy_mask_threshold": 0.02}, source="chosen so that it acts"),
    Arm("entropy mask 0.2", "correction", {"top_entropy_quantile": 0.2}, source="arXiv 2506.01939"),
    Arm("truncation mask", "correction", {"mask_truncated_completions": True}, source="arXiv 2503.14476"),
    *(_sampler(mode) for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")),
    Arm("symmetric clipping", "transform", {"clipping": "symmetric"}, **OURS),
    Arm("min_replace", "transform", {"group_transform": "min_replace"}, **OURS),
    Arm("advantage_orthogonal", "transform", {"group_transform": "advantage_orthogonal"}, **OURS),
    _sequence("sequence, min_replace", "transform", "min_replace"),
    _sequence("sequence, advantage_orthogonal", "transform", "advantage_orthogonal"),
    Arm("equal weights", "control", {"num_iterations": 1}, source="TRL's ratio is then 1"),
)
COMMON = {  # a whole unit is one micro-batch, whose old log-probabilities TRL computes
    **{"loss_type": "dr_grpo", "epsilon": 0.2, "beta": 0.0, "num_iterations": 8, "steps_per_generation": 1},
    **{"gradient_accumulation_steps": 1, "report_to": "none", "disable_tqdm": True, "bf16": False, "fp16": False},
    **{"gradient_checkpointing": False, "save_strategy": "no"},
}


class GivenScores(GRPOTrainer):
    """A GRPOTrainer that takes `scores` for the model's; it never enters the model."""

    scores: Scores

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        return *self.scores, None


class GivenScoresGMPO(GMPOTrainer, GivenScores):
    """GMPO's loss on given scores."""


class GivenScoresCancellation(CancellationTrainer, GivenScores):
    """The workbook's transforms and clipping on given scores."""


TRAINERS = {
    "trl": (GivenScores, CancellationConfig),
    "gmpo": (GivenScoresGMPO, GMPOConfig),
    "workbook": (GivenScoresCancellation, CancellationConfig),
}


def arm_pushes(
    policy, task, rollouts: Rollouts, arm: Arm, path: Mapping[int, Scores]
) -> tuple[Float[Tensor, "B T"], dict[int, Float[Tensor, "B T"]]]:
    """Compute the advantages (B, T) that an arm's trainer gives, and at each point of `path` its pushes (B, T).

    push_it = -d loss / d logp_it = w_it A_it / N, N one number of the batch; 0 where the loss masks the token.

    rollouts: sampled groups of one size, whose old_logps are those of the policy that sampled.  path: {reuse: scores};
    the first are those of the policy before its first step, TRL's old log-probabilities.

    Raises ValueError if TRL's rewards are not the rollouts' own, and TRL's own errors for an arm's settings.
    """
    with TemporaryDirectory() as folder, _quietly():
        trainer = _trainer(policy, task, rollouts, arm, folder)
        trainer.scores = path[min(path)]
        with torch.no_grad():
            batch = trainer._generate_and_score_completions(_rows(rollouts))
        (rewards,) = trainer._logs["rewards"].values()
        if list(rewards) != rollouts.rewards.tolist():
            raise ValueError(f"arm {arm.name!r}: its trainer's rewards are not those of the rollouts.")
        pushes = {}
        for reuse, (logps, entropies) in path.items():
            leaf = logps.clone().requires_grad_()
            trainer.scores = (leaf, entropies)
            pushes[reuse] = token_pushes(trainer._compute_loss(trainer.model, batch), leaf)
    return batch["advantages"][:, None].expand_as(batch["completion_ids"]), pushes


@contextmanager
def _quietly() -> Iterator[None]:
    """Leave out what TRL says of settings that are meant here."""
    logger = logging.getLogger(GRPOTrainer.__module__)
    level = logger.level
    try:
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _lent(model: torch.nn.Module) -> torch.nn.Module:
    """A model for a trainer to patch: another object with the same weights, in training mode by its own flag alone."""
    lent = copy.copy(model)
    lent.config, lent.training = copy.deepcopy(model.config), True
    return lent


def _trainer(policy, task, rollouts: Rollouts, arm: Arm, folder: str) -> GivenScores:
    """The trainer of an arm, whose generation is these rollouts."""
    trainer_class, config_class = TRAINERS[arm.trainer]
    sizes = {"per_device_train_batch_size": len(rollouts), "num_generations": _group_size(rollouts)}
    sizes |= {"max_completion_length": rollouts.completion_ids.shape[1], "use_cpu": policy.model.device.type == "cpu"}
    trainer = trainer_class(
        _lent(policy.model),
        task.reward,
        args=config_class(output_dir=folder, **COMMON | sizes | arm.settings),
        train_dataset=task.dataset(1, 0),
        processing_class=policy.tokenizer,
        rollout_func=lambda prompts, trainer: _as_generated(rollouts),
    )
    trainer.current_gradient_accumulation_steps = 1
    if arm.sampler:  # vLLM itself is asked for nothing: its rollouts and their log-probabilities are given
        trainer.use_vllm, trainer._last_loaded_step = True, trainer.state.global_step
    return trainer


def _group_size(rollouts: Rollouts) -> int:
    sizes = rollouts.group_ids.unique(return_counts=True)[1]
    if (sizes != sizes[0]).any():
        raise ValueError(f"rollouts have groups of {sorted(set(sizes.tolist()))}; TRL needs groups of one size.")
    return int(sizes[0])


def _rows(rollouts: Rollouts) -> list[dict]:
    """The data set's rows, one for each rollout, as TRL's dataloader repeats them."""
    columns = zip(rollouts.prompts, rollouts.answers, rollouts.extras, strict=True)
    return [{"prompt": prompt, "answer": answer} | extra for prompt, answer, extra in columns]


def _as_generated(rollouts: Rollouts) -> dict[str, list]:
    """Tokens and the sampler's log-probabilities, as TRL takes them of a `rollout_func`."""
    mask = rollouts.completion_mask.bool()
    return {
        "prompt_ids": unpadded(rollouts.prompt_ids, rollouts.prompt_mask),
        "completion_ids": unpadded(rollouts.completion_ids, mask),
        "logprobs": [logps[alive].tolist() for logps, alive in zip(rollouts.old_logps.cpu(), mask.cpu(), strict=True)],
    }
