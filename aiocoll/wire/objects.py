"""Python objects as messages: plain data in msgpack, anything else only when pickle is allowed by name.

Rule: what is loaded has exactly the types of what was dumped, or dumping refuses and says where in the object and what
would work; and pickle is not even imported unless the caller allows it.

A message is a head (format u8, three zero bytes, count u32, body length u64, one length u64 per buffer), the body, and
the buffers: the big arrays and byte strings, each at a multiple of 64 bytes, so that nothing big is copied on the way.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from ..errors import SerializationError
from .plain import from_plain, to_plain

_ALIGNMENT: Final = 64
_PLAIN, _PICKLED = 1, 2
_HEAD = struct.Struct("<B3xIQ")

Part = bytes | memoryview


def dumps(obj: object, *, allow_pickle: bool = False) -> list[Part]:
    """`obj` as byte strings whose concatenation is the message; big arrays are views, not copies.

    SerializationError names the type and the place inside `obj`. With `allow_pickle` everything picklable goes.
    """
    if allow_pickle:
        return _dump_pickle(obj)
    return _join(_PLAIN, *to_plain(obj))


def loads(data: Any, *, allow_pickle: bool = False) -> Any:
    """The object in `data` (any contiguous buffer); SerializationError when these bytes are no message, or are pickled
    and that is not allowed.

    When `data` is writeable, the big arrays of the result are views into it: give the buffer away with it.
    """
    view = memoryview(data)
    if view.nbytes < _HEAD.size:
        raise SerializationError(f"{view.nbytes} bytes are too few for an object")
    form, body, buffers = _split(view.cast("B"))
    if form == _PLAIN:
        return from_plain(body, buffers)
    if not allow_pickle:
        raise SerializationError(
            "the object was pickled by its sender, and this rank does not load pickles; "
            "connect every rank with allow_pickle=True (AIOCOLL_ALLOW_PICKLE=1), or none"
        )
    return _load_pickle(body, buffers)


# ------------------------------------------------------------------------------------------------ the frame around it


def _join(form: int, body: bytes, buffers: list[memoryview]) -> list[Part]:
    head = _HEAD.pack(form, len(buffers), len(body)) + struct.pack(f"<{len(buffers)}Q", *(b.nbytes for b in buffers))
    parts: list[Part] = [head, body]
    position = len(head) + len(body)
    for buffer in buffers:
        padding = -position % _ALIGNMENT
        parts += [bytes(padding), buffer]
        position += padding + buffer.nbytes
    return [part for part in parts if len(part)]


def _split(view: memoryview) -> tuple[int, memoryview, list[memoryview]]:
    """Format, body and buffers of a message; every length is checked against the bytes that are there."""
    size = len(view)
    form, count, body_bytes = _HEAD.unpack_from(view)
    position = _HEAD.size + 8 * count
    if form not in (_PLAIN, _PICKLED) or bytes(view[1:4]) != b"\0\0\0" or position > size:
        raise SerializationError("the bytes are no object that aiocoll wrote")
    lengths = struct.unpack_from(f"<{count}Q", view, _HEAD.size)
    body = view[position : position + body_bytes]
    position += body_bytes
    buffers = []
    for length in lengths:
        position += -position % _ALIGNMENT
        buffers.append(view[position : position + length])
        position += length
        if position > size:
            break
    if position != size:
        raise SerializationError(f"the object says that it has {position} bytes or more, and {size} came")
    return form, body, buffers


# ------------------------------------------------------------------------------------------------ pickle, when allowed


def _dump_pickle(obj: object) -> list[Part]:
    import pickle

    buffers: list[pickle.PickleBuffer] = []
    try:
        body = pickle.dumps(obj, protocol=5, buffer_callback=buffers.append)
        return _join(_PICKLED, body, [buffer.raw() for buffer in buffers])
    except Exception as error:
        raise SerializationError(
            f"a {type(obj).__qualname__} cannot be pickled: {type(error).__name__}: {error}; send plain data instead, "
            "for a dataclass dataclasses.asdict(x) (allow_pickle=True is already set)"
        ) from error


def _load_pickle(body: memoryview, buffers: list[memoryview]) -> Any:
    import pickle

    writeable = [bytearray(buffer) if buffer.readonly else buffer for buffer in buffers]
    try:
        return pickle.loads(body, buffers=writeable)  # noqa: S301  the caller allows it by name
    except Exception as error:
        raise SerializationError(f"the pickled object cannot be loaded: {type(error).__name__}: {error}") from error
