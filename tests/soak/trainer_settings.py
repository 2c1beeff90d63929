"""Random accepted settings of the trainer, with vLLM's correction as a stub: measured and not, and by brute force."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from small_run import SMALL
from trl import GRPOTrainer

from workbook.policies.load import load_policy
from workbook.tasks import get_task
from workbook.training import CancellationConfig, CancellationTrainer
from workbook.training.token_tables import read_step, tables

PROMISE = (
    "A run that is measured and recorded trains the weights of one that is not, logs the residual of the loss it "
    "trains, and says of each token without a push what stopped it."
)
TRIALS = 300
RULES = ("prefix_credit", "edit_mask", "advantage_reweighting", "permuted")  # the last has one number per rollout
MEASURES = ("measure_cancellation", "record_tokens")
CHOICES = {
    "loss_type": ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "vespo", "luspo"],
    "importance_sampling_level": ["token", "sequence"],
    "advantage_estimator": ["grpo", "grpo", "rloo", "reinforce", "positive_only", *RULES],
    "group_transform": [None, None, "min_replace", "advantage_orthogonal"],
    "transform_on": ["clamped_ratios", "clamped_ratios", "clipped_weights"],
    "clipping": ["asymmetric", "asymmetric", "symmetric"],
    "batching": ["shuffled", "query_preserved", "query_preserved", "reward_balanced", "sign_partitioned"],
    "epsilon": [0.2, 0.02],
    "epsilon_high": [None, 0.28, 5.0],
    "delta": [None, None, None, 1.3],
    "off_policy_mask_threshold": [None, None, None, 0.001],
    "top_entropy_quantile": [1.0, 1.0, 0.5],
    "mask_truncated_completions": [False, False, True],
    "trim_padding": [False, True],
    "gradient_checkpointing": [False, False, True],
    "num_iterations": [1, 2],
    "steps_per_generation": [1, 2, 4],
    "gradient_accumulation_steps": [1, 2],
    "per_device_train_batch_size": [4, 8],
    "max_grad_norm": [0.0, 0.01],
    "scale_rewards": ["group", "batch", "none"],
    "max_completion_length": [48, 37],
    "optim": ["adamw_torch", "sgd"],
    "beta": [0.0, 0.0, 0.0, 0.1],
    "entropy_coef": [0.0, 0.0, 0.0, 0.01],
    "use_adaptive_entropy": [False, False, False, True],
    "correction": [None, None, "tokens", "rollouts"],  # a column of the test's own
    "unscored": [False, False, True],
}


def trials(seed: int) -> Iterator[tuple[str, tuple]]:
    """Draw settings without end: one in five blindly, the others so that most are accepted."""
    chance, number = random.Random(seed), 0
    while True:
        drawn = {key: chance.choice(values) for key, values in CHOICES.items()}
        if number % 5:
            drawn |= _acceptable(drawn, chance)
        yield f"{seed}-{number}", (drawn, chance.randrange(1000))
        number += 1


def _acceptable(drawn: dict, chance: random.Random) -> dict:
    """What to set so that hardly a rule is broken."""
    accumulation = drawn["gradient_accumulation_steps"]
    changes = {"beta": 0.0, "entropy_coef": 0.0, "use_adaptive_entropy": False, "per_device_train_batch_size": 8}
    changes |= {"steps_per_generation": chance.choice([2, 4]) * accumulation}
    if drawn["loss_type"] == "cispo":
        changes |= {"epsilon_high": 5.0}
    if drawn["loss_type"] == "bnpo":
        changes |= {"batching": "shuffled", "group_transform": None}
    if drawn["advantage_estimator"] == "positive_only" or changes.get("group_transform", drawn["group_transform"]):
        changes |= {"batching": changes.get("batching", "query_preserved")}
    tokens = drawn["advantage_estimator"] in RULES[:3] and drawn["importance_sampling_level"] == "sequence"
    if drawn["group_transform"] or drawn["clipping"] == "symmetric" or tokens:
        changes |= {"delta": None, "off_policy_mask_threshold": None, "top_entropy_quantile": 1.0}
        changes |= {"loss_type": chance.choice(["dr_grpo", "dapo", "grpo"])}
    if drawn["group_transform"]:
        changes |= {"clipping": "asymmetric", "transform_on": "clamped_ratios" if tokens else drawn["transform_on"]}
        changes |= {"mask_truncated_completions": False}
    return changes


def attempt(folder: Path, drawn: dict, seed: int) -> str | None:
    """Train three steps twice; compare weights, and each logged residual with one from a plain backward pass."""
    finals = []
    for measured in (0, 1):
        try:
            trainer = _build(folder / str(measured), drawn | dict.fromkeys(MEASURES, measured), seed)
        except ValueError as refusal:
            return None if _one_sentence_each(str(refusal)) else f"refused by {refusal!r}"
        trainer.train()
        finals.append({name: p.clone() for name, p in trainer.model.state_dict().items()})
    if different := [name for name, value in finals[0].items() if not torch.equal(value, finals[1][name])]:
        return f"measuring changed {len(different)} of {len(finals[0])} tensors"
    return trainer.finding or _unexplained(folder / "1" / "tokens")


def _unexplained(folder: Path) -> str | None:
    """Tokens of the tables that have no push and nothing that stopped them, or both."""
    if not (steps := tables(folder)):
        return "no step was recorded"
    for step in steps:
        table = read_step(folder, step)
        if len(odd := table[(table["stopped"] == "") == (table["push"] == 0)]):
            return f"step {step} has {len(odd)} odd tokens, e.g. {odd.iloc[0].to_dict()}"
    return None


class Stubbed(CancellationTrainer):
    """With a correction's column as vLLM would give it; each logged residual is compared with a plain backward pass."""

    finding, correction = None, None

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        if self.correction:
            shape = output["completion_ids"].shape if self.correction == "tokens" else (len(output["advantages"]), 1)
            generator = torch.Generator().manual_seed(self.state.global_step)
            ratios = (0.2 * torch.randn(shape, generator=generator)).exp()
            output["importance_sampling_ratio"] = ratios.masked_fill(ratios > 1.4, 0.0)
        return output

    def _compute_loss(self, model, inputs):
        self.use_vllm = self.correction is not None
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self.use_vllm = False
        if self._meter and self.finding is None:
            self.finding = self._compare(loss, inputs)
        return loss

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        scored = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if scored[0].requires_grad:
            self.scored = scored[0]
        return scored

    def _compare(self, loss, inputs) -> str | None:
        (slopes,) = torch.autograd.grad(loss, self.scored, retain_graph=True)
        mask = inputs["completion_mask"].bool()
        advantages = inputs["advantages"].view(len(mask), -1).expand(mask.shape)
        residuals = []
        for group in inputs["group_id"].unique():
            for place in range(mask.size(1)):
                rows = (inputs["group_id"] == group) & mask[:, place] & (advantages[:, place] != 0)
                if rows.any():
                    total = float(slopes[rows, place].abs().sum())
                    residuals.append(float(slopes[rows, place].sum().abs()) / total if total else 0.0)
        expected = sum(residuals) / len(residuals) if residuals else 0.0
        logged = self._metrics["train"]["cancellation/weight_residual"][-1]
        if abs(logged - expected) > 1e-4:
            return f"logged a residual of {logged}, where the loss's is {expected}"
        repaired = self.args.group_transform == "advantage_orthogonal" and self.loss_type != "grpo"
        if repaired and self.importance_sampling_level == "token" and logged > 1e-4:
            return f"a repaired group keeps {logged}"
        return None


def _build(folder: Path, drawn: dict, seed: int) -> GRPOTrainer:
    own = {key: drawn[key] for key in ("correction", "unscored")}
    settings = SMALL | {key: value for key, value in drawn.items() if key not in own} | {"max_steps": 3, "seed": seed}
    policy, task = load_policy("bundled"), get_task("chain")

    def reward(completions, **columns):
        scores = task.reward(completions=completions, **columns)
        return [None if own["unscored"] and i % 5 == 2 else score for i, score in enumerate(scores)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Stubbed(
            policy.model,
            reward,
            args=CancellationConfig(output_dir=str(folder), **settings),
            train_dataset=task.dataset(64, seed=0),
            processing_class=policy.tokenizer,
        )
    trainer.correction = own["correction"]
    return trainer


def _one_sentence_each(text: str) -> bool:
    return bool(text) and "\n" not in text and text.endswith(".") and "Traceback" not in text
