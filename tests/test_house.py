"""The house is cut by rooms: who imports whom, one meaning a name, faces that keep their word."""

import ast
import builtins
import importlib

import house
import pytest

SOURCES = {module: path.read_text(encoding="utf-8") for module, path in house.FILES.items()}


def test_faces_offer_what_they_list():
    for module in house.FILES:
        for name, home in house.lazy(module).items():
            assert getattr(importlib.import_module(module), name) is getattr(
                importlib.import_module(home), name
            )


def test_faces_list_what_they_offer():
    """`dir`, which completion in a notebook asks, names what is not imported yet."""
    for module in house.FILES:
        offered = house.lazy(module)
        if offered:
            face = dir(importlib.import_module(module))
            assert set(offered) | {"__doc__", "__all__"} <= set(face), module


@pytest.fixture(scope="module")
def chapters():
    return house.chapters()


def test_no_public_name_has_two_meanings():
    """Whoever reads a function's or class's name anywhere knows which one it is."""
    assert house.doubles((ast.FunctionDef, ast.ClassDef)) == {}


def test_the_book_and_the_commands_alone_take_from_studies(chapters):
    """Chapters draw committed tables (data/figures): nobody has to read how they were measured."""
    allowed = {"book", "commands", "studies"}
    taken = {
        (module, source)
        for module in house.FILES
        if house.room_of(module) not in allowed
        for source in [
            *(source for source, _ in house.module_imports(module).values()),
            *house.lazy(module).values(),
        ]
        if source.startswith("workbook.studies")
    }
    of_notebooks = {
        (name, module)
        for name, row in chapters.items()
        for module in row["imports"]
        if module.startswith("workbook.studies")
    }
    assert taken | of_notebooks == set()


def test_chapters_import_from_faces_alone(chapters):
    """A chapter names packages, never a module inside a room."""
    inner = {
        name: sorted(
            module
            for module in row["imports"]
            if house.FILES[module].name != "__init__.py" and "." in module
        )
        for name, row in chapters.items()
    }
    single = {"workbook.statistics", "workbook.environment", "workbook.ledger", "workbook.messages"}
    assert {
        name: others for name, modules in inner.items() if (others := set(modules) - single)
    } == {}


def test_nothing_is_passed_around_a_call():
    """What a measurement reads is an argument: no context variable carries it past the functions in
    between.
    """
    assert [module for module, source in SOURCES.items() if "ContextVar" in source] == []


def test_titles_are_drawn_by_the_kit_alone():
    own = [module for module, source in SOURCES.items() if "TitleParams" in source]
    assert [
        module
        for module in own
        if not module.startswith(("workbook.views", "workbook.app.monitor"))
    ] == []


def test_a_room_has_no_circle():
    """No module imports itself, over any number of others, not even late, inside a function."""
    graph = {
        module: {source for source, _ in house.module_imports(module).values()}
        for module in house.FILES
    }
    graph = {
        module: {other for other in others if other != module} for module, others in graph.items()
    }
    while free := [module for module, others in graph.items() if not others & graph.keys()]:
        for module in free:
            del graph[module]
    assert sorted(graph) == []


def test_a_test_says_which_error_it_expects():
    """By field and value (`refused`), by a word of it (`match=`), or by a type that is raised for
    one reason alone: an error that Python raises for many reasons proves nothing.
    """
    vague = []
    for path in sorted((house.ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or ast.unparse(node.func) != "pytest.raises":
                continue
            kinds = node.args[0].elts if isinstance(node.args[0], ast.Tuple) else node.args
            errors = [getattr(builtins, ast.unparse(kind), None) for kind in kinds]
            broad = any(kind and issubclass(kind, Exception) for kind in errors)
            if broad and "match" not in {keyword.arg for keyword in node.keywords}:
                vague.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert vague == []
