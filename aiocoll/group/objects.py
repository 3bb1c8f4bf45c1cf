"""Collectives of plain Python data.

The rule: an object that cannot be serialised is refused before anything moves, on all ranks; one that cannot be loaded
concerns only those who cannot load it, once the call is over, and breaks nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ..algorithms import pace
from ..algorithms.channel import Parcel
from ..algorithms.share import share
from ..buffers.layout import PIECE_BYTES
from ..endpoint import Channel
from ..errors import SerializationError, UsageError
from ..wire.objects import dumps, loads
from ..wire.rope import Rope
from .movement import Movement
from .packing import blob_of, read_blob
from .posted import Posted
from .typed import Limits, Obj

Body = Callable[[Channel], Awaitable[Any]]


class Dumped:
    """One object in wire form: its parts, of which large arrays are still the caller's."""

    __slots__ = ("nbytes", "parts")

    def __init__(self, parts: Sequence[bytes | memoryview]) -> None:
        self.parts: Sequence[bytes | memoryview] = parts
        self.nbytes: int = sum(map(len, parts))

    def __repr__(self) -> str:
        return f"<Dumped {self.nbytes} bytes>"

    def bytes_now(self) -> NDArray[np.uint8]:
        """The message at once."""
        return np.frombuffer(b"".join(self.parts), np.uint8)

    def payload(self, *, buffered: bool = False) -> NDArray[np.uint8] | Rope:
        """The message as it is sent: a large one from where its arrays are, unless it is to be ``buffered``."""
        return self.bytes_now() if buffered or self.nbytes <= PIECE_BYTES else Rope(self.parts)

    async def data(self, ch: Channel) -> NDArray[np.uint8]:
        """The message; a large one is put together piece by piece."""
        if self.nbytes <= PIECE_BYTES:
            return self.bytes_now()
        whole, start = np.empty(self.nbytes, np.uint8), 0
        for part in self.parts:
            await pace.copy(ch, np.frombuffer(part, np.uint8), whole[start : start + len(part)])
            start += len(part)
        return whole


class Objects(Movement):
    """See API: broadcast_object to all_to_all_object."""

    def _dumped(self, obj: Any, what: str) -> Dumped:
        try:
            return Dumped(dumps(obj, allow_pickle=self._settings.allow_pickle))
        except SerializationError as error:
            raise SerializationError(f"{what} on rank {self._scope.rank}: {error}") from error

    def _loaded(self, data: Any, source: int, what: str) -> Any:
        try:
            return loads(data, allow_pickle=self._settings.allow_pickle)
        except SerializationError as error:
            raise SerializationError(
                f"{what}: rank {self._scope.rank} cannot load the object of rank {source}: {error}",
                group=self.name, collective=what, **self._scope.who(self._scope.ranks[source]),
            ) from error  # fmt: skip

    @overload
    def broadcast_object(self, obj: None = None, root: int = 0, **limits: Unpack[Limits]) -> Posted[Any]: ...
    @overload
    def broadcast_object(self, obj: Obj | None, root: int = 0, **limits: Unpack[Limits]) -> Posted[Obj]: ...

    def broadcast_object(
        self, obj: Any = None, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[Any]:
        """Root's object on every rank (root gets back the one that it gave)."""
        turn = self._turn("broadcast_object", name)

        def prepare() -> tuple[str, Body]:
            where = self._rank_of(root, "broadcast_object", "root")
            mine = self._dumped(obj, "broadcast_object") if self._scope.rank == where else None

            async def body(ch: Channel) -> Any:
                data = None if mine is None else await mine.data(ch)
                straight = self._straight("spread", "broadcast")
                return (await self._spread(ch, straight, b"", data, where, None))[1]

            return f"broadcast_object root={where}", body

        def then(data: Any) -> Any:
            return obj if self._scope.rank == root else self._loaded(data, int(root), "broadcast_object")

        return self._made(turn, timeout, prepare, then)

    def gather_object(
        self, obj: Obj, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[list[Obj] | None]:
        """Every rank's object on ``root``, in rank order; None elsewhere."""
        turn = self._turn("gather_object", name)

        def prepare() -> tuple[str, Body]:
            where = self._rank_of(root, "gather_object", "root")
            mine = self._dumped(obj, "gather_object")

            async def body(ch: Channel) -> Any:
                # Nobody is through before everybody is known to have an object that can be sent.
                await self._barrier().run(ch)
                return await self._collected(ch, b"", await mine.data(ch), where)

            return f"gather_object root={where}", body

        return self._made(turn, timeout, prepare, lambda parcels: self._all_loaded(parcels, "gather_object"))

    def all_gather_object(
        self, obj: Obj, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[list[Obj]]:
        """Every rank's object on every rank, in rank order."""
        turn = self._turn("all_gather_object", name)

        def prepare() -> tuple[str, Body]:
            mine = self._dumped(obj, "all_gather_object")

            async def body(ch: Channel) -> Any:
                data = await mine.data(ch)
                blobs = await share(ch, blob_of(b"", data))
                blocks = await self._blocks_of(ch, data, [read_blob(blob) for blob in blobs])
                return [Parcel(b"", block) for block in blocks]

            return "all_gather_object", body

        return self._made(turn, timeout, prepare, lambda parcels: self._all_loaded(parcels, "all_gather_object"))

    @overload
    def scatter_object(self, objs: None = None, root: int = 0, **limits: Unpack[Limits]) -> Posted[Any]: ...
    @overload
    def scatter_object(self, objs: Sequence[Obj] | None, root: int = 0, **limits: Unpack[Limits]) -> Posted[Obj]: ...

    def scatter_object(
        self, objs: Sequence[Any] | None = None, root: int = 0,
        *, timeout: float | None = None, name: str | None = None,
    ) -> Posted[Any]:  # fmt: skip
        """My object of root's sequence of one per rank."""
        turn = self._turn("scatter_object", name)

        def prepare() -> tuple[str, Body]:
            where = self._rank_of(root, "scatter_object", "root")
            mine = self._all_dumped(objs, "scatter_object") if self._scope.rank == where else None

            async def body(ch: Channel) -> Any:
                parcels = None if mine is None else await _parcels(ch, mine)
                return (await self._blind("scatter").run(ch, parcels, where, None)).data

            return f"scatter_object root={where}", body

        return self._made(turn, timeout, prepare, lambda data: self._loaded(data, int(root), "scatter_object"))

    def all_to_all_object(
        self, objs: Sequence[Obj], *, timeout: float | None = None, name: str | None = None
    ) -> Posted[list[Obj]]:
        """What every rank has for me, in rank order; ``objs`` holds one object per rank."""
        turn = self._turn("all_to_all_object", name)

        def prepare() -> tuple[str, Body]:
            mine = self._all_dumped(objs, "all_to_all_object")

            async def body(ch: Channel) -> Any:
                return await self._exchanged(ch, await _parcels(ch, mine))

            return "all_to_all_object", body

        return self._made(turn, timeout, prepare, lambda parcels: self._all_loaded(parcels, "all_to_all_object"))

    def _all_dumped(self, objs: Any, what: str) -> list[Dumped]:
        size = self._scope.size
        if not isinstance(objs, (list, tuple)) or len(objs) != size:
            raise UsageError(f"{what} on rank {self._scope.rank}: a list of one object per rank ({size}) is needed")
        return [self._dumped(obj, f"{what}, object {number}") for number, obj in enumerate(objs)]

    def _all_loaded(self, parcels: Any, what: str) -> list[Any] | None:
        if parcels is None:
            return None
        return [self._loaded(parcel.data, source, what) for source, parcel in enumerate(parcels)]


async def _parcels(ch: Channel, objects: Sequence[Dumped]) -> list[Parcel]:
    return [Parcel(b"", await each.data(ch)) for each in objects]
