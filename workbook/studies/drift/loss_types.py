"""The study `loss_types` (apart, as it builds TRL's trainers): what TRL's losses leave on tokens
that a group shares.

The study reads every arm's exact weights at the r-th optimizer step on the same rollouts, r = 1, 2,
4, 8, and reports the residual |sum w A| / sum |w A|. The policy moves by one reference objective
for all arms: Dr. GRPO's with each ratio taken as 1, AdamW. A bfloat16 copy of the policy samples
the rollouts, as vLLM would; groups of equal rewards are left out. A real trainer is built for each
arm: TRL's own code makes the batch and the loss, and only sampling and scores are given. So the
slope of its loss by a token's log-probability is the token's push, exact for every loss type and
mask. What was stated before the first measurement: data/results/unequal_weights/registration.yaml.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from tempfile import TemporaryDirectory

import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

from workbook.messages import InvalidValue, progress
from workbook.policies.models import evaluating, private_copy
from workbook.probes.step import update
from workbook.rollouts.likelihood import FIELDS
from workbook.rollouts.sample import Rollouts, sample_rollouts
from workbook.rollouts.scoring import sequence_logps, unpadded
from workbook.studies.unit import StudyUnit
from workbook.theory.advantages import group_extreme, group_index, group_sum, shared_places
from workbook.theory.weights import cancellation_residual
from workbook.training.config import CancellationConfig
from workbook.training.given_scores import GivenScores, Scores, quiet_trl
from workbook.training.meter import token_pushes
from workbook.training.optimizers import optimizer_of
from workbook.training.trainer import CancellationTrainer

REUSE = (1, 2, 4, 8)
# by scale: a first step of some 0.04 nats
LEARNING_RATES = {"tiny": 2.5e-4, "bundled": 2.5e-4, "smollm2_chat": 2.5e-6}
PROMPTS = {"tiny": 6, "bundled": 32, "smollm2_chat": 12}  # by scale, sampled
# by scale: at most, the first whose rewards differ
GROUPS = {"tiny": 6, "bundled": 32, "smollm2_chat": 3}
NEW_TOKENS = {"smollm2_chat": 24}  # by scale, where it is not the scale's own
UNCLIPPED = 1e9  # an epsilon that clips nothing


@dataclass(frozen=True)
class _Arm:
    """One loss of the comparison: its name, kind, the settings that differ from `COMMON`, and whose
    trainer has it.

    kind: "loss type", "correction" (on the loss dr_grpo), "transform" or "control".  sampler:
    whether vLLM's correction is on, for the half-precision policy that sampled.  source: of the
    settings' values.
    """

    name: str
    kind: str
    settings: dict = field(default_factory=dict)
    trainer: str = "trl"
    sampler: bool = False
    source: str = "TRL's defaults"


def _sampler(mode: str) -> _Arm:
    return _Arm(f"vLLM {mode}", "correction", {"vllm_importance_sampling_mode": mode}, sampler=True)


def _sequence(name: str, kind: str, transform: str | None) -> _Arm:
    settings = {
        "importance_sampling_level": "sequence",
        "epsilon": UNCLIPPED,
        "group_transform": transform,
    }
    return _Arm(name, kind, settings, "workbook", source="no clip, constant normalizer")


SEQUENCE = {"importance_sampling_level": "sequence"}
LUSPO = {"loss_type": "luspo", "epsilon": 2e-3, "epsilon_high": 2.5e-3} | SEQUENCE
_GSPO = {"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4} | SEQUENCE
_OURS = {"trainer": "workbook", "source": "this workbook"}
ARMS = (
    _Arm("dapo", "loss type", {"loss_type": "dapo"}),
    _Arm("bnpo", "loss type", {"loss_type": "bnpo"}),
    _Arm("dr_grpo", "loss type"),
    _Arm("grpo", "loss type", {"loss_type": "grpo"}),
    _Arm(
        "cispo", "loss type", {"loss_type": "cispo", "epsilon_high": 5.0}, source="arXiv 2510.13786"
    ),
    _Arm("sapo", "loss type", {"loss_type": "sapo"}),
    _Arm("vespo", "loss type", {"loss_type": "vespo"}),
    _Arm("gmpo", "loss type", {"epsilon": 0.4}, "gmpo", source="arXiv 2507.20673"),
    _Arm("gspo", "loss type", _GSPO, source="arXiv 2507.18071"),
    _Arm(
        "gspo, epsilon 0.03",
        "loss type",
        _GSPO | {"epsilon": 0.03, "epsilon_high": 0.03},
        source="this workbook",
    ),
    _Arm("luspo", "loss type", LUSPO, source="arXiv 2602.05261"),
    _sequence("sequence ratio alone", "loss type", None),
    _Arm("delta 4", "correction", {"delta": 4.0}, source="arXiv 2505.07291"),
    _Arm(
        "off-policy mask 0.5",
        "correction",
        {"off_policy_mask_threshold": 0.5},
        source="TRL's documentation",
    ),
    _Arm(
        "off-policy mask 0.02",
        "correction",
        {"off_policy_mask_threshold": 0.02},
        source="chosen so that it acts",
    ),
    _Arm(
        "entropy mask 0.2", "correction", {"top_entropy_quantile": 0.2}, source="arXiv 2506.01939"
    ),
    _Arm(
        "truncation mask",
        "correction",
        {"mask_truncated_completions": True},
        source="arXiv 2503.14476",
    ),
    *(
        _sampler(mode)
        for mode in ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
    ),
    _Arm("symmetric clipping", "transform", {"clipping": "symmetric"}, **_OURS),
    _Arm("min_replace", "transform", {"group_transform": "min_replace"}, **_OURS),
    _Arm("advantage_orthogonal", "transform", {"group_transform": "advantage_orthogonal"}, **_OURS),
    _sequence("sequence, min_replace", "transform", "min_replace"),
    _sequence("sequence, advantage_orthogonal", "transform", "advantage_orthogonal"),
    _Arm("equal weights", "control", {"num_iterations": 1}, source="TRL's ratio is then 1"),
)
COMMON = {  # a whole unit is one micro-batch, whose old log-probabilities TRL computes
    **{
        "loss_type": "dr_grpo",
        "epsilon": 0.2,
        "beta": 0.0,
        "num_iterations": 8,
        "steps_per_generation": 1,
    },
    **{
        "gradient_accumulation_steps": 1,
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": False,
        "fp16": False,
    },
    **{"gradient_checkpointing": False, "save_strategy": "no"},
}


TRAINERS = {  # the last two: their own losses on given scores
    "trl": (GivenScores, CancellationConfig),
    "gmpo": (type("GivenScoresGMPO", (GMPOTrainer, GivenScores), {}), GMPOConfig),
    "workbook": (
        type("GivenScoresCancellation", (CancellationTrainer, GivenScores), {}),
        CancellationConfig,
    ),
}


def loss_types_study(unit: StudyUnit) -> dict[str, pd.DataFrame]:
    """Tables of one seed: residuals, a row per prompt, arm and reuse; drift, a row per reuse."""
    policy, scale = unit.policy, unit.setting
    length = NEW_TOKENS.get(scale.name, scale.max_new_tokens)
    sampled = half_precision_rollouts(
        policy, unit.task, PROMPTS[scale.name], scale.group_size, unit.number, length
    )
    rollouts, lr = mixed_groups(sampled, GROUPS[scale.name]), LEARNING_RATES[scale.name]
    path = moved_scores(policy, rollouts, lr)
    drift = drift_of(rollouts, path).assign(lr=lr)
    return {"residuals": loss_type_residuals(policy, unit.task, rollouts, path), "drift": drift}


def mixed_groups(rollouts: Rollouts, most: int | None = None) -> Rollouts:
    """Keep the first groups whose rewards differ, at most so many; ValueError if there is none."""
    index, groups = group_index(rollouts.group_ids, len(rollouts))
    low, high = (group_extreme(rollouts.rewards, index, groups, kind) for kind in ("amin", "amax"))
    chosen = (low < high).nonzero().squeeze(1)[:most]
    if not len(chosen):
        raise ValueError(
            f"none of the {groups} groups has different rewards, so nothing pushes; sample more"
            " prompts."
        )
    return rollouts.select(torch.isin(index, chosen))


def half_precision_rollouts(
    policy, task, prompts: int, group_size: int, seed: int, max_new_tokens: int
) -> Rollouts:
    """Sample groups from a bfloat16 copy of the policy; old_logps are that copy's."""
    sampler = replace(policy, model=copy.deepcopy(policy.model).to(torch.bfloat16))
    return sample_rollouts(sampler, task, prompts, group_size, seed, max_new_tokens)


def moved_scores(
    policy, rollouts: Rollouts, lr: float, reuse: tuple[int, ...] = REUSE
) -> dict[int, Scores]:
    """Score the rollouts before the r-th AdamW step on them, for each r of `reuse`; the policy
    stays as it was.

    The steps follow Dr. GRPO's gradient with each ratio taken as 1, so that no arm's own weights
    steer them.
    """
    scores, last = {}, max(reuse)
    mine = private_copy(policy)
    stepper = optimizer_of(mine, "adamw", lr)
    for step in progress(range(1, last + 1), "steps on the rollouts"):
        if step in reuse:
            with torch.no_grad(), evaluating(mine.model):
                scores[step] = sequence_logps(
                    mine.model, *(getattr(rollouts, name) for name in FIELDS)
                )
        if step < last:
            update(mine, rollouts, stepper, clip=None)
    return scores


# --- one arm's pushes


def arm_pushes(
    policy, task, rollouts: Rollouts, arm: _Arm, path: Mapping[int, Scores]
) -> tuple[Float[Tensor, "B T"], dict[int, Float[Tensor, "B T"]]]:
    """Compute the advantages (B, T) that an arm's trainer gives, and at each point of `path` its
    pushes (B, T).

    push_it = -d loss / d logp_it = w_it A_it / N, N one number of the batch; 0 where the loss masks
    the token.

    rollouts: sampled groups of one size, whose old_logps are those of the policy that
    sampled.  path: {reuse: scores}; the first are those of the policy before its first step, TRL's
    old log-probabilities.

    Raises ValueError if TRL's rewards are not the rollouts' own, and TRL's own errors for an arm's
    settings.
    """
    with TemporaryDirectory() as folder, quiet_trl():
        trainer = _trainer(policy, task, rollouts, arm, folder)
        trainer.scores = path[min(path)]
        columns = zip(rollouts.prompts, rollouts.answers, rollouts.extras, strict=True)
        rows = [{"prompt": prompt, "answer": answer} | extra for prompt, answer, extra in columns]
        with torch.no_grad():
            batch = trainer._generate_and_score_completions(rows)
        (rewards,) = trainer._logs["rewards"].values()
        if list(rewards) != rollouts.rewards.tolist():
            raise ValueError(
                f"arm {arm.name!r}: its trainer's rewards are not those of the rollouts."
            )
        pushes = {}
        for reuse, (logps, entropies) in path.items():
            leaf = logps.clone().requires_grad_()
            trainer.scores = (leaf, entropies)
            pushes[reuse] = token_pushes(trainer._compute_loss(trainer.model, batch), leaf)
    return batch["advantages"][:, None].expand_as(batch["completion_ids"]), pushes


def _trainer(policy, task, rollouts: Rollouts, arm: _Arm, folder: str) -> GivenScores:
    """The trainer of an arm, whose generation is these rollouts."""
    counts = rollouts.group_ids.unique(return_counts=True)[1]
    if (counts != counts[0]).any():
        raise InvalidValue("group_ids", counts.tolist(), "groups of one size, for TRL")
    mask = rollouts.completion_mask.bool()
    # tokens and the sampler's log-probabilities, as TRL takes them of a `rollout_func`
    generated = {
        "prompt_ids": unpadded(rollouts.prompt_ids, rollouts.prompt_mask),
        "completion_ids": unpadded(rollouts.completion_ids, mask),
        "logprobs": [
            row[alive].tolist()
            for row, alive in zip(rollouts.old_logps.cpu(), mask.cpu(), strict=True)
        ],
    }
    # for TRL to patch: the same weights, in training mode by its own flag alone
    model = copy.copy(policy.model)
    model.config, model.training = copy.deepcopy(policy.model.config), True
    trainer_class, config_class = TRAINERS[arm.trainer]
    sizes = {"per_device_train_batch_size": len(rollouts), "num_generations": int(counts[0])}
    sizes |= {"max_completion_length": mask.shape[1], "use_cpu": policy.model.device.type == "cpu"}
    trainer = trainer_class(
        model,
        task.reward,
        args=config_class(output_dir=folder, **COMMON | sizes | arm.settings),
        train_dataset=task.dataset(1, 0),
        processing_class=policy.tokenizer,
        rollout_func=lambda prompts, trainer: generated,
    )
    trainer.current_gradient_accumulation_steps = 1
    # vLLM itself is asked for nothing: its rollouts and their log-probabilities are given
    if arm.sampler:
        trainer.use_vllm, trainer._last_loaded_step = True, trainer.state.global_step
    return trainer


# --- tables


def loss_type_residuals(
    policy, task, rollouts: Rollouts, path: dict[int, Scores], arms: tuple[_Arm, ...] = ARMS
) -> pd.DataFrame:
    """Tabulate the residual that each arm leaves: a row per group, arm and reuse.

    rollouts: of `mixed_groups`.  Columns those of `group_residuals`, arm, kind and reuse.
    """
    tables = []
    for arm in progress(arms, "arms"):
        _, pushes = arm_pushes(policy, task, rollouts, arm, path)
        for reuse, push in pushes.items():
            tables.append(
                group_residuals(rollouts, push).assign(arm=arm.name, kind=arm.kind, reuse=reuse)
            )
    table = pd.concat(tables, ignore_index=True)
    numbers = dict.fromkeys(table.select_dtypes("float64").columns, "float32")
    return table.astype(numbers | {"group": "int16", "reuse": "int8"})


def group_residuals(rollouts: Rollouts, pushes: Float[Tensor, "B T"]) -> pd.DataFrame:
    """Residual |sum w A| / sum |w A| of each group: 0 cancels, 1 adds up.

    Columns: group; shared, over places where all rollouts have the same token, averaged over those
    at which any rollout pushes; every, over all places that no rollout ends before, as if the group
    shared a token there; silent, the share of the group's tokens that do not push. NaN where
    nothing pushes.  Shapes: pushes (B, T), 0 outside the loss's mask.
    """
    mask, group_ids, pushes = rollouts.completion_mask.bool(), rollouts.group_ids, pushes.double()
    index, groups = group_index(group_ids, len(rollouts))
    same = shared_places(rollouts.completion_ids, mask, group_ids)
    shared, common = (
        group_extreme(places.long(), index, groups, "amin").bool() for places in (same, mask)
    )
    idle = group_sum(((pushes == 0) & mask).double().sum(1), index, groups)
    columns = {
        "group": torch.arange(groups),
        "shared": _mean_over_places(pushes, group_ids, shared),
        "every": _mean_over_places(pushes, group_ids, common),
        "silent": idle / group_sum(mask.double().sum(1), index, groups),
    }
    return pd.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})


def _mean_over_places(
    pushes: Tensor, group_ids: Tensor, places: Bool[Tensor, "groups T"]
) -> Float[Tensor, " groups"]:
    """Residual of each group, averaged over those of its places at which any rollout pushes; NaN
    without any.
    """
    pushing = places & (
        group_extreme(pushes.abs(), *group_index(group_ids, len(pushes)), "amax") > 0
    )
    residual = cancellation_residual(pushes, torch.ones_like(pushes), group_ids)  # (groups, T)
    return (residual * pushing).sum(1) / pushing.sum(1)


def drift_of(rollouts: Rollouts, path: dict[int, Scores]) -> pd.DataFrame:
    """Tabulate how far the policy had moved at each reuse, a row each, beside how unequal its
    rollouts' lengths are.

    Columns reuse; drift and shared_drift, root mean square log-ratio (nats) of all tokens and of
    position-shared ones; length_sd, tokens.
    """
    mask, start = rollouts.completion_mask.bool(), path[min(path)][0]
    same = shared_places(rollouts.completion_ids, mask, rollouts.group_ids)
    length_sd = float(mask.sum(1).double().std())

    def rms(values: Tensor) -> float:
        return float(values.double().square().mean().sqrt())

    moved = {reuse: now - start for reuse, (now, _) in path.items()}
    rows = [
        {"reuse": r, "drift": rms(m[mask]), "shared_drift": rms(m[same])} for r, m in moved.items()
    ]
    return pd.DataFrame(rows).assign(length_sd=length_sd)
