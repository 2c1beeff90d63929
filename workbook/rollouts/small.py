"""A small Llama layer by layer: the arithmetic of transformers without its calls.

The policies of the known worlds have two layers and 64 columns. A pass through them is a dozen
small matrix products, and most of the time goes into the calls around them. So this module writes
the pass out: embedding, attention with a cache of keys and values, MLP, output head. Each prompt is
computed once, however many rollouts share it. Of the policies of this book, 64 rollouts take less
than half the time, a pass without gradients 3/4.

It is also the shortest complete account of what such a model computes. For each layer, on the
residual stream x of every position:

    q, k, v = heads of norm(x) @ W_qkv            turned by their positions: q and k
    x       = x + softmax(q k' / sqrt(width)) v @ W_out
    x       = x + (silu(g) * u) @ W_down          g, u = halves of norm(x) @ W_gate_up

Sampled tokens are those that transformers' `generate` draws from the same seed, and their logits
come with them, so that nothing is scored again.

Letters: B sequences, P prompt tokens, T sampled tokens, n new tokens of a step, H heads, W width of
a head, D width of the model, I width of its MLP, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import LlamaForCausalLM

# rows of a pass: their activations stay near the processor
_ROWS_AT_ONCE = 32

# beyond these, arithmetic costs more than calls, and logits are too many to keep
_MAX_WIDTH = 256
_MAX_VOCABULARY = 512

# what a GenerationConfig says that samples from softmax(logits / temperature), and the fields that
# may say anything
_TEMPERATURE_ALONE = {
    "do_sample": True,
    "top_k": 0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "disable_compile": True,
}
_FREE_FIELDS = (
    "max_new_tokens",
    "temperature",
    "pad_token_id",
    "eos_token_id",
    "transformers_version",
)


def is_small(model: nn.Module) -> bool:
    """Whether this module takes a model: a small Llama of transformers, in float32 on the CPU.

    Not with adapters, hooks, a forward pass of somebody else's, biases, or rotary embeddings of
    another kind.
    """
    if type(model) is not LlamaForCausalLM or "forward" in vars(model):
        return False

    # adapters and quantized layers are modules of other kinds
    for part in model.modules():
        kind = type(part).__name__
        known = kind in ("Linear", "Embedding", "ModuleList", "SiLUActivation")
        if not known and not kind.startswith("Llama"):
            return False
        if part._forward_hooks or part._forward_pre_hooks:
            return False

    config = model.config
    if config.hidden_size > _MAX_WIDTH or config.vocab_size > _MAX_VOCABULARY:
        return False
    # a key and a value for each query
    if config.num_key_value_heads != config.num_attention_heads:
        return False
    if config.attention_bias or config.mlp_bias:
        return False
    if model.model.rotary_emb.rope_type != "default":
        return False
    return all(p.dtype == torch.float32 and p.device.type == "cpu" for p in model.parameters())


def is_plain(config) -> bool:
    """Whether a GenerationConfig samples from softmax(logits / temperature) and nothing else."""
    given = config.to_diff_dict()
    return {name: given[name] for name in given if name not in _FREE_FIELDS} == _TEMPERATURE_ALONE


@torch.no_grad()
def sample_small(
    model: LlamaForCausalLM, prompt_ids: Int[Tensor, "B P"], prompt_mask: Int[Tensor, "B P"], config
) -> tuple[Int[Tensor, "B T"], Float[Tensor, "B T V"]]:
    """Sampled tokens, padding after a sequence's end token, and the logits they were drawn from.

    Prompts are left-padded; draws come from torch's generator.

    config: one that `is_plain`; logits are those before its temperature.
    """
    ends = torch.as_tensor(config.eos_token_id)
    cache, first = _prefilled(model, prompt_ids, prompt_mask, config.max_new_tokens)
    going = torch.ones(len(prompt_ids), dtype=torch.long)  # (B,), 0 after a sequence's end
    tokens = []
    logits = [first]
    while True:
        probabilities = (logits[-1] / config.temperature).softmax(-1)  # (B, V)
        drawn = torch.multinomial(probabilities, 1).squeeze(1)
        tokens.append(drawn * going + config.pad_token_id * (1 - going))
        going = going * ~torch.isin(tokens[-1], ends)
        if len(tokens) == config.max_new_tokens or not going.any():
            return torch.stack(tokens, dim=1), torch.stack(logits, dim=1)
        logits.append(cache.step(tokens[-1][:, None])[:, 0])


@torch.no_grad()
def small_logits(
    model: LlamaForCausalLM,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"],
    completion_ids: Int[Tensor, "B T"],
) -> Float[Tensor, "B T V"]:
    """Logits that every completion token is drawn from, of a model that `is_small`.

    Prompts are left-padded.
    """
    # the last token predicts nothing
    read = completion_ids.shape[1] - 1
    batches = []
    for rows in torch.arange(len(prompt_ids)).split(_ROWS_AT_ONCE):
        cache, first = _prefilled(model, prompt_ids[rows], prompt_mask[rows], read)
        logits = [first[:, None]]  # (b, 1, V)
        if read:
            logits.append(cache.step(completion_ids[rows, :read]))  # (b, T - 1, V)
        batches.append(torch.cat(logits, dim=1))
    return torch.cat(batches)


def _prefilled(
    model: LlamaForCausalLM,
    prompt_ids: Int[Tensor, "B P"],
    prompt_mask: Int[Tensor, "B P"],
    capacity: int,
) -> tuple[_Cache, Float[Tensor, "B V"]]:
    """A cache that has read the prompts, and the logits behind them.

    It has room for `capacity` further tokens of each sequence. A prompt that rows share is computed
    once.
    """
    tokens = prompt_ids.masked_fill(prompt_mask == 0, -1)
    distinct, rows = tokens.unique(dim=0, return_inverse=True)  # rows (B,): the prompt of each

    # one row of each prompt
    one = torch.empty(len(distinct), dtype=torch.long).scatter_(0, rows, torch.arange(len(rows)))
    cache = _Cache(model, prompt_ids[one], prompt_mask[one], capacity)
    logits = cache.step(prompt_ids[one], last=True)[rows, 0]
    cache.select(rows)
    return cache, logits


class _Layer(NamedTuple):
    """Weights of a layer, as x @ weight takes them."""

    attention_norm: Float[Tensor, " D"]
    qkv: Float[Tensor, "D 3HW"]
    out: Float[Tensor, "HW D"]
    mlp_norm: Float[Tensor, " D"]
    gate_up: Float[Tensor, "D 2I"]
    down: Float[Tensor, "I D"]


class _Cache:
    """A model, and the keys and values of all its layers for what sequences have read so far."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        prompt_ids: Int[Tensor, "B P"],
        prompt_mask: Int[Tensor, "B P"],
        capacity: int,
    ):
        core, config = model.model, model.config
        self.heads = config.num_attention_heads
        self.eps = config.rms_norm_eps
        self.embedding = core.embed_tokens.weight  # (V, D)
        self.norm = core.norm.weight
        self.head = model.lm_head.weight.t()  # (D, V)
        self.layers = [_weights(layer) for layer in core.layers]

        B, P = prompt_ids.shape
        width = core.layers[0].self_attn.head_dim
        # per layer: keys and values
        self.cache = torch.empty(len(self.layers), 2, B, self.heads, P + capacity, width)
        self.filled = 0
        self.alive = F.pad(prompt_mask.bool(), (0, capacity), value=True)  # (B, P + capacity)
        self.padded = not prompt_mask.all()

        # Rotary embedding: columns i and i + W/2 of a head turn by an angle that grows with the
        # position. Positions count real tokens only.
        positions = (self.alive.long().cumsum(1) - 1).clamp(min=0)
        angles = positions[..., None].float() * core.rotary_emb.inv_freq  # (B, P + capacity, W / 2)
        # (B, P + capacity, 1, W), the 1 for all heads
        self.cos = torch.cat([angles, angles], dim=-1).cos()[:, :, None]
        self.sin = torch.cat([-angles.sin(), angles.sin()], dim=-1)[:, :, None]

    def select(self, rows: Int[Tensor, " n"]) -> None:
        """Go on with these of the sequences, which may be named more than once."""
        self.cache = self.cache[:, :, rows]
        self.alive = self.alive[rows]
        self.cos = self.cos[rows]
        self.sin = self.sin[rows]

    def step(self, ids: Int[Tensor, "B n"], last: bool = False) -> Float[Tensor, "B n V"]:
        """Read n further tokens of each sequence, and return the logits after each of them.

        last: only those after the last token, (B, 1, V).
        """
        (B, n), H = ids.shape, self.heads
        start, end = self.filled, self.filled + n
        self.filled = end
        cos, sin = self.cos[:, start:end], self.sin[:, start:end]
        mask = self._attention_mask(start, end)

        # all positions as rows of one matrix
        x = self.embedding[ids.flatten()]  # (B n, D)
        for layer, cache in zip(self.layers, self.cache, strict=True):
            heads = (self._normed(x, layer.attention_norm) @ layer.qkv).view(B, n, 3 * H, -1)

            # queries and keys are turned, values are not
            turned = heads[:, :, : 2 * H]
            turned = turned * cos + turned.roll(turned.shape[-1] // 2, -1) * sin
            query, key = (part.transpose(1, 2) for part in turned.chunk(2, dim=2))  # (B, H, n, W)
            cache[0, :, :, start:end] = key
            cache[1, :, :, start:end] = heads[:, :, 2 * H :].transpose(1, 2)

            keys, values = cache[0, :, :, :end], cache[1, :, :, :end]
            causal = mask is None and n > 1
            seen = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, is_causal=causal
            )  # (B, H, n, W)
            x = torch.addmm(x, seen.transpose(1, 2).reshape(B * n, -1), layer.out)

            gate, up = (self._normed(x, layer.mlp_norm) @ layer.gate_up).chunk(2, dim=1)
            x = torch.addmm(x, F.silu(gate, inplace=True).mul_(up), layer.down)

        x = x.view(B, n, -1)
        if last:
            x = x[:, -1:]
        return self._normed(x, self.norm) @ self.head

    def _attention_mask(self, start: int, end: int) -> Bool[Tensor, "B 1 n end"] | None:
        """Which positions each new token sees; None where a causal mask, or none, says the same."""
        n = end - start
        if not self.padded and (start == 0 or n == 1):
            return None
        mask = torch.ones(n, end, dtype=torch.bool).tril(start) & self.alive[:, None, None, :end]
        if start == 0:
            # a softmax over nothing is NaN: padding sees itself
            mask |= torch.eye(n, dtype=torch.bool)
        return mask

    def _normed(self, x: Float[Tensor, "... D"], weight: Float[Tensor, " D"]) -> Tensor:
        """Root-mean-square norm."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * weight


def _weights(layer: nn.Module) -> _Layer:
    """Weights of a layer of transformers' Llama, those that read the same input side by side."""
    attention, mlp = layer.self_attn, layer.mlp
    qkv = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    gate_up = [mlp.gate_proj.weight, mlp.up_proj.weight]
    return _Layer(
        attention_norm=layer.input_layernorm.weight,
        qkv=torch.cat(qkv).t(),
        out=attention.o_proj.weight.t(),
        mlp_norm=layer.post_attention_layernorm.weight,
        gate_up=torch.cat(gate_up).t(),
        down=mlp.down_proj.weight.t(),
    )
