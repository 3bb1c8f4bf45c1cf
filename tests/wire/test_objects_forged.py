"""Objects that no correct rank sends: refused as SerializationError, built of listed types only, and never large.

The rule: what loading costs is bounded by the bytes that came, whatever they say.
"""

from __future__ import annotations

import datetime
import decimal
import pathlib
import struct
import tracemalloc
import uuid
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiocoll.errors import SerializationError
from aiocoll.wire.codec import describe
from aiocoll.wire.objects import dumps, loads

TUPLE, ARRAY_APART, BYTES_APART = 2, 15, 17  # codes are a promise between versions
LISTED = (
    type(None), bool, int, float, str, bytes, bytearray, list, tuple, set, frozenset, dict, complex, np.ndarray,
    np.generic, datetime.datetime, datetime.date, datetime.time, datetime.timedelta, decimal.Decimal, uuid.UUID,
    pathlib.PurePath,
)  # fmt: skip


def message(body: bytes, *buffers: bytes) -> bytearray:
    """A message around a body of one's own making."""
    head = struct.pack("<B3xIQ", 1, len(buffers), len(body)) + struct.pack(f"<{len(buffers)}Q", *map(len, buffers))
    whole = bytearray(head + body)
    for buffer in buffers:
        whole += bytes(-len(whole) % 64) + buffer
    return whole


def part(code: int, *fields: Any) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb(list(fields)))


def kinds_in(obj: Any) -> set[type]:
    """The types of everything inside."""
    found = {type(obj)}
    if isinstance(obj, dict):
        inner: Any = [*obj, *obj.values()]
    else:
        inner = obj if isinstance(obj, list | tuple | set | frozenset) else []
    for each in inner:
        found |= kinds_in(each)
    return found


def test_a_message_made_by_hand_is_one() -> None:
    meta = describe(np.dtype("i4"), (3,), False)
    body = msgpack.packb([part(BYTES_APART, 1), part(ARRAY_APART, 0, meta)])
    first, second = loads(message(body, np.arange(3, dtype="i4").tobytes(), b"more"))
    assert first == b"more" and second.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ([part(BYTES_APART, 0)] * 1000, "does not have, or twice"),
        ([part(BYTES_APART, -1)], "does not have"),
        ([part(BYTES_APART, 7)], "does not have"),
        ([part(BYTES_APART, "0")], "does not have"),
        ([part(BYTES_APART, [0])], "cannot be loaded"),
        ([], "leaves 1 of its buffers over"),
        ([part(ARRAY_APART, 0, describe(np.dtype("f8"), (1 << 40,), False))], "bytes came with"),
        ([part(ARRAY_APART, 0, b"no description")], "."),
        ([msgpack.ExtType(99, b"")], "unknown kind 99"),
    ],
)
def test_buffers_belong_to_one_part_each(body: Any, words: str) -> None:
    with pytest.raises(SerializationError, match=words):
        loads(message(msgpack.packb(body), bytes(1 << 20)))


def test_nothing_grows_while_it_is_loaded() -> None:
    """A megabyte that is asked for a thousand times, lengths that reserve, and tuples in tuples."""
    deep: Any = part(TUPLE, bytes(1 << 16))
    for _ in range(90):
        deep = part(TUPLE, deep)
    forged = [
        message(msgpack.packb([part(BYTES_APART, 0)] * 1000), bytes(1 << 20)),
        message(b"\xdd\xff\xff\xff\xff"),  # a list of 2**32 - 1 items
        message(b"\xdf\xff\xff\xff\xff"),  # a dict of as many
        message(b"\xc6\xff\xff\xff\xff"),  # bytes
        message(b"\xc9\xff\xff\xff\xff\x02"),  # a tuple
        message(msgpack.packb(deep)),
        bytearray(struct.pack("<B3xIQ", 1, 2**32 - 1, 5) + b"short"),
        bytearray(struct.pack("<B3xIQ", 1, 0, 2**63) + b"short"),
    ]
    tracemalloc.start()
    try:
        for each in forged:
            try:
                loads(each)
            except SerializationError:
                pass
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()


def test_depth_is_bounded_on_both_sides() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = part(TUPLE, deep)
    with pytest.raises(SerializationError, match="deeper than 100"):
        loads(message(msgpack.packb(deep)))
    with pytest.raises(SerializationError):
        loads(message(b"\x91" * 100_000 + b"\x01"))


def test_dates_of_msgpack_itself_are_pythons() -> None:
    body = msgpack.packb([msgpack.Timestamp(1, 5000)])
    (when,) = loads(message(body))
    assert type(when) is datetime.datetime and when.microsecond == 5


@given(st.data())
def test_whatever_the_bytes_say_only_listed_types_are_built(data: st.DataObject) -> None:
    code = st.integers(0, 25)
    leaf = st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=8) | st.binary(max_size=8) | st.floats()
    body = st.recursive(
        leaf,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner, max_size=3)
            | st.builds(lambda code, fields: part(code, *fields), code, st.lists(inner, max_size=9))
            | st.builds(lambda code, raw: msgpack.ExtType(code, raw), code, st.binary(max_size=20))
        ),
        max_leaves=12,
    )
    forged = message(_packed(data.draw(body)), *data.draw(st.lists(st.binary(max_size=30), max_size=3)))
    try:
        obj = loads(forged)
    except SerializationError:
        return
    strange = [kind for kind in kinds_in(obj) if not issubclass(kind, LISTED)]
    assert not strange, (obj, strange)


def _packed(body: Any) -> bytes:
    packed: bytes = msgpack.packb(body)
    return packed


@given(st.recursive(st.integers() | st.text() | st.binary(), lambda inner: st.lists(inner) | st.tuples(inner)))
def test_the_message_is_about_as_long_as_what_it_carries(obj: object) -> None:
    whole = b"".join(dumps(obj))
    assert len(whole) <= 16 + 20 * len(repr(obj))
