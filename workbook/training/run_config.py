"""RunConfig: what to train on what, and how, as a dataclass, a YAML file or `key=value` settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from workbook.training.config import CancellationConfig

RESERVED = ("output_dir", "seed", "use_cpu", "bf16", "fp16")  # of the trainer's fields: the run sets them itself


@dataclass(frozen=True)
class RunConfig:
    """What to train on what, and how.

    Attributes:
        name: of the run; the start of its folder's name.
        policy, quantization, lora: as in `load_policy`; lora is a rank.
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
    task: str = "chain"
    task_options: dict[str, Any] = field(default_factory=dict)
    num_prompts: int = 2048
    eval_prompts: int = 0
    eval_group_size: int = 4
    seed: int = 0
    threads: int | None = None
    trainer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        if not self.name or any(c in self.name for c in "/\\\0") or self.name.startswith("."):
            raise ValueError(f"name={self.name!r} must be a plain folder name.")
        for key, least in {"num_prompts": 1, "eval_prompts": 0, "eval_group_size": 2, "seed": 0}.items():
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{key}={value!r} must be an integer of at least {least}.")
        known = {f.name for f in fields(CancellationConfig) if f.init}
        for key in self.trainer:
            if key in RESERVED:
                raise ValueError(f"trainer.{key} is set by the run itself; remove it.")
            if key not in known:
                raise ValueError(f"trainer.{key} is not a field of CancellationConfig; {_nearest(key, known)}")

    @classmethod
    def load(cls, source: RunConfig | dict | str | Path) -> RunConfig:
        """From a YAML file's path, a dict or a RunConfig.

        Raises:
            ValueError: naming the file and field, if one is unknown or invalid.
        """
        if isinstance(source, RunConfig):
            return source
        if isinstance(source, dict):
            return cls(**_known(source))
        try:
            text = Path(source).read_text(encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"The config {source} can't be read ({error.strerror}); give the path of a YAML file."
            ) from None
        try:
            values = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ValueError(f"The config {source} is not valid YAML: {' '.join(str(error).split())}.") from None
        if not isinstance(values, dict):
            raise ValueError(f"The config {source} must be a mapping of fields to values.")
        return cls(**_known(values))

    def override(self, settings: dict[str, Any]) -> RunConfig:
        """A copy with `settings` applied; a key like `trainer.learning_rate` or `task_options.operands` reaches into
        a section,
        and a bare field of CancellationConfig is understood as the trainer's."""
        own, theirs = {f.name for f in fields(self)}, {f.name for f in fields(CancellationConfig)}
        values = asdict(self)
        for key, value in settings.items():
            section, dot, name = key.partition(".")
            if dot and section in ("trainer", "task_options"):
                values[section][name] = value
            elif key in own:
                values[key] = value
            elif key in theirs:
                values["trainer"][key] = value
            else:
                raise ValueError(f"{key} is neither a field of a run nor of its trainer; {_nearest(key, own | theirs)}")
        return RunConfig(**values)


def _known(values: dict) -> dict:
    own = {f.name for f in fields(RunConfig)}
    for key in values:
        if key not in own:
            raise ValueError(f"{key} is not a field of a run; {_nearest(key, own)}")
    return values


def _nearest(key: str, known: set[str]) -> str:
    close = get_close_matches(str(key), known, n=3)
    return f"did you mean {' or '.join(close)}?" if close else f"valid fields are {', '.join(sorted(known)[:12])}, ..."
