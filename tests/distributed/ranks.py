"""`ranks(size, program)`: the documented API on several ranks of this process, a thread each, over real sockets.

The rule: each thread sees a module state of its own, as each process would; everything else is what users get.
"""

from __future__ import annotations

import contextvars
import sys
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import aiocoll.distributed as dist
from aiocoll.distributed import state
from aiocoll.distributed.state import State
from aiocoll.errors import GroupBrokenError, PeerLostError

_SECONDS = 60.0


class StatePerRank:
    """Looks like the module's state, and is that of the rank in whose thread, or callback, it is asked."""

    def __init__(self) -> None:
        object.__setattr__(self, "_state", contextvars.ContextVar[State]("state"))

    def _mine(self) -> State:
        mine: State | None = self._state.get(None)
        if mine is None:
            mine = State()
            self._state.set(mine)
        return mine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mine(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._mine(), name, value)


def ranks(
    size: int,
    program: Callable[[int], Any],
    backend: str = "tcp",
    join: Callable[[int], dict[str, Any]] | None = None,
    **init: Any,
) -> list[Any]:
    """`program(rank)` on `size` ranks that have joined and will leave; what it returned, by rank. `join(rank)` gives
    keywords for init_process_group() that say where to meet, instead of a file.

    Raises the earliest error that is no other rank's consequence, with all of them in its notes.
    """
    results: list[Any] = [None] * size
    errors: dict[int, BaseException] = {}

    def one(rank: int, url: str) -> None:
        try:
            place = {"init_method": url} if join is None else join(rank)
            dist.init_process_group(backend, **{"rank": rank, "world_size": size, "timeout": 20.0, **place, **init})
            results[rank] = program(rank)
        except BaseException as error:
            errors[rank] = error
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()

    held = [module for name, module in sys.modules.items() if name.startswith(dist.__name__)]
    names = [(module, name) for module in held for name, value in vars(module).items() if value is state.STATE]
    original, shared = state.STATE, StatePerRank()
    for module, name in names:
        setattr(module, name, shared)
    try:
        with tempfile.TemporaryDirectory() as folder:
            threads = [
                threading.Thread(target=one, args=(rank, f"file://{folder}/meet"), name=f"rank {rank}", daemon=True)
                for rank in range(size)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(_SECONDS)
            late = [thread.name for thread in threads if thread.is_alive()]
    finally:
        for module, name in names:
            setattr(module, name, original)
    assert not late, f"{late} did not end within {_SECONDS:g} s; {errors!r}"
    if errors:
        causes = [error for error in errors.values() if not isinstance(error, PeerLostError | GroupBrokenError)]
        cause = [*causes, *errors.values()][0]
        for rank, error in sorted(errors.items()):
            cause.add_note(f"rank {rank}: {error!r}")
        raise cause
    return results


def data(rank: int) -> Any:
    """What this rank gives."""
    return np.arange(5.0) * (rank + 1) + rank


def total(members: list[int]) -> list[float]:
    """What these give together."""
    return sum(data(each) for each in members).tolist()


def summed(group: Any) -> list[float]:
    """What the members of a group, all of which call this, give together."""
    x = data(dist.get_rank())
    dist.all_reduce(x, group=group)
    return x.tolist()
