"""Policies: a causal language model, its tokenizer, and where both came from.

`load_policy` loads a toy of 136 thousand weights and a model of billions in 4 bits the same way:
find the folder, read model and tokenizer, put adapters in, try it on a few tokens. It differs from
a plain `from_pretrained` in what it refuses to leave to chance:

- the dtype follows the device's capability, and provenance says why (`choose_dtype`);
- weights that are trained are float32, adapters included (`recast_adapters`): summed in bfloat16,
  opposing gradients cancel by rounding, and small updates do not move a weight at all;
- on a CPU no forward pass repacks NF4 weights, which would silently cut every LoRA gradient
  (`policies.models`);
- only safetensors are read, all weights must be there, and no code that comes with a model is run;
- a model that cannot be computed, or that looks ahead, is refused by a trial on a few tokens.
"""

import hashlib
import json
import os
import re
import threading
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn

from workbook.messages import InvalidValue, require_one_of
from workbook.places import data_path, file_hash, import_to_stay, require_package
from workbook.policies.models import as_device, as_dtype, padding_error, prepare_for_cpu, seeded
from workbook.policies.packaged import PACKAGED, RECORD, TUNED

BUNDLED = data_path("bundled")
# until the hub counts as unreachable
HUB_TIMEOUT_S = 4.0
HUB_ID = r"[\w-][\w.-]*(/[\w-][\w.-]*)?"
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
TRUSTED = {"local_files_only": True, "trust_remote_code": False}
# what transformers, peft and bitsandbytes raise for models that they cannot read, adapt or compute
UNFIT = (
    OSError,
    ValueError,
    KeyError,
    AttributeError,
    TypeError,
    IndexError,
    RuntimeError,
    ImportError,
    AssertionError,
    SafetensorError,
)
# characters of another package's message
MAX_MESSAGE = 140
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
ALTERNATIVES = (
    'the policies that need no hub are "bundled", "smollm2-135m", "gemma3-270m" and any local'
    " folder"
)


@dataclass(frozen=True)
class Policy:
    """A model, its tokenizer, and where both came from.

    provenance: name, source, origin, sha256, dtype and its reason, device, quantization, lora.
    """

    model: nn.Module
    tokenizer: object
    provenance: dict


def recast_adapters(model: nn.Module) -> nn.Module:
    """Put every trainable LoRA parameter into float32, in place, and return the model.

    TRL's trainers cast adapters on a quantized base to bfloat16, where a weight of 0.02 ignores
    updates below 6e-5 (half the spacing of bfloat16 there) and opposing gradients cancel by
    rounding. Call this once the trainer is built and before its optimizer is; a second call changes
    nothing.
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and "lora_" in name and parameter.dtype != torch.float32:
            parameter.data = parameter.data.float()
    return model


def load_policy(
    name: str | Path,
    quantization: str | None = None,
    lora=None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device | None = None,
    seed: int = 0,
) -> Policy:
    """Load a policy, in eval mode.

    name: "bundled", one of PACKAGED, a name that begins with "family:", "world:" or "smollm2:", a
    folder, or a hub id.
    quantization: None or "nf4" (bitsandbytes, double quantization, on cpu or cuda; without lora it
    serves inference).
    lora: None, a rank (adapters on every linear layer but the output head, alpha = 2 * rank, no
    dropout) or a peft LoraConfig; its adapters are float32, drawn from seed.
    dtype: "auto" is `choose_dtype`'s.
    device: None is the best at hand.

    Raises ValueError for a name, quantization, lora, dtype or device that cannot be, or not for
    this model, and ConnectionError for a hub that cannot be reached, after a few seconds.
    """
    require_one_of("quantization", quantization, (None, "nf4"))
    if quantization:
        require_package("bitsandbytes")

    # what is asked for is settled before anything is fetched
    config = _lora_config(lora)
    device = as_device(device, quantization)
    dtype, reason = as_dtype(dtype, device, frozen=bool(quantization or config))
    if not isinstance(name, str | os.PathLike):
        raise InvalidValue("name", name, 'text or a path, e.g. "bundled"')
    name = os.fspath(name)

    folder, source = locate(name)
    _check_files(folder)
    model = _read_model(folder, quantization, dtype, device)
    tokenizer = _read_tokenizer(folder)
    if name.startswith(TUNED):
        import_module("workbook.policies.tuned").merge(model, name)

    # what a model cannot do shows in the trial, and is said with the options that were given
    kind = type(model).__name__
    try:
        if config is not None:
            model = _add_lora(model, config, seed)
        padding_error(model)
    except UNFIT as problem:
        options = _named_options(quantization=quantization, lora=lora)
        raise ValueError(f"{kind} cannot be used{options}: {_first_sentence(problem)}") from None

    adapters = None
    if config is not None:
        adapters = {"rank": config.r, "alpha": config.lora_alpha, "seed": seed}
    provenance = {
        "name": name,
        "sha256": _weights_sha256(folder),
        **source,
        "dtype": str(dtype).removeprefix("torch."),
        "dtype_reason": reason,
        "device": str(device),
        "quantization": quantization,
        "lora": adapters,
    }
    return Policy(model.eval(), tokenizer, provenance)


def _named_options(quantization: str | None, lora) -> str:
    """The options that were given, for a message: " with quantization='nf4' with lora=8"."""
    options = ""
    if quantization is not None:
        options += f" with {quantization=}"
    if isinstance(lora, int):
        options += f" with {lora=}"
    return options


def _lora_config(lora):
    """The LoraConfig of a rank, or the one that was given; None for None."""
    if lora is None:
        return None
    # imported here, since it imports the libraries of quantization: two seconds
    from peft import LoraConfig

    if isinstance(lora, LoraConfig):
        if lora.lora_dropout:
            raise InvalidValue(
                "lora_dropout", lora.lora_dropout, "0, since rollouts are scored without dropout"
            )
        return lora
    if isinstance(lora, bool) or not isinstance(lora, int) or lora < 1:
        raise InvalidValue("lora", lora, "None, a rank of 1 or more, or a peft LoraConfig")
    return LoraConfig(
        r=lora,
        lora_alpha=2 * lora,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


# -- where a name's model lies


def check_name(name: str) -> None:
    """Raise ValueError for a name that no policy has on this machine.

    Nothing is fetched: whether a hub or a package has a model is not asked.
    """
    if name in PACKAGED:
        return
    if name.startswith(TUNED):
        import_module("workbook.policies.tuned").adapter_file(name)
    elif Path(name).expanduser().is_dir() or not re.fullmatch(HUB_ID, name):
        locate(name)


def locate(name: str) -> tuple[Path, dict]:
    """The local folder that holds the named model, and what provenance says of its origin.

    Raises ValueError for a name of none, and what the hub or a package raises.
    """
    # the modules of committed policies are imported when one is asked for
    if name.startswith(TUNED):
        return import_module("workbook.policies.tuned").base_of(name)
    if name in PACKAGED:
        folder = PACKAGED[name].folder()
    elif name == "bundled":
        folder = BUNDLED
    elif name.startswith("family:"):
        family = import_module("workbook.policies.family")
        folder = family.member_folder(family.member_of(name))
    elif name.startswith("world:"):
        folder = import_module("workbook.policies.worlds").policy_folder(name)
    elif name and Path(name).expanduser().is_dir():
        folder = Path(name).expanduser()
    elif re.fullmatch(HUB_ID, name):
        return _from_hub(name)
    else:
        raise InvalidValue("name", name, f"an existing folder or a hub id: {ALTERNATIVES}")

    if not (folder / "config.json").is_file() and not (folder / ADAPTER).is_file():
        raise ValueError(
            f"The folder {str(folder)!r} holds no model (config.json is missing): {ALTERNATIVES}."
        )
    origin = _recorded_origin(folder)
    if name.startswith(("family:", "world:")):
        source = name
    elif name in PACKAGED:
        source = origin.get("source")
        origin["weights"] = (
            f"de-quantized from a 4-bit file ({PACKAGED[name].kind}), stored as float16"
        )
    else:
        source = "data/bundled" if name == "bundled" else str(folder)
    return folder, {"source": source, "origin": origin}


def _recorded_origin(folder: Path) -> dict:
    """What the record of a model that was made here says of its origin; {} without a record."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return {name: value for name, value in record.items() if name != "files"}
    except (OSError, ValueError, AttributeError):
        # another's file of that name is no record
        return {}


def _check_files(folder: Path) -> None:
    """Raise ValueError for an adapter, and for weights elsewhere or not in safetensors.

    transformers follows an index out of the folder and into pickles, and puts an adapter in without
    a word.
    """
    if (folder / ADAPTER).is_file():
        raise ValueError(
            f"The folder {str(folder)!r} holds an adapter ({ADAPTER}), which is no policy by"
            " itself: load its base and put it in with peft's PeftModel.from_pretrained, or merge"
            " the two and save the whole model."
        )
    if not (folder / INDEX).is_file():
        return
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        strange = [
            name
            for name in sorted(set(index["weight_map"].values()))
            if Path(name).name != name or not name.endswith(".safetensors")
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"The folder {str(folder)!r} has a damaged {INDEX}: download the model again."
        ) from None
    if strange:
        raise ValueError(
            f"The folder {str(folder)!r} names {strange[0]!r} in {INDEX}, where only its own"
            " safetensors may stand."
        )


def _from_hub(name: str) -> tuple[Path, dict]:
    """Download a repository's safetensors and configs; offline, what the hub's own cache holds.

    Raises ValueError for a name that the hub does not know, ConnectionError without hub and cache.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    # the newest revision, or why it is not known
    answers: list[str | Exception] = []

    def ask() -> None:
        try:
            answers.append(HfApi().model_info(name, timeout=HUB_TIMEOUT_S).sha)
        except Exception as problem:
            answers.append(problem)

    # in a thread of its own: no timeout of the client covers a name server that does not answer
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT_S)
    answer = answers[0] if answers else TimeoutError("no answer")
    # the hub answered, and knows no such model
    if isinstance(answer, RepositoryNotFoundError):
        raise InvalidValue(
            "name", name, f"an existing folder or a public model on the hub: {ALTERNATIVES}"
        ) from None
    offline = isinstance(answer, Exception)
    try:
        revision = None if offline else answer
        folder = snapshot_download(
            name, revision=revision, local_files_only=offline, allow_patterns=HUB_FILES
        )
    except LocalEntryNotFoundError:
        raise ConnectionError(
            f"{name!r} is no existing folder, and the model hub could not be reached:"
            f" {ALTERNATIVES}."
        ) from None
    return Path(folder), {"source": f"hub:{name}", "origin": {"revision": Path(folder).name}}


# -- model, tokenizer and adapters


def _read_model(
    folder: Path, quantization: str | None, dtype: torch.dtype, device: torch.device
) -> nn.Module:
    """The model of a folder on a device, quantized if asked for.

    Raises ValueError for a folder that holds none, or not all of its weights.
    """
    import_to_stay("transformers.modeling_utils")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    options = {"dtype": dtype, "use_safetensors": True, "output_loading_info": True, **TRUSTED}
    if quantization:
        options["device_map"] = {"": device}
        options["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    try:
        model, info = AutoModelForCausalLM.from_pretrained(folder, **options)
    except UNFIT as problem:
        raise _refusal(folder, "no causal language model in safetensors", problem) from None
    missing = sorted(info["missing_keys"])
    if missing:
        raise _refusal(
            folder,
            "no causal language model in safetensors",
            f"{missing[0]} is not among its weights.",
        )
    # quantized as asked for, or saved so
    if quantization or getattr(model, "is_loaded_in_4bit", False):
        return prepare_for_cpu(model)
    return model.to(device)


def _read_tokenizer(folder: Path):
    """The tokenizer of a folder, which pads on the left as sampling needs it."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **TRUSTED)
    except UNFIT as problem:
        raise _refusal(folder, "no tokenizer", problem) from None
    tokenizer.padding_side = "left"
    # as TRL's trainers do
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def _refusal(folder: Path, lack: str, problem) -> ValueError:
    """Refusal of a folder that cannot be loaded, in one sentence."""
    # transformers refuses a model that needs code of its own with advice to run it
    own_code = [
        name for name in ("config.json", "tokenizer_config.json") if _names_code(folder / name)
    ]
    if own_code and isinstance(problem, ValueError) and "custom code" in str(problem):
        return ValueError(
            f"The folder {str(folder)!r} needs code of its own (auto_map in {own_code[0]}), which"
            " is never run: use a model that transformers knows."
        )
    return ValueError(f"The folder {str(folder)!r} holds {lack}: {_first_sentence(problem)}")


def _names_code(config: Path) -> bool:
    return config.is_file() and '"auto_map"' in config.read_text(errors="replace")


def _first_sentence(problem: BaseException | str) -> str:
    """Another package's message, cut to its first sentence and to MAX_MESSAGE characters."""
    text = " ".join(str(problem).split()) or type(problem).__name__
    text = re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]
    if isinstance(problem, (KeyError, AttributeError, TypeError, IndexError)):
        # their messages are a bare name or number
        text = f"{type(problem).__name__}: {text}"
    if len(text) <= MAX_MESSAGE:
        return text
    return text[: MAX_MESSAGE - 3].rsplit(" ", 1)[0] + " ..."


def _add_lora(model: nn.Module, config, seed: int) -> nn.Module:
    """The model with adapters in float32, drawn from a seed; its own weights are frozen."""
    from peft import get_peft_model

    # of the base nothing is trained
    model.requires_grad_(False)
    try:
        with seeded(seed, model.device):
            return recast_adapters(get_peft_model(model, config))
    except ImportError as problem:
        # peft looks for torchao wherever an adapter goes on a layer in full precision
        if "torchao" not in str(problem):
            raise
        raise ImportError(
            f"peft refuses the installed torchao {version('torchao')}: pip uninstall torchao, which"
            " nothing here uses."
        ) from None


def _weights_sha256(folder: Path) -> str | None:
    """One sha256 for a folder's safetensors, None without any.

    It is the file's own, or that of the shards' digests in order of name.
    """
    digests = []
    for path in sorted(folder.glob("*.safetensors")):
        # a file in the hub's cache is a link to a blob that bears its sha256 as its name
        blob = path.resolve()
        is_digest = re.fullmatch("[0-9a-f]{64}", blob.name)
        digests.append(blob.name if is_digest else file_hash(blob))
    if not digests:
        return None
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()
