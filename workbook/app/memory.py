"""Memory of a (Q)LoRA GRPO run: one formula, part by part, before anything is loaded.

The formula counts parameters exactly, on the meta device, and the rest from shapes: what autograd
keeps of a pre-norm, gated decoder (Llama, Qwen and their like), and what TRL's tiled output head
and transformers' sampling hold meanwhile. It leaves out the libraries themselves, the allocator's
waste and the loading of a checkpoint. Chapter 11 shows it beside a measured peak;
tests/test_memory.py compares it with autograd's own tensors.
"""

import json
import math
from collections.abc import Sequence
from functools import cache
from itertools import product

import pandas as pd
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from workbook.files import process_count
from workbook.messages import InvalidValue, one_line, require_one_of
from workbook.policies.load import locate
from workbook.policies.models import MIB, as_device, as_dtype, free_mib, kept_per_token, widths
from workbook.rollouts.scoring import ADAPTER_RANK, rows_within, tokenize_prompts
from workbook.tasks import get_task
from workbook.theory.coupling import STRIP_ROWS
from workbook.training.config import RunConfig

# 4 bits, an 8-bit scale per 64 weights, a 32-bit scale per 256 of those
NF4_BITS = 4 + 8 / 64 + 32 / (64 * 256)
DEFAULT_LENGTH = 512  # TRL's max_completion_length, where a run does not set it
# the tile of logits that TRL's output head holds at a time: tokens, vocabulary
HEAD_ROWS, HEAD_COLUMNS = 4096, 32768
# Tiles at once in that head's backward pass. With Triton's kernel, the logits alone. In plain torch
# also their float32 copy, the scaled copy, log p, p, the gradient, and in its formula a mask of a
# byte and two more temporaries.
HEAD_TILES = {"cuda": 1, "cpu": 8.25}
# of the next token's logits: the model's, the float32 copy, the scaled, their softmax
SAMPLING_COPIES = 4
# of a prompt per token, and of a chat template, where no tokenizer is at hand
CHARACTERS, TEMPLATE_TOKENS = 3, 40
QWEN_1_5B = Qwen2Config(
    hidden_size=1536,
    intermediate_size=8960,
    num_hidden_layers=28,
    num_attention_heads=12,
    num_key_value_heads=2,
    vocab_size=151936,
    tie_word_embeddings=True,
)
QWEN_7B = Qwen2Config(
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    vocab_size=152064,
    tie_word_embeddings=False,
)
# forecast without a hub
SHAPES = {"Qwen/Qwen2.5-1.5B-Instruct": QWEN_1_5B, "Qwen/Qwen2.5-7B-Instruct": QWEN_7B}
# One generation batch on a T4-class card: 32 rollouts of 128 + 256 tokens in half precision, one at
# a time backward.
WORKLOAD = {"rollouts": 32, "microbatch": 1, "prompt_length": 128, "completion_length": 256}
WORKLOAD |= {"dtype": torch.float16, "device": "cuda"}
# GiB that they show
CARDS = {"T4, 16 GB": 14.7, "RTX 4090, 24 GB": 23.5, "A100, 80 GB": 79.1, "H200, 141 GB": 139.7}


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
    optimizer: str = "adamw_torch",
    reference: bool = False,
    measured: bool = False,
    vllm: bool = False,
) -> pd.DataFrame:
    """Forecast of the memory that a run needs, as a table of parts.

    config: the model's transformers config.  quantization: None or "nf4".  lora: rank of the
    adapters on every linear layer but the head; None to train all weights.  rollouts: sequences
    generated at once.  microbatch: sequences in one forward and backward pass.  prompt_length,
    completion_length: tokens, the longest of a batch.  dtype: of frozen weights and of what is kept
    for backward.  device: "cpu" or "cuda".  optimizer: transformers' name of it, `optim`.
    reference: whether a KL penalty keeps a copy of the model beside it.  measured: whether
    `measure_cancellation` keeps two copies of the trained weights.  vllm: whether vLLM samples, in
    memory of its own that is not counted here.

    Columns part, mib, phase ("always", "generation" or "training"). The peak is "always" plus the
    larger of the other two phases' sums: `peak_mib(table)`. Raises ValueError for a size below 1,
    another quantization or device.
    """
    sizes = {
        "rollouts": rollouts,
        "microbatch": microbatch,
        "prompt_length": prompt_length,
        "completion_length": completion_length,
    }
    for name, value in sizes.items():
        if value < 1:
            raise InvalidValue(name, value, "at least 1")
    require_one_of("quantization", quantization, (None, "nf4"))
    require_one_of("device", device, tuple(HEAD_TILES))
    linear, other, adapters, largest = parameter_counts(config, lora)
    size = dtype.itemsize
    text = config.get_text_config()
    length = prompt_length + completion_length
    # on a CPU the head takes prompts, too
    scored = microbatch * (completion_length if device == "cuda" else length)
    tile = min(HEAD_ROWS, scored) * min(HEAD_COLUMNS, text.vocab_size) * size
    kv = 2 * text.num_hidden_layers * widths(text).cache * size
    # a layer's MLP over every prompt at once: gate, up and their product, with an adapter's output
    # and its sum
    prefill = (3 + (2 if lora else 0)) * text.intermediate_size + 3 * text.hidden_size
    per_token = kept_per_token(config, lora, dtype, gradient_checkpointing)
    trained = adapters if lora else linear + other
    sampled = 0 if vllm else rollouts
    states = "Adam's moments" if "adam" in optimizer else "optimizer's states"
    parts = [
        ("weights", linear * (NF4_BITS / 8 if quantization else size) + other * size, "always"),
        ("adapters", adapters * 4, "always"),
        (states, trained * optimizer_bytes(optimizer), "always"),
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
    return pd.DataFrame(
        [(part, value / MIB, phase) for part, value, phase in parts],
        columns=["part", "mib", "phase"],
    )


def optimizer_bytes(optimizer: str) -> float:
    """Bytes of optimizer states per trained weight: moments in float32, or 8 bits with scales."""
    if optimizer in ("sgd", "adafactor"):
        return 0.0
    if "ademamix" in optimizer:
        moments = 3
    elif any(kind in optimizer for kind in ("lion", "rms", "adagrad")):
        moments = 1
    else:
        moments = 2
    # 8 bits and their scales, or float32
    return 1.015 * moments if "8bit" in optimizer else 4.0 * moments


def forecast_run(config: RunConfig) -> pd.DataFrame:
    """A `RunConfig`'s `memory_forecast` on this machine, from the model's config and tokenizer,
    without its weights.

    Prompts are measured on the run's own training set. Its evaluations and the prompts' scoring are
    not in the table. Raises ValueError for a model without the shapes of a gated decoder, and as
    `load_policy` and `get_task` do.
    """
    device = run_device(config)
    dtype, _ = as_dtype(config.dtype, device, frozen=bool(config.quantization or config.lora))
    return forecast_shape(config, *shape_and_prompt(config), dtype, device.type)


def shape_and_prompt(config: RunConfig) -> tuple:
    """A `RunConfig`'s model as its transformers config, and tokens of its longest prompt: what must
    be looked up.
    """
    shape = SHAPES.get(config.policy)
    folder = None
    if shape is None:
        folder, _ = locate(config.policy)
        shape = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return shape, _longest_prompt(
        folder, config.task, json.dumps(config.task_options), config.num_prompts, config.seed
    )


def forecast_shape(
    config: RunConfig, shape, prompt_length: int, dtype: torch.dtype, device: str
) -> pd.DataFrame:
    """`memory_forecast` of a `RunConfig`'s settings for a model's shape, its transformers config,
    on "cpu" or "cuda".

    prompt_length: tokens of the longest prompt.  dtype: of frozen weights.
    Raises ValueError for a model without the shapes of a gated decoder.
    """
    settings = config.trainer
    microbatch = settings.get("per_device_train_batch_size", 8)
    checkpointing = ("gradient_checkpointing", "activation_checkpointing")
    try:
        return memory_forecast(
            shape,
            quantization=config.quantization,
            lora=config.lora,
            rollouts=microbatch * steps_per_generation(settings),
            microbatch=microbatch,
            prompt_length=prompt_length,
            completion_length=settings.get("max_completion_length", DEFAULT_LENGTH),
            dtype=dtype,
            gradient_checkpointing=any(settings.get(name) for name in checkpointing),
            device="cuda" if device == "cuda" else "cpu",
            optimizer=settings.get("optim", "adamw_torch"),
            # with adapters, the model without them is the reference
            reference=bool(settings.get("beta")) and not config.lora,
            measured=bool(settings.get("measure_cancellation")),
            vllm=bool(settings.get("use_vllm")),
        )
    except AttributeError as error:  # another model's config has other names
        raise InvalidValue(
            "policy",
            config.policy,
            "one whose memory can be forecast",
            f"policy={config.policy!r} can't be forecast: {one_line(error)}.",
        ) from None


def fits(config: RunConfig, at_once: int = 1) -> str | None:
    """One sentence if the forecast peak of a run, or of so many at once, exceeds what is free; None
    if it fits.

    None as well for a model that `forecast_run` knows too little of, or cannot reach.
    """
    try:
        needed = at_once * peak_mib(forecast_run(config))
    except Exception:  # a config.json in which transformers finds fault; loading the policy says so
        return None
    device = run_device(config)
    free = free_mib(device)
    if needed <= free:
        return None
    runs = "This run is" if at_once == 1 else f"{at_once} runs at a time are"
    return (
        f"{runs} forecast to need {needed:,.0f} MiB beside the libraries, and {free:,.0f} MiB are"
        f" free on {device.type}; take smaller micro-batches, activation_checkpointing, lora and"
        " nf4, or a lower max_completion_length."
    )


def run_device(config: RunConfig) -> torch.device:
    """The device that a run trains on."""
    return as_device(None, config.quantization)


def steps_per_generation(trainer: dict) -> int:
    """Micro-batches of a process's generation batch, as TRL takes them from its fields."""
    accumulation = trainer.get("gradient_accumulation_steps", 1)
    if rollouts := trainer.get("generation_batch_size"):
        return max(1, rollouts // (trainer.get("per_device_train_batch_size", 8) * process_count()))
    return trainer.get("steps_per_generation") or accumulation


def peak_mib(forecast: pd.DataFrame) -> float:
    """Peak of a `memory_forecast` table in MiB: what is always there plus the hungrier phase."""
    return float(at_peak(forecast)["mib"].sum())


def at_peak(forecast: pd.DataFrame) -> pd.DataFrame:
    """The rows of a `memory_forecast` table that are in memory together at its peak."""
    phases = forecast.groupby("phase")["mib"].sum().drop("always")
    return forecast[forecast["phase"].isin(["always", phases.idxmax()])].reset_index(drop=True)


def parameter_counts(config, lora: int | None = None) -> tuple[int, int, int, int]:
    """Weights in linear layers that 4-bit loading quantizes, all others, adapter weights, the
    largest linear layer.
    """
    key = config.to_json_string(use_diff=False)  # a slider asks for the same model again and again
    if key not in _COUNTS:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        head = model.get_output_embeddings()
        layers = [m for m in model.modules() if isinstance(m, nn.Linear) and m is not head]
        linear = sum(m.weight.numel() for m in layers)
        total = sum(p.numel() for p in model.parameters())  # a tied embedding is counted once
        rank_1 = sum(m.in_features + m.out_features for m in layers)
        _COUNTS[key] = linear, total - linear, rank_1, max(m.weight.numel() for m in layers)
    linear, other, rank_1, largest = _COUNTS[key]
    return linear, other, (lora or 0) * rank_1, largest


_COUNTS: dict[str, tuple[int, int, int, int]] = {}


@cache
def _longest_prompt(folder, task: str, options: str, n: int, seed: int) -> int:
    """Tokens of the longest prompt of a training set; without a folder that has the tokenizer, a
    generous estimate.
    """
    prompts = list(get_task(task, **json.loads(options)).dataset(n, seed)["prompt"])
    if folder is None:
        texts = [
            p if isinstance(p, str) else "\n".join(message["content"] for message in p)
            for p in prompts
        ]
        return max(len(text.encode()) for text in texts) // CHARACTERS + TEMPLATE_TOKENS
    tokenizer = AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )
    return max(map(len, tokenize_prompts(tokenizer, prompts)))


# --- what each probe needs on a card

GIB = 2**30
_GROUP_SIZE = 8  # rollouts of a prompt
_PROMPT_TOKENS = 200
QWEN_0_5B = Qwen2Config(
    hidden_size=896,
    intermediate_size=4864,
    num_hidden_layers=24,
    num_attention_heads=14,
    num_key_value_heads=2,
    vocab_size=151936,
    tie_word_embeddings=True,
)
MODELS = {"0.5B": QWEN_0_5B, **dict(zip(("1.5B", "7B"), SHAPES.values(), strict=True))}  # Qwen2.5
CARD_NAMES = tuple(CARDS)[:3]
# kinds of its passes; copies, gradients and states kept of what is trained; a group's states; dtype
PROBES = {
    "logps": (("scoring",), 0, False, torch.bfloat16),
    "update, token_flips": (("gradient", "scoring"), 4, False, torch.bfloat16),
    "TokenExplainer": (("gradient", "along"), 4, False, torch.bfloat16),
    "block_coupling": (("gradient", "scoring"), 3, False, torch.float32),
    "coupling_by_confidence, cancellation_index": (("states",), 0, True, torch.bfloat16),
    "gradient_products": (("along", "gradient"), 3, True, torch.bfloat16),
    "token_values": (("sampling",), 0, False, torch.bfloat16),
}
# rows of `token_values` for each rollout: before and after 8 tokens of it, 8 continuations
CONTINUED = 2 * 8 * 8


def probe_needs(probe: str, config, tokens: int, free: float) -> tuple[float, int, int]:
    """Bytes that a probe of PROBES needs, rows of its smallest pass, and bits of a weight.

    tokens: of a completion.  free: bytes that are free; weights are packed to NF4 where they would
    take more than half of it.
    """
    kinds, kept, whole, dtype = PROBES[probe]
    linear, other, adapters, largest = parameter_counts(config, ADAPTER_RANK)
    packed = dtype.itemsize == 2 and (linear + other) * dtype.itemsize > free / 2
    fixed = (
        linear * (NF4_BITS / 8 if packed else dtype.itemsize)
        + other * dtype.itemsize
        + (1 + kept) * 4 * adapters
    )
    fixed += largest * dtype.itemsize if packed else 0
    if whole:  # one group's logits, and a strip of its kernel, which is summed up in 64 bits
        fixed += _GROUP_SIZE * tokens * (config.vocab_size * dtype.itemsize + STRIP_ROWS * 3 * 8)
    about = (_PROMPT_TOKENS + tokens, tokens, config, dtype, ADAPTER_RANK)
    # (rows, bytes of a row) of each kind of pass in what is left
    passes = [rows_within(free - fixed, "cuda", kind, *about) for kind in kinds]
    needed = fixed + max(rows * row_bytes for rows, row_bytes in passes)
    fewest_rows = min(passes)[0]
    return needed, fewest_rows, 4 if packed else 8 * dtype.itemsize


def forecast_markdown(rollouts: Sequence[int] = (64, 1_000), tokens: int = 1_000) -> str:
    """The table of probes x models x cards: what each needs at its peak, and its passes over so
    many rollouts.
    """
    lines = [
        f"| probe | model | {' | '.join(CARD_NAMES)} |",
        "|---|---|" + "---|" * len(CARD_NAMES),
    ]
    for probe, (name, config) in product(PROBES, MODELS.items()):
        rows_per_rollout = CONTINUED if probe == "token_values" else 1
        cells = []
        for card in CARD_NAMES:
            free = CARDS[card] * GIB
            needed, rows, bits = probe_needs(probe, config, tokens, free)
            need = f"{needed / GIB:.1f} GiB{', nf4' if bits == 4 else ''}"
            if needed > free:
                cells.append(f"no: {need}")
                continue
            counts = [math.ceil(rows_per_rollout * count / rows) for count in rollouts]
            passes = " or ".join(f"{count:,}" for count in counts)
            cells.append(f"{need}: {passes} passes of {rows:,}")
        lines.append(f"| {probe} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)
