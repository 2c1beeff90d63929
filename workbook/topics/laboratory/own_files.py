"""A reader's own files beside the notebook: prompts and reward functions to choose from, and a place for uploads."""

from __future__ import annotations

import ast
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import ipywidgets

from workbook.training.files import replacement
from workbook.views.style import notice

MAX_BYTES = 32 * 2**20  # of an uploaded file
DATA, CODE = (".csv", ".jsonl"), ".py"
MAX_DEPTH, MAX_FILES = 3, 200  # of folders below the notebook's; of files that are listed
MAX_CODE_BYTES, MAX_NAME = 2**20, 100  # of a Python file that is read for its functions; of a name in characters
RUN_FILES = {"config.yaml", "sweep.yaml"}  # by which the folder of a run, or of an export, is known
WIDTH = {"layout": {"width": "420px"}, "style": {"description_width": "170px"}}


def data_files(folder: str | Path = ".") -> list[str]:
    """CSV and JSON-lines files in and below a folder, by their paths relative to it; those of runs are left out."""
    return [name for name in _files(Path(folder)) if name.endswith(DATA)]


def reward_functions(folder: str | Path = ".") -> list[str]:
    """Functions "file.py:function" in and below a folder that take a completion and an answer. Nothing is imported."""
    names = [name for name in _files(Path(folder)) if name.endswith(CODE)]
    return [f"{name}:{function}" for name in names for function in _functions(Path(folder) / name)]


def _files(folder: Path) -> list[str]:
    """Files that may be of use, sorted by name and those nearest first, at most MAX_FILES."""
    names = []
    for place, folders, files in os.walk(folder):
        here = Path(place).relative_to(folder)
        if RUN_FILES & set(files):
            folders.clear()
            continue
        deeper = len(here.parts) < MAX_DEPTH
        folders[:] = sorted(name for name in folders if deeper and not name.startswith((".", "_")))
        names += [(here / name).as_posix() for name in files if name.endswith((*DATA, CODE)) and name.isprintable()]
    visible = [name for name in names if not Path(name).name.startswith(".")]
    return sorted(visible, key=lambda name: (name.count("/"), name))[:MAX_FILES]


def _functions(path: Path) -> Iterator[str]:
    """Public functions of a Python file that take a completion or an answer, by these names."""
    try:
        if path.stat().st_size > MAX_CODE_BYTES:
            return
        source = path.read_bytes()
        if b"completion" not in source and b"answer" not in source:  # most files, which need not be parsed
            return
        statements = ast.parse(source).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for statement in statements:
        if isinstance(statement, ast.FunctionDef) and not statement.name.startswith("_"):
            positional = [*statement.args.posonlyargs, *statement.args.args]
            if len(positional) > 1 and {"completion", "answer"} & {argument.arg for argument in positional}:
                yield statement.name


def save_upload(name: str, content: bytes, folder: str | Path = ".") -> tuple[str, str]:
    """Save an uploaded file in a folder; returns its name there and a sentence. Another file is never replaced.

    Raises ValueError for a name that no prompts or reward can have, and for a file that is too large.
    """
    plain = Path(name.replace("\\", "/")).name
    if Path(plain).suffix.lower() not in (*DATA, CODE) or not plain.isprintable() or len(plain) > MAX_NAME:
        raise ValueError(f"{plain[:MAX_NAME]!r} is neither a .csv or .jsonl file of prompts nor a .py file.")
    if len(content) > MAX_BYTES:
        raise ValueError(f"{plain} is too large; the most that is taken is {MAX_BYTES / 2**20:g} MiB.")
    path, stem, number = Path(folder) / plain, Path(plain).stem, 1
    while path.is_symlink() or path.exists():
        if path.is_file() and not path.is_symlink() and path.read_bytes() == content:
            return path.name, f"{path.name} is here already."
        number += 1
        path = path.with_name(f"{stem}-{number}{Path(plain).suffix}")
    with replacement(path) as temporary:
        temporary.write_bytes(content)
    other = f", since another {plain} is here" if number > 1 else ""
    return path.name, f"{path.name} was saved beside the notebook{other}."


class FilePicker:
    """Menus of the files beside the notebook, and an upload.

    choose_data(path), choose_reward("file.py:function"): called with what is chosen.  Attributes: `data`, `reward`,
    `upload`, `again` and `line`, the widgets.
    """

    def __init__(self, choose_data: Callable[[str], None], choose_reward: Callable[[str], None]):
        self._choose = {"data": choose_data, "reward": choose_reward}
        self.data = ipywidgets.Dropdown(description="file of prompts", **WIDTH)
        self.data.tooltip = "CSV and JSON-lines files beside this notebook; one that is chosen becomes the task"
        self.reward = ipywidgets.Dropdown(description="reward function", **WIDTH)
        self.reward.tooltip = "Functions of completion and answer in the .py files beside this notebook"
        accept = ",".join((*DATA, CODE))
        self.upload = ipywidgets.FileUpload(accept=accept, multiple=True, description="Upload")
        self.upload.tooltip = "Copy a .csv, .jsonl or .py file from your computer to beside this notebook"
        tooltip = "Look again for files beside this notebook"
        self.again = ipywidgets.Button(description="Refresh", icon="refresh", tooltip=tooltip)
        self.line = ipywidgets.HTML(layout={"max_width": "860px"})
        self._quiet = False
        self.refresh()
        for kind in self._choose:
            getattr(self, kind).observe(lambda change, kind=kind: self._chosen(kind, change["new"]), "value")
        self.again.on_click(lambda _: self.refresh())
        self.upload.observe(self._uploaded, "value")

    def refresh(self, data: str = "", reward: str = "") -> None:
        """List the files anew and show these as chosen, where they are among them."""
        data, reward = data or self.data.value or "", reward or self.reward.value or ""
        self._quiet = True
        try:
            for menu, names, now in (
                (self.data, data_files(), data),
                (self.reward, reward_functions(), reward),
            ):
                hint = "choose one ..." if names else "none here yet: upload one"
                menu.options = [(hint, ""), *((name, name) for name in names)]
                menu.value = now if now in names else ""
        finally:
            self._quiet = False
        self.line.value = notice(f"Paths are relative to this notebook's folder, {Path.cwd().name}/.", announced=False)

    def show(self, data: str, reward: str) -> None:
        """Show these as chosen, nothing where they are not in the menus; nobody is called."""
        self._quiet = True
        for menu, name in ((self.data, data), (self.reward, reward)):
            menu.value = name if name in [value for _, value in menu.options] else ""
        self._quiet = False

    def _chosen(self, kind: str, name: str) -> None:
        if name and not self._quiet:
            self._choose[kind](name)

    def _uploaded(self, change) -> None:
        """Save what was uploaded, list it, and choose it where there is no doubt what it is for."""
        sentences, failed, saved = [], False, []
        for file in _contents(change["new"]):
            try:
                name, sentence = save_upload(*file)
                saved.append(name)
            except (OSError, ValueError) as error:
                sentence, failed = str(error), True
            sentences.append(sentence)
        if not sentences:
            return
        self.refresh()
        for name in saved:
            functions = [option for _, option in self.reward.options if option.startswith(f"{name}:")]
            if name.endswith(DATA):
                self.data.value = name
            elif len(functions) == 1:
                self.reward.value = functions[0]
            elif not functions:
                failed = True
                sentences.append(f"{name} has no function of a completion and an answer: def score(completion, answer)")
        self.line.value = notice(*sentences, error=failed)


def _contents(value) -> list[tuple[str, bytes]]:
    """Name and bytes of each uploaded file, as ipywidgets 8 or 7 hands them over."""
    if isinstance(value, dict):
        return [(name, bytes(file["content"])) for name, file in value.items()]
    return [(file["name"], bytes(file["content"])) for file in value]
