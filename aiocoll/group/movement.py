"""Moving arrays: broadcast, gather, all_gather, scatter, all_to_all, barrier.

The rule: receivers need to know nothing. Where sizes may differ from rank to rank they travel first (with the data
itself, if it is small), so every later choice rests on facts that all ranks know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ..algorithms import Algorithm, pace, show
from ..algorithms.barrier import roll_call
from ..algorithms.channel import Parcel
from ..algorithms.share import share
from ..algorithms.spread import BLOCK_BYTES, TOTAL, head_of
from ..buffers import as_bytes, as_out, check_out
from ..endpoint import Channel, Scope
from ..endpoint.news import absentees
from ..errors import CollectiveTimeoutError, MismatchError
from ..wire.codec import parse
from .broadcasts import Body, Broadcasts
from .calls import Again, true_or_false
from .exchanges import Exchanges, rows_of, values_of
from .packing import HAS_OUT, Head, Packed, array_of, blob_of, comes_again, direct, read_blob, value_of
from .posted import Posted
from .typed import Dtype, Limits, Out

Array = NDArray[Any]

_ALIGN: Final = 64


class Movement(Broadcasts, Exchanges):
    """See API: gather to barrier."""

    @overload
    def gather(
        self, x: NDArray[Dtype], root: int = 0, **limits: Unpack[Limits]
    ) -> Posted[list[NDArray[Dtype]] | None]: ...
    @overload
    def gather(self, x: Dtype, root: int = 0, **limits: Unpack[Limits]) -> Posted[list[Dtype] | None]: ...
    @overload
    def gather(self, x: Any, root: int = 0, **limits: Unpack[Limits]) -> Posted[list[Any] | None]: ...

    def gather(
        self, x: Any, root: int = 0, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[list[Any] | None]:
        """Every rank's array on ``root``, a list in rank order (shapes and dtypes may differ); None elsewhere."""
        turn = self._turn("gather", name)

        def prepare() -> tuple[str, Body]:
            where = self._rank_of(root, "gather", "root")
            packed = Packed(x, "gather", self._scope.rank)

            async def body(ch: Channel) -> Any:
                parcels = await self._collected(ch, packed.meta, await packed.data(ch), where)
                return None if parcels is None else await values_of(ch, parcels, packed)

            return f"gather root={where}", body

        return self._made(turn, timeout, prepare)

    async def _collected(self, ch: Channel, meta: bytes, data: Array, root: int) -> list[Any] | None:
        parcels: list[Any] | None = await self._blind("gather").run(ch, meta, data, root)
        return parcels

    @overload
    def all_gather(
        self, x: NDArray[Dtype], out: None = None, **limits: Unpack[Limits]
    ) -> Posted[list[NDArray[Dtype]]]: ...
    @overload
    def all_gather(self, x: Dtype, out: None = None, **limits: Unpack[Limits]) -> Posted[list[Dtype]]: ...
    @overload
    def all_gather(self, x: Any, out: None = None, **limits: Unpack[Limits]) -> Posted[list[Any]]: ...
    @overload
    def all_gather(self, x: Any, out: Out, **limits: Unpack[Limits]) -> Posted[Out]: ...

    def all_gather(
        self, x: Any, out: Any = None, *, timeout: float | None = None, name: str | None = None
    ) -> Posted[Any]:
        """Every rank's array on every rank: a list in rank order, or ``out`` of shape (size·n, …) or (size, n, …).

        Shapes and dtypes may differ from rank to rank unless some rank gives ``out``.
        """
        if timeout is None and name is None and type(out) is np.ndarray and self._at_home():
            again = self.all_gather_again(x, out)
            if again is not None:
                return self._posted_again(*again)
        turn = self._turn("all_gather", name)

        def prepare() -> tuple[str, Body]:
            rank, size = self._scope.rank, self._scope.size
            packed = Packed(x, "all_gather", rank)
            target = None if out is None else as_out(out, what="all_gather", rank=rank)
            if target is not None:
                shape = packed.array.shape
                joined = (size * shape[0], *shape[1:]) if shape else (size,)
                fits = joined if target.shape == joined else (size, *shape)
                check_out(target, fits, packed.array.dtype, [packed.array], what="all_gather", rank=rank)
            straight = self._straight("show", "all_gather")
            if straight is not None and target is not None and target is out and comes_again(x) and comes_again(out):
                key = ("all_gather", x.dtype, x.shape, target.shape)
                head = head_of(bytes([HAS_OUT]) + packed.meta, x)
                self._keep_ready(key, "all_gather", "all_gather", self._into_places, head)

            async def body(ch: Channel) -> Any:
                if straight is not None:
                    metas, blocks = await self._shown(ch, straight, packed, target)
                else:
                    metas, blocks = await self._gathered(ch, packed, target)
                if target is None:
                    return [value_of(meta, block) for meta, block in zip(metas, blocks, strict=True)]
                stacked = target.shape[1:] == packed.array.shape
                each = target.shape[0] // size
                for source, (meta, block) in enumerate(zip(metas, blocks, strict=True)):
                    rows = target[source, ...] if stacked else target[source * each : (source + 1) * each]
                    landed = np.may_share_memory(block, target)
                    if landed and parse(meta).fortran:  # it lies where it belongs, but in its sender's order
                        apart = np.empty_like(block)
                        await pace.copy(ch, block, apart)
                        block, landed = apart, False
                    if not landed:
                        await pace.copy(ch, array_of(meta, block), rows)
                return out

            return "all_gather", body

        return self._made(turn, timeout, prepare)

    def all_gather_again(self, x: Any, out: Any) -> Again | None:
        """The same for arrays like those of a call before; None for others. ``out`` may be a list of one flat array per
        rank, which its caller has checked: contiguous, writeable, of the dtype and length of ``x``."""
        if type(x) is not np.ndarray or not x.flags.carray:
            return None
        if type(out) is list:
            ready = self._ready(("all_gather", x.dtype, x.shape, (self._scope.size, *x.shape)))
            places = out
        elif type(out) is np.ndarray and out.flags.carray and out.dtype is x.dtype:
            ready = self._ready(("all_gather", x.dtype, x.shape, out.shape))
            if ready is None or np.may_share_memory(x, out):
                return None
            flat, each = out.reshape(-1), x.size
            places = [flat[rank * each : (rank + 1) * each] for rank in range(self._scope.size)]
        else:
            return None
        if ready is None:
            return None
        channel = ready.channel(self.timeout, out)
        return channel, self._live(channel.call, ready.run, channel, x.reshape(-1), places, ready.meta)

    async def _into_places(self, ch: Channel, data: Array, places: Sequence[Array], head: bytes) -> None:
        """Every rank's array into the place of its rank: most likely all are alike, as before."""

        def place(source: int, came: bytes, nbytes: int) -> Array:
            what, like = self._fitting(came[1:], None, source, "all_gather"), parse(head[TOTAL.size + 1 :])
            if (what.shape, what.dtype) != (like.shape, like.dtype):
                raise MismatchError(
                    f"all_gather with out=: rank {source} gave shape {what.shape} of {what.dtype}, rank "
                    f"{self._scope.rank} shape {like.shape} of {like.dtype}"
                )
            return np.empty(nbytes, np.uint8) if what.fortran != like.fortran else places[source].view(np.uint8)

        if data.nbytes <= BLOCK_BYTES:
            parcels = await show.again(ch, head, data, places, place)
        else:
            parcels = await show.direct(ch, head[TOTAL.size :], data, place, places, places[ch.rank])
        for source, parcel in enumerate(parcels):
            target = places[source]
            if parcel is not None and not np.may_share_memory(parcel.data, target):
                shape = parse(head[TOTAL.size + 1 :]).shape
                await pace.copy(ch, array_of(parcel.meta[1:], parcel.data), target.reshape(shape))

    async def _shown(
        self, ch: Channel, straight: Algorithm, packed: Packed, target: Array | None
    ) -> tuple[list[bytes], list[Array]]:
        """Every rank's description and bytes, where all ranks share memory."""
        data = await packed.data(ch)
        places: list[Array] | None = None
        if target is not None and target.flags.c_contiguous and target.dtype == parse(packed.meta).dtype:
            flat, each = as_bytes(target), data.nbytes
            places = [flat[rank * each : (rank + 1) * each] for rank in range(ch.size)]

        def place(source: int, meta: bytes, nbytes: int) -> Array:
            return np.empty(nbytes, np.uint8) if places is None or nbytes != data.nbytes else places[source]

        own = None if places is None else places[ch.rank]
        flags = bytes([0 if target is None else HAS_OUT])
        parcels = await straight.run(ch, flags + packed.meta, data, place, None, own)
        if any(parcel.meta[0] & HAS_OUT for parcel in parcels):
            _all_equal([parcel.meta[1:] for parcel in parcels], "all_gather with out=")
        if target is None:  # mine is to be a copy, too
            own = np.empty_like(data)
            await pace.copy(ch, data, own)
            parcels[ch.rank] = Parcel(parcels[ch.rank].meta, own)
        return [parcel.meta[1:] for parcel in parcels], [parcel.data for parcel in parcels]

    async def _gathered(self, ch: Channel, packed: Packed, target: Array | None) -> tuple[list[bytes], list[Array]]:
        """Every rank's description and bytes."""
        data = await packed.data(ch)
        blob = blob_of(packed.meta, data, 0 if target is None else HAS_OUT)
        heads = [read_blob(each) for each in await share(ch, blob)]
        if any(head.flags & HAS_OUT for head in heads):
            _all_equal([head.meta for head in heads], "all_gather with out=")
        into = None
        if target is not None and target.flags.c_contiguous and target.dtype == parse(packed.meta).dtype:
            into = as_bytes(target)
        return [head.meta for head in heads], await self._blocks_of(ch, data, heads, into)

    async def _blocks_of(
        self, ch: Channel, mine: Array, heads: Sequence[Head], into: Array | None = None
    ) -> list[Array]:
        """The bytes of all ranks: those that came inline, and the others by an all_gather of known sizes (into the
        memory that is to hold them all one after the other, if given)."""
        # All blocks are alike if some rank wants them close together.
        even = any(head.flags & HAS_OUT for head in heads)
        step = 1 if even else _ALIGN
        counts = [0 if head.data is not None else -(-head.nbytes // step) * step for head in heads]
        total = sum(counts)
        buffer = np.empty(total, np.uint8) if into is None else into
        places = rows_of(buffer, counts)
        if total:
            own = places[ch.rank]
            if len(own):
                await pace.copy(ch, mine, own[: mine.nbytes])
                own[mine.nbytes :] = 0
            await self._chosen("all_gather", total).run(ch, buffer, counts)
        return [
            place[: head.nbytes] if head.data is None else head.data for place, head in zip(places, heads, strict=True)
        ]

    @overload
    def scatter(self, parts: None = None, root: int = 0, out: None = None, **limits: Unpack[Limits]) -> Posted[Any]: ...
    @overload
    def scatter(
        self, parts: Sequence[NDArray[Dtype]] | None, root: int = 0, out: None = None, **limits: Unpack[Limits]
    ) -> Posted[NDArray[Dtype]]: ...
    @overload
    def scatter(self, parts: Any = None, root: int = 0, *, out: Out, **limits: Unpack[Limits]) -> Posted[Out]: ...
    @overload
    def scatter(self, parts: Any = None, root: int = 0, out: Any = None, **limits: Unpack[Limits]) -> Posted[Any]: ...

    def scatter(
        self, parts: Any = None, root: int = 0, out: Any = None,
        *, timeout: float | None = None, name: str | None = None,
    ) -> Posted[Any]:  # fmt: skip
        """My part of root's ``parts``, or ``out``, which must have its shape and dtype (MismatchError on all if not).

        ``parts``: on root a sequence of one array per rank (or one array with a row per rank), whose shapes and dtypes
        may differ; ignored on the others.
        """
        turn = self._turn("scatter", name)

        def prepare() -> tuple[str, Body]:
            rank, where = self._scope.rank, self._rank_of(root, "scatter", "root")
            target = None if out is None else as_out(out, what="scatter", rank=rank)
            packed = self._packed_parts(parts, "scatter") if rank == where else None
            if packed is not None and target is not None:
                own = packed[rank].array
                check_out(target, own.shape, own.dtype, [each.array for each in packed], what="scatter", rank=rank)

            async def body(ch: Channel) -> Any:
                landed, flags = False, 0 if target is None else HAS_OUT

                def place(meta: bytes, nbytes: int) -> Array:
                    nonlocal landed
                    wanted = direct(target, self._fitting(meta[1:], target, where, "scatter"))
                    landed = wanted is not None
                    return np.empty(nbytes, np.uint8) if wanted is None else wanted

                parcels = None
                if packed is not None:
                    parcels = [Parcel(bytes([flags]) + each.meta, await each.data(ch)) for each in packed]
                parcel = await self._blind("scatter").run(ch, parcels, where, place)
                if parcel.meta[0] & HAS_OUT:  # nobody is through before everybody knows that its part fits
                    await self._barrier().run(ch)
                if target is None:
                    return value_of(parcel.meta[1:], parcel.data) if packed is None else await packed[rank].copied(ch)
                if not landed:
                    await pace.copy(ch, array_of(parcel.meta[1:], parcel.data), target)
                return out

            return f"scatter root={where}", body

        return self._made(turn, timeout, prepare)

    def barrier(self, *, timeout: float | None = None, name: str | None = None) -> Posted[None]:
        """Returns once every rank has called it."""
        if timeout is None and name is None and self._at_home():
            again = self.barrier_again()
            if again is not None:
                return self._posted_again(*again)
        turn = self._turn("barrier", name)

        def prepare() -> tuple[str, Body]:
            algorithm = self._barrier()
            description = f"barrier ({algorithm.name})"
            self._keep_ready("barrier", "barrier", description, algorithm.run)
            return description, algorithm.run

        return self._made(turn, timeout, prepare)

    def monitored_barrier(
        self, timeout: float | None = None, wait_all_ranks: bool = False, *, name: str | None = None
    ) -> Posted[None]:
        """A barrier that says who did not come: returns once every rank has called it, and fails on all ranks or none.

        Late, it raises CollectiveTimeoutError on every rank, which names the first rank that is missing, or with
        ``wait_all_ranks`` all of them (``.missing``, sorted), and breaks the group. Slower than ``barrier``.
        """

        def prepare() -> tuple[str, Body]:
            true_or_false(wait_all_ranks, f"monitored_barrier on rank {self._scope.rank}", "wait_all_ranks")
            return "monitored_barrier", roll_call

        called = self._made(self._turn("monitored_barrier", name), timeout, prepare)
        return Posted(self._monitored(called, wait_all_ranks), lambda _: called.close(), "monitored_barrier")

    async def _monitored(self, called: Posted[None], wait_all_ranks: bool) -> None:
        try:
            await called
        except CollectiveTimeoutError as error:
            missing = error.missing if wait_all_ranks else error.missing[:1]
            if not missing:
                raise
            raise _absent(self._scope, missing, error) from error

    def barrier_again(self) -> Again | None:
        """The same after a first one; None before it."""
        ready = self._ready("barrier")
        if ready is None:
            return None
        channel = ready.channel(self.timeout)
        return channel, self._live(channel.call, ready.run, channel)


def _absent(scope: Scope, missing: tuple[int, ...], error: CollectiveTimeoutError) -> CollectiveTimeoutError:
    """A monitored barrier that was late, naming some of those that are missing."""
    members = [(rank, scope.endpoint.members[scope.ranks[rank]]) for rank in missing]
    who = ", ".join(f"rank {rank}: {member.host}, pid {member.pid}" for rank, member in members)
    named = f"Rank {missing[0]}" if len(missing) == 1 else f"Ranks {', '.join(map(str, missing))}"
    text = (
        f"[Rank {scope.rank}] {named} failed to pass monitoredBarrier in {error.elapsed * 1e3:.0f} ms "
        f"({error.operation} of group {scope.label!r}; {who}); the group is broken"
    )
    return CollectiveTimeoutError(
        text, operation=error.operation, elapsed=error.elapsed, group=error.group, collective=error.collective,
        call=error.call, **absentees(scope, [scope.ranks[rank] for rank in missing]),
    )  # fmt: skip


def _all_equal(metas: Sequence[bytes], what: str) -> None:
    kinds = [parse(meta) for meta in metas]
    for rank, kind in enumerate(kinds):
        if (kind.shape, kind.dtype) != (kinds[0].shape, kinds[0].dtype):
            raise MismatchError(
                f"{what}: rank 0 gave shape {kinds[0].shape} of {kinds[0].dtype}, rank {rank} gave shape {kind.shape} "
                f"of {kind.dtype}; they must be equal"
            )
