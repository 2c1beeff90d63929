"""Checks of a model's folder before it is read: weights of its own in safetensors, and no adapter put in unasked."""

from __future__ import annotations

import json
from pathlib import Path

INDEX = "model.safetensors.index.json"  # which file holds which weight, where there are several
ADAPTER = "adapter_config.json"


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
