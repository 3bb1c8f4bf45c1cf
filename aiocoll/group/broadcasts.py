"""Broadcast: root's array on every rank.

The rule: receivers need to know nothing; what travels says what it is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ..algorithms import Algorithm, pace
from ..algorithms.announce import announce
from ..algorithms.channel import EMPTY
from ..algorithms.spread import BLOCK_BYTES, give, head_of
from ..buffers import as_out, check_out, native
from ..endpoint import Channel
from ..errors import MismatchError, WireError
from ..wire.codec import ArrayMeta, parse
from .calls import Again, Calls
from .packing import HAS_OUT, Packed, array_of, blob_of, comes_again, direct, read_blob, value_of
from .posted import Posted
from .typed import Dtype, Limits, Out

Array = NDArray[Any]
Body = Callable[[Channel], Awaitable[Any]]

_ANNOUNCE_BYTES_MAX: Final = 32 << 10


class Broadcasts(Calls):
    """See API: broadcast."""

    @overload
    def broadcast(self, x: None, root: int = 0, out: None = None, **limits: Unpack[Limits]) -> Posted[Any]: ...
    @overload
    def broadcast(
        self, x: NDArray[Dtype] | None, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> Posted[NDArray[Dtype]]: ...
    @overload
    def broadcast(self, x: Dtype, root: int = 0, out: None = None, **limits: Unpack[Limits]) -> Posted[Dtype]: ...
    @overload
    def broadcast(self, x: Any, root: int = 0, *, out: Out, **limits: Unpack[Limits]) -> Posted[Out]: ...
    @overload
    def broadcast(self, x: Any, root: int = 0, out: Any = None, **limits: Unpack[Limits]) -> Posted[Any]: ...

    def broadcast(
        self, x: Any, root: int = 0, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[Any]:
        """Root's array on every rank; on the others ``x`` is ignored and may be None.

        Root gets back the array that it gave (a copy where that is no writeable ndarray), the others a new one, or
        ``out``, which must have root's shape and dtype.
        """
        if timeout is None and name is None and self._at_home():
            again = self.broadcast_again(x, root, out)
            if again is not None:
                return self._posted_again(*again)
        turn = self._turn("broadcast", name)

        def prepare() -> tuple[str, Body]:
            where = self._rank_of(root, "broadcast", "root")
            rank, mine = self._scope.rank, self._scope.rank == where
            target = None if out is None else as_out(out, what="broadcast", rank=rank)
            packed = Packed(x, "broadcast", rank) if mine else None
            if packed is not None and target is not None:
                own = packed.array
                check_out(target, own.shape, own.dtype, [own], what="broadcast", rank=rank)
            straight = self._straight("spread", "broadcast")
            description = f"broadcast root={where}"
            if straight is not None:
                self._keep_broadcast_ready(x if mine else out, where, description, packed)

            async def body(ch: Channel) -> Any:
                if packed is not None:
                    flags = 0 if target is None else HAS_OUT
                    await self._spread(ch, straight, packed.meta, await packed.data(ch), where, None, flags)
                    if target is None:
                        return x if isinstance(x, np.ndarray) and x.flags.writeable else await packed.copied(ch)
                    if out is not x:
                        await pace.copy(ch, packed.array, target)
                    return out

                def place(meta: bytes, nbytes: int) -> Array | None:
                    return direct(target, self._fitting(meta, target, where, "broadcast"))

                meta, data, landed = await self._spread(ch, straight, b"", None, where, place)
                if target is None:
                    return value_of(meta, data)
                if not landed:
                    await pace.copy(ch, array_of(meta, data), target)
                return out

            return description, body

        return self._made(turn, timeout, prepare)

    def _keep_broadcast_ready(self, array: Any, root: int, description: str, packed: Packed | None) -> None:
        """Broadcasts from ``root`` of arrays like this one come again."""
        if not comes_again(array):
            return
        meta = bytes(1) + (Packed(array, "broadcast", root).meta if packed is None else packed.meta)
        run = self._into_again if packed is None else give
        key = ("broadcast", root, array.dtype, array.shape)
        self._keep_ready(key, "broadcast", description, run, head_of(meta, array))

    def broadcast_again(self, x: Any, root: Any, out: Any) -> Again | None:
        """The same for arrays like those of a call before; None for others."""
        if type(root) is not int:
            return None
        mine = self._scope.rank == root
        array = x if mine else out
        if type(array) is not np.ndarray or not array.flags.carray:
            return None
        ready = self._ready(("broadcast", root, array.dtype, array.shape))
        if ready is None or (mine and out is not None):
            return None
        channel = ready.channel(self.timeout, array)
        flat = array if array.ndim == 1 else array.reshape(-1)
        if mine:
            return channel, self._live(channel.call, ready.run, channel, ready.meta, flat)
        return channel, self._live(channel.call, ready.run, channel, array, flat, root, ready.meta)

    async def _into_again(self, ch: Channel, out: Array, flat: Array, root: int, head: bytes) -> None:
        """What root has, into ``out``: most likely what fits it, as before."""
        if flat.nbytes <= BLOCK_BYTES and ch.guess(root, head, flat):
            return

        def place(meta: bytes, nbytes: int) -> Array:
            wanted = direct(out, self._fitting(meta[1:], out, root, "broadcast"))
            return np.empty(nbytes, np.uint8) if wanted is None else wanted

        straight = self._straight("spread", "broadcast")
        assert straight is not None
        parcel = await straight.run(ch, b"", EMPTY, root, place, (head, flat))
        if parcel is not None:
            if parcel.meta[0] & HAS_OUT:  # nobody is through before everybody knows that root's array fits
                await self._barrier().run(ch)
            if not np.may_share_memory(parcel.data, out):
                await pace.copy(ch, array_of(parcel.meta[1:], parcel.data), out)

    async def _spread(
        self, ch: Channel, straight: Algorithm | None, meta: bytes, data: Array | None, root: int,
        place: Callable[[bytes, int], Array | None] | None, flags: int = 0,
    ) -> tuple[bytes, Array, bool]:  # fmt: skip
        """Root's (meta, data) on every rank, and whether the data landed where ``place`` wanted it."""
        if straight is not None:
            return await self._spread_straight(ch, straight, meta, data, root, place, flags)
        mine = None
        if data is not None:
            mine = blob_of(meta, data, flags, inline_bytes_max=_ANNOUNCE_BYTES_MAX)
        blob = await announce(ch, mine, root)
        flags, meta, nbytes, small = read_blob(blob)
        wanted = place(meta, nbytes) if place is not None else None
        if flags & HAS_OUT:  # nobody is through before everybody knows that root's array fits
            await self._barrier().run(ch)
        if small is not None:
            if wanted is not None:
                wanted[:] = small
            return meta, small if data is None else data, wanted is not None
        buffer = data if data is not None else wanted if wanted is not None else np.empty(nbytes, np.uint8)
        if ch.size > 1:
            await self._chosen("broadcast", nbytes).run(ch, buffer, root)
        return meta, buffer, wanted is not None

    async def _spread_straight(
        self, ch: Channel, straight: Algorithm, meta: bytes, data: Array | None, root: int,
        place: Callable[[bytes, int], Array | None] | None, flags: int,
    ) -> tuple[bytes, Array, bool]:  # fmt: skip
        """The same where all ranks share memory: description and data in one."""
        landed = False

        def where(meta: bytes, nbytes: int) -> Array:
            nonlocal landed
            wanted = None if place is None else place(meta[1:], nbytes)
            landed = wanted is not None
            return np.empty(nbytes, np.uint8) if wanted is None else wanted

        parcel = await straight.run(ch, bytes([flags]) + meta, EMPTY if data is None else data, root, where)
        if parcel.meta[0] & HAS_OUT:  # nobody is through before everybody knows that root's array fits
            await self._barrier().run(ch)
        return parcel.meta[1:], parcel.data, landed

    def _fitting(self, meta: bytes, target: Array | None, source: int, what: str) -> ArrayMeta:
        """Checks what comes against ``out``: MismatchError if it does not fit."""
        try:
            came = parse(meta)
        except WireError as error:
            raise MismatchError(f"{what} on rank {self._scope.rank}: what rank {source} gave: {error}") from error
        if target is not None and (came.shape != target.shape or came.dtype != native(target.dtype)):
            raise MismatchError(
                f"{what}: rank {source} gave shape {came.shape} of {came.dtype}, but out on rank {self._scope.rank} "
                f"has shape {target.shape} of {target.dtype}"
            )
        return came

    def _straight(self, collective: str, named: str) -> Algorithm | None:
        """How parcels of any size go where all ranks share memory; None elsewhere, and where users chose otherwise."""
        if self._carrier is not None:
            return None
        if not self._shared or self._islands > 1 or self._scope.size == 1 or named in self._settings.algorithm:
            return None
        return self._plan((collective, named), lambda: self._chosen(collective, 0))

    def _barrier(self) -> Algorithm:
        return self._plan("barrier", lambda: self._chosen("barrier", 0))
