"""The manifest of a run: what it was made from, and a check that a resume goes on from the same.

A resumed run ends in the bits of one that was never interrupted only if policy, prompts, reward and settings are those
that it started with. Each has its checksum in the manifest; what differs is refused in a sentence that names it.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from dataclasses import asdict
from pathlib import Path

from workbook.places import notebook_name
from workbook.training.files import made_with, read_json
from workbook.training.messages import show_value
from workbook.training.processes import process_count
from workbook.training.run_config import RunConfig


def manifest(
    config: RunConfig,
    policy,
    dataset,
    baseline_mib: float,
    sources: dict[str, str] | None = None,
    rule: dict[str, str] | None = None,
) -> dict:
    """Versions, device, seed, git state, checksums and config: all that is needed to make the run again.

    baseline_mib: memory that the process held before the policy was loaded, to be taken off a CPU run's peak.
    sources: checksums of the files of the task, by name.  rule: of those of a credit rule of one's own.
    """
    rows = hashlib.sha256()
    for row in dataset:
        rows.update(json.dumps(row, sort_keys=True, default=str).encode())
    return {
        **made_with(policy),
        "memory_before_policy_mib": round(baseline_mib, 1),
        "seed": config.seed,
        "processes": process_count(),
        "notebook": notebook_name(),
        "data_sha256": rows.hexdigest(),
        "task_sha256": sources or {},
        "credit_sha256": rule or {},
        "tokenizer_sha256": _tokenizer_sha256(policy.tokenizer),
        "model_config_sha256": _model_config_sha256(policy.model),
        "config": asdict(config),
    }


def _tokenizer_sha256(tokenizer) -> str:
    return _sha256([sorted(tokenizer.get_vocab().items()), tokenizer.chat_template, tokenizer.special_tokens_map])


def _model_config_sha256(model) -> str:
    """Of what config.json and generation_config.json say, but for where and in which precision it was loaded."""
    surroundings = ("transformers_version", "_name_or_path", "dtype", "torch_dtype", "quantization_config")
    both = [model.config.to_dict(), model.generation_config.to_dict()]
    return _sha256([{key: value for key, value in settings.items() if key not in surroundings} for settings in both])


def _sha256(tree) -> str:
    return hashlib.sha256(json.dumps(tree, sort_keys=True, default=str).encode()).hexdigest()


def read_manifest(folder: Path) -> dict | None:
    """A run's manifest; None if it has none yet. Raises ValueError, in one sentence, if it is damaged."""
    path = folder / "manifest.json"
    if not path.exists() and not path.is_symlink():
        return None
    try:
        started = read_json(path, dict)
        for part in ("config", "policy", "versions", "task_sha256", "credit_sha256"):
            if not isinstance(started.get(part, {} if part != "config" else None), dict):
                raise ValueError(f"{path} is damaged: its {part} is no mapping.")
    except ValueError as error:
        advice = "It says what the run started from: restore it, or delete it to resume without that check."
        raise ValueError(f"{error} {advice}") from None
    return started


def check_unedited(folder: Path, config: RunConfig) -> None:
    """Raise a ValueError that names what differs from what the run started with: config.yaml, number of processes."""
    if (started := read_manifest(folder)) is None:
        return
    processes = started.get("processes")
    processes = processes if type(processes) is int and processes > 0 else 1
    if processes != process_count():  # a batch is the sum of theirs
        cpu = str(started.get("device")).startswith("cpu")
        many = f"{'ACCELERATE_USE_CPU=true ' * cpu}accelerate launch --multi_gpu --num_processes {processes}"
        started_by = f"{processes} process{'es' * (processes != 1)} and this launch has {process_count()}"
        again = f"{many if processes != 1 else 'python'} -m workbook resume {shlex.quote(str(folder))}"
        raise ValueError(f"{folder} was started by {started_by}; go on with {again}")
    began = {"dtype": config.__class__.dtype} | started["config"]  # a field that older runs do not have
    before, now = _settings(began), _settings(json.loads(json.dumps(asdict(config), default=str)))
    changed = [key for key in {**now, **before} if now.get(key) != before.get(key)]
    if changed:
        shown = [f"{key} ({show_value(before.get(key))} -> {show_value(now.get(key))})" for key in changed[:3]]
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise ValueError(
            f"{folder / 'config.yaml'} was edited since the run started: {', '.join(shown)}{more}; "
            "restore it to resume, or start a new run."
        )


def _settings(config: dict) -> dict:
    """A config's fields, those of a section as section.field."""
    sections = {key: value for key, value in config.items() if isinstance(value, dict)}
    fields = {f"{key}.{name}": value for key, section in sections.items() for name, value in section.items()}
    return {key: value for key, value in config.items() if key not in sections} | fields


def check_inputs(started: dict, now: dict) -> None:
    """Raise a ValueError that names the file, the policy or the prompts that are not those the run started with.

    started, now: its manifest, and the one that it would have if it started now.
    """
    changed = []
    for part in ("task_sha256", "credit_sha256"):
        sources, theirs = _part(started, part), now[part]
        changed += [name for name in {**sources, **theirs} if sources and sources.get(name) != theirs.get(name)]
    weights = [_part(manifest, "policy").get("sha256") for manifest in (started, now)]
    name = now["policy"]["name"]
    if all(weights) and weights[0] != weights[1]:
        changed.append(f"the weights of the policy {name!r}")
    if started.get("versions") == now["versions"]:  # another library may read the same files in another way
        for part in ("tokenizer", "model_config"):
            if _differs(f"{part}_sha256", started, now):
                changed.append(f"the {part.replace('_', ' ')} of the policy {name!r}")
    if not changed and _differs("data_sha256", started, now):
        changed.append(f"the training prompts of the task {now['config']['task']!r}")
    if changed:
        raise ValueError(
            f"Changed since the run started: {', '.join(changed)}; a resume would end in other weights, so restore "
            "what was there, or start a new run."
        )


def _differs(key: str, started: dict, now: dict) -> bool:
    return key in started and started[key] != now[key]


def _part(manifest: dict, key: str) -> dict:
    return value if isinstance(value := manifest.get(key), dict) else {}


def other_surroundings(started: dict, now: dict) -> list[str]:
    """A note on the versions, device, threads or commit that differ: a resumed run's last bits may, too."""
    before, after = map(_surroundings, (started, now))
    changed = [f"{key} {before[key]} -> {after.get(key)}" for key in before if before[key] != after.get(key)]
    return [f"Resumed under other surroundings: {', '.join(changed)}."] if changed else []


def _surroundings(manifest: dict) -> dict:
    commit = _part(manifest, "git").get("commit")
    code = {"commit": str(commit)[:8]} if commit else {}
    return {"device": manifest.get("device")} | _part(manifest, "versions") | code
