"""CancellationTrainer is GRPOTrainer where nothing is asked of it, and does what is asked where
something is.
"""

import copy
import sys
import warnings
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch
from datasets import Dataset
from refusals import refused
from small_run import SMALL
from transformers import AutoConfig, AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from workbook.policies.load import load_policy
from workbook.theory.weights import advantage_orthogonal, min_replace
from workbook.training import CancellationConfig, CancellationTrainer, contract

QUERY = {"batching": "query_preserved", "steps_per_generation": 4}
METERED = [
    f"cancellation/{name}"
    for name in (
        "in_step",
        "sign_cosine",
        "across_steps",
        "clipped",
        "weight_residual",
        "shared_residual",
    )
]


pytestmark = pytest.mark.usefixtures("one_thread")


def weights_of(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def next_batch(trainer):
    """The first micro-batch of a fresh generation batch, with all of them buffered."""
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    return trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))


def gradient(trainer, inputs):
    trainer.model.zero_grad()
    trainer.compute_loss(trainer.model, inputs).backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


# --- equal to TRL
@pytest.mark.parametrize(
    "settings", [{}, {"num_iterations": 2, "loss_type": "grpo", "max_grad_norm": 1.0}]
)
def test_defaults_are_grpo_bit_for_bit(make_trainer, settings):
    theirs = make_trainer(GRPOTrainer, GRPOConfig, **settings)
    theirs.train()
    ours = make_trainer(CancellationTrainer, CancellationConfig, **settings)
    ours.train()
    assert ours.state.global_step == 12
    before = make_trainer(GRPOTrainer, GRPOConfig).model.state_dict()
    for name, value in weights_of(theirs).items():
        assert torch.equal(value, ours.model.state_dict()[name]), name
    assert any(not torch.equal(value, before[name]) for name, value in weights_of(ours).items())
    rows = [
        {k: v for k, v in row.items() if "cancellation/" not in k}
        for row in ours.state.log_history[:-1]
    ]
    for mine, other in zip(rows, theirs.state.log_history[:-1], strict=True):
        for key in other.keys() - {"step_time"}:
            assert mine[key] == other[key] or (
                mine[key] != mine[key] and other[key] != other[key]
            ), key


def test_the_installed_trl_was_tried_and_has_every_hook():
    assert version("trl").rpartition(".")[0] in contract.TRIED
    assert not list(contract.missing_hooks(CancellationTrainer))


def test_a_hook_that_is_gone_and_a_method_that_would_be_replaced_are_named(
    make_trainer, monkeypatch, policy
):
    monkeypatch.setitem(sys.modules, "unsloth", None)
    monkeypatch.setattr(contract.GRPOTrainer, "_prepare_inputs", lambda self: None)
    monkeypatch.setattr(contract.GRPOTrainer, "_measure", print, raising=False)
    with pytest.raises(
        ValueError,
        match=r"_measure .*_prepare_inputs",
    ):
        make_trainer(CancellationTrainer, CancellationConfig, policy)


# --- batching
def test_minibatches_keep_the_strategy(make_trainer):
    trainer = make_trainer(CancellationTrainer, CancellationConfig, **QUERY)
    next_batch(trainer)
    for part in trainer._buffered_inputs:
        assert len(part["group_id"].unique()) == 1
    assert trainer._metrics["train"]["cancellation/batch_residual"][-1] == pytest.approx(
        0, abs=1e-5
    )

    trainer = make_trainer(CancellationTrainer, CancellationConfig, batching="sign_partitioned")
    next_batch(trainer)
    mixed = [
        (p["advantages"] > 0).any() and (p["advantages"] < 0).any()
        for p in trainer._buffered_inputs
    ]
    assert sum(map(bool, mixed)) <= 1
    assert trainer._metrics["train"]["cancellation/batch_residual"][-1] > 0.5


def test_batching_moves_rollouts_whole(make_trainer):
    """Every column of a rollout stays with it: the rollouts are the shuffled trainer's, in another
    order.
    """
    plain = make_trainer(CancellationTrainer, CancellationConfig)
    next_batch(plain)
    ordered = make_trainer(CancellationTrainer, CancellationConfig, **QUERY)
    next_batch(ordered)
    columns = [
        "prompt_ids",
        "completion_ids",
        "completion_mask",
        "advantages",
        "old_per_token_logps",
    ]
    columns += ["group_id", "rewards"]

    def rows(trainer):
        stacked = [torch.cat([p[c] for p in trainer._buffered_inputs]) for c in columns]
        return sorted(
            tuple(v.flatten().tolist() for v in row) for row in zip(*stacked, strict=True)
        )

    assert rows(plain) == rows(ordered)


def test_order_is_the_same_after_a_resume(make_trainer):
    trainer = make_trainer(CancellationTrainer, CancellationConfig, batching="reward_balanced")
    batch = {
        "group_id": torch.arange(16) // 4,
        "advantages": torch.tensor([1.0, -1.0] * 8),
        "x": torch.arange(16),
    }
    first = trainer._arrange(batch)["x"]
    torch.manual_seed(2)
    assert torch.equal(first, trainer._arrange(batch)["x"])
    trainer.state.global_step = 4
    assert not torch.equal(first, trainer._arrange(batch)["x"])


# --- estimators
@pytest.mark.parametrize(
    "estimator", ["dr_grpo", "rloo", "reinforce", "positive_only", "negative_only"]
)
def test_estimators_reach_the_loss(make_trainer, estimator):
    from workbook.theory.advantages import group_advantages

    trainer = make_trainer(CancellationTrainer, CancellationConfig, advantage_estimator=estimator)
    next_batch(trainer)
    rewards, groups, advantages = (
        torch.cat([p[c] for p in trainer._buffered_inputs])
        for c in ("rewards", "group_id", "advantages")
    )
    assert rewards.unique().tolist() == [0, 1]
    torch.testing.assert_close(advantages, group_advantages(rewards, groups, estimator))
    torch.testing.assert_close(sorted(trainer._logs["advantages"]), sorted(advantages.tolist()))


# --- the surrogate's weights
def reference_gradient(trainer, inputs, transform, level, loss_type, on):
    """The gradient of -sum w A logp with w written out from theory, by an ordinary forward pass."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
    attention = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
    width = inputs["completion_ids"].size(1)
    logits = trainer.model(input_ids=ids, attention_mask=attention).logits[:, -width - 1 : -1]
    logps = logits.log_softmax(-1).gather(2, inputs["completion_ids"][..., None]).squeeze(2)
    mask, advantages, groups = (
        inputs["completion_mask"].bool(),
        inputs["advantages"],
        inputs["group_id"],
    )
    log_ratio = (logps.detach() - inputs["old_per_token_logps"]) * mask
    ratio = log_ratio.exp() if level == "token" else (log_ratio.sum(1) / mask.sum(1)).exp()
    low, high = 1 - trainer.epsilon_low, 1 + trainer.epsilon_high
    assert (ratio < low).any() or (ratio > high).any()
    chosen = mask if level == "token" else mask.any(1)
    up = (advantages > 0).view(-1, *[1] * (ratio.ndim - 1))
    held = (
        ratio.clamp(low, high)
        if on == "clamped_ratios"
        else ratio * torch.where(up, ratio <= high, ratio >= low)
    )
    if transform == "min_replace":
        ratio = min_replace(held, groups, chosen)
    elif transform == "advantage_orthogonal":
        ratio = advantage_orthogonal(held, advantages, groups, chosen)
    else:
        ratio = torch.where((ratio < low) | (ratio > high), 0.0, ratio)
    tokens = mask.sum(1, keepdim=True) if loss_type == "grpo" else trainer.max_completion_length
    weights = (ratio if level == "token" else ratio[:, None]) * mask / tokens / len(mask)
    trainer.model.zero_grad()
    (-(weights * advantages[:, None]) * logps).sum().backward()
    return torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])


def off_policy_batch(trainer):
    """A micro-batch whose old log-probabilities are off by noise: each rollout has ratios on both
    sides of 1.
    """
    inputs = next_batch(trainer)
    noise = torch.randn(
        inputs["old_per_token_logps"].shape, generator=torch.Generator().manual_seed(0)
    )
    inputs["old_per_token_logps"] = (
        inputs["old_per_token_logps"] + 0.4 * noise * inputs["completion_mask"]
    )
    # whatever the sampled rewards were, both signs
    advantages = torch.tensor([1.5, -0.5, -0.5, -0.5])
    inputs["advantages"] = advantages.repeat(len(inputs["advantages"]) // 4)
    return inputs


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo"])
@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(
    ("transform", "on"),
    [
        (name, on)
        for name in ("min_replace", "advantage_orthogonal")
        for on in ("clamped_ratios", "clipped_weights")
    ]
    + [(None, "clamped_ratios")],
)
def test_reweighted_gradient(make_trainer, policy, loss_type, level, transform, on):
    """With a transform, or symmetric clipping where there is none."""
    settings = {"importance_sampling_level": level, "loss_type": loss_type, "transform_on": on}
    settings |= {"group_transform": transform} if transform else {"clipping": "symmetric"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = make_trainer(CancellationTrainer, CancellationConfig, **QUERY | settings)
    trainer.epsilon_low = trainer.epsilon_high = 0.3 if level == "token" else 0.01
    inputs = off_policy_batch(trainer)
    expected = reference_gradient(trainer, inputs, transform, level, loss_type, on)
    assert (gradient(trainer, inputs) - expected).norm() <= 1e-5 * expected.norm()
    stopped = (transform, on, level) == ("min_replace", "clipped_weights", "sequence")
    assert (expected.norm() == 0) == stopped, "a clipped rollout stops its group"
    given = replace(policy, model=trainer.model)
    plain = make_trainer(
        GRPOTrainer, GRPOConfig, given, importance_sampling_level=level, loss_type=loss_type
    )
    plain.epsilon_low = plain.epsilon_high = trainer.epsilon_low
    plain.model.train()
    plain.current_gradient_accumulation_steps = 1
    # the transform did something
    assert (gradient(plain, inputs) - expected).norm() > 1e-3 * expected.norm()
    assert "old_per_token_logps" in inputs  # the batch itself is untouched
    assert trainer._metrics["train"]["cancellation/weight_residual"][-1] <= 1


# --- trimming
@pytest.mark.parametrize(
    "settings", [{}, {"beta": 0.1}, QUERY | {"group_transform": "min_replace"}]
)
def test_trimming_changes_nothing_but_the_width(make_trainer, settings):
    gradients, widths = [], []
    for trim in (False, True):
        trainer = make_trainer(
            CancellationTrainer, CancellationConfig, trim_padding=trim, **settings
        )
        inputs = off_policy_batch(trainer)
        pad = trainer._tokenizer.pad_token_id
        # a generation batch whose longest prompt and completion are elsewhere
        for key, value in list(inputs.items()):
            if value.dim() == 2:
                columns = (7, 0) if key.startswith("prompt") else (0, 9)
                inputs[key] = torch.nn.functional.pad(
                    value, columns, value=pad if key.endswith("_ids") else 0
                )
        trainer.model.register_forward_pre_hook(
            lambda m, a, k: widths.append(k["input_ids"].size(1)), with_kwargs=True
        )
        gradients.append(gradient(trainer, inputs))
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[0].norm()
    assert widths[0] - widths[1] >= 16


def test_a_generation_batch_is_trimmed_chunk_by_chunk_in_order_of_length(make_trainer):
    ids, widths, scores = torch.arange(320).view(16, 20) % 25 + 5, [], []
    alive = (
        torch.arange(20)
        < torch.randperm(16, generator=torch.Generator().manual_seed(0))[:, None] + 5
    )
    for trim in (False, True):
        trainer = make_trainer(CancellationTrainer, CancellationConfig, trim_padding=trim)
        trainer.model.register_forward_pre_hook(
            lambda m, a, k: widths.append(k["input_ids"].size(1)), with_kwargs=True
        )
        given = trainer.model, ids, alive.long(), 16, 4
        logps, entropies, _ = trainer._get_per_token_logps_and_entropies(
            *given, compute_entropy=True
        )
        scores.append(torch.stack([logps, entropies])[:, alive[:, 4:]])
    torch.testing.assert_close(*scores)
    assert widths == [20, 20, 20, 20, 8, 12, 16, 20]


def test_refuses_to_build_with_a_broken_setting(make_trainer):
    with refused("steps_per_generation"):
        make_trainer(
            CancellationTrainer,
            CancellationConfig,
            batching="query_preserved",
            gradient_accumulation_steps=4,
        )
    with pytest.warns(UserWarning, match="max_grad_norm=1.0"):
        make_trainer(CancellationTrainer, CancellationConfig, **QUERY, max_grad_norm=1.0)


# --- the meter
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batching": "query_preserved", "group_transform": "advantage_orthogonal", "epsilon": 1e9},
    ],
)
def test_measuring_changes_nothing(make_trainer, settings):
    plain = make_trainer(CancellationTrainer, CancellationConfig, **settings)
    plain.train()
    measured = make_trainer(
        CancellationTrainer, CancellationConfig, measure_cancellation=2, **settings
    )
    measured.train()
    for name, value in weights_of(plain).items():
        assert torch.equal(value, measured.model.state_dict()[name]), name
    rows = measured.state.log_history[:-1]
    for row, other in zip(rows, plain.state.log_history[:-1], strict=True):
        assert {k: v for k, v in row.items() if k not in METERED and "time" not in k} == {
            k: v for k, v in other.items() if k not in METERED and "time" not in k
        }
        assert METERED[-1] in row
    pushed = [
        row["step"] for row in rows if row["grad_norm"] > 0 and (row["step"] - 1) // 4 % 2 == 0
    ]
    assert [row["step"] for row in rows if "cancellation/in_step" in row] == pushed
    assert [row["step"] for row in rows if "cancellation/across_steps" in row] == [4, 12]
    assert all(
        0 <= row["cancellation/in_step"] <= 1 for row in rows if "cancellation/in_step" in row
    )


@pytest.mark.parametrize("transform", [None, "min_replace", "advantage_orthogonal"])
def test_what_a_shared_token_keeps(make_trainer, transform):
    settings = {
        "num_iterations": 2,
        "epsilon": 1e9,
        "importance_sampling_level": "sequence",
        **QUERY,
    }
    settings |= {"measure_cancellation": 1, "group_transform": transform, "max_steps": 8}
    trainer = make_trainer(CancellationTrainer, CancellationConfig, **settings)
    trainer.train()
    residuals = [
        row["cancellation/shared_residual"] for row in trainer.state.log_history if "loss" in row
    ]
    assert max(residuals) < 1e-5 if transform else max(residuals) > 1e-3


# one ignores padding, the other counts it where TRL scores
@pytest.mark.parametrize("kind", ["bart", "gpt2"])
def test_prompts_of_unequal_length_need_a_model_that_can_do_with_padding(tmp_path, kind):
    policy = load_policy("bundled")
    sizes = {
        "d_model": 16,
        "decoder_layers": 1,
        "decoder_attention_heads": 2,
        "decoder_ffn_dim": 16,
    }
    sizes |= {"n_embd": 16, "n_layer": 1, "n_head": 2}
    ends = dict.fromkeys(
        ("bos_token_id", "eos_token_id", "decoder_start_token_id"), policy.tokenizer.eos_token_id
    )
    config = AutoConfig.for_model(kind, vocab_size=len(policy.tokenizer), **sizes, **ends)
    model = AutoModelForCausalLM.from_config(config)

    def build(*prompts, kind=CancellationTrainer, args=CancellationConfig, **settings):
        return kind(
            copy.deepcopy(model),
            lambda completions, **columns: [float(len(text)) for text in completions],
            args=args(
                output_dir=str(tmp_path),
                **SMALL | {"max_steps": 2, "max_completion_length": 8} | settings,
            ),
            train_dataset=Dataset.from_dict({"prompt": list(prompts)}),
            processing_class=policy.tokenizer,
        )

    build("1 + 2 =", "3 + 4 =", trim_padding=True)
    ragged = ("1 + 2 =", "3 + 4 + 5 =", "1 + 2 + 3 =", "4 + 5 =")
    with refused("train_dataset"):
        build(*ragged, trim_padding=True)
    with pytest.warns(
        UserWarning, match=r"^\w+ computes other logits behind padding .* trains as in TRL"
    ):
        ours = build(*ragged)  # with every switch at its default
    ours.train()
    plain = build(*ragged, kind=GRPOTrainer, args=GRPOConfig)
    plain.train()
    assert all(
        torch.equal(value, weights_of(ours)[name]) for name, value in weights_of(plain).items()
    )
