"""4-bit weights on a CPU: kept unpacked, so that LoRA gets its gradients, and dequantized as their format says.

A stored weight is a code per element times an absolute maximum per block of elements:

    w_i = code4[q_i] * m_b        b = i // 64

bitsandbytes 0.50 reads another block's maximum on CPUs with AVX512 wherever a layer's input width is a multiple of 16
but not of 64 (32, 48, 96). For widths that are no multiple of the block the formula takes its kernel's place.
"""

from __future__ import annotations

import warnings

import bitsandbytes
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.library import Library, get_kernel

OPERATION = "bitsandbytes::dequantize_4bit"
_overrides: list[Library] = []  # kept, as an override ends with its library


def prepare_for_cpu(model: nn.Module) -> nn.Module:
    """Forbid the repacked layout, in which LoRA layers get no gradient and raise no error; mend the kernel."""
    for layer in model.modules():
        if isinstance(layer, bitsandbytes.nn.Linear4bit):
            layer.support_avx512bf16_for_cpu = False
    if not _overrides:
        _override()
    return model


def dequantized(
    packed: Tensor, maxima: Float[Tensor, " blocks"], blocksize: int, kind: str, shape, dtype: torch.dtype
) -> Tensor:
    """The weight (of `shape`) that packed 4-bit codes stand for, by the formula; kind: "nf4" or "fp4"."""
    codes = packed.contiguous().view(torch.uint8).flatten()
    codes = torch.stack([codes >> 4, codes & 0xF], dim=1).flatten().int()
    values = bitsandbytes.functional.get_4bit_type(kind, device=packed.device).float()[codes]
    size = torch.Size(shape).numel()
    return (values[:size] * maxima.float().repeat_interleave(blocksize)[:size]).to(dtype).reshape(shape)


def _override() -> None:
    """Answer for the CPU's kernel where a row is no whole number of blocks; elsewhere it goes on to do its work."""
    kernel = get_kernel(OPERATION, "CPU")

    def dequantize(keys, packed, absmax, blocksize, quant_type, shape, dtype):
        if shape[-1] % blocksize:
            return dequantized(packed, absmax, blocksize, quant_type, shape, dtype)
        return kernel.call_boxed(keys, packed, absmax, blocksize, quant_type, shape, dtype)

    library = Library("bitsandbytes", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # that a kernel is replaced, which is meant
        library.impl("dequantize_4bit", dequantize, "CPU", with_keyset=True, allow_override=True)
    _overrides.append(library)
