"""docs/documented_api.md lists every documented name with a test that exists; signatures are the documented ones."""

from __future__ import annotations

import ast
import inspect
import re
import types
from pathlib import Path

import pytest

import aiocoll.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "documented_api.md"

# The early API: every documented function with its documented parameters and defaults, in order.
EARLY: dict[str, list[tuple[str, object]]] = {
    "is_available": [],
    "is_initialized": [],
    "init_process_group": [("backend", ...), ("init_method", "env://")],
    "init_master_worker": [("backend", ...), ("init_method", "env://")],
    "destroy_process_group": [],
    "get_rank": [],
    "get_world_size": [],
    "send": [("tensor", ...), ("dst", ...)],
    "recv": [("tensor", ...), ("src", None)],
    "isend": [("tensor", ...), ("dst", ...)],
    "irecv": [("tensor", ...), ("src", ...)],
    "broadcast": [("tensor", ...), ("src", ...), ("group", dist.group.WORLD)],
    "all_reduce": [("tensor", ...), ("op", dist.reduce_op.SUM), ("group", dist.group.WORLD)],
    "reduce": [("tensor", ...), ("dst", ...), ("op", dist.reduce_op.SUM), ("group", dist.group.WORLD)],
    "all_gather": [("tensor_list", ...), ("tensor", ...), ("group", dist.group.WORLD)],
    "gather": [("tensor", ...)],
    "scatter": [("tensor", ...)],
    "barrier": [("group", dist.group.WORLD)],
    "new_group": [("ranks", None)],
    "broadcast_multigpu": [("tensor_list", ...), ("src", ...), ("group", dist.group.WORLD)],
    "all_reduce_multigpu": [("tensor_list", ...), ("op", dist.reduce_op.SUM), ("group", dist.group.WORLD)],
    "reduce_multigpu": [("tensor_list", ...), ("dst", ...), ("op", dist.reduce_op.SUM), ("group", dist.group.WORLD)],
    "all_gather_multigpu": [("output_tensor_lists", ...), ("input_tensor_list", ...), ("group", dist.group.WORLD)],
    "_clear_group_cache": [("group", dist.group.WORLD)],
    "_register_stream": [("stream", ...)],
    "_extend_scope": [("module", ...)],
}
KEYWORDS = {
    "init_process_group": {"world_size": -1, "rank": -1, "group_name": ""},
    "gather": {"dst": None, "gather_list": None, "group": dist.group.WORLD},
    "scatter": {"src": None, "scatter_list": None, "group": dist.group.WORLD},
}
CONSTANTS = {
    "dist_backend.UNDEFINED": -1,
    "dist_backend.TCP": 0,
    "dist_backend.MPI": 1,
    "dist_backend.GLOO": 2,
    "dist_backend.NCCL": 3,
    "_INITIALIZED_PG": 1,
    "_INITIALIZED_MW": 2,
    "_initialized": 0,
    "_backend": -1,
    "_scope": vars(dist),
    "group.WORLD": dist.group.WORLD,
    "reduce_op.SUM": dist.ReduceOp.SUM,
    "reduce_op.PRODUCT": dist.ReduceOp.PRODUCT,
    "reduce_op.MAX": dist.ReduceOp.MAX,
    "reduce_op.MIN": dist.ReduceOp.MIN,
}
REQUEST = ("Request.is_completed", "Request.wait")


def lookup(name: str) -> object:
    found: object = dist
    for part in name.split("."):
        found = getattr(found, part)
    return found


def rows() -> list[tuple[str, str]]:
    """(name, test) of every line of the page's tables."""
    return re.findall(r"^\| `([\w.]+)[^|]*\|[^|]*\| `([^`]+)` \|$", PAGE.read_text(), re.MULTILINE)


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("name", EARLY)
def test_documented_signatures(name: str) -> None:
    signature = inspect.signature(getattr(dist, name))
    positional = list(signature.parameters.values())
    for (wanted, default), parameter in zip(EARLY[name], positional, strict=False):
        assert parameter.name == wanted and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        assert default is ... or parameter.default is default or parameter.default == default
    for parameter in positional[len(EARLY[name]) :]:  # what later versions added can be left out
        assert parameter.kind is parameter.VAR_KEYWORD or parameter.default is not parameter.empty
    for keyword, default in KEYWORDS.get(name, {}).items():
        assert signature.parameters[keyword].default == default


@pytest.mark.parametrize("name", CONSTANTS)
def test_documented_constants(name: str) -> None:
    assert lookup(name) == CONSTANTS[name]


def test_extending_the_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("more")
    module.more, module._hidden = 5, 6
    monkeypatch.setitem(dist._scope, "more", None)
    dist._extend_scope(module)
    assert dist.more == 5
    assert not hasattr(dist, "_hidden")


def test_the_page_lists_every_documented_name_and_no_other() -> None:
    listed = [name for name, _ in rows()]
    assert len(listed) == len(set(listed))
    documented = {*EARLY, *CONSTANTS, *REQUEST}
    assert documented <= set(listed), documented - set(listed)
    public = {name for name in dist.__all__ if not isinstance(getattr(dist, name), type)}
    covered = {name.split(".")[0] for name in listed}
    assert public <= covered, public - covered
    for name in listed:
        lookup(name)


@pytest.mark.parametrize(("name", "test"), rows())
def test_the_tests_that_the_page_names_exist(name: str, test: str) -> None:
    path, _, function = test.partition("::")
    assert function in functions_of(ROOT / path), f"{name}: {test}"
    mentioned = name.rsplit(".", 1)[-1].lstrip("_")
    assert mentioned in (ROOT / path).read_text(), f"{path} says nothing of {name}"


def test_docstrings_name_every_parameter() -> None:
    for name in EARLY:
        function = getattr(dist, name)
        text = inspect.getdoc(function) or ""
        assert text, name
        if "Arguments:" in text:
            for parameter in inspect.signature(function).parameters:
                assert parameter in text or parameter == "kwargs", f"{name}: {parameter}"
