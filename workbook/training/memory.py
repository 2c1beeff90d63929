"""What a (Q)LoRA GRPO run will need in memory, part by part, before anything is loaded; and what it did need.

The forecast counts parameters exactly, on the meta device, and estimates the rest from shapes. It leaves out the
allocator's fragmentation and the libraries themselves; chapter 11 shows it beside a measured peak.
"""

from __future__ import annotations

import sys

import pandas as pd
import psutil
import torch
from torch import nn

MIB = 2**20
NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)  # 4 bits, an 8-bit scale per 64 weights, a 32-bit scale per 256 of those
ADAM_BYTES = 8  # two float32 moments per trained weight
HEAD_CHUNK = 256  # rows of logits that TRL's fused output head holds at a time
# Values kept for backward per token and layer, in units of the width D and of the MLP width I: inputs of two norms, of
# q/k/v, of the attention's output projection and its four inputs; gate, up, their product and the activation.
KEPT_PER_WIDTH, KEPT_PER_MLP = 9, 4


def memory_forecast(
    config,
    *,
    quantization: str | None = None,
    lora: int | None = None,
    rollouts: int,
    microbatch: int,
    prompt_length: int,
    completion_length: int,
    dtype: torch.dtype = torch.float32,
    gradient_checkpointing: bool = False,
) -> pd.DataFrame:
    """Memory a run needs, as a table of parts.

    Args:
        config: the model's transformers config.
        quantization: None or "nf4".
        lora: rank of the adapters on every linear layer but the head; None to train all weights.
        rollouts: sequences generated at once, per_device_train_batch_size * steps_per_generation.
        microbatch: sequences in one forward and backward pass.
        prompt_length, completion_length: tokens, the longest of a batch.
        dtype: of frozen weights and of what is kept for backward.
        gradient_checkpointing: keep one hidden state per layer and recompute the rest.

    Returns:
        Columns part, mib, phase ("always", "generation" or "training"). The peak is "always" plus the larger of the
        other two
        phases' sums: `peak_mib(table)`.

    >>> from transformers import LlamaConfig
    >>> tiny = LlamaConfig(hidden_size=64, num_hidden_layers=2, intermediate_size=128, vocab_size=100)
    >>> table = memory_forecast(tiny, rollouts=8, microbatch=8, prompt_length=8, completion_length=32)
    >>> bool(peak_mib(table) > table.set_index("part").mib["weights"])
    True
    """
    if min(rollouts, microbatch, prompt_length, completion_length) < 1:
        raise ValueError(
            f"rollouts={rollouts}, microbatch={microbatch}, prompt_length={prompt_length} and completion_length="
            f"{completion_length} must each be at least 1."
        )
    linear, other, adapters, largest = _parameters(config, lora)
    size = dtype.itemsize
    text = config.get_text_config()
    tokens = microbatch * (prompt_length + completion_length)
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    kv = 2 * text.num_hidden_layers * (text.num_key_value_heads or text.num_attention_heads) * head_dim * size
    layer = KEPT_PER_WIDTH * text.hidden_size + KEPT_PER_MLP * text.intermediate_size
    kept = (
        text.hidden_size * text.num_hidden_layers + layer if gradient_checkpointing else layer * text.num_hidden_layers
    )
    trained = adapters if lora else linear + other
    parts = [
        ("weights", linear * (NF4_BITS / 8 if quantization else size) + other * size, "always"),
        ("adapters", adapters * 4, "always"),
        ("Adam's moments", trained * ADAM_BYTES, "always"),
        ("gradients", trained * 4, "training"),
        ("kept for backward", tokens * kept * size, "training"),
        ("logits", 3 * min(HEAD_CHUNK, tokens) * text.vocab_size * 4, "training"),
        ("dequantized layer", largest * size if quantization else 0, "training"),
        ("key-value cache", rollouts * (prompt_length + completion_length) * kv, "generation"),
        ("next-token logits", 3 * rollouts * text.vocab_size * 4, "generation"),
    ]
    return pd.DataFrame([(part, value / MIB, phase) for part, value, phase in parts], columns=["part", "mib", "phase"])


def peak_mib(forecast: pd.DataFrame) -> float:
    """Peak of a `memory_forecast` table in MiB: what is always there plus the hungrier phase."""
    phases = forecast.groupby("phase")["mib"].sum()
    return float(phases["always"] + max(phases["generation"], phases["training"]))


def used_mib(device: str | torch.device) -> float:
    """Memory this process holds now, in MiB: allocated by torch on a GPU, resident on a CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.memory_allocated(device) / MIB
    return psutil.Process().memory_info().rss / MIB


def peak_used_mib(device: str | torch.device) -> float:
    """The most this process has held so far, in MiB; on a CPU without that record (Windows), what it holds now."""
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    try:
        import resource
    except ImportError:
        return used_mib(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / MIB if sys.platform == "darwin" else peak / 1024


def _parameters(config, lora: int | None) -> tuple[int, int, int, int]:
    """Weights in linear layers that 4-bit loading quantizes, all others, adapter weights, the largest linear layer."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings()
    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
    linear = sum(m.weight.numel() for m in layers)
    total = sum(p.numel() for p in model.parameters())  # a tied embedding is counted once
    adapters = sum((lora or 0) * (m.in_features + m.out_features) for m in layers)
    return linear, total - linear, adapters, max(m.weight.numel() for m in layers)
