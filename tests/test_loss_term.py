"""A token's push by the loss's formula: its numbers multiply to the push that the trained graph has."""

import math

import pandas as pd
import pytest
import torch
from test_token_weights import PER_TOKEN, RATIOS, SEQUENCE, TOOLS, TRUNCATED, build, made_batch, measured_pushes

from workbook.views.loss_pushes import with_push
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


GROUP = pd.DataFrame({"rollout": [0, 1], "position": 0, "token": "x", "ratio": [1.5, 1.0], "advantage": [-0.5, 0.5]})
DR_GRPO = {"loss_type": "dr_grpo", "level": "token", "epsilon_low": 0.2, "epsilon_high": 0.2, "normalizer": 96}


@pytest.mark.parametrize(
    ("ratio", "advantage", "change", "words"),
    [
        (1.31, -0.87, {}, "r is above 1.2, but A < 0, so r A is the smaller: not clipped"),
        (1.31, 0.87, {}, "r is above 1.2 and A > 0, so clip(r) A is the smaller, a constant: clipped (clip high)"),
        (0.5, -1.0, {}, "r is below 0.8 and A < 0, so clip(r) A is the smaller, a constant: clipped (clip low)"),
        (1.0, 1.0, {}, "r is inside 0.8 to 1.2, so nothing is clipped"),
        (1.31, -0.87, {"clipping": "symmetric"}, "where clip(r) is constant: clipped (clip high)"),
        (3.5, -0.87, {"delta": 2.0}, "above delta = 2, so both sides are constant"),
        (1.31, -0.87, {"loss_type": "cispo", "epsilon_high": 1.2}, "held there, a constant"),
        (1.0, 0.0, {}, "advantage is 0"),
    ],
)
def test_what_stopped_a_token_is_said_in_a_sentence(ratio, advantage, change, words):
    rows = GROUP.assign(ratio=[ratio, 1.0], advantage=[advantage, 0.5], logp=-1.0, logp_after=[-1.25, -1.0])
    lines = describe_push(rows, 0, DR_GRPO | change | {"learning_rate": 1e-3})
    assert words in lines[0]
    assert lines[2].endswith("(learning rate 0.001) moved its log-probability by -0.25, from -1 to -1.25 nats.")


@pytest.mark.parametrize(
    ("reason", "words"),
    [("truncated", "its completion was cut off"), ("tool", "a tool wrote it"), ("entropy", "below the quantile")],
)
def test_a_masked_tokens_push_is_zero_and_says_why(reason, words):
    rows = GROUP.assign(stopped=[reason, ""], ratio=[math.nan if reason == "truncated" else 1.5, 1.0], push=0.0)
    first, second = describe_push(rows, 0, DR_GRPO)
    assert words in first
    assert "= 0 · (-0.5) / 96 = 0, with N" in second
    assert "Recorded in training: 0." in second


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"loss_type": "<b>"}, "loss_type='<b>' is none of grpo, "),
        ({"normalizer": 0}, "normalizer='0' must be a number above 0"),
        ({"normalizer": {"7": 3.0}}, "normalizer='None' must be"),
        ({"epsilon_low": "much"}, "epsilon_low='much' must be a number"),
        ({"epsilon_high": 10**400}, "epsilon_high='1000"),
        ({"group_transform": "halve"}, "group_transform='halve' is none of"),
        ({"level": "sequence", "top_entropy_quantile": 0.2}, "top_entropy_quantile=0.2 scales"),
        ({"loss_type": "vespo"}, "column(s) logp, old_logp"),
        ({"loss_type": []}, "loss_type='[]' is none of"),
    ],
)
def test_an_objective_without_what_the_formula_needs_is_a_sentence(change, sentence):
    (line,) = describe_push(GROUP, 0, DR_GRPO | change)
    assert line.startswith("No formula: ")
    assert sentence in line


def test_a_push_that_the_formula_does_not_explain_is_said():
    assert "something that this formula does not have" in describe_push(GROUP.assign(push=1.0), 0, DR_GRPO)[1]


def test_each_micro_batch_may_have_its_own_normalizer():
    objective = DR_GRPO | {"loss_type": "bnpo", "normalizer": {"0": 10.0, "1": 20.0}}
    assert [loss_term(GROUP, i, objective).push for i in (0, 1)] == [1.5 * -0.5 / 10, 0.5 / 20]


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


ALL = [{"loss_type": kind} for kind in ("grpo", "bnpo", "dr_grpo", "dapo", "sapo", "vespo", "cispo")]
ALL += [{"loss_type": "luspo", "level": "sequence", "normalizer": 7.0}, {"loss_type": "grpo", "level": "sequence"}]
ALL += [{"loss_type": "dr_grpo", "delta": 1.25}, {"loss_type": "grpo", "clipping": "symmetric"}]
ALL += [{"loss_type": "grpo", "group_transform": name} for name in ("min_replace", "advantage_orthogonal")]
ALL += [{"loss_type": "dapo", "group_transform": "min_replace", "transform_on": "clipped_weights"}]


def groups_of_tokens(rho: bool) -> pd.DataFrame:
    """Two groups of three rollouts of two to four tokens, some of them clipped, masked or of no advantage."""
    generator, rows = torch.Generator().manual_seed(0), []
    for rollout in range(6):
        for position in range(2 + rollout % 3):
            now, old = (-2 * torch.rand(2, generator=generator)).tolist()
            rows.append((rollout // 3, rollout, position, now, old, (1.0, -0.5, 0.0)[rollout % 3], 1 + now / 4))
    names = ["group", "rollout", "position", "logp", "old_logp", "advantage", "importance"]
    table = pd.DataFrame(rows, columns=names).assign(token="x", stopped="")
    table["ratio"] = (table["logp"] - table["old_logp"]).map(math.exp)
    table.loc[[2, 9], "stopped"] = ["tool", "entropy"]
    return table if rho else table.drop(columns="importance")


@pytest.mark.parametrize("objective", ALL, ids=str)
@pytest.mark.parametrize("rho", [False, True])
def test_all_pushes_at_once_are_the_formulas_of_the_tokens(objective, rho):
    table = groups_of_tokens(rho)
    if objective.get("level") == "sequence":
        ratio = (table["logp"] - table["old_logp"]).groupby(table["rollout"]).transform("mean")
        table["ratio"] = ratio.map(math.exp)
    pushed = with_push(table, objective)
    for _, group in pushed.groupby("group"):
        terms = [loss_term(group, index, pushed.attrs["objective"]).push for index in range(len(group))]
        assert group["push"].tolist() == pytest.approx(terms, rel=1e-9, abs=1e-12)
    assert pushed["push"].abs().sum() > 0


def test_an_objective_takes_from_the_tables_own_what_it_does_not_name():
    table = groups_of_tokens(False)
    table.attrs["objective"] = DR_GRPO | {"max_completion_length": 10}
    assert with_push(table).attrs["objective"]["normalizer"] == 96
    assert with_push(table, {"epsilon_high": 0.3}).attrs["objective"]["normalizer"] == 96
    assert with_push(table, {"loss_type": "dapo"}).attrs["objective"]["normalizer"] == len(table) - 1, (
        "a tool's is none"
    )
    assert with_push(table, {"loss_type": "grpo"}).attrs["objective"]["epsilon_low"] == 0.2
    with pytest.raises(ValueError, match="level='sequence': the table's ratios are those of level='token'"):
        with_push(table, {"level": "sequence"})
    with pytest.raises(ValueError, match="loss_type='luspo' needs its normalizer"):
        with_push(table, {"loss_type": "luspo"})
    with pytest.raises(ValueError, match="loss_type='<b>' is none of grpo"):
        with_push(table, {"loss_type": "<b>"})
    assert "Recorded in training" not in describe_push(with_push(table), 0, with_push(table).attrs["objective"])[1]
    unknown = with_push(table.assign(ratio=[math.nan] * len(table)))
    assert unknown["push"][0] != unknown["push"][0], "a push without a ratio is unknown"
