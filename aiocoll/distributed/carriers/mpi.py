"""The backend "mpi": an MPI library, through mpi4py.

The rule: MPI says who is who and moves the arrays; its own errors come out as Python's, and nothing here waits in it
but the opening of a communicator, which has a thread for that.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any, Final

import numpy as np

from ...errors import RendezvousError, RendezvousTimeoutError
from ..refusals import RuntimeUsageError
from .base import Array

_FOLDED = "?bhilqBHILQfdgFDG"
_TAG_MAX: Final = 32767  # the least that an MPI may have
_ANSWER_SECONDS: Final = 5.0
_WORD, _ASKED, _HERE, _TOLD = "word", "asked", "here", "told"
_PAUSE_SECONDS_MIN: Final = 50e-6
_PAUSE_SECONDS_MAX: Final = 0.01


class MpiComm:
    """One group's communicator."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self._comm = mpi, comm

    def __repr__(self) -> str:
        return f"MpiComm({self._comm!r})"

    def all_reduce(self, x: Array, op: str) -> Request:
        return Request(self._comm.Iallreduce(self._mpi.IN_PLACE, x, getattr(self._mpi, op)))

    def reduce(self, x: Array, op: str, root: int) -> Request:
        mine = self._comm.Get_rank() == root
        out = x if mine else None
        return Request(self._comm.Ireduce(self._mpi.IN_PLACE if mine else x, out, getattr(self._mpi, op), root))

    def broadcast(self, data: Array, root: int) -> Request:
        return Request(self._comm.Ibcast([data, self._mpi.BYTE], root))

    def all_gather(self, buffer: Array, counts: Sequence[int], rank: int) -> Request:
        into = [buffer, list(counts), _starts(counts), self._mpi.BYTE]
        return Request(self._comm.Iallgatherv(self._mpi.IN_PLACE, into))

    def exchange(self, out: Array, out_counts: Sequence[int], into: Array, into_counts: Sequence[int]) -> Request:
        return Request(
            self._comm.Ialltoallv(
                [out, list(out_counts), _starts(out_counts), self._mpi.BYTE],
                [into, list(into_counts), _starts(into_counts), self._mpi.BYTE],
            )
        )

    def free(self) -> None:
        comm, self._comm = self._comm, None
        if comm is not None and not self._mpi.Is_finalized():
            comm.Free()


class Request:
    """An MPI request."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def test(self) -> bool:
        return bool(self._request.Test())


class MpiLibrary:
    """MPI in this process; importing mpi4py has initialised it."""

    name: str = "mpi"
    title: str = "MPI"
    rank: int
    size: int

    def __init__(self) -> None:
        from mpi4py import MPI

        if not MPI.Is_initialized():
            MPI.Init_thread(MPI.THREAD_MULTIPLE)
        if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
            raise RuntimeUsageError(
                "backend 'mpi': MPI was initialised without MPI_THREAD_MULTIPLE, and calls under way need threads: "
                "leave mpi4py.rc.thread_level at 'multiple'"
            )
        self._mpi = MPI
        self._world = MPI.COMM_WORLD
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()

    @property
    def host(self) -> str:
        """What MPI calls this host."""
        return str(self._mpi.Get_processor_name())

    def __repr__(self) -> str:
        return f"MpiLibrary(rank {self.rank} of {self.size})"

    def met(self, word: Any, answer: Callable[[list[Any]], Any], seconds: float) -> Any:
        """Every rank calls it with its word; all get what rank 0 makes of all words, in rank order, by ``answer``.

        RendezvousTimeoutError names those that have not called within ``seconds``.
        """
        meeting = _Meeting(self._mpi, seconds)
        return meeting.called(word, answer) if self.rank == 0 else meeting.answered(word)

    def reduces(self, dtype: np.dtype[Any], op: str) -> bool:
        if dtype.char not in _FOLDED or dtype.kind == "b":
            return False
        if dtype.kind == "c":
            return op in ("SUM", "PROD")
        return op in ("SUM", "PROD", "MIN", "MAX") or dtype.kind in "iu"

    def invite(self, hosts: Sequence[str]) -> str:
        return ""

    def open(self, meeting: str, tag: int, ranks: Sequence[int], rank: int, seconds: float) -> MpiComm:
        strangers = [each for each in ranks if each >= self.size]
        if strangers:
            raise ValueError(f"ranks {strangers} came later and are no ranks of MPI's world of {self.size}")
        members = self._world.Get_group().Incl(list(ranks))
        highest = self._world.Get_attr(self._mpi.TAG_UB)
        comm = self._world.Create_group(members, tag % (highest or _TAG_MAX))
        members.Free()
        return MpiComm(self._mpi, comm)

    def close(self) -> None:
        """MPI ends with the process, as mpi4py has it."""


class _Meeting:
    """Rank 0 and the others find each other, by messages, since MPI's collectives have no deadline: rank 0 hears of the
    others, asks each whether it is still there, and tells all what comes of it. A word that was said in vain in an
    earlier meeting may lie there still: its token is not the one that its rank knows now, so nobody answers for it."""

    def __init__(self, mpi: Any, seconds: float) -> None:
        self._mpi, self._comm, self._seconds = mpi, mpi.COMM_WORLD, seconds
        self._tag = self._comm.Get_attr(mpi.TAG_UB) or _TAG_MAX  # which programs leave alone
        self._until = time.monotonic() + seconds

    def called(self, word: Any, answer: Callable[[list[Any]], Any]) -> Any:
        """Rank 0's part."""
        words: dict[int, tuple[bytes, Any]] = {0: (b"", word)}
        here, size = {0}, self._comm.Get_size()
        try:
            while len(here) < size:
                if not self._heard(words, here):
                    missing = [rank for rank in range(size) if rank not in here]
                    raise RendezvousTimeoutError(
                        f"init_process_group: backend 'mpi' waited {self._seconds:g} s for ranks {missing} of MPI's "
                        f"world of {size} to call it, too",
                        missing=tuple(missing),
                    )
            said = answer([words[rank][1] for rank in range(size)])
        except Exception as error:
            self._tell(words, str(error), getattr(error, "missing", ()))
            raise
        self._tell(words, "", said)
        return said

    def _heard(self, words: dict[int, tuple[bytes, Any]], here: set[int]) -> bool:
        """Takes one message more: a word, whose rank is asked whether it waits, or its yes; False if it is too late."""
        source = self._next(self._mpi.ANY_SOURCE, self._until)
        if source is None:
            return False
        kind, token, word = self._comm.recv(source=source, tag=self._tag)
        if kind == _WORD:
            words[source] = (token, word)
            here.discard(source)
            self._comm.send((_ASKED, token, "", None), source, self._tag)
        elif source in words and token == words[source][0]:
            here.add(source)
        return True

    def _tell(self, words: dict[int, tuple[bytes, Any]], trouble: str, said: Any) -> None:
        for rank, (token, _) in words.items():
            if rank:
                self._comm.send((_TOLD, token, trouble, said), rank, self._tag)  # small, so it waits for nobody

    def answered(self, word: Any) -> Any:
        """The others' part: rank 0 may know who is missing, so it is given a little longer."""
        mine = secrets.token_bytes(8)
        self._comm.send((_WORD, mine, word), 0, self._tag)
        while self._next(0, self._until + _ANSWER_SECONDS) is not None:
            kind, token, trouble, said = self._comm.recv(source=0, tag=self._tag)
            if token != mine:
                continue
            if kind == _ASKED:
                self._comm.send((_HERE, mine, None), 0, self._tag)
                continue
            if trouble:
                raise (RendezvousTimeoutError if said else RendezvousError)(trouble, missing=said)
            return said
        raise RendezvousTimeoutError(
            f"init_process_group: backend 'mpi' waited {self._seconds:g} s for rank 0 of MPI's world to call it, too",
            missing=(0,),
        )

    def _next(self, source: int, until: float) -> int | None:
        """Who has sent something; None once it is too late."""
        pause = _PAUSE_SECONDS_MIN
        while True:
            status = self._mpi.Status()
            if self._comm.iprobe(source, self._tag, status):
                return int(status.Get_source())
            if time.monotonic() > until:
                return None
            time.sleep(pause)  # MPI has nothing that a thread could wait on
            pause = min(2 * pause, _PAUSE_SECONDS_MAX)


def _starts(counts: Sequence[int]) -> list[int]:
    return [0, *accumulate(counts)][: len(counts)]
