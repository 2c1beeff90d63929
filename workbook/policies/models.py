"""Models, whichever they are: copies to change, devices and dtypes, a trial, and memory.

A probe steps a copy and never the policy that it is given. So there is nothing to put back, and an
interrupt, another thread or an error in the middle of a step leaves the policy as it was. A copy of
a quantized model with LoRA costs its adapters, since frozen weights are shared (`private_copy`).

Whether padding changes a model, and whether it looks ahead, is found by a trial on a few tokens
(`padding_error`), not from a list of names. What a pass will hold is counted from the config
(`row_bytes`), so that rows are chosen before memory runs out.

On CPUs with AVX512 bitsandbytes 0.50 reads another block's maximum wherever a layer's input width
is a multiple of 16 but no whole number of its blocks of 64 weights. Such models are refused.
"""

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbook.messages import InvalidValue

MIB = 2**20
# tokens of a model's trial
_TRIAL = 6
# weights that share an absolute maximum in 4 bits
_NF4_BLOCK = 64


# -- copies, modes, seeds


def private_copy(policy, weights: bool = True):
    """A copy of a policy to step, in eval mode.

    It has trained weights and buffers of its own; frozen (and quantized) weights are shared.
    Memory: one copy of what is trained, of a policy with LoRA its adapters.

    weights: False shares the trained ones, too, so that only modules, hooks and configs are its
    own.
    """
    return replace(policy, model=_own_modules(policy.model, weights).eval())


def _own_modules(model: nn.Module, weights: bool = False) -> nn.Module:
    """A copy of a model's modules around its very weights; `weights` copies the trained ones."""
    # deepcopy takes from this memo what it would copy otherwise
    shared = {}
    for parameter in model.parameters():
        if parameter.requires_grad and weights:
            continue
        shared[id(parameter)] = parameter
        # a quantized weight of bitsandbytes has a state, which its layer holds, too
        state = getattr(parameter, "quant_state", None)
        if state is not None:
            shared[id(state)] = state
    return copy.deepcopy(model, shared)


def recomputing(model: nn.Module) -> nn.Module:
    """The model with its very weights, whose layers are computed again in a backward pass.

    As gradient checkpointing does, here in eval mode, too.
    """
    from torch.utils.checkpoint import checkpoint
    from transformers.modeling_layers import GradientCheckpointingLayer

    # modules of its own, since each gets another forward pass
    own = _own_modules(model)
    for layer in own.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = partial(
                checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False
            )
    return own


def reading(policy):
    """The policy for passes in eval mode: itself, or a view with the same weights if it trains."""
    training = any(module.training for module in policy.model.modules())
    return private_copy(policy, weights=False) if training else policy


@contextmanager
def evaluating(model: nn.Module) -> Iterator[nn.Module]:
    """Eval mode inside the block; afterwards every submodule is in the mode it was in."""
    # one by one, since a model may have frozen parts in another mode
    training = [module for module in model.modules() if module.training]
    try:
        if training:
            model.eval()
        yield model
    finally:
        for module in training:
            module.training = True


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's generators inside the block, the CPU's and the device's.

    Afterwards they are as they were.
    """
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)
        yield


def varies_with_length(module: nn.Module) -> bool:
    """Whether a module is a rotary embedding whose frequencies change with a pass's length."""
    kinds = vars(module).get("rope_type")
    # a model with several kinds of layers has a dict of them
    kinds = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any("dynamic" in kind or kind == "longrope" for kind in kinds if isinstance(kind, str))


def check_length(model: nn.Module, lengths: Int[Tensor, " B"]) -> None:
    """Raise ValueError for sequences so long that a rotary embedding changes its frequencies.

    lengths: tokens of each sequence.
    """
    for module in filter(varies_with_length, model.modules()):
        parameters = module.config.rope_parameters
        kinds = [parameters] if "rope_type" in parameters else parameters.values()
        most = min(
            kind.get("original_max_position_embeddings") or module.original_max_seq_len
            for kind in kinds
        )
        length = int(lengths.max())
        if length > most:
            raise ValueError(
                f"{type(model).__name__} changes its rotary embedding beyond {most} tokens, so that"
                " a token's logits depend on the longest sequence of its batch: keep prompt and"
                f" completion, here {length}, within them."
            )


# -- device and dtype


def choose_device() -> torch.device:
    """The best device at hand: cuda, else mps, else cpu."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")


def choose_dtype(
    device_type: str, capability: tuple[int, int] | None = None, frozen: bool = True
) -> tuple[torch.dtype, str]:
    """The dtype for a model's weights on a device, and the reason in a sentence.

    capability: CUDA's compute capability (major, minor).
    frozen: whether the weights are not trained themselves (inference, 4-bit, a base under LoRA).

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
        raise InvalidValue(
            "capability", None, '(major, minor), e.g. (7, 5), with device_type="cuda"'
        )
    compute = f"compute capability {capability[0]}.{capability[1]}"
    if not frozen:
        return (
            torch.float32,
            f"float32 ({compute}): trained weights lose small updates in half precision",
        )
    if capability >= (8, 0):
        return (
            torch.bfloat16,
            f"bfloat16: {compute} has it in hardware, and frozen weights lose little",
        )
    return (
        torch.float16,
        f"float16: {compute} (T4 class) has no bfloat16 in hardware, and the weights are frozen",
    )


def as_device(device, quantization: str | None = None) -> torch.device:
    """The device that is meant, None for the best at hand.

    Raises ValueError if it is not available, or not for a quantization.
    """
    if device is None:
        device = choose_device()
        # bitsandbytes has no kernels for mps
        if quantization and device.type not in ("cpu", "cuda"):
            device = torch.device("cpu")
    try:
        device = torch.device(device)
    except RuntimeError:
        raise InvalidValue("device", device, 'None, "cpu", "cuda", "cuda:0" or "mps"') from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InvalidValue("device", str(device), 'None or "cpu", since CUDA is not available here')
    # "cuda" names whichever card is current
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if quantization and device.type not in ("cpu", "cuda"):
        raise InvalidValue(
            "device", str(device), f'"cpu" or "cuda" with quantization="{quantization}"'
        )
    return device


def as_dtype(dtype, device: torch.device, frozen: bool) -> tuple[torch.dtype, str]:
    """The dtype that is meant, "auto" for the device's, and the reason.

    Raises ValueError for one that no model has.
    """
    if dtype == "auto":
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        return choose_dtype(device.type, capability, frozen)
    chosen = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if chosen not in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        raise InvalidValue("dtype", dtype, '"auto", "float64", "float32", "bfloat16" or "float16"')
    return chosen, "as asked for"


# -- 4-bit weights on a CPU


def prepare_for_cpu(model: nn.Module) -> nn.Module:
    """Forbid the repacked layout, in which LoRA layers get no gradient and raise no error.

    Raises ValueError for a model on a CPU with a 4-bit layer whose input width is no multiple of
    64.
    """
    import bitsandbytes

    for name, layer in model.named_modules():
        if not isinstance(layer, bitsandbytes.nn.Linear4bit):
            continue
        layer.support_avx512bf16_for_cpu = False
        if layer.weight.device.type == "cpu" and layer.in_features % _NF4_BLOCK:
            raise ValueError(
                "4-bit weights on a CPU need layers whose input width is a multiple of"
                f" {_NF4_BLOCK}, but {name} has "
                f'{layer.in_features}: use device="cuda", or no quantization.'
            )
    return model


# -- a trial on a few tokens


def padding_error(model: nn.Module, positions: bool = True) -> float:
    """Error of a model's logits under left padding, in tolerances of rounding.

    More than 1 if padding changes the logits: RWKV and decoders of BART ignore the mask, and eager
    attention in float64 yields NaN behind padding. Found by a trial on a few tokens, once for each
    model.

    positions: whether the model is told the positions of tokens; GPT-2 counts padding otherwise.

    Raises ValueError for a model in which a token's logits depend on later tokens, and for one
    whose forward pass writes into its frozen quantized weights; what the model itself raises for a
    pass that it cannot do goes through.
    """
    # on the model, so that a copy has it, too
    known = vars(model).setdefault("_padding_errors", {})
    if positions in known:
        return known[positions]

    # three sequences: the first tokens alone, with tokens behind them, and with padding before them
    vocabulary = model.config.get_text_config().vocab_size
    longer = (11 + torch.arange(_TRIAL, device=model.device)) % vocabulary
    shorter = longer[:-2]
    padded = torch.cat([longer.new_zeros(2), shorter])
    mask = torch.ones(2, _TRIAL, dtype=torch.long, device=longer.device)
    mask[1, :2] = 0

    quantized = [(p, p._version) for p in model.parameters() if not p.is_floating_point()]
    with torch.no_grad(), evaluating(model):
        alone = _logits(model, shorter[None], torch.ones_like(shorter[None]), positions)[0]
        both = _logits(model, torch.stack([longer, padded]), mask, positions)
    followed, behind_padding = both[0, :-2], both[1, 2:]

    # a tensor's version counts the writes into it
    now = {id(p) for p in model.parameters()}
    if any(id(p) not in now or p._version != version for p, version in quantized):
        raise ValueError(f"{type(model).__name__} changes its quantized weights in a forward pass.")

    # a thousandth of the logits' range, of half precision a twentieth
    tolerance = 1e-3 if alone.dtype in (torch.float32, torch.float64) else 5e-2
    tolerance *= float(alone.max() - alone.min())
    if (followed - alone).abs().max() > tolerance:
        kind = type(model).__name__
        raise ValueError(
            f"{kind} is no causal language model: its logits for a token depend on later tokens."
        )
    known[positions] = float((behind_padding - alone).abs().max()) / tolerance
    return known[positions]


def _logits(
    model: nn.Module, ids: Int[Tensor, "B L"], mask: Int[Tensor, "B L"], positions: bool
) -> Float[Tensor, "B L V"]:
    """Logits of a pass, with positions of real tokens or without."""
    options = {}
    if positions:
        options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
    return model(input_ids=ids, attention_mask=mask, use_cache=False, **options).logits


# -- memory that is free and used


def free_mib(device: str | torch.device) -> float:
    """Memory that is free for a run now, in MiB: a GPU's own, else the system's."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0] / MIB
    return psutil.virtual_memory().available / MIB


def used_mib(device: str | torch.device) -> float:
    """Memory this process holds now, in MiB: allocated by torch on a GPU, resident on a CPU."""
    if torch.device(device).type == "cuda":
        return torch.cuda.memory_allocated(device) / MIB
    return psutil.Process().memory_info().rss / MIB


def peak_used_mib(device: str | torch.device) -> float:
    """The most this process has held so far, in MiB.

    Of a CPU Linux alone has a record; elsewhere it is `used_mib`.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device) / MIB
    status = Path("/proc/self/status")
    if status.exists():
        peak = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if peak:
            return int(peak[1]) / 1024
    return used_mib(device)


def free_bytes(device: torch.device) -> float:
    """Bytes that a pass could take on a device."""
    if device.type != "cuda":
        return psutil.virtual_memory().available
    # torch keeps what it has freed for its next tensors
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


# -- what a pass holds beside the weights


def row_bytes(
    kind: str, length: int, logit_tokens: int, config, dtype: torch.dtype, lora: int | None = None
) -> float:
    """Bytes that one row of a pass holds beside the weights.

    With D the model's width, I that of its MLP and V the size of the vocabulary:

        scoring       4 D + 3 I of one layer per token; logits V of each word
        states        the same; logits of each word twice, as they are kept
        gradient      what backward keeps of all layers (`kept_per_token`); of each word the
                      log-softmax and two gradients, V each, in float32 at least
        recomputed    the same; of the layers each one's input and one layer's rest
        along         scoring with a tangent beside each number; four times V of each word;
                      attention's scores and softmax in full
        sampling      the key-value cache of all layers; four copies of the next word's logits

    Eager attention holds its scores and their softmax besides.

    kind: one of these.
    length: tokens of the row.
    logit_tokens: of these tokens those whose logits are computed.
    lora: rank of the adapters; None: all weights are trained.
    """
    text = config.get_text_config()
    size = dtype.itemsize
    layers, width, _, cache, mlp = widths(text)
    if kind == "sampling":
        keys_and_values = 2 * layers * cache * size * length
        return keys_and_values + 4 * 4 * text.vocab_size

    scores = getattr(text, "num_attention_heads", 1) * length**2 * size
    is_eager = getattr(text, "_attn_implementation", None) == "eager"
    eager = 2 * scores if is_eager else 0
    if kind in ("gradient", "recomputed"):
        kept = length * kept_per_token(config, lora, dtype, kind == "recomputed")
        eager_layers = layers if kind == "gradient" else 1
        # logits of half precision are kept beside their copies in float32
        per_logit = 3 * max(4, size) + (size if size < 4 else 0)
        return kept + eager * eager_layers + logit_tokens * text.vocab_size * per_logit

    activations = length * (4 * width + 3 * mlp) * size
    logits = logit_tokens * text.vocab_size * size
    if kind == "along":
        return 2 * activations + 4 * logits + 4 * scores
    copies = 2 if kind == "states" else 1
    return activations + copies * logits + eager


def kept_per_token(
    config, lora: int | None, dtype: torch.dtype, gradient_checkpointing: bool = False
) -> float:
    """Bytes that autograd keeps for the backward pass, per token of a micro-batch, in all layers.

    With D the model's width, A that of its attention heads together, I that of its MLP and r the
    adapters' rank, a layer keeps

        2 D        the residual stream before each norm, in float32
        2 D        the normed stream, which the norm's own weight needs (only where that is trained)
        2 D        what enters the attention's and the MLP's linear layers
        4 A        queries, keys and values (repeated to all heads, as a padding mask makes them)
                   and attention's output
        4 I        gate, activation, up, their product
        7 r        what each adapter's first matrix gives (with adapters)

    and the head the last of the stream three times. With gradient checkpointing each layer keeps
    its input and the one that is recomputed all of this. tests/test_memory.py counts the tensors
    themselves.
    """
    layers, width, attention, _, mlp = widths(config.get_text_config())
    size = dtype.itemsize
    # norms of a frozen base keep no normed stream
    streams = 2 if lora else 4
    rank = lora or 0
    in_float32 = 2 * width * 4
    layer = in_float32 + (streams * width + 4 * attention + 4 * mlp + 7 * rank) * size
    head = width * (4 + (1 if lora else 2) * size)
    if gradient_checkpointing:
        inputs = layers * width * size
        return inputs + layer + head
    return layers * layer + head


class Widths(NamedTuple):
    """Sizes of a model, in numbers per token."""

    layers: int
    # of the residual stream
    width: int
    # of all attention heads together
    attention: int
    # of all key-value heads together
    cache: int
    mlp: int


def widths(text) -> Widths:
    """The sizes that a text config names, with the usual ones where it names none."""
    width = text.hidden_size
    heads = getattr(text, "num_attention_heads", 1)
    head_width = getattr(text, "head_dim", None) or width // heads
    key_value_heads = getattr(text, "num_key_value_heads", None) or heads
    mlp = getattr(text, "intermediate_size", None) or 4 * width
    # a list where layers differ
    if isinstance(mlp, list | tuple):
        mlp = max(mlp)
    return Widths(
        layers=getattr(text, "num_hidden_layers", 1),
        width=width,
        attention=head_width * heads,
        cache=head_width * key_value_heads,
        mlp=mlp,
    )
