"""A run in a folder that can be taken elsewhere: its config, its model with a card, and the reader's own
prompts and reward.

No file of an export says where on this machine anything lay: local folders and files go by their last name.
"""

from __future__ import annotations

import filecmp
import json
import shutil
import zipfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from workbook.tasks import get_task
from workbook.theory.choices import OWN
from workbook.training.cards import run_card
from workbook.training.files import SUMS, atomic_folder, damage, replacement, write_json, write_text
from workbook.training.folders import as_folder
from workbook.training.run_config import RunConfig, read_yaml
from workbook.training.runs import Run
from workbook.training.sweep_run import as_yaml
from workbook.training.sweeps import Grid

NAMED = ("bundled", "smollm2-135m", "gemma3-270m")  # policies that load_policy finds on every machine


def export_config(config: RunConfig, folder: str | Path, grid: Grid | None = None) -> Path:
    """Write config.yaml, or with a grid sweep.yaml, into a folder, and the files of what is "own:" in it beside it.

    A config of own files names them as they lie in that folder: start it from there. Returns the file's path.
    Raises ValueError if the folder is a run's, or holds another file under one of these names.
    """
    folder = as_folder(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is no folder; name another one.")
    path = folder / ("sweep.yaml" if grid else "config.yaml")
    own = _own_files(config)
    _check_target(folder, path, own)
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in own.items():
        if not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / name)
    if task := _task_files(config):
        data, reward = list(task)[:2]
        function = config.task_options["reward"].rpartition(":")[2]
        options = config.task_options | {"reward": f"{reward}:{function}"}
        config = config.override({"task": f"own:{data}", "task_options": options})
    if rule := _rule_files(config):
        function = OWN.fullmatch(config.trainer["advantage_estimator"])["function"]
        config = config.override({"advantage_estimator": f"own:{next(iter(rule))}:{function}"})
    write_text(path, as_yaml(config, grid))
    return path


def _own_files(config: RunConfig) -> dict[str, Path]:
    """Files of the reader's own that a config names, with those beside them that they import, by their names there."""
    task, rule = _task_files(config), _rule_files(config)
    for name in task.keys() & rule.keys():
        if not filecmp.cmp(task[name], rule[name], shallow=False):
            raise ValueError(f"{task[name]} and {rule[name]} would be one file; rename one of them.")
    return task | rule


def _rule_files(config: RunConfig) -> dict[str, Path]:
    """Of a credit rule "own:" its file."""
    estimator = config.trainer.get("advantage_estimator", "")
    path = Path(match["file"]) if (match := OWN.fullmatch(estimator)) else None
    return {path.name: path} if path else {}


def _task_files(config: RunConfig) -> dict[str, Path]:
    """Of a task "own:" the data file, the reward's file, and those beside it that it imports, by their names there."""
    if not config.task.startswith("own:"):
        return {}
    names = config.task.removeprefix("own:"), config.task_options["reward"].rpartition(":")[0]
    data, reward = (Path(name).expanduser() for name in names)
    sources = get_task(config.task, **config.task_options).sources
    imported = [name.removeprefix("reward ") for name in sources if name.startswith("reward ")]
    return {data.name: data, reward.name: reward} | {name: reward.parent / name for name in imported}


def _check_target(folder: Path, path: Path, own: dict[str, Path]) -> None:
    for mark in ("status.json", "process.json"):
        if (folder / mark).exists():
            raise ValueError(f"{folder} is the folder of a run or a sweep ({mark}); name another folder.")
    for name, file in own.items():
        target = folder / name
        if target.is_symlink() or (target.exists() and not filecmp.cmp(file, target, shallow=False)):
            raise ValueError(f"{folder} holds another {name}; name another folder, or remove it.")
    if path.is_symlink() or path.exists():
        try:
            values = read_yaml(path, "config")
            RunConfig.load({key: value for key, value in values.items() if key != "grid"})
        except (OSError, ValueError, AttributeError):
            other = f"{folder} holds a {path.name} that is not a run's"
            raise ValueError(f"{other}; name another folder, or remove it.") from None


def export_run(run: Run, folder: str | Path) -> Path:
    """Write a finished run's config, manifest and model (or adapter, as safetensors) into a folder, and a zip of it.

    What a run's final/ held is checked against its checksums first. An adapter names its base as `load_policy` does, or
    by the name of its folder. Both appear whole or not at all. Returns the zip's path.

    Raises ValueError if the run has not finished, its model is damaged, or the folder or the zip is there already.
    """
    folder, final = as_folder(folder), run.folder / "final"
    if final.is_symlink() or not final.exists():
        raise ValueError(f"{run.folder.name} has no model yet: it is {run.status()['state']}; let it finish first.")
    if complaint := damage(final):
        raise ValueError(f"the model of {run.folder.name} is damaged: {complaint}.")
    zipped = folder.with_name(f"{folder.name}.zip")
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and not any(folder.iterdir()))):
        raise ValueError(f"{folder} is not empty; name another folder.")
    if zipped.is_symlink() or zipped.exists():
        raise ValueError(f"{zipped} is there already; name another folder, or remove it.")
    manifest = {key: value for key, value in run.manifest().items() if key != "config"}
    with atomic_folder(folder) as new:
        base = _base_name(run)
        _copy_model(final, new / "model", base)
        config = export_config(_placeless(run.config, base), new)
        write_json(new / "manifest.json", _without_places(manifest))
        write_text(new / "README.md", run_card(run, new / "model", config))
    with replacement(zipped) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, Path(folder.name) / path.relative_to(folder))
    return zipped


def _placeless(config: RunConfig, base: str) -> RunConfig:
    """The config without the places of files, but of those that go along; base: the policy's name."""
    whole = asdict(config) | {"policy": base}
    plain = _without_places(whole)
    if _task_files(config):
        plain |= {name: whole[name] for name in ("task", "task_options")}
    if _rule_files(config):
        plain["trainer"]["advantage_estimator"] = config.trainer["advantage_estimator"]
    return RunConfig(**plain)


def _base_name(run: Run) -> str:
    """The policy's name elsewhere: as it is, or the name of its folder."""
    name = run.config.policy
    path = Path(name).expanduser()
    is_path = path.is_absolute() or path.is_dir()
    return path.resolve().name if name not in NAMED and is_path else name


def _copy_model(final: Path, to: Path, base: str) -> None:
    """Copy a run's final/ with checksums of its own; an adapter gets another name of its base, and no empty card."""
    with atomic_folder(to) as model:
        shutil.copytree(final, model, dirs_exist_ok=True, ignore=shutil.ignore_patterns(SUMS))
        for path in model.rglob("adapter_config.json"):
            settings = json.loads(path.read_text(encoding="utf-8"))
            write_json(path, settings | {"base_model_name_or_path": base})
            path.with_name("README.md").unlink(missing_ok=True)


def _without_places(value: Any) -> Any:
    """The same tree, but of each path that begins at a root or a home only its last name.

    >>> _without_places({"task": "hub:/home/me/sums", "reward": "~/mine/reward.py:score", "at": ["/data/x", "chain"]})
    {'task': 'hub:sums', 'reward': 'reward.py:score', 'at': ['x', 'chain']}
    """
    if isinstance(value, dict):
        return {key: _without_places(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_places(item) for item in value]
    if not isinstance(value, str):
        return value
    if Path(value).is_absolute():
        return Path(value).name
    return ":".join(Path(part).name if part.startswith(("~", "/")) else part for part in value.split(":"))
