"""What needs a GPU: equality with TRL, the ready configs' memory and speed, QLoRA end to end. `make
gpu`.

Models of the published shapes get random weights, so that nothing large is fetched. What is
measured is written to data/results/gpu/measured.csv, a row per figure: case, quantity, value, unit,
device.
"""

import csv
import math
import random
import time

import pytest
import torch
from datasets import Dataset
from small_run import SMALL, bundled_trainer
from torch import nn
from transformers import AutoModelForCausalLM, Qwen2Config, TrainerCallback, set_seed
from trl import GRPOConfig, GRPOTrainer

from workbook.app import peak_mib, start_run
from workbook.app.memory import SHAPES, forecast_shape
from workbook.places import data_path
from workbook.policies import load_policy
from workbook.rollouts import tokenize_prompts
from workbook.training import CancellationConfig, CancellationTrainer, RunConfig

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="not measured: no GPU here"),
    pytest.mark.filterwarnings("ignore"),
]
CONFIGS = ("qwen2.5-1.5b_t4", "qwen2.5-7b_24gb", "qwen2.5-1.5b_80gb", "qwen2.5-7b_80gb")
MIB, GIB = 2**20, 1024.0
# Two generation batches of four optimizer steps: ratios differ from 1.
SETTINGS = SMALL | {
    "use_cpu": False,
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "max_grad_norm": 1.0,
}
SETTINGS |= {"max_steps": 8, "seed": 0}


def record(case: str, quantity: str, value: float, unit: str) -> None:
    """Add a figure to the table."""
    path = data_path("results") / "gpu" / "measured.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(["case", "quantity", "value", "unit", "device"])
        writer.writerow([case, quantity, f"{value:.5g}", unit, torch.cuda.get_device_name()])


def trained(folder, trainer_class, config_class, precision: str):
    """Train the bundled policy; returns what each step logged and the weights at the end."""
    settings = SETTINGS | {
        "learning_rate": 1e-3,
        "max_completion_length": 48,
        "bf16": False,
        precision: True,
    }
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        set_seed(0)
        args = config_class(output_dir=str(folder), **settings)
        trainer = bundled_trainer(
            trainer_class, args, load_policy("bundled", dtype="float32"), prompts=32
        )
        trainer.train()
    finally:
        torch.use_deterministic_algorithms(False)
    rows = [
        (row["loss"], row["grad_norm"], row.get("reward"))
        for row in trainer.state.log_history
        if "loss" in row
    ]
    plain = [
        ["nan" if value is not None and math.isnan(value) else value for value in row]
        for row in rows
    ]
    return plain, [p.detach().float().cpu() for p in trainer.model.parameters()]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_defaults_are_trl_bit_for_bit(tmp_path, precision):
    theirs = trained(tmp_path / "a", GRPOTrainer, GRPOConfig, precision)
    again = trained(tmp_path / "b", GRPOTrainer, GRPOConfig, precision)
    if theirs[0] != again[0] or not all(map(torch.equal, theirs[1], again[1])):
        pytest.skip("two equal runs of TRL differ on this device: equality can't be told")
    ours = trained(tmp_path / "c", CancellationTrainer, CancellationConfig, precision)
    assert ours[0] == theirs[0]
    assert all(map(torch.equal, ours[1], theirs[1]))


def random_model(
    shape: Qwen2Config, quantized: bool, lora: int | None, dtype: torch.dtype, device: str = "cuda"
):
    """A model of a shape with random weights, made and quantized a layer at a time, with adapters
    if asked for.
    """
    from bitsandbytes.nn import Linear4bit, Params4bit
    from peft import LoraConfig, get_peft_model

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape, dtype=dtype)
    torch.manual_seed(0)
    for part in (*model.model.layers, model.model.embed_tokens, model.model.norm, model.lm_head):
        part.to_empty(device=device)
        for name, weight in part.named_parameters():
            weight.data.zero_() if name.endswith("bias") else weight.data.normal_(0, 0.02)
            if weight.ndim == 1 and not name.endswith("bias"):
                weight.data.fill_(1.0)  # a norm's
    for module in [
        module for layer in model.model.layers if quantized for module in layer.modules()
    ]:
        for name, linear in list(module.named_children()):
            if type(linear) is nn.Linear:
                options = {
                    "bias": linear.bias is not None,
                    "compute_dtype": dtype,
                    "quant_type": "nf4",
                }
                new = Linear4bit(linear.in_features, linear.out_features, **options, device="meta")
                new.weight = Params4bit(linear.weight.data, requires_grad=False, quant_type="nf4")
                new.bias = linear.bias
                setattr(module, name, new.to(device))
    with torch.device(device):
        model.model.rotary_emb = type(model.model.rotary_emb)(shape)
    model.tie_weights()
    model.is_loaded_in_4bit = quantized
    if lora is None:
        return model
    model.requires_grad_(False)
    adapters = LoraConfig(
        r=lora, lora_alpha=2 * lora, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return get_peft_model(model, adapters)


def given_rollouts(prompts, trainer) -> dict:
    """TRL's rollout_func: completions of the longest length, so that memory is what the forecast
    reckons with.
    """
    most, chance = trainer.args.max_completion_length, random.Random(0)
    completions = [[chance.randrange(5, 25) for _ in range(most)] for _ in prompts]
    ids = tokenize_prompts(trainer.processing_class, prompts)
    return {
        "prompt_ids": ids,
        "completion_ids": completions,
        "logprobs": [[0.0] * most for _ in prompts],
    }


def odd_sums(completion_ids, **_):
    return [float(sum(ids) % 2) for ids in completion_ids]


class Clock(TrainerCallback):
    """Seconds of each optimizer step, with whatever the device still had to do."""

    def __init__(self):
        self.seconds, self.last = [], None

    def on_step_begin(self, *_, **__):
        torch.cuda.synchronize()
        self.last = time.perf_counter()

    def on_step_end(self, *_, **__):
        torch.cuda.synchronize()
        self.seconds.append(time.perf_counter() - self.last)


@pytest.mark.parametrize("name", CONFIGS)
def test_peak_memory_and_speed_of_a_ready_config(tmp_path, name):
    config = RunConfig.load(data_path("configs", "machines", f"{name}.yaml")).override(
        {"use_vllm": False}
    )
    shape = SHAPES[config.policy]
    dtype = torch.bfloat16 if config.lora else torch.float32
    prompt_length = 200
    forecast = peak_mib(forecast_shape(config, shape, prompt_length, dtype, "cuda"))
    free = torch.cuda.mem_get_info()[0] / MIB
    if forecast > free:
        pytest.skip(
            f"not measured: {forecast / GIB:.1f} GiB are forecast, {free / GIB:.1f} are free"
        )
    tokenizer = load_policy("bundled").tokenizer
    prompt = " ".join(["1"] * prompt_length)
    clock = Clock()
    settings = config.trainer | {
        "max_steps": config.trainer["steps_per_generation"] + 1,
        "save_strategy": "no",
    }
    settings |= {
        "bf16": True,
        "report_to": "none",
        "disable_tqdm": True,
        "beta": 0.0,
        "use_vllm": False,
    }
    torch.cuda.reset_peak_memory_stats()
    trainer = CancellationTrainer(
        random_model(shape, bool(config.quantization), config.lora, dtype),
        odd_sums,
        args=CancellationConfig(output_dir=str(tmp_path), **settings),
        train_dataset=Dataset.from_dict({"prompt": [prompt] * 32}),
        processing_class=tokenizer,
        rollout_func=given_rollouts,
        callbacks=[clock],
    )
    trainer.train()
    measured = torch.cuda.max_memory_allocated() / MIB
    record(name, "peak memory, training", measured, "MiB")
    record(name, "forecast peak", forecast, "MiB")
    record(
        name, "seconds of an optimizer step", sorted(clock.seconds)[len(clock.seconds) // 2], "s"
    )
    assert 0.5 < forecast / measured < 2


@pytest.mark.parametrize("switches", [{}, {"trim_padding": True}, {"record_tokens": 10}], ids=str)
def test_step_time_against_trl(tmp_path, switches):
    """Printed and written, never asserted: the same given rollouts, TRL first and last."""
    seconds = {}
    for arm, (trainer_class, config_class, own) in {
        "TRL": (GRPOTrainer, GRPOConfig, {}),
        "ours": (CancellationTrainer, CancellationConfig, switches),
    }.items():
        clock = Clock()
        settings = SETTINGS | {
            "max_steps": 40,
            "max_completion_length": 128,
            "learning_rate": 1e-6,
            "bf16": True,
        }
        args = config_class(output_dir=str(tmp_path / arm), **settings | own)
        given = {"rollout_func": given_rollouts, "callbacks": [clock]}
        bundled_trainer(trainer_class, args, reward=odd_sums, prompts=64, **given).train()
        seconds[arm] = sum(clock.seconds[8:])
    record(
        f"step time {switches or 'defaults'}", "times TRL's", seconds["ours"] / seconds["TRL"], "1"
    )


def test_qlora_end_to_end(tmp_path):
    """Chapter 11's run on a GPU: SmolLM2 in 4 bits learns, its adapter moved, and its held-out
    reward is measured.
    """
    config = RunConfig.load(data_path("configs", "smollm2_chain_sum.yaml"))
    run = start_run(config, tmp_path / "run", wait=True, max_steps=40, max_completion_length=12)
    metrics, evaluation = run.metrics(), run.evaluation().set_index("label")["mean"]
    assert metrics["step"].tolist() == list(range(1, 41))
    assert any(
        p.abs().max() > 0 for name, p in run.policy().model.named_parameters() if "lora_B" in name
    )
    record("QLoRA, SmolLM2, 40 steps", "held-out reward before", evaluation["before"], "1")
    record("QLoRA, SmolLM2, 40 steps", "held-out reward after", evaluation["after"], "1")
    record("QLoRA, SmolLM2, 40 steps", "seconds of training", metrics["step_time"].sum(), "s")
