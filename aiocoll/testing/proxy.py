"""`FaultProxy`: stands between ranks that talk over sockets, and does to their connections what networks do.

The rule: it only ever touches bytes between ranks, never the ranks; outside its block nothing of it is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from ..errors import UsageError
from .pipes import Pair

T = TypeVar("T")
_VARIABLES: Final = ("AIOCOLL_PROXY", "AIOCOLL_TRANSPORT")
_SECONDS: Final = 10.0
_FLIP: Final = 0xFF


@dataclass(frozen=True, slots=True, eq=False)
class _Standing:
    """A fault that stands in the way from ``src`` to ``dst`` (None: from, or to, anyone) until it is healed."""

    src: int | None
    dst: int | None
    held: bool = False
    delay: float = 0.0
    rate: float = math.inf

    def meets(self, src: int | None, dst: int | None) -> bool:
        return self.src in (None, src) and self.dst in (None, dst)


@dataclass(slots=True, eq=False)
class _Coming:
    """Something that happens once ``left`` more bytes have gone from ``src`` to ``dst``."""

    src: int | None
    dst: int | None
    left: int
    act: Callable[[Pair], None] | None
    corrupt: int = 0
    """How many of the bytes from then on arrive changed."""

    def meets(self, src: int | None, dst: int | None) -> bool:
        return self.src in (None, src) and self.dst in (None, dst)


class FaultProxy:
    """A proxy before the listener of every rank that connects within its block, in this process or a child of it:

        with FaultProxy() as proxy:
            ...                         # start ranks; they talk over TCP, through the proxy
            proxy.black_hole(1, 2)      # nothing from rank 1 reaches rank 2 any more

    Ranks are those of the world. ``src`` and ``dst`` say from whom to whom, None stands for any rank, and so do ``a``
    and ``b`` where both directions are meant. Faults hold for connections that there are and for those that come. With
    ``after`` something happens when so many more bytes have gone from ``src`` to ``dst``, handshakes included. Methods
    may be called from any thread.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._pairs: list[Pair] = []
        self._standing: list[_Standing] = []
        self._coming: list[_Coming] = []
        self._passed: dict[tuple[int | None, int | None], int] = {}
        self._change = asyncio.Event()
        self._before: dict[str, str | None] = {}
        self.address: tuple[str, int] = (host, 0)
        """Where ranks ask it to stand before them."""

    def __repr__(self) -> str:
        return f"<FaultProxy at {self.address[0]}:{self.address[1]}: {len(self._pairs)} connections>"

    @property
    def environ(self) -> dict[str, str]:
        """What it sets within its block; for processes that get an environment of their own."""
        return dict(zip(_VARIABLES, (f"{self.address[0]}:{self.address[1]}", "tcp"), strict=True))

    # -- its life

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise UsageError(f"{self!r} is in use already")
        ready, control = threading.Event(), _listener(self._host)
        self.address = control.getsockname()[:2]
        self._thread = threading.Thread(
            target=self._live, args=(ready, control), name="aiocoll fault proxy", daemon=True
        )
        self._thread.start()
        ready.wait()
        self._before = {name: os.environ.get(name) for name in _VARIABLES}
        os.environ.update(self.environ)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        assert self._loop is not None and self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = self._thread = None

    def _live(self, ready: threading.Event, control: socket.socket) -> None:
        with asyncio.Runner() as runner:  # which cancels what still runs when the loop is stopped
            self._loop = loop = runner.get_loop()
            ready.set()
            loop.create_task(self._accept(control, self._asked))
            loop.run_forever()

    async def _accept(
        self, listener: socket.socket, came: Callable[[socket.socket], Coroutine[Any, Any, bool]]
    ) -> None:
        """Serves whoever comes, until one of them says that there is nothing to come for any more."""
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        async def serve(connection: socket.socket) -> None:
            if not await came(connection):
                over.set()

        async def accept() -> None:
            while True:
                connection, _ = await loop.sock_accept(listener)
                connection.setblocking(False)
                self._keep(serve(connection)).add_done_callback(partial(_let_go, connection))

        accepting = asyncio.ensure_future(accept())
        try:
            await over.wait()
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            listener.close()

    def _keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _asked(self, connection: socket.socket) -> bool:
        """A rank says where it listens, and gets a front of its own; nonsense gets none."""
        loop = asyncio.get_running_loop()
        with connection, contextlib.suppress(OSError, ValueError, KeyError):
            where = json.loads(await loop.sock_recv(connection, 1000))
            front = _listener(self._host)
            target = str(where["host"]), int(where["port"])
            self._keep(self._accept(front, lambda came: self._join(came, target)))
            host, port = front.getsockname()[:2]
            await loop.sock_sendall(connection, json.dumps({"host": host, "port": port}).encode() + b"\n")
        return True

    async def _join(self, dialled: socket.socket, target: tuple[str, int]) -> bool:
        """Someone dials the rank at ``target``; False once nobody listens there: then this front refuses, too."""
        loop = asyncio.get_running_loop()
        behind = socket.socket(socket.AF_INET6 if ":" in target[0] else socket.AF_INET)
        behind.setblocking(False)
        with behind:
            try:
                await loop.sock_connect(behind, target)
            except OSError as error:
                return not isinstance(error, ConnectionRefusedError)
            for each in (dialled, behind):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = Pair(dialled, behind, self)
            self._pairs.append(pair)
            try:
                await pair.run()
            finally:
                self._pairs.remove(pair)
        return True

    def _do(self, work: Callable[[], T]) -> T:
        """Runs ``work`` where connections are served."""
        if self._loop is None:
            raise UsageError(f"{self!r} is not in use: call this within its with block")
        if self._thread is threading.current_thread():
            return work()

        async def awaited() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(_SECONDS)

    # -- faults that stand until they are healed

    def delay(self, seconds: float, src: int | None = None, dst: int | None = None) -> None:
        """Bytes arrive so much later."""
        self._stand(_Standing(src, dst, delay=seconds))

    def throttle(self, bytes_per_second: float, src: int | None = None, dst: int | None = None) -> None:
        """Not more than that passes."""
        if not bytes_per_second > 0:
            raise UsageError(f"throttle({bytes_per_second!r}): a number above 0 is needed; black_hole() holds all")
        self._stand(_Standing(src, dst, rate=bytes_per_second))

    def black_hole(self, a: int | None = None, b: int | None = None) -> None:
        """Nothing passes between two ranks, neither way, and nobody hears why; what is under way waits until it is
        healed."""
        self._stand(_Standing(a, b, held=True), _Standing(b, a, held=True))

    def one_way(self, src: int | None = None, dst: int | None = None) -> None:
        """The same for what goes from ``src`` to ``dst``; the other direction passes."""
        self._stand(_Standing(src, dst, held=True))

    def heal(self) -> None:
        """Everything passes again, what was held up to now first; nothing more is to come."""

        def work() -> None:
            self._standing.clear()
            self._coming.clear()
            self._tell()

        self._do(work)

    # -- faults that happen

    def cut(self, a: int | None = None, b: int | None = None, *, after: int | None = None) -> None:
        """Both ends hear an orderly end (FIN), as if the other process had ended."""
        self._happen(a, b, after, Pair.finish)

    def reset(self, a: int | None = None, b: int | None = None, *, after: int | None = None) -> None:
        """Both ends hear a reset (RST)."""
        self._happen(a, b, after, Pair.reset)

    def half_close(self, src: int, dst: int, *, after: int | None = None) -> None:
        """``dst`` hears the end of what comes from ``src``, and can still talk to it."""
        self._happen(src, dst, after, lambda pair: pair.finish_towards(dst))

    def corrupt(self, src: int | None = None, dst: int | None = None, *, after: int = 0, count: int = 1) -> None:
        """The next ``count`` bytes behind the ``after`` next ones arrive changed, all their bits."""
        self._do(lambda: self._coming.append(_Coming(src, dst, after, None, count)))

    # -- what there is to see

    def passed(self, src: int | None = None, dst: int | None = None) -> int:
        """How many bytes have gone from ``src`` to ``dst`` so far."""

        def work() -> int:
            wanted = _Standing(src, dst)
            return sum(nbytes for ends, nbytes in self._passed.items() if wanted.meets(*ends))

        return self._do(work)

    # -- what the pairs ask

    def held(self, src: int | None, dst: int | None) -> bool:
        """Whether nothing passes."""
        return any(each.held and each.meets(src, dst) for each in self._standing)

    def delayed(self, src: int | None, dst: int | None) -> float:
        """Seconds that bytes take longer."""
        return max((each.delay for each in self._standing if each.meets(src, dst)), default=0.0)

    def rate(self, src: int | None, dst: int | None) -> float:
        """Bytes per second that pass."""
        return min((each.rate for each in self._standing if each.meets(src, dst)), default=math.inf)

    def until_next(self, src: int | None, dst: int | None) -> int | None:
        """How many bytes still pass before something happens; at least 1."""
        return min((each.left for each in self._coming if each.left > 0 and each.meets(src, dst)), default=None)

    def passing(self, src: int | None, dst: int | None, data: bytes) -> tuple[bytes, Callable[[Pair], None] | None]:
        """Bytes that pass now, as they are to be sent on, and what happens to the connection behind them."""
        self._passed[src, dst] = self._passed.get((src, dst), 0) + len(data)
        for each in [each for each in self._coming if each.meets(src, dst)]:
            if each.left <= 0 and each.corrupt:
                changed = min(each.corrupt, len(data))
                data = bytes(byte ^ _FLIP for byte in data[:changed]) + data[changed:]
                each.corrupt -= changed
                if not each.corrupt:
                    self._coming.remove(each)
                continue
            each.left -= len(data)
            if each.left <= 0 and each.act is not None:
                self._coming.remove(each)
                return data, each.act
        return data, None

    async def changed(self) -> None:
        """Returns when other faults stand."""
        await self._change.wait()

    def _tell(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    def _stand(self, *faults: _Standing) -> None:
        def work() -> None:
            self._standing.extend(faults)
            self._tell()

        self._do(work)

    def _happen(self, a: int | None, b: int | None, after: int | None, act: Callable[[Pair], None]) -> None:
        def work() -> None:
            if after is not None:
                self._coming.append(_Coming(a, b, max(after, 1), act))
                return
            for pair in list(self._pairs):
                if pair.touches(a, b):
                    act(pair)

        self._do(work)


def _let_go(connection: socket.socket, _: asyncio.Task[None]) -> None:
    connection.close()


def _listener(host: str) -> socket.socket:
    listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)
    listener.setblocking(False)
    return listener


__all__ = ["FaultProxy"]
