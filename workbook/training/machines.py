"""Ready configs for machines from a T4 up to a cluster, with a forecast of the memory that each will need.

    python -m workbook machines
    python -m workbook machines --write qwen2.5-1.5b_t4

The configs lie in data/configs/machines. Their forecast is `memory_forecast`'s, for one card of each; what was measured
on a card stands in data/results/gpu, where there is one (`python -m workbook gpu`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd
import torch

from workbook.places import data_path
from workbook.training.files import write_text
from workbook.training.memory import at_peak, forecast_shape, peak_mib
from workbook.training.messages import show_value
from workbook.training.run_config import RunConfig
from workbook.training.shapes import SHAPES
from workbook.training.validate import check_run, missing_packages

CONFIGS = data_path("configs", "machines")
# One generation batch on a T4-class card: 32 rollouts of 128 + 256 tokens in half precision, one at a time backward.
WORKLOAD = {
    "rollouts": 32,
    "microbatch": 1,
    "prompt_length": 128,
    "completion_length": 256,
    "dtype": torch.float16,
    "device": "cuda",
}
PROMPT_LENGTH = 256  # tokens; of the longest prompt, in the forecast
GIB = 1024  # MiB


@dataclass(frozen=True)
class Machine:
    """A machine and the ready config for it.

    Attributes:
        name, gib: its name and one card's memory, what of it can be used.
        config_name: of the config in data/configs/machines.
        cards: that train one run together.
        launch: what stands before `-m workbook train CONFIG`, or what starts its runs.
        dtype: of frozen weights.
    """

    name: str
    gib: int
    config_name: str
    cards: int = 1
    launch: str = "python"
    dtype: torch.dtype = torch.bfloat16

    @property
    def config(self) -> RunConfig:
        return ready_config(self.config_name)


MACHINES = (
    Machine("one T4", 15, "qwen2.5-1.5b_t4", dtype=torch.float16),  # it has no bfloat16
    Machine("one 24 GB card", 24, "qwen2.5-7b_24gb"),
    Machine("one 80 GB card, adapters", 80, "qwen2.5-7b_80gb"),
    Machine("one 80 GB card, all weights", 80, "qwen2.5-1.5b_80gb"),
    Machine("a node of eight", 80, "qwen2.5-7b_80gb", 8, "accelerate launch"),
    Machine("a cluster, one run a card", 80, "qwen2.5-1.5b_80gb", launch="a sweep on Dask"),
)


def config_names() -> tuple[str, ...]:
    """Names of the ready configs, those of smaller cards first."""
    return tuple(dict.fromkeys(machine.config_name for machine in MACHINES))


@cache
def ready_config(name: str) -> RunConfig:
    """The ready config of a name. Raises ValueError for another name."""
    return RunConfig.load(_path(name))


def config_for(gib: float) -> RunConfig | None:
    """The ready config for one card of so much memory that is at hand without vLLM; None below a T4's.

    >>> config_for(14.7).name, config_for(79.1).name, config_for(4.0)
    ('qwen2.5-1.5b_t4', 'qwen2.5-7b_24gb', None)
    """
    single = [m for m in MACHINES if m.cards == 1 and not m.config.trainer.get("use_vllm")]
    fitting = [machine for machine in single if gib >= 0.9 * machine.gib]  # a card shows less than it is sold as
    return max(fitting, key=lambda machine: machine.gib).config if fitting else None


def write_config(name: str, folder: str | Path = ".") -> tuple[Path, list[str]]:
    """Write a ready config to `folder`/NAME.yaml; returns its path, and a sentence for each package that it lacks here.

    No hub is asked. Raises ValueError for an unknown name, for a folder that is none and for a file that is there
    already with another content.
    """
    text, folder = _path(name).read_text(encoding="utf-8"), Path(folder)
    config = ready_config(name)
    missing = list(missing_packages(config.trainer))
    check_run(config.override({"use_vllm": False}) if missing else config)
    path = folder / f"{name}.yaml"
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--folder {folder} is no folder; give the path of one.")
    if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text:
        raise ValueError(f"{path} is there already and differs; remove it, or give another --folder.")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, text)
    return path, missing


def _path(name: str) -> Path:
    if name not in config_names():
        raise ValueError(f"{show_value(name)} is no ready config: choose one of {', '.join(config_names())}.")
    return CONFIGS / f"{name}.yaml"


def machine_forecast(machine: Machine) -> pd.DataFrame:
    """`memory_forecast` of one card: columns part, mib, phase."""
    config = machine.config
    dtype = machine.dtype if config.lora else torch.float32  # all weights are trained in float32
    return forecast_shape(config, SHAPES[config.policy], PROMPT_LENGTH, dtype, "cuda")


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
                "config": machine.config_name,
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


def shared_settings() -> dict:
    """Fields of the trainer that every ready config has alike."""
    first, *others = (ready_config(name).trainer for name in config_names())
    return {key: value for key, value in first.items() if all(other.get(key) == value for other in others)}
