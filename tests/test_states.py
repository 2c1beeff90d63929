"""Output states of every kind of head against autograd: tied, untied, biased, scaled, soft-capped,
under LoRA.
"""

from types import SimpleNamespace

import pytest
import torch
from small_run import nudge_adapters
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from workbook.rollouts.sample import Rollouts
from workbook.rollouts.states import output_states

SIZES = {"vocab_size": 13, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
SIZES |= {"num_attention_heads": 2, "num_key_value_heads": 2}
SIZES |= {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
HEADS = {
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "untied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)),
    "biased": lambda: PhiForCausalLM(PhiConfig(**SIZES)),
    "scaled": lambda: CohereForCausalLM(CohereConfig(**SIZES, logit_scale=0.25)),
    "divided": lambda: GraniteForCausalLM(GraniteConfig(**SIZES, logits_scaling=0.5)),
    "soft-capped": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=3.0)
    ),
}


def make_policy(kind):
    torch.manual_seed(0)
    model = HEADS[kind]().double().eval()
    head = model.get_output_embeddings()
    with torch.no_grad():
        head.weight.mul_(20)  # logits of several units, so that a cap of 3 bends them
        if head.bias is not None:
            head.bias.normal_()
    return SimpleNamespace(model=model)


def make_rollouts():
    generator = torch.Generator().manual_seed(1)
    # the last one truncated, say
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0]])
    return Rollouts(
        prompt_ids=torch.randint(1, 13, (4, 3), generator=generator),
        prompt_mask=torch.tensor([[1, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]),
        completion_ids=torch.randint(1, 13, (4, 4), generator=generator) * mask,
        completion_mask=mask,
        group_ids=torch.zeros(4, dtype=torch.long),
        rewards=torch.tensor([1.0, 0.0, 0.0, 0.0]),
        advantages=torch.tensor([2.0, -1.0, -1.0, 0.0]),
        old_logps=torch.zeros(4, 4),
        entropies=torch.zeros(4, 4),
    )


def logps_of(model, rollouts):
    """The final log-probabilities, straight from the model's own output."""
    mask = torch.cat([rollouts.prompt_mask, rollouts.completion_mask], 1)
    ids = torch.cat([rollouts.prompt_ids, rollouts.completion_ids], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(
        input_ids=ids, attention_mask=mask, position_ids=positions, logits_to_keep=5
    ).logits[:, :-1]
    every = logits.log_softmax(-1).gather(2, rollouts.completion_ids[..., None]).squeeze(2)
    return every[rollouts.completion_mask.bool()]


def head_alone(model):
    """The output layer's own weights, cut loose from the embeddings."""
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    return [p for p in (head.weight, head.bias) if p is not None]


@pytest.mark.parametrize("kind", HEADS)
def test_the_kernel_is_that_of_the_output_layers_gradients(kind):
    policy, rollouts = make_policy(kind), make_rollouts()
    states = output_states(policy, rollouts)
    trained = head_alone(policy.model)
    rows = []
    for logp in logps_of(policy.model, rollouts):
        gradient = torch.autograd.grad(logp, trained, retain_graph=True)
        rows.append(torch.cat([g.flatten() for g in gradient]))
    rows = torch.stack(rows)
    torch.testing.assert_close(states.kernel(), rows @ rows.T, rtol=1e-6, atol=1e-9)
    coupled = states.coupled(2, torch.ones(11))
    torch.testing.assert_close(
        torch.tensor(coupled["coupling"]), rows @ rows[2], rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("kind", HEADS)
def test_the_exact_forecast_is_a_real_step_on_the_output_layer(kind):
    policy, rollouts = make_policy(kind), make_rollouts()
    states = output_states(policy, rollouts)
    weights = torch.linspace(-1, 1, 11, dtype=torch.float64)
    forecast = {lr: states.predicted(weights, lr) for lr in (1e-5, 0.3)}
    first = states.predicted(weights, 1e-5, order="first")
    torch.testing.assert_close(forecast[1e-5], first, rtol=0, atol=1e-2 * float(first.abs().max()))
    trained = head_alone(policy.model)
    before = logps_of(policy.model, rollouts)
    gradients = torch.autograd.grad((weights * before).sum(), trained)
    with torch.no_grad():
        for p, gradient in zip(trained, gradients, strict=True):
            p += 0.3 * gradient
        after = logps_of(policy.model, rollouts)
    assert (after - before).abs().max() > 0.1
    torch.testing.assert_close(forecast[0.3], after - before.detach(), rtol=1e-6, atol=1e-8)


def test_adapters_count_as_a_part_of_the_head():
    from peft import LoraConfig, get_peft_model

    policy, rollouts = make_policy("untied"), make_rollouts()
    model = get_peft_model(
        policy.model, LoraConfig(r=2, target_modules=["lm_head", "q_proj"], task_type="CAUSAL_LM")
    )
    model = model.double().eval()
    nudge_adapters(model, std=1.0)
    states = output_states(SimpleNamespace(model=model), rollouts)
    logps = states.logits.log_softmax(-1).gather(1, states.tokens[:, None])[:, 0]
    torch.testing.assert_close(logps, logps_of(model, rollouts))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda z: z**3,
            "LlamaForCausalLM changes the logits after its output layer by more than a factor",
        ),
        # its config knows of no cap
        (lambda z: 30 * torch.tanh(z / 30), "changes the logits after its output layer"),
    ],
)
def test_what_cannot_be_supported_is_refused(monkeypatch, change, message):
    policy = make_policy("untied")
    forward = policy.model.forward

    def bent(**inputs):
        output = forward(**inputs)
        output.logits = change(output.logits)
        return output

    monkeypatch.setattr(policy.model, "forward", bent)
    with pytest.raises(ValueError, match=message):
        output_states(policy, make_rollouts())
    monkeypatch.setattr(policy.model, "get_output_embeddings", lambda: None)
    with pytest.raises(ValueError, match="LlamaForCausalLM names no output layer"):
        output_states(policy, make_rollouts())
