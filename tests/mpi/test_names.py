"""mpi4py's own description of its names: what is here has its parameters, what is not says what to use instead."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from aiocoll.errors import UsageError
from aiocoll.mpi import MPI
from aiocoll.mpi.exceptions import OutsideError
from aiocoll.mpi.outside import OUTSIDE
from aiocoll.mpi.topology import Cartcomm

pytestmark = pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs mpi4py (the dev extra)")

OBJECTS: dict[str, Any] = {
    "Intracomm": MPI.Intracomm(None),
    "Cartcomm": Cartcomm(None, None, [1], [False]),
    "Request": MPI.REQUEST_NULL,
    "Prequest": MPI.Prequest(),
    "Status": MPI.Status(),
    "Op": MPI.SUM,
    "Datatype": MPI.INT,
    "Group": MPI.Group((0,), 0),
    "Message": MPI.MESSAGE_NULL,
}


@cache
def stub() -> ast.Module:
    spec = importlib.util.find_spec("mpi4py")
    assert spec is not None and spec.origin is not None
    return ast.parse(Path(spec.origin).with_name("MPI.pyi").read_text())


def members(name: str) -> dict[str, ast.FunctionDef | None]:
    """The public names of a class of mpi4py and of its bases; None for what is no function."""
    classes = {node.name: node for node in stub().body if isinstance(node, ast.ClassDef)}
    found: dict[str, ast.FunctionDef | None] = {}
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id in classes:
            found.update(members(base.id))
    for node in classes[name].body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = None
    return {each: node for each, node in found.items() if not each.startswith("_")}


def names_of_the_module() -> list[str]:
    found = []
    for node in stub().body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.append(node.target.id)
    return [each for each in dict.fromkeys(found) if not each.startswith("_")]


def is_there(owner: Any, name: str) -> bool:
    """Whether there is such a name; if not, it is refused with a pointer, and hasattr() says no."""
    try:
        getattr(owner, name)
    except OutsideError as error:
        assert isinstance(error, UsageError) and isinstance(error, MPI.Exception) and not hasattr(owner, name)
        assert "is mpi4py's and not part of aiocoll.mpi: " in str(error) and name in str(error)
        return False
    except MPI.Exception:  # a property that wants ranks, which these objects have not
        return True
    return True


def test_every_name_of_the_module_is_there_or_says_what_instead() -> None:
    there = {name for name in names_of_the_module() if is_there(MPI, name)}
    assert len(there) > 150
    wanted = "COMM_WORLD COMM_SELF COMM_NULL SUM MINLOC IN_PLACE ANY_SOURCE ANY_TAG PROC_NULL Wtime Get_processor_name"
    assert there.issuperset(wanted.split())
    assert not hasattr(MPI, "no_such_name") and set(there) <= set(dir(MPI))


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_every_name_of_a_class_is_there_or_says_what_instead(name: str) -> None:
    owner = OBJECTS[name]
    there = {each for each in members(name) if is_there(owner, each)}
    assert there
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        _ = owner.no_such_name


def _parameters(node: ast.FunctionDef) -> list[tuple[str, bool]]:
    """(name, has a default) of each, without self."""
    static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)][0 if static else 1 :]
    first_default = len(names) - len(node.args.defaults)
    return [(each, number >= first_default) for number, each in enumerate(names)]


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_parameters_have_their_names_their_order_and_their_defaults(name: str) -> None:
    kind = type(OBJECTS[name])
    compared = 0
    for each, node in members(name).items():
        if node is None or not hasattr(kind, each) or isinstance(inspect.getattr_static(kind, each), property):
            continue
        ours = [
            (parameter.name, parameter.default is not parameter.empty)
            for parameter in inspect.signature(getattr(kind, each)).parameters.values()
            if parameter.name != "self"
        ]
        theirs = _parameters(node)
        assert [first for first, _ in ours] == [first for first, _ in theirs], f"{name}.{each}"
        for (parameter, has_one), (_, has_one_here) in zip(theirs, ours, strict=True):
            assert has_one_here or not has_one, f"{name}.{each}: {parameter} has a default there"
        compared += 1
    assert compared > 3


def test_pointers_are_sentences_about_names_that_are_not_here() -> None:
    for name, instead in OUTSIDE.items():
        assert len(instead) > 20, name
        assert name not in vars(MPI), f"{name} is here, and needs no pointer"
