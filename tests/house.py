"""How the house is cut: what each chapter imports and reaches, found by reading the code without
running it.

    python tests/house.py                    a row per chapter, the medians, and each folder's lines
    python tests/house.py --research COMMIT  the research code, in a commit and now

A chapter reaches what it names, and what that names in turn, along the syntax tree. A package's
face (an `__init__` that hands names on) is one module where a chapter imports it, and no module
where what it hands on is reached.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
Definition = tuple[str, str]  # module, name
# Code that a reader meets only when re-measuring: what is registered and judged, every study,
# making policies
RESEARCH = re.compile(  # before and after these rooms were set apart
    r"workbook/(studies/.*|claims/.*|policies/(family|sft|tuned|worlds)|topics/[a-z]+/([a-z]*claims|study|questions"
    r"|outcomes|arena_outcomes|neighbours|equal_weights|loss_types|steps)|topics/worlds/(arena|probes)"
    r"|topics/language/training|topics/teaching/(by_hand|delta|masks|opposition|pairs|tabular|vocabulary))\.py"
)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


FILES = {module_name(path): path for path in sorted((ROOT / "workbook").rglob("*.py"))}


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text(encoding="utf-8"))


def names_of(statement: ast.stmt) -> list[str]:
    """The names that a statement of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        return [
            node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)
        ]
    return []


@cache
def definitions(module: str) -> dict[str, ast.stmt]:
    return {name: statement for statement in tree(module).body for name in names_of(statement)}


@cache
def lazy(module: str) -> dict[str, str]:
    """Names that a face imports when they are first used, with their modules."""
    faces = definitions(module)
    names = ast.literal_eval(faces["_NAMES"].value) if "_NAMES" in faces else {}
    return {name: f"workbook.{home}" for home, offered in names.items() for name in offered.split()}


def imported(node: ast.AST, package: str) -> dict[str, tuple[str, str | None]]:
    """{alias: (module, name, or None for the module itself)} of the imports inside a node."""
    names = {}
    for statement in ast.walk(node):
        if isinstance(statement, ast.ImportFrom):
            base = statement.module or ""
            if statement.level:
                base = ".".join(
                    [*package.split(".")[: len(package.split(".")) - statement.level + 1], base]
                ).rstrip(".")
            for alias in statement.names:
                inner = f"{base}.{alias.name}"
                if inner in FILES:
                    names[alias.asname or alias.name] = (inner, None)
                elif base in FILES:
                    names[alias.asname or alias.name] = (base, alias.name)
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                if alias.name in FILES:
                    names[alias.asname or alias.name.split(".")[0]] = (alias.name, None)
    return names


@cache
def module_imports(module: str) -> dict[str, tuple[str, str | None]]:
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    return imported(tree(module), package)


def home(module: str, name: str) -> Definition:
    """Where a name that a module offers is defined."""
    if name in definitions(module):
        return module, name
    if name in lazy(module):
        return home(lazy(module)[name], name)
    source, inner = module_imports(module).get(name, (module, name))
    return (module, name) if source == module or inner is None else home(source, inner)


@cache
def uses(module: str, name: str) -> frozenset[Definition]:
    """The project's own definitions that a definition names."""
    node, used = definitions(module)[name], set()
    aliases = module_imports(module)
    for inner_node in ast.walk(node):
        if isinstance(inner_node, ast.Name):
            if inner_node.id in definitions(module):
                used.add((module, inner_node.id))
            elif inner_node.id in aliases and aliases[inner_node.id][1] is not None:
                used.add(home(*aliases[inner_node.id]))
        elif isinstance(inner_node, ast.Attribute) and isinstance(inner_node.value, ast.Name):
            source, inner = aliases.get(inner_node.value.id, ("", ""))
            if source and inner is None:
                used.add(home(source, inner_node.attr))
    return frozenset(used)


def reach(start: set[Definition]) -> set[Definition]:
    seen, stack = set(), list(start)
    while stack:
        module, name = stack.pop()
        if (module, name) not in seen and name in definitions(module):
            seen.add((module, name))
            stack += uses(module, name)
    return seen


def chapter_imports(path: Path) -> dict[str, tuple[str, str | None]]:
    """What a notebook imports from the workbook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    code = "\n".join(source for source in sources if not source.lstrip().startswith("%%"))
    code = re.sub(r"^(\s*)[!%].*$", r"\1pass", code, flags=re.M).replace("await ", "")
    return imported(ast.parse(code), "")


def chapters() -> dict[str, dict]:
    """{chapter: modules imported, definitions reached, modules reached}; a module taken whole
    counts as its room.
    """
    table = {}
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        imports = chapter_imports(path)
        start = {home(module, name) for module, name in imports.values() if name is not None} | {
            ("workbook.environment", "setup")
        }
        reached = reach(start)
        table[path.stem] = {
            "imports": {
                module if name or "." not in module else module.rpartition(".")[0]
                for module, name in imports.values()
            },
            "definitions": reached,
            "modules": {module for module, _ in reached},
        }
    return table


def own_folders(table: dict[str, dict]) -> dict[str, dict[str, list[str]]]:
    """{chapter: {folder: modules that no other chapter reaches}}, of modules that more than one
    place could hold.
    """
    own = {}
    for name, row in table.items():
        others = set().union(*(other["modules"] for key, other in table.items() if key != name))
        folders: dict[str, list[str]] = {}
        for module in sorted(row["modules"] - others):
            folders.setdefault(module.rpartition(".")[0], []).append(module.rpartition(".")[2])
        own[name] = folders
    return own


def lines(definitions_reached: set[Definition]) -> int:
    """Lines of the public definitions."""
    places = {
        (module, line)
        for module, name in definitions_reached
        if not name.startswith("_")
        for line in range(
            definitions(module)[name].lineno, definitions(module)[name].end_lineno + 1
        )
    }
    return len(places)


def count_lines(paths) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def folder_lines() -> dict[str, int]:
    """{folder of the package: its lines of Python}; files beside the folders are the root."""
    counts: dict[str, int] = {}
    for path in FILES.values():
        folder, *rest = path.relative_to(ROOT / "workbook").parts
        folder = folder if rest else "root"
        counts[folder] = counts.get(folder, 0) + count_lines([path])
    return counts


def research_lines(commit: str | None = None) -> dict[str, int]:
    """{module of RESEARCH: its lines}, in this tree or in a commit."""
    if commit is None:
        return {
            path.relative_to(ROOT).as_posix(): count_lines([path])
            for path in FILES.values()
            if RESEARCH.fullmatch(path.relative_to(ROOT).as_posix())
        }
    git = ["git", "-C", str(ROOT)]
    names = subprocess.check_output(
        [*git, "ls-tree", "-r", "--name-only", commit, "workbook"], text=True
    ).split()
    chosen = [name for name in names if RESEARCH.fullmatch(name)]
    return {
        name: subprocess.check_output([*git, "show", f"{commit}:{name}"]).count(b"\n")
        for name in chosen
    }


def print_research(before: str) -> None:
    """Print the modules of the research code in a commit and now: how many lines, what has left,
    and what is new.
    """
    old, new = research_lines(before), research_lines()
    for name, rows in (("then", old), ("now", new)):
        print(f"{name}: {len(rows)} modules, {sum(rows.values()):,} lines")
    print("left: " + ", ".join(sorted(set(old) - set(new))))
    print("new: " + ", ".join(sorted(set(new) - set(old))))


def print_lines() -> None:
    """Print each folder's lines."""
    for folder, count in (counts := folder_lines()).items():
        print(f"{folder:<12}{count:>8,}")
    print(f"{'package':<12}{sum(counts.values()):>8,} in {len(FILES)} modules")


def main() -> None:
    if "--research" in sys.argv:
        return print_research(sys.argv[-1])
    table = chapters()
    own = own_folders(table)
    total = sum(path.read_text(encoding="utf-8").count("\n") for path in FILES.values())
    print(
        f"{len(FILES)} modules, {total} lines, {len(list((ROOT / 'workbook').glob('*.py')))} files"
        " in the root"
    )
    print(
        f"{'chapter':<30}{'imports':>9}{'reaches':>9}{'lines':>8}  folders of modules that it alone"
        " reaches"
    )
    for name, row in table.items():
        folders = ", ".join(
            f"{folder.removeprefix('workbook.')} ({len(own[name][folder])})" for folder in own[name]
        )
        print(
            f"{name:<30}{len(row['imports']):>9}{len(row['modules']):>9}{lines(row['definitions']):>8}"
            f"  {folders}"
        )
    print(
        f"{'median':<30}{median(len(row['imports']) for row in table.values()):>9}"
        f"{median(len(row['modules']) for row in table.values()):>9}"
        f"{median(lines(row['definitions']) for row in table.values()):>8}"
    )
    print_lines()


if __name__ == "__main__":
    main()
