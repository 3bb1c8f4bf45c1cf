"""What an array is, in bytes: dtype, shape and order; and small control messages as plain msgpack.

Rule: equal descriptions are equal bytes on every rank (they go into digests), and nothing that a peer sends is
evaluated: a dtype is built from a whitelist of kinds, and every length is bounded before memory is reserved for it.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError, WireError

ARRAY_BYTES_MAX = 2**62
NDIM_MAX = 64
META_BYTES_MAX = 1 << 20
CONTROL_BYTES_MAX = 1 << 20
CONTROL_DEPTH_MAX = 32
_DTYPE_DEPTH_MAX = 16
_CACHED_META_BYTES_MAX = 1024

# A simple dtype as NumPy spells it: byte order, kind, bytes (or characters), and the unit of dates.
_SIMPLE = re.compile(r"([<>|])([biufcSUV])(\d{1,10})")
_DATE = re.compile(r"[<>][mM]8(\[(?:[1-9][0-9]{0,8})?(Y|M|W|D|h|m|s|ms|us|ns|ps|fs|as)\])?")
_SIZES = {"b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8), "c": (8, 16)}
# Extended floats have one name and several formats (x86: 64 bits of mantissa, aarch64: 113), so the bits go along.
_LONG = {"g": np.longdouble, "G": np.clongdouble}
_LONG_BITS = int(np.finfo(np.longdouble).nmant)


@dataclass(frozen=True, slots=True)
class ArrayMeta:
    """dtype (byte order as sent), shape, and whether the elements stand in Fortran order."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool = False

    @property
    def count(self) -> int:
        """The number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """The number of payload bytes that belong to this description."""
        return self.count * self.dtype.itemsize

    def array(self, buffer: Any = None) -> NDArray[Any]:
        """An array of this description: over `buffer` (exactly `nbytes` bytes, shared), or fresh and uninitialised."""
        order: Any = "F" if self.fortran else "C"
        if self.dtype.itemsize == 0:
            # np.empty(n, "S0") makes "S1" of it; only a field keeps the empty type.
            return np.zeros(self.shape, np.dtype([("f", self.dtype)]), order)["f"]
        if buffer is None:
            return np.empty(self.shape, self.dtype, order)
        if self.count == 0:
            return np.empty(self.shape, self.dtype, order)
        return np.ndarray(self.shape, self.dtype, buffer, order=order)


# ------------------------------------------------------------------------------------------------ dtypes


@lru_cache(maxsize=4096)
def describe(dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool = False) -> bytes:
    """The bytes that `parse` reads; a dtype without a fixed size is a UsageError."""
    if dtype.subdtype is not None:
        raise UsageError(f"dtype {dtype} is a subarray type; give its base type and a longer shape")
    packed: bytes = msgpack.packb([_dtype_out(dtype, 0), [int(extent) for extent in shape], bool(fortran)])
    if len(packed) > META_BYTES_MAX:
        raise UsageError(f"a dtype of {len(dtype.names or ())} fields takes over {META_BYTES_MAX} bytes to describe")
    return packed


def parse(meta: bytes | bytearray | memoryview) -> ArrayMeta:
    """The description in `meta`; WireError on anything that `describe` does not produce."""
    meta = bytes(meta)
    return _parse_cached(meta) if len(meta) <= _CACHED_META_BYTES_MAX else _parse(meta)


def _parse(meta: bytes) -> ArrayMeta:
    fields = _unpack(meta, META_BYTES_MAX, "array description")
    if not (isinstance(fields, list) and len(fields) == 3):
        raise WireError("an array description has three parts: dtype, shape, order")
    spec, shape, fortran = fields
    if not isinstance(fortran, bool):
        raise WireError(f"the order of an array is a bool, not {fortran!r}")
    dtype = _dtype_in(spec, 0)
    if dtype.subdtype is not None:
        raise WireError("the dtype of an array cannot be a subarray type")
    return ArrayMeta(dtype, _shape_in(shape, dtype.itemsize), fortran)


_parse_cached = lru_cache(maxsize=4096)(_parse)


def _shape_in(shape: object, itemsize: int) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > NDIM_MAX:
        raise WireError(f"a shape is a list of at most {NDIM_MAX} extents")
    reach = max(itemsize, 1)  # as NumPy counts: extents of zero hide no overflow of the others
    for extent in shape:
        if type(extent) is not int or extent < 0:
            raise WireError(f"extent {extent!r} in a shape is not a non-negative int")
        reach *= max(extent, 1)
        if reach > ARRAY_BYTES_MAX:
            raise WireError(f"an array of shape {shape[:8]} and {itemsize} bytes an element is larger than 2**62 bytes")
    return tuple(shape)


def _dtype_out(dtype: np.dtype[Any], depth: int) -> Any:
    """str for simple types, ["struct", itemsize, [[name, offset, type(, title)]…]] or ["sub", type, shape]."""
    if dtype.kind == "T":
        raise UsageError("StringDType has no fixed size; convert the array first: x.astype('U')")
    if dtype.hasobject:
        raise UsageError(
            f"dtype {dtype} holds Python objects, which are not moved as arrays; "
            "use broadcast_object, gather_object, … or send_object for them"
        )
    if depth > _DTYPE_DEPTH_MAX:
        raise UsageError(f"dtype {dtype} is nested deeper than {_DTYPE_DEPTH_MAX} levels")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return ["sub", _dtype_out(base, depth + 1), list(shape)]
    if dtype.names is not None and dtype.fields is not None:
        fields = []
        for name in dtype.names:
            inner, offset, *title = dtype.fields[name]
            if title and not isinstance(title[0], str):
                raise UsageError(f"field {name!r} of dtype {dtype} has title {title[0]!r}; only str titles are sent")
            fields.append([name, offset, _dtype_out(inner, depth + 1), *title])
        return ["struct", dtype.itemsize, fields]
    if dtype.type.__module__ == "ml_dtypes":
        return f"ml:{'<' if dtype.isnative == (sys.byteorder == 'little') else '>'}{dtype.name}"
    if dtype.char in _LONG and dtype.itemsize not in _SIZES[dtype.kind]:
        return f"long:{dtype.str[0]}{dtype.char}{_LONG_BITS}"
    if _SIMPLE.fullmatch(dtype.str) or _DATE.fullmatch(dtype.str):
        return dtype.str
    raise UsageError(f"dtype {dtype} has no fixed size or no known form on the wire; convert the array first")


def _dtype_in(spec: object, depth: int) -> np.dtype[Any]:
    if depth > _DTYPE_DEPTH_MAX:
        raise WireError("a dtype is nested too deeply")
    try:
        if isinstance(spec, str):
            return _simple_in(spec)
        if isinstance(spec, list) and len(spec) == 3 and spec[0] == "struct":
            return _struct_in(spec[1], spec[2], depth)
        if isinstance(spec, list) and len(spec) == 3 and spec[0] == "sub":
            base = _dtype_in(spec[1], depth + 1)
            shape = _shape_in(spec[2], base.itemsize)
            if base.subdtype is None and shape:
                return np.dtype((base, shape))
    except (ValueError, TypeError, KeyError, OverflowError, MemoryError) as error:
        if isinstance(error, WireError):
            raise
        raise WireError(f"NumPy refuses the dtype {_short(spec)}: {error}") from error
    raise WireError(f"unknown dtype {_short(spec)}")


def _simple_in(spec: str) -> np.dtype[Any]:
    if spec.startswith("ml:"):
        return _ml_in(spec[3:])
    if spec.startswith("long:"):
        order, char, bits = spec[5:6], spec[6:7], spec[7:]
        if order not in "<>" or char not in _LONG or not bits.isascii() or not bits.isdigit():
            raise WireError(f"unknown dtype {_short(spec)}")
        if bits != str(_LONG_BITS):
            raise WireError(
                f"long doubles with {bits} bits of mantissa were sent, this machine's have {_LONG_BITS}; send float64"
            )
        return _ordered(np.dtype(_LONG[char]), order)
    if simple := _SIMPLE.fullmatch(spec):
        order, kind, digits = simple.groups()
        size = int(digits)
        text = kind in "SUV"
        if str(size) == digits and (size < 2**31 if text else size in _SIZES[kind]):
            return np.dtype(spec)
    elif _DATE.fullmatch(spec):
        return np.dtype(spec)
    raise WireError(f"unknown dtype {_short(spec)}")


def _ml_in(spec: str) -> np.dtype[Any]:
    order, name = spec[:1], spec[1:]
    try:
        import ml_dtypes
    except ImportError:
        raise WireError(f"dtype {name[:32]!r} came, and this rank lacks ml_dtypes: pip install aiocoll[ml]") from None
    kind = getattr(ml_dtypes, name, None)
    if order not in ("<", ">") or not (isinstance(kind, type) and issubclass(kind, np.generic)):
        raise WireError(f"unknown dtype {_short(spec)}")
    return _ordered(np.dtype(kind), order)


def _ordered(dtype: np.dtype[Any], order: str) -> np.dtype[Any]:
    """The native `dtype` in the byte order that was sent."""
    return dtype if (order == "<") == (sys.byteorder == "little") else dtype.newbyteorder("S")


def _struct_in(itemsize: object, fields: object, depth: int) -> np.dtype[Any]:
    if type(itemsize) is not int or not 0 <= itemsize < 2**31 or not isinstance(fields, list):
        raise WireError("a structured dtype has an item size below 2**31 and a list of fields")
    names, offsets, formats, titles = [], [], [], []
    for field in fields:
        if not (isinstance(field, list) and len(field) in (3, 4) and isinstance(field[0], str)):
            raise WireError(f"{_short(field)} is not a field of a structured dtype")
        if type(field[1]) is not int or not 0 <= field[1] <= itemsize:
            raise WireError(f"field {field[0][:32]!r} stands at offset {field[1]!r} of {itemsize} bytes")
        if len(field) == 4 and not isinstance(field[3], str):
            raise WireError(f"the title of field {field[0][:32]!r} is no str")
        names.append(field[0])
        offsets.append(field[1])
        formats.append(_dtype_in(field[2], depth + 1))
        titles.append(field[3] if len(field) == 4 else None)
    layout: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": itemsize}
    if any(title is not None for title in titles):
        layout["titles"] = titles
    described: np.dtype[Any] = np.dtype(layout)
    return described


# ------------------------------------------------------------------------------------------------ control messages


def pack_control(message: dict[str, Any]) -> bytes:
    """Plain msgpack of None, bool, int, float, str, bytes, lists and dicts with str keys, at most 1 MiB."""
    packed: bytes = msgpack.packb(message)
    if len(packed) > CONTROL_BYTES_MAX:
        raise UsageError(f"a control message of {len(packed)} bytes is over the limit of {CONTROL_BYTES_MAX}")
    return packed


def unpack_control(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The dict in `data`; WireError on anything that `pack_control` does not produce."""
    message = _unpack(data, CONTROL_BYTES_MAX, "control message")
    if not isinstance(message, dict):
        raise WireError(f"a control message is a dict, not {type(message).__name__}")
    _check_plain(message, 0)
    return message


def _unpack(data: bytes | bytearray | memoryview, bytes_max: int, what: str) -> Any:
    if len(data) > bytes_max:
        raise WireError(f"{what} of {len(data)} bytes is over the limit of {bytes_max}")
    try:
        return msgpack.unpackb(data, strict_map_key=True, ext_hook=_no_extension)
    except WireError:
        raise
    except Exception as error:  # msgpack's errors, UnicodeDecodeError, keys that cannot be hashed
        raise WireError(f"{what} is not msgpack: {type(error).__name__} {error}") from error


def _no_extension(code: int, data: bytes) -> Any:
    raise WireError(f"extension {code} does not belong into plain data")


def _check_plain(value: Any, depth: int) -> None:
    kind = type(value)
    if kind is dict or kind is list:
        if depth >= CONTROL_DEPTH_MAX:
            raise WireError(f"a control message is nested deeper than {CONTROL_DEPTH_MAX} levels")
        for item in value.items() if kind is dict else enumerate(value):
            if kind is dict and type(item[0]) is not str:
                raise WireError(f"key {_short(item[0])} of a control message is no str")
            _check_plain(item[1], depth + 1)
    elif kind not in (str, bytes, int, float, bool, type(None)):
        raise WireError(f"{kind.__name__} does not belong into a control message")


def _short(value: object) -> str:
    text = ascii(value) if isinstance(value, str) else f"a {type(value).__name__}"
    return text if len(text) <= 48 else text[:45] + "..."
