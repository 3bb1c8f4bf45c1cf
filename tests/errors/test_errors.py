"""Every class of error keeps what it says when it is copied, pickled and raised again.

The rule: who catches an error in another process learns the same as who caught it where it was raised.
"""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from aiocoll import errors
from aiocoll.distributed import refusals
from aiocoll.errors import AiocollError

WHERE: dict[str, Any] = {
    "rank": 2, "world_rank": 5, "group": "world/3", "collective": "all_reduce", "call": 41, "missing": (2, 4),
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "PeerLostError": {"host": "here", "pid": 77, "operation": "all_reduce (call 41)"},
    "CollectiveTimeoutError": {"operation": "all_reduce (call 41)", "elapsed": 1.5},
}
EMPTY: dict[str, Any] = {
    "rank": None, "world_rank": None, "group": "", "collective": "", "call": None, "missing": (), "cause": None,
}  # fmt: skip


def classes(kind: type[AiocollError] = AiocollError) -> list[type[AiocollError]]:
    """The class and all that are made of it."""
    return [kind, *(each for child in kind.__subclasses__() for each in classes(child))]


ALL = sorted(
    {kind for kind in classes() if kind.__module__ in (errors.__name__, refusals.__name__)},
    key=lambda kind: kind.__name__,
)
every_class = pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
WAYS: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy, "deepcopy": copy.deepcopy,
    **{f"pickle {p}": lambda e, p=p: pickle.loads(pickle.dumps(e, p)) for p in range(pickle.HIGHEST_PROTOCOL + 1)},
}  # fmt: skip
every_way = pytest.mark.parametrize("way", WAYS)


def test_all_classes_of_the_contract_are_here() -> None:
    names = {kind.__name__ for kind in ALL}
    assert names >= {
        "UsageError", "NotInitializedError", "MismatchError", "PeerLostError", "CollectiveTimeoutError",
        "GroupBrokenError", "RendezvousError", "RendezvousTimeoutError", "AuthenticationError", "SerializationError",
    }  # fmt: skip


def test_a_failure_of_a_running_program_is_a_runtime_error_besides_its_own_kind() -> None:
    own = {
        "PeerLostError": ConnectionError, "CollectiveTimeoutError": TimeoutError,
        "AuthenticationError": PermissionError, "MismatchError": RuntimeError,
        "GroupBrokenError": RuntimeError, "RendezvousError": RuntimeError,
    }  # fmt: skip
    for name, kind in own.items():
        assert issubclass(getattr(errors, name), kind) and issubclass(getattr(errors, name), RuntimeError), name


@every_class
def test_an_error_without_a_word_answers_every_question_with_nothing(kind: type[AiocollError]) -> None:
    for error in (kind(), kind("text"), kind("text", 2)):
        assert {name: getattr(error, name) for name in EMPTY} == EMPTY
    assert str(kind("text")) == "text"


@every_class
@every_way
def test_what_an_error_says_travels(kind: type[AiocollError], way: str) -> None:
    own = OWN.get(kind.__name__, {})
    cause = errors.PeerLostError("rank 2 is lost", rank=2, pid=9, cause=ConnectionResetError(104, "reset"))
    error = kind("who, what, where", **own, **WHERE, cause=cause)
    error.add_note("seen twice")
    fresh = WAYS[way](error)
    assert type(fresh) is kind and fresh is not error
    assert (str(fresh), fresh.args) == ("who, what, where", ("who, what, where",))
    assert {name: getattr(fresh, name) for name in (WHERE | own)} == WHERE | own
    assert fresh.__notes__ == ["seen twice"]
    for each in (fresh.cause, fresh.__cause__):
        assert isinstance(each, errors.PeerLostError) and (each.rank, each.pid, str(each)) == (2, 9, "rank 2 is lost")
        assert isinstance(each.cause, ConnectionResetError) and each.cause.args == (104, "reset")


@every_class
@every_way
def test_an_error_without_a_cause_gets_none(kind: type[AiocollError], way: str) -> None:
    fresh = WAYS[way](kind("text", rank=1))
    assert fresh.rank == 1 and fresh.cause is None and not fresh.__suppress_context__


class _WantsMore(Exception):
    def __init__(self, what: str, lock: Any) -> None:
        super().__init__(what)
        self.lock = lock


@every_class
def test_a_cause_that_cannot_travel_leaves_its_words(kind: type[AiocollError]) -> None:
    class _LocalError(Exception):
        pass

    for cause in (_WantsMore("it broke", threading.Lock()), _LocalError("it broke"), ValueError("it broke", object())):
        error = kind("text", cause=cause)
        fresh = pickle.loads(pickle.dumps(error))
        assert type(fresh) is kind and "it broke" in str(fresh.cause) and type(cause).__name__ in str(fresh.cause)
        assert copy.copy(error).cause is cause


def test_cause_is_what_python_calls_the_cause() -> None:
    with pytest.raises(errors.UsageError) as info:
        try:
            raise KeyError("x")
        except KeyError as error:
            raise errors.UsageError("text") from error
    assert isinstance(info.value.cause, KeyError)


def test_an_error_goes_on_saying_what_it_said_first() -> None:
    error = errors.MismatchError("text").at("world", "broadcast", 3).at("other", "barrier", 4)
    assert (error.group, error.collective, error.call) == ("world", "broadcast", 3)


def test_what_no_error_says_is_refused() -> None:
    with pytest.raises(TypeError, match="'whose'"):
        errors.UsageError("text", whose=1)
