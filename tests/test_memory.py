"""The memory forecast: parameters against models that are really loaded, what backward keeps
against autograd's own.
"""

from dataclasses import fields

import bitsandbytes
import pandas as pd
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Trainer
from trl.trainer.utils import add_fused_lm_head

from workbook.app import memory
from workbook.app.memory import (
    CARDS,
    QWEN_7B,
    WORKLOAD,
    at_peak,
    fits,
    forecast_run,
    forecast_shape,
    kept_per_token,
    memory_forecast,
    optimizer_bytes,
    parameter_counts,
    peak_mib,
    shape_and_prompt,
)
from workbook.policies.load import load_policy
from workbook.policies.models import MIB
from workbook.training import CancellationConfig, RunConfig
from workbook.views.memory import memory_bars

# SmolLM2-135M's widths with 3 of its 30 layers and a small vocabulary
SMOLLM2 = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
}
SMOLLM2 |= {"num_hidden_layers": 3, "vocab_size": 2048}
SIZES = {"rollouts": 8, "microbatch": 4, "prompt_length": 16, "completion_length": 16}


def build(config, quantization=None, lora=None):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    if quantization:
        for module in list(model.modules()):
            for name, layer in list(module.named_children()):
                if (
                    isinstance(layer, torch.nn.Linear)
                    and layer is not model.get_output_embeddings()
                ):
                    setattr(module, name, nf4(layer))
    if lora:
        model.requires_grad_(False)
        model = get_peft_model(
            model, LoraConfig(r=lora, target_modules="all-linear", task_type="CAUSAL_LM")
        )
    return model.train()


def nf4(layer):
    options = {"bias": layer.bias is not None, "quant_type": "nf4", "compute_dtype": torch.float32}
    new = bitsandbytes.nn.Linear4bit(layer.in_features, layer.out_features, **options)
    new.weight = bitsandbytes.nn.Params4bit(
        layer.weight.data, requires_grad=False, quant_type="nf4"
    )
    new.support_avx512bf16_for_cpu = False
    return new.to("cpu")


def kept_for_backward(model, rows=4, length=32, checkpointing=False):
    """Bytes of every distinct tensor that a forward pass through TRL's head saves for backward,
    weights not counted.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    add_fused_lm_head(base, temperature=1.0, outputs=("log_probs", "entropy"))
    if checkpointing:
        base.gradient_checkpointing_enable({"use_reentrant": False})
        base.enable_input_require_grads()
    own = {
        tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())
    }
    saved = {}

    def pack(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            # held, so that no address is given twice
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    ids = torch.randint(1, 2048, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, :5] = 0  # a padded row, as nearly every batch of rollouts has
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(input_ids=ids, attention_mask=mask, labels=ids.clone(), fused_lm_head=True)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


@pytest.mark.parametrize("config_class", [LlamaConfig, Qwen2Config])
@pytest.mark.parametrize(
    ("quantization", "lora"), [(None, None), (None, 8), (None, 64), ("nf4", 8)]
)
def test_kept_for_backward_is_what_autograd_keeps(config_class, quantization, lora):
    config = config_class(**SMOLLM2)
    counted = kept_for_backward(build(config, quantization, lora))
    assert 4 * 32 * kept_per_token(config, lora, torch.float32) == pytest.approx(counted, rel=0.05)


def test_with_gradient_checkpointing_a_layers_input_is_kept():
    config = LlamaConfig(**SMOLLM2 | {"num_hidden_layers": 6})
    counted = kept_for_backward(build(config, lora=8), checkpointing=True)
    plain, thin = (kept_per_token(config, 8, torch.float32, on) for on in (False, True))
    recomputed = (
        (
            plain
            - kept_per_token(LlamaConfig(**SMOLLM2 | {"num_hidden_layers": 5}), 8, torch.float32)
        )
        * 4
        * 32
    )
    assert 4 * 32 * thin - recomputed == pytest.approx(counted, rel=0.3)
    assert thin < plain / 2


@pytest.mark.parametrize("lora", [None, 4])
def test_parameters_are_counted_exactly(lora):
    policy = load_policy("bundled", lora=lora)
    linear, other, adapters, largest = parameter_counts(policy.model.config, lora)
    named = dict(policy.model.named_parameters())
    assert adapters == sum(p.numel() for name, p in named.items() if "lora_" in name)
    assert linear + other == sum(p.numel() for name, p in named.items() if "lora_" not in name)
    assert largest == max(
        p.numel() for name, p in named.items() if "_proj" in name and "lora_" not in name
    )


def test_quantized_weights_are_forecast_to_the_byte():
    """The 4-bit weights with their scales, as bitsandbytes stores them (double quantization: 8-bit
    scales).
    """
    config = LlamaConfig(**SMOLLM2)
    model = build(config)
    stored = 0
    for module in model.modules():
        if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings():
            packed, state = bitsandbytes.functional.quantize_4bit(
                module.weight.data, quant_type="nf4", compress_statistics=True
            )
            stored += sum(
                t.numel() * t.element_size() for t in (packed, state.absmax, state.state2.absmax)
            )
    linear, other, *_ = parameter_counts(config)
    table = memory_forecast(config, quantization="nf4", **SIZES).set_index("part").mib
    assert table["weights"] * MIB - other * 4 == pytest.approx(stored, rel=1e-3)
    assert linear == sum(
        m.weight.numel()
        for m in model.modules()
        if isinstance(m, torch.nn.Linear) and m is not model.get_output_embeddings()
    )


def test_the_peak_is_what_stays_and_the_hungrier_phase():
    config = LlamaConfig(**SMOLLM2)
    for sizes in (SIZES, SIZES | {"rollouts": 4096, "microbatch": 1}):
        table = memory_forecast(config, lora=8, **sizes)
        sums = table.groupby("phase").mib.sum()
        assert peak_mib(table) == pytest.approx(
            sums["always"] + max(sums["training"], sums["generation"])
        )
        assert peak_mib(table) == pytest.approx(at_peak(table).mib.sum())
        assert (table.mib >= 0).all()
        hungrier = "training" if sizes is SIZES else "generation"
        assert set(at_peak(table).phase) == {"always", hungrier}


def test_a_run_is_forecast_from_its_config_alone(monkeypatch):
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)  # no weights are read
    config = RunConfig(
        trainer={"per_device_train_batch_size": 4, "steps_per_generation": 2}, num_prompts=16
    )
    peaks = {lora: peak_mib(forecast_run(config.override({"lora": lora}))) for lora in (None, 4)}
    assert peaks[4] < peaks[None]
    (trls_length,) = (
        f.default for f in fields(CancellationConfig) if f.name == "max_completion_length"
    )
    trls_own = forecast_run(config.override({"max_completion_length": trls_length}))
    assert forecast_run(config).equals(trls_own), "what TRL trains with where the length is not set"
    longer = config.override({"task_options": {"operands": 9}, "max_completion_length": 1024})
    assert peak_mib(forecast_run(longer)) > 1.5 * peaks[None]


@pytest.mark.parametrize(
    "optimizer", ["adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop", "adafactor"]
)
def test_an_optimizers_states_are_counted(optimizer, tmp_path):
    """What it holds for one linear layer after a step, against the bytes per weight of the
    forecast.
    """
    layer = torch.nn.Linear(256, 256, bias=False)
    args = CancellationConfig(str(tmp_path), use_cpu=True, bf16=False, optim=optimizer)
    make, options = Trainer.get_optimizer_cls_and_kwargs(args)
    made = make(layer.parameters(), **options)
    layer(torch.ones(1, 256)).sum().backward()
    made.step()
    tensors = [
        t
        for state in made.state.values()
        for t in state.values()
        if torch.is_tensor(t) and t.numel() > 1
    ]
    held = sum(t.numel() * t.element_size() for t in tensors) / layer.weight.numel()
    assert held == pytest.approx(optimizer_bytes(optimizer), abs=0.1)


def test_a_reference_model_and_the_meters_copies_are_counted():
    config = RunConfig(
        policy="bundled", trainer={"max_steps": 2, "beta": 0.1, "measure_cancellation": 1}
    )
    table = forecast_run(config).set_index("part")["mib"]
    assert table["reference model"] == table["weights"]
    assert table["copies to measure by"] == 2 * table["gradients"]
    with_adapters = forecast_run(RunConfig(policy="bundled", lora=4, trainer=config.trainer))
    assert "reference model" not in set(with_adapters["part"])
    assert memory_bars(at_peak(with_adapters).assign(case="a")).to_dict()


def test_the_legend_names_the_parts_that_can_be_seen():
    parts = [("weights", 300.0), ("adapters", 0.5), ("logits", 20.0)]
    table = pd.DataFrame(parts, columns=["part", "mib"]).assign(case="a")
    bars = memory_bars(table).to_dict()["layer"][0]
    assert bars["encoding"]["color"]["legend"]["values"] == ["weights", "logits"]


def test_what_does_not_fit_is_said_with_both_numbers(monkeypatch):
    trainer = {
        "max_steps": 1,
        "num_generations": 4,
        "per_device_train_batch_size": 64,
        "max_completion_length": 64,
    }
    config = RunConfig(num_prompts=16, trainer=trainer)
    assert fits(config) is None, "a run of megabytes"
    monkeypatch.setattr(memory, "free_mib", lambda device: 1.0)
    assert f"need {peak_mib(forecast_run(config)):,.0f} MiB" in fits(config)
    assert "1 MiB are free on cpu; take smaller micro-batches" in fits(config)


def test_a_ready_config_is_forecast_to_fit_without_a_hub(monkeypatch):
    monkeypatch.setattr(memory, "locate", None)
    config = RunConfig.load("data/configs/machines/qwen2.5-1.5b_t4.yaml")
    table = memory.forecast_shape(config, *memory.shape_and_prompt(config), torch.float16, "cuda")
    assert 1024 < peak_mib(table) < 14.6 * 1024
    served = config.override({"quantization": None, "use_vllm": True})
    table = memory.forecast_shape(served, *memory.shape_and_prompt(config), torch.float16, "cuda")
    assert table[table["phase"] == "generation"]["mib"].sum() == 0


def test_what_the_book_says_of_7b_on_a_t4():
    """data/book/scale.md and chapter 11: with half as much again, a short run fits, a long not."""
    sizes = WORKLOAD | {"microbatch": 4, "gradient_checkpointing": True}
    short = peak_mib(memory_forecast(QWEN_7B, quantization="nf4", lora=16, **sizes)) / 1024
    ready = RunConfig.load("data/configs/machines/qwen2.5-7b_24gb.yaml")
    shape, prompt_length = shape_and_prompt(ready)
    forecast = forecast_shape(ready, shape, prompt_length, torch.float16, "cuda")
    long = peak_mib(forecast) / 1024
    assert round(short, 1) == 7.3
    assert round(long) == 12
    assert 1.5 * short < CARDS["T4, 16 GB"] < 1.5 * long
