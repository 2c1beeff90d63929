"""4-bit weights that can be trusted: unpacked on a CPU, and dequantized as their format says.

A stored weight is a code per element, an absolute maximum per block of elements and, with double quantization, a code
for that maximum too:

    w_i = code4[q_i] * m_b      m_b = code8[a_b] * M_c + offset        b = i // 64, c = b // 256

bitsandbytes 0.50 reads another block's maximum on CPUs with AVX512 wherever a layer's input width is a multiple of 16
but not of 64. So each distinct shape of a model's layers is compared with the formula once, and where they differ the
formula takes the kernel's place, for layers of that width.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import bitsandbytes
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.library import Library, get_kernel

COMPARED = 2**22  # elements of a layer that are compared, in whole rows
OPERATION = "bitsandbytes::dequantize_4bit"

_overrides: list[Library] = []  # kept, as an override ends with its library
_wrong: set[tuple[int, int]] = set()  # (input width, blocksize) for which the kernel is not asked


def keep_unpacked(model: nn.Module) -> nn.Module:
    """Forbid the CPU's repacked 4-bit layout, in which LoRA layers get no gradient and raise no error."""
    for layer in quantized_layers(model):
        layer.support_avx512bf16_for_cpu = False
    return model


def quantized_layers(model: nn.Module) -> Iterator[bitsandbytes.nn.Linear4bit]:
    """The model's 4-bit layers."""
    return (module for module in model.modules() if isinstance(module, bitsandbytes.nn.Linear4bit))


def check_dequantization(model: nn.Module) -> nn.Module:
    """Compare every distinct layer shape with the formula; on a CPU, replace the kernel for widths where it is wrong.

    Raises ValueError if a shape is still dequantized wrongly.
    """
    checked = set()
    for layer in quantized_layers(model):
        state = layer.weight.quant_state
        width, key = state.shape[-1], (tuple(state.shape), state.blocksize, state.dtype, layer.compute_dtype)
        if key in checked:
            continue
        checked.add(key)
        if _is_right(layer):
            continue
        if layer.weight.device.type == "cpu":
            _wrong.add((width, state.blocksize))
            _override()
        if not _is_right(layer):
            raise ValueError(
                f"quantization='nf4' is not possible here: bitsandbytes {bitsandbytes.__version__} dequantizes layers "
                f"of input width {width} wrongly on {layer.weight.device}; load without quantization."
            )
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


def _is_right(layer: bitsandbytes.nn.Linear4bit) -> bool:
    """Return whether the layer's first rows are dequantized as the formula says, in each dtype that it is asked for."""
    state = layer.weight.quant_state
    rows, width = state.shape[0], state.shape[-1]
    rows = min(rows, max(64, COMPARED // width // 64 * 64))  # 64 rows are whole blocks of any size up to 64 widths
    packed = layer.weight.data.flatten()[: -(-rows * width // 2)]
    maxima = _maxima(state)[: -(-rows * width // state.blocksize)]
    for dtype in {state.dtype, layer.compute_dtype or state.dtype}:
        arguments = (packed[:, None], maxima, state.blocksize, state.quant_type, (rows, width), dtype)
        expected, actual = dequantized(*arguments), torch.ops.bitsandbytes.dequantize_4bit.default(*arguments)
        if not torch.allclose(actual, expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-6 * float(maxima.max())):
            return False
    return True


def _maxima(state) -> Float[Tensor, " blocks"]:
    """Each block's absolute maximum, from a quantization state with or without double quantization."""
    if not state.nested:
        return state.absmax.float()
    own = state.state2
    coarse = own.absmax.repeat_interleave(own.blocksize)[: len(state.absmax)]
    return own.code.float()[state.absmax.int()] * coarse + state.offset


def _override() -> None:
    """Answer for the CPU's kernel where it is wrong; everywhere else it goes on to do its work."""
    if _overrides:
        return
    kernel = get_kernel(OPERATION, "CPU")

    def dequantize(keys, packed, absmax, blocksize, quant_type, shape, dtype):
        if (shape[-1], blocksize) in _wrong:
            return dequantized(packed, absmax, blocksize, quant_type, shape, dtype)
        return kernel.call_boxed(keys, packed, absmax, blocksize, quant_type, shape, dtype)

    library = Library("bitsandbytes", "IMPL")
    with warnings.catch_warnings(action="ignore"):  # that a kernel is replaced, which is meant
        library.impl("dequantize_4bit", dequantize, "CPU", with_keyset=True, allow_override=True)
    _overrides.append(library)
