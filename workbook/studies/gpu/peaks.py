"""Measured against forecast peak memory: models of the published shapes with random weights, trained for a few steps.

Settings are those of the ready configs (data/configs/machines), without vLLM. Completions hardly ever end early, since
a random model has no reason to draw the end token, so that lengths are what the forecast reckons with. On a CPU nothing
is measured: its resident memory holds the libraries and whatever the allocator keeps.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import partial

import pandas as pd
import torch
from datasets import Dataset
from torch import nn
from transformers import AutoModelForCausalLM, Qwen2Config

from workbook.policies.load import Policy, load_policy
from workbook.policies.nf4 import keep_unpacked
from workbook.studies.gpu.bench import GIB, GpuBench, Tables
from workbook.training.config import CancellationConfig
from workbook.training.machines import PROMPT_LENGTH, ready_config
from workbook.training.memory import MIB, forecast_shape, peak_mib
from workbook.training.shapes import SHAPES
from workbook.training.trainer import CancellationTrainer

CAP = 15  # GiB, of a T4
TINY = Qwen2Config(
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=512,
)
TINY_SIZES = {"per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 8, "lora": 4}
PLAIN = {"use_vllm": False, "learning_rate": 1e-6, "batching": "shuffled"}


@dataclass(frozen=True)
class Case:
    """A ready config, the dtype of frozen weights, and a cap on the device's memory in GiB."""

    config_name: str
    dtype: torch.dtype
    cap: float | None = None

    @property
    def name(self) -> str:
        return "-".join(
            [self.config_name, str(self.dtype).removeprefix("torch."), *([f"{self.cap}GiB"] if self.cap else [])]
        )


CASES = (
    Case("qwen2.5-1.5b_t4", torch.float16, CAP),
    Case("qwen2.5-7b_24gb", torch.float16, CAP),
    Case("qwen2.5-1.5b_t4", torch.bfloat16),
    Case("qwen2.5-7b_24gb", torch.bfloat16),
    Case("qwen2.5-1.5b_80gb", torch.float32),
    Case("qwen2.5-7b_80gb", torch.bfloat16),
)


def measure(bench: GpuBench) -> dict[str, pd.DataFrame]:
    """Table peaks: a row per case and phase, with forecast_mib, measured_mib and outcome."""
    cases = (CASES[0], CASES[4]) if bench.dry else CASES
    tables = bench.cases({case.name: partial(_peak, bench, case) for case in cases})
    known = tables["peaks"].query("phase == 'peak' and outcome == 'measured'")
    ratios = known["forecast_mib"] / known["measured_mib"]
    bench.results.append(f"forecast / measured: {', '.join(f'{r:.2f}' for r in ratios) or 'not measured'}")
    return tables


def _peak(bench: GpuBench, case: Case) -> Tables:
    table, outcome, measured = _measured(bench, case)
    return {"peaks": table.assign(measured_mib=measured, outcome=outcome)}


def _measured(bench: GpuBench, case: Case) -> tuple[pd.DataFrame, str, list[float] | float]:
    """The case's forecast by phase, what came of it, and measured MiB, NaN where there are none."""
    if case.dtype != torch.float16:
        bench.check_bf16()
    config = ready_config(case.config_name).override(PLAIN)
    shape = SHAPES[config.policy]
    if bench.dry:
        config, shape = config.override({**TINY_SIZES, "lora": config.lora and TINY_SIZES["lora"]}), TINY
    dtype = torch.float32 if bench.dry else case.dtype
    prompts = _prompts(32 if bench.dry else PROMPT_LENGTH)
    forecast = forecast_shape(config, shape, prompts["length"][0], dtype, bench.device.type)
    phases = forecast.groupby("phase")["mib"].sum()
    table = pd.DataFrame(
        {
            "case": case.name,
            "cap_gib": case.cap,
            "phase": ["generation", "training", "peak"],
            "forecast_mib": [*(phases["always"] + phases[["generation", "training"]]), peak_mib(forecast)],
        }
    )
    needed, nan = peak_mib(forecast) / 1024, float("nan")
    free = torch.cuda.mem_get_info()[0] / GIB if bench.device.type == "cuda" else needed
    room = min(case.cap or free, free)
    if needed > room:
        return table, f"not measured: {needed:.1f} GiB are forecast, {room:.1f} are free", nan
    measured = _train(bench, config, shape, dtype, case.cap, prompts)
    if measured is None:
        return table, f"does not fit in {room:.1f} GiB", nan
    if bench.device.type != "cuda":
        return table, "not measured: trained, on a CPU", nan
    return table, "measured", [*measured, max(measured)]


def _train(bench: GpuBench, config, shape, dtype, cap: float | None, prompts: Dataset) -> tuple[float, float] | None:
    """Peak MiB of generation and of training; None if memory did not suffice. On a CPU zeros."""
    cuda = bench.device.type == "cuda"
    if cuda and cap:
        torch.cuda.set_per_process_memory_fraction(_fraction(cap, torch.cuda.get_device_properties(0).total_memory))
    try:
        policy = random_policy(shape, config.quantization, config.lora, dtype, bench.device)
        settings = config.trainer | {"save_strategy": "no"}
        settings |= {"max_steps": config.trainer["steps_per_generation"] + 1}  # with optimizer states, a second batch
        settings |= {
            "bf16": cuda and dtype != torch.float16,
            "fp16": cuda and dtype == torch.float16,
            "use_cpu": not cuda,
        }
        settings |= {"fp32_adapters": config.lora is not None, "report_to": "none", "disable_tqdm": True, "beta": 0.0}
        args = CancellationConfig(output_dir=bench.output_dir(), **settings)
        trainer = _Phased(policy.model, _reward, args=args, train_dataset=prompts, processing_class=policy.tokenizer)
        bench.train(trainer)
        return trainer.generation_mib, max(trainer.training_mib, _peak_mib(cuda))
    except torch.OutOfMemoryError:
        return None
    finally:
        if cuda and cap:
            torch.cuda.set_per_process_memory_fraction(1.0)


class _Phased(CancellationTrainer):
    """Keeps the peaks of generation and of what comes between generations apart, in MiB."""

    generation_mib, training_mib = 0.0, 0.0

    def _generate_and_score_completions(self, inputs):
        cuda = self.accelerator.device.type == "cuda"
        if self.generation_mib:
            self.training_mib = max(self.training_mib, _peak_mib(cuda))
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        output = super()._generate_and_score_completions(inputs)
        self.generation_mib = max(self.generation_mib, _peak_mib(cuda))
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        return output


def _fraction(cap: float, total: int) -> float:
    """A cap in GiB as a share of so many bytes; all of a T4, whose 16 GB are less than 15 GiB."""
    return min(1.0, cap * GIB / total)


def _peak_mib(cuda: bool) -> float:
    return torch.cuda.max_memory_allocated() / MIB if cuda else 0.0


def _reward(completion_ids, **_) -> list[float]:
    return [float(sum(ids) % 2) for ids in completion_ids]


def _prompts(length: int) -> Dataset:
    """Prompts of so many tokens of the bundled tokenizer, and that number."""
    tokenizer = load_policy("bundled").tokenizer
    words = [word for word in tokenizer.get_vocab() if word.isalpha()]
    text = " ".join((words * length)[:length])
    tokens = len(tokenizer(text, add_special_tokens=False).input_ids)
    return Dataset.from_dict({"prompt": [text] * 64, "length": [tokens] * 64})


def random_policy(
    shape, quantization: str | None, lora: int | None, dtype: torch.dtype, device: torch.device
) -> Policy:
    """A model of a shape with random weights and the bundled policy's tokenizer, as `load_policy` would load it.

    Layers are made and quantized one at a time, so that the whole model is never there in full precision.
    """
    shape = copy.deepcopy(shape)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape, dtype=dtype)
    torch.manual_seed(0)
    for layer in model.model.layers:
        _fill(layer, device)
        if quantization:
            _quantize(layer, dtype, device)
    for part in (model.model.embed_tokens, model.model.norm, model.lm_head):
        _fill(part, device)
    with torch.device(device):
        model.model.rotary_emb = type(model.model.rotary_emb)(shape)
    model.tie_weights()
    model.is_loaded_in_4bit = bool(quantization)
    if quantization:
        keep_unpacked(model)
    if lora:
        from peft import LoraConfig, get_peft_model

        model.requires_grad_(False)
        adapters = LoraConfig(r=lora, lora_alpha=2 * lora, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, adapters)
    provenance = {"name": "random", "source": "random weights", "device": str(device), "sha256": None}
    return Policy(model.eval(), load_policy("bundled").tokenizer, provenance)


def _fill(module: nn.Module, device: torch.device) -> None:
    """Give a module on the meta device random weights."""
    module.to_empty(device=device)
    for weight in module.parameters():
        weight.data.fill_(1.0) if weight.ndim == 1 else weight.data.normal_(0, 0.02)
    for name, bias in module.named_parameters():
        if name.endswith("bias"):
            bias.data.zero_()


def _quantize(layer: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """Put 4-bit layers in the place of a layer's linear ones."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    for module in list(layer.modules()):
        for name, linear in list(module.named_children()):
            if type(linear) is not nn.Linear:
                continue
            options = {"bias": linear.bias is not None, "compute_dtype": dtype, "quant_type": "nf4"}
            new = Linear4bit(linear.in_features, linear.out_features, **options, device="meta")
            kept = {"quant_type": "nf4", "compress_statistics": True}
            new.weight = Params4bit(linear.weight.data, requires_grad=False, **kept)
            if linear.bias is not None:
                new.bias = linear.bias
            setattr(module, name, new.to(device))
