"""A run in a folder that can be taken elsewhere: its config, its model, and the reader's own prompts and reward."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from workbook.training.files import damage, write_json, write_text
from workbook.training.run_config import RunConfig
from workbook.training.runs import Run
from workbook.training.sweep_run import as_yaml
from workbook.training.sweeps import Grid


def export_config(config: RunConfig, folder: str | Path, grid: Grid | None = None) -> Path:
    """Write config.yaml, or with a grid sweep.yaml, into a folder, and the files of a task "own:" beside it.

    A config of own files names them as they lie in that folder: start it from there. Returns the file's path.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if config.task.startswith("own:"):
        data = Path(config.task.removeprefix("own:")).expanduser()
        file, _, function = config.task_options["reward"].rpartition(":")
        for path in (data, Path(file).expanduser()):
            if path.resolve() != (folder / path.name).resolve():
                shutil.copyfile(path, folder / path.name)
        options = config.task_options | {"reward": f"{Path(file).name}:{function}"}
        config = config.override({"task": f"own:{data.name}", "task_options": options})
    path = folder / ("sweep.yaml" if grid else "config.yaml")
    write_text(path, as_yaml(config, grid))
    return path


def export_run(run: Run, folder: str | Path) -> Path:
    """Write a finished run's config, manifest and model (or adapter, as safetensors) into a folder, and a zip of it.

    What a run's final/ held is checked against its checksums first. Returns the zip's path.

    Raises ValueError if the run has not finished, its model is damaged, or the folder is not empty.
    """
    folder, final = Path(folder), run.folder / "final"
    if not final.exists():
        raise ValueError(f"{run.folder.name} has no model yet: it is {run.status()['state']}; let it finish first.")
    if complaint := damage(final):
        raise ValueError(f"the model of {run.folder.name} is damaged: {complaint}.")
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty; name another folder.")
    shutil.copytree(final, folder / "model")
    export_config(run.config, folder)
    manifest = run.manifest()
    write_json(folder / "manifest.json", {key: value for key, value in manifest.items() if key != "config"})
    write_text(folder / "README.txt", _readme(run, folder / "model"))
    return Path(shutil.make_archive(str(folder), "zip", folder.parent, folder.name))


def _readme(run: Run, model: Path) -> str:
    config, adapter = run.config, (model / "adapter_config.json").exists()
    what = f"a LoRA adapter for {config.policy}" if adapter else f"all weights, trained from {config.policy}"
    kept = ", ".join(sorted(json.loads((model / "checksums.json").read_text(encoding="utf-8"))))
    again = "python -m workbook train config.yaml"
    return f"{run.status()['message']}\n\nmodel/: {what} ({kept})\nthe same run again, from this folder: {again}\n"
