"""What is taken as input and as output, what is refused, and in which words."""

from __future__ import annotations

import array
import asyncio
import collections
import ctypes
import datetime
import decimal
import enum
import mmap

import ml_dtypes
import numpy as np
import pytest

from aiocoll.buffers import as_array, as_out, check_out, overlaps_itself
from aiocoll.errors import UsageError

CHARS = "?bBhHiIlLqQefdgFDG"
DTYPES = [
    *(np.dtype(char) for char in CHARS),
    *(np.dtype(text) for text in ("M8[us]", "m8[D]", "S8", "U4", ">f8", ">U3", "V5", "i4,f8")),
    *(np.dtype(getattr(ml_dtypes, name)) for name in ("bfloat16", "float8_e5m2", "uint4")),
]


def taken(x):
    return as_array(x, what="all_reduce", rank=3)


def given(x):
    return as_out(x, what="all_reduce", rank=3)


def lock(x):
    x.flags.writeable = False
    return x


class Interface:
    def __init__(self, x):
        self.x = x
        self.__array_interface__ = x.__array_interface__


class OnlyArray:
    def __init__(self, x):
        self.x = x

    def __array__(self, dtype=None, copy=None):
        return self.x


class Exporter:
    """A foreign array with nothing but DLPack."""

    def __init__(self, x, device=None):
        self.x, self.on = x, device

    def __dlpack_device__(self):
        return self.on or self.x.__dlpack_device__()

    def __dlpack__(self, **kwargs):
        return self.x.__dlpack__(**kwargs)


class Tensor:
    """What matters of a torch CPU tensor, which the extra of that name tests for real."""

    def __init__(self, x, dtype=None, grad=False, conj=False, device=(1, 0)):
        self.x, self.dtype, self.grad, self.conj, self.on = x, f"torch.{dtype or x.dtype}", grad, conj, device
        self.device = "cpu" if device == (1, 0) else "cuda:0"

    def __dlpack_device__(self):
        return self.on

    def __dlpack__(self, **kwargs):
        raise BufferError("not asked for")

    def __array__(self, dtype=None):
        raise AssertionError("may copy")

    def detach(self):
        return Tensor(self.x, self.dtype.removeprefix("torch."), conj=self.conj)

    def is_conj(self):
        return self.conj

    def resolve_conj(self):
        return Tensor(self.x.conj())

    def numpy(self):
        if self.grad or self.conj or self.on != (1, 0):
            raise RuntimeError("cannot call numpy() on this")
        return self.x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "layout",
    [
        lambda a: a,
        lambda a: a.T,
        lambda a: a[::2, ::-1],
        np.asfortranarray,
        lambda a: a[0, 0, ...],
        lambda a: a[:0],
        lambda a: lock(a.copy()),
        lambda a: np.broadcast_to(a[0], (7, 4)),
    ],
    ids=["c", "transposed", "strided", "fortran", "0-d", "empty", "read-only", "broadcast"],
)
def test_plain_arrays_are_taken_as_they_are(dtype, layout):
    x = layout(np.zeros((4, 4), dtype))
    got, scalar = taken(x)
    assert got is x and scalar is False


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (True, "?"), (3, "i8"), (-3, "i8"), (2**63, "u8"), (2.5, "f8"), (1j, "c16"), (np.float32(2), "f4"),
        (np.int8(3), "i1"), (np.bool_(True), "?"), (np.datetime64(3, "s"), "M8[s]"), (np.timedelta64(3, "s"), "m8[s]"),
        (np.str_("abc"), "U3"), (np.bytes_(b"ab"), "S2"), (np.zeros(1, "i4,f8")[0], "i4,f8"),
        (ml_dtypes.bfloat16(2), ml_dtypes.bfloat16), (np.longdouble(1), "g"), (enum.IntEnum("E", "A").A, "i8"),
    ],
    ids=repr,
)  # fmt: skip
def test_scalars_are_0d_arrays_and_say_so(x, dtype):
    got, scalar = taken(x)
    assert type(got) is np.ndarray and got.shape == () and got.dtype == np.dtype(dtype) and scalar is True
    assert got[()] == x and isinstance(got[()], np.generic) or dtype is ml_dtypes.bfloat16


def test_0d_arrays_are_arrays():
    assert taken(np.array(3.0))[1] is False


def test_subclasses_come_as_base_arrays_on_the_same_memory(tmp_path):
    class Mine(np.ndarray):
        pass

    memmap = np.memmap(tmp_path / "file", "f8", "w+", shape=(3,))
    record = np.rec.array([(1, 2.0), (3, 4.0)], dtype=[("a", "i4"), ("b", "f8")])
    for x in (np.zeros((2, 3)).view(Mine), memmap, record, np.ma.masked_array([1.0, 2.0], mask=False)):
        for got in (taken(x)[0], given(x)):
            assert type(got) is np.ndarray and np.shares_memory(got, x) and got.shape == x.shape
    assert taken(record)[0].dtype.type is np.void
    assert taken(record)[0].dtype.names == ("a", "b")


def test_a_mask_is_not_dropped_in_silence():
    with pytest.raises(UsageError, match="all_reduce on rank 3: a masked array would lose its mask"):
        taken(np.ma.masked_array([1.0, 2.0], mask=[True, False]))


@pytest.mark.parametrize(
    ("make", "dtype"),
    [
        (lambda: bytearray(b"abc"), "u1"),
        (lambda: memoryview(bytearray(b"abc")), "u1"),
        (lambda: memoryview(np.zeros((2, 3), "f4")), "f4"),
        (lambda: array.array("d", [1, 2, 3]), "f8"),
        (lambda: array.array("h", [1, 2, 3]), "i2"),
        (lambda: (ctypes.c_double * 3)(1, 2, 3), "f8"),
        (lambda: mmap.mmap(-1, 10), "u1"),
        (lambda: Interface(np.zeros((3, 2), "M8[s]")), "M8[s]"),
        (lambda: Interface(np.zeros((4, 4), ">i4").T[::2]), ">i4"),
        (lambda: Exporter(np.zeros((3, 2), "f4")), "f4"),
        (lambda: Tensor(np.zeros((3, 2), "f4")), "f4"),
        (lambda: Tensor(np.zeros((3, 2), "f4"), grad=True), "f4"),
    ],
)
def test_everything_with_memory_of_its_own_is_input_and_output_without_a_copy(make, dtype):
    x = make()
    source, scalar = taken(x)
    target = given(x)
    assert scalar is False and source.dtype == target.dtype == np.dtype(dtype) and source.shape == target.shape
    assert type(source) is type(target) is np.ndarray
    target[...] = np.ones((), target.dtype)
    assert (source == target).all() and source.size


@pytest.mark.parametrize(
    "make",
    [
        lambda: b"abc",
        lambda: memoryview(b"abc"),
        lambda: lock(np.zeros(3)),
        lambda: Interface(lock(np.zeros(3))),
        lambda: np.broadcast_to(np.zeros(1), (1,)),
    ],
)
def test_read_only_memory_is_input_but_no_output(make):
    assert taken(make())[0].ndim == 1
    with pytest.raises(UsageError, match="all_reduce on rank 3: out is read-only"):
        given(make())


def test_bytes_are_uint8_arrays():
    got, scalar = taken(b"abc")
    assert got.dtype == np.uint8 and got.tolist() == [97, 98, 99] and not scalar
    assert taken(b"")[0].shape == (0,)
    assert given(bytearray()).shape == (0,)


def test_array_method_serves_inputs_only():
    x = np.arange(3.0)
    assert np.shares_memory(taken(OnlyArray(x))[0], x)
    with pytest.raises(UsageError, match="shares no memory"):
        given(OnlyArray(x))


@pytest.mark.parametrize(
    "x", [[1, 2], (1.5, 2), [[True], [False]], range(3), [], [np.ones(2), np.zeros(2)], [1j]], ids=repr
)
def test_lists_of_numbers_are_inputs(x):
    got, scalar = taken(x)
    assert np.array_equal(got, np.asarray(x)) and got.dtype == np.asarray(x).dtype and not scalar


def test_lists_of_tensors_are_stacked():
    got, _ = taken([Tensor(np.arange(3.0)), Tensor(np.ones(3))])
    assert got.tolist() == [[0, 1, 2], [1, 1, 1]]


@pytest.mark.parametrize(
    "x",
    [
        np.array([None, 1]), np.array([{}], object), np.zeros(2, [("a", "O"), ("b", "i4")]), None, "text", {}, {1, 2},
        object(), 2**64, [2**70], ["a", "b"], [[1], [1, 2]], [None], [b"ab"], decimal.Decimal(1), datetime.datetime.min,
        np.array(["a"], np.dtypes.StringDType()), collections.deque([1]), lambda: 3, np, int,
    ],
    ids=lambda x: type(x).__name__,
)  # fmt: skip
def test_python_objects_are_refused_with_a_pointer_to_the_object_calls(x):
    with pytest.raises(UsageError) as caught:
        taken(x)
    assert "all_reduce on rank 3: " in str(caught.value) and "broadcast_object" in str(caught.value)


@pytest.mark.parametrize(
    "x", [3, 3.5, True, np.float64(3), [1.0], (1.0,), None, "text", {}, object(), range(3), np.array([None])]
)
def test_outputs_need_memory(x):
    with pytest.raises(UsageError, match="all_reduce on rank 3: "):
        given(x)


def test_memory_of_other_devices_is_refused():
    for x in (Exporter(np.zeros(3), device=(2, 0)), Tensor(np.zeros(3), device=(2, 0))):
        for take in (taken, given):
            with pytest.raises(UsageError, match=r"all_reduce on rank 3: .* lies on .*copy it to the CPU first"):
                take(x)
    assert "cuda:0" in pytest.raises(UsageError, taken, Tensor(np.zeros(3), device=(2, 0))).value.args[0]


def test_conjugated_tensors_are_resolved_or_refused():
    x = Tensor(np.array([1 + 2j]), conj=True)
    assert taken(x)[0].tolist() == [1 - 2j]
    with pytest.raises(UsageError, match="resolve_conj"):
        given(x)


def test_errors_of_foreign_code_are_chained():
    class Broken:
        def __array__(self, dtype=None, copy=None):
            raise LookupError("lost")

    with pytest.raises(UsageError, match="cannot read this Broken as an array: lost") as caught:
        taken(Broken())
    assert isinstance(caught.value.__cause__, LookupError)


BASE = np.arange(64.0)


def strided(shape, *strides):
    return np.lib.stride_tricks.as_strided(BASE.copy(), shape, [8 * stride for stride in strides])


@pytest.mark.parametrize(
    ("x", "overlaps"),
    [
        (strided((3,), 0), True),
        (strided((1,), 0), False),
        (strided((0, 3), 0, 0), False),
        (strided((4, 3), 1, 1), True),
        (strided((4, 3), 3, 1), False),
        (strided((4, 3), 2, 1), True),
        (strided((2, 3), 2, 3), False),  # 0 3 6 2 5 8: interleaved, yet apart
        (strided((3, 4), 2, 3), False),
        (strided((4, 3), 2, 3), True),  # 6 = 3 * 2 = 2 * 3
        (strided((2, 2, 2), 1, 2, 4), False),
        (strided((2, 2, 2), 1, 2, 3), True),
        (np.zeros((4, 4))[::-1, ::2], False),
        (np.zeros((4, 4)).T[1:, :2], False),
        (np.lib.stride_tricks.as_strided(BASE.copy(), (3,), (4,)), True),
        (np.lib.stride_tricks.sliding_window_view(BASE, 3), True),
        (np.lib.stride_tricks.as_strided(np.zeros(1 << 18), (1 << 16, 2), (8, 8 << 15)), True),
    ],
)
def test_outputs_that_overlap_themselves(x, overlaps):
    assert overlaps_itself(x) is overlaps
    if x.flags.writeable and overlaps:
        with pytest.raises(UsageError, match="all_reduce on rank 3: elements of out overlap"):
            given(x)
    elif x.flags.writeable:
        assert given(x) is x


def test_overlap_agrees_with_counting_addresses():
    random = np.random.default_rng(5)
    for _ in range(500):
        shape = random.integers(1, 5, 3)
        strides = random.integers(-5, 6, 3)
        x = np.lib.stride_tricks.as_strided(np.zeros(200)[100:], shape, strides * 8)
        places = (np.indices(shape).reshape(3, -1) * strides[:, None]).sum(0)
        assert overlaps_itself(x) is (len(set(places.tolist())) < x.size), (shape, strides)


def checked(out, shape, dtype, *inputs):
    check_out(out, shape, np.dtype(dtype), inputs, what="scan", rank=1)


def test_out_must_have_the_results_shape_and_dtype():
    checked(np.zeros((2, 3)), (2, 3), "f8")
    checked(np.zeros((2, 3), ">f8"), (2, 3), "f8")
    checked(np.zeros(2, [("a", ">i4"), ("b", "<f8")]), (2,), [("a", "<i4"), ("b", ">f8")])
    for shape in [(3, 2), (6,), (2, 3, 1), ()]:
        with pytest.raises(UsageError, match=r"scan on rank 1: out has shape \(2, 3\), but the result has shape"):
            checked(np.zeros((2, 3)), shape, "f8")
    for dtype in ["f4", "i8", "c16", "M8[s]", "S8", "V8"]:
        with pytest.raises(UsageError, match="scan on rank 1: out has dtype float64, but the result has dtype"):
            checked(np.zeros((2, 3)), (2, 3), dtype)
    with pytest.raises(UsageError, match="dtype"):
        checked(np.zeros(2, "M8[s]"), (2,), "M8[ms]")


def test_out_is_the_input_itself():
    x = np.arange(12.0).reshape(3, 4)
    for same in (x, x[:], x.view(), x.reshape(3, 4)):
        checked(same, (3, 4), "f8", x)
    checked(x[::2, ::-1], (2, 4), "f8", x[::2, ::-1])
    row = np.lib.stride_tricks.as_strided(x, (1, 4), (999, 8))
    checked(row, (1, 4), "f8", x[:1])  # strides of axes of length one mean nothing


@pytest.mark.parametrize(
    ("out", "x"),
    [
        (lambda a: a[1:5], lambda a: a[:4]),
        (lambda a: a[3::-1], lambda a: a[:4]),
        (lambda a: a[:9].reshape(3, 3), lambda a: a[:9].reshape(3, 3).T),
        (lambda a: a[:4], lambda a: a.view("i8")[:4]),
        (lambda a: a[:4], lambda a: a[:4].view(">f8")),
        (lambda a: a[:4], lambda a: a[:2]),
        (lambda a: a[::2], lambda a: a[::3]),
        (lambda a: a[:4], lambda a: a),
    ],
)
def test_partial_overlap_is_refused(out, x):
    a = np.arange(64.0)
    with pytest.raises(UsageError, match="scan on rank 1: out and input overlap"):
        checked(out(a), out(a).shape, "f8", np.zeros(3), x(a))


def test_disjoint_and_empty_arrays_do_not_overlap():
    a = np.arange(64.0)
    checked(a[:4], (4,), "f8", a[4:8], a[60:])
    checked(a[::2], (32,), "f8", a[1::2])  # interleaved, yet apart
    checked(a.reshape(8, 8)[:, :4], (8, 4), "f8", a.reshape(8, 8)[:, 4:])
    checked(a[4:4], (0,), "f8", a, a[2:6])
    checked(a[:4], (4,), "f8", a[2:2])
    checked(np.zeros((0, 3)), (0, 3), "f8", np.zeros((0, 3)))


def test_hard_overlap_questions_end_soon():
    a = np.zeros(1 << 16, "u1")
    one = np.lib.stride_tricks.as_strided(a, (4,) * 6, (2503, 1709, 1151, 701, 401, 211))
    two = np.lib.stride_tricks.as_strided(a[1:], (4,) * 6, (2503, 1709, 1151, 701, 401, 211))
    try:
        checked(one, one.shape, "u1", two)
    except UsageError as exc:
        assert "overlap" in str(exc)


def test_fields_of_dtype_s0_become_arrays_that_numpy_can_make():
    field = np.zeros(3, [("a", "S0"), ("b", "i4")])["a"]
    assert field.dtype.itemsize == 0
    got, _ = taken(field)
    assert got.dtype == "S1" and got.tolist() == [b""] * 3


@pytest.mark.parametrize("ndim", [1, 33, 64])
def test_any_number_of_dimensions(ndim):
    x = np.zeros((1,) * ndim)
    assert taken(x)[0] is x and given(x) is x


async def test_what_was_not_awaited_is_no_array():
    waits = asyncio.Event().wait()
    with pytest.raises(UsageError, match="all_reduce on rank 3: got <coroutine .*, which was never awaited: write"):
        taken(waits)
    waits.close()
