"""Datatypes: a NumPy dtype under MPI's name, and patterns of such elements in memory.

The rule: a datatype never changes what bytes mean without the caller's asking; where an array's own dtype and the
datatype named beside it contradict each other, that is refused (an MPI library would send garbage).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import constants
from .exceptions import UsageError, outside

Array = NDArray[Any]
DType = np.dtype[Any]


class Datatype:
    """What a buffer holds: elements of ``dtype``, one after the other or in a pattern that repeats every ``extent``."""

    __slots__ = ("_extent", "_freed", "_name", "_pattern", "dtype")

    def __init__(self, dtype: Any, name: str = "", pattern: Array | None = None, extent: int | None = None) -> None:
        """``pattern``: where its elements lie, and ``extent``: where the next such item begins, both in elements."""
        self.dtype: DType = np.dtype(dtype)
        self._name = name
        self._pattern = pattern
        self._extent = extent if extent is not None else 1 if pattern is None else int(pattern.max(initial=-1)) + 1
        self._freed = False

    @property
    def name(self) -> str:
        """MPI's name of it."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._name = name

    def Get_name(self) -> str:
        """MPI's name of it."""
        return self._name

    def Set_name(self, name: str) -> None:
        """Gives it a name."""
        self._name = name

    @property
    def size(self) -> int:
        """Bytes that one item has to say."""
        return self.dtype.itemsize * self.elements

    @property
    def extent(self) -> int:
        """Bytes from one item to the next."""
        return self.dtype.itemsize * self._extent

    def Get_size(self) -> int:
        """Bytes that one item has to say."""
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Lower bound (always 0) and extent in bytes."""
        return 0, self.extent

    @property
    def elements(self) -> int:
        """How many elements of ``dtype`` one item has."""
        return 1 if self._pattern is None else len(self._pattern)

    @property
    def is_predefined(self) -> bool:
        """Whether this is one of MPI's own."""
        return _NAMED.get(self._name) is self

    is_named = is_predefined

    @property
    def typechar(self) -> str:
        """NumPy's letter for it."""
        return self.dtype.char

    @property
    def typestr(self) -> str:
        """NumPy's string for it."""
        return self.dtype.str[1:]

    def tocode(self) -> str:
        """NumPy's letter for it."""
        return self.dtype.char

    @classmethod
    def fromcode(cls, code: str) -> Datatype:
        """The datatype that NumPy means by ``code``."""
        return datatype_of(np.dtype(code))

    # ------------------------------------------------------------------------------------------ making others

    def Create_contiguous(self, count: int) -> Datatype:
        """``count`` items one after the other."""
        return self.Create_vector(count, 1, 1)

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """``count`` blocks of ``blocklength`` items whose beginnings are ``stride`` items apart."""
        starts = np.arange(count)[:, None] * stride + np.arange(blocklength)
        return self._made(starts.reshape(-1), (count - 1) * stride + blocklength if count else 0)

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Blocks of so many items that begin at so many items from the start."""
        if len(blocklengths) != len(displacements):
            raise UsageError(
                f"Create_indexed: {len(blocklengths)} block lengths and {len(displacements)} displacements; give one "
                "of each per block"
            )
        blocks = [at + np.arange(count) for at, count in zip(displacements, blocklengths, strict=True)]
        starts = np.concatenate([np.zeros(0, np.intp), *blocks])
        return self._made(starts, int(starts.max(initial=-1)) + 1)

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """The same with blocks of equal length."""
        return self.Create_indexed([blocklength] * len(displacements), displacements)

    def Get_true_extent(self) -> tuple[int, int]:
        """Where its first element begins and how far its last one reaches, in bytes."""
        return self.true_lb, self.true_extent

    @property
    def lb(self) -> int:
        """Where it begins, in bytes: always at 0."""
        return 0

    @property
    def ub(self) -> int:
        """Where the next item begins, in bytes."""
        return self.extent

    @property
    def true_lb(self) -> int:
        """Where its first element begins, in bytes."""
        return 0 if self._pattern is None else int(min(self._pattern, default=0)) * self.dtype.itemsize

    @property
    def true_extent(self) -> int:
        """Bytes from its first element to the end of its last."""
        last = 1 if self._pattern is None else int(self._pattern.max(initial=-1)) + 1
        return last * self.dtype.itemsize - self.true_lb

    @property
    def true_ub(self) -> int:
        """Where its last element ends, in bytes."""
        return self.true_lb + self.true_extent

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = constants.ORDER_C
    ) -> Datatype:
        """The part of ``subsizes`` at ``starts`` of an array of ``sizes``."""
        whole = np.arange(int(np.prod(sizes))).reshape(sizes, order="C" if order == constants.ORDER_C else "F")
        if any(at < 0 or at + n > full for at, n, full in zip(starts, subsizes, sizes, strict=True)):
            raise UsageError(f"Create_subarray: {subsizes} at {starts} is no part of an array of {sizes}")
        part = whole[tuple(slice(at, at + n) for at, n in zip(starts, subsizes, strict=True))]
        return self._made(part.reshape(-1, order="C" if order == constants.ORDER_C else "F"), whole.size)

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """The same whose next item begins ``extent`` bytes on; ``lb`` must be 0."""
        if lb != 0 or extent % self.dtype.itemsize:
            raise UsageError(
                f"Create_resized: lb={lb}, extent={extent}: lb must be 0 and extent a multiple of "
                f"{self.dtype.itemsize} bytes, the size of one {self.dtype}"
            )
        pattern = np.zeros(1, np.intp) if self._pattern is None else self._pattern
        return Datatype(self.dtype, "", pattern, extent // self.dtype.itemsize)

    def Dup(self) -> Datatype:
        """The same again."""
        return Datatype(self.dtype, self._name, self._pattern, self._extent)

    def Commit(self) -> Datatype:
        """Nothing need be done before it is used."""
        return self

    def Free(self) -> None:
        """It is not used any more."""
        self._freed = True

    free = Free

    def _made(self, starts: Array, items: int) -> Datatype:
        """Items at ``starts``, which repeat every ``items`` items."""
        inner = np.zeros(1, np.intp) if self._pattern is None else self._pattern
        pattern = (starts[:, None] * self._extent + inner).reshape(-1)
        return Datatype(self.dtype, "", pattern, items * self._extent)

    # ------------------------------------------------------------------------------------------ for buffer specs

    @property
    def derived(self) -> bool:
        """Whether its elements lie in a pattern."""
        return self._pattern is not None

    def places(self, count: int, displacement: int) -> Array:
        """Where the elements of ``count`` items lie, in elements from the start of the buffer."""
        if self._freed:
            raise UsageError(f"datatype {self!r} was freed")
        pattern = np.zeros(1, np.intp) if self._pattern is None else self._pattern
        starts = (displacement + np.arange(count)) * self._extent
        found: Array = (starts[:, None] + pattern).reshape(-1)
        return found

    def items_in(self, elements: int) -> int:
        """How many whole items ``elements`` elements of memory hold."""
        return elements // self._extent if self._extent else 0

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Datatype):
            return NotImplemented
        same = self._pattern is other._pattern or (
            self._pattern is not None and other._pattern is not None and np.array_equal(self._pattern, other._pattern)
        )
        return self.dtype == other.dtype and self._extent == other._extent and same

    def __hash__(self) -> int:
        return hash((self.dtype, self._extent))

    def __bool__(self) -> bool:
        return self._name != "MPI_DATATYPE_NULL"

    def __getattr__(self, name: str) -> Any:
        raise outside("Datatype", name)

    def __repr__(self) -> str:
        if self._pattern is None:
            return f"Datatype({self._name or self.dtype})"
        return f"Datatype({self.elements} of {self.dtype} every {self._extent})"


def _pair(value: str) -> DType:
    return np.dtype([("value", value), ("index", "i4")], align=True)


# Numbers under all the names that C, C++ and Fortran have for them.
_TYPES: dict[str, Any] = {
    "BYTE": "u1", "PACKED": "u1", "CHAR": "u1", "CHARACTER": "u1", "SIGNED_CHAR": "i1", "UNSIGNED_CHAR": "u1",
    "WCHAR": "U1", "SHORT": "h", "SIGNED_SHORT": "h", "UNSIGNED_SHORT": "H", "INT": "i", "SIGNED_INT": "i",
    "UNSIGNED": "I", "UNSIGNED_INT": "I", "LONG": "l", "SIGNED_LONG": "l", "UNSIGNED_LONG": "L", "LONG_LONG": "q",
    "SIGNED_LONG_LONG": "q", "UNSIGNED_LONG_LONG": "Q", "FLOAT": "f", "DOUBLE": "d", "LONG_DOUBLE": "g",
    "C_BOOL": "?", "CXX_BOOL": "?", "BOOL": "?", "INT8_T": "i1", "INT16_T": "i2", "INT32_T": "i4", "INT64_T": "i8",
    "UINT8_T": "u1", "UINT16_T": "u2", "UINT32_T": "u4", "UINT64_T": "u8", "SINT8_T": "i1", "SINT16_T": "i2",
    "SINT32_T": "i4", "SINT64_T": "i8", "AINT": "p", "OFFSET": "i8", "COUNT": "i8", "COMPLEX": "F", "F_COMPLEX": "F",
    "C_COMPLEX": "F", "C_FLOAT_COMPLEX": "F", "C_DOUBLE_COMPLEX": "D", "C_LONG_DOUBLE_COMPLEX": "G",
    "DOUBLE_COMPLEX": "D", "F_DOUBLE_COMPLEX": "D", "COMPLEX8": "c8", "COMPLEX16": "c16", "INTEGER": "i4",
    "LOGICAL": "i4",
    "LOGICAL1": "i1", "LOGICAL2": "i2", "LOGICAL4": "i4", "LOGICAL8": "i8",
    "REAL": "f4", "DOUBLE_PRECISION": "f8", "INTEGER1": "i1", "INTEGER2": "i2", "INTEGER4": "i4",
    "INTEGER8": "i8", "REAL2": "f2", "REAL4": "f4", "REAL8": "f8", "FLOAT16_T": "f2", "FLOAT32_T": "f4",
    "FLOAT64_T": "f8", "CXX_FLOAT_COMPLEX": "F", "CXX_DOUBLE_COMPLEX": "D", "CXX_LONG_DOUBLE_COMPLEX": "G",
    "F_FLOAT_COMPLEX": "F", "F_INT": "i4", "F_FLOAT": "f4", "F_DOUBLE": "f8", "F_BOOL": "i4",
    "FLOAT_INT": _pair("f4"), "DOUBLE_INT": _pair("f8"), "LONG_INT": _pair("i8"), "SHORT_INT": _pair("i2"),
    "INT_INT": _pair("i4"), "TWOINT": _pair("i4"), "LONG_DOUBLE_INT": _pair("g"),
}  # fmt: skip

PREDEFINED: dict[str, Datatype] = {name: Datatype(dtype, f"MPI_{name}") for name, dtype in _TYPES.items()}
DATATYPE_NULL = Datatype("u1", "MPI_DATATYPE_NULL")
_NAMED = {each.name: each for each in (*PREDEFINED.values(), DATATYPE_NULL)}
_USUAL = ("BYTE", "C_BOOL", "SIGNED_CHAR", "SHORT", "UNSIGNED_SHORT", "INT", "UNSIGNED", "LONG", "UNSIGNED_LONG",
          "FLOAT16_T", "FLOAT", "DOUBLE", "LONG_DOUBLE", "C_FLOAT_COMPLEX", "C_DOUBLE_COMPLEX")  # fmt: skip
_OF_DTYPE = {PREDEFINED[name].dtype: PREDEFINED[name] for name in _USUAL}


def datatype_of(dtype: DType) -> Datatype:
    """The datatype of an array that comes without one: MPI's, or one of its own for dtypes that MPI has not."""
    native = dtype.newbyteorder("=")
    return _OF_DTYPE.get(native) or Datatype(native, f"numpy.{native}")


def seen_as(flat: Array, datatype: Datatype, where: str) -> Array:
    """The memory of ``flat`` as elements of ``datatype``, if that makes sense; UsageError if it does not."""
    have, want = flat.dtype, datatype.dtype
    if have.newbyteorder("=") == want:
        return flat
    if not _may_be_seen_as(have, want):
        better = datatype_of(have)
        raise UsageError(
            f"{where}: an array of {have} ({have.itemsize} bytes each) with {datatype.name or datatype!r} "
            f"({want.itemsize} bytes each) would be read as something else than it is; name "
            f"{better.name.replace('MPI_', 'MPI.')}, or leave the datatype away"
        )
    if flat.nbytes % want.itemsize:
        raise UsageError(f"{where}: {flat.nbytes} bytes are no whole number of {datatype.name or want}")
    seen: Array = flat.view(want)
    return seen


def _may_be_seen_as(have: DType, want: DType) -> bool:
    raw = (have.itemsize == 1 and have.kind in "uSV") or (want.itemsize == 1 and want.kind == "u")  # bytes: anything
    integers = have.kind in "iumM" and want.kind in "iu" and have.itemsize == want.itemsize
    parts = {have.kind, want.kind} == {"c", "f"} and 2 * min(have.itemsize, want.itemsize) == max(
        have.itemsize, want.itemsize
    )
    pairs = want.names == ("value", "index") and (
        (have.kind == "V" and have.itemsize == want.itemsize) or (have == np.int32 and want.itemsize == 8)
    )
    return raw or integers or parts or pairs
