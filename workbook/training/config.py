"""Settings of a trainer and of a run.

Two dataclasses stand here. `CancellationConfig` is TRL's GRPOConfig plus the switches that make or
break token-gradient cancellation. Every switch's default is TRL's own behaviour, so that
`CancellationConfig(**kwargs)` means what `GRPOConfig(**kwargs)` means.

`RunConfig` is all that makes a run, so that the same settings give the same run again: policy,
task, sizes, seed, and fields of its trainer. It is a dataclass, a YAML file or `key=value`
settings, and becomes a CancellationConfig by `trainer_args`. What a run's trainer may be set to
follows from TRL's own annotations; which values of its own fields make sense, TRL says itself.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_type_hints

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model
from trl import GRPOConfig

from workbook.messages import InvalidValue, explain_error, one_line, reworded, show_value
from workbook.places import find_file
from workbook.theory.choices import CLIPPINGS, STRATEGIES, TRANSFORM_INPUTS, TRANSFORMS

# Fields of transformers that lose their name with its version 6: a run takes either name, whichever
# transformers knows.
NEW_NAMES = {"gradient_checkpointing": "activation_checkpointing"}
NEW_NAMES |= {f"{old}_kwargs": f"{new}_kwargs" for old, new in NEW_NAMES.items()}


@dataclass
class CancellationConfig(GRPOConfig):
    """Settings of a [`CancellationTrainer`]: all of TRL's `GRPOConfig`, and those below.

    Which combinations make sense is checked when the trainer is built (see
    `workbook.training.checks`), since that needs the model and the number of processes.

    Attributes:
        batching: how a generation batch is cut into optimizer mini-batches, one of STRATEGIES;
            "shuffled" is TRL's.
        advantage_estimator: an estimator or a credit rule, one number per rollout or per token, or
            own:<file.py>:<function>; "grpo" is TRL's. `python -m workbook estimators` lists them.
        baseline_share: share of the group's mean reward that is subtracted from each reward; 1 is
            TRL's, 0 is REINFORCE without a baseline. Below 1 it needs scale_rewards="none", and
            groups of equal rewards push, too.
        group_transform: drift fix on the ratio weights of each group: None, "min_replace" or
            "advantage_orthogonal".
        transform_on: what a transform takes: "clamped_ratios", held inside the clip range, or
            "clipped_weights", the surrogate's own, 0 where it is clipped, so that min_replace stops
            a group with its first clipped rollout.
        clipping: "asymmetric" (PPO's min, TRL's) or "symmetric" (no gradient outside the range,
            whatever the sign).
        measure_cancellation: measure what cancels inside and across optimizer steps, every so many
            generation batches; 0 = never.
        record_tokens: write what the step did to each token to output_dir/tokens, at the first
            optimizer step and every so many; 0 = never.
        trim_padding: cut columns that are padding in all rollouts scored at once, before the
            forward pass.
        fp32_adapters: keep LoRA weights in float32, where TRL casts those of a quantized model to
            bfloat16.
    """

    batching: str = "shuffled"
    advantage_estimator: str = "grpo"
    baseline_share: float = 1.0
    group_transform: str | None = None
    transform_on: str = "clamped_ratios"
    clipping: str = "asymmetric"
    measure_cancellation: int = 0
    record_tokens: int = 0
    trim_padding: bool = False
    fp32_adapters: bool = False

    def __post_init__(self):
        # TRL has a default for the old name
        if getattr(self, "activation_checkpointing", False) is None:
            self.activation_checkpointing = self.gradient_checkpointing
        super().__post_init__()

    @property
    def steps_per_batch(self) -> int:
        """Optimizer steps on each generation batch."""
        micro_batches = self.steps_per_generation * self.num_iterations
        return max(1, micro_batches // self.gradient_accumulation_steps)


# -- what a run's trainer may be set to ------------------------------------------------------------

# Valid values of this trainer's own switches; TRL and transformers refuse theirs themselves.
CHOICES = {
    "batching": STRATEGIES,
    "group_transform": (None, *TRANSFORMS),
    "transform_on": TRANSFORM_INPUTS,
    "clipping": CLIPPINGS,
}
# Why a run does not take a field that a trainer has, and the pattern of such fields' names.
NOT_OF_A_RUN = {
    "is set by the run itself": "output_dir|seed|use_cpu|bf16|fp16",
    "would upload, and nothing of a run is uploaded": "push_to_hub|hub_.+|.+_hub_repo|trackio_.+",
    "would change a run's checkpoints, which are its own": (
        "save_total_limit|save_only_model|resume_.+|ignore_data_skip|load_best_.+|.+_best_model"
    ),
    "has no effect on a run, whose eval_prompts are evaluated before and after": (
        "eval_.+|do_.+|.+_eval|.+_eval_.+"
    ),
    "has no effect on a run, whose length is max_steps": "num_train_epochs",
    "has no effect on a run, whose metrics have a line for every step": "logging_.+",
    "has no effect on a run, which loads its policy itself": "model_init_kwargs|trust_remote_code",
    "is no setting of a run but of its launch, see data/configs/accelerate": (
        "local_rank|deepspeed|fsdp.*|accelerator_config|parallelism_config|ddp_backend"
    ),
    "would break groups of rollouts": "auto_find_batch_size",
}

# Narrower types than TRL's annotations, which also take a mapping as text.
_Options = dict[str, JsonValue] | None
_NARROWER: dict[str, Any] = dict.fromkeys(
    ("lr_scheduler_kwargs", "generation_kwargs", "chat_template_kwargs"), _Options
)
for _name in (*NEW_NAMES, *NEW_NAMES.values()):
    _NARROWER[_name] = _Options if "kwargs" in _name else bool


def why_not_of_a_run(name: str) -> str | None:
    """The reason why a run does not take a trainer's field; None where it does."""
    for reason, pattern in NOT_OF_A_RUN.items():
        if re.fullmatch(pattern, name):
            return reason
    return None


@cache
def trainer_fields() -> dict[str, Any]:
    """The fields of CancellationConfig and their types, those included that a run does not take."""
    return get_type_hints(CancellationConfig) | _NARROWER


@cache
def _trainer_model() -> type[BaseModel]:
    """A model of the trainer's fields that a run takes; numbers are at least 0."""
    types = {name: kind for name, kind in trainer_fields().items() if not why_not_of_a_run(name)}
    numbers = {int, float, NoneType}
    ranges = {}
    for name, kind in types.items():
        members = set(get_args(kind) or [kind])
        if members <= numbers:
            ranges[name] = {"ge": 0}
    return settings_model("Trainer", types, ranges, CHOICES)


def check_trainer(values: dict[str, Any]) -> None:
    """Raise InvalidValue for the first field of a trainer that is unknown, that is not a run's, or
    whose value is of another type than TRL's annotation; a number is finite and at least 0.
    """
    for name, value in values.items():
        if name not in trainer_fields():
            known = [field for field in trainer_fields() if not why_not_of_a_run(field)]
            field = f"trainer.{show_value(name)}"
            sentence = f"{field} is not a field of CancellationConfig; {nearest(name, known)}"
            raise InvalidValue(field, value, "a field of CancellationConfig", sentence)
        reason = why_not_of_a_run(name)
        if reason:
            field = f"trainer.{name}"
            raise InvalidValue(field, value, "left out", f"{field} {reason}; remove it.")
    for old, new in NEW_NAMES.items():
        if old in values and new in values:
            field = f"trainer.{old}"
            sentence = f"{field} is the old name of trainer.{new}; give one of them."
            raise InvalidValue(field, values[old], "left out", sentence)
    check_fields(_trainer_model(), values, "trainer.")


def sampling_settings(args: CancellationConfig) -> dict:
    """Arguments of `sample_rollouts` under which it samples as the trainer of `args` does."""
    settings = {"max_new_tokens": args.max_completion_length}
    for name in (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "chat_template_kwargs",
        "generation_kwargs",
    ):
        settings[name] = getattr(args, name)
    return settings


# -- models of settings ----------------------------------------------------------------------------


def settings_model(
    name: str, types: Mapping[str, Any], ranges: Mapping[str, dict], choices: Mapping[str, tuple]
) -> type[BaseModel]:
    """Make a strict model of optional fields.

    types: of each field.  ranges: pydantic's bounds, of numbers.  choices: valid values, where
    there are few.
    """
    specified = {}
    for field_name, kind in types.items():
        if field_name in choices:
            kind = Literal[choices[field_name]]
        specified[field_name] = (kind, Field(None, **ranges.get(field_name, {})))
    config = ConfigDict(
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
    return create_model(name, __config__=config, **specified)


def check_fields(model: type[BaseModel], values: dict[str, Any], prefix: str = "") -> None:
    """Raise InvalidValue for the first field whose value is not valid, with pydantic's reasons."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        name = errors[0]["loc"][0]
        of_name = [one["msg"] for one in errors if one["loc"][0] == name]
        # a type of several members gives a reason for each, some of them twice
        reasons = dict.fromkeys(message.replace("Input", "it", 1) for message in of_name)
        valid = " or ".join(reasons)
        sentence = f"{prefix}{name}={show_value(values[name])}: {valid}."
        raise InvalidValue(f"{prefix}{name}", values[name], valid, sentence) from None


def nearest(name: Any, known: Iterable[str]) -> str:
    """Ask whether one of the known names was meant; without a similar one, list some."""
    known = list(known)
    similar = get_close_matches(str(name)[:100], known, n=3)
    if similar:
        return f"did you mean {' or '.join(similar)}?"
    return f"valid fields are {', '.join(sorted(known)[:12])}, ..."


# -- a run -----------------------------------------------------------------------------------------

_MAX_NAME = 100  # characters of a run's name
_MAX_TEXT = 1000  # characters of any other text


@dataclass(frozen=True)
class RunConfig:
    """Settings of a run: policy, task, sizes, seed, and the trainer's own.

    Attributes:
        name: of the run; the start of its folder's name.
        policy, quantization, lora: as in `load_policy`; lora is a rank.
        dtype: of frozen weights, as in `load_policy`; "auto" is the device's.
        task, task_options: as in `get_task`.
        num_prompts: size of the training set.
        eval_prompts, eval_group_size: held-out prompts and rollouts of each, sampled before and
            after; 0 prompts for no evaluation.
        seed: of the policy's adapters, the data and the sampling.
        threads: of torch, None for its default. CPU results are reproducible for a fixed number.
        trainer: fields of `CancellationConfig`.

    Raises:
        InvalidValue: for the first field whose value is not valid.
    """

    name: str = "run"
    policy: str = "bundled"
    quantization: Literal["nf4"] | None = None
    lora: Annotated[int, Field(ge=1, le=1024)] | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    task: str = "chain"
    task_options: dict[str, JsonValue] = field(default_factory=dict)
    num_prompts: Annotated[int, Field(ge=1, le=1_000_000)] = 2048
    eval_prompts: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    eval_group_size: Annotated[int, Field(ge=2, le=1024)] = 4
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    threads: Annotated[int, Field(ge=1, le=256)] | None = None
    trainer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self):
        for key in FIELDS:
            object.__setattr__(self, key, to_builtin(getattr(self, key)))
        check_fields(_RUN, vars(self))
        for key in ("name", "policy", "task"):
            text = getattr(self, key)
            if not (text.isprintable() and text.strip() and len(text) <= _MAX_TEXT):
                raise InvalidValue(key, text, f"text of 1 to {_MAX_TEXT:,} printable characters")
        misplaced = re.search(r"[/\\]|^\s|\s$", self.name)
        if len(self.name) > _MAX_NAME or self.name.startswith(".") or misplaced:
            valid = (
                f"a folder's name of at most {_MAX_NAME} characters, without / or \\, not beginning"
                " with a dot"
            )
            raise InvalidValue("name", self.name, valid)
        check_trainer(self.trainer)

    @classmethod
    def load(cls, source: RunConfig | dict | str | Path) -> RunConfig:
        """Make a config from a YAML file's path, a dict or a RunConfig.

        Raises ValueError, in one sentence that names file and field, if one is invalid.
        """
        if isinstance(source, RunConfig):
            return source
        if isinstance(source, dict):
            return cls._from_dict(source)
        if not isinstance(source, str | Path):
            raise InvalidValue("config", source, "the path of a YAML file, a dict or a RunConfig")
        values = read_settings_file(source, "config")
        if not isinstance(values, dict):
            raise ValueError(f"The config {source} must be a mapping of fields to values.")
        try:
            return cls._from_dict(values)
        except ValueError as error:
            raise reworded(error, f"The config {source}: {error}") from None

    @classmethod
    def _from_dict(cls, values: dict) -> RunConfig:
        for key, value in values.items():
            if key not in FIELDS:
                shown = show_value(key)
                sentence = f"{shown} is not a field of a run; {nearest(key, FIELDS)}"
                raise InvalidValue(str(key), value, FIELDS, sentence)
        return cls(**values)

    def override(self, settings: dict[str, Any]) -> RunConfig:
        """Make a copy with `settings` applied.

        A key like `trainer.learning_rate` or `task_options.operands` reaches into a section, and a
        bare field of CancellationConfig is the trainer's. Raises InvalidValue if a key is unknown
        or set twice, or a value invalid.
        """
        values = asdict(self)
        seen = set()
        # a section as a whole first, then what reaches into it
        whole_first = sorted(settings, key=lambda key: key not in SECTIONS)
        for key in whole_first:
            value = settings[key]
            section, name = locate_setting(key, value)
            if (section, name) in seen:
                field = f"{section}.{name}"
                sentence = f"{field} is set twice, the second time to {show_value(value)}; set it"
                raise InvalidValue(field, value, "set once", f"{sentence} once.")
            seen.add((section, name))
            if section is None:
                values[name] = value
            elif isinstance(values[section], dict):
                values[section][name] = value
            else:
                raise InvalidValue(section, values[section], "a mapping of fields to values")
        return RunConfig(**values)


FIELDS = tuple(f.name for f in fields(RunConfig))
SECTIONS = ("trainer", "task_options")  # fields of a run that have fields


def flatten(values: dict, prefix: str = "") -> dict:
    """A config's fields, those of a section as section.field.

    >>> flatten({"seed": 0, "trainer": {"beta": 0.1}})
    {'seed': 0, 'trainer.beta': 0.1}
    """
    flat = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def locate_setting(key: Any, value: Any = None) -> tuple[str | None, str]:
    """The section that a setting's key reaches into (None: a run's own field), and its name there.

    value: of the setting.  Raises InvalidValue for a key that is neither a run's nor its trainer's.

    >>> locate_setting("task_options.operands"), locate_setting("seed"), locate_setting("beta")
    (('task_options', 'operands'), (None, 'seed'), ('trainer', 'beta'))
    """
    if isinstance(key, str):
        section, _, name = key.partition(".")
        if name and section in SECTIONS:
            return section, name
    if key in FIELDS:
        return None, key
    if key in trainer_fields():
        return "trainer", key
    known = {*FIELDS, *trainer_fields()}
    shown = show_value(key)
    sentence = f"{shown} is neither a field of a run nor of its trainer; {nearest(key, known)}"
    raise InvalidValue(str(key), value, known, sentence)


def to_builtin(value: Any) -> Any:
    """A value as YAML has it: scalars of NumPy and torch as Python's, paths as text, tuples as
    lists.
    """
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {name: to_builtin(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_builtin(item) for item in value]
    return value


_RUN = settings_model("Run", get_type_hints(RunConfig, include_extras=True), {}, {})


def trainer_args(
    config: RunConfig, device: torch.device, output_dir: str | Path
) -> CancellationConfig:
    """The trainer's settings of a run on a device, with the defaults that runs have.

    Raises ValueError, also TRL's own, for settings that make no trainer.
    """
    settings = {
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "beta": 0.0,
        "fp32_adapters": config.lora is not None,
    }
    settings |= config.trainer
    # a field that transformers renames goes by the name that the installed one knows
    for old, new in NEW_NAMES.items():
        default = None if "kwargs" in old else False
        value = settings.pop(old, settings.pop(new, default))
        known = new if hasattr(GRPOConfig, new) else old
        settings[known] = value

    # bfloat16 from Ampere on, float16 on older GPUs, float32 on a CPU
    on_gpu = device.type == "cuda"
    has_bf16 = on_gpu and torch.cuda.get_device_capability(device) >= (8, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a field's coming name
        args = CancellationConfig(
            output_dir=str(output_dir),
            seed=config.seed,
            use_cpu=device.type == "cpu",
            bf16=has_bf16,
            fp16=on_gpu and not has_bf16,
            **settings,
        )
    if args.max_steps <= 0:
        valid = "a positive number of optimizer steps"
        raise InvalidValue("trainer.max_steps", args.max_steps, valid)
    if "save_steps" not in settings:
        # about five checkpoints, each after a whole generation batch
        batches = round(args.max_steps / 5 / args.steps_per_batch)
        args.save_steps = args.steps_per_batch * max(1, batches)
    return args


# -- YAML ------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Plain data: 5e-4 is a number (YAML 1.1 wants 5.0e-4), a date is text, no key comes twice."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"{key.value} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would take for a number."""


_Loader.yaml_implicit_resolvers = {
    start: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for start, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+\Z")
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def dump_settings(value: Any) -> str:
    """Write plain data as a YAML text that `parse_settings` reads back as the same."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False)


def parse_settings(text: str) -> Any:
    """Read the plain data that a YAML text stands for.

    Raises ValueError, whose text is the rest of a sentence ("is not valid YAML: ..."), where it is
    no YAML.
    """
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except (yaml.YAMLError, ValueError, TypeError) as error:  # the last: of a key that is a list
        problem = getattr(error, "problem", None) or error
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"is not valid YAML: {one_line(problem, 150)}{where}") from None


def read_settings_file(path: str | Path, kind: str) -> Any:
    """Read the plain data of a YAML file.

    kind: what the file is, such as "config".  Raises ValueError, naming both, for a file that can't
    be read or is no YAML.
    """
    try:
        return parse_settings(find_file(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise ValueError(f"The {kind} {path} is not UTF-8 (byte 0x{byte:02x}).") from None
    except OSError as error:
        reason = error.strerror or explain_error(error)
        raise ValueError(f"The {kind} {path} can't be read ({reason}).") from None
    except ValueError as error:
        raise ValueError(f"The {kind} {path} {error}.") from None
