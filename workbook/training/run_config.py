"""RunConfig: the settings of a run, as a dataclass, a YAML file or `key=value` settings.

A run's own fields are checked here; the trainer's in `training.config`, by a model made from TRL's own annotations.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

import torch
import yaml
from pydantic import JsonValue

from workbook.places import find_file
from workbook.training.config import (
    CancellationConfig,
    check_trainer,
    check_values,
    nearest,
    settings_model,
    trainer_fields,
)
from workbook.training.messages import explain_error, one_line, show_value

MAX_NAME, MAX_TEXT = 100, 1000  # characters
RANGES = {  # of a run's fields
    "lora": {"ge": 1, "le": 1024},
    "num_prompts": {"ge": 1, "le": 1_000_000},
    "eval_prompts": {"ge": 0, "le": 1_000_000},
    "eval_group_size": {"ge": 2, "le": 1024},
    "seed": {"ge": 0, "le": 2**31 - 1},
    "threads": {"ge": 1, "le": 256},
}
CHOICES = {"quantization": (None, "nf4"), "dtype": ("auto", "float32", "bfloat16", "float16")}


@dataclass(frozen=True)
class RunConfig:
    """Settings of a run: policy, task, sizes, seed, and the trainer's own.

    Attributes:
        name: of the run; the start of its folder's name.
        policy, quantization, lora: as in `load_policy`; lora is a rank.
        dtype: of frozen weights, as in `load_policy`; "auto" is the device's.
        task, task_options: as in `get_task`.
        num_prompts: size of the training set.
        eval_prompts, eval_group_size: held-out prompts and rollouts of each, sampled before and after; 0 prompts for
            no evaluation.
        seed: of the policy's adapters, the data and the sampling.
        threads: of torch, None for its default. CPU results are reproducible for a fixed number.
        trainer: fields of `CancellationConfig`.
    """

    name: str = "run"
    policy: str = "bundled"
    quantization: str | None = None
    lora: int | None = None
    dtype: str = "auto"
    task: str = "chain"
    task_options: dict[str, Any] = field(default_factory=dict)
    num_prompts: int = 2048
    eval_prompts: int = 0
    eval_group_size: int = 4
    seed: int = 0
    threads: int | None = None
    trainer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        for key in FIELDS:
            object.__setattr__(self, key, plain(getattr(self, key)))
        check_values(_RUN, vars(self))
        for key in ("name", "policy", "task"):
            text = getattr(self, key)
            if not (text.isprintable() and text.strip() and len(text) <= MAX_TEXT):
                raise ValueError(f"{key}={show_value(text)} must be text of 1 to {MAX_TEXT:,} printable characters.")
        if len(self.name) > MAX_NAME or self.name.startswith(".") or re.search(r"[/\\]|^\s|\s$", self.name):
            valid = f"a folder's name of at most {MAX_NAME} characters, without / or \\, not beginning with a dot"
            raise ValueError(f"name={show_value(self.name)} must be {valid}.")
        check_trainer(self.trainer)

    @classmethod
    def load(cls, source: RunConfig | dict | str | Path) -> RunConfig:
        """From a YAML file's path, a dict or a RunConfig; ValueError, naming file and field, if one is invalid."""
        if isinstance(source, RunConfig):
            return source
        if isinstance(source, dict):
            if unknown := [key for key in source if key not in FIELDS]:
                raise ValueError(f"{show_value(unknown[0])} is not a field of a run; {nearest(unknown[0], FIELDS)}")
            return cls(**source)
        if not isinstance(source, str | Path):
            raise ValueError(f"config={show_value(source)} must be the path of a YAML file, a dict or a RunConfig.")
        values = read_yaml(source, "config")
        if not isinstance(values, dict):
            raise ValueError(f"The config {source} must be a mapping of fields to values.")
        try:
            return cls.load(values)
        except ValueError as error:
            raise ValueError(f"The config {source}: {error}") from None

    def override(self, settings: dict[str, Any]) -> RunConfig:
        """A copy with `settings` applied; a key like `trainer.learning_rate` or `task_options.operands` reaches into
        a section, and a bare field of CancellationConfig is the trainer's. ValueError if one is unknown or invalid."""
        values, named = asdict(self), set()
        whole_first = sorted(settings.items(), key=lambda setting: setting[0] not in ("trainer", "task_options"))
        for key, value in whole_first:
            section, name = place(key)
            if (section, name) in named:
                raise ValueError(f"{section}.{name} is set twice, the second time to {show_value(value)}; set it once.")
            named.add((section, name))
            if section is None:
                values[name] = value
            elif isinstance(values[section], dict):
                values[section][name] = value
            else:
                raise ValueError(f"{section}={show_value(values[section])} must be a mapping of fields to values.")
        return RunConfig(**values)


FIELDS = tuple(f.name for f in fields(RunConfig))


def flatten(values: dict, prefix: str = "") -> dict:
    """A config's fields, those of a section as section.field."""
    flat = {}
    for key, value in values.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def place(key: Any) -> tuple[str | None, str]:
    """Section of a run's fields, or None, and name in it, of a setting's key."""
    section, dot, name = key.partition(".") if isinstance(key, str) else ("", "", "")
    if dot and name and section in ("trainer", "task_options"):
        return section, name
    if key in FIELDS:
        return None, key
    if key in trainer_fields():
        return "trainer", key
    known = {*FIELDS, *trainer_fields()}
    raise ValueError(f"{show_value(key)} is neither a field of a run nor of its trainer; {nearest(key, known)}")


def plain(value: Any) -> Any:
    """A value as YAML has it: NumPy's and torch's scalars as Python's, paths as text, tuples as lists."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


_RUN = settings_model("Run", get_type_hints(RunConfig) | {"task_options": dict[str, JsonValue]}, RANGES, CHOICES)


def trainer_args(config: RunConfig, device: torch.device, output_dir: str | Path) -> CancellationConfig:
    """The trainer's settings of a run on a device, with the defaults that runs have; ValueError, also TRL's own."""
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    settings = {
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "gradient_checkpointing": False,
        "beta": 0.0,
        "fp32_adapters": config.lora is not None,
    } | config.trainer
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a field's coming name
        kind = {"use_cpu": device.type == "cpu", "bf16": capable, "fp16": device.type == "cuda" and not capable}
        args = CancellationConfig(output_dir=str(output_dir), seed=config.seed, **kind, **settings)
    if args.max_steps <= 0:
        raise ValueError(f"trainer.max_steps={args.max_steps} must be a positive number of optimizer steps.")
    if "save_steps" not in settings:
        args.save_steps = args.steps_per_batch * max(1, round(args.max_steps / 5 / args.steps_per_batch))
    return args


# -- YAML -----------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Plain data: 5e-4 is a number (YAML 1.1 wants 5.0e-4), a date is text, and no key is given twice."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]} is given twice", node.start_mark)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would take for a number."""


_Loader.yaml_implicit_resolvers = {
    start: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for start, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _kind in (_Loader, _Dumper):
    _float = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+\Z")
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _float, list("-+0123456789."))


def dump_yaml(value: Any) -> str:
    """Plain data as a YAML text that `parse_yaml` reads back as the same."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


def parse_yaml(text: str) -> Any:
    """The plain data that a YAML text stands for; ValueError, part of a sentence, where it is no YAML."""
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except (yaml.YAMLError, ValueError, TypeError) as error:  # the last: of a key that is a list
        problem, mark = getattr(error, "problem", None) or error, getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"is not valid YAML: {one_line(problem, 150)}{where}") from None


def read_yaml(path: str | Path, kind: str) -> Any:
    """The plain data of a YAML file; ValueError, naming the file and its kind, for what is none."""
    try:
        return parse_yaml(find_file(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(f"The {kind} {path} is not UTF-8 (byte 0x{error.object[error.start]:02x}).") from None
    except OSError as error:
        raise ValueError(f"The {kind} {path} can't be read ({error.strerror or explain_error(error)}).") from None
    except ValueError as error:
        raise ValueError(f"The {kind} {path} {error}.") from None
