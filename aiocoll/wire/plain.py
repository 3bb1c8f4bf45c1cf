"""Plain data as msgpack with extensions: ints of any size, tuples, sets, dates, arrays, …, each back in its own type.

Rule: exact types only. A subclass, or a class that is not listed, is refused with its place inside the object, since
it would come back as something else; loading builds nothing but the listed types, whatever the bytes say.
"""

from __future__ import annotations

import datetime
import decimal
import pathlib
import struct
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgpack
import numpy as np
from numpy.typing import NDArray

from ..errors import AiocollError, SerializationError
from .codec import describe, parse

DEPTH_MAX: Final = 100
_APART_BYTES_MIN: Final = 4096  # what is smaller stands in the body: a buffer of its own costs padding and bookkeeping
_COMPLEX = struct.Struct("<dd")

# Extension codes: a promise between versions, so numbers are only ever added.
_INT, _TUPLE, _SET, _FROZENSET, _COMPLEX_CODE, _DATETIME, _DATE, _TIME, _TIMEDELTA, _DECIMAL = range(1, 11)
_UUID, _PATH, _SCALAR, _ARRAY, _ARRAY_APART, _BYTEARRAY, _BYTES_APART, _BYTEARRAY_APART = range(11, 19)
_NUMPY_STR, _NUMPY_BYTES = range(19, 21)

_SCALARS: Final = frozenset({type(None), bool, int, float, str})
_PATHS: Final = {
    "PurePosixPath": pathlib.PurePosixPath,
    "PureWindowsPath": pathlib.PureWindowsPath,
    "PosixPath": pathlib.PosixPath,
    "WindowsPath": pathlib.WindowsPath,
}
_REMEDY: Final = (
    "send plain data (for a dataclass: dataclasses.asdict(x)), "
    "or connect every rank with allow_pickle=True (AIOCOLL_ALLOW_PICKLE=1)"
)


def to_plain(obj: object) -> tuple[bytes, list[memoryview]]:
    """The body, and the buffers that stand apart from it; SerializationError names what cannot be sent, and where."""
    dumper = _Dumper()
    try:
        return dumper.pack(dumper.plain(obj, 0)), dumper.buffers
    except _RefusedError as refused:
        raise SerializationError(refused.text()) from refused.__cause__


def from_plain(body: memoryview, buffers: list[memoryview]) -> Any:
    """The object of a body and its buffers; arrays apart from the body are views into writeable buffers."""
    try:
        return _Loader(buffers).whole(body)
    except SerializationError:
        raise
    except Exception as error:  # whatever forged fields provoke in msgpack and in the constructors
        raise SerializationError(f"the object cannot be loaded: {type(error).__name__}: {error}") from error


class _RefusedError(Exception):
    """Something inside the object cannot be sent; the path grows while this travels up."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(why)
        self.why, self.path = why, path

    def under(self, step: str) -> _RefusedError:
        self.path = step + self.path
        return self

    def text(self) -> str:
        path = self.path if len(self.path) <= 160 else f"{self.path[:100]}…{self.path[-40:]}"
        return f"obj{path} {self.why}; {_REMEDY}"


class _Dumper:
    """Turns an object into what msgpack packs by itself, and collects the buffers that stand apart."""

    def __init__(self) -> None:
        self.buffers: list[memoryview] = []

    def pack(self, plain: object) -> bytes:
        try:
            packed: bytes = msgpack.packb(
                plain, strict_types=True, default=self._big_int, unicode_errors="surrogatepass"
            )
        except (ValueError, OverflowError, MemoryError) as error:
            raise _RefusedError(f"is too large for one object ({error})") from error
        return packed

    @staticmethod
    def _big_int(value: object) -> msgpack.ExtType:
        if type(value) is not int:  # everything else was turned into what msgpack knows
            raise _RefusedError(f"holds a {_name(type(value))}, which has no plain form")
        return msgpack.ExtType(_INT, value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))

    def plain(self, obj: object, depth: int) -> object:
        """`obj` in lists, dicts, scalars and ExtTypes; leaves are looked at in bulk, so flat data costs little."""
        kind = type(obj)
        if kind in _SCALARS:
            return obj
        if depth > DEPTH_MAX:
            raise _RefusedError(f"is nested deeper than {DEPTH_MAX} levels (or contains itself)")
        if isinstance(obj, list) and kind is list:
            return self._items(obj, depth)
        if isinstance(obj, dict) and kind is dict:
            return self._mapping(obj, depth)
        if isinstance(obj, bytes) and kind is bytes and len(obj) < _APART_BYTES_MIN:
            return obj
        writer = _WRITERS.get(kind)
        if writer is None and isinstance(obj, np.generic):
            writer = _Dumper._scalar
        if writer is None:
            raise _RefusedError(_refusal(kind))
        return writer(self, obj, depth)

    def _items(self, items: list[Any], depth: int) -> list[Any]:
        if _SCALARS.issuperset(map(type, items)):
            return items
        done = []
        for index, item in enumerate(items):
            try:
                done.append(self.plain(item, depth + 1))
            except _RefusedError as refused:
                raise refused.under(f"[{index}]") from refused.__cause__
        return done

    def _mapping(self, mapping: dict[Any, Any], depth: int) -> dict[Any, Any]:
        if _SCALARS.issuperset(map(type, mapping)) and _SCALARS.issuperset(map(type, mapping.values())):
            return mapping
        done = {}
        for key, value in mapping.items():
            try:
                step = f" key {_short(key)}"
                packed_key = self.plain(key, depth + 1)
                step = f"[{_short(key)}]"
                done[packed_key] = self.plain(value, depth + 1)
            except _RefusedError as refused:
                raise refused.under(step) from refused.__cause__
        return done

    def _elements(self, obj: Any, depth: int, code: int) -> msgpack.ExtType:
        return msgpack.ExtType(code, self.pack(self._items(list(obj), depth)))

    def _tuple(self, obj: Any, depth: int) -> msgpack.ExtType:
        return self._elements(obj, depth, _TUPLE)

    def _set(self, obj: Any, depth: int) -> msgpack.ExtType:
        return self._elements(obj, depth, _SET)

    def _frozenset(self, obj: Any, depth: int) -> msgpack.ExtType:
        return self._elements(obj, depth, _FROZENSET)

    def _bytes(self, obj: Any, depth: int) -> msgpack.ExtType:
        return self._apart(_BYTES_APART, memoryview(obj))

    def _bytearray(self, obj: Any, depth: int) -> msgpack.ExtType:
        if len(obj) < _APART_BYTES_MIN:
            return msgpack.ExtType(_BYTEARRAY, bytes(obj))
        return self._apart(_BYTEARRAY_APART, memoryview(obj))

    def _apart(self, code: int, buffer: memoryview, *fields: Any) -> msgpack.ExtType:
        self.buffers.append(buffer)
        return msgpack.ExtType(code, msgpack.packb([len(self.buffers) - 1, *fields]))

    def _fields(self, code: int, *fields: Any) -> msgpack.ExtType:
        return msgpack.ExtType(code, self.pack(list(fields)))

    def _complex(self, obj: Any, depth: int) -> msgpack.ExtType:
        return msgpack.ExtType(_COMPLEX_CODE, _COMPLEX.pack(obj.real, obj.imag))

    def _datetime(self, obj: Any, depth: int) -> msgpack.ExtType:
        day = (obj.year, obj.month, obj.day)
        return self._fields(
            _DATETIME, *day, obj.hour, obj.minute, obj.second, obj.microsecond, obj.fold, _zone_out(obj.tzinfo)
        )

    def _date(self, obj: Any, depth: int) -> msgpack.ExtType:
        return self._fields(_DATE, obj.year, obj.month, obj.day)

    def _time(self, obj: Any, depth: int) -> msgpack.ExtType:
        return self._fields(_TIME, obj.hour, obj.minute, obj.second, obj.microsecond, obj.fold, _zone_out(obj.tzinfo))

    def _timedelta(self, obj: Any, depth: int) -> msgpack.ExtType:
        return self._fields(_TIMEDELTA, obj.days, obj.seconds, obj.microseconds)

    def _decimal(self, obj: Any, depth: int) -> msgpack.ExtType:
        return msgpack.ExtType(_DECIMAL, str(obj).encode("ascii"))

    def _uuid(self, obj: Any, depth: int) -> msgpack.ExtType:
        return msgpack.ExtType(_UUID, obj.bytes)

    def _path(self, obj: Any, depth: int) -> msgpack.ExtType:
        return self._fields(_PATH, type(obj).__name__, str(obj))

    def _scalar(self, obj: Any, depth: int) -> msgpack.ExtType:
        if type(obj) is not obj.dtype.type:
            raise _RefusedError(_refusal(type(obj)))
        array = np.asarray(obj)
        return self._fields(_SCALAR, _describe(array, False), array.tobytes())

    def _numpy_str(self, obj: Any, depth: int) -> msgpack.ExtType:
        return self._fields(_NUMPY_STR, str.__str__(obj))  # str(obj) and arrays lose NULs at the end

    def _numpy_bytes(self, obj: Any, depth: int) -> msgpack.ExtType:
        return msgpack.ExtType(_NUMPY_BYTES, bytes(obj))

    def _array(self, obj: Any, depth: int) -> msgpack.ExtType:
        fortran = obj.ndim > 1 and obj.flags.f_contiguous and not obj.flags.c_contiguous
        meta = _describe(obj, fortran)
        flat = (obj.T if fortran else np.ascontiguousarray(obj)).reshape(-1)
        if obj.nbytes < _APART_BYTES_MIN:
            return self._fields(_ARRAY, meta, flat.tobytes())
        return self._apart(_ARRAY_APART, flat.view(np.uint8).data, meta)


_WRITERS: Final[dict[type, Callable[[_Dumper, Any, int], object]]] = {
    tuple: _Dumper._tuple,
    set: _Dumper._set,
    frozenset: _Dumper._frozenset,
    bytes: _Dumper._bytes,
    bytearray: _Dumper._bytearray,
    complex: _Dumper._complex,
    datetime.datetime: _Dumper._datetime,
    datetime.date: _Dumper._date,
    datetime.time: _Dumper._time,
    datetime.timedelta: _Dumper._timedelta,
    decimal.Decimal: _Dumper._decimal,
    uuid.UUID: _Dumper._uuid,
    np.ndarray: _Dumper._array,
    np.str_: _Dumper._numpy_str,
    np.bytes_: _Dumper._numpy_bytes,
    **{path: _Dumper._path for path in _PATHS.values()},
}


def _describe(array: NDArray[Any], fortran: bool) -> bytes:
    try:
        return describe(array.dtype, array.shape, fortran)
    except AiocollError as error:
        raise _RefusedError(f"is an array that has no plain form ({error})") from error


def _zone_out(zone: datetime.tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is datetime.timezone:
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]  # not in the stubs
        return [offset.days, offset.seconds, offset.microseconds, *name]
    key = getattr(zone, "key", None)
    if _name(type(zone)) == "zoneinfo.ZoneInfo" and isinstance(key, str):
        return key
    raise _RefusedError(f"is a {_name(type(zone))}, use datetime.timezone or a named zoneinfo.ZoneInfo", ".tzinfo")


def _refusal(kind: type) -> str:
    for base in kind.__mro__[1:]:
        if base in _WRITERS or base in _SCALARS or base in (list, dict):
            return f"is a {_name(kind)}, a subclass of {base.__name__} that would lose its type"
    if hasattr(kind, "__dlpack__"):
        return f"is a {_name(kind)}; NumPy's arrays are plain: send np.asarray(x), or a tensor's x.numpy()"
    return f"is a {_name(kind)}, which has no plain form"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _short(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = f"<{_name(type(value))}>"
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------------------------------ loading plain data


class _Loader:
    """Builds the object from a body; knows how deep it is and which buffers stand apart."""

    def __init__(self, buffers: list[memoryview]) -> None:
        self.depth: int = 0
        self._apart: dict[int, memoryview] = dict(enumerate(buffers))

    def unpack(self, data: bytes | memoryview) -> Any:
        return msgpack.unpackb(  # msgpack's own kind of date has a type of its own unless it is asked for Python's
            data, ext_hook=self._extension, strict_map_key=False, unicode_errors="surrogatepass", timestamp=3
        )

    def whole(self, body: memoryview) -> Any:
        """The object; every buffer belongs to exactly one part of it, so that no message grows while it is loaded."""
        obj = self.unpack(body)
        if self._apart:
            raise SerializationError(f"the object leaves {len(self._apart)} of its buffers over")
        return obj

    def take(self, index: Any) -> memoryview:
        """The buffer of that number, once."""
        buffer = self._apart.pop(index, None)
        if buffer is None:
            raise SerializationError(f"the object refers to a buffer that it does not have, or twice ({index!r})")
        return buffer

    def _extension(self, code: int, data: bytes) -> Any:
        reader = _READERS.get(code)
        if reader is None:
            raise SerializationError(f"the object has a part of unknown kind {code}; do all ranks run one version?")
        self.depth += 1
        if self.depth > DEPTH_MAX + 8:
            raise SerializationError(f"the object is nested deeper than {DEPTH_MAX} levels")
        try:
            return reader(self, data)
        finally:
            self.depth -= 1

    def _datetime(self, data: bytes) -> datetime.datetime:
        year, month, day, hour, minute, second, micro, fold, zone = self.unpack(data)
        return datetime.datetime(year, month, day, hour, minute, second, micro, _zone_in(zone), fold=fold)

    def _time(self, data: bytes) -> datetime.time:
        hour, minute, second, micro, fold, zone = self.unpack(data)
        return datetime.time(hour, minute, second, micro, _zone_in(zone), fold=fold)

    def _path(self, data: bytes) -> pathlib.PurePath:
        kind, text = self.unpack(data)
        return _PATHS[kind](text)

    def _array(self, data: bytes) -> NDArray[Any]:
        meta, content = self.unpack(data)
        return _array_of(meta, bytearray(content))

    def _scalar(self, data: bytes) -> Any:
        return self._array(data)[()]

    def _array_apart(self, data: bytes) -> NDArray[Any]:
        index, meta = self.unpack(data)
        content = self.take(index)
        return _array_of(meta, bytearray(content) if content.readonly else content)

    def _bytes_apart(self, data: bytes) -> memoryview:
        (index,) = self.unpack(data)
        return self.take(index)


def _array_of(meta: bytes, content: bytearray | memoryview) -> NDArray[Any]:
    described = parse(meta)
    if described.nbytes != len(content):
        raise SerializationError(f"an array of {described.nbytes} bytes came with {len(content)}")
    array = described.array(content)
    # A buffer that stands at an odd address (a message read from the middle of another) would make slow arrays.
    return array if array.flags.aligned else array.copy("K")


def _zone_in(zone: Any) -> datetime.tzinfo | None:
    if zone is None:
        return None
    if isinstance(zone, str):
        import zoneinfo

        return zoneinfo.ZoneInfo(zone)
    days, seconds, microseconds, *name = zone
    return datetime.timezone(datetime.timedelta(days, seconds, microseconds), *name)


_READERS: Final[dict[int, Callable[[_Loader, bytes], Any]]] = {
    _INT: lambda _, data: int.from_bytes(data, "little", signed=True),
    _TUPLE: lambda self, data: tuple(self.unpack(data)),
    _SET: lambda self, data: set(self.unpack(data)),
    _FROZENSET: lambda self, data: frozenset(self.unpack(data)),
    _COMPLEX_CODE: lambda _, data: complex(*_COMPLEX.unpack(data)),
    _DATETIME: _Loader._datetime,
    _DATE: lambda self, data: datetime.date(*self.unpack(data)),
    _TIME: _Loader._time,
    _TIMEDELTA: lambda self, data: datetime.timedelta(*self.unpack(data)),
    _DECIMAL: lambda _, data: decimal.Decimal(data.decode("ascii")),
    _UUID: lambda _, data: uuid.UUID(bytes=data),
    _PATH: _Loader._path,
    _SCALAR: _Loader._scalar,
    _ARRAY: _Loader._array,
    _ARRAY_APART: _Loader._array_apart,
    _BYTEARRAY: lambda _, data: bytearray(data),
    _BYTES_APART: lambda self, data: bytes(self._bytes_apart(data)),
    _BYTEARRAY_APART: lambda self, data: bytearray(self._bytes_apart(data)),
    _NUMPY_STR: lambda self, data: np.str_(*self.unpack(data)),
    _NUMPY_BYTES: lambda _, data: np.bytes_(data),
}
