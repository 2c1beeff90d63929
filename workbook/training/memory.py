"""Memory of a (Q)LoRA GRPO run: a forecast part by part, before anything is loaded, and what a process holds.

The forecast counts parameters exactly, on the meta device, and the rest from shapes: what autograd keeps of a pre-norm,
gated decoder (Llama, Qwen and their like), and what TRL's tiled output head and transformers' sampling hold meanwhile.
It leaves out the libraries themselves, the allocator's waste and the loading of a checkpoint. Chapter 11 shows it
beside a measured peak.

Runs of models in `training.shapes` are forecast without a hub.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

import pandas as pd
import torch
from torch import nn

from workbook.training.device_memory import MIB
from workbook.training.messages import one_line
from workbook.training.processes import process_count
from workbook.training.shapes import SHAPES
from workbook.training.trainer_fields import OPTIMIZER_BYTES

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)  # 4 bits, an 8-bit scale per 64 weights, a 32-bit scale per 256 of those
# TRL's own, where a run does not set them
DEFAULT_LENGTH, DEFAULT_OPTIMIZER = 512, "adamw_torch_fused"
HEAD_ROWS, HEAD_COLUMNS = 4096, 32768  # the tile of logits that TRL's output head holds at a time: tokens, vocabulary
# Tiles at once in that head's backward pass. With Triton's kernel, the logits alone. In plain torch also their float32
# copy, the scaled copy, log p, p, the gradient, and in its formula a mask of a byte and two more temporaries.
HEAD_TILES = {"cuda": 1, "cpu": 8.25}
CHARACTERS = 3  # of a prompt per token, fewer than there are, where the model's own tokenizer is not at hand
TEMPLATE_TOKENS = 40  # of a chat template, likewise
_COUNTS: dict[tuple, tuple[int, int, int, int]] = {}  # of `parameter_counts`, by the config's settings
SAMPLING_COPIES = 4  # of the next token's logits: the model's, the float32 copy, the scaled, their softmax


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
    device: str = "cpu",
    optimizer: str = DEFAULT_OPTIMIZER,
    reference: bool = False,
    measured: bool = False,
    vllm: bool = False,
) -> pd.DataFrame:
    """Forecast of the memory that a run needs, as a table of parts.

    Args:
        config: the model's transformers config.
        quantization: None or "nf4".
        lora: rank of the adapters on every linear layer but the head; None to train all weights.
        rollouts: sequences generated at once, per_device_train_batch_size * steps_per_generation.
        microbatch: sequences in one forward and backward pass.
        prompt_length, completion_length: tokens, the longest of a batch.
        dtype: of frozen weights and of what is kept for backward.
        gradient_checkpointing: keep one hidden state per layer and recompute the rest.
        device: "cpu" or "cuda"; the output head works in larger pieces on a CPU.
        optimizer: transformers' name of it, `optim`; a paged one is counted whole.
        reference: whether a KL penalty keeps a copy of the model beside it, as beta does where all weights are trained.
        measured: whether `measure_cancellation` keeps two copies of the trained weights.
        vllm: whether vLLM samples, in memory of its own that is not counted here.

    Returns:
        Columns part, mib, phase ("always", "generation" or "training"). The peak is "always" plus the larger of the
        other two phases' sums: `peak_mib(table)`.

    Raises:
        ValueError: for a size below 1 or an unknown quantization, device or optimizer.

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
    if quantization not in (None, "nf4") or device not in HEAD_TILES:
        raise ValueError(f'quantization={quantization!r} must be None or "nf4", and device={device!r} "cpu" or "cuda".')
    if optimizer not in OPTIMIZER_BYTES:
        raise ValueError(f"optimizer={optimizer!r} must be one of {', '.join(OPTIMIZER_BYTES)}.")
    linear, other, adapters, largest = parameter_counts(config, lora)
    size = dtype.itemsize
    text = config.get_text_config()
    length = prompt_length + completion_length
    scored = microbatch * (completion_length if device == "cuda" else length)  # on a CPU the head takes prompts, too
    tile = min(HEAD_ROWS, scored) * min(HEAD_COLUMNS, text.vocab_size) * size
    kv = 2 * text.num_hidden_layers * _widths(text)[1] * size
    # a layer's MLP over every prompt at once: gate, up and their product, with an adapter's output and its sum
    prefill = (3 + (2 if lora else 0)) * text.intermediate_size + 3 * text.hidden_size
    per_token = kept_per_token(config, lora, dtype, gradient_checkpointing)
    trained = adapters if lora else linear + other
    sampled = 0 if vllm else rollouts
    adam = "adam" in optimizer or not OPTIMIZER_BYTES[optimizer]
    parts = [
        ("weights", linear * (NF4_BITS / 8 if quantization else size) + other * size, "always"),
        ("adapters", adapters * 4, "always"),
        ("Adam's moments" if adam else "optimizer's states", trained * OPTIMIZER_BYTES[optimizer], "always"),
        ("gradients", trained * 4, "always"),
        ("kept for backward", microbatch * length * per_token, "training"),
        ("logits", HEAD_TILES[device] * tile, "training"),
        ("dequantized layer", largest * size if quantization else 0, "training"),
        ("key-value cache", sampled * length * kv, "generation"),
        ("prompt's activations", sampled * prompt_length * prefill * size, "generation"),
        ("next-token logits", SAMPLING_COPIES * sampled * text.vocab_size * 4, "generation"),
        *([("reference model", (linear + other) * size, "always")] if reference else []),
        *([("copies to measure by", 2 * trained * 4, "training")] if measured else []),
    ]
    return pd.DataFrame([(part, value / MIB, phase) for part, value, phase in parts], columns=["part", "mib", "phase"])


def forecast_run(config) -> pd.DataFrame:
    """A `RunConfig`'s `memory_forecast` on this machine, from the model's config and tokenizer, without its weights.

    Prompts are measured on the run's own training set. Its evaluations and the prompts' scoring are not in the table.
    Of a model in SHAPES neither a hub nor a folder is asked; the length of its prompts is then a generous estimate.
    Raises ValueError for a model without the shapes of a gated decoder, and as `load_policy` and `get_task` do.
    """
    from workbook.policies.devices import as_dtype

    device = run_device(config)
    dtype, _ = as_dtype(config.dtype, device, frozen=bool(config.quantization or config.lora))
    return forecast_shape(config, *shape_and_prompt(config), dtype, device.type)


def shape_and_prompt(config) -> tuple[PreTrainedConfig, int]:
    """A `RunConfig`'s model as its transformers config, and tokens of its longest prompt: what `forecast_run` looks up.

    Raises as `forecast_run` does.
    """
    from transformers import AutoConfig

    from workbook.policies.load import locate

    shape, folder = SHAPES.get(config.policy), None
    if shape is None:
        folder, _ = locate(config.policy)
        shape = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    rows = (config.task, json.dumps(config.task_options), config.num_prompts, config.seed)
    return shape, _longest_prompt(folder, *rows)


def forecast_shape(config, shape, prompt_length: int, dtype: torch.dtype, device: str) -> pd.DataFrame:
    """`memory_forecast` of a `RunConfig`'s settings for a model's shape, its transformers config, on a kind of device.

    prompt_length: tokens of the longest prompt.  dtype: of frozen weights.  device: "cpu" or "cuda".
    Raises ValueError for a model without the shapes of a gated decoder.
    """
    settings = config.trainer
    microbatch = settings.get("per_device_train_batch_size", 8)
    sizes = {
        "quantization": config.quantization,
        "lora": config.lora,
        "rollouts": microbatch * steps_per_generation(settings),
        "microbatch": microbatch,
        "prompt_length": prompt_length,
        "completion_length": settings.get("max_completion_length", DEFAULT_LENGTH),
        "dtype": dtype,
        "gradient_checkpointing": settings.get("gradient_checkpointing", False),
        "device": "cuda" if device == "cuda" else "cpu",
        "optimizer": settings.get("optim", DEFAULT_OPTIMIZER),
        "reference": bool(settings.get("beta")) and not config.lora,
        "measured": bool(settings.get("measure_cancellation")),
        "vllm": bool(settings.get("use_vllm")),
    }
    try:
        return memory_forecast(shape, **sizes)
    except AttributeError as error:  # another model's config has other names
        raise ValueError(f"policy={config.policy!r} can't be forecast: {one_line(error)}.") from None


def run_device(config) -> torch.device:
    """The device that a run trains on."""
    from workbook.policies.devices import as_device

    return as_device(None, config.quantization)


def steps_per_generation(trainer: dict) -> int:
    """Micro-batches of a process's generation batch, as TRL takes them from its fields."""
    accumulation = trainer.get("gradient_accumulation_steps", 1)
    if rollouts := trainer.get("generation_batch_size"):
        return max(1, rollouts // (trainer.get("per_device_train_batch_size", 8) * process_count()))
    return trainer.get("steps_per_generation") or accumulation


def kept_per_token(config, lora: int | None, dtype: torch.dtype, gradient_checkpointing: bool = False) -> float:
    """Bytes that autograd keeps for the backward pass, per token of a micro-batch, in all layers.

    With D the model's width, A that of its attention heads together, I that of its MLP and r the adapters' rank, a
    layer keeps

        2 D        the residual stream before each norm, in float32
        2 D        the normed stream, which the norm's own weight needs (only where that is trained)
        2 D        what enters the attention's and the MLP's linear layers
        4 A        queries, keys and values (repeated to all heads, as a padding mask makes them), attention's output
        4 I        gate, activation, up, their product
        7 r        what each adapter's first matrix gives (with adapters)

    and the head the last of the stream three times. With gradient checkpointing each layer keeps its input and the one
    that is recomputed all of this. tests/test_memory.py counts the tensors themselves.
    """
    text = config.get_text_config()
    attention, _ = _widths(text)
    width, size = text.hidden_size, dtype.itemsize
    in_float32 = 2 * width * 4
    rest = (2 if lora else 4) * width + 4 * attention + 4 * text.intermediate_size + 7 * (lora or 0)
    layer, head = in_float32 + rest * size, width * (4 + (1 if lora else 2) * size)
    if gradient_checkpointing:
        return text.num_hidden_layers * width * size + layer + head
    return text.num_hidden_layers * layer + head


def peak_mib(forecast: pd.DataFrame) -> float:
    """Peak of a `memory_forecast` table in MiB: what is always there plus the hungrier phase."""
    sums = Counter()
    for phase, mib in zip(forecast["phase"], forecast["mib"], strict=True):
        sums[phase] += mib
    return float(sums.pop("always") + max(sums.values()))


def at_peak(forecast: pd.DataFrame) -> pd.DataFrame:
    """The rows of a `memory_forecast` table that are in memory together at its peak."""
    phases = forecast.groupby("phase")["mib"].sum().drop("always")
    return forecast[forecast["phase"].isin(["always", phases.idxmax()])].reset_index(drop=True)


def parameter_counts(config, lora: int | None = None) -> tuple[int, int, int, int]:
    """Weights in linear layers that 4-bit loading quantizes, all others, adapter weights, the largest linear layer."""
    key = type(config), str(vars(config))  # a slider asks for the same model again and again
    if key not in _COUNTS:
        _COUNTS[key] = _counted(config)
    linear, other, thin, largest = _COUNTS[key]
    return linear, other, (lora or 0) * thin, largest


def _counted(config) -> tuple[int, int, int, int]:
    """Weights in linear layers, all others, those of adapters of rank 1, the largest layer."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings()
    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
    linear = sum(m.weight.numel() for m in layers)
    total = sum(p.numel() for p in model.parameters())  # a tied embedding is counted once
    thin = sum(m.in_features + m.out_features for m in layers)
    return linear, total - linear, thin, max(m.weight.numel() for m in layers)


@cache
def _longest_prompt(folder, task: str, options: str, n: int, seed: int) -> int:
    """Tokens of the longest prompt of a training set; remembered, since forecasts are compared by the handful.

    Without a folder that has the tokenizer, more of them than there will be.
    """
    from transformers import AutoTokenizer

    from workbook.rollouts.scoring import tokenize_prompts
    from workbook.tasks import get_task

    prompts = list(get_task(task, **json.loads(options)).dataset(n, seed)["prompt"])
    if folder is None:
        return max(len(_text(prompt).encode()) for prompt in prompts) // CHARACTERS + TEMPLATE_TOKENS
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return max(map(len, tokenize_prompts(tokenizer, prompts)))


def _text(prompt: str | list) -> str:
    """A prompt's text, of a chat that of all messages."""
    return prompt if isinstance(prompt, str) else "\n".join(message["content"] for message in prompt)


def _widths(text) -> tuple[int, int]:
    """Width of all attention heads together, and of all key-value heads."""
    head = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return head * text.num_attention_heads, head * (text.num_key_value_heads or text.num_attention_heads)
