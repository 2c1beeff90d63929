"""RunConfig: the settings of a run, as a dataclass, a YAML file or `key=value` settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from workbook.training.config_text import read_yaml
from workbook.training.messages import show_value
from workbook.training.schema import RUN, RUN_FIELDS, check_fields, check_options, nearest, show_name
from workbook.training.trainer_fields import REASONS, RUN_SETS, TRAINER_FIELDS, check_trainer

RESERVED = RUN_SETS  # of the trainer's fields: the run sets them itself
MAX_DEPTH = 20  # of mappings and lists in one another


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
        for key in (f.name for f in fields(self)):
            object.__setattr__(self, key, plain(getattr(self, key), key))
        check_fields(RUN, vars(self))
        check_trainer(self.trainer)
        check_options(self.trainer)

    @classmethod
    def load(cls, source: RunConfig | dict | str | Path) -> RunConfig:
        """From a YAML file's path, a dict or a RunConfig; ValueError, naming file and field, if one is invalid."""
        if isinstance(source, RunConfig):
            return source
        if isinstance(source, dict):
            return cls(**_known(source))
        if not isinstance(source, str | Path):
            raise ValueError(f"config={show_value(source)} must be the path of a YAML file, a dict or a RunConfig.")
        values = read_yaml(source, "config")
        if not isinstance(values, dict):
            raise ValueError(f"The config {source} must be a mapping of fields to values.")
        try:
            return cls(**_known(values))
        except ValueError as error:
            raise ValueError(f"The config {source}: {error}") from None

    def override(self, settings: dict[str, Any]) -> RunConfig:
        """A copy with `settings` applied; a key like `trainer.learning_rate` or `task_options.operands` reaches into
        a section, and a bare field of CancellationConfig is understood as the trainer's.

        Raises ValueError if a field is unknown, set twice or invalid.
        """
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
                valid = RUN.model_fields[section].description
                raise ValueError(f"{section}={show_value(values[section])} must be {valid}.")
        return RunConfig(**values)


def place(key: Any) -> tuple[str | None, str]:
    """Section of a run's fields, or None, and name in it, of a setting's key."""
    section, dot, name = key.partition(".") if isinstance(key, str) else ("", "", "")
    if dot and name and section in ("trainer", "task_options"):
        return section, name
    if key in RUN_FIELDS:
        return None, key
    if key in TRAINER_FIELDS or key in REASONS:
        return "trainer", key
    known = RUN_FIELDS | TRAINER_FIELDS
    raise ValueError(f"{show_name(key)} is neither a field of a run nor of its trainer; {nearest(key, known)}")


def _known(values: dict) -> dict:
    for key in values:
        if key not in RUN_FIELDS:
            raise ValueError(f"{show_name(key)} is not a field of a run; {nearest(key, RUN_FIELDS)}")
    return values


def plain(value: Any, key: str, depth: int = 0) -> Any:
    """A value as YAML has it: NumPy's and torch's scalars as Python's, paths as text, tuples as lists."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{key} is nested more than {MAX_DEPTH} deep; a mapping of names to plain values is not.")
    if isinstance(value, np.generic) or (hasattr(value, "item") and getattr(value, "shape", None) == ()):
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {name: plain(item, key, depth + 1) for name, item in value.items()}
    return [plain(item, key, depth + 1) for item in value] if isinstance(value, list | tuple) else value
