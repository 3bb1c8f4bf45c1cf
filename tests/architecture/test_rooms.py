"""What holds for every file of the package: its length, its docstring, no print, no stray imports, pickle kept away."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "aiocoll"
FILES = sorted(PACKAGE.rglob("*.py"))
LINES_MAX = 400
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "misc"}
ENVIRONMENT_READERS = ("config.py", "place/", "runner/", "notebook/", "cli.py")
# Where running somebody's pickle is possible at all: objects, on request and inside the function that needs it, and
# launch(), whose functions go from the caller's process to its own children.
PICKLE_BY_REQUEST = {"wire/objects.py"}
PICKLE_OF_ONES_OWN = {"runner/functions.py", "runner/worker.py"}

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imported(node: ast.AST) -> list[str]:
    """The absolute names of the modules that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module]
    return []


def outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is imported, type-checking blocks left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from outside_functions(child)


def test_the_package_was_found() -> None:
    assert PACKAGE / "__init__.py" in FILES
    assert len(FILES) > 20


@each_file
def test_files_stay_short(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= LINES_MAX, f"{lines} lines: a file past {LINES_MAX} is two things"


@each_file
def test_files_say_what_they_are(path: Path) -> None:
    says = ast.get_docstring(tree_of(path))
    assert says, "no module docstring"
    assert says.split("\n\n")[0].endswith("."), "it begins with one sentence of purpose"


@each_file
def test_no_drawer_for_odds_and_ends(path: Path) -> None:
    parts = {part.removesuffix(".py").strip("_") for part in path.relative_to(PACKAGE).parts}
    assert not parts & FORBIDDEN_NAMES, "name the file after the one thing it is about"


@each_file
def test_the_library_never_prints(path: Path) -> None:
    calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    prints = [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id in {"print", "pprint"}]
    assert not prints, f"print() in lines {prints}"


@each_file
def test_pickle_stays_behind_its_door(path: Path) -> None:
    name = str(path.relative_to(PACKAGE))
    dangerous = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill"}
    everywhere = [node.lineno for node in ast.walk(tree_of(path)) if dangerous & set(imported(node))]
    at_import = [node.lineno for node in outside_functions(tree_of(path)) if dangerous & set(imported(node))]
    if name not in PICKLE_OF_ONES_OWN:
        assert not at_import, f"pickle is imported with the module in lines {at_import}"
        assert not everywhere or name in PICKLE_BY_REQUEST, f"pickle in lines {everywhere}"


@each_file
def test_the_environment_is_read_in_few_places(path: Path) -> None:
    """AIOCOLL_* settings come from config, where-am-I variables from place/ and runner/: nothing else looks."""
    name = str(path.relative_to(PACKAGE))
    if name.startswith(ENVIRONMENT_READERS):
        return
    reads = []
    for node in ast.walk(tree_of(path)):
        text = ast.unparse(node) if isinstance(node, ast.Subscript | ast.Call) else ""
        if text.startswith(("os.environ", "os.getenv", "environ[", "environ.get", "getenv(")) and "AIOCOLL_" in text:
            reads.append(node.lineno)
    assert not reads, f"reads AIOCOLL_* variables in lines {reads}"


@each_file
def test_rooms_do_not_import_the_front_door(path: Path) -> None:
    """A name comes from the room that makes it; only what runs users' programs knows ``aiocoll`` as users do."""
    if path.parent.name in ("testing", "runner"):
        return
    rooms = {child.stem for child in PACKAGE.iterdir()}
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import) and any(alias.name == "aiocoll" for alias in node.names):
            found.append(node.lineno)
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module == "aiocoll":
            found += [node.lineno for alias in node.names if alias.name not in rooms]
    assert not found, f"lines {found}"


@each_file
def test_imports_name_what_they_take(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom):
            assert all(alias.name != "*" for alias in node.names), f"line {node.lineno}: import *"
