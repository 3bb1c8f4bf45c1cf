"""Lane: the collectives of one group over another library, as algorithms that the group can choose.

The rule: a rank enters the library only once aiocoll has heard from every member that it makes the same call, and calls
enter it one after the other in the order in which they were made. So what differs is refused, who is dead is named, and
who is late is missed before the library can hang or write.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np

from ...algorithms import Algorithm, find
from ...algorithms.channel import Parcel, Place
from ...algorithms.share import share
from ...endpoint.scope import NAMED
from ...errors import AiocollError, CollectiveTimeoutError, GroupBrokenError, UsageError
from ...ops import Op
from .base import Array, Comm, Library, Pending
from .operands import load, spelled, stand_in

if TYPE_CHECKING:
    from ...endpoint import Channel

_SPIN_SECONDS: Final = 100e-6
_REST_SECONDS: Final = (50e-6, 100e-6, 200e-6, 500e-6, 1e-3)
_OPENING_SECONDS: Final = 60.0
_LETTING_GO_SECONDS: Final = 1.0
_VERDICT_SECONDS: Final = 2.0  # so long aiocoll may take to find out why the library failed

Start = Callable[[Comm], Pending]
T = TypeVar("T")


class Lane:
    """One group's way through the library; its Comm is opened by the first call."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._comm: Comm | None = None
        self._begun: set[int] = set()  # calls that have entered the library and are not over
        self._left: list[Any] = []  # what the library may still write to
        self.collectives: set[str] = set()
        """Those that have gone through the library so far."""
        self.algorithms: dict[str, Algorithm] = {
            name: _named(name, library.name, run)
            for name, run in (
                ("all_reduce", self._all_reduce),
                ("reduce", self._reduce),
                ("reduce_scatter", self._reduce_scatter),
                ("broadcast", self._broadcast),
                ("all_gather", self._all_gather),
                ("gather", self._gather),
                ("scatter", self._scatter),
                ("exchange_all", self._exchange_all),
            )
        }

    def __repr__(self) -> str:
        return f"Lane({self._library.name!r}, {'closed' if self._comm is None else 'open'})"

    def close(self) -> None:
        """Frees the library's half; what never ended keeps its memory."""
        comm, self._comm = self._comm, None
        if comm is not None and not self._left:
            comm.free()

    # -- the collectives

    async def _all_reduce(self, ch: Channel, work: Array, op: Op) -> None:
        await self._folded(ch, work, op, lambda comm, x, name: comm.all_reduce(x, name))

    async def _reduce(self, ch: Channel, work: Array, op: Op, root: int) -> None:
        await self._folded(ch, work, op, lambda comm, x, name: comm.reduce(x, name, root), ch.rank == root)

    async def _reduce_scatter(self, ch: Channel, blocks: Sequence[Array], op: Op, mine: Array) -> None:
        """Blocks differ in length, and few libraries know that: the whole is reduced everywhere."""
        whole = np.concatenate(blocks)
        await self._folded(ch, whole, op, lambda comm, x, name: comm.all_reduce(x, name))
        at = sum(len(block) for block in blocks[: ch.rank])
        mine[:] = whole[at : at + len(mine)]

    async def _folded(
        self, ch: Channel, work: Array, op: Op, start: Callable[[Comm, Array, str], Pending], wanted: bool = True
    ) -> None:
        """Folds ``work`` in place; the result counts where it is ``wanted``."""
        able = spelled(op, work.dtype)
        assert able is not None, "checked when the call was made"
        dtype = stand_in(*able, self._library.reduces)
        assert dtype is not None
        name = able[1]
        x, restore = load(work, op, dtype, name)
        starts: list[Start] = [lambda comm: start(comm, x, name)]
        holes: Array | None = None
        if name in ("MIN", "MAX") and x.dtype.kind == "f":  # NaN wins in NumPy's, and in no library's
            mine = np.isnan(x)
            if any(await share(ch, b"\1" if mine.any() else b"")):
                holes = mine.view(np.uint8)
                starts.append(lambda comm: comm.all_reduce(holes, "MAX"))
        await self._through(ch, starts, (x, holes))
        if holes is not None:
            x[holes.view(np.bool_)] = np.nan
        if restore is not None and wanted:
            restore(x)

    async def _broadcast(self, ch: Channel, buffer: Array, root: int) -> None:
        await self._through(ch, [lambda comm: comm.broadcast(buffer, root)], buffer)

    async def _all_gather(self, ch: Channel, buffer: Array, counts: Sequence[int]) -> None:
        await self._through(ch, [lambda comm: comm.all_gather(buffer, counts, ch.rank)], buffer)

    async def _gather(self, ch: Channel, meta: bytes, data: Array, root: int) -> list[Parcel] | None:
        parcels = [Parcel(meta if rank == root else b"", data if rank == root else data[:0]) for rank in range(ch.size)]
        came = await self._exchange_all(ch, parcels)
        return came if ch.rank == root else None

    async def _scatter(
        self, ch: Channel, parcels: Sequence[Parcel] | None, root: int, place: Place | None = None
    ) -> Parcel:
        nothing = [Parcel(b"", np.empty(0, np.uint8))] * ch.size
        return (await self._exchange_all(ch, nothing if parcels is None else parcels, place, root))[root]

    async def _exchange_all(
        self, ch: Channel, parcels: Sequence[Parcel], place: Place | None = None, only: int | None = None
    ) -> list[Parcel]:
        """Descriptions and lengths travel first, by aiocoll; then every rank's bytes in one exchange."""
        heads = [len(each.data).to_bytes(8, "little") + each.meta for each in parcels]
        coming = await find("exchange_all", "post_all").run(
            ch, [Parcel(b"", np.frombuffer(head, np.uint8)) for head in heads]
        )
        lengths = [int.from_bytes(each.data[:8].tobytes(), "little") for each in coming]
        metas = [each.data[8:].tobytes() for each in coming]
        room = None if place is None or only is None else place(metas[only], lengths[only])
        into = np.empty(sum(lengths), np.uint8) if room is None else room
        out = np.concatenate([each.data for each in parcels])
        counts = [len(each.data) for each in parcels]
        await self._through(ch, [lambda comm: comm.exchange(out, counts, into, lengths)], (out, into))
        at = 0
        found = []
        for meta, length in zip(metas, lengths, strict=True):
            found.append(Parcel(meta, into[at : at + length]))
            at += length
        return found

    # -- into the library and out of it

    async def _through(self, ch: Channel, starts: Sequence[Start], buffers: Any) -> None:
        """Starts operations of the library when it is this call's turn on every rank, and waits for their end."""
        call = ch.call
        if call.number >= NAMED:
            raise UsageError(
                f"{call.label} of group {call.scope.label!r}: backend {self._library.name!r} matches calls by their "
                "order only; leave name= out"
            )
        await self._gate(ch)  # nobody begins before all have come, with the same call
        await self._turn(ch)
        if self._comm is None:
            self._comm = await self._opened(ch)
        begun: list[Pending] = []
        try:
            for start in starts:
                begun.append(start(self._comm))
            if not call.goes_on:  # or a later call would come in between
                self._begun.add(call.number)
            self.collectives.add(call.collective)
            for pending in begun:
                await self._ended(ch, pending)
        except Exception as error:
            failed = error if isinstance(error, AiocollError) else self._failed(ch, error)
            if await self._still_at_it(ch, begun):
                self._left.append((begun, buffers))
                failed.add_note(f"{self._library.title} still holds this call's arrays, and may write to them")
            if failed is error:
                raise
            raise failed from error
        except BaseException:
            self._left.append((begun, buffers))
            raise
        await self._gate(ch)  # nobody leaves, and closes its half of the library, while others are in it

    @staticmethod
    async def _gate(ch: Channel) -> None:
        await find("barrier", "dissemination").run(ch)

    @staticmethod
    async def _still_at_it(ch: Channel, begun: list[Pending]) -> bool:
        """After a failure: whether operations are left that do not end soon."""
        loop = ch.call.endpoint.loop
        until, left = loop.time() + _LETTING_GO_SECONDS, list(begun)
        while True:
            left = [pending for pending in left if not _over(pending)]
            if not left or loop.time() > until:
                return bool(left)
            await _rest(loop, _REST_SECONDS[-1])

    async def _turn(self, ch: Channel) -> None:
        """Waits until all calls that were made before this one have entered the library, or have ended without."""
        call, rests = ch.call, 0
        calls = call.scope.calls
        self._begun &= calls.keys()
        while any(number < call.number and number not in self._begun for number in calls):
            rests = await self._rested(ch, rests, None)
        if any(number > call.number for number in self._begun):
            raise UsageError(
                f"{call.label} of group {call.scope.label!r}: a call that was made after it has begun already; with "
                f"backend {self._library.name!r} calls begin in the order in which they are made"
            )

    async def _opened(self, ch: Channel) -> Comm:
        """The library's half of this group, made by all members together."""
        call, library = ch.call, self._library
        members = [call.endpoint.members[world] for world in ch.ranks]
        meeting = library.invite([member.host for member in members]) if ch.rank == 0 else ""
        meeting = (await share(ch, meeting.encode()))[0].decode()
        ranks, tag, seconds = [member.number for member in members], call.scope.id, min(call.timeout, _OPENING_SECONDS)
        opening = InThread(lambda: library.open(meeting, tag, ranks, ch.rank, seconds))
        await self._ended(ch, opening)
        return opening.result()

    async def _ended(self, ch: Channel, pending: Pending) -> None:
        """Looks until the library is done; in between the loop turns."""
        until, rests, failure = perf_counter() + _SPIN_SECONDS, 0, None
        late = 0.0
        while True:
            if failure is None:
                try:
                    if pending.test():
                        return
                except Exception as error:
                    failure, late = error, ch.call.endpoint.loop.time() + _VERDICT_SECONDS
            elif ch.call.endpoint.loop.time() > late:
                raise self._failed(ch, failure) from failure
            if perf_counter() < until:
                os.sched_yield()
            else:
                rests = await self._rested(ch, rests, failure)

    async def _rested(self, ch: Channel, rests: int, failure: Exception | None) -> int:
        """A turn for the loop; raises where the call has failed meanwhile, or is late."""
        call = ch.call
        loop = call.endpoint.loop
        deadline = call.deadline
        if call.error is None and loop.time() > deadline:
            raise self._failed(ch, failure) from failure
        await _rest(loop, _REST_SECONDS[min(rests, len(_REST_SECONDS) - 1)])
        if call.error is not None:
            raise call.error
        return rests + 1

    def _failed(self, ch: Channel, error: Exception | None) -> AiocollError:
        call, library = ch.call, self._library
        where = f"{call.label} of group {call.scope.label!r} on rank {ch.rank}"
        if error is None:
            text = f"{where}: all ranks had come, and {library.title} was not done after {call.timeout:g} s"
            return CollectiveTimeoutError(text, operation=call.label, elapsed=call.timeout, **call.where())
        text = f"{where}: {library.title} failed: {type(error).__name__}: {str(error).strip()}"
        return GroupBrokenError(text, **call.where())


class InThread(Generic[T]):
    """What a thread of its own does, as an operation under way."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._result: list[T] = []
        self._error: BaseException | None = None
        self._function = function
        self._thread = threading.Thread(target=self._run, name="aiocoll-opening", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result.append(self._function())
        except BaseException as error:
            self._error = error

    def test(self) -> bool:
        """Whether it has ended; raises what it raised."""
        if self._thread.is_alive():
            return False
        self._thread.join()
        if self._error is not None:
            raise self._error
        return True

    def result(self) -> T:
        """What it gave, once it has ended."""
        return self._result[0]


def _over(pending: Pending) -> bool:
    try:
        return pending.test()
    except Exception:  # it has ended badly, which is an end
        return True


async def _rest(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """``asyncio.sleep`` for coroutines that are also stepped where no loop is set."""
    done: asyncio.Future[None] = loop.create_future()
    handle = loop.call_later(seconds, _release, done)
    try:
        await done
    finally:
        handle.cancel()


def _release(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _named(collective: str, name: str, run: Callable[..., Coroutine[Any, Any, Any]]) -> Algorithm:
    """``run`` in the form in which groups choose algorithms; its costs are the library's own business."""
    return Algorithm(
        collective=collective, name=name, run=run, rounds=_free, sent=_none, path=_none, folded=_none, messages=_free,
        keeps_order=False, from_left=False, splits=False, when=_always, needs="", on="", blocked=False, narrow=False,
        parts=(),
    )  # fmt: skip


def _free(p: int) -> float:
    return 0


def _none(p: int, n: int) -> float:
    return 0


def _always(p: int, n: int) -> bool:
    return True
