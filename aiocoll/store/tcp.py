"""The client of a store server; the rule: requests carry numbers, so one that waits blocks no other; no tasks.

Connecting tells its failures apart: a host without an address, a port where nobody listens (yet), something that is not
ours or says nothing, another job or secret.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from typing import Any, Self

from aiocoll.errors import AiocollError, RendezvousError, RendezvousTimeoutError, UsageError, WireError
from aiocoll.store.base import CallStore, check_timeout
from aiocoll.store.dial import dial
from aiocoll.store.server import process_token
from aiocoll.store.stream import Stream, address_text, pack, scoped, unpack
from aiocoll.store.table import ANSWER_BYTES_MAX, KEYS_MAX

BATCH_BYTES = 8 << 20
ANSWER_SECONDS = 60.0
"""A server answers at once what need not wait; one that is stopped or starved must not hold its clients for ever."""
ANSWER_MESSAGE_BYTES_MAX = 2 * ANSWER_BYTES_MAX


class _Pending:
    """A request without an answer yet."""

    __slots__ = ("args", "future", "op", "withdrawn")

    def __init__(self, op: str, args: list[Any], future: asyncio.Future[Any]) -> None:
        self.op, self.args, self.future = op, args, future
        self.withdrawn = False


class TCPStore(CallStore):
    """A connection to a `StoreServer`; made by `connect`, used on the loop that connected it."""

    host: str
    port: int

    def __init__(self, host: str, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.host, self.port = host, port
        self._loop = loop
        self._pid = os.getpid()
        self._stream: Stream | None = None
        self._pending: dict[int, _Pending] = {}
        self._numbers = itertools.count(1)
        self._gone = ""

    @classmethod
    async def connect(cls, host: str, port: int, *, secret: bytes = b"", job: str = "", timeout: float = 60.0) -> Self:
        """Connect and prove each other, waiting up to ``timeout`` seconds for somebody to listen there.

        RendezvousError when the host has no address, or something else or nothing answers on the port (within 5 s);
        RendezvousTimeoutError when nobody listens in time; AuthenticationError when job or secret differ.
        """
        if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
            raise UsageError(f"store: port must be a number from 1 to 65535, not {port!r}")
        store = cls(host, port, asyncio.get_running_loop())
        stream = await dial(
            host, port, secret, job, check_timeout(timeout),
            message=store._on_answer, closed=store._on_closed, message_bytes_max=ANSWER_MESSAGE_BYTES_MAX,
        )  # fmt: skip
        store._stream = stream
        stream.send(pack([0, "process", process_token()]))
        return store

    def __repr__(self) -> str:
        state = self._gone or f"{len(self._pending)} pending"
        return f"<TCPStore {address_text(self.host, self.port)}, {state}>"

    @property
    def where(self) -> str:
        return f"store at {address_text(self.host, self.port)}"

    @property
    def local_address(self) -> str:
        """The address of this side of the connection: the interface that faces the store."""
        if self._stream is None or self._stream.is_closed:
            raise RendezvousError(f"{self.where}: {self._gone or 'not connected'}")
        return scoped(self._stream.sock.getsockname())

    async def refused(self) -> list[str]:
        """The last strangers that the server turned away, as text."""
        strangers: list[str] = await self._request("refused", [], None)
        return strangers

    async def _call(self, op: str, args: list[Any], timeout: float | None) -> Any:
        if op == "multi_set":
            for batch in _batches(args):
                await self._request(op, batch, None)
            return None
        return await self._request(op, args, timeout)

    async def _request(self, op: str, args: list[Any], timeout: float | None) -> Any:
        if self._gone or self._stream is None:
            raise RendezvousError(f"{self.where}: {self._gone or 'not connected'}")
        if os.getpid() != self._pid:
            raise RendezvousError(
                f"{self.where}: this connection belongs to the parent process {self._pid}: connect anew"
            )
        number = next(self._numbers)
        pending = self._pending[number] = _Pending(op, args, self._loop.create_future())
        started = time.monotonic()
        timer = None
        if timeout != math.inf:
            timer = self._loop.call_later(timeout or ANSWER_SECONDS, self._too_late, number, started, bool(timeout))
        # Without time to wait the server looks once and answers: one round trip must be enough.
        self._stream.send(pack([number, op + "?" if timeout == 0 else op, *args]))
        try:
            answer = await pending.future
        except BaseException:
            self._withdraw(number)
            if op == "queue_pop" and pending.future.done() and not pending.future.cancelled():
                self._give_back(args[0], pending.future.result())
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        self._gone = self._gone or "it is closed"
        if self._stream is not None and os.getpid() == self._pid:
            self._stream.close()
        elif self._stream is not None:
            self._stream.abandon()
        self._fail(RendezvousError(f"{self.where}: it was closed while calls waited"))

    # -- from the loop; errors travel as results, so that an abandoned future is no warning

    def _on_answer(self, stream: Stream, payload: bytes) -> None:
        match unpack(payload, items_max=KEYS_MAX):
            case [int(number), int(kind), value]:
                pass
            case _:
                raise WireError("an answer must be [id, kind, value]")
        pending = self._pending.pop(number, None)
        if pending is None:
            return
        if pending.withdrawn or pending.future.cancelled():
            if pending.op == "queue_pop" and kind == 0:
                self._give_back(pending.args[0], value)
        elif not pending.future.done():
            pending.future.set_result(self._result(pending, kind, value))

    def _result(self, pending: _Pending, kind: int, value: Any) -> Any:
        match kind:
            case 0:
                return value
            case 1:
                return UsageError(value)
            case 3:
                return self._late(pending.op, pending.args, 0.0)
            case _:
                return RendezvousError(f"{self.where}: {value}")

    def _on_closed(self, stream: Stream, error: Exception | None) -> None:
        if not self._gone:
            self._gone = f"the connection was lost ({error or 'closed'}): did the process that hosts the store end?"
        self._fail(RendezvousError(f"{self.where}: {self._gone}"))

    def _fail(self, error: AiocollError) -> None:
        pending, self._pending = self._pending, {}
        for request in pending.values():
            if not request.future.done():
                request.future.set_result(error)

    def _too_late(self, number: int, started: float, waited: bool) -> None:
        pending = self._pending.get(number)
        if pending is None or pending.future.done():
            return
        elapsed = time.monotonic() - started
        if waited:
            error = self._late(pending.op, pending.args, elapsed)
        else:
            error = RendezvousTimeoutError(
                f"{self.where}: {pending.op} was not answered within {elapsed:.1f} s: is the process that hosts the "
                "store stopped, or its host?"
            )
        pending.future.set_result(error)
        self._withdraw(number)

    def _withdraw(self, number: int) -> None:
        """Take a request back; the answer to a pop may be on its way already, and then the item must go back."""
        pending = self._pending.get(number)
        if pending is None or pending.withdrawn or self._stream is None:
            return
        if pending.op == "queue_pop":
            pending.withdrawn = True
        else:
            del self._pending[number]
        self._stream.send(pack([next(self._numbers), "cancel", number]))

    def _give_back(self, key: str, value: Any) -> None:
        if isinstance(value, bytes) and self._stream is not None:
            self._stream.send(pack([next(self._numbers), "give_back", key, value]))


def _batches(pairs: list[Any]) -> list[list[Any]]:
    """Key, value, key, value... in pieces of bounded size."""
    batches: list[list[Any]] = [[]]
    size = 0
    for key, value in zip(pairs[::2], pairs[1::2], strict=True):
        if size > BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1] += [key, value]
        size += len(key) + len(value)
    return batches
