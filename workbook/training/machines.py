"""Settings for machines from a T4 up to a cluster, with a forecast of the memory that each will need.

    python -m workbook machines

No number here was measured on such a machine: the forecast is `memory_forecast`'s, for one card of each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from transformers import Qwen2Config

from workbook.training.memory import at_peak, memory_forecast, peak_mib
from workbook.training.run_config import RunConfig

# Sizes as published with Qwen2.5-1.5B and Qwen2.5-7B.
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
# One generation batch on a T4-class card: 32 rollouts of 128 + 256 tokens in half precision, one at a time backward.
WORKLOAD = {
    "rollouts": 32,
    "microbatch": 1,
    "prompt_length": 128,
    "completion_length": 256,
    "dtype": torch.float16,
    "device": "cuda",
}
SHAPES = {"Qwen/Qwen2.5-1.5B-Instruct": QWEN_1_5B, "Qwen/Qwen2.5-7B-Instruct": QWEN_7B}
PROMPT_LENGTH = 256  # tokens; of the longest prompt, in the forecast
GIB = 1024  # MiB
# Every machine's: groups of 8, four optimizer steps per generation batch, so that batching has something to arrange.
SHARED = {
    "num_generations": 8,
    "steps_per_generation": 4,
    "gradient_accumulation_steps": 1,
    "gradient_checkpointing": True,
    "max_completion_length": 512,
    "loss_type": "dr_grpo",
    "trim_padding": True,
}


@dataclass(frozen=True)
class Machine:
    """A machine and what a run's config says on it.

    Attributes:
        name, gib: its name and one card's memory.
        cards: that train one run together.
        settings: fields of a run or its trainer, over SHARED.
        launch: what stands before `-m workbook train CONFIG`, or what starts its runs.
        dtype: of frozen weights.
    """

    name: str
    gib: int
    settings: dict[str, Any]
    cards: int = 1
    launch: str = "python"
    dtype: torch.dtype = torch.bfloat16

    @property
    def config(self) -> RunConfig:
        return RunConfig(task="gym:gsm_symbolic").override(SHARED | self.settings)


_LARGE = {"policy": "Qwen/Qwen2.5-7B-Instruct", "lora": 16}
_WHOLE = {"policy": "Qwen/Qwen2.5-1.5B-Instruct", "per_device_train_batch_size": 32}
_VLLM = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}
MACHINES = (
    Machine(
        "one T4",
        15,
        _WHOLE | {"quantization": "nf4", "lora": 16, "per_device_train_batch_size": 16},
        dtype=torch.float16,  # it has no bfloat16
    ),
    Machine("one 24 GB card", 24, _LARGE | {"quantization": "nf4", "per_device_train_batch_size": 16}),
    Machine("one 80 GB card, adapters", 80, _LARGE | _VLLM | {"per_device_train_batch_size": 32}),
    Machine("one 80 GB card, all weights", 80, _WHOLE | _VLLM),
    Machine("a node of eight", 80, _LARGE | _VLLM | {"per_device_train_batch_size": 32}, 8, "accelerate launch"),
    Machine("a cluster, one run a card", 80, _WHOLE | _VLLM, launch="a sweep on Dask"),
)


def machine_forecast(machine: Machine) -> pd.DataFrame:
    """`memory_forecast` of one card: columns part, mib, phase."""
    config = machine.config
    microbatch, steps = config.trainer["per_device_train_batch_size"], config.trainer["steps_per_generation"]
    return memory_forecast(
        SHAPES[config.policy],
        quantization=config.quantization,
        lora=config.lora,
        rollouts=microbatch * steps,
        microbatch=microbatch,
        prompt_length=PROMPT_LENGTH,
        completion_length=config.trainer["max_completion_length"],
        dtype=machine.dtype if config.lora else torch.float32,  # all weights are trained in float32
        gradient_checkpointing=config.trainer["gradient_checkpointing"],
        device="cuda",
    )


def machine_table() -> pd.DataFrame:
    """One row per machine: its settings, rollouts per optimizer step over all cards, and one card's forecast in GiB.

    >>> table = machine_table()
    >>> bool((table["forecast GiB"] < table["left GiB"]).all())
    True
    """
    rows = []
    for machine in MACHINES:
        config, forecast, trainer = machine.config, machine_forecast(machine), machine.config.trainer
        microbatch = trainer["per_device_train_batch_size"]
        rows.append(
            {
                "machine": machine.name,
                "policy": config.policy,
                "quantization": config.quantization or "none",
                "lora": config.lora or "none",
                "per_device_train_batch_size": microbatch,
                "use_vllm": trainer.get("use_vllm", False),
                "rollouts a step": microbatch * machine.cards,
                "forecast GiB": round(peak_mib(forecast) / GIB, 1),
                "mostly": at_peak(forecast).nlargest(1, "mib")["part"].item(),
                "left GiB": round(machine.gib * (1 - trainer.get("vllm_gpu_memory_utilization", 0)), 1),
                "launch": machine.launch,
            }
        )
    return pd.DataFrame(rows)
