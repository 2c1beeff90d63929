"""Checks of a model: its folder before it is read, and a trial on a few tokens before it is used.

A folder must hold weights of its own in safetensors, and no adapter is put in unasked. A trial finds out whether the
model is causal, leaves its quantized weights alone, and is changed by padding.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from workbook.policies.copies import evaluating

INDEX = "model.safetensors.index.json"  # which file holds which weight, where there are several
ADAPTER = "adapter_config.json"
TRIAL = 6  # tokens of a model's trial


def check_files(folder: Path) -> None:
    """Raise ValueError for a folder whose weights are elsewhere or in other files than safetensors, or an adapter.

    transformers follows an index out of the folder and into pickles, and puts an adapter in without a word.
    """
    if (folder / ADAPTER).is_file():
        raise ValueError(
            f"The folder {str(folder)!r} holds an adapter ({ADAPTER}), which is no policy by itself: load its base and "
            "put it in with peft's PeftModel.from_pretrained, or merge the two and save the whole model."
        )
    if not (folder / INDEX).is_file():
        return
    try:
        names = set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values())
        strange = sorted(name for name in names if Path(name).name != name or not name.endswith(".safetensors"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"The folder {str(folder)!r} has a damaged {INDEX}: download the model again.") from None
    if strange:
        raise ValueError(
            f"The folder {str(folder)!r} names {strange[0]!r} in {INDEX}, where only its own safetensors may stand."
        )


def read_record(path: Path) -> dict:
    """The JSON object in a file; {} if there is none, or another's file of that name."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def padding_error(model: nn.Module, positions: bool = True) -> float:
    """Error of a model's logits under left padding, in tolerances of rounding: more than 1 if padding changes it.

    RWKV and decoders of BART ignore padding, and eager attention in float64 yields NaN behind it. positions: whether
    the model is told them; GPT-2 counts padding otherwise. Found by a trial on a few tokens, once for each model;
    ValueError as in `try_model`.
    """
    known = vars(model).setdefault("_padding_errors", {})  # on the model, so that a copy has it, too
    if positions not in known:
        known[positions] = try_model(model, positions)
    return known[positions]


def try_model(model: nn.Module, positions: bool = True) -> float:
    """Compute a few tokens with and without padding; returns the error of `padding_error`.

    Raises ValueError for a model in which a token's logits depend on later tokens, and for one whose forward pass
    writes into its frozen quantized weights; what the model itself raises for a pass that it cannot do goes through.
    """
    vocabulary = model.config.get_text_config().vocab_size
    ids = (11 + torch.arange(TRIAL, device=model.device)) % vocabulary
    short, padding = TRIAL - 2, ids.new_zeros(2)
    packed = [(p, p._version) for p in model.parameters() if not p.is_floating_point()]
    with torch.no_grad(), evaluating(model):
        alone = _logits(model, ids[None, :short], torch.ones_like(ids[None, :short]), positions)[0]
        mask = torch.ones(2, TRIAL, dtype=torch.long, device=ids.device)
        mask[1, :2] = 0
        both = _logits(model, torch.stack([ids, torch.cat([padding, ids[:short]])]), mask, positions)
    now = {id(p) for p in model.parameters()}
    if any(id(p) not in now or p._version != version for p, version in packed):
        raise ValueError(f"{type(model).__name__} changes its quantized weights in a forward pass.")
    tolerance = 1e-3 if alone.dtype in (torch.float32, torch.float64) else 5e-2
    tolerance *= float(alone.max() - alone.min())
    if (both[0, :short] - alone).abs().max() > tolerance:
        kind = type(model).__name__
        raise ValueError(f"{kind} is no causal language model: its logits for a token depend on later tokens.")
    return float((both[1, 2:] - alone).abs().max()) / tolerance


def _logits(
    model: nn.Module, ids: Int[Tensor, "B L"], mask: Int[Tensor, "B L"], positions: bool
) -> Float[Tensor, "B L V"]:
    given = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if positions else {}
    return model(input_ids=ids, attention_mask=mask, use_cache=False, **given).logits
