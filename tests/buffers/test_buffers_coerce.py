"""What is taken as input and as output, what is refused, and in which words; `test_buffers_outputs` has the rest."""

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

from aiocoll.buffers import as_array, as_out
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
