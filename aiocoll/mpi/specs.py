"""Buffer specifications: an array, ``[array, MPI.DOUBLE]``, ``[array, count, …]``, ``[array, counts, displs, …]``.

The rule: a specification is judged before anything is sent, and what travels is flat and contiguous; what is to be
filled is the caller's own memory, or a copy that ``settle()`` writes back.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import errors
from ..buffers import as_array, as_out
from .constants import IN_PLACE
from .datatypes import DATATYPE_NULL, Datatype, datatype_of, seen_as
from .exceptions import CountError, TruncateError, UsageError, translated

Array = NDArray[Any]
Settle = Callable[[], None]


@dataclass(slots=True)
class Region:
    """One run of elements."""

    flat: Array
    datatype: Datatype
    where: str
    writes_back: Settle | None = None

    def settle(self) -> None:
        """Brings ``flat`` into the caller's memory, where it is not that."""
        if self.writes_back is not None:
            self.writes_back()

    def fill(self, data: Any) -> None:
        """Takes a result of exactly this many elements."""
        given = np.asarray(data).reshape(-1)
        if given.size != self.flat.size:
            raise TruncateError(
                f"{self.where}: {given.size} elements of {given.dtype} came, and the buffer is for {self.flat.size}"
            )
        self.take(given)

    def take(self, data: Any) -> int:
        """Takes a message of at most as many elements; returns its bytes."""
        given = self._as_mine(np.asarray(data).reshape(-1))
        if given.size > self.flat.size:
            raise TruncateError(
                f"{self.where}: a message of {given.size} elements of {given.dtype} came, and the buffer has room for "
                f"{self.flat.size}; the message is consumed (Probe first to learn its size)"
            )
        self.flat[: given.size] = given
        self.settle()
        return int(given.nbytes)

    def _as_mine(self, given: Array) -> Array:
        have, want = given.dtype.newbyteorder("="), self.flat.dtype.newbyteorder("=")
        if have == want:
            return given
        try:
            return seen_as(given, datatype_of(want), self.where)
        except UsageError:
            raise TruncateError(
                f"{self.where}: elements of {have} came, and the buffer is for {want}; send and receive the same type"
            ) from None

    def blocks(self, size: int) -> list[Array]:
        """As many equal parts."""
        each = self.flat.size // size
        return [self.flat[at * each : (at + 1) * each] for at in range(size)]


@dataclass(slots=True)
class Blocks:
    """One run of elements for each rank, somewhere in one buffer."""

    parts: list[Array]
    datatype: Datatype
    where: str
    writes_back: Settle | None = None

    def fill(self, rank: int, data: Any) -> None:
        """Takes what came from ``rank``."""
        Region(self.parts[rank], self.datatype, f"{self.where}, from rank {rank}").fill(data)

    def settle(self) -> None:
        """Brings the parts into the caller's memory, where they are not that."""
        if self.writes_back is not None:
            self.writes_back()


def is_in_place(spec: Any) -> bool:
    """Whether the caller wrote MPI.IN_PLACE."""
    return spec is IN_PLACE


def reading(spec: Any, where: str, rank: int) -> Region:
    """What a call only reads."""
    return _region(spec, f"{where} on rank {rank}", rank, write=False)


def writing(spec: Any, where: str, rank: int) -> Region:
    """What a call fills (and may read)."""
    return _region(spec, f"{where} on rank {rank}", rank, write=True)


def even(region: Region, size: int, where: str) -> Region:
    """The same, once it is known to consist of ``size`` equal parts."""
    if region.flat.size % size:
        raise UsageError(
            f"{where}: a buffer of {region.flat.size} elements cannot be one equal part for each of {size} ranks; "
            f"{'Reduce_scatter' if where == 'Reduce_scatter_block' else where + 'v'} takes counts"
        )
    return region


def _region(spec: Any, where: str, rank: int, *, write: bool) -> Region:
    if type(spec) is np.ndarray and spec.flags.carray and not spec.dtype.hasobject:  # the usual case
        return Region(spec.reshape(-1), datatype_of(spec.dtype), where)
    buffer, rest, named = _taken_apart(spec, where)
    if len(rest) > 2:
        raise UsageError(f"{where}: {_shape_of(spec)} is for v-calls; here it is [buffer, count, datatype]")
    flat, datatype, back = _memory(buffer, named, where, rank, write=write)
    counts = rest[0] if rest else None
    displacement = rest[1] if len(rest) > 1 else 0
    if isinstance(counts, tuple) and len(counts) == 2:
        counts, displacement = counts
    at = 0 if displacement is None else _whole(displacement, where, "displacement")
    count = datatype.items_in(flat.size) - at if counts is None else _whole(counts, where, "count")
    return _cut(flat, datatype, count, at, where, back)


def vector(spec: Any, size: int, where: str, rank: int, *, write: bool) -> Blocks:
    """What a v-call reads or fills: a part for each of ``size`` ranks."""
    here = f"{where} on rank {rank}"
    buffer, rest, named = _taken_apart(spec, here)
    counts = rest[0] if rest else None
    displacements = rest[1] if len(rest) > 1 else None
    if isinstance(counts, tuple) and len(counts) == 2 and len(rest) == 1 and not _is_whole(counts[0]):
        counts, displacements = counts
    flat, datatype, back = _memory(buffer, named, here, rank, write=write)
    if datatype.derived:
        raise UsageError(f"{here}: {datatype!r} has gaps, which v-calls do not take; copy into a contiguous array")
    if counts is None:
        lengths = [flat.size // size + (each < flat.size % size) for each in range(size)]
    else:
        lengths = _wholes(counts, size, here, "counts")
    if displacements is None:
        starts = [0, *np.cumsum(lengths).tolist()][:size]
    else:
        starts = _wholes(displacements, size, here, "displacements")
    parts = []
    for other, (at, length) in enumerate(zip(starts, lengths, strict=True)):
        if length < 0 or at < 0 or (length and at + length > flat.size):
            raise UsageError(
                f"{here}: the part of rank {other}, {length} elements from {at} on, does not lie in a buffer of "
                f"{flat.size} elements"
            )
        parts.append(flat[at : at + length])
    if write:
        _refuse_overlap(starts, lengths, here)
    return Blocks(parts, datatype, here, back)


def _refuse_overlap(starts: Sequence[int], lengths: Sequence[int], where: str) -> None:
    spans = sorted((at, at + length, rank) for rank, (at, length) in enumerate(zip(starts, lengths, strict=True)))
    spans = [span for span in spans if span[1] > span[0]]
    for before, after in zip(spans, spans[1:], strict=False):
        if before[1] > after[0]:
            raise UsageError(
                f"{where}: the parts of ranks {before[2]} and {after[2]} overlap in the buffer; displacements must "
                "leave room for the counts"
            )


def _taken_apart(spec: Any, where: str) -> tuple[Any, list[Any], Datatype | None]:
    """(buffer, counts and displacements, datatype) of any way to write it."""
    if spec is IN_PLACE:
        raise UsageError(f"{where}: MPI.IN_PLACE does not stand here; MPI says which argument may be it")
    if not isinstance(spec, list | tuple):
        return spec, [], None
    if not 1 <= len(spec) <= 4:
        raise UsageError(f"{where}: {_shape_of(spec)}; a buffer is [array, counts, displacements, datatype]")
    buffer, *rest = spec
    named: Datatype | None = None
    if rest and (rest[-1] is None and len(rest) > 1 or isinstance(rest[-1], Datatype | str)):
        last = rest.pop()
        if isinstance(last, str):
            try:
                last = Datatype.fromcode(last)
            except TypeError:
                raise UsageError(f"{where}: {last!r} is no type code; such are 'd', 'i', 'f8'") from None
        named = last
    if named is DATATYPE_NULL:
        raise UsageError(f"{where}: MPI.DATATYPE_NULL is no type of elements")
    return buffer, rest, named


def _memory(
    buffer: Any, named: Datatype | None, where: str, rank: int, *, write: bool
) -> tuple[Array, Datatype, Settle | None]:
    """A buffer as flat elements, contiguous ones in the order in which they lie in memory."""
    if buffer is None:
        flat: Array = np.empty(0, np.uint8 if named is None else named.dtype)
        return flat, named or datatype_of(flat.dtype), None
    if isinstance(buffer, bool | int | float | complex | str | list | tuple | dict | set):
        raise UsageError(
            f"{where}: {type(buffer).__name__} has no memory to send from or receive into; pass an array, or use the "
            "lower-case call, which takes objects"
        )
    what = where.partition(" on rank ")[0]
    try:
        array = as_out(buffer, what=what, rank=rank) if write else as_array(buffer, what=what, rank=rank)[0]
    except errors.UsageError as error:
        raise translated(error) from error.__cause__
    back: Settle | None = None
    if array.flags.c_contiguous or array.flags.f_contiguous:
        flat = array.reshape(-1, order="A")
    else:
        flat = np.ascontiguousarray(array).reshape(-1)
        if write:
            back = functools.partial(_put_back, array, flat)
    datatype = datatype_of(flat.dtype) if named is None else named
    return seen_as(flat, datatype, where), datatype, back


def _put_back(array: Array, flat: Array) -> None:
    np.copyto(array, flat.reshape(array.shape))


def _cut(flat: Array, datatype: Datatype, count: int, at: int, where: str, back: Settle | None) -> Region:
    """``count`` items from item ``at`` on."""
    if count < 0 or at < 0:
        raise CountError(f"{where}: count {count} and displacement {at} must not be negative")
    if not datatype.derived:
        if at + count > flat.size:
            raise UsageError(
                f"{where}: {count} elements from {at} on do not lie in a buffer of {flat.size} elements of "
                f"{datatype.name or datatype.dtype}"
            )
        return Region(flat[at : at + count], datatype, where, back)
    places = datatype.places(count, at)
    if places.size and not 0 <= int(places.min()) <= int(places.max()) < flat.size:
        raise UsageError(
            f"{where}: {count} items of {datatype!r} reach beyond a buffer of {flat.size} elements of "
            f"{datatype.dtype}: from element {places.min()} to element {places.max()}"
        )
    picked = flat[places]

    def put() -> None:
        flat[places] = picked
        if back is not None:
            back()

    return Region(picked, datatype, where, put)


def _is_whole(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool | np.ndarray)


def _whole(value: Any, where: str, what: str) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{where}: {what} {value!r} must be an integer") from None


def _wholes(values: Any, size: int, where: str, what: str) -> list[int]:
    if _is_whole(values):
        values = [values] * size
    try:
        found = [operator.index(each) for each in values]
    except TypeError:
        raise UsageError(f"{where}: {what} {values!r} must be a sequence of integers, one per rank") from None
    if len(found) != size:
        raise UsageError(f"{where}: {len(found)} {what} for {size} rank{'s' * (size > 1)}; one per rank is needed")
    return found


def _shape_of(spec: Any) -> str:
    return f"[{', '.join(type(each).__name__ for each in spec)}]"
