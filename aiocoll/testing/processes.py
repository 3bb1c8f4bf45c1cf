"""Ranks as real processes: forked within milliseconds from one warm server, never reused, never left behind.

Rule: whatever happens, no child outlives the call, and what a rank raised arrives with its own traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from typing import Any

from ..errors import AiocollError, GroupBrokenError, PeerLostError
from ..sim import CRASHED, Crash
from ..store import TCPStore, host_store

_SECRET = b"ranks of one test"
_GRACE_SECONDS = 10.0
_MET = "met"


class RankDiedError(AiocollError):
    """A rank ended by a signal or an exit that nobody told it to."""


def run_processes(
    size: int,
    main: Callable[[Any], Any],
    connect: dict[str, Any],
    *,
    crashes: Sequence[Crash] = (),
    limit: float = 60.0,
    uvloop: bool = False,
) -> list[Any]:
    """`main(group)` in `size` processes over a store in this one; results by rank.

    The earliest failure that is no consequence of another is raised here; the others are given a grace time, then
    killed. `crashes` with `at=` are SIGKILLs, so many seconds after all ranks have met.
    """
    hosted = host_store("127.0.0.1", 0, secret=_SECRET, job="test")
    try:
        payload = _portable(main, (connect, hosted.address, uvloop, dict(os.environ)))
        return _Crew(size, payload, crashes, limit).results()
    finally:
        hosted.release()
        hosted.join(_GRACE_SECONDS)


def _portable(main: Callable[[Any], Any], rest: tuple[Any, ...]) -> bytes:
    """Pickled so that a process without the test's module can load it: its functions and classes travel by value."""
    import cloudpickle

    module = sys.modules.get(getattr(main, "__module__", None) or "")
    by_value = module is not None and module.__name__ != "__main__" and not module.__name__.startswith("aiocoll.")
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        packed: bytes = cloudpickle.dumps((main, *rest))
        return packed
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


class _Crew:
    """The processes of one run."""

    def __init__(self, size: int, payload: bytes, crashes: Sequence[Crash], limit: float) -> None:
        self.size, self.limit = size, limit
        self.expected = {crash.rank for crash in crashes}
        self.kills = sorted((crash.at, crash.rank) for crash in crashes if crash.at is not None)
        self.answers: dict[int, tuple[bool, Any]] = {}
        self.order: list[int] = []
        self.began = math.inf
        """When all ranks that live had met."""
        self._met: set[int] = set()
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["aiocoll", "aiocoll.testing.processes", "cloudpickle"])
        self.processes, self.pipes = [], {}
        for rank in range(size):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_rank_process, args=(rank, size, payload, theirs), name=f"rank {rank}")
            with _no_main_module():
                process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes[rank] = ours

    def __repr__(self) -> str:
        return f"<Crew of {self.size}: {len(self.order)} ended>"

    def results(self) -> list[Any]:
        try:
            self._wait()
            self._raise_failure()
            return [CRASHED if self._crashed(rank) else self.answers[rank][1] for rank in range(self.size)]
        finally:
            for process in self.processes:
                if process.is_alive():
                    process.kill()
                process.join()
                process.close()
            for pipe in self.pipes.values():
                pipe.close()

    def _wait(self) -> None:
        """Until every rank has answered or died, the limit has passed, or the grace time after a failure."""
        started = time.monotonic()
        until = started + self.limit
        listening: dict[Any, int] = {pipe: rank for rank, pipe in self.pipes.items()}
        while listening and (left := until - time.monotonic()) > 0:
            if self.kills:
                left = min(left, max(0.0, self.began + self.kills[0][0] - time.monotonic()))
            for pipe in connection.wait(list(listening), left):
                rank = listening[pipe]
                if self._hear(rank):
                    del listening[pipe]
                    if not self.answers[rank][0] and not self._crashed(rank):
                        until = min(until, time.monotonic() + _GRACE_SECONDS)
            if self.began == math.inf and len(self._met | set(self.answers)) == self.size:
                self.began = time.monotonic()
            while self.kills and self.began + self.kills[0][0] <= time.monotonic():
                self.processes[self.kills.pop(0)[1]].kill()
        for rank in listening.values():
            self.processes[rank].kill()
            error = TimeoutError(f"rank {rank} still ran after {time.monotonic() - started:.0f} s and was killed")
            self.answers[rank] = (False, error)
            self.order.append(rank)

    def _hear(self, rank: int) -> bool:
        """Takes in what a rank says; whether that was its end."""
        try:
            said = self.pipes[rank].recv()
            if said == _MET:
                self._met.add(rank)
                return False
            self.answers[rank] = said
        except EOFError:
            self.processes[rank].join()
            self.answers[rank] = (False, RankDiedError(f"rank {rank} {_how(self.processes[rank].exitcode)}"))
        except Exception as error:  # what the rank returned cannot be loaded here
            self.answers[rank] = (False, error)
        self.order.append(rank)
        return True

    def _crashed(self, rank: int) -> bool:
        return rank in self.expected and isinstance(self.answers[rank][1], RankDiedError)

    def _raise_failure(self) -> None:
        failed = [rank for rank in self.order if not self.answers[rank][0] and not self._crashed(rank)]
        consequences = (PeerLostError, GroupBrokenError, TimeoutError)
        causes = [rank for rank in failed if not isinstance(self.answers[rank][1], consequences)] or failed
        if causes:
            error = self.answers[causes[0]][1]
            error.add_note(f"raised on rank {causes[0]} of {self.size}")
            for rank in failed:
                if rank != causes[0]:
                    error.add_note(f"rank {rank}: {type(self.answers[rank][1]).__name__}: {self.answers[rank][1]}")
            raise error


@contextlib.contextmanager
def _no_main_module() -> Iterator[None]:
    """Children do not run this program's main module again, as multiprocessing would have it: the payload is whole."""
    main: Any = sys.modules["__main__"]
    hidden = {name: vars(main)[name] for name in ("__spec__", "__file__") if name in vars(main)}
    try:
        main.__spec__ = None
        vars(main).pop("__file__", None)
        yield
    finally:
        vars(main).update(hidden)


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code} and no result"


# ------------------------------------------------------------------------------------------------ in the rank's process


def _rank_process(rank: int, size: int, payload: bytes, pipe: connection.Connection) -> None:
    """Runs one rank, says when it has met the others, and answers with (True, result) or (False, exception)."""
    import cloudpickle

    try:
        main, connect, address, uvloop, environ = cloudpickle.loads(payload)
        os.environ.clear()
        os.environ.update(environ)  # the server's stem from when it started
        answer = (True, _in_loop(_as_rank(rank, size, main, connect, address, pipe), uvloop))
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)).rstrip())
        answer = (False, error)
    pipe.send_bytes(_answer(cloudpickle, answer, rank))
    pipe.close()


def _answer(cloudpickle: Any, answer: tuple[bool, Any], rank: int) -> bytes:
    try:
        packed: bytes = cloudpickle.dumps(answer)
        if not answer[0]:
            cloudpickle.loads(packed)  # an exception with its own constructor may not come back
        return packed
    except Exception as error:
        what = "\n".join([f"{answer[1]!r}", *getattr(answer[1], "__notes__", [])])
        stand_in = RankDiedError(f"rank {rank} ended with {what}, which cannot travel: {error!r}")
        packed = cloudpickle.dumps((False, stand_in))
        return packed


def _in_loop(coroutine: Any, uvloop: bool) -> Any:
    if not uvloop:
        return asyncio.run(coroutine)
    import uvloop as faster

    with asyncio.Runner(loop_factory=faster.new_event_loop) as runner:
        return runner.run(coroutine)


async def _as_rank(
    rank: int, size: int, main: Callable[[Any], Any], connect: dict[str, Any], address: tuple[str, int],
    pipe: connection.Connection,
) -> Any:  # fmt: skip
    import aiocoll

    store = await TCPStore.connect(*address, secret=_SECRET, job="test", timeout=_GRACE_SECONDS)
    try:
        where: dict[str, Any] = {"store": store, "rank": rank, "size": size} | connect
        async with aiocoll.connect(**where) as group:
            pipe.send(_MET)
            return await main(group)
    finally:
        await store.close()


__all__ = ["RankDiedError", "run_processes"]
