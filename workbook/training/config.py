"""Settings: CancellationConfig, TRL's GRPOConfig plus the switches that make or break
token-gradient cancellation, and RunConfig, the settings of a run, as a dataclass, a YAML file or
`key=value` settings.

Every switch's default is TRL's own behaviour, so that `CancellationConfig(**kwargs)` means what
`GRPOConfig(**kwargs)` means. What a run's trainer may be set to follows from TRL's own annotations,
with the ranges and choices below.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

import torch
import yaml
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, create_model
from transformers import GenerationConfig
from trl import GRPOConfig

from workbook.messages import explain_error, one_line, show_value
from workbook.places import find_file
from workbook.theory.choices import CLIPPINGS, LEVELS, STRATEGIES, TRANSFORM_INPUTS, TRANSFORMS

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
# -----------------------------------------------------------------------------

SCHEDULES = (  # that resume in the same bits
    *(
        "linear",
        "cosine",
        "cosine_with_restarts",
        "polynomial",
        "constant",
        "constant_with_warmup",
        "inverse_sqrt",
    ),
    *("cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay"),
)
CHOICES = {
    "batching": STRATEGIES,
    "group_transform": (None, *TRANSFORMS),
    "transform_on": TRANSFORM_INPUTS,
    "clipping": CLIPPINGS,
    "importance_sampling_level": LEVELS,
    "loss_type": ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"),
    "lr_scheduler_type": SCHEDULES,
    "multi_objective_aggregation": ("sum_then_normalize", "normalize_then_sum"),
    "save_strategy": ("steps", "no"),
    "scale_rewards": ("group", "batch", "none", True, False),
    "vllm_mode": ("colocate", "server"),
    "vllm_model_impl": ("vllm", "transformers"),
    "vllm_importance_sampling_mode": (
        "token_truncate",
        "token_mask",
        "sequence_truncate",
        "sequence_mask",
    ),
}


_INTERVALS = {  # of numbers; any other that is known must be at least 0
    "[1, 65536]": (
        """per_device_train_batch_size gradient_accumulation_steps steps_per_generation num_iterations
        pad_to_multiple_of num_completions_to_print torch_empty_cache_steps ddp_bucket_cap_mb dataloader_prefetch_factor
        vllm_tensor_parallel_size vllm_server_port vllm_group_port"""
    ),
    "[2, 4194304]": "generation_batch_size num_generations",
    "[0, 64]": "dataloader_num_workers",
    "[1, 10000000]": (
        """max_steps save_steps ref_model_sync_steps max_completion_length vllm_max_model_length
        ddp_timeout"""
    ),
    "[1, 1]": "logging_steps",  # a run's metrics have a line for every step
    "(0, inf)": (
        """learning_rate adam_epsilon epsilon epsilon_high delta repetition_penalty off_policy_mask_threshold
        sapo_temperature_neg sapo_temperature_pos vllm_server_timeout vllm_importance_sampling_clip_max
        vllm_importance_sampling_clip_min"""
    ),
    "[0, 1]": "weight_decay ref_model_mixup_alpha min_p baseline_share",
    "[0, 1)": "adam_beta1 adam_beta2",
    "(0, 1]": "top_p top_entropy_quantile vllm_gpu_memory_utilization",
    "[0.0001, 1000000]": "temperature",
}
_REFUSED = {  # a reason: the fields of TRL's config that a run does not take for it
    "is set by the run itself": "output_dir seed use_cpu bf16 fp16",
    "would upload, and nothing of a run is uploaded": (
        """push_to_hub hub_token hub_private_repo hub_model_id
        hub_strategy hub_always_push hub_revision log_completions_hub_repo trackio_space_id trackio_bucket_id
        trackio_static_space_id"""
    ),
    "would change a run's checkpoints, which are its own": (
        """save_total_limit save_only_model save_on_each_node
        enable_jit_checkpoint resume_from_checkpoint ignore_data_skip restore_callback_states_from_checkpoint
        load_best_model_at_end metric_for_best_model greater_is_better"""
    ),
    "has no effect on a run, whose eval_prompts are evaluated before and after": (
        """eval_strategy eval_steps eval_delay
        eval_on_start eval_do_concat_batches eval_accumulation_steps eval_use_gather_object per_device_eval_batch_size
        num_generations_eval prediction_loss_only do_train do_eval do_predict include_for_metrics batch_eval_metrics
        label_names bf16_full_eval fp16_full_eval"""
    ),
    "has no effect on a run, whose length is max_steps": "num_train_epochs",
    "has no effect on a run, whose metrics have a line for every step": (
        """logging_strategy logging_first_step
        logging_nan_inf_filter include_num_input_tokens_seen skip_memory_metrics log_multimodal"""
    ),
    "has no effect on a run, whose policy is loaded with the fields policy, quantization and lora": (
        """model_init_kwargs
        trust_remote_code"""
    ),
    "has no effect on the loss or the sampling of a run": (
        """label_smoothing_factor neftune_noise_alpha
        max_tool_calling_iterations data_seed length_column_name train_sampling_strategy dataloader_drop_last
        dataloader_multiprocessing_context dataloader_in_order remove_unused_columns debug optim_target_modules
        ds3_gather_for_generation"""
    ),
    "is no setting of a run but of its launch, see data/configs/accelerate": (
        """local_rank deepspeed fsdp fsdp_config
        accelerator_config parallelism_config ddp_backend ddp_static_graph"""
    ),
    "would break groups of rollouts": "auto_find_batch_size",
    "has another name: use_transformers_continuous_batching": "use_transformers_paged",
    "has another name: vllm_importance_sampling_clip_max": "vllm_importance_sampling_cap",
}
REASONS = {name: reason for reason, names in _REFUSED.items() for name in names.split()}
_TAKEN = """average_tokens_across_devices beta cache_implementation cast_lm_head_to_fp32 dataloader_persistent_workers
    dataloader_pin_memory ddp_broadcast_buffers ddp_find_unused_parameters disable_dropout disable_tqdm entropy_coef
    entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target full_determinism liger_kernel_config
    log_completions log_level log_level_replica log_on_each_node log_unique_prompts mask_truncated_completions
    max_grad_norm optim project report_to router_aux_loss_coef run_name shuffle_dataset sync_ref_model tf32 top_k
    torch_compile torch_compile_backend torch_compile_mode use_adaptive_entropy use_bias_correction_kl use_cache
    use_liger_kernel use_transformers_continuous_batching use_vllm vespo_k_neg vespo_k_pos vespo_lambda_neg
    vespo_lambda_pos vllm_enable_sleep_mode vllm_importance_sampling_correction vllm_server_base_url vllm_server_host
    # the rest of what is known: of any other field a run warns
    vllm_structured_outputs_regex warmup_steps"""
OPTIONS = dict[str, JsonValue] | None
_NARROWER = {  # than TRL's annotations
    **dict.fromkeys(
        ("save_steps", "logging_steps", "num_generations", "max_completion_length"), int
    ),
    **dict.fromkeys(("lr_scheduler_kwargs", "generation_kwargs", "chat_template_kwargs"), OPTIONS),
    **{name: OPTIONS if "kwargs" in name else bool for pair in NEW_NAMES.items() for name in pair},
    "transformers_continuous_batching_config": OPTIONS,
    "optim_args": Annotated[str, Field(pattern=r"^\w+=[^=,\s]+(, ?\w+=[^=,\s]+)*$")] | None,
    "pad_to_multiple_of": int | None,
    "reward_weights": (
        Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1, max_length=1)] | None
    ),
}
# fields of TRL's
_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "cache_implementation")
_NOT_SAMPLED = (
    "do_sample",
    "num_beams",
    "num_return_sequences",
    "return_dict_in_generate",
    "eos_token_id",
)


@cache
def trainer_fields() -> dict[str, Any]:
    """The fields of CancellationConfig with their types, those among them that a run does not take."""
    hints = get_type_hints(CancellationConfig)
    either = {*hints, *NEW_NAMES, *NEW_NAMES.values()}
    return hints | {name: kind for name, kind in _NARROWER.items() if name in either}


@cache
def new_fields() -> set[str]:
    """Fields that the installed TRL and transformers have and no table here: a later release's,
    taken as they are.
    """
    tables = [REASONS, CHOICES, _NARROWER, CancellationConfig.__annotations__, _TAKEN.split()]
    tables += [names.split() for names in _INTERVALS.values()]
    return set(trainer_fields()).difference(*tables)


def _bounds(interval: str) -> dict[str, float]:
    """Pydantic's bounds of an interval such as "(0, 1]" or "[1, inf)"."""
    low, high = (
        float(end) if "." in end or end == "inf" else int(end) for end in interval[1:-1].split(", ")
    )
    upper = {} if high == float("inf") else {"le" if interval[-1] == "]" else "lt": high}
    return {"ge" if interval[0] == "[" else "gt": low} | upper


@cache
def _trainer_model() -> type[BaseModel]:
    types = {name: kind for name, kind in trainer_fields().items() if name not in REASONS}
    numbers = (name for name, kind in types.items() if {int, float} & {kind, *get_args(kind)})
    ranges = {name: {"ge": 0} for name in numbers if name not in new_fields()}
    ranges |= {
        name: _bounds(interval) for interval, names in _INTERVALS.items() for name in names.split()
    }
    return settings_model("Trainer", types, ranges, CHOICES)


def check_trainer(values: dict[str, Any]) -> None:
    """Raise a ValueError, in one sentence, for the first field of a trainer that is unknown,
    refused or not valid.
    """
    for name in values:
        if name in REASONS:
            raise ValueError(f"trainer.{name} {REASONS[name]}; remove it.")
        if name not in trainer_fields():
            known = set(trainer_fields()) - set(REASONS)
            raise ValueError(
                f"trainer.{show_value(name)} is not a field of CancellationConfig;"
                f" {nearest(name, known)}"
            )
        if name in new_fields():
            warnings.warn(
                f"trainer.{name} is newer than this workbook, which passes it on as it is.",
                stacklevel=2,
            )
    for old, new in NEW_NAMES.items():
        if old in values and new in values:
            raise ValueError(f"trainer.{old} is the old name of trainer.{new}; give one of them.")
    check_values(_trainer_model(), values, "trainer.")
    for name in values.get("generation_kwargs") or {}:
        if name in _SAMPLING:
            raise ValueError(
                f"trainer.generation_kwargs has {name}, which is a field of its own; set"
                f" trainer.{name}."
            )
        if name in _NOT_SAMPLED or not hasattr(GenerationConfig(), name):
            raise ValueError(
                f"trainer.generation_kwargs has {name}, which a run does not take; remove it."
            )


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
# ---------------------------------------------------------------------------------------------


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
        raise ValueError(
            f"{prefix}{name}={show_value(values[name])}: {' or '.join(reasons)}."
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
# ----------------------------------------------------------------------------------------------------------

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
                raise ValueError(
                    f"{key}={show_value(text)} must be text of 1 to {MAX_TEXT:,} printable"
                    " characters."
                )
        if (
            len(self.name) > MAX_NAME
            or self.name.startswith(".")
            or re.search(r"[/\\]|^\s|\s$", self.name)
        ):
            valid = (
                f"a folder's name of at most {MAX_NAME} characters, without / or \\, not beginning"
                " with a dot"
            )
            raise ValueError(f"name={show_value(self.name)} must be {valid}.")
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
                raise ValueError(
                    f"{show_value(unknown[0])} is not a field of a run;"
                    f" {nearest(unknown[0], FIELDS)}"
                )
            return cls(**source)
        if not isinstance(source, str | Path):
            raise ValueError(
                f"config={show_value(source)} must be the path of a YAML file, a dict or a"
                " RunConfig."
            )
        values = read_yaml(source, "config")
        if not isinstance(values, dict):
            raise ValueError(f"The config {source} must be a mapping of fields to values.")
        try:
            return cls.load(values)
        except ValueError as error:
            raise ValueError(f"The config {source}: {error}") from None

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
                raise ValueError(
                    f"{section}.{name} is set twice, the second time to {show_value(value)}; set it"
                    " once."
                )
            named.add((section, name))
            if section is None:
                values[name] = value
            elif isinstance(values[section], dict):
                values[section][name] = value
            else:
                raise ValueError(
                    f"{section}={show_value(values[section])} must be a mapping of fields to"
                    " values."
                )
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
    raise ValueError(
        f"{show_value(key)} is neither a field of a run nor of its trainer; {nearest(key, known)}"
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
        raise ValueError(
            f"trainer.max_steps={args.max_steps} must be a positive number of optimizer steps."
        )
    if "save_steps" not in settings:
        args.save_steps = args.steps_per_batch * max(
            1, round(args.max_steps / 5 / args.steps_per_batch)
        )
    return args


# -- YAML
# -----------------------------------------------------------------------------------------------------------


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
