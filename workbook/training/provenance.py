"""What a result was made with: versions, device, git state; the part that every manifest shares."""

from __future__ import annotations

import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

PACKAGES = ("torch", "transformers", "trl", "peft", "bitsandbytes", "accelerate", "datasets", "numpy")


def made_with(policy) -> dict:
    """When, with which versions, where and from which commit something is made, and with which policy."""
    device = policy.provenance["device"]
    return {
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device)
        if device.startswith("cuda")
        else f"{device}, {torch.get_num_threads()} threads",
        "git": git_state(),
        "policy": policy.provenance,
    }


def git_state() -> dict | None:
    """Commit and whether tracked files differ from it; None outside a repository."""

    def git(*args):
        return subprocess.run(
            ["git", *args], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "modified": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
