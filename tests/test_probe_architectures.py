"""Probes on small random models of a few architectures: tied, biased, capped, a mixture of experts,
LoRA, NF4.

Whatever the architecture: the policy stays bit for bit, a small step does what the derivative says,
products of gradients are autograd's, and the closed form of the output layer is what training that
layer alone does.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_run import nudge_adapters
from transformers import AutoConfig, AutoModelForCausalLM

from workbook.policies.load import Policy, load_policy
from workbook.probes import (
    cancellation_index,
    gradient_products,
    masked_update,
    output_layer_step,
    token_flips,
    update,
)
from workbook.probes.categories import categorized
from workbook.rollouts.likelihood import FIELDS, logps
from workbook.rollouts.sample import sample_rollouts
from workbook.rollouts.scoring import sequence_logps
from workbook.tasks import get_task
from workbook.theory.advantages import group_advantages
from workbook.theory.weights import update_weights

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "head_dim": 16,
}
SMALL |= {"num_key_value_heads": 2, "max_position_embeddings": 64, "attention_dropout": 0.0}
SMALL |= {"initializer_range": 0.3}  # so that logits, and with them probabilities, differ
ARCHITECTURES = {
    "llama, tied": {"model_type": "llama", "tie_word_embeddings": True},
    "gpt2": {
        "model_type": "gpt2",
        "n_positions": 64,
        "attn_pdrop": 0.1,
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
    },
    "phi": {"model_type": "phi", "tie_word_embeddings": False},  # its head has a bias
    "gemma2": {"model_type": "gemma2", "final_logit_softcapping": 3.0, "query_pre_attn_scalar": 16},
    "granite": {"model_type": "granite", "logits_scaling": 4.0},
    "bloom": {"model_type": "bloom", "n_layer": 2, "n_head": 2},  # with ALiBi, as the next
    "mpt": {"model_type": "mpt", "d_model": 32, "n_heads": 2, "n_layers": 2, "max_seq_len": 64},
}
LLAMA = {"model_type": "llama", "tie_word_embeddings": False}
ROTARY = {"rope_theta": 100.0, "factor": 4.0, "short_factor": [1.0] * 8, "long_factor": [3.0] * 8}
BASES = {"dynamic": LLAMA | {"max_position_embeddings": 16}}
BASES |= {"longrope": {"model_type": "phi3", "original_max_position_embeddings": 16}}
VARYING = {
    kind: base | {"rope_parameters": ROTARY | {"rope_type": kind}} for kind, base in BASES.items()
}
# as 4 bits on a CPU need it
WIDE = LLAMA | {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32}
MIXTURE = {
    "model_type": "olmoe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}
ADAPTED = ("lora", "nf4 and lora")


def tiny(name: str, dtype=torch.float64) -> Policy:
    """A small random model of the architecture, with the bundled policy's tokenizer."""
    tokenizer = load_policy("bundled").tokenizer
    settings = (
        SMALL
        | {"olmoe": MIXTURE, "llama": LLAMA, "llama, wide": WIDE, **VARYING, **ARCHITECTURES}[name]
    )
    ends = {f"{end}_token_id": getattr(tokenizer, f"{end}_token_id") for end in ("bos", "eos")}
    # else a padding token that was sampled gets no gradient where it is read
    ends["pad_token_id"] = None
    config = AutoConfig.for_model(**settings, vocab_size=len(tokenizer), **ends)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").to(dtype)
    head = model.get_output_embeddings()
    if head.bias is not None:
        torch.nn.init.normal_(head.bias)
    return Policy(model.eval(), tokenizer, {"name": name})


def adapted(folder, quantization) -> Policy:
    """The tiny Llama, saved and loaded again with adapters whose B is not 0."""
    start = tiny("llama, wide", torch.float32)
    start.model.save_pretrained(folder)
    start.tokenizer.save_pretrained(folder)
    policy = load_policy(folder, quantization=quantization, lora=4)
    nudge_adapters(policy.model, std=0.1)
    return policy


def drawn(policy: Policy):
    """Three prompts with four rollouts each, with rewards of our own, since a random model earns
    none.
    """
    rollouts = sample_rollouts(policy, get_task("chain"), 3, 4, seed=1, max_new_tokens=10)
    rewards = torch.tensor([1.0, 0, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0], dtype=rollouts.rewards.dtype)
    advantages = group_advantages(rewards, rollouts.group_ids, "grpo")
    return categorized(replace(rollouts, rewards=rewards, advantages=advantages), overwrite=True)


@pytest.fixture(scope="module", params=[*ARCHITECTURES, *ADAPTED])
def case(request, tmp_path_factory):
    if request.param in ARCHITECTURES:
        policy = tiny(request.param)
    else:
        policy = adapted(tmp_path_factory.mktemp("tiny"), "nf4" if "nf4" in request.param else None)
    return request.param, policy, drawn(policy)


def everything(policy) -> list[torch.Tensor]:
    return [value.clone() for value in policy.model.state_dict().values()]


def identical(policy, before) -> bool:
    after = everything(policy)
    no_gradients = all(p.grad is None for p in policy.model.parameters())
    return no_gradients and all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def gradient_of_the_objective(policy, rollouts):
    """By autograd, from the definition: sum over tokens of w A log pi."""
    alive = rollouts.completion_mask.bool()
    weights = update_weights(
        rollouts.old_logps, rollouts.old_logps, alive, rollouts.advantages, aggregate="dr_grpo"
    )
    now, _ = sequence_logps(policy.model, *(getattr(rollouts, name) for name in FIELDS))
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    objective = (weights * rollouts.advantages[:, None] * now * alive).sum()
    return now, trained, torch.autograd.grad(objective, trained, retain_graph=True)


def test_a_small_step_moves_each_token_as_the_derivative_says(case):
    """Half the difference of a step and of its opposite, in which the second order cancels, against
    autograd.
    """
    _, policy, rollouts = case
    before, lr = everything(policy), 3e-4
    opposite = replace(rollouts, advantages=-rollouts.advantages)
    forth, back = (
        token_flips(policy, one, "sgd", lr=lr)["dlogp"].to_numpy() for one in (rollouts, opposite)
    )
    now, trained, step = gradient_of_the_objective(policy, rollouts)
    picked = torch.randperm(len(forth), generator=torch.Generator().manual_seed(0))[:8]
    slopes = []
    for logp in now[rollouts.completion_mask.bool()][picked]:
        own = torch.autograd.grad(logp, trained, retain_graph=True, allow_unused=True)
        slopes.append(
            sum((a * b).sum() for a, b in zip(own, step, strict=True) if a is not None).item()
        )
    largest = np.abs(slopes).max()
    np.testing.assert_allclose(
        (forth - back)[picked] / (2 * lr), slopes, rtol=0, atol=0.01 * largest
    )
    assert largest > 0.1
    assert identical(policy, before)


def test_probes_are_finite_and_leave_nothing(case):
    _, policy, rollouts = case
    before, state = everything(policy), torch.get_rng_state()
    tables = [
        token_flips(policy, rollouts, "adamw", lr=1e-3),
        cancellation_index(policy, rollouts),
        masked_update(policy, rollouts, rollouts.completion_mask.bool(), lr=0.01),
    ]
    for table in tables:
        numbers = table.select_dtypes("number").drop(columns=["credit"], errors="ignore")
        assert np.isfinite(numbers.to_numpy(dtype=float)).all()
    assert identical(policy, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert tables[0]["dlogp"].abs().max() > 1e-3


def test_an_output_layer_trained_alone_does_what_the_closed_form_says(case):
    """For a tied model this takes a copy that is not: the formula is about a head that moves by
    itself.
    """
    _, policy, rollouts = case
    lr, alive = 0.5, rollouts.completion_mask.bool()
    chosen = alive & (torch.arange(alive.shape[1]) % 2 == 0)
    table = masked_update(policy, rollouts, chosen, "sgd", lr)
    assert set(table["position"][table["chosen"]] % 2) == {0}
    alone = copy.deepcopy(policy)
    head = alone.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    names = [
        name
        for name, p in alone.model.named_parameters()
        if any(p is own for own in head.parameters())
    ]
    start = logps(alone, rollouts)
    update(alone, rollouts, "sgd", lr, chosen=chosen, parameters=names)
    change = (logps(alone, rollouts) - start)[alive].numpy()
    np.testing.assert_allclose(table["predicted"], change, rtol=0, atol=1e-4 * np.abs(change).max())
    assert np.abs(change).max() > 0.01
    np.testing.assert_allclose(output_layer_step(policy, rollouts, lr, chosen), table["predicted"])


def test_couplings_are_inner_products_of_gradients(case):
    """kernel: of the output layer's weights, product: of all trained ones, both against autograd
    token by token.
    """
    _, policy, rollouts = case
    before, first = everything(policy), rollouts.select(slice(0, 4))
    pairs = gradient_products(policy, first, anchors=2, seed=1)
    apart = copy.deepcopy(policy)
    head = apart.model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    for part in head.parameters():
        part.requires_grad_(True)
    picked = [pairs["anchor"].iloc[0], *pairs["other"].iloc[1:20:5]]
    for column, one, weights in (
        ("kernel", apart, list(head.parameters())),
        ("product", policy, [p for p in policy.model.parameters() if p.requires_grad]),
    ):
        now = sequence_logps(one.model, *(getattr(first, name) for name in FIELDS))[0][
            first.completion_mask.bool()
        ]
        gradients = [
            torch.autograd.grad(now[i], weights, retain_graph=True, allow_unused=True)
            for i in picked
        ]
        flat = [
            torch.cat([g.flatten().double() for g in row if g is not None]) for row in gradients
        ]
        measured = pairs[pairs["anchor"] == picked[0]].set_index("other")[column][picked]
        expected = np.array([float(flat[0] @ other) for other in flat])
        loose = 0.02 if pairs["method"].iloc[0] == "difference" and column == "product" else 1e-3
        np.testing.assert_allclose(measured, expected, rtol=0, atol=loose * np.abs(expected).max())
    assert identical(policy, before)


@pytest.mark.parametrize("kind", ["no head", "bent logits"])
def test_what_a_model_cannot_support_is_refused_in_a_sentence(kind):
    policy = tiny("llama")
    rollouts = drawn(policy)
    if kind == "no head":
        policy.model.get_output_embeddings = lambda: None
        expected = "names no output layer"
    else:  # logits that are changed after the head in a way that no config names
        policy.model.__class__ = type("Bent", (Bent, type(policy.model)), {})
        expected = "changes the logits after its output layer by more than a factor"
    everything = rollouts.completion_mask.bool()
    for probe in (cancellation_index, lambda *given: masked_update(*given, everything)):
        with pytest.raises(ValueError, match=expected):
            probe(policy, rollouts)


class Bent:
    def forward(self, **inputs):
        output = super().forward(**inputs)
        output.logits = output.logits + output.logits.abs().sqrt()
        return output


def mixture_at_a_boundary() -> Policy:
    """OLMoE whose experts 0 and 1 are all but equally likely, so that the smallest step sends
    tokens elsewhere.
    """
    policy = tiny("olmoe", torch.float32)
    for layer in policy.model.model.layers:
        router = layer.mlp.gate.weight.data
        router[1] = router[0] + 1e-5 * torch.randn_like(router[0])
    return policy


def test_products_beside_a_routing_boundary_are_exact():
    policy = mixture_at_a_boundary()
    rollouts, before = drawn(policy).select(slice(0, 2)), policy.model.get_experts_implementation()
    pairs = gradient_products(policy, rollouts, anchors=1, seed=1)
    assert set(pairs["method"]) == {"jvp"}
    assert policy.model.get_experts_implementation() == before
    anchor, weights = pairs["anchor"].iloc[0], list(policy.model.parameters())
    now = sequence_logps(policy.model, *(getattr(rollouts, name) for name in FIELDS))[0][
        rollouts.completion_mask.bool()
    ]
    own, *others = (
        torch.autograd.grad(now[i], weights, retain_graph=True, materialize_grads=True)
        for i in (anchor, *range(len(now)))
    )
    expected = [
        float(sum((a * b).sum() for a, b in zip(own, other, strict=True))) for other in others
    ]
    products = pairs.sort_values("other")["product"]
    np.testing.assert_allclose(products, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", VARYING)
def test_rotary_embeddings_that_vary_with_the_batch_are_kept_from_it(name):
    """Within the length up to which they stay the same they are scored right; beyond it they are
    refused.
    """
    policy = tiny(name, torch.float32)
    rollouts = sample_rollouts(policy, get_task("chain"), 3, 4, seed=1, max_new_tokens=6)
    rows = [rollouts.select(torch.tensor([i])) for i in range(len(rollouts.rewards))]
    alone = [
        sequence_logps(policy.model, *(getattr(row, field) for field in FIELDS))[0] for row in rows
    ]
    torch.testing.assert_close(rollouts.old_logps, torch.cat(alone), atol=1e-5, rtol=1e-4)
    with pytest.raises(ValueError, match="16 tokens"):
        sample_rollouts(policy, get_task("chain"), 3, 4, seed=1, max_new_tokens=7)
    longer = rollouts.completion_ids.repeat(1, 2)
    with pytest.raises(ValueError, match="here 22"):
        sequence_logps(
            policy.model, rollouts.prompt_ids, rollouts.prompt_mask, longer, torch.ones_like(longer)
        )
