"""How the house is cut, found by reading the code without running it.

    python tests/house.py        rooms: modules, lines, statements, comments, the rooms they import;
                                 chapters: what each imports and reaches; names of two meanings

A chapter reaches what it names, and what that names in turn, along the syntax tree. A package's
face (an `__init__` that hands names on) is one module where a chapter imports it, and no module
where what it hands on is reached.
"""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
Definition = tuple[str, str]  # module, name


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


def room_of(module: str) -> str:
    """The room of a module: its package below `workbook`, or "root"."""
    parts = FILES[module].relative_to(ROOT / "workbook").parts
    return parts[0] if len(parts) > 1 else "root"


def comment_share(sources: list[str]) -> float:
    """Lines that hold a comment alone, as a share of the lines that are not empty."""
    lines = [line.strip() for source in sources for line in source.splitlines() if line.strip()]
    return sum(line.startswith("#") for line in lines) / len(lines)


def rooms() -> dict[str, dict]:
    """{room: modules, lines, statements, comments (share of lines), imports (rooms)}."""
    table: dict[str, dict] = {}
    for room in sorted({room_of(module) for module in FILES}):
        modules = [module for module in FILES if room_of(module) == room]
        sources = [FILES[module].read_text(encoding="utf-8") for module in modules]
        nodes = [node for module in modules for node in ast.walk(tree(module))]
        imports = {source for module in modules for source, _ in module_imports(module).values()}
        table[room] = {
            "modules": len(modules),
            "lines": sum(source.count("\n") for source in sources),
            "statements": sum(isinstance(node, ast.stmt) for node in nodes),
            "comments": comment_share(sources),
            "imports": sorted({room_of(source) for source in imports} - {room, "root"}),
        }
    return table


def doubles(kinds: tuple[type, ...]) -> dict[str, list[str]]:
    """{public name: modules} of definitions of some kinds that more than one module has."""
    places: dict[str, list[str]] = {}
    for module in FILES:
        for name, statement in definitions(module).items():
            if isinstance(statement, kinds) and not name.startswith("_"):
                places.setdefault(name, []).append(module)
    return {name: modules for name, modules in places.items() if len(modules) > 1}


def print_rooms() -> None:
    """Print a line for each room, and their sum."""
    print(f"{'room':<10}{'modules':>8}{'lines':>8}{'statements':>12}{'comments':>10}  imports")
    for room, row in (table := rooms()).items():
        counts = f"{row['modules']:>8}{row['lines']:>8,}{row['statements']:>12,}"
        print(f"{room:<10}{counts}{row['comments']:>10.1%}  {', '.join(row['imports'])}")
    sums = [sum(row[name] for row in table.values()) for name in ("modules", "lines", "statements")]
    print(f"{'all':<10}{sums[0]:>8}{sums[1]:>8,}{sums[2]:>12,}")


def print_chapters() -> None:
    """Print a line for each chapter, and the medians."""
    table = chapters()
    own = own_folders(table)
    print(f"{'chapter':<30}{'imports':>9}{'reaches':>9}{'lines':>8}  rooms that it alone reaches")
    for name, row in table.items():
        folders = ", ".join(
            f"{folder.removeprefix('workbook.')} ({len(own[name][folder])})" for folder in own[name]
        )
        counts = f"{len(row['imports']):>9}{len(row['modules']):>9}{lines(row['definitions']):>8}"
        print(f"{name:<30}{counts}  {folders}")
    imports = median(len(row["imports"]) for row in table.values())
    reached = median(len(row["modules"]) for row in table.values())
    print(f"{'median':<30}{imports:>9}{reached:>9}")


if __name__ == "__main__":
    print_rooms()
    print()
    print_chapters()
    print()
    for name, modules in doubles((ast.FunctionDef, ast.ClassDef)).items():
        print(f"two meanings: {name} in {', '.join(modules)}")
