"""Reaching a store server and telling failures apart; the rule: retry what may get better, say the rest at once.

Nobody listens yet: try again until the deadline. Everything else is final within five seconds: no such host, something
that is not ours, something that says nothing, another job, another secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import math
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from aiocoll.errors import AuthenticationError, RendezvousError, RendezvousTimeoutError, WireError
from aiocoll.observe import emit
from aiocoll.store.stream import Stream, address_text
from aiocoll.wire.hello import STORE_CLIENT, STORE_SERVER, ClientHello, Identity, NotOurs

SILENCE_SECONDS = 4.0
RESOLVE_SECONDS = 4.5
RETRY_SECONDS_MIN = 0.05
RETRY_SECONDS_MAX = 1.0

Address = tuple[int, tuple[Any, ...]]


async def dial(
    host: str,
    port: int,
    secret: bytes,
    job: str,
    timeout: float,
    *,
    message: Callable[[Stream, bytes], None],
    closed: Callable[[Stream, Exception | None], None],
    message_bytes_max: int,
) -> Stream:
    """An open stream to the server at host:port; the callbacks are those of Stream. Errors as in `TCPStore.connect`."""
    at = address_text(host, port)
    started = time.monotonic()
    deadline = started + timeout
    addresses = await resolve(host, port)
    attempt = _Attempt(at, secret, job, message, closed, message_bytes_max)
    pause = RETRY_SECONDS_MIN
    hung_up_since = math.inf
    while True:
        trouble: list[Exception] = []
        silence_ends = time.monotonic() + SILENCE_SECONDS
        for family, address in addresses:
            try:
                stream = await attempt.once(family, address, min(deadline, silence_ends), last=deadline)
            except (OSError, RendezvousError, AuthenticationError) as error:
                trouble.append(error)
            else:
                emit("store.connect", at=at, seconds=time.monotonic() - started)
                return stream
        # AuthenticationError is a PermissionError and so an OSError too, but trying again would not help.
        final = [e for e in trouble if isinstance(e, AuthenticationError) or not isinstance(e, OSError)]
        if final:
            raise final[0]
        now = time.monotonic()
        if any(isinstance(error, _HungUp) for error in trouble):
            hung_up_since = min(hung_up_since, now)
            if now - hung_up_since > SILENCE_SECONDS - RETRY_SECONDS_MAX:
                raise RendezvousError(
                    f"store at {at}: whatever listens there closes every connection without an answer: "
                    "it is no aiocoll store, or the process that hosts it is ending"
                )
        else:
            hung_up_since = math.inf
        if now >= deadline:
            last = trouble[-1]
            number = getattr(last, "errno", 0)
            why = os.strerror(number) if number else getattr(last, "strerror", None) or str(last)
            raise RendezvousTimeoutError(
                f"store at {at}: could not be reached within {now - started:.1f} s ({why}): "
                "is rank 0, or the runner that hosts the store, started, and is the address right?"
            ) from last
        await asyncio.sleep(min(pause, deadline - now))
        pause = min(pause * 1.5, RETRY_SECONDS_MAX)


class _HungUp(OSError):
    """The other side accepted and closed without an answer."""


class _Attempt:
    """What stays the same from one try to the next."""

    def __init__(
        self,
        at: str,
        secret: bytes,
        job: str,
        message: Callable[[Stream, bytes], None],
        closed: Callable[[Stream, Exception | None], None],
        message_bytes_max: int,
    ) -> None:
        self._at, self._secret, self._job = at, secret, job
        self._message, self._closed, self._message_bytes_max = message, closed, message_bytes_max

    async def once(self, family: int, address: tuple[Any, ...], until: float, *, last: float) -> Stream:
        """One connection and handshake; OSError is worth another try, the other errors are not."""
        loop = asyncio.get_running_loop()
        sock = socket.socket(family, socket.SOCK_STREAM)
        # The port that the kernel picks for us may be one that somebody wants to listen on a minute later.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        try:
            try:
                async with asyncio.timeout(max(0.05, until - time.monotonic())):
                    await loop.sock_connect(sock, address)
            except TimeoutError:
                raise TimeoutError(0, f"{address[0]} did not answer") from None
            if sock.getsockname() == sock.getpeername():
                raise ConnectionRefusedError(0, "nobody listens there")  # TCP connected the socket to itself
        except BaseException:
            sock.close()
            raise
        return await self._shake_hands(loop, sock, until, last)

    async def _shake_hands(
        self, loop: asyncio.AbstractEventLoop, sock: socket.socket, until: float, last: float
    ) -> Stream:
        outcome: asyncio.Future[Exception | None] = loop.create_future()

        def settle(error: Exception | None) -> None:
            if not outcome.done():
                outcome.set_result(error)
            elif stream.is_closed:
                self._closed(stream, error)

        stream = Stream(
            loop,
            sock,
            ClientHello(self._secret, Identity(STORE_CLIENT, self._job), STORE_SERVER),
            opened=lambda _: settle(None),
            message=self._message,
            closed=lambda _, error: settle(error or ConnectionAbortedError("closed")),
            message_bytes_max=self._message_bytes_max,
        )
        stream.start()
        try:
            async with asyncio.timeout(max(0.05, until - time.monotonic())):
                error = await outcome
        except TimeoutError:
            stream.close()
            if until >= last:
                raise TimeoutError(0, "it accepted the connection and said nothing") from None
            raise RendezvousError(
                f"store at {self._at}: something listens there but has said nothing for {SILENCE_SECONDS:g} s: "
                "it is no aiocoll store, or it is frozen"
            ) from None
        except BaseException:
            stream.close()
            raise
        if error is None:
            return stream
        raise self._explain(error) from error

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, AuthenticationError):
            return type(error)(f"store at {self._at}: {error}")
        if isinstance(error, NotOurs):
            return RendezvousError(f"store at {self._at}: something else listens there: it answered {error.first!r}")
        if isinstance(error, WireError | OSError):
            return _HungUp(0, str(error))
        return error


async def resolve(host: str, port: int) -> list[Address]:
    """Every address of the host, in the system's order; RendezvousError when it has none."""
    try:
        literal = ipaddress.ip_address(host)
    except ValueError:
        pass  # a name
    else:
        if isinstance(literal, ipaddress.IPv4Address):
            return [(socket.AF_INET, (host, port))]
        if "%" not in host:
            return [(socket.AF_INET6, (host, port, 0, 0))]
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Address] | OSError] = loop.create_future()

    def settle(result: list[Address] | OSError) -> None:
        if not found.done():
            found.set_result(result)

    def look_up() -> None:
        result: list[Address] | OSError
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            result = list(dict.fromkeys((int(info[0]), tuple(info[4])) for info in infos))
        except (OSError, UnicodeError) as error:
            result = error if isinstance(error, OSError) else OSError(0, str(error))
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, result)

    # Not the loop's executor, whose threads would outlive this call; a resolver that hangs holds up nobody's exit.
    thread = threading.Thread(target=look_up, name="aiocoll-resolve", daemon=True)
    thread.start()
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            result = await found
    except TimeoutError:
        raise RendezvousError(
            f"store: the name {host!r} did not resolve within {RESOLVE_SECONDS:g} s: is the name server reachable?"
        ) from None
    thread.join()
    if isinstance(result, OSError):
        raise RendezvousError(f"store: the host {host!r} cannot be resolved: {result.strerror or result}") from result
    return result
