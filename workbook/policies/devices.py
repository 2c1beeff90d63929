"""Devices and dtypes: where a model is computed and in which precision, each with its reason."""

from __future__ import annotations

import torch


def choose_device() -> torch.device:
    """The best device at hand: cuda, else mps, else cpu."""
    mps = torch.backends.mps.is_available()
    return torch.device("cuda" if torch.cuda.is_available() else "mps" if mps else "cpu")


def choose_dtype(
    device_type: str, capability: tuple[int, int] | None = None, frozen: bool = True
) -> tuple[torch.dtype, str]:
    """The dtype for a model's weights on a device, and the reason in a sentence.

    capability is CUDA's compute capability (major, minor); frozen says that the weights are not trained themselves
    (inference, 4-bit, or a base under LoRA).

    >>> choose_dtype("cuda", (7, 5))[0], choose_dtype("cuda", (8, 0))[0], choose_dtype("cpu")[0]
    (torch.float16, torch.bfloat16, torch.float32)
    >>> choose_dtype("cuda", (7, 5), frozen=False)[0]
    torch.float32
    """
    if device_type == "cpu":
        return torch.float32, "float32: the fast and exact choice on a CPU"
    if device_type != "cuda":
        return torch.float32, f"float32: half precision on {device_type} is not relied upon here"
    if capability is None:
        raise ValueError('capability=None cannot be judged for device_type="cuda": pass (major, minor), e.g. (7, 5).')
    compute = f"compute capability {capability[0]}.{capability[1]}"
    if not frozen:
        return torch.float32, f"float32 ({compute}): trained weights lose small updates in half precision"
    if capability >= (8, 0):
        return torch.bfloat16, f"bfloat16: {compute} has it in hardware, and frozen weights lose little"
    return torch.float16, f"float16: {compute} (T4 class) has no bfloat16 in hardware, and the weights are frozen"


def as_device(device, quantization: str | None = None) -> torch.device:
    """The device that is meant, None for the best at hand; ValueError if it is not here, or not for a quantization."""
    if device is None:
        device = choose_device()
        if quantization and device.type not in ("cpu", "cuda"):
            device = torch.device("cpu")
    try:
        device = torch.device(device)
    except RuntimeError:
        raise ValueError(f'device={device!r} is unknown: use None, "cpu", "cuda", "cuda:0" or "mps".') from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f'device="{device}" is not available here: use None or "cpu".')
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if quantization and device.type not in ("cpu", "cuda"):
        raise ValueError(f'quantization="{quantization}" does not run on device="{device}": use "cpu" or "cuda".')
    return device


def as_dtype(dtype, device: torch.device, frozen: bool) -> tuple[torch.dtype, str]:
    """The dtype that is meant, "auto" for the device's, with the reason; ValueError for one that no model has."""
    if dtype == "auto":
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        return choose_dtype(device.type, capability, frozen)
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if chosen not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f'dtype={dtype!r} is unknown: use "auto", "float64", "float32", "bfloat16" or "float16".')
    return chosen, "as asked for"
