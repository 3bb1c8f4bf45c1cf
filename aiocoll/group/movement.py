"""Moving arrays: broadcast, gather, all_gather, scatter, all_to_all, barrier.

The rule: receivers need to know nothing. Where sizes may differ from rank to rank they travel first (with the data
itself, if it is small), so every later choice rests on facts that all ranks know.
"""

from __future__ import annotations

import struct
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..algorithms.announce import announce
from ..algorithms.channel import Parcel
from ..algorithms.share import share
from ..buffers import as_array, as_bytes, as_out, check_out, native, pack, pieces, spans, split_rows
from ..endpoint import Channel
from ..errors import MismatchError, UsageError, WireError
from ..wire.codec import ArrayMeta, describe, parse
from .calls import Calls, Posted

Array = NDArray[Any]
Body = Callable[[Channel], Awaitable[Any]]

_HEAD: Final = struct.Struct("<BHQ")  # flags, bytes of meta, bytes of payload
_INLINE: Final = 1
_HAS_OUT: Final = 2
_INLINE_BYTES_MAX: Final = 4096
_ANNOUNCE_BYTES_MAX: Final = 32 << 10
_ALIGN: Final = 64


class Packed:
    """One array ready to travel: its description and its bytes."""

    __slots__ = ("array", "data", "meta", "scalar")

    def __init__(self, x: Any, what: str, rank: int) -> None:
        self.array, self.scalar = as_array(x, what=what, rank=rank)
        flat, fortran = pack(self.array)
        self.meta = describe(native(self.array.dtype), self.array.shape, fortran)
        self.data = as_bytes(flat)


def blob_of(meta: bytes, data: Array | None, flags: int, inline_max: int) -> bytes:
    """What travels first: flags, the description, and the data itself if it is small."""
    nbytes = 0 if data is None else data.nbytes
    if data is not None and nbytes <= inline_max:
        return _HEAD.pack(flags | _INLINE, len(meta), nbytes) + meta + data.tobytes()
    return _HEAD.pack(flags, len(meta), nbytes) + meta


def read_blob(blob: bytes) -> tuple[int, bytes, int, Array | None]:
    """(flags, meta, nbytes, data if it came along)."""
    flags, meta_bytes, nbytes = _HEAD.unpack_from(blob)
    start = _HEAD.size + meta_bytes
    meta = blob[_HEAD.size : start]
    data = np.frombuffer(bytearray(blob[start : start + nbytes]), np.uint8) if flags & _INLINE else None
    return flags, meta, nbytes, data


def array_of(meta: bytes, data: Array) -> Array:
    """The array that a description and bytes make; shares the memory of ``data``."""
    what = parse(meta)
    if data.nbytes != what.nbytes:
        raise WireError(f"{data.nbytes} bytes came for shape {what.shape} of {what.dtype}")
    return what.array(data)


def direct(target: Array | None, what: ArrayMeta) -> Array | None:
    """The bytes of ``target`` if what comes can land in it as it is."""
    if target is None or target.dtype != what.dtype or not target.nbytes:
        return None
    flags = target.flags
    if flags.c_contiguous and (not what.fortran or target.ndim < 2):
        return as_bytes(target)
    if flags.f_contiguous and what.fortran:
        return as_bytes(target)
    return None


async def fill(ch: Channel, array: Array, target: Array) -> None:
    """Copies a result into ``out``, piece by piece."""
    for _ in pieces(array, target):
        await ch.breathe()


class Movement(Calls):
    """See API: broadcast to barrier."""

    def broadcast(
        self, x: Any, root: int = 0, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[Any]:
        """Root's array on every rank; on the others ``x`` is ignored and may be None.

        Root gets back the array that it gave (a copy where that is no writeable ndarray), the others a new one, or
        ``out``, which must have root's shape and dtype.
        """
        turn = self._turn("broadcast", name)

        def prepare() -> tuple[str, Body]:
            where = self._rank_of(root, "broadcast", "root")
            rank, mine = self._scope.rank, self._scope.rank == where
            target = None if out is None else as_out(out, what="broadcast", rank=rank)
            packed = Packed(x, "broadcast", rank) if mine else None
            if packed is not None and target is not None:
                dtype = target.dtype if native(target.dtype) == native(packed.array.dtype) else packed.array.dtype
                check_out(target, packed.array.shape, dtype, [packed.array], what="broadcast", rank=rank)

            async def body(ch: Channel) -> Any:
                if packed is not None:
                    await self._spread(ch, packed.meta, packed.data, where, None)
                    if target is not None:
                        if out is not x:
                            await fill(ch, packed.array, target)
                        return out
                    return _given_back(x, packed)

                def place(meta: bytes, nbytes: int) -> Array | None:
                    return direct(target, self._fitting(meta, target, where, "broadcast"))

                meta, data, landed = await self._spread(ch, b"", None, where, place)
                if target is None:
                    return array_of(meta, data)
                if not landed:
                    await fill(ch, array_of(meta, data), target)
                return out

            return f"broadcast root={where}", body

        return self._made(turn, timeout, prepare)

    async def _spread(
        self, ch: Channel, meta: bytes, data: Array | None, root: int,
        place: Callable[[bytes, int], Array | None] | None,
    ) -> tuple[bytes, Array, bool]:  # fmt: skip
        """Root's (meta, data) on every rank, and whether the data landed where ``place`` wanted it."""
        mine = None if data is None else blob_of(meta, data, 0, _ANNOUNCE_BYTES_MAX)
        blob = await announce(ch, mine, root)
        _, meta, nbytes, small = read_blob(blob) if data is None else (0, meta, data.nbytes, None)
        wanted = place(meta, nbytes) if place is not None else None
        if small is not None:
            if wanted is not None:
                wanted[:] = small
            return meta, small, wanted is not None
        if data is not None and nbytes <= _ANNOUNCE_BYTES_MAX:
            return meta, data, False
        buffer = data if data is not None else wanted if wanted is not None else np.empty(nbytes, np.uint8)
        if ch.size > 1:
            await self._chosen("broadcast", nbytes, count=nbytes).run(ch, buffer, root)
        return meta, buffer, wanted is not None

    def _fitting(self, meta: bytes, target: Array | None, source: int, what: str) -> ArrayMeta:
        """Checks what comes against ``out``: MismatchError if it does not fit."""
        came = parse(meta)
        if target is not None and (came.shape != target.shape or came.dtype != native(target.dtype)):
            raise MismatchError(
                f"{what}: rank {source} gave shape {came.shape} of {came.dtype}, but out on rank {self._scope.rank} "
                f"has shape {target.shape} of {target.dtype}"
            )
        return came

    def gather(
        self, x: Any, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[list[Any] | None]:
        """Every rank's array on ``root``, a list in rank order (shapes and dtypes may differ); None elsewhere."""
        turn = self._turn("gather", name)

        def prepare() -> tuple[str, Body]:
            where = self._rank_of(root, "gather", "root")
            packed = Packed(x, "gather", self._scope.rank)

            async def body(ch: Channel) -> Any:
                parcels = await self._collected(ch, packed.meta, packed.data, where)
                return None if parcels is None else _own(parcels, ch.rank, packed)

            return f"gather root={where}", body

        return self._made(turn, timeout, prepare)

    async def _collected(self, ch: Channel, meta: bytes, data: Array, root: int) -> list[Any] | None:
        algorithm = self._chosen("gather", 1024 * ch.size)  # sizes differ per rank, so only the number of ranks counts
        parcels: list[Any] | None = await algorithm.run(ch, meta, data, root)
        return parcels

    def all_gather(
        self, x: Any, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[Any]:
        """Every rank's array on every rank: a list in rank order, or ``out`` of shape (size·n, …) or (size, n, …).

        Shapes and dtypes may differ from rank to rank unless some rank gives ``out``.
        """
        turn = self._turn("all_gather", name)

        def prepare() -> tuple[str, Body]:
            rank, size = self._scope.rank, self._scope.size
            packed = Packed(x, "all_gather", rank)
            target = None if out is None else as_out(out, what="all_gather", rank=rank)
            if target is not None:
                shape = packed.array.shape
                joined = (size * shape[0], *shape[1:]) if shape else (size,)
                fits = joined if target.shape == joined else (size, *shape)
                dtype = target.dtype if native(target.dtype) == native(packed.array.dtype) else packed.array.dtype
                check_out(target, fits, dtype, [packed.array], what="all_gather", rank=rank)

            async def body(ch: Channel) -> Any:
                metas, blocks = await self._shared(ch, packed, target)
                if target is None:
                    return [array_of(meta, block) for meta, block in zip(metas, blocks, strict=True)]
                rows = target.reshape((size, *packed.array.shape)) if target.flags.c_contiguous else None
                each = target.shape[0] // size if target.ndim else 0
                for source, (meta, block) in enumerate(zip(metas, blocks, strict=True)):
                    if rows is not None:
                        place = rows[source]
                    elif target.shape[1:] == packed.array.shape:
                        place = target[source]
                    else:
                        place = target[source * each : (source + 1) * each].reshape(packed.array.shape)
                    await fill(ch, array_of(meta, block), place)
                return out

            return "all_gather", body

        return self._made(turn, timeout, prepare)

    async def _shared(self, ch: Channel, packed: Packed, target: Array | None) -> tuple[list[bytes], list[Array]]:
        """Every rank's description and bytes."""
        flags = 0 if target is None else _HAS_OUT
        blob = blob_of(packed.meta, packed.data, flags, _INLINE_BYTES_MAX)
        heads = [read_blob(each) for each in await share(ch, blob)]
        if any(head[0] & _HAS_OUT for head in heads):
            _all_equal([head[1] for head in heads], "all_gather with out=")
        return [head[1] for head in heads], await self._blocks_of(ch, packed.data, heads)

    async def _blocks_of(
        self, ch: Channel, mine: Array, heads: Sequence[tuple[int, bytes, int, Array | None]]
    ) -> list[Array]:
        """The bytes of all ranks: those that came inline, and the others by an all_gather of known sizes."""
        counts = [0 if head[3] is not None else -(-head[2] // _ALIGN) * _ALIGN for head in heads]
        total = sum(counts)
        buffer = np.empty(total, np.uint8)
        places = [buffer[start:stop] for start, stop in spans(counts)]
        if total:
            own = places[ch.rank]
            if len(own):
                await fill(ch, mine, own[: mine.nbytes])
                own[mine.nbytes :] = 0
            await self._chosen("all_gather", total, count=total).run(ch, buffer, counts)
        return [
            place[: head[2]] if head[3] is None else head[3] for place, head in zip(places, heads, strict=True)
        ]

    def scatter(
        self, parts: Any = None, root: int = 0, out: Any = None,
        *, timeout: float | None = None, name: str | None = None,
    ) -> Posted[Any]:  # fmt: skip
        """My part of root's ``parts`` (a sequence of one array per rank; shapes may differ); others' are ignored."""
        turn = self._turn("scatter", name)

        def prepare() -> tuple[str, Body]:
            rank, where = self._scope.rank, self._rank_of(root, "scatter", "root")
            target = None if out is None else as_out(out, what="scatter", rank=rank)
            packed = self._packed_parts(parts, "scatter") if rank == where else None
            if packed is not None and target is not None:
                own = packed[rank].array
                dtype = target.dtype if native(target.dtype) == native(own.dtype) else own.dtype
                check_out(target, own.shape, dtype, [each.array for each in packed], what="scatter", rank=rank)

            async def body(ch: Channel) -> Any:
                landed = False

                def place(meta: bytes, nbytes: int) -> Array:
                    nonlocal landed
                    wanted = direct(target, self._fitting(meta, target, where, "scatter"))
                    landed = wanted is not None
                    return np.empty(nbytes, np.uint8) if wanted is None else wanted

                parcels = None if packed is None else [Parcel(each.meta, each.data) for each in packed]
                algorithm = self._chosen("scatter", 1024 * ch.size)
                parcel = await algorithm.run(ch, parcels, where, place)
                if target is None:
                    array = array_of(parcel.meta, parcel.data)
                    return array if packed is None else packed[rank].array.copy(order="K")
                if not landed:
                    await fill(ch, array_of(parcel.meta, parcel.data), target)
                return out

            return f"scatter root={where}", body

        return self._made(turn, timeout, prepare)

    def all_to_all(
        self, parts: Any, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[list[Any]]:
        """What every rank has for me, in rank order. ``parts``: one array per rank, of any shapes; an array is split
        along axis 0 as numpy.array_split does."""
        turn = self._turn("all_to_all", name)

        def prepare() -> tuple[str, Body]:
            rank, size = self._scope.rank, self._scope.size
            given = parts
            if not isinstance(parts, (list, tuple)):
                array, _ = as_array(parts, what="all_to_all", rank=rank)
                if array.ndim == 0:
                    raise UsageError(f"all_to_all on rank {rank}: a number cannot be split; pass one array per rank")
                given = [array[start:stop] for start, stop in split_rows(array.shape[0], size)]
            packed = self._packed_parts(given, "all_to_all")

            async def body(ch: Channel) -> Any:
                parcels = [Parcel(each.meta, each.data) for each in packed]
                came = await self._chosen("exchange_all", 1024 * size).run(ch, parcels)
                return _own(came, rank, packed[rank])

            return "all_to_all", body

        return self._made(turn, timeout, prepare)

    def barrier(self, *, timeout: float | None = None, name: str | None = None) -> Posted[None]:
        """Returns once every rank has called it."""
        turn = self._turn("barrier", name)

        def prepare() -> tuple[str, Body]:
            algorithm = self._plan("barrier", lambda: self._chosen("barrier", 0))
            return f"barrier ({algorithm.name})", algorithm.run

        return self._made(turn, timeout, prepare)

    def _packed_parts(self, parts: Any, what: str) -> list[Packed]:
        rank, size = self._scope.rank, self._scope.size
        if parts is None or isinstance(parts, (str, bytes)):
            raise UsageError(f"{what} on rank {rank}: parts must be a sequence of one array per rank ({size})")
        try:
            given = list(parts)
        except TypeError:
            given = [parts]
        if len(given) != size:
            raise UsageError(f"{what} on rank {rank}: {len(given)} parts for {size} ranks; give one array per rank")
        return [Packed(part, f"{what}, part {number}", rank) for number, part in enumerate(given)]


def _given_back(x: Any, packed: Packed) -> Any:
    """Root's result of a broadcast."""
    if isinstance(x, np.ndarray) and x.flags.writeable:
        return x
    copied = packed.array.copy(order="K")
    return copied[()] if packed.scalar else copied


def _own(parcels: Sequence[Any], rank: int, packed: Packed) -> list[Array]:
    """Arrays out of parcels; my own as a copy, since what aiocoll returns is the caller's."""
    return [
        packed.array.astype(native(packed.array.dtype), order="K", copy=True)
        if source == rank
        else array_of(parcel.meta, parcel.data)
        for source, parcel in enumerate(parcels)
    ]


def _all_equal(metas: Sequence[bytes], what: str) -> None:
    kinds = [parse(meta) for meta in metas]
    for rank, kind in enumerate(kinds):
        if (kind.shape, kind.dtype) != (kinds[0].shape, kinds[0].dtype):
            raise MismatchError(
                f"{what}: rank 0 gave shape {kinds[0].shape} of {kinds[0].dtype}, rank {rank} gave shape {kind.shape} "
                f"of {kind.dtype}; they must be equal"
            )
