"""The first cell of every chapter: seeds, this machine, the chart renderer, and sizes to run at."""

from __future__ import annotations

import logging
import os
import platform
import random
import sys
import textwrap
import warnings
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING

from workbook.messages import require_one_of
from workbook.places import import_to_stay, naming_extras

if TYPE_CHECKING:
    import torch

# on CPUs with AVX512-BF16 bitsandbytes asks at every import, in a red box, for a package that
# nothing here uses
logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(
    lambda record: not str(record.msg).startswith("Failed to load CPU gemm_4bit_forward")
)

_REPORTED_PACKAGES = (
    "torch",
    "transformers",
    "trl",
    "peft",
    "bitsandbytes",
    "datasets",
    "altair",
    "ipywidgets",
    "anywidget",
)


@dataclass(frozen=True)
class Profile:
    """Sizes at which a chapter runs, and its device; sliders start from them.

    name: smoke (tests), teach (minutes on a CPU) or full (a GPU, or patience).
    device: "cpu", "cuda" or "mps".
    dtype: what LLM activations are computed in there (float32 unless the device does better).
    chain_*: the bundled policy on the chain task (chapter 04).
    llm_*: SmolLM2-135M in NF4 (chapter 11).

    Steps are optimizer steps, each of prompts * group_size rollouts.
    """

    name: str
    device: str = "cpu"
    dtype: torch.dtype | None = None
    group_size: int = 8
    chain_steps: int = 60
    chain_prompts: int = 32
    eval_prompts: int = 128
    llm_steps: int = 10
    llm_prompts: int = 4
    llm_group_size: int = 4
    llm_max_new_tokens: int = 8
    llm_eval_prompts: int = 16

    @property
    def rollouts(self) -> int:
        """Rollouts of one chain step, prompts * group size."""
        return self.chain_prompts * self.group_size


PROFILES = {
    "smoke": Profile(
        "smoke",
        chain_steps=4,
        chain_prompts=8,
        eval_prompts=32,
        llm_steps=1,
        llm_prompts=2,
        llm_max_new_tokens=2,
        llm_eval_prompts=2,
    ),
    "teach": Profile("teach"),
    "full": Profile(
        "full",
        chain_steps=120,
        eval_prompts=512,
        llm_steps=300,
        llm_prompts=16,
        llm_group_size=8,
        llm_eval_prompts=128,
    ),
}


def choose_profile(name: str | None, device: str) -> Profile:
    """The profile called `name`, else the one in WORKBOOK_PROFILE, else full on CUDA and teach."""
    by_device = "full" if device == "cuda" else "teach"
    name = name or os.environ.get("WORKBOOK_PROFILE") or by_device
    require_one_of("profile", name, tuple(PROFILES))
    return replace(PROFILES[name], device=device)


def setup(seed: int = 0, profile: str | None = None) -> Profile:
    """Seed everything, report this machine, make charts show, and return the sizes to run at.

    profile: "smoke", "teach" or "full"; left out, WORKBOOK_PROFILE decides, else the device.
    Raises ValueError for any other.
    """
    # a bar per loaded model would stand in the chapter
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # a package of tasks warns of its own source when it is first compiled
    warnings.filterwarnings("ignore", category=SyntaxWarning, module=".*cellpylib")
    # PEFT and TRL read fields that transformers will rename
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    with naming_extras():
        import_to_stay("workbook.views.style")
    torch = import_to_stay("torch")
    import numpy as np

    from workbook.policies.models import choose_device, choose_dtype, free_mib
    from workbook.views.style import enable_charts

    device = choose_device().type
    capability = torch.cuda.get_device_capability() if device == "cuda" else None
    dtype, reason = choose_dtype(device, capability)
    chosen = replace(choose_profile(profile, device), dtype=dtype)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    enable_charts()

    installed = {dist.metadata["Name"]: dist.version for dist in metadata.distributions()}
    versions = ", ".join(f"{name} {installed.get(name, 'missing')}" for name in _REPORTED_PACKAGES)
    print(textwrap.fill(f"python {platform.python_version()}, {versions}", width=96))
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores"
    if "google.colab" in sys.modules:
        machine += ", on Colab"
    print(f"device   {device} ({machine}), {free_mib(device) / 1024:.1f} GiB free")
    print(f"dtype    {reason}")
    print(f"profile  {chosen.name}, seed {seed} (setup(profile=...) takes {', '.join(PROFILES)})")
    return chosen
