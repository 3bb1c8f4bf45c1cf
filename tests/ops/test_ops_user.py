"""User-made reductions: what the function gets, what it may return, and how its failures read."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import pickle

import numpy as np
import pytest

from aiocoll.errors import UsageError
from aiocoll.ops import Op, as_op, op

F8 = np.dtype("f8")


def matmul(left, right):
    return left @ right


def bound(fn, shape, dtype=F8, **kwargs):
    return op(fn, **kwargs).bind(shape, np.dtype(dtype), rank=2, what="all_reduce")


def folded(reduction, arrays):
    """Fold as an algorithm does: on flat arrays, into a buffer that is one of the operands."""
    out = arrays[0].reshape(-1).copy()
    for each in arrays[1:]:
        reduction.fold(out, each.reshape(-1), out)
    return out.reshape(arrays[0].shape)


def test_it_gets_whole_arrays_in_shape_and_dtype_with_lower_ranks_on_the_left():
    random = np.random.default_rng(1)
    arrays = [random.normal(size=(3, 3)) for _ in range(5)]
    got = folded(bound(matmul, (3, 3)), arrays)
    assert np.array_equal(got, functools.reduce(np.matmul, arrays))


@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 0, 3), (2, 3)])
@pytest.mark.parametrize(
    "dtype", ["f2", "f4", "c8", "i1", "?", "M8[s]", "U3", "S2", [("a", "i2"), ("b", "f4")]], ids=str
)
def test_every_fixed_size_dtype_and_shape(shape, dtype):
    dtype = np.dtype(dtype)
    seen = []

    def second(left, right):
        seen.append((type(left), left.shape, left.dtype, left.flags.writeable))
        return right

    arrays = [
        np.zeros(shape, dtype),
        np.ones(shape, "i8").astype(dtype) if dtype.kind != "V" else np.ones(shape, dtype),
    ]
    reduction = bound(second, shape, dtype)
    reduction.check(dtype, rank=0)
    assert reduction.work_dtype(dtype) == dtype and reduction.result_dtype(dtype) == dtype
    got = folded(reduction, arrays)
    assert np.array_equal(got, arrays[1]) and got.dtype == dtype
    assert seen == [(np.ndarray, shape, dtype, True)]


def test_big_endian_calls_fold_in_native_order():
    got = folded(bound(lambda a, b: a + b, (2,), ">f8"), [np.array([1.0, 2.0]), np.array([3.0, 4.0])])
    assert got.tolist() == [4.0, 6.0]


def test_it_may_keep_or_change_its_inputs():
    kept = []

    def add_in_place(left, right):
        kept.append(right)
        left += right
        return left

    mine, incoming = np.ones(3), np.full(3, 2.0)
    out = np.empty(3)
    bound(add_in_place, (3,)).fold(mine, incoming, out)
    assert out.tolist() == [3.0] * 3 and mine.tolist() == [1.0] * 3
    incoming[:] = -1  # the transport reuses its buffer
    assert kept[0].tolist() == [2.0] * 3


@pytest.mark.parametrize("target", ["left", "right"])
def test_out_may_be_either_operand(target):
    arrays = {"left": np.array([8.0, 9.0]), "right": np.array([2.0, 3.0])}
    bound(lambda a, b: a - b, (2,)).fold(arrays["left"], arrays["right"], arrays[target])
    assert arrays[target].tolist() == [6.0, 6.0]


@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros(3), np.zeros((2, 2)), np.zeros(2, "f4"), np.zeros(2, "i8"), None, 1.0, "text", [1.0], object(),
        [[1.0], [1.0, 2.0]],
    ],
    ids=repr,
)  # fmt: skip
def test_a_result_that_does_not_fit_is_refused(wrong):
    with pytest.raises(UsageError) as caught:
        folded(bound(lambda a, b: wrong, (2,)), [np.ones(2), np.ones(2)])
    message = str(caught.value)
    assert "all_reduce on rank 2: op '<lambda>' returned" in message
    assert "must return a new array of dtype float64 and shape (2,)" in message


def test_results_that_do_fit():
    assert folded(bound(lambda a, b: [1.0, 2.0], (2,)), [np.ones(2), np.ones(2)]).tolist() == [1.0, 2.0]
    assert folded(bound(lambda a, b: (a + b).astype(">f8"), (2,)), [np.ones(2), np.ones(2)]).tolist() == [2.0, 2.0]

    class Tagged(np.ndarray):
        pass

    assert folded(bound(lambda a, b: (a + b).view(Tagged), (2,)), [np.ones(2)] * 2).tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("dtype", "result"),
    [("f8", 3.5), ("f4", 3.5), ("f8", 3), ("i2", 3), ("c16", 2.5), ("?", True), ("i8", np.int64(4))],
)
def test_numbers_are_results_of_0d_calls(dtype, result):
    got = folded(bound(lambda a, b: result, (), dtype), [np.ones((), dtype), np.ones((), dtype)])
    assert got == result and got.dtype == np.dtype(dtype)


@pytest.mark.parametrize(("dtype", "result"), [("i8", 3.5), ("f8", 1j), ("i1", 300), ("f4", np.float64(1))])
def test_numbers_of_a_higher_kind_or_out_of_range_are_not(dtype, result):
    with pytest.raises(UsageError, match="must return a new array"):
        folded(bound(lambda a, b: result, (), dtype), [np.ones((), dtype), np.ones((), dtype)])


def test_what_it_raises_is_a_usage_error_that_names_the_rank_chained():
    def broken(left, right):
        raise KeyError("no such column")

    with pytest.raises(
        UsageError, match="all_reduce on rank 2: op 'broken' raised KeyError: 'no such column'"
    ) as caught:
        folded(bound(broken, (2,)), [np.ones(2), np.ones(2)])
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_one_that_would_end_what_calls_it_is_refused_like_any_other_error(kind):
    def leaving(left, right):
        raise kind("bye")

    with pytest.raises(UsageError, match=f"op 'leaving' raised {kind.__name__}: bye") as caught:
        folded(bound(leaving, (2,)), [np.ones(2), np.ones(2)])
    assert isinstance(caught.value.__cause__, kind)


def test_an_interrupt_passes_through():
    def interrupted(left, right):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        folded(bound(interrupted, (2,)), [np.ones(2), np.ones(2)])


def test_it_runs_in_the_callers_context_and_errstate():
    variable = contextvars.ContextVar("variable", default="transport")

    def overflow(left, right):
        assert variable.get() == "caller"
        return left * right

    variable.set("caller")
    with np.errstate(over="raise"):
        reduction = bound(overflow, (1,))
    elsewhere = contextvars.Context()
    with pytest.raises(UsageError, match="FloatingPointError: overflow"):
        elsewhere.run(reduction.fold, np.array([1e300]), np.array([1e300]), np.empty(1))


def test_flags_and_identity():
    reduction = op(matmul)
    assert (reduction.name, reduction.commutative, reduction.splittable) == ("matmul", False, False)
    assert reduction.identity(F8) is None and reduction.identity_array((2, 2), F8) is None
    reduction = op(matmul, commutative=True, identity=np.eye(2))
    assert reduction.commutative and not reduction.splittable and not reduction.finishes
    assert np.array_equal(reduction.identity_array((3, 2, 2), np.dtype(">f4")), np.stack([np.eye(2)] * 3))
    assert reduction.identity_array((2, 2), np.dtype(">f4")).dtype == np.dtype("f4")
    assert bound(matmul, (2, 2), identity=np.eye(2)).identity(F8).shape == (2, 2)
    assert op(lambda a, b: a, identity=0).identity(np.dtype("i2")) == np.int16(0)
    assert op(lambda a, b: a, identity=float("-inf")).identity(F8) == -np.inf


@pytest.mark.parametrize(
    ("identity", "dtype", "shape"),
    [
        (np.eye(2), "f8", (3, 3)),
        (np.eye(2), "f8", (2,)),
        (0.5, "i4", (2,)),
        (300, "i1", ()),
        ("x", "f8", ()),
        (-1, "u1", ()),
    ],
    ids=str,
)
def test_an_identity_that_does_not_fit_is_refused_when_the_call_is_made(identity, dtype, shape):
    for fn in (matmul, np.hypot):
        with pytest.raises(UsageError, match="exscan on rank 1: op '.*': identity .* does not fit dtype"):
            op(fn, identity=identity).bind(shape, np.dtype(dtype), rank=1, what="exscan")


@pytest.mark.parametrize("wrong", [None, 3, "sum", [], as_op("sum")])
def test_op_takes_functions_only(wrong):
    with pytest.raises(UsageError, match="op"):
        op(wrong)


def test_commutative_is_a_bool():
    with pytest.raises(UsageError, match="commutative"):
        op(matmul, commutative="no")
    with pytest.raises(UsageError, match="commutative"):
        op(matmul, np.eye(2))


def test_callables_of_every_kind_have_a_name():
    class Joiner:
        def __call__(self, left, right):
            return left + right

    assert op(Joiner()).name == "Joiner"
    assert op(functools.partial(matmul)).name == "partial"
    assert folded(bound(Joiner(), (2,)), [np.ones(2), np.ones(2)]).tolist() == [2.0, 2.0]
    assert "matmul" in repr(op(matmul)) and "commutative=False" in repr(op(matmul))


def test_a_ufunc_is_folded_piece_by_piece_and_keeps_numpys_limits():
    hypot = op(np.hypot, commutative=True, identity=0)
    assert hypot.splittable and hypot.bind((2,), F8, rank=0, what="reduce") is hypot
    out = np.empty(2)
    hypot.fold(np.array([3.0, 6.0]), np.array([4.0, 8.0]), out)
    assert out.tolist() == [5.0, 10.0]
    hypot.check(F8, rank=0)
    with pytest.raises(UsageError, match="op hypot does not work on dtype int64"):
        hypot.check(np.dtype("i8"), rank=0)  # NumPy answers in float64
    assert not op(np.subtract).commutative
    assert not op(np.matmul).splittable  # a generalised ufunc is no elementwise one
    assert op(np.maximum).work_dtype(np.dtype("f2")) == np.float16


def test_an_unbound_op_folds_whole_arrays_as_they_come():
    out = np.empty((2, 2))
    left, right = np.arange(4.0).reshape(2, 2), np.ones((2, 2))
    op(matmul).fold(left, right, out)
    assert np.array_equal(out, left @ right)


def test_ops_of_importable_functions_can_be_pickled():
    again = pickle.loads(pickle.dumps(op(matmul, identity=1)))
    assert isinstance(again, Op) and again.function is matmul and again.neutral == 1 and not again.commutative
    again = pickle.loads(pickle.dumps(op(np.hypot, True)))
    assert again.ufunc is np.hypot and again.commutative
