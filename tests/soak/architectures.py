"""Tiny random models of every causal architecture that can be made small, bare, with LoRA, in NF4 and with both.

Each is saved, loaded by `load_policy`, sampled with prompts of unequal length, scored, and asked for its couplings.
"""

from __future__ import annotations

import copy
import logging
import random
import warnings
from pathlib import Path

import torch
from torch import nn

PROMISE = (
    "Sampling changes nothing, scores of padded batches are those of single rows, and couplings are inner products of "
    "gradients by autograd; or a sentence says what cannot be had."
)
ARCHITECTURES = """
apertus arcee aria_text bart bert bert-generation big_bird bigbird_pegasus biogpt bitnet blenderbot blenderbot-small
bloom cohere cohere2 cohere2_moe ctrl cwm deepseek_v2 diffllama doge electra ernie ernie4_5 ernie4_5_moe exaone4
falcon_h1 falcon_mamba flex_olmo gemma gemma2 gemma3_text glm glm4 glm4_moe glm4_moe_lite gpt2 gpt_bigcode gpt_neox
gpt_neox_japanese gpt_oss gptj granite granitemoe granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe jetmoe lfm2
llama llama4_text mamba marian mbart megatron-bert minimax minimax_m2 ministral mistral mixtral mpt mvp nanochat
nemotron nemotron_h olmo olmo2 olmo3 olmoe openai-gpt opt pegasus persimmon phi phi3 phimoe plbart qwen2 qwen2_moe
qwen3 qwen3_moe recurrent_gemma rembert roformer rwkv seed_oss smollm3 solar_open stablelm starcoder2 trocr vaultgemma
whisper xglm
""".split()  # noqa: SIM905
WAYS = {"bare": {}, "lora": {"lora": 2}, "nf4": {"quantization": "nf4"}, "both": {"lora": 2, "quantization": "nf4"}}
TRIALS = len(ARCHITECTURES) * len(WAYS)
LONGEST = 400  # characters of a sentence that refuses
SMALL = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "attention_hidden_size", "word_embed_proj_dim"), 32),
    **dict.fromkeys(("embedding_size", "emb_dim"), 32),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim"), 48),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"), 2),
    **dict.fromkeys(("encoder_attention_heads", "num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "head_dim"), 16),
    **dict.fromkeys(("n_group", "topk_group", "encoder_layers"), 1),
    **dict.fromkeys(("initializer_range", "init_std"), 0.3),
    **dict.fromkeys(("attention_dropout", "dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout"), 0.0),
    **dict.fromkeys(("rotary_dim", "state_size"), 8),
}
OWN = {"recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 32, "attention_window_size": 32}}
PROMPTS = ("5 - 6 + 3 =", "7 + 2 + 1 - 4 =", "1 =")


def trials(seed: int):
    """Every architecture in every way, in random order: (name, (model type, way, seed of its weights))."""
    both = [(kind, way) for kind in ARCHITECTURES for way in WAYS]
    random.Random(seed).shuffle(both)
    for kind, way in both:
        yield f"{kind} {way}", (kind, way, seed)


def attempt(folder: Path, kind: str, way: str, seed: int) -> str | None:
    """Load, sample, score and couple; None if all is right or refused in a sentence."""
    from workbook.policies.load import load_policy

    logging.getLogger("transformers").setLevel(logging.ERROR)
    with warnings.catch_warnings(action="ignore"):
        save(folder, kind, seed)
        try:
            policy = load_policy(folder, device="cpu", **WAYS[way])
        except ValueError as refusal:
            return sentence(refusal)
        for name, p in policy.model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(p, std=0.1)
        for check in CHECKS:
            try:
                finding = check(policy)
            except ValueError as refusal:
                finding = sentence(refusal)
            if finding:
                return f"{check.__name__}: {finding}"
    return None


def sentence(refusal: ValueError) -> str | None:
    """None if the refusal is one clear sentence."""
    text = str(refusal)
    return f"refused by {len(text)} characters: {text[:200]}" if "\n" in text or len(text) > LONGEST else None


def save(folder: Path, kind: str, seed: int) -> None:
    """A small random model of the architecture and the bundled tokenizer, as files."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from workbook.policies.load import load_policy

    tokenizer = load_policy("bundled", device="cpu").tokenizer
    usual = AutoConfig.for_model(kind)
    settings = {name: value for name, value in SMALL.items() if hasattr(usual, name)} | OWN.get(kind, {})
    ends = {"bos_token_id": tokenizer.eos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": None}
    config = AutoConfig.for_model(kind, **settings, **ends, vocab_size=len(tokenizer))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Given:
    """A task of prompts of unequal length, whose reward is a text's length modulo 3."""

    name = "given"

    def reward(self, prompts, completions, **_):
        return [len(text) % 3 / 2 for text in completions]


def sampled(policy, **settings):
    from workbook.rollouts.sample import sample_rollouts

    rows = [{"prompt": prompt, "answer": ""} for prompt in PROMPTS]
    return sample_rollouts(policy, Given(), rows, 2, seed=1, max_new_tokens=5, **settings)


def sampling_changes_nothing(policy) -> str | None:
    """Weights, buffers, modes and generators are as before, and the same seed gives the same."""
    from soak.interrupts import differences, same, state

    sampled(policy)  # what a model computes once, it may keep
    before = state(policy)
    first = sampled(policy)
    if changed := differences(before, state(policy)):
        return ", ".join(changed) + " changed"
    return None if same(first.completion_ids, sampled(policy).completion_ids) else "the same seed gave other tokens"


def padding_changes_no_score(policy) -> str | None:
    """Each row's scores are those of a pass of its own without padding, and greedy tokens are its likeliest."""
    from workbook.rollouts.scoring import unpadded

    rollouts = sampled(policy, top_k=1)
    prompts = unpadded(rollouts.prompt_ids, rollouts.prompt_mask)
    completions = unpadded(rollouts.completion_ids, rollouts.completion_mask)
    worst = 0.0
    with torch.no_grad():
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            logits = policy.model(torch.tensor([prompt + completion]), use_cache=False).logits[0]
            alone = logits.double().log_softmax(-1)[len(prompt) - 1 : -1]
            likeliest, alone = alone.amax(1), alone.gather(1, torch.tensor(completion)[:, None])[:, 0]
            if (likeliest - alone).max() > 2e-3:
                return f"greedy sampling took a token {float((likeliest - alone).max()):.3g} nats below the likeliest"
            worst = max(worst, float((alone - rollouts.old_logps[row, : len(completion)]).abs().max()))
    return f"scores are off by {worst:.3g} nats" if worst > 2e-3 else None


def couplings_are_those_of_autograd(policy) -> str | None:
    """K of one token with all others, and the products of all trained weights' gradients."""
    from workbook.probes import gradient_products
    from workbook.rollouts.scoring import sequence_logps

    rollouts = sampled(policy).select([2, 3])
    fields = (rollouts.prompt_ids, rollouts.prompt_mask, rollouts.completion_ids, rollouts.completion_mask)
    apart = copy.deepcopy(policy)
    head = apart.model.get_output_embeddings()
    if head is not None:
        head.weight = nn.Parameter(head.weight.detach().clone())
    trains = any(p.requires_grad for p in policy.model.parameters())
    if not trains:  # a quantized model without adapters
        return None
    pairs = gradient_products(policy, rollouts, anchors=1, seed=1)
    anchor, loose = pairs["anchor"].iloc[0], 0.05 if pairs["method"].iloc[0] == "difference" else 2e-3
    for column, one, weights in (
        ("kernel", apart, [p.requires_grad_(True) for p in head.parameters()]),
        ("product", policy, [p for p in policy.model.parameters() if p.requires_grad]),
    ):
        now = sequence_logps(one.model, *fields)[0][rollouts.completion_mask.bool()]
        own = torch.autograd.grad(now[anchor], weights, retain_graph=True, materialize_grads=True)
        couplings = pairs.sort_values("other")[column].to_numpy()
        expected = []
        for logp in now:
            other = torch.autograd.grad(logp, weights, retain_graph=True, materialize_grads=True)
            expected.append(sum(float((a.double() * b.double()).sum()) for a, b in zip(own, other, strict=True)))
        largest = max(map(abs, expected))
        worst = max(abs(a - b) for a, b in zip(couplings, expected, strict=True))
        if worst > loose * largest:
            return f"{column} is off by {worst / largest:.3g} of the largest"
    return None


CHECKS = (sampling_changes_nothing, padding_changes_no_score, couplings_are_those_of_autograd)
