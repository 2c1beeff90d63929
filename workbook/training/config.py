"""Settings: CancellationConfig, TRL's GRPOConfig plus the switches that make or break
token-gradient cancellation, and RunConfig, the settings of a run, as a dataclass, a YAML file or
`key=value` settings.

Every switch's default is TRL's own behaviour, so that `CancellationConfig(**kwargs)` means what
`GRPOConfig(**kwargs)` means. What a run's trainer may be set to follows from TRL's own annotations;
which values of its own fields make sense, TRL says itself.
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
        batching: how a generation batch is cut into optimizer mini-batches; "shuffled" is TRL's,
        see STRATEGIES.
        advantage_estimator: "grpo" is TRL's own; an estimator or a credit rule, one number per
        rollout or per token, or
            own:<file.py>:<function>. `python -m workbook estimators` lists them.
        baseline_share: share of the group's mean reward that is subtracted from each reward; 1 is
        TRL's, 0 is REINFORCE
            without a baseline. Below 1 it needs scale_rewards="none": groups of equal rewards push,
            too.
        group_transform: drift fix on the ratio weights of each group: None, "min_replace" or
        "advantage_orthogonal".
        transform_on: "clamped_ratios", held inside the clip range, or "clipped_weights", the
        surrogate's own, 0 where
            it is clipped, so that min_replace stops a group with its first rollout.
        clipping: "asymmetric" (PPO's min, TRL's) or "symmetric" (no gradient outside the range,
        whatever the sign).
        measure_cancellation: measure what cancels in and across steps, every so many generation
        batches; 0 = never.
        record_tokens: write what the step did to each token to output_dir/tokens, at the first
        optimizer step and every
            so many; 0 = never.
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
        return max(
            1, self.steps_per_generation * self.num_iterations // self.gradient_accumulation_steps
        )


# -- what a run's trainer may be set to

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
OPTIONS = dict[str, JsonValue] | None
_NARROWER = {  # than TRL's annotations, which also take a mapping as text
    **dict.fromkeys(("lr_scheduler_kwargs", "generation_kwargs", "chat_template_kwargs"), OPTIONS),
    **{name: OPTIONS if "kwargs" in name else bool for pair in NEW_NAMES.items() for name in pair},
}


def reason_against(name: str) -> str | None:
    """Why a run does not take a trainer's field; None where it does."""
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
    types = {name: kind for name, kind in trainer_fields().items() if not reason_against(name)}
    numbers = {int, float, NoneType}
    ranges = {
        name: {"ge": 0} for name, kind in types.items() if {*(get_args(kind) or [kind])} <= numbers
    }
    return settings_model("Trainer", types, ranges, CHOICES)


def check_trainer(values: dict[str, Any]) -> None:
    """Raise a ValueError, in one sentence, for the first field of a trainer that is unknown, not a
    run's, or of another type than TRL's annotation; a number is finite and at least 0.
    """
    for name in values:
        if name not in trainer_fields():
            known = [field for field in trainer_fields() if not reason_against(field)]
            raise InvalidValue(
                f"trainer.{show_value(name)}",
                values[name],
                "a field of CancellationConfig",
                f"trainer.{show_value(name)} is not a field of CancellationConfig;"
                f" {nearest(name, known)}",
            )
        if reason := reason_against(name):
            raise InvalidValue(
                f"trainer.{name}", values[name], "left out", f"trainer.{name} {reason}; remove it."
            )
    for old, new in NEW_NAMES.items():
        if old in values and new in values:
            raise InvalidValue(
                f"trainer.{old}",
                values[old],
                "left out",
                f"trainer.{old} is the old name of trainer.{new}; give one of them.",
            )
    check_values(_trainer_model(), values, "trainer.")


def sampling_settings(args: CancellationConfig) -> dict:
    """Arguments of `sample_rollouts` under which it samples as the trainer of `args` does."""
    same = (
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "chat_template_kwargs",
        "generation_kwargs",
    )
    return {"max_new_tokens": args.max_completion_length} | {
        name: getattr(args, name) for name in same
    }


# -- models of settings


def settings_model(
    name: str, types: Mapping[str, Any], ranges: Mapping[str, dict], choices: Mapping[str, tuple]
) -> type[BaseModel]:
    """A strict model of optional fields: types, ranges as pydantic's bounds, and valid values where
    there are few.
    """
    kinds = {key: Literal[choices[key]] if key in choices else kind for key, kind in types.items()}
    config = ConfigDict(
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )
    specified = {key: (kind, Field(None, **ranges.get(key, {}))) for key, kind in kinds.items()}
    return create_model(name, __config__=config, **specified)


def check_values(model: type[BaseModel], values: dict[str, Any], prefix: str = "") -> None:
    """Raise a ValueError, in one sentence, for the first field whose value is not valid."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        name = errors[0]["loc"][0]
        reasons = dict.fromkeys(
            e["msg"].replace("Input", "it", 1) for e in errors if e["loc"][0] == name
        )
        raise InvalidValue(
            f"{prefix}{name}",
            values[name],
            " or ".join(reasons),
            f"{prefix}{name}={show_value(values[name])}: {' or '.join(reasons)}.",
        ) from None


def nearest(name: Any, known: Iterable[str]) -> str:
    """Which of the known names was probably meant."""
    close = get_close_matches(str(name)[:100], known, n=3)
    return (
        f"did you mean {' or '.join(close)}?"
        if close
        else f"valid fields are {', '.join(sorted(known)[:12])}, ..."
    )


# -- a run

MAX_NAME, MAX_TEXT = 100, 1000  # characters


@dataclass(frozen=True)
class RunConfig:
    """Settings of a run: policy, task, sizes, seed, and the trainer's own.

    Attributes:
        name: of the run; the start of its folder's name.
        policy, quantization, lora: as in `load_policy`; lora is a rank.
        dtype: of frozen weights, as in `load_policy`; "auto" is the device's.
        task, task_options: as in `get_task`.
        num_prompts: size of the training set. eval_prompts, eval_group_size: held-out prompts and
        rollouts of each, sampled before and after; 0 prompts for
            no evaluation.
        seed: of the policy's adapters, the data and the sampling.
        threads: of torch, None for its default. CPU results are reproducible for a fixed number.
        trainer: fields of `CancellationConfig`.
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
            object.__setattr__(self, key, plain(getattr(self, key)))
        check_values(_RUN, vars(self))
        for key in ("name", "policy", "task"):
            text = getattr(self, key)
            if not (text.isprintable() and text.strip() and len(text) <= MAX_TEXT):
                raise InvalidValue(key, text, f"text of 1 to {MAX_TEXT:,} printable characters")
        if (
            len(self.name) > MAX_NAME
            or self.name.startswith(".")
            or re.search(r"[/\\]|^\s|\s$", self.name)
        ):
            valid = (
                f"a folder's name of at most {MAX_NAME} characters, without / or \\, not beginning"
                " with a dot"
            )
            raise InvalidValue("name", self.name, valid)
        check_trainer(self.trainer)

    @classmethod
    def load(cls, source: RunConfig | dict | str | Path) -> RunConfig:
        """From a YAML file's path, a dict or a RunConfig; ValueError, naming file and field, if one
        is invalid.
        """
        if isinstance(source, RunConfig):
            return source
        if isinstance(source, dict):
            if unknown := [key for key in source if key not in FIELDS]:
                raise InvalidValue(
                    show_value(unknown[0]),
                    source[unknown[0]],
                    FIELDS,
                    f"{show_value(unknown[0])} is not a field of a run;"
                    f" {nearest(unknown[0], FIELDS)}",
                )
            return cls(**source)
        if not isinstance(source, str | Path):
            raise InvalidValue("config", source, "the path of a YAML file, a dict or a RunConfig")
        values = read_yaml(source, "config")
        if not isinstance(values, dict):
            raise ValueError(f"The config {source} must be a mapping of fields to values.")
        try:
            return cls.load(values)
        except ValueError as error:
            raise reworded(error, f"The config {source}: {error}") from None

    def override(self, settings: dict[str, Any]) -> RunConfig:
        """A copy with `settings` applied; a key like `trainer.learning_rate` or
        `task_options.operands` reaches into a section, and a bare field of CancellationConfig is
        the trainer's. ValueError if one is unknown or invalid."""
        values, named = asdict(self), set()
        whole_first = sorted(
            settings.items(), key=lambda setting: setting[0] not in ("trainer", "task_options")
        )
        for key, value in whole_first:
            section, name = place(key)
            if (section, name) in named:
                raise InvalidValue(
                    f"{section}.{name}",
                    value,
                    "set once",
                    f"{section}.{name} is set twice, the second time to {show_value(value)}; set it"
                    " once.",
                )
            named.add((section, name))
            if section is None:
                values[name] = value
            elif isinstance(values[section], dict):
                values[section][name] = value
            else:
                raise InvalidValue(section, values[section], "a mapping of fields to values")
        return RunConfig(**values)


FIELDS = tuple(f.name for f in fields(RunConfig))


def flatten(values: dict, prefix: str = "") -> dict:
    """A config's fields, those of a section as section.field."""
    flat = {}
    for key, value in values.items():
        flat |= (
            flatten(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else {f"{prefix}{key}": value}
        )
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
    raise InvalidValue(
        show_value(key),
        None,
        known,
        f"{show_value(key)} is neither a field of a run nor of its trainer; {nearest(key, known)}",
    )


def plain(value: Any) -> Any:
    """A value as YAML has it: NumPy's and torch's scalars as Python's, paths as text, tuples as
    lists.
    """
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


_RUN = settings_model("Run", get_type_hints(RunConfig, include_extras=True), {}, {})


def trainer_args(
    config: RunConfig, device: torch.device, output_dir: str | Path
) -> CancellationConfig:
    """The trainer's settings of a run on a device, with the defaults that runs have; ValueError,
    also TRL's own.
    """
    capable = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
    settings = {
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "beta": 0.0,
        "fp32_adapters": config.lora is not None,
    } | config.trainer
    for old, new in NEW_NAMES.items():
        value = settings.pop(old, settings.pop(new, None if "kwargs" in old else False))
        settings[new if hasattr(GRPOConfig, new) else old] = value
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a field's coming name
        kind = {
            "use_cpu": device.type == "cpu",
            "bf16": capable,
            "fp16": device.type == "cuda" and not capable,
        }
        args = CancellationConfig(output_dir=str(output_dir), seed=config.seed, **kind, **settings)
    if args.max_steps <= 0:
        raise InvalidValue(
            "trainer.max_steps", args.max_steps, "a positive number of optimizer steps"
        )
    if "save_steps" not in settings:
        args.save_steps = args.steps_per_batch * max(
            1, round(args.max_steps / 5 / args.steps_per_batch)
        )
    return args


# -- YAML


class _Loader(yaml.SafeLoader):
    """Plain data: 5e-4 is a number (YAML 1.1 wants 5.0e-4), a date is text, and no key is given
    twice.
    """

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for i, key in enumerate(keys) if key in keys[:i]]:
            raise yaml.constructor.ConstructorError(
                None, None, f"{twice[0]} is given twice", node.start_mark
            )
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
    """The plain data that a YAML text stands for; ValueError, part of a sentence, where it is no
    YAML.
    """
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except (yaml.YAMLError, ValueError, TypeError) as error:  # the last: of a key that is a list
        problem, mark = (
            getattr(error, "problem", None) or error,
            getattr(error, "problem_mark", None),
        )
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ValueError(f"is not valid YAML: {one_line(problem, 150)}{where}") from None


def read_yaml(path: str | Path, kind: str) -> Any:
    """The plain data of a YAML file; ValueError, naming the file and its kind, for what is none."""
    try:
        return parse_yaml(find_file(path).read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"The {kind} {path} is not UTF-8 (byte 0x{error.object[error.start]:02x})."
        ) from None
    except OSError as error:
        raise ValueError(
            f"The {kind} {path} can't be read ({error.strerror or explain_error(error)})."
        ) from None
    except ValueError as error:
        raise ValueError(f"The {kind} {path} {error}.") from None
