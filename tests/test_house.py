"""The house is cut by topic, and what other people's scripts import stays where it is."""

import ast
import builtins
import importlib

import house
import pytest

SHARED_BY_TOPIC = {"laboratory"}  # the room of chapters 04, 08 and 12
SECOND_ROOMS = {  # a room of its own that a chapter shows as well
    "07_hidden_credit": "workbook.chapters.recovered",
}
OF_ALL_ROOMS = {"14_the_papers"}  # a chapter that shows what every room has
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
        face = importlib.import_module(module) if (offered := house.lazy(module)) else None
        assert sorted(set(offered) - set(dir(face))) == []
        assert face is None or {"__doc__", "__all__"} <= set(dir(face))


@pytest.fixture(scope="module")
def chapters():
    return house.chapters()


def test_a_chapters_own_code_lies_in_one_room(chapters):
    """What one chapter alone reaches is in its topic's room; the rest of the house has no module
    for one chapter.
    """
    scattered = {
        name: rooms
        for name, folders in house.own_folders(chapters).items()
        if name not in OF_ALL_ROOMS
        and len(
            rooms := [
                f
                for f in folders
                if f.startswith("workbook.chapters.") and f != SECOND_ROOMS.get(name)
            ]
        )
        > 1
    }
    assert scattered == {}


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
