"""A small Llama layer by layer: the arithmetic of transformers without its calls, and each prompt
computed once.

Sampled tokens are those that `generate` draws from the same seed, and their logits come with them,
so that nothing is scored again. Of the policies of this book, 64 rollouts take less than half the
time, a pass without gradients 3/4.

Letters: B sequences, P prompt tokens, T sampled tokens, H heads, V vocabulary.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

ROWS_AT_ONCE = 32  # of a pass: their activations stay near the processor
# beyond, arithmetic costs more than calls, and logits are too many to keep
MAX_WIDTH, MAX_VOCABULARY = 256, 512
PLAIN = {
    "do_sample": True,
    "top_k": 0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "disable_compile": True,
}
FREE = ("max_new_tokens", "temperature", "pad_token_id", "eos_token_id", "transformers_version")


def is_small(model: nn.Module) -> bool:
    """Whether this module takes a model: a Llama of float32 on the CPU as transformers makes it, no
    larger.

    Not with adapters, hooks, a forward pass of somebody else's, biases, or rotary embeddings of
    another kind.
    """
    if type(model) is not LlamaForCausalLM or "forward" in vars(model):
        return False
    config, kinds = model.config, {"Linear", "Embedding", "ModuleList", "SiLUActivation"}
    own = all(
        type(part).__name__ in kinds or type(part).__name__.startswith("Llama")
        for part in model.modules()
    )
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    sizes = config.hidden_size <= MAX_WIDTH and config.vocab_size <= MAX_VOCABULARY
    sizes &= config.num_key_value_heads == config.num_attention_heads
    plain = model.model.rotary_emb.rope_type == "default" and not (
        config.attention_bias or config.mlp_bias
    )
    floats = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())
    return own and not hooked and sizes and plain and floats


def is_plain(config) -> bool:
    """Whether a GenerationConfig samples from softmax(logits / temperature) and from nothing else."""
    given = config.to_diff_dict()
    return {name: value for name, value in given.items() if name not in FREE} == PLAIN


@torch.no_grad()
def sample_small(
    model: LlamaForCausalLM, prompt_ids: Int[Tensor, "B P"], prompt_mask: Int[Tensor, "B P"], config
) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B T V"]]:
    """Sampled tokens, padding after a sequence's end token, and the logits that they were drawn
    from.

    prompts are left-padded; draws come from torch's generator.  config: one that `is_plain`; logits
    are those before its temperature.
    """
    most, ends = config.max_new_tokens, torch.as_tensor(config.eos_token_id)
    going, tokens = torch.ones(len(prompt_ids), dtype=torch.long), []
    run, first = _started(model, prompt_ids, prompt_mask, most)
    logits = [first]
    while True:
        drawn = torch.multinomial((logits[-1] / config.temperature).softmax(-1), 1).squeeze(1)
        tokens.append(drawn * going + config.pad_token_id * (1 - going))
        going = going * ~torch.isin(tokens[-1], ends)
        if len(tokens) == most or not going.any():
            return torch.stack(tokens, dim=1), torch.stack(logits, dim=1)
        logits.append(run.step(tokens[-1][:, None])[:, 0])


@torch.no_grad()
def small_logits(
    model: LlamaForCausalLM,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
) -> Float[Tensor, "B T V"]:
    """Logits of the context of every completion token, of a model that `is_small`; prompts are
    left-padded.
    """
    logits, most = [], completion_ids.shape[1] - 1
    for rows in torch.arange(len(prompt_ids)).split(ROWS_AT_ONCE):
        run, first = _started(model, prompt_ids[rows], prompt_mask[rows], most)
        behind = [run.step(completion_ids[rows, :most])] if most else []
        logits.append(torch.cat([first[:, None], *behind], dim=1))
    return torch.cat(logits)


def _started(
    model: LlamaForCausalLM, prompt_ids: Tensor, prompt_mask: Tensor, most: int
) -> tuple[_Run, Float[Tensor, "B V"]]:
    """A run of so many tokens behind the prompts, and the logits there; a prompt that rows share is
    computed once.
    """
    unique, rows = prompt_ids.masked_fill(prompt_mask == 0, -1).unique(dim=0, return_inverse=True)
    first = torch.empty(len(unique), dtype=torch.long).scatter_(0, rows, torch.arange(len(rows)))
    run = _Run(model, prompt_ids[first], prompt_mask[first], most)
    logits = run.step(prompt_ids[first], last=True)[rows, 0]
    run.select(rows)
    return run, logits


class _Run:
    """Keys and values of all layers, filled from the prompts on."""

    def __init__(self, model: LlamaForCausalLM, prompt_ids: Tensor, prompt_mask: Tensor, most: int):
        core, config = model.model, model.config
        self.heads, self.eps, self.done = config.num_attention_heads, config.rms_norm_eps, 0
        self.embedding, self.norm, self.head = (
            core.embed_tokens.weight,
            core.norm.weight,
            model.lm_head.weight.t(),
        )
        self.layers = []
        for layer in core.layers:
            attention, mlp = layer.self_attn, layer.mlp
            into = torch.cat(
                [part.weight for part in (attention.q_proj, attention.k_proj, attention.v_proj)]
            )
            wide = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
            norms = layer.input_layernorm.weight, layer.post_attention_layernorm.weight
            self.layers.append(
                (*norms, into.t(), attention.o_proj.weight.t(), wide.t(), mlp.down_proj.weight.t())
            )
        (B, P), width = prompt_ids.shape, core.layers[0].self_attn.head_dim
        # keys and values
        self.kept = torch.empty(len(self.layers), 2, B, self.heads, P + most, width)
        self.alive = F.pad(prompt_mask.bool(), (0, most), value=True)
        self.padded = not prompt_mask.all()
        positions = (self.alive.long().cumsum(1) - 1).clamp(min=0)
        angles = positions[..., None].float() * core.rotary_emb.inv_freq  # (B, P + most, width / 2)
        self.cos = torch.cat([angles, angles], dim=-1).cos()[:, :, None]
        self.sin = torch.cat([-angles.sin(), angles.sin()], dim=-1)[:, :, None]

    def select(self, rows: Int[Tensor, " n"]) -> None:
        """Go on with these of the sequences, which may be named more than once."""
        self.kept = self.kept[:, :, rows]
        self.alive, self.cos, self.sin = self.alive[rows], self.cos[rows], self.sin[rows]

    def step(self, ids: Int[Tensor, "B n"], last: bool = False) -> Float[Tensor, "B n V"]:
        """Logits after each of n further tokens of a sequence, or after the last one alone."""
        (B, n), heads, start = ids.shape, self.heads, self.done
        self.done = end = start + n
        cos, sin, mask = self.cos[:, start:end], self.sin[:, start:end], None
        if self.padded or (start and n > 1):
            mask = (
                torch.ones(n, end, dtype=torch.bool).tril(start) & self.alive[:, None, None, :end]
            )
            if start == 0:  # padding sees itself: a softmax needs someone
                mask |= torch.eye(n, dtype=torch.bool)
        x = self.embedding[ids.flatten()]  # (B n, width)
        for (first, second, into, out, wide, narrow), kept in zip(
            self.layers, self.kept, strict=True
        ):
            parts = (self._normed(x, first) @ into).view(B, n, 3 * heads, -1)
            turned = parts[:, :, : 2 * heads]
            turned = turned * cos + turned.roll(turned.shape[-1] // 2, -1) * sin
            query, kept[0, :, :, start:end] = (
                part.transpose(1, 2) for part in turned.chunk(2, dim=2)
            )
            kept[1, :, :, start:end] = parts[:, :, 2 * heads :].transpose(1, 2)
            seen = F.scaled_dot_product_attention(
                query,
                kept[0, :, :, :end],
                kept[1, :, :, :end],
                attn_mask=mask,
                is_causal=mask is None and n > 1,
            )
            x = torch.addmm(x, seen.transpose(1, 2).reshape(B * n, -1), out)
            gate, up = (self._normed(x, second) @ wide).chunk(2, dim=1)
            x = torch.addmm(x, F.silu(gate, inplace=True).mul_(up), narrow)
        x = x.view(B, n, -1)
        return self._normed(x[:, -1:] if last else x, self.norm) @ self.head

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * weight
