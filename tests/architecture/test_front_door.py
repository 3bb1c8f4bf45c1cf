"""The package's front door: what it exports exists, its map names every room, and it opens quickly."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

import aiocoll

PACKAGE = Path(aiocoll.__file__).parent
MODULES = sorted(
    "aiocoll." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py" and path != PACKAGE / "__init__.py"
)
# Loaded by those who need them, never by `import aiocoll`: each costs tens of milliseconds or belongs to one task.
LATE = ("rich", "cloudpickle", "uvloop", "argparse", "multiprocessing", "ml_dtypes", "torch", "pickle5", "hypothesis")


@pytest.mark.parametrize("name", ["aiocoll", *MODULES])
def test_all_names_what_exists(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", None)
    if exported is None:
        return
    assert len(exported) == len(set(exported)), f"{name}.__all__ names something twice"
    missing = [entry for entry in exported if not hasattr(module, entry)]
    assert not missing, f"{name}.__all__ names {missing}, which it does not have"


def test_the_contract_stands_at_the_front_door() -> None:
    promised = {
        "run", "connect", "launch", "Group", "Message", "errors", "op",
        "SUM", "PROD", "MIN", "MAX", "MEAN", "BAND", "BOR", "BXOR", "LAND", "LOR", "LXOR",
    }  # fmt: skip
    assert promised - set(aiocoll.__all__) == set()


def test_the_map_names_every_room() -> None:
    map_of_rooms = aiocoll.__doc__ or ""
    rooms = [path.stem for path in PACKAGE.glob("*.py") if path.name != "__init__.py"]
    rooms += [f"{path.parent.name}/" for path in PACKAGE.glob("*/__init__.py")]
    missing = [room for room in sorted(rooms) if room not in map_of_rooms]
    assert not missing, f"the map in aiocoll/__init__.py does not show {missing}"


def test_every_error_is_exported_by_errors() -> None:
    from aiocoll import errors

    for name in (
        "AiocollError", "UsageError", "NotInitializedError", "MismatchError", "PeerLostError", "CollectiveTimeoutError",
        "GroupBrokenError", "RendezvousError", "AuthenticationError", "SerializationError",
    ):  # fmt: skip
        assert issubclass(getattr(errors, name), errors.AiocollError)


def _fresh_import(statement: str) -> dict[str, float]:
    """Runs the statement in a fresh interpreter that has NumPy; gives its seconds and the modules that it loaded."""
    program = (
        "import sys, time, json, asyncio, numpy\n"
        f"before = set(sys.modules); begun = time.perf_counter()\n{statement}\n"
        "seconds = time.perf_counter() - begun\n"
        "print(json.dumps({'seconds': seconds, 'loaded': sorted(set(sys.modules) - before)}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def test_importing_loads_nothing_heavy() -> None:
    facts = _fresh_import("import aiocoll")
    heavy = [name for name in facts["loaded"] if name.split(".")[0] in LATE]
    assert not heavy, f"import aiocoll loads {heavy}"
    assert facts["seconds"] < 1.0  # a bound against accidents; the benchmark holds the real one


def test_types_are_marked() -> None:
    assert (PACKAGE / "py.typed").exists()
