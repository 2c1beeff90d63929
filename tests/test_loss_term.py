"""A token's push by the loss's formula: its numbers multiply to the push that the trained graph has."""

import math

import pandas as pd
import pytest
import torch
from test_token_weights import PER_TOKEN, RATIOS, SEQUENCE, TOOLS, TRUNCATED, build, made_batch, measured_pushes

from workbook.views.loss_term import describe_push, loss_term

__all__ = ["build"]  # a fixture
QUERY = {"batching": "query_preserved", "per_device_train_batch_size": 8}
VLLM = {"use_vllm": True}
ASKED = [
    *({"loss_type": kind} for kind in ("grpo", "dr_grpo", "dapo", "bnpo", "sapo", "vespo", "luspo")),
    *({"loss_type": kind} | SEQUENCE for kind in ("grpo", "dr_grpo", "luspo", "sapo")),
    {"loss_type": "cispo", "epsilon_high": 1.3},
    {"delta": 1.25},
    {"clipping": "symmetric", "loss_type": "grpo"},
    *(QUERY | {"group_transform": name} for name in ("min_replace", "advantage_orthogonal")),
    QUERY | SEQUENCE | {"group_transform": "advantage_orthogonal", "transform_on": "clipped_weights"},
    {"loss_type": "grpo", "off_policy_mask_threshold": 0.05},
    {"top_entropy_quantile": 0.4},
    SEQUENCE | {"top_entropy_quantile": 0.4},
]
COLUMNS = [
    ({"loss_type": "grpo"}, {"tool_mask": TOOLS}),
    ({"loss_type": "grpo"}, {"truncated": TRUNCATED}),
    (VLLM, {"importance_sampling_ratio": RATIOS}),
    (VLLM | SEQUENCE | {"loss_type": "grpo"}, {"importance_sampling_ratio": RATIOS[:, :1]}),
    (VLLM | SEQUENCE, {"importance_sampling_ratio": RATIOS}),
    (VLLM | {"loss_type": "vespo"}, {"importance_sampling_ratio": RATIOS}),
    (VLLM | QUERY | {"group_transform": "min_replace"}, {"importance_sampling_ratio": RATIOS}),
    ({"loss_type": "sapo"}, {"advantages": PER_TOKEN}),
    ({"loss_type": "cispo", "epsilon_high": 5.0} | SEQUENCE, {"advantages": PER_TOKEN}),
]


def objective_of(trainer, batch) -> dict:
    """What a table's attrs hold of a loss."""
    args, rollouts, active = (
        trainer.args,
        len(batch["advantages"]),
        batch["completion_mask"] * batch.get("tool_mask", 1),
    )
    normalizer = {"dr_grpo": rollouts * trainer.max_completion_length, "bnpo": int(active.sum())}
    normalizer |= dict.fromkeys(("grpo", "sapo", "luspo"), rollouts)
    spanned = int(batch["num_items_in_batch"]) / args.steps_per_generation
    return {
        "loss_type": trainer.loss_type,
        "level": trainer.importance_sampling_level,
        "epsilon_low": trainer.epsilon_low,
        "epsilon_high": trainer.epsilon_high,
        "delta": args.delta,
        "clipping": args.clipping,
        "group_transform": args.group_transform,
        "transform_on": args.transform_on,
        "normalizer": normalizer.get(trainer.loss_type, spanned),
    }


def table_of(trainer, batch, pushes) -> pd.DataFrame:
    """A token table as training records it, of the made batch."""
    active, rows = batch["completion_mask"].bool(), []
    tools = batch.get("tool_mask", torch.ones_like(batch["completion_mask"]))
    log_ratio = batch["logps"] - batch["old_per_token_logps"]
    counted = active & tools.bool()
    if trainer.importance_sampling_level == "sequence":
        log_ratio = ((log_ratio * counted).sum(1, keepdim=True) / counted.sum(1, keepdim=True)).expand_as(log_ratio)
    importance = batch.get("importance_sampling_ratio", torch.ones_like(log_ratio)).expand_as(log_ratio)
    advantages = batch["advantages"].view(len(active), -1).expand_as(log_ratio)
    stopped = stopped_by_masks(trainer, batch, counted)
    for i, t in active.nonzero().tolist():
        numbers = {"ratio": log_ratio.exp(), "advantage": advantages, "importance": importance, "push": pushes}
        numbers |= {"logp": batch["logps"], "old_logp": batch["old_per_token_logps"]}
        row = {"group": i // 4, "rollout": i, "position": t, "token": "x", "stopped": stopped.get((i, t), "")}
        rows.append(row | {name: float(values[i, t]) for name, values in numbers.items()})
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("settings", "columns"), [*((one, {}) for one in ASKED), *COLUMNS], ids=lambda value: None)
def test_the_formulas_numbers_multiply_to_the_push(monkeypatch, build, settings, columns):
    """For each loss type, level, bound, mask, transform and correction."""
    if settings.get("loss_type") == "cispo":
        settings = {"epsilon_high": 1.2} | settings
    trainer = build(**{key: value for key, value in settings.items() if key != "use_vllm"})
    trainer.use_vllm = settings.get("use_vllm", False)
    batch = made_batch() | {key: value for key, value in columns.items() if key != "truncated"}
    batch["completion_mask"] = batch["completion_mask"] * columns.get("truncated", 1)
    if columns.get("importance_sampling_ratio", RATIOS[:, :1]).size(1) > 1:  # as TRL has it, 1 on padding
        batch["importance_sampling_ratio"] = RATIOS.where(batch["completion_mask"].bool(), 1.0)
    pushes = measured_pushes(monkeypatch, trainer, batch)
    table, objective = table_of(trainer, batch, pushes), objective_of(trainer, batch)
    for _, group in table.groupby("group"):
        terms = [loss_term(group, index, objective) for index in range(len(group))]
        assert [term.push for term in terms] == pytest.approx(group["push"].tolist(), rel=1e-5, abs=1e-12)
        for index, term in enumerate(terms):
            assert printed_product(str(term)) == pytest.approx(group["push"].iloc[index], rel=1e-5, abs=1e-9)
            assert any("something" in line for line in describe_push(group, index, objective)) is False
    assert (table["push"] != 0).any()


def stopped_by_masks(trainer, batch, counted) -> dict[tuple[int, int], str]:
    """What takes tokens out, by TRL's own masks."""
    masks = {"tool": ~counted}
    if trainer.top_entropy_quantile < 1:
        kept = trainer.get_high_entropy_mask(batch["entropies"], counted.long(), 1 - trainer.top_entropy_quantile)
        masks["entropy"] = counted & ~kept.bool()
    if threshold := trainer.off_policy_mask_threshold:
        scored = (batch["advantages"][:, None], batch["logps"], batch["old_per_token_logps"], counted.long(), threshold)
        masks["off-policy"] = counted & ~trainer.get_off_policy_mask(*scored).bool()
    return {tuple(place): name for name, mask in masks.items() for place in mask.nonzero().tolist()}


def printed_product(line: str) -> float:
    """The number that the printed formula comes to: push = symbols = numbers = result."""
    above, below = line.split(" = ")[2].split(" / ")
    return math.prod(numbers(above)) / math.prod(numbers(below))


def numbers(text: str) -> list[float]:
    return [float(number.strip("() ")) for number in text.split("·")]
