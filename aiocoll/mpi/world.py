"""COMM_WORLD, COMM_SELF: the ranks of this job, joined when a program first asks for them, and left at its end.

The rule: importing the room connects nothing; a program that never touches COMM_WORLD is no rank.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final, Self

from ..errors import AiocollError
from ..sync import SyncGroup, connect
from ..sync.leaving import before_threads_end
from .communicators import Comm, Intracomm
from .exceptions import NotInitializedError, UsageError, translated

_SIZES: Final = ("MV2_COMM_WORLD_SIZE", "MPI_LOCALNRANKS")
"""What launchers in whose environments ``aiocoll.place`` finds nobody say of how many ranks they have started."""


class World(Intracomm):
    """All ranks."""

    def __new__(cls, *_: Any) -> Self:
        return super().__new__(cls)

    def __init__(self) -> None:
        self._name = "MPI_COMM_WORLD"
        self._lock = threading.Lock()
        self._over = False

    @property
    def _group(self) -> SyncGroup:
        group = self._held
        return group if group is not None and not group.foreign else self._joined()

    def _joined(self) -> SyncGroup:
        with self._lock:
            if self._held is not None:
                return self._held  # of a parent process, which says so itself
            if self._over:
                raise NotInitializedError("MPI was finalized: no call is possible any more")
            try:
                group = connect(name="world")
            except AiocollError as error:
                raise translated(error) from error.__cause__
            _refuse_strays(group, os.environ)
            before_threads_end(self.leave)
            self._held = group
            return group

    def leave(self) -> None:
        """Leaves, as Finalize does; a program that is ending with an error tells the others first."""
        with self._lock:
            self._over = True
            group, self._held = self._held, None
            self._made.clear()
        if group is None or group.foreign or group.closed:
            return
        failure = getattr(sys, "last_value", None)  # what ended the program, if that was an exception
        group.__exit__(type(failure) if failure is not None else None, failure, None)

    @property
    def joined(self) -> bool:
        """Whether the ranks have met."""
        return self._held is not None

    @property
    def over(self) -> bool:
        """Whether it has been left."""
        return self._over

    def Free(self) -> None:
        """Refused: it ends with the program, or with MPI.Finalize()."""
        raise UsageError("MPI.COMM_WORLD cannot be freed; it is left when the program ends, or by MPI.Finalize()")

    free = Free

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return super().__repr__() if self._held is not None else f"MPI.{self._name[4:]} (not joined)"


class Alone(World):
    """This rank only."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._name = "MPI_COMM_SELF"
        self._parent = world

    @property
    def _group(self) -> SyncGroup:
        return self._held if self._held is not None and not self._held.closed else self._joined()

    def _joined(self) -> SyncGroup:
        parent = self._parent
        assert parent is not None
        with self._lock:
            world = parent._group
            self._held = self._grown(lambda: world.subgroup([world.rank], "self"))
            return self._held


def _refuse_strays(group: SyncGroup, environ: Mapping[str, str]) -> None:
    """Several processes that each take themselves for a world of one would all compute the same, and nobody notice."""
    if group.size > 1:
        return
    for name in _SIZES:
        value = environ.get(name, "").strip()
        if value.isdigit() and int(value) > 1:
            group.close()
            raise UsageError(
                f"this process is one of {value} that mpiexec has started ({name}), and aiocoll cannot find the others "
                f"there; start it with: aiocoll run -n {value} {os.path.basename(sys.argv[0]) or 'program.py'}"
            )


WORLD: Final = World()
SELF: Final = Alone(WORLD)
NULL: Final = Comm(None)


def Init() -> None:
    """Joins the other ranks now; otherwise the first use of COMM_WORLD does."""
    if WORLD.joined:
        raise UsageError("MPI.Init: MPI is initialized already")
    WORLD._joined()


def Init_thread(required: int = 3) -> int:
    """The same; every level of threads is provided."""
    Init()
    return 3


def Finalize() -> None:
    """Leaves: no call is possible afterwards. What ends with the program need not call it."""
    try:
        WORLD.leave()
    except AiocollError as error:
        raise translated(error) from error.__cause__


def Is_initialized() -> bool:
    """Always True once imported, as in mpi4py: COMM_WORLD may be used."""
    return True


def Is_finalized() -> bool:
    """Whether Finalize was called."""
    return WORLD.over


def Query_thread() -> int:
    """THREAD_MULTIPLE: calls may come from any thread."""
    return 3


def Is_thread_main() -> bool:
    """Whether this is the main thread."""
    return threading.current_thread() is threading.main_thread()
