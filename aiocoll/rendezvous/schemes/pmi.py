"""pmi://: ranks of a launcher that speaks PMI-1 meet where rank 0 tells the others through it.

Rule: PMI is asked once in a process, in a thread, since its barrier can be neither timed nor withdrawn; who gives up
waiting leaves it to whoever connects next. MPI in the same process keeps its turn: what it has begun it also ends.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import threading
from concurrent.futures import Future
from typing import Final
from urllib.parse import quote, unquote

from aiocoll.errors import AiocollError, RendezvousError, RendezvousTimeoutError
from aiocoll.place.base import require, whole
from aiocoll.rendezvous.introduction import (
    Introduction,
    address_for_others,
    check_claim,
    check_process,
    introduce,
    meet_introduced,
)
from aiocoll.rendezvous.meeting import Meeting
from aiocoll.rendezvous.pmi_client import PmiClient, connected
from aiocoll.rendezvous.request import Request
from aiocoll.store.users import me

_LAUNCHER: Final = "the launcher (PMI)"
_NAMESPACE: Final = "/proc/self/ns/net"


async def meet(request: Request) -> Meeting:
    """As ``tcp://``, once PMI has said where; RendezvousError where that fails or nobody else comes to its barrier."""
    environ = os.environ if request.environ is None else request.environ
    require(environ, ("PMI_RANK", "PMI_SIZE", "PMI_FD"), because=f"init_method={request.url.text!r} asks for PMI")
    rank, size, number = (whole(environ, name) or 0 for name in ("PMI_RANK", "PMI_SIZE", "PMI_FD"))
    check_claim(request, rank, size, _LAUNCHER)
    found = _process.introduced(number, rank, size, await address_for_others(request))
    return await meet_introduced(request, await _in_time(found, request))


async def _in_time(found: Future[Introduction], request: Request) -> Introduction:
    loop, over = asyncio.get_running_loop(), asyncio.Event()

    def tell(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop of one that has given up may be closed by now
            loop.call_soon_threadsafe(over.set)

    found.add_done_callback(tell)
    try:
        async with asyncio.timeout(request.seconds_left()):
            await over.wait()
    except TimeoutError as error:
        raise RendezvousTimeoutError(
            f"{request.url.text}: rank {request.rank} of {request.size} has waited {request.timeout:g} s at the "
            f"launcher's PMI barrier: some of the other {(request.size or 1) - 1} ranks have not called connect(), and "
            "PMI cannot say which; do all of them run this program, and none MPI beside it?"
        ) from error
    return found.result()


def exchange(client: PmiClient, rank: int, size: int, address: str) -> Introduction:
    """What rank 0 tells all, and all are told: who is where (one host meets on loopback), then where to meet.

    `address` is this host's for others. RendezvousError on all ranks where rank 0 cannot listen.
    """
    client.put(f"aiocoll-host-{rank}", _host())
    client.barrier()
    mine: Introduction | None = None
    if rank == 0:
        one_host = all(client.get(f"aiocoll-host-{each}") == _host() for each in range(1, size))
        try:
            mine = introduce("127.0.0.1" if one_host else address)
            told = f"{mine.host},{mine.port},{mine.secret.hex()}"
        except OSError as error:
            told = f"!{quote(f'rank 0 cannot listen on {address}: {error.strerror or error}')[:900]}"
        client.put("aiocoll-meet", told)
    client.barrier()
    if mine is not None:
        return mine
    told = client.get("aiocoll-meet")
    if told.startswith("!"):
        raise RendezvousError(f"pmi://: {unquote(told[1:])}; set AIOCOLL_HOST there to an address of its own")
    try:
        host, port, secret = told.split(",")
        return Introduction(host, int(port), bytes.fromhex(secret))
    except ValueError as error:
        raise RendezvousError("pmi://: rank 0 has told something else than an address: is it this version?") from error


def _host() -> str:
    """This kernel and network, in which loopback means the same."""
    try:
        network = os.stat(_NAMESPACE).st_ino
    except OSError:
        network = 0
    return f"{me()['boot'] or quote(me()['host'], safe='')}/{network}"


class _Process:
    """What this process has asked PMI, and was told."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: Future[Introduction] | None = None
        self._pid = 0

    def introduced(self, number: int, rank: int, size: int, address: str) -> Future[Introduction]:
        """The one exchange of this process; UsageError in a forked child of one that has begun it."""
        with self._lock:
            if self._found is not None:
                check_process(self._pid, _LAUNCHER)
            if self._found is None:
                client = connected(number)
                self._found, self._pid = Future(), os.getpid()
                arguments = (self._found, client, rank, size, address)
                threading.Thread(target=_ask, args=arguments, name="aiocoll-pmi", daemon=True).start()
            return self._found

    def forget_lock(self) -> None:
        """In a forked child, where another thread of the parent may have held it."""
        self._lock = threading.Lock()


def _ask(found: Future[Introduction], client: PmiClient, rank: int, size: int, address: str) -> None:
    begun = False
    try:
        if _mpi_speaks():
            client.learn()
        else:
            client.begin()
            begun = True
            atexit.register(_finalize, client, found, os.getpid())
        introduction = exchange(client, rank, size, address)
    except BaseException as error:
        failure = error if isinstance(error, AiocollError) else RendezvousError(f"pmi://: {error!r}")
        found.set_exception(failure)
    else:
        found.set_result(introduction)
    finally:
        if not begun:
            client.close()


def _finalize(client: PmiClient, found: Future[Introduction], pid: int) -> None:
    """At exit: else the launcher would take this process for one that has failed, as one that still waits at the
    barrier has. MPI, if it was begun, says it."""
    if os.getpid() == pid and found.done():
        if not _mpi_speaks():
            client.finalize()
        client.close()


def _mpi_speaks() -> bool:
    """Whether MPI was begun in this process: by mpi4py, the only way for Python programs that we know of."""
    mpi = sys.modules.get("mpi4py.MPI")
    try:
        return mpi is not None and bool(mpi.Is_initialized())
    except Exception:
        return False


_process = _Process()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.forget_lock)

