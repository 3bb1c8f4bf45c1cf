"""Array descriptions: every dtype that NumPy can move comes back equal, and no bytes do more than raise WireError."""

from __future__ import annotations

import ml_dtypes
import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aiocoll.errors import UsageError, WireError
from aiocoll.wire.codec import (
    ARRAY_BYTES_MAX,
    CONTROL_BYTES_MAX,
    CONTROL_DEPTH_MAX,
    ArrayMeta,
    describe,
    pack_control,
    parse,
    unpack_control,
)

SIMPLE = [
    "?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "g", "c8", "c16", "G",
    ">i2", ">u4", ">f8", ">c16", ">g", "S7", "S0", "U3", ">U3", "V8", "V0", "M8", "M8[s]", "M8[25us]", "m8[ns]",
    ">m8[D]",
]  # fmt: skip
ML = [
    ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4, ml_dtypes.uint4,
    ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e8m0fnu,
]  # fmt: skip
STRUCTURED = [
    [("a", "i1"), ("b", ">f8", (2, 3))],
    [("at", "M8[ms]"), ("inner", [("x", "f4"), ("name", "U5")])],
    {"names": ["b", "a"], "formats": ["f8", "i4"], "offsets": [16, 3], "itemsize": 40},
    {"names": ["low", "all"], "formats": ["u1", "u4"], "offsets": [0, 0]},
    [(("a title", "a"), "i1"), ("b", "f8")],
    [("w", ml_dtypes.bfloat16), ("empty", "S0")],
    [],
]


@pytest.mark.parametrize("spec", SIMPLE + ML + STRUCTURED, ids=str)
@pytest.mark.parametrize(("shape", "fortran"), [((), False), ((3,), False), ((2, 3), True), ((4, 0, 2), False)])
def test_every_fixed_size_dtype_comes_back(spec: object, shape: tuple[int, ...], fortran: bool) -> None:
    dtype = np.dtype(spec)
    meta = parse(describe(dtype, shape, fortran))
    assert meta == ArrayMeta(dtype, shape, fortran)
    assert meta.dtype.byteorder == dtype.byteorder
    assert meta.dtype.fields == dtype.fields
    assert meta.nbytes == int(np.prod(shape)) * dtype.itemsize
    array = meta.array()
    assert array.shape == shape and array.dtype == dtype and array.flags.writeable


def test_equal_dtypes_have_equal_bytes() -> None:
    aligned = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    spelled = np.dtype({"names": ["a", "b"], "formats": ["i1", "f8"], "offsets": [0, 8], "itemsize": 16})
    record = np.dtype((np.record, aligned))
    for twin in (spelled, record):
        assert twin == aligned
        describe.cache_clear()
        assert describe.__wrapped__(twin, (3,)) == describe.__wrapped__(aligned, (3,))
    assert describe.__wrapped__(np.dtype("q"), (2,)) == describe.__wrapped__(np.dtype("l"), (2,))
    assert describe.__wrapped__(np.dtype("f8"), (np.int64(2),)) == describe.__wrapped__(np.dtype("f8"), (2,))


@given(hnp.array_dtypes() | hnp.nested_dtypes() | hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0), st.booleans())
def test_random_dtypes_come_back(dtype: np.dtype, shape: tuple[int, ...], fortran: bool) -> None:
    if dtype.subdtype is not None:
        with pytest.raises(UsageError, match="subarray"):
            describe(dtype, shape, fortran)
        return
    meta = parse(describe(dtype, shape, fortran))
    assert (meta.dtype, meta.shape, meta.fortran) == (dtype, shape, fortran)


def test_an_array_over_a_buffer_shares_it() -> None:
    buffer = bytearray(np.arange(6, dtype="<i4").tobytes())
    array = ArrayMeta(np.dtype("<i4"), (2, 3), True).array(buffer)
    assert array.tolist() == [[0, 2, 4], [1, 3, 5]]
    array[0, 0] = 7
    assert buffer[0] == 7
    assert ArrayMeta(np.dtype("f8"), (0, 3)).array(bytearray()).shape == (0, 3)


@pytest.mark.parametrize(
    ("dtype", "words"),
    [
        (np.dtype(object), "broadcast_object"),
        (np.dtype([("a", "i4"), ("b", object)]), "send_object"),
        (np.dtypes.StringDType(), "astype"),
    ],
    ids=str,
)
def test_python_objects_are_refused_with_what_would_work(dtype: np.dtype, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        describe(dtype, (2,))


def forged(dtype: object, shape: object = (), fortran: object = False) -> bytes:
    return msgpack.packb([dtype, shape, fortran])


@pytest.mark.parametrize(
    "meta",
    [
        b"", b"\xc0", b"\x93", forged("<f8") + b"\0", forged("|O"), forged("O"), forged("<f3"), forged("f8"),
        forged("<f08"),
        forged("<i16"), forged("|T16"), forged("<U2147483647"), forged("<S2147483648"), forged("<M8[foo]"),
        forged("<M8[0s]"),
        forged("ml:<nonsense"), forged("ml:<finfo"), forged("ml:|bfloat16"), forged("ml:"), forged("long:<g1"),
        forged("long:<q63"),
        forged("long:<g\u0663"), forged("<f8", [-1]), forged("<f8", [1.0]), forged("<f8", [True]), forged("<f8", 3),
        forged("<f8", [1] * 65), forged("<f8", [2**40, 2**30]), forged("<f8", [2**63, 0]), forged("<f8", [2**62]),
        forged("<f8", [2], 1), forged("<f8", [2], None), forged(["sub", "<f8", [2]]), forged(["sub", "<f8"]),
        forged(None),
        forged(["struct", 8, [["a", 4, "<f8"]]]), forged(["struct", 8, [["a", -1, "<f4"]]]), forged(["struct", 2**31,
        []]),
        forged(["struct", 8, [["a", 0, "<f4"], ["a", 4, "<f4"]]]), forged(["struct", 8, [["a", 0, "|O"]]]),
        forged(["struct", 8, [["a", 0]]]), forged(["struct", 8, [[1, 0, "<f8"]]]), forged(["struct", 8, [["a", 0,
        "<f4", 3]]]),
        forged(["struct", True, []]), forged(["struct", 8, None]), msgpack.packb(msgpack.ExtType(3, b"x")),
    ],
)  # fmt: skip
def test_descriptions_that_nobody_sends(meta: bytes) -> None:
    with pytest.raises(WireError):
        parse(meta)


def test_nesting_and_length_are_bounded() -> None:
    deep: object = "<f8"
    for _ in range(40):
        deep = ["struct", 8, [["a", 0, deep]]]
    with pytest.raises(WireError, match="nested"):
        parse(forged(deep))
    with pytest.raises(WireError, match="limit"):
        parse(bytes(2**20 + 1))
    dtype = np.dtype("f8")
    for _ in range(40):
        dtype = np.dtype([("a", dtype)])
    with pytest.raises(UsageError, match="nested"):
        describe(dtype, ())


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_else(data: bytes) -> None:
    for reader in (parse, unpack_control):
        try:
            reader(data)
        except WireError:
            pass


@given(st.data())
def test_flipped_bytes_raise_nothing_else(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([np.dtype(spec) for spec in SIMPLE + STRUCTURED]))
    meta = bytearray(describe(dtype, (2, 3)))
    for _ in range(data.draw(st.integers(1, 3))):
        meta[data.draw(st.integers(0, len(meta) - 1))] = data.draw(st.integers(0, 255))
    try:
        parsed = parse(meta)
    except WireError:
        return
    assert parsed.nbytes <= ARRAY_BYTES_MAX and not parsed.dtype.hasobject


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), plain, max_size=5))
def test_control_messages_come_back(message: dict[str, object]) -> None:
    assert unpack_control(pack_control(message)) == message
    assert unpack_control(memoryview(pack_control(message))) == message


@pytest.mark.parametrize(
    "data",
    [
        msgpack.packb([1]), msgpack.packb({1: 2}), msgpack.packb({b"a": 2}), msgpack.packb({"a": msgpack.ExtType(2,
        b"")}),
        msgpack.packb({"a": msgpack.Timestamp(1)}), b"\x81\xa1\xff\x01", pack_control({}) + b"\0",
        b"\xdf\xff\xff\xff\xff",
        bytes(CONTROL_BYTES_MAX + 1), b"\x81\xa1a" + b"\x91" * (CONTROL_DEPTH_MAX + 2) + b"\xc0",
        b"\x81\xa1a" + b"\x91" * 5000,
    ],
    ids=lambda data: repr(data[:8]),
)  # fmt: skip
def test_control_messages_that_nobody_sends(data: bytes) -> None:
    with pytest.raises(WireError):
        unpack_control(data)


def test_a_control_message_over_the_limit_is_refused_by_the_sender() -> None:
    with pytest.raises(UsageError, match="limit"):
        pack_control({"a": bytes(CONTROL_BYTES_MAX)})
